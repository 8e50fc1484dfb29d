"""The pictures of an evaluation's page, as SVG that takes colours and font from the page around it.

Functions called ``plot_…`` take axes or make them, and return them; `svg` puts the axes' figure into the page. Colours
are drawn as those of the light page, and named after them, so that one drawing serves light and dark.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from gptd_rl.report.html import number
from gptd_rl.types import Array

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
STRENGTH_FLOOR = 1e-6  # bars are not drawn below this
SETTINGS = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": COLOURS["faint"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "figure.figsize": (WIDTH, 3.3),
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.labelcolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # names may hold dollar signs
    "xtick.color": COLOURS["faint"],
    "ytick.color": COLOURS["faint"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "svg.fonttype": "none",
    "svg.hashsalt": "gptd-rl",  # the same page again for the same numbers
}


@contextmanager
def page_style() -> Iterator[None]:
    """Draw as the page wants it, whatever the user's own settings are."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the reader's browser finds a font for it
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, SETTINGS))
        yield


def svg(ax: Axes, name: str, alt: str) -> str:
    """The figure of `ax` as an SVG element; `name` sets its ids apart from others, `alt` says what it shows."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    _figure(ax).savefig(buffer, format="svg", metadata=nothing, dpi=144)
    text = buffer.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    assert box, "Matplotlib writes a view box"
    text = text[text.index(">", box.end()) + 1 :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--font)", text)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\1{name}-", text)
    for colour, code in COLOURS.items():
        text = text.replace(code, f"var(--{colour})")
    text = re.sub(r"\s*\n\s*", "\n", text)
    return f'<svg {box[0]} role="img" aria-label="{escape(alt)}">{text.strip()}\n'


def plot_histogram(values: Array, starts: Array, *, ax: Axes | None = None) -> Axes:
    """How often the policy is in states of which value, and the values of states where episodes start."""
    ax = _axes(ax)
    low, high = float(values.min()), float(values.max())
    spread = (low, high) if high - low > 1e-6 * max(abs(low), abs(high), 1e-12) else (low - 0.5, high + 0.5)
    weights = np.full(len(values), 100 / len(values))
    ax.hist(values, bins=36, range=spread, weights=weights, color=COLOURS["model"], alpha=0.75)
    low_down = dict(transform=ax.get_xaxis_transform(), clip_on=False, zorder=5)
    ax.plot(starts, np.full(len(starts), 0.04), "|", color=COLOURS["critic"], ms=11, mew=1.2, **cast(Any, low_down))
    ax.plot([], [], "|", color=COLOURS["critic"], ms=9, mew=1.6, label="start of an episode")
    ax.set(xlabel="value V", ylabel="% of visited states")
    ax.grid(visible=False, axis="x")
    return _with_legend(ax)


def plot_predictions(
    observed: Array, predicted: Array, lower: Array, upper: Array, critic: Array | None, *, ax: Axes | None = None
) -> Axes:
    """What was predicted against what fresh rollouts brought; on the diagonal both are the same.

    The axis has room for the model's intervals; where the critic lies beyond, its mark is at the edge.
    """
    ax = _axes(ax)
    middle = float(np.nanmedian(observed))
    ax.axline((middle, middle), slope=1.0, color=COLOURS["faint"], lw=0.9, ls=(0, (4, 3)))
    bars = np.maximum([predicted - lower, upper - predicted], 0.0)
    style = dict(fmt="o", ms=3.2, mew=0, lw=0.8, color=COLOURS["model"], alpha=0.6)
    model = ax.errorbar(observed, predicted, bars, label="GPTD, 95 % interval", zorder=3, **cast(Any, style))
    handles: list[Any] = [model]
    if critic is not None:
        seen = np.clip(critic, *ax.set_ylim(ax.get_ylim()))
        cross = dict(color=COLOURS["critic"], ms=3.8, mew=0.9, alpha=0.8, zorder=2, clip_on=False)
        handles += ax.plot(observed, seen, "x", label="critic", **cast(Any, cross))
    ax.set(xlabel="observed in fresh rollouts", ylabel="predicted value")
    return _with_legend(ax, handles)


def plot_strengths(
    names: Sequence[str], strengths: Array, removed: Sequence[int] = (), *, ax: Axes | None = None
) -> Axes:
    """Bars of the relevances on a logarithmic axis, the largest on top; those that pruning removes are pale."""
    ax = ax or _tall(len(names))
    order = np.argsort(-np.nan_to_num(strengths))
    shown = np.maximum(np.nan_to_num(strengths[order]), STRENGTH_FLOOR)
    pale = np.isin(order, removed)
    places = np.arange(len(order))
    ax.barh(places, shown, height=0.62, color=[COLOURS["line" if p else "model"] for p in pale])
    top = max(10.0, 4 * float(shown.max()))
    for place, (strength, end) in enumerate(zip(strengths[order], shown, strict=True)):
        text = ax.text(1.35 * end, place, number(float(strength)), va="center", fontsize=8.5, color=COLOURS["faint"])
        text.set_bbox(dict(facecolor=COLOURS["paper"], edgecolor="none", pad=1.0))
    ax.axvline(1.0, color=COLOURS["faint"], lw=0.9, ls=(0, (4, 3)))
    ax.set_yticks(places, [short(names[i]) for i in order])
    bottom = 10 ** np.floor(np.log10(shown.min()) - 0.01)
    ax.set(xscale="log", xlim=(bottom, 12 * top), ylim=(len(order) - 0.4, -0.6))
    ax.xaxis.set_major_locator(LogLocator(numticks=6))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _power(x)))
    ax.set_xlabel("relevance × squared spread of the input")
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return ax


def plot_loadings(names: Sequence[str], directions: Array, *, ax: Axes | None = None) -> Axes:
    """Bars of what each input adds to the first one or two directions."""
    ax = ax or _tall(len(names))
    some = directions[:2]
    height = 0.7 / len(some)
    places = np.arange(len(names))
    for i, (direction, colour) in enumerate(zip(some, ("model", "critic"), strict=False)):
        shift = (i - (len(some) - 1) / 2) * height
        ax.barh(places + shift, direction, height=0.9 * height, color=COLOURS[colour], label=f"direction {i + 1}")
    ax.axvline(0.0, color=COLOURS["faint"], lw=0.9)
    ax.set_yticks(places, [short(name) for name in names])
    ax.set(xlim=(-1.05, 1.05), ylim=(len(names) - 0.4, -0.6), xlabel="share in the direction (sign: which way)")
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return _with_legend(ax)


def plot_reliability(
    shares: Array, reliability: Mapping[str, Array], band: tuple[Array, Array], *, ax: Axes | None = None
) -> Axes:
    """How many values the intervals of each level held; honest ones stay near the diagonal, within the band."""
    ax = _axes(ax)
    ax.fill_between(100 * shares, 100 * band[0], 100 * band[1], color=COLOURS["shade"], lw=0, label="by chance")
    ax.plot([0, 100], [0, 100], color=COLOURS["faint"], lw=0.9, ls=(0, (4, 3)))
    styles = [("model", "-", "o"), ("critic", "--", "x"), ("other", ":", "s"), ("faint", "-.", "^")]
    for (name, held), (colour, dashes, marker) in zip(reliability.items(), styles, strict=False):
        style = dict(color=COLOURS[colour], ls=dashes, marker=marker)
        ax.plot(100 * shares, 100 * held, lw=1.5, ms=3.6, label=short(name), **cast(Any, style))
    ticks = range(0, 101, 20)
    ax.set(xlim=(0, 100), ylim=(0, 101), xticks=ticks, yticks=ticks)
    ax.set(xlabel="level of the interval (%)", ylabel="fresh values held (%)")
    return _with_legend(ax)


def plot_map(
    values: Array,
    extent: tuple[float, float, float, float],
    states: Array,
    names: tuple[str, str],
    *,
    label: str,
    cmap: str = "cividis",
    limit: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Heat map of an array whose rows run upwards, with visited states on top; from −limit to limit if it is given."""
    ax = _axes(ax)
    colours: dict[str, Any] = dict(cmap=cmap, interpolation="bilinear")
    if limit is not None:
        colours |= dict(vmin=-limit, vmax=limit)
    picture = ax.imshow(values, origin="lower", extent=extent, aspect="auto", **colours)
    ax.scatter(states[:, 0], states[:, 1], s=5, c="white", edgecolors="black", linewidths=0.35, alpha=0.75)
    bar = _figure(ax).colorbar(picture, ax=ax, label=label, pad=0.02, extend="neither" if limit is None else "both")
    cast(Any, bar).solids.set_rasterized(True)
    cast(Any, bar).outline.set_visible(False)
    ax.grid(visible=False)
    ax.set(xlim=extent[:2], ylim=extent[2:], xlabel=names[0], ylabel=names[1])
    return _with_few_ticks(ax)


