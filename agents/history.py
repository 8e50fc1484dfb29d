"""What happened while an agent learnt, iteration by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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
    """Draw returns, relevances, evidence and policy change against the transitions made.

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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    (top_left, top_right), (low_left, low_right) = figure.subplots(2, 2, sharex=True)
    made = [i.n_transitions for i in history]
    if episodes:
        top_left.plot(*zip(*episodes, strict=True), ".", color="tab:gray", ms=4, label="each episode")
    top_left.plot(made, [i.served_return for i in history], "-", color="tab:blue", lw=2, label="policy that serves")
    top_left.set(ylabel="return", title="What policies earned")
    top_left.legend()
    relevances = np.array([i.relevances for i in history])
    for number, line in enumerate(relevances.T):
        top_right.plot(made, line, label=f"input {number}")
    top_right.set(yscale="log", ylabel="relevance ω", title="Which state variables matter")
    if relevances.shape[1] <= 12:
        top_right.legend(fontsize="small", ncols=2)
    low_left.plot(made, [i.log_evidence for i in history], color="tab:green")
    low_left.set(xlabel="transitions", ylabel="nats per target", title="Evidence for the kernel")
    low_right.plot(made, [100 * i.policy_change for i in history], color="tab:red")
    low_right.set(xlabel="transitions", ylabel="% of states", ylim=(0, None), title="Greedy actions that changed")
    for ax in (top_left, top_right, low_left, low_right):
        _quiet(ax)
    return figure


def _quiet(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.3)
