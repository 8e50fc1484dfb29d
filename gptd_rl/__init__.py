"""Value functions with honest error bars, from sampled transitions alone."""

from importlib import import_module
from typing import TYPE_CHECKING

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.envs import register_environments
from gptd_rl.estimators.conformal import Calibrated
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.estimators.markov import markov_test
from gptd_rl.estimators.online import OnlineGPTD, Transition
from gptd_rl.estimators.storage import load
from gptd_rl.exceptions import CollectionError
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.rollouts.collect import collect
from gptd_rl.version import __version__ as __version__

if TYPE_CHECKING:
    from gptd_rl.evaluation.compare import compare_agents
    from gptd_rl.evaluation.evaluate import evaluate_agent
    from gptd_rl.rollouts.streaming import collect_to_minari
else:
    # Public names whose modules take long to import are imported at their first use.
    _LAZY = {
        "collect_to_minari": "gptd_rl.rollouts.streaming",
        "compare_agents": "gptd_rl.evaluation.compare",
        "evaluate_agent": "gptd_rl.evaluation.evaluate",
    }

    def __getattr__(name):
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_LAZY})


register_environments()

__all__ = [
    "ARD",
    "GPTD",
    "GPTDQ",
    "Calibrated",
    "CollectionError",
    "DynamicsModel",
    "FactorAnalysis",
    "Isotropic",
    "OnlineGPTD",
    "SquaredExponential",
    "Trajectories",
    "Transition",
    "collect",
    "collect_to_minari",
    "compare_agents",
    "evaluate_agent",
    "load",
    "markov_test",
]
