"""What happened while an agent learnt, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Iteration:
    """One improvement of the policy.

    Attributes
    ----------
    n_transitions : int
        Transitions it was learnt from: the first that many of the agent's data.
    relevances : tuple of float
        ω of each state variable.
    signal_variance, noise_variance : float
        v₀ and σ² that the evidence selected last.
    log_evidence : float
        Per target, of the last selection; NaN before the first.
    selected : bool
        Whether relevances were selected in this iteration.
    subset_size : int
        States that stand for all.
    n_sweeps : int
        Sweeps of evaluation and improvement until the values settled.
    residual : float
        Root mean square of what Q leaves of its targets.
    policy_change : float
        Share of the states seen in which the greedy action is another than before.
    episode_return : float
        Mean return of the last ten episodes; NaN before the first.
    served_return : float
        Mean return of the policy that `predict` serves, of episodes since it was chosen; NaN if there are none yet.
    """

    n_transitions: int
    relevances: tuple[float, ...]
    signal_variance: float
    noise_variance: float
    log_evidence: float
    selected: bool
    subset_size: int
    n_sweeps: int
    residual: float
    policy_change: float
    episode_return: float
    served_return: float


def plot_history(history: Sequence[Iteration], episodes: Sequence[tuple[int, float]]) -> Figure:
    """Draw returns, relevances, evidence and policy change against the number of transitions.

    Parameters
    ----------
    history : sequence of Iteration
    episodes : sequence of (int, float)
        Transitions made when each episode ended, and its return.

    Returns
    -------
    Figure
    """
    if not history:
        raise ValueError("there is no history to plot: call learn first.")
    from gptd_rl.report import plots

    return plots.plot_history(
        [i.n_transitions for i in history],
        episodes=episodes,
        policy_return=[i.served_return for i in history],
        relevances=[i.relevances for i in history],
        log_evidence=[i.log_evidence for i in history],
        policy_change=[i.policy_change for i in history],
    )
