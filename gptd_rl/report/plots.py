"""Plots of fitted models and of learning runs.

`plot_value`, `plot_section` and `plot_relevances` take axes or make them, and return them; `plot_history` returns a
figure of four panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from gptd_rl.report.charts import COLOURS, plot_band, plot_heatmap, plot_scaled_relevances

if TYPE_CHECKING:
    from gptd_rl.estimators.gptd import GPTD

__all__ = ["plot_history", "plot_relevances", "plot_section", "plot_value"]

SMALLEST_ERROR = 1e-8  # that a plot shows
MAX_LINES_IN_LEGEND = 12


def plot_value(
    v: GPTD, inputs: tuple[int, int] = (0, 1), *, std: bool = False, n: int = 100, ax: Axes | None = None
) -> Axes:
    """Map of the value function, or of its standard deviation, along two inputs.

    The other inputs are at their medians. Dots are the states of the data.

    Parameters
    ----------
    v : GPTD
        Fitted.
    inputs : tuple of 2 ints
        Inputs along the axes.
    std : bool
        Draw the standard deviation instead of the mean.
    n : int
        Number of points along each axis.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    states = v.data_.states
    low, high = states[:, inputs].min(axis=0), states[:, inputs].max(axis=0)
    along = [np.linspace(lo, hi, n) for lo, hi in zip(low, high, strict=True)]
    grid = np.tile(np.median(states, axis=0), (n * n, 1))
    grid[:, inputs] = np.stack(np.meshgrid(*along), axis=-1).reshape(-1, 2)
    mean, deviation = v.predict(grid, return_std=True)
    return plot_heatmap(
        (deviation if std else mean).reshape(n, n),
        (low[0], high[0], low[1], high[1]),
        states=states[:, inputs],
        names=(f"input {inputs[0]}", f"input {inputs[1]}"),
        label="standard deviation of V" if std else "V",
        ax=ax or _pyplot_axes(),
    )


def plot_section(
    v: GPTD, input: int = 0, *, level: float = 0.95, n: int = 200, at: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Value along one input, with the confidence interval as a band.

    Parameters
    ----------
    v : GPTD
        Fitted.
    input : int
        The input along the axis.
    level : float
        Level of the interval.
    n : int
        Number of points along the axis.
    at : array-like of shape (n_dims,), optional
        Values of the other inputs; their medians by default.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    states = v.data_.states
    x = np.linspace(states[:, input].min(), states[:, input].max(), n)
    grid = np.tile(np.median(states, axis=0) if at is None else np.asarray(at, dtype=float), (n, 1))
    grid[:, input] = x
    lower, upper = v.confidence_interval(grid, level)
    ax = ax or _pyplot_axes()
    return plot_band(x, v.predict(grid), lower, upper, states[:, input], f"input {input}", level=level, ax=ax)


def plot_relevances(v: GPTD, names: list[str] | None = None, *, ax: Axes | None = None) -> Axes:
    """Bars of relevance × variance of the input, on a logarithmic axis.

    Parameters
    ----------
    v : GPTD
        Fitted.
    names : list of str, optional
        Names of the inputs.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    scaled = v.relevances_ * v.data_.states.var(axis=0)
    names = names or [f"input {i}" for i in range(len(scaled))]
    return plot_scaled_relevances(names, scaled, ax=ax or _pyplot_axes())


def plot_history(
    n_transitions: ArrayLike,
    *,
    episodes: Sequence[tuple[int, float]],
    policy_return: ArrayLike,
    relevances: ArrayLike,
    log_evidence: ArrayLike,
    policy_change: ArrayLike,
    trial_return: ArrayLike | None = None,
    model_error: ArrayLike | None = None,
    exploration: ArrayLike | None = None,
) -> Figure:
    """Returns, relevances, evidence and policy change of a learning run against the number of transitions.

    Parameters
    ----------
    n_transitions : array-like of shape (n_iterations,)
        Transitions made before each iteration.
    episodes : sequence of (int, float)
        Transitions made when each episode ended, and its return.
    policy_return : array-like of shape (n_iterations,)
        Mean return of the incumbent policy.
    relevances : array-like of shape (n_iterations, n_dims)
    log_evidence : array-like of shape (n_iterations,)
        Per target, in nats.
    policy_change : array-like of shape (n_iterations,)
        Share of the visited states at which the greedy action changed.
    trial_return, model_error, exploration : array-like of shape (n_iterations,), optional
        Mean return of the incumbent policy in a model of the dynamics, one-step error of that model, and the share of
        episodes that explored; NaN where there is none.
    """
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    (top_left, top_right), (low_left, low_right) = figure.subplots(2, 2, sharex=True)
    if episodes:
        top_left.plot(*zip(*episodes, strict=True), ".", color=COLOURS["line"], ms=5, label="episode")
    top_left.plot(n_transitions, policy_return, color=COLOURS["model"], lw=2, label="incumbent policy, mean")
    if trial_return is not None and np.isfinite(trial_return).any():
        top_left.plot(n_transitions, trial_return, "--", color=COLOURS["critic"], label="the same in the model")
    top_left.set(ylabel="return", title="Returns")
    top_left.legend(frameon=False)
    by_input = np.asarray(relevances).T
    for i, line in enumerate(by_input):
        top_right.plot(n_transitions, line, label=f"input {i}")
    top_right.set(yscale="log", ylabel="relevance ω", title="Relevance of each state variable")
    if len(by_input) <= MAX_LINES_IN_LEGEND:
        top_right.legend(frameon=False, fontsize="small", ncols=2)
    if model_error is not None and np.isfinite(model_error).any():
        shown = np.maximum(np.asarray(model_error, dtype=float), SMALLEST_ERROR)
        low_left.plot(n_transitions, shown, ".-", color=COLOURS["other"])
        low_left.set(yscale="log", ylabel="standard deviations of V", title="One-step error of the model")
    else:
        low_left.plot(n_transitions, log_evidence, color=COLOURS["other"])
        low_left.set(ylabel="nats per target", title="Evidence of the kernel")
    low_left.set(xlabel="transitions")
    low_right.plot(
        n_transitions, 100 * np.asarray(policy_change), color=COLOURS["critic"], label="greedy action changed"
    )
    low_right.set(xlabel="transitions", ylabel="% of states", ylim=(0, None), title="Changes of the greedy action")
    if exploration is not None and np.isfinite(exploration).any():
        low_right.plot(n_transitions, 100 * np.asarray(exploration), ".", color=COLOURS["line"], label="exploring")
        low_right.set(ylabel="% of states, of episodes", title="Changes of the greedy action, and exploration")
        low_right.legend(frameon=False)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.3)
    return figure


def _pyplot_axes() -> Axes:
    """Axes that ``pyplot.show`` shows."""
    from matplotlib import pyplot as plt

    return plt.subplots(layout="constrained")[1]
