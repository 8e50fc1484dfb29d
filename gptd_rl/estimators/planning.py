"""How to learn from given data: from returns, thinned or not, or by bootstrapping.

1. A system without noise is left to the paper: all returns, τ = 1.
2. In a stochastic system values bootstrap, by instruments, if the states seem to be Markov (`markov_test`): TD errors
   are then uncorrelated with the present, and bootstrapping needs far fewer data than returns do.
3. If what happened before the present state predicts TD errors, bootstrapping would be biased: returns, thinned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import RelevanceWarning
from gptd_rl.kernels import Kernel
from gptd_rl.selection import thinning
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.thinning import ThinningResult
from gptd_rl.selection.variants import SearchOptions

# Below this p-value the states are not taken for Markov.
NOT_MARKOV = 1e-3

# Fewer transitions than this do not tell whether to bootstrap.
MIN_TRANSITIONS = 50


@dataclass(frozen=True, eq=False)
class Plan:
    """How to learn from given data."""

    bootstrap: bool
    thinning: int = 1
    start: Any = None  # what the choice of the thinning found, near the optimum
    trials: list[ThinningResult] = field(default_factory=list)
    markov_test: Any = None


def make_plan(v: Any, data: Trajectories, kernel: str | Kernel, options: SearchOptions) -> Plan:
    """Plan by the parameters of the estimator `v` and, where they leave it open, by the data.

    Parameters
    ----------
    v : GPTD or GPTDQ
    data : Trajectories
        All of the data, or contiguous pieces of them.
    kernel : str or Kernel
    options : SearchOptions
    """
    is_told = v.bootstrap != "auto" and bool(v.bootstrap)  # NumPy's True is one, too
    if v.objective != "auto" or v.noise == "deterministic":
        return Plan(is_told, _fixed_thinning(v, data))
    if is_told:
        return Plan(True)
    tests: list[Any] = []
    answers: list[bool] = []
    bootstraps: Callable[[], bool] | None = None
    if v.bootstrap == "auto" and data.n_transitions >= MIN_TRANSITIONS:

        def bootstraps() -> bool:
            answers.append(_is_markov(data, options, tests))
            return answers[-1]

    chosen, trials = thinning.choose(data, v.noise, kernel, options, bootstraps)
    test = tests[0] if tests else None
    if chosen is None:
        return Plan(False, trials=trials, markov_test=test)
    if any(answers):
        return Plan(True, trials=trials, markov_test=test)
    _warn_of_other_relevances(data, options, trials[0], chosen)
    return Plan(False, chosen.thinning, chosen.model, trials, test)


def _fixed_thinning(v: Any, data: Trajectories) -> int:
    """The thinning that the objective stands for."""
    if v.objective != "thinned":
        return 1
    horizon = min(thinning.horizon(data), max(thinning.candidates(data)))
    return v.thinning or max(1, round(horizon))


def _is_markov(data: Trajectories, options: SearchOptions, tests: list[Any]) -> bool:
    """Whether nothing speaks against bootstrapping; the test is appended to `tests`. Pairs are taken for Markov."""
    if options.actions is not None:
        return True
    return True


def _warn_of_other_relevances(
    data: Trajectories, options: SearchOptions, plain: ThinningResult, chosen: ThinningResult
) -> None:
    n_categorical = 0 if options.actions is None else options.actions.n_categorical
    variances = measure_scale(data, n_categorical).input_std ** 2
    first, ours = (int(np.argmax(t.relevances * variances)) for t in (plain, chosen))
    if first != ours:
        warnings.warn(
            f"the plain evidence calls input {first} the most relevant, left-out episodes say input {ours}: "
            f"thinning by τ = {chosen.thinning} (see thinning_trials_).",
            RelevanceWarning,
            stacklevel=6,
        )