def plot_section(
    x: Array, mean: Array, lower: Array, upper: Array, visited: Array, name: str, *, ax: Axes | None = None
) -> Axes:
    """Value along one input, its interval as a band, and visited states as ticks on the axis."""
    ax = _axes(ax)
    ax.fill_between(x, lower, upper, color=COLOURS["shade"], lw=0, label="95 % interval")
    ax.plot(x, mean, color=COLOURS["model"], lw=1.6, label="value V")
    ax.plot(visited, np.zeros(len(visited)), "|", transform=ax.get_xaxis_transform(), color=COLOURS["faint"], ms=7)
    ax.set(xlabel=short(name, 50), ylabel="value V")
    return _with_legend(ax)


def plot_states(names: Sequence[str], mean: Array, lower: Array, upper: Array, *, ax: Axes | None = None) -> Axes:
    """Value of each state by name, with its interval."""
    ax = ax or _tall(len(names), 0.2)
    places = np.arange(len(names))
    bars = np.maximum([mean - lower, upper - mean], 0.0)
    style = dict(fmt="o", ms=4, lw=1.2, capsize=2, color=COLOURS["model"])
    ax.errorbar(mean, places, xerr=bars, **cast(Any, style))
    ax.set_yticks(places, [short(name) for name in names])
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="value V, 95 % interval")
    ax.tick_params(axis="y", length=0)
    return ax


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits beside an axis, with its middle left out if it must be."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"


def _power(x: float) -> str:
    return f"{x:g}" if 1e-3 <= x <= 1e3 else number(x).split("× ")[-1]


def _with_legend(ax: Axes, handles: list[Any] | None = None) -> Axes:
    """Put the legend above the axes, where it covers nothing."""
    handles = handles or ax.get_legend_handles_labels()[0]
    where: dict[str, Any] = dict(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=4)
    ax.legend(handles=handles, handlelength=1.6, columnspacing=1.2, borderpad=0.2, **where)
    return _with_few_ticks(ax)


def _with_few_ticks(ax: Axes) -> Axes:
    """Ticks that have room on a phone."""
    for axis in (ax.xaxis, ax.yaxis):
        if isinstance(axis.get_major_locator(), MaxNLocator):
            axis.set_major_locator(MaxNLocator(nbins=6))
    return ax


def _axes(ax: Axes | None) -> Axes:
    return ax or Figure(layout="constrained").subplots()


def _tall(n: int, each: float = 0.27) -> Axes:
    """Axes as tall as so many bars need."""
    return Figure(figsize=(WIDTH, max(1.4, 0.9 + each * n)), layout="constrained").subplots()


def _figure(ax: Axes) -> Figure:
    return cast(Figure, ax.figure)
