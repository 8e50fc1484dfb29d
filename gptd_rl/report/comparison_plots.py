"""Panels of the page of a comparison: each function draws arrays into axes, and returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gptd_rl.estimators.importances import Importances
from gptd_rl.report.charts import COLOURS, DASHES, WIDTH, figure_of, new_axes, short
from gptd_rl.report.numbers import percent
from gptd_rl.report.records import Interval
from gptd_rl.types import Array, BoolArray

LONGEST = 14  # characters of a name in a legend


def plot_intervals(
    names: Sequence[str], intervals: Sequence[Interval], label: str, *, zero: bool = False, ax: Axes | None = None
) -> Axes:
    """Estimates with their intervals in named rows, the first on top; with `zero`, those that exclude it are dark."""
    ax = ax or Figure(figsize=(WIDTH, max(1.4, 0.9 + 0.27 * len(names))), layout="constrained").subplots()
    for place, one in enumerate(intervals):
        is_clear = not zero or one.lower > 0.0 or one.upper < 0.0
        style = dict(fmt="o", ms=4, lw=1.4, capsize=2.5, color=COLOURS["model" if is_clear else "faint"])
        ends = [[one.estimate - one.lower], [one.upper - one.estimate]]
        ax.errorbar([one.estimate], [place], xerr=ends, **cast(Any, style))
    if zero:
        ax.axvline(0.0, color=COLOURS["faint"], lw=0.9, ls=DASHES)
    ax.set_yticks(np.arange(len(names)), [short(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(short(label, 44))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    return ax


def plot_pairs(
    reference: Array,
    agent: Array,
    better: BoolArray,
    worse: BoolArray,
    names: tuple[str, str],
    *,
    ax: Axes | None = None,
) -> Axes:
    """Value of one agent against the value of another, a dot for each state, and the diagonal.

    Parameters
    ----------
    reference, agent : ndarray of shape (m,)
    better, worse : ndarray of shape (m,)
        Where the agent is credibly better or worse.
    names : tuple of 2 str
        Of the agent and of the reference.
    ax : matplotlib Axes, optional
    """
    ax = new_axes(ax)
    middle = float(np.median(reference))
    ax.axline((middle, middle), slope=1.0, color=COLOURS["faint"], lw=0.9, ls=DASHES)
    kinds = (
        (~better & ~worse, "faint", "undecided", "o"),
        (better, "critic", names[0], "^"),
        (worse, "model", names[1], "v"),
    )
    for rows, colour, name, marker in kinds:
        label = name if colour == "faint" else f"{short(name, LONGEST)} better"
        style = dict(ms=4.2, mew=0, alpha=0.75, color=COLOURS[colour])
        if rows.any():
            ax.plot(reference[rows], agent[rows], marker, label=label, **cast(Any, style))
    ax.set(xlabel=f"value of {short(names[1], 30)}", ylabel=f"value of {short(names[0], 30)}")
    return _finished(ax)


def plot_dots(states: Array, differences: Array, label: str, names: tuple[str, str], *, ax: Axes | None = None) -> Axes:
    """Differences at states as colours of dots, with a colour bar.

    Parameters
    ----------
    states : ndarray of shape (m, 2)
    differences : ndarray of shape (m,)
    label : str
        Name of the colour bar.
    names : tuple of 2 str
        Names of the axes.
    ax : matplotlib Axes, optional
    """
    ax = new_axes(ax)
    limit = float(np.quantile(np.abs(differences), 0.95)) or 1.0
    edge = dict(edgecolors=COLOURS["faint"], linewidths=0.4)
    dots = ax.scatter(
        states[:, 0], states[:, 1], s=22, c=differences, cmap="RdBu_r", vmin=-limit, vmax=limit, **cast(Any, edge)
    )
    bar = figure_of(ax).colorbar(dots, ax=ax, label=label, pad=0.02)
    cast(Any, bar).outline.set_visible(False)
    ax.set(xlabel=names[0], ylabel=names[1])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=6))
    return ax


def plot_difference(
    x: Array, mean: Array, lower: Array, upper: Array, visited: Array, name: str, *, ax: Axes | None = None
) -> Axes:
    """Difference of two values along one input, its interval as a band, and visited states as ticks on the axis."""
    ax = new_axes(ax)
    ax.fill_between(x, lower, upper, color=COLOURS["shade"], lw=0, label="95 % interval")
    ax.plot(x, mean, color=COLOURS["model"], lw=1.6, label="difference")
    ax.axhline(0.0, color=COLOURS["faint"], lw=0.9, ls=DASHES)
    ax.plot(visited, np.zeros(len(visited)), "|", transform=ax.get_xaxis_transform(), color=COLOURS["faint"], ms=7)
    ax.set(xlabel=short(name, 50), ylabel="difference of the values")
    return _finished(ax)


def plot_importances_beside(
    inputs: Sequence[str], agents: Sequence[str], importances: Sequence[Importances], *, ax: Axes | None = None
) -> Axes:
    """Bars of total effects with their intervals, those of two agents side by side for each input."""
    ax = ax or Figure(figsize=(WIDTH, max(1.7, 1.1 + 0.42 * len(inputs))), layout="constrained").subplots()
    height = 0.76 / len(agents)
    places = np.arange(len(inputs))
    for j, (name, found, colour) in enumerate(zip(agents, importances, ("critic", "model"), strict=False)):
        effects = np.nan_to_num(found.total_effects)
        ends = np.maximum([effects - np.nan_to_num(found.lower), np.nan_to_num(found.upper) - effects], 0.0)
        at = places + (j - (len(agents) - 1) / 2) * height
        error: Any = dict(lw=1.0, ecolor=COLOURS["faint"])
        ax.barh(at, effects, 0.9 * height, color=COLOURS[colour], xerr=ends, error_kw=error, label=short(name, LONGEST))
    ax.set_yticks(places, [short(name) for name in inputs])
    ax.set_ylim(len(inputs) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    largest = max(float(np.nan_to_num(found.total_effects).max(initial=0.0)) for found in importances)
    ax.set_xlim(0.0, 1.1 * max(1.0, largest))  # intervals from few episodes may be wide
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: percent(x)))
    ax.set_xlabel("variance of V lost without the input")
    return _finished(ax)


def _finished(ax: Axes) -> Axes:
    """With a legend above the axes, and few enough ticks for a phone."""
    n_characters = sum(len(str(label)) for label in ax.get_legend_handles_labels()[1])
    n_columns = 3 if n_characters <= 38 else 2
    where: dict[str, Any] = dict(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=n_columns)
    ax.legend(handlelength=1.2, columnspacing=1.0, borderpad=0.2, **where)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6))
    return ax
