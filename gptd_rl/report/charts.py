"""Panels of the pages: each function draws arrays into axes, makes axes if there are none, and returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from gptd_rl.estimators.importances import Importances
from gptd_rl.report.numbers import number, percent
from gptd_rl.types import Array, IntArray

COLOURS = {
    "ink": "#1c1c1d",
    "faint": "#5c5c5d",
    "line": "#d4d4d5",
    "model": "#0b5fa5",
    "critic": "#b4530a",
    "other": "#4d7c2a",
    "shade": "#dfe9f3",
    "paper": "#fffffe",
}
WIDTH = 4.5  # inches; a panel fills a phone, or half of a wide page
LONGEST_NAME = 22
RELEVANCE_FLOOR = 1e-6  # bars are not drawn below this
DASHES = (0, (4, 3))

# -------------------------------------------------------------------------------------- maps and sections


def plot_heatmap(
    values: Array,
    extent: tuple[float, float, float, float],
    *,
    label: str,
    states: Array | None = None,
    names: tuple[str, str] = ("", ""),
    cmap: str = "cividis",
    limits: tuple[float, float] | None = None,
    smooth: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Heat map of a function on an even grid, with a colour bar.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        Rows run upwards.
    extent : tuple of 4 floats
        Left, right, bottom and top: coordinates of the outermost cells' centres.
    label : str
        Name of the colour bar.
    states : ndarray of shape (m, 2), optional
        States to mark with dots.
    names : tuple of 2 str
        Names of the axes.
    cmap : str
    limits : tuple of 2 floats, optional
        Values at the ends of the colour bar; the smallest and the largest by default.
    smooth : bool
        Interpolate between cells.
    ax : matplotlib Axes, optional
    """
    ax = new_axes(ax)
    low, high = limits or (None, None)
    edges = _cell_edges(extent, values.shape)
    image = ax.imshow(values, cmap, origin="lower", extent=edges, aspect="auto", vmin=low, vmax=high)
    image.set_interpolation("bilinear" if smooth else "nearest")
    if states is not None:
        ax.scatter(states[:, 0], states[:, 1], s=5, c="white", edgecolors="black", linewidths=0.35, alpha=0.75)
    bar = figure_of(ax).colorbar(image, ax=ax, label=label, pad=0.02, extend=_extend(values, limits))
    cast(Any, bar).solids.set_rasterized(True)
    cast(Any, bar).outline.set_visible(False)
    ax.grid(visible=False)
    ax.set(xlim=edges[:2], ylim=edges[2:], xlabel=names[0], ylabel=names[1])
    return _with_few_ticks(ax)


