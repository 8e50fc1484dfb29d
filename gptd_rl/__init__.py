"""Value functions with honest error bars, from sampled transitions alone."""

from gptd_rl.collect import CollectionError, collect
from gptd_rl.envs import register_environments
from gptd_rl.evaluation.evaluate import evaluate_agent
from gptd_rl.gptd import GPTD
from gptd_rl.gptdq import GPTDQ
from gptd_rl.kernels import SquaredExponential
from gptd_rl.metrics import ARD, FactorAnalysis, Isotropic
from gptd_rl.online import OnlineGPTD, Transition
from gptd_rl.sampling.streaming import collect_to_minari
from gptd_rl.storage import load
from gptd_rl.trajectories import Trajectories

register_environments()

__all__ = [
    "ARD",
    "GPTD",
    "GPTDQ",
    "CollectionError",
    "FactorAnalysis",
    "Isotropic",
    "OnlineGPTD",
    "SquaredExponential",
    "Trajectories",
    "Transition",
    "collect",
    "collect_to_minari",
    "evaluate_agent",
    "load",
]
__version__ = "0.1.0"
