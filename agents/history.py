"""The history of an agent: one record for each improvement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gptd_rl.estimators.greedy import GreedyFit
from gptd_rl.selection.regression import KernelSelection
from gptd_rl.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_RECENT = 10  # episodes whose mean return is logged
LOGGED = (
    "log_evidence",
    "policy_change",
    "residual",
    "n_inducing_points",
    "n_iterations",
    "incumbent_return",
    "trial_return",
    "model_error",
    "exploration",
)


@dataclass(frozen=True)
class Iteration:
    """One improvement of the policy.

    Attributes
    ----------
    n_transitions : int
        Transitions it was learnt from.
    relevances : tuple of float
        ω of each state variable.
    signal_variance, noise_variance : float
        v₀ and σ² of the last selection of a kernel; NaN before the first.
    log_evidence : float
        Per target, of the last selection; NaN before the first.
    selected : bool
        Whether the kernel was selected in this improvement.
    n_inducing_points : int
    n_iterations : int
        Iterations until the values converged.
    residual : float
        Root mean square of the residuals of the targets of Q.
    policy_change : float
        Share of visited states in which the greedy action is another than before.
    episode_return : float
        Mean return of the last ten episodes; NaN before the first.
    incumbent_return : float
        Mean return of the incumbent policy since its selection; NaN without episodes.
    trial_return : float
        Mean return of the incumbent policy in the model; NaN without a trial.
    model_error : float
        Median error of r + γV(x') of the model in new transitions, in standard deviations of V; NaN without a model.
    exploration : float
        Share of episodes that explored, since the improvement before; NaN without episodes or without a model.
    """

    n_transitions: int
    relevances: tuple[float, ...]
    signal_variance: float
    noise_variance: float
    log_evidence: float
    selected: bool
    n_inducing_points: int
    n_iterations: int
    residual: float
    policy_change: float
    episode_return: float
    incumbent_return: float
    trial_return: float = np.nan
    model_error: float = np.nan
    exploration: float = np.nan

    @classmethod
    def of(
        cls,
        states: Array,
        fit: GreedyFit,
        before: GreedyFit | None,
        selection: KernelSelection | None,
        episode_returns: Sequence[float],
        incumbent_returns: Sequence[float] | Array,
        **of_model: float,
    ) -> Self:
        """The record of a fit to transitions from `states`, given the fit before and the last selection."""
        some = states[:: max(1, len(states) // 1000)]
        policies = [f.posterior.mean_function.greedy(some) for f in (fit, before) if f is not None]
        return cls(
            n_transitions=len(states),
            relevances=tuple(float(w) for w in fit.kernel.relevances),
            signal_variance=np.nan if selection is None else selection.signal_variance,
            noise_variance=np.nan if selection is None else selection.noise_variance,
            log_evidence=np.nan if selection is None else selection.evidence.log_likelihood / selection.evidence.n_rows,
            selected=fit.selection is not None,
            n_inducing_points=len(fit.posterior.inducing_points),
            n_iterations=fit.n_iterations,
            residual=fit.residual,
            policy_change=1.0 if before is None else float(np.mean(policies[0] != policies[1])),
            episode_return=_mean(episode_returns[-N_RECENT:]),
            incumbent_return=_mean(incumbent_returns),
            **of_model,
        )

    def log(self, logger: Any, n_steps: int) -> None:
        """Write to a Stable-Baselines3 logger."""
        logger.record("rollout/ep_rew_mean", self.episode_return)
        for name in LOGGED:
            logger.record(f"policy_iteration/{name}", getattr(self, name))
        for number, relevance in enumerate(self.relevances):
            logger.record(f"relevance/{number}", relevance)
        logger.dump(n_steps)


def _mean(returns: Sequence[float] | Array) -> float:
    return float(np.mean(returns)) if len(returns) else np.nan


def plot_history(history: Sequence[Iteration], episodes: Sequence[tuple[int, float]]) -> Figure:
    """Plot returns, relevances, evidence and policy change against the number of transitions.

    Parameters
    ----------
    history : sequence of Iteration
    episodes : sequence of (int, float)
        Number of transitions at the end of each episode, and its return.
    """
    if not history:
        raise ValueError("there is no history to plot: call learn first.")
    from gptd_rl.report import plots

    return plots.plot_history(
        [i.n_transitions for i in history],
        episodes=episodes,
        policy_return=[i.incumbent_return for i in history],
        relevances=[i.relevances for i in history],
        log_evidence=[i.log_evidence for i in history],
        policy_change=[i.policy_change for i in history],
        trial_return=[i.trial_return for i in history],
        model_error=[i.model_error for i in history],
        exploration=[i.exploration for i in history],
    )