def plot_band(
    x: Array,
    mean: Array,
    lower: Array,
    upper: Array,
    visited: Array,
    name: str,
    *,
    level: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Value along one input, the interval as a band, and visited states as ticks on the axis."""
    ax = new_axes(ax)
    ax.fill_between(x, lower, upper, color=COLOURS["shade"], lw=0, label=f"{100 * level:g} % interval")
    ax.plot(x, mean, color=COLOURS["model"], lw=1.6, label="value V")
    ax.plot(visited, np.zeros(len(visited)), "|", transform=ax.get_xaxis_transform(), color=COLOURS["faint"], ms=7)
    ax.set(xlabel=short(name, 50), ylabel="value V")
    return _with_legend(ax)


# -------------------------------------------------------------------------------------- bars


def plot_scaled_relevances(
    names: Sequence[str], scaled_relevances: Array, removed: Sequence[int] = (), *, ax: Axes | None = None
) -> Axes:
    """Bars of relevances on a logarithmic axis, the largest on top; inputs that pruning removes are grey."""
    ax = ax or _axes_for_bars(len(names))
    order = np.argsort(-np.nan_to_num(scaled_relevances), kind="stable")
    shown = np.maximum(np.nan_to_num(scaled_relevances[order]), RELEVANCE_FLOOR)
    places = np.arange(len(order))
    colours = [COLOURS["line" if grey else "model"] for grey in np.isin(order, removed)]
    ax.barh(places, shown, height=0.62, color=colours)
    for place, (relevance, end) in enumerate(zip(scaled_relevances[order], shown, strict=True)):
        text = ax.text(1.35 * end, place, number(float(relevance)), va="center", fontsize=8.5, color=COLOURS["faint"])
        text.set_bbox(dict(facecolor=COLOURS["paper"], edgecolor="none", pad=1.0))
    ax.axvline(1.0, color=COLOURS["faint"], lw=0.9, ls=DASHES)
    bottom = 10 ** np.floor(np.log10(shown.min()) - 0.01)
    ax.set(xscale="log", xlim=(bottom, 12 * max(10.0, 4 * float(shown.max()))))
    ax.xaxis.set_major_locator(LogLocator(numticks=6))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _power(x)))
    ax.set_xlabel("relevance × variance of the input")
    return _with_named_rows(ax, [names[i] for i in order])


def plot_importances(
    names: Sequence[str], importances: Importances, irrelevant: Sequence[int] = (), *, ax: Axes | None = None
) -> Axes:
    """Bars of total effects with their intervals, the largest on top; irrelevant inputs are grey."""
    ax = ax or _axes_for_bars(len(names))
    effects = np.nan_to_num(importances.total_effects)
    order = np.argsort(-effects, kind="stable")
    places, shown = np.arange(len(order)), effects[order]
    lower, upper = (np.nan_to_num(end)[order] for end in (importances.lower, importances.upper))
    colours = [COLOURS["line" if grey else "model"] for grey in np.isin(order, irrelevant)]
    ends = _error_bars(shown, np.minimum(lower, shown), np.maximum(upper, shown))
    ax.barh(places, shown, height=0.62, color=colours, xerr=ends, error_kw=dict(lw=1.1, ecolor=COLOURS["faint"]))
    style: Any = dict(va="center", fontsize=8.5, color=COLOURS["faint"])
    for place, (effect, end) in enumerate(zip(shown, upper, strict=True)):
        ax.text(max(effect, end) + 0.02, place, percent(float(effect)), **style)
    ax.set_xlim(0.0, 1.15 * max(1.0, float(upper.max(initial=0.0))))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: percent(x)))
    ax.set_xlabel("variance of V lost without the input")
    return _with_named_rows(ax, [names[i] for i in order])


def plot_states(names: Sequence[str], mean: Array, lower: Array, upper: Array, *, ax: Axes | None = None) -> Axes:
    """Value of each named state, with its interval."""
    ax = ax or _axes_for_bars(len(names), 0.2)
    style = dict(fmt="o", ms=4, lw=1.2, capsize=2, color=COLOURS["model"])
    ax.errorbar(mean, np.arange(len(names)), xerr=_error_bars(mean, lower, upper), **cast(Any, style))
    ax.set_xlabel("value V, 95 % interval")
    return _with_named_rows(ax, names, grid=True)


# -------------------------------------------------------------------------------------- predictions


def plot_histogram(values: Array, starts: Array, *, ax: Axes | None = None) -> Axes:
    """Histogram of the values of visited states, with the values of start states as ticks."""
    ax = new_axes(ax)
    low, high = float(values.min()), float(values.max())
    spread = (low, high) if high - low > 1e-6 * max(abs(low), abs(high), 1e-12) else (low - 0.5, high + 0.5)
    weights = np.full(len(values), 100 / len(values))
    ax.hist(values, bins=36, range=spread, weights=weights, color=COLOURS["model"], alpha=0.75)
    at_the_bottom = dict(transform=ax.get_xaxis_transform(), clip_on=False, zorder=5)
    height = np.full(len(starts), 0.04)
    ax.plot(starts, height, "|", color=COLOURS["critic"], ms=11, mew=1.2, **cast(Any, at_the_bottom))
    ax.plot([], [], "|", color=COLOURS["critic"], ms=9, mew=1.6, label="start of an episode")
    ax.set(xlabel="value V", ylabel="% of visited states")
    ax.grid(visible=False, axis="x")
    return _with_legend(ax)


def plot_predictions(
    observed: Array, predicted: Array, lower: Array, upper: Array, critic: Array | None, *, ax: Axes | None = None
) -> Axes:
    """Predicted against observed values, with intervals and the diagonal.

    The axis is scaled to the model's intervals; values of the critic beyond it are drawn at the edge.
    """
    ax = new_axes(ax)
    middle = float(np.nanmedian(observed))
    ax.axline((middle, middle), slope=1.0, color=COLOURS["faint"], lw=0.9, ls=DASHES)
    style = dict(fmt="o", ms=3.2, mew=0, lw=0.8, color=COLOURS["model"], alpha=0.6, zorder=3)
    bars = _error_bars(predicted, lower, upper)
    handles: list[Any] = [ax.errorbar(observed, predicted, bars, label="GPTD, 95 % interval", **cast(Any, style))]
    if critic is not None:
        clipped = np.clip(critic, *ax.set_ylim(ax.get_ylim()))
        cross = dict(color=COLOURS["critic"], ms=3.8, mew=0.9, alpha=0.8, zorder=2, clip_on=False)
        handles += ax.plot(observed, clipped, "x", label="critic", **cast(Any, cross))
    ax.set(xlabel="observed in fresh rollouts", ylabel="predicted value")
    return _with_legend(ax, handles)


def plot_episode(
    steps: IntArray,
    predicted: Array,
    lower: Array,
    upper: Array,
    critic: Array | None,
    followed: Array,
    *,
    height: float = 3.3,
    ax: Axes | None = None,
) -> Axes:
    """Value along an episode with its interval, the critic, and the discounted return from each step on.

    The axis is scaled to the values, the intervals and the returns; a critic far from them leaves it.
    """
    ax = ax or Figure(figsize=(WIDTH, height), layout="constrained").subplots()
    ax.fill_between(steps, lower, upper, color=COLOURS["shade"], lw=0, label="95 % interval")
    ax.plot(steps, predicted, color=COLOURS["model"], lw=1.6, label="V")
    ax.plot(steps, followed, color=COLOURS["other"], lw=1.3, ls=DASHES, label="return")
    limits = ax.get_ylim()
    if critic is not None:
        ax.plot(steps, critic, color=COLOURS["critic"], lw=1.1, label="critic")
        low, high = min(limits[0], float(np.nanmin(critic))), max(limits[1], float(np.nanmax(critic)))
        room = limits[1] - limits[0]
        ax.set_ylim(max(low, limits[0] - room), min(high, limits[1] + room))
    ax.set(xlabel="step", ylabel="value", xlim=(0, max(int(steps[-1]), 1)))
    return _with_legend(ax)


def plot_reliability(
    shares: Array, reliability: Mapping[str, Array], band: tuple[Array, Array], *, ax: Axes | None = None
) -> Axes:
    """Coverage against level: calibrated intervals stay near the diagonal, within the band of sampling error."""
    ax = new_axes(ax)
    ax.fill_between(100 * shares, 100 * band[0], 100 * band[1], color=COLOURS["shade"], lw=0, label="expected")
    ax.plot([0, 100], [0, 100], color=COLOURS["faint"], lw=0.9, ls=DASHES)
    styles = [("model", "-", "o"), ("critic", "--", "x"), ("other", ":", "s"), ("faint", "-.", "^")]
    for (name, coverage), (colour, dashes, marker) in zip(reliability.items(), styles, strict=False):
        style = dict(color=COLOURS[colour], ls=dashes, marker=marker)
        ax.plot(100 * shares, 100 * coverage, lw=1.5, ms=3.6, label=short(name), **cast(Any, style))
    ticks = range(0, 101, 20)
    ax.set(xlim=(0, 100), ylim=(0, 101), xticks=ticks, yticks=ticks)
    ax.set(xlabel="level of the interval (%)", ylabel="coverage (%)")
    return _with_legend(ax)


def plot_pit_ecdf(
    pit: Array, points: Array, band: tuple[Array, Array], *, level: float = 0.95, ax: Axes | None = None
) -> Axes:
    """Distribution of probability integral transforms, less the uniform one, with a band for all points at once.

    Inside the band the intervals are calibrated. A line that is first below 0 and then above says that they are too
    wide, the other way round too narrow; one that stays above 0, that values are predicted too high, below too low.

    Parameters
    ----------
    pit : ndarray of shape (m,)
        From `gptd_rl.report.pit.pit_values`.
    points : ndarray of shape (k,)
        Where the band is known, from 0 to 1.
    band : tuple of 2 ndarrays of shape (k,)
        From `gptd_rl.report.pit.simultaneous_band`, for as many draws as there are independent observations: states of
        one episode are not, so count the episodes.
    level : float
        That of the band, for the legend.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    ax = new_axes(ax)
    label = f"{percent(level)} of calibrated ones"
    ax.fill_between(points, band[0] - points, band[1] - points, color=COLOURS["shade"], lw=0, step="mid", label=label)
    ax.axhline(0.0, color=COLOURS["faint"], lw=0.9, ls=DASHES)
    ecdf = np.searchsorted(np.sort(pit), points, side="right") / len(pit)
    ax.plot(points, ecdf - points, color=COLOURS["model"], lw=1.5, drawstyle="steps-mid", label="GPTD")
    ax.set(xlabel="probability integral transform", ylabel="distribution − uniform", xlim=(0, 1))
    return _with_legend(ax)


# -------------------------------------------------------------------------------------- axes


def figure_of(ax: Axes) -> Figure:
    """The figure that axes belong to."""
    return cast(Figure, ax.figure)


def new_axes(ax: Axes | None) -> Axes:
    """The given axes, or new ones in a figure of their own."""
    return ax or Figure(layout="constrained").subplots()


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits beside an axis: the middle of a long one is left out."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"


def _axes_for_bars(n: int, each: float = 0.27) -> Axes:
    """Axes with a height for `n` bars of `each` inches."""
    return Figure(figsize=(WIDTH, max(1.4, 0.9 + each * n)), layout="constrained").subplots()


def _cell_edges(extent: tuple[float, float, float, float], shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Outer edges of a grid of cells, from the centres of the outermost ones."""
    left, right, bottom, top = map(float, extent)
    dx = (right - left) / max(2 * (shape[1] - 1), 1) or 0.5
    dy = (top - bottom) / max(2 * (shape[0] - 1), 1) or 0.5
    return left - dx, right + dx, bottom - dy, top + dy


def _extend(values: Array, limits: tuple[float, float] | None) -> Literal["neither", "min", "max", "both"]:
    """Ends of the colour bar beyond which there are values."""
    below = limits is not None and bool(np.nanmin(values) < limits[0])
    above = limits is not None and bool(np.nanmax(values) > limits[1])
    return "both" if below and above else "min" if below else "max" if above else "neither"


def _error_bars(mean: Array, lower: Array, upper: Array) -> Array:
    return np.maximum([mean - lower, upper - mean], 0.0)


def _power(x: float) -> str:
    return f"{x:g}" if 1e-3 <= x <= 1e3 else number(x).split("× ")[-1]


def _with_named_rows(ax: Axes, names: Sequence[str], *, grid: bool = False) -> Axes:
    """Names beside the rows of a bar chart, the first on top."""
    ax.set_yticks(np.arange(len(names)), [short(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    if not grid:
        ax.grid(visible=False, axis="y")
    return ax


def _with_legend(ax: Axes, handles: list[Any] | None = None) -> Axes:
    """Legend above the axes."""
    handles = handles or ax.get_legend_handles_labels()[0]
    where: dict[str, Any] = dict(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=4)
    ax.legend(handles=handles, handlelength=1.6, columnspacing=1.2, borderpad=0.2, **where)
    return _with_few_ticks(ax)


def _with_few_ticks(ax: Axes) -> Axes:
    """Few enough ticks for a phone."""
    for axis in (ax.xaxis, ax.yaxis):
        if isinstance(axis.get_major_locator(), MaxNLocator):
            axis.set_major_locator(MaxNLocator(nbins=6))
    return ax
