"""How to learn from given data: from returns, thinned or not, or by bootstrapping.

1. A system without noise is left to the paper: all returns, τ = 1; one with little noise to thinned returns.
2. In a system with much noise values bootstrap, by instruments, if the states seem to be Markov (`markov_test`): TD
   errors are then uncorrelated with the present, and bootstrapping needs far fewer data than returns do.
3. If what happened before the present state predicts TD errors, bootstrapping would be biased: whole returns, with a
   kernel selected on thinned ones. Instruments are traces then (`traces`), whose errors are honest in this case, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.engines import Engine
from gptd_rl.estimators.markov import MarkovTest, markov_test
from gptd_rl.exceptions import RelevanceWarning
from gptd_rl.kernels import ActionDelta, Kernel
from gptd_rl.selection import thinning
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.search import SearchProblem, SearchResult
from gptd_rl.selection.thinning import ThinningResult
from gptd_rl.selection.variants import Comparison, SearchOptions, compare

# Below this p-value the states are not taken for Markov.
NOT_MARKOV = 1e-3

# Off-policy, values may lie far from the returns in the data, by which amplitudes are selected: the prior variance is
# this many times larger. Too large a prior costs little; too small a one makes Q too small and too certain.
OFF_POLICY_AMPLIFICATION = 30.0

# Fewer transitions than this do not tell whether to bootstrap.
MIN_TRANSITIONS = 50


@dataclass(frozen=True, eq=False)
class Plan:
    """How to learn from given data."""

    trace_decay: float | None  # λ of the instruments; None for returns as in the paper
    thinning: int = 1
    start: SearchResult | None = None  # what the choice of the thinning found, near the optimum
    trials: list[ThinningResult] = field(default_factory=list)
    markov_test: MarkovTest | None = None
    amplification: float = 1.0  # of the prior variance that was selected
    is_interrupted: bool = False  # by Ctrl-C: `start` is the best model found so far, and there is no search to come

    def interrupted(self, every: int, found: SearchResult) -> Plan:
        """Returns as in the paper, with a model that a trial of the thinning found before an interrupt."""
        return replace(self, trace_decay=None, thinning=every, start=found, is_interrupted=True)


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
        return Plan(0.0 if is_told else None, _fixed_thinning(v, data))
    if is_told:
        return Plan(0.0)
    rule = _Rule(data, is_open=v.bootstrap == "auto" and data.n_transitions >= MIN_TRANSITIONS, actions=options.actions)
    try:
        chosen, trials = thinning.choose(data, v.noise, kernel, options, rule if rule.is_open else None)
    except thinning.InterruptedChoice as stop:
        return Plan(None).interrupted(stop.thinning, stop.found)
    if chosen is None:  # deterministic
        return Plan(None, trials=trials)
    if rule.bootstraps:
        return Plan(0.0, trials=trials, markov_test=rule.test)
    _warn_of_other_relevances(data, options, trials[0], chosen)
    # If states are not Markov, returns bootstrap only where segments were cut off.
    trace_decay = None if rule.test is None else 1.0
    return Plan(trace_decay, chosen.thinning, chosen.found, trials, rule.test)


def carry_out(
    plan: Plan,
    problem_of: Callable[[Engine, Plan], SearchProblem],
    engine: Engine,
    kernel: str | Kernel,
    options: SearchOptions,
    reopen: Callable[[], Engine] | None,
) -> tuple[Engine, Plan, Comparison]:
    """Search by a plan; if an interrupt comes before that finds a model, the one that the plan found is kept.

    Parameters
    ----------
    plan : Plan
    problem_of : callable
        What to optimise.
    engine : Engine
    kernel : str or Kernel
    options : SearchOptions
    reopen : callable, optional
        The engine to use instead if the plan is to bootstrap.

    Returns
    -------
    engine : Engine
    plan : Plan
        The given ones, or what took their place.
    comparison : Comparison
    """
    if not plan.is_interrupted:
        try:
            chosen = reopen() if plan.trace_decay == 0.0 and reopen is not None else engine
            # The problem is handed over: its buffer must be gone when the posterior takes its own.
            return chosen, plan, compare(kernel, problem_of(chosen, plan), replace(options, start=plan.start))
        except KeyboardInterrupt:
            if not plan.trials:
                raise
            plan = plan.interrupted(plan.trials[-1].thinning, plan.trials[-1].found)
    assert plan.start is not None
    return engine, plan, Comparison.interrupted_at(plan.start)


@dataclass(eq=False)
class _Rule:
    """Asked about a stochastic system: whether to bootstrap."""

    data: Trajectories
    is_open: bool  # whether it is to be asked
    actions: ActionDelta | None  # pairs of a state and an action are taken for Markov
    test: MarkovTest | None = None
    bootstraps: bool = False

    def __call__(self) -> bool:
        """Whether nothing speaks against the Markov property."""
        self.test = markov_test(self.data) if self.actions is None else None
        self.bootstraps = self.test is None or self.test.pvalue >= NOT_MARKOV
        return self.bootstraps


def _fixed_thinning(v: Any, data: Trajectories) -> int:
    """The thinning that the objective stands for."""
    if v.objective != "thinned":
        return 1
    horizon = min(thinning.horizon(data), max(thinning.candidates(data)))
    return int(v.thinning or max(1, round(horizon)))


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
