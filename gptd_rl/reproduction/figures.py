"""The paper's figures, drawn from what was computed. Lines differ by dashes, marks and brightness, for print in grey.

Functions called ``plot_…`` take axes or make them, and return them; ``draw_…`` put a whole figure together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Ellipse

from gptd_rl.reproduction import gridworld, pendulum
from gptd_rl.reproduction.beyond import Trial
from gptd_rl.reproduction.gridworld import WITHOUT
from gptd_rl.kernels.metrics import Metric
from gptd_rl.types import Array

STYLES: Mapping[str, dict[str, Any]] = {
    "I": dict(color="black", ls="-", marker="o"),
    "II": dict(color="#0072b2", ls="--", marker="s"),
    "III": dict(color="#e69f00", ls="-.", marker="^"),
    WITHOUT: dict(color="#e69f00", ls=":", marker="^"),
}
NAMES = {"I": "I: isotropic", "II": "II: ARD", "III": "III: factor analysis", WITHOUT: WITHOUT}
DOT = r"$\dot{\varphi}$"  # a combining dot would not show
ANGLE, SPEED = r"angle $\varphi$ (rad)", f"angular speed {DOT} (rad/s)"
RED = "#ff4d4d"  # light enough to be seen on black in grey
MAX_RANK = 130  # of K over the cells of the gridworld; more eigenvalues are rounding
SHOWN_FLOOR = 1e-9  # strengths are not drawn below this


def plot_metric(metric: Metric, label: str, limit: float, *, ax: Axes | None = None) -> Axes:
    """The states at distance 1 from the origin: an ellipse, short where the value may change fast."""
    ax = _axes(ax)
    lengths = 1.0 / np.sqrt(metric.eigenvalues)
    directions = np.eye(2) if label == "I" else metric.directions
    angle = float(np.degrees(np.arctan2(directions[0, 1], directions[0, 0])))
    ax.add_patch(Ellipse((0, 0), *(2 * lengths), angle=angle, fc="0.88", ec="black", lw=1.5))
    names = {"I": ("h", "h"), "II": ("a", "a"), "III": ("s", "s")}[label]
    for i, (u, length, s) in enumerate(zip(directions, lengths, metric.eigenvalues, strict=True), 1):
        ax.annotate("", length * u, (0, 0), arrowprops=dict(arrowstyle="-|>", color="black", shrinkA=0, shrinkB=0))
        index = "" if label == "I" else str(i if label == "III" else int(np.argmax(np.abs(u))) + 1)
        where = (length + 0.09 * limit) * u
        name = f"${names[0]}_{{{index}}}$" if index else f"${names[0]}$"
        align = dict(ha="left" if u[0] > 0.3 else "center", va="bottom" if u[1] > 0.3 else "center")
        ax.annotate(f"{name} = {s:.3g}", where, fontsize=9, **cast(Any, align))
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", title=NAMES[label], xlabel=ANGLE, ylabel=SPEED)
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    return ax


def plot_map(
    values: Array,
    extent: tuple[float, float, float, float],
    *,
    label: str,
    cmap: str = "cividis",
    limits: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Heat map of an array whose rows run upwards, with a colour bar."""
    ax = _axes(ax)
    low, high = limits or (float(values.min()), float(values.max()))
    picture = ax.imshow(
        values, origin="lower", extent=extent, aspect="auto", cmap=cmap, vmin=low, vmax=high, interpolation="nearest"
    )
    _figure(ax).colorbar(picture, ax=ax, label=label)
    return ax


def plot_surface(x: Array, y: Array, values: Array, *, ax: Axes | None = None) -> Axes:
    """Surface over the plane."""
    ax = ax or Figure(layout="constrained").add_subplot(projection="3d")
    cast(Any, ax).plot_surface(x, y, values, cmap="cividis", rcount=100, ccount=100, linewidth=0, antialiased=False)
    return ax


def plot_lines(lines: Mapping[str, tuple[Array, Array]], *, n_marks: int = 9, ax: Axes | None = None) -> Axes:
    """One line for each covariance, with its name."""
    ax = _axes(ax)
    for label, (x, y) in lines.items():
        every = max(1, len(x) // n_marks)
        ax.plot(x, y, lw=1.6, ms=5, mfc="white", markevery=every, label=NAMES[label], **STYLES[label])
    ax.grid(color="0.9")
    ax.legend(frameon=False, fontsize=8)
    return ax


def plot_strengths(trials: Sequence[Trial], *, ax: Axes | None = None) -> Axes:
    """Relevances that II gives to each input, by how many of them do not matter."""
    ax = _axes(ax)
    counts = sorted({t.n_irrelevant for t in trials})
    for place, n in enumerate(counts):
        some = [t for t in trials if t.n_irrelevant == n and t.label == "II"]
        for matters, style in ((False, dict(marker="x", c="0.35")), (True, dict(marker="o", c="#e69f00", ec="black"))):
            parts = [t.strengths[: t.n_relevant] if matters else t.strengths[t.n_relevant :] for t in some]
            heights = np.maximum(np.concatenate(parts), SHOWN_FLOOR)
            shift = np.linspace(-0.3, 0.3, len(heights)) if len(heights) > 1 else np.zeros(1)
            word = ("matters" if matters else "does not matter") if place == 0 else None
            ax.scatter(place + shift, heights, s=30 if matters else 18, label=word, **cast(Any, style))
    ax.set_xticks(range(len(counts)), [str(n) for n in counts])
    ax.set(yscale="log", ylabel="relevance × variance of the input", xlabel="inputs that do not matter")
    ax.grid(color="0.9", axis="y")
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=8, loc="center right")
    return ax


def plot_input_strengths(trials: Sequence[Trial], names: Sequence[str], *, ax: Axes | None = None) -> Axes:
    """Relevance that II gives to each input, by name: a mark for each seed."""
    ax = _axes(ax)
    for t in (t for t in trials if t.label == "II"):
        heights = np.maximum(t.strengths, SHOWN_FLOOR)
        ax.plot(heights[: t.n_relevant], "o", c="#e69f00", mec="black", ms=6)
        ax.plot(np.arange(t.n_relevant, len(heights)), heights[t.n_relevant :], "x", c="0.35", ms=5)
    ax.axvline(1.5, color="0.6", lw=1, ls=":")
    ax.set_xticks(range(len(names)), names, fontsize=9)
    ax.set(yscale="log", ylabel="relevance × variance of the input", xlabel="input: the state, then its noisy copies")
    ax.grid(color="0.9", axis="y")
    ax.set_axisbelow(True)
    return ax


def plot_growth(trials: Sequence[Trial], quantity: str, ylabel: str, *, ax: Axes | None = None) -> Axes:
    """A number of each trial by how many inputs do not matter: the mean over seeds, with bars from least to most."""
    ax = _axes(ax)
    counts = np.array(sorted({t.n_irrelevant for t in trials}))
    for label in ("I", "II"):
        by_count = [
            [float(getattr(t, quantity)) for t in trials if (t.label, t.n_irrelevant) == (label, n)] for n in counts
        ]
        mean = np.array([np.mean(values) for values in by_count])
        bars = [mean - [min(v) for v in by_count], np.array([max(v) for v in by_count]) - mean]
        ax.errorbar(counts, mean, bars, capsize=3, lw=1.6, ms=5, mfc="white", label=NAMES[label], **STYLES[label])
    ax.set(xlabel="inputs that do not matter", ylabel=ylabel, yscale="log", xticks=counts)
    ax.grid(color="0.9")
    ax.legend(frameon=False, fontsize=8)
    return ax


# -------------------------------------------------------------------------------------- pendulum


def draw_metrics(run: pendulum.Run) -> Figure:
    """Figure 1: the three metrics, as they were selected."""
    figure = _sheet(11, 3.9)
    metrics = {label: fit.kernel.metric for label, fit in run.fits.items()}
    limit = 1.25 / np.sqrt(min(m.eigenvalues.min() for m in metrics.values()))
    for (label, metric), ax in zip(metrics.items(), figure.subplots(1, 3), strict=True):
        plot_metric(metric, label, limit, ax=ax)
    return figure


def draw_optimal_value(run: pendulum.Run) -> Figure:
    """Figure 2: the optimal values, as a surface and as a map."""
    figure = _sheet(11, 4.2)
    grid = run.agent.value.grid
    n_angles, n_speeds = grid.shape
    values = run.agent.value.values.reshape(grid.shape)
    angles, speeds = (grid.points[:, i].reshape(grid.shape) for i in (0, 1))
    ax = plot_surface(angles, speeds, values, ax=figure.add_subplot(1, 2, 1, projection="3d"))
    cast(Any, ax).set(xlabel=ANGLE, ylabel=SPEED, zlabel="V*", title=f"{n_angles} × {n_speeds} grid")
    cast(Any, ax).view_init(elev=38, azim=-60)
    ax = plot_map(values.T, _extent(run), label="V*", ax=figure.add_subplot(1, 2, 2))
    ax.set(xlabel=ANGLE, ylabel=SPEED, title="the same as a map")
    return figure


def draw_value_maps(run: pendulum.Run) -> Figure:
    """Figure 3: values and their variance for each covariance, with the states of the data; and the errors."""
    figure = _sheet(12, 9.2)
    limits = (float(run.truth.min()), max(0.0, float(run.truth.max())))
    spreads = (0.0, max(float(f.variance.max()) for f in run.fits.values()))
    worst = float(np.quantile(np.abs([f.mean - run.truth for f in run.fits.values()]), 0.99))
    extent = _extent(run)
    for (label, fit), row in zip(run.fits.items(), figure.subplots(3, 3, sharex=True, sharey=True), strict=True):
        plot_map(fit.mean, extent, label="V", limits=limits, ax=row[0]).set(title=f"V, {NAMES[label]}")
        plot_map(fit.variance, extent, label="variance", cmap="gray", limits=spreads, ax=row[1])
        row[1].plot(*run.data.states.T, "o", mfc="none", mec=RED, ms=2.5, mew=0.5)
        row[1].set(title="predictive variance and the data", xlim=extent[:2], ylim=extent[2:])
        error = np.abs(fit.mean - run.truth)
        plot_map(error, extent, label="|V − V*|", cmap="gray_r", limits=(0.0, worst), ax=row[2])
        row[2].set(title=f"error, MSE {fit.grid_mse:.1f}")
        row[0].set(ylabel=SPEED)
    for ax in row:
        ax.set(xlabel=ANGLE)
    return figure


def draw_covariances(run: pendulum.Run) -> Figure:
    """Figure 4: spectrum of K, states chosen by tolerance, and what a subset leaves out."""
    figure = _sheet(12, 3.6)
    left, centre, right = figure.subplots(1, 3)
    covariances = {label: fit.covariance for label, fit in run.fits.items()}
    spectra = {k: (np.arange(1.0, 1 + len(c.eigenvalues)), c.eigenvalues) for k, c in covariances.items()}
    plot_lines(spectra, ax=left).set(
        yscale="log", ylim=(1e-6, None), xlabel="index", ylabel="eigenvalue of K", title="eigenspectrum of K"
    )
    tolerances = np.geomspace(1e-3, 1e2, 120)
    sizes = {k: (tolerances, np.array([c.subset.size_at(t) for t in tolerances])) for k, c in covariances.items()}
    plot_lines(sizes, ax=centre).set(
        xscale="log", xlim=(1e2, 1e-3), xlabel="tolerance", ylabel="states chosen", title="incomplete Cholesky"
    )
    errors = {k: (c.sizes, c.errors) for k, c in covariances.items()}
    plot_lines(errors, ax=right).set(
        yscale="log", xlabel="states chosen", ylabel="‖K − K̃‖ (Frobenius)", title="error of the approximation"
    )
    return figure


# -------------------------------------------------------------------------------------- gridworld


def draw_gridworld_values(run: gridworld.Run) -> Figure:
    """Figure 5: the true values, those of I and of II without y; below, visits in the data, and the errors."""
    figure = _sheet(12, 6.6)
    top, bottom = figure.subplots(2, 3, sharex=True, sharey=True)
    size = len(run.truth)
    extent = (0.5, size + 0.5, 0.5, size + 0.5)
    limits = (float(run.truth.min()), 0.0)
    plot_map(run.truth, extent, label="V", limits=limits, ax=top[0]).set(title="true values")
    plot_map(run.visits, extent, label="visits", cmap="gray_r", ax=bottom[0]).set(title="states in the data")
    for label, above, below in zip(("I", WITHOUT), top[1:], bottom[1:], strict=True):
        fit = run.fits[label]
        plot_map(fit.values, extent, label="V", limits=limits, ax=above).set(title=NAMES[label])
        error = np.maximum(np.abs(fit.values - run.truth), 1e-12)
        plot_map(np.log10(error), extent, label="log₁₀ |error|", cmap="gray_r", limits=(-8.0, 0.0), ax=below)
        below.set(title=f"error, MSE {fit.mse:.1e}")
    for ax in bottom:
        ax.set(xlabel="x", xticks=range(1, size + 1, 2), yticks=range(1, size + 1, 2))
    for ax in (top[0], bottom[0]):
        ax.set(ylabel="y")
    return figure


def draw_gridworld_spectra(run: gridworld.Run) -> Figure:
    """Figure 6: eigenvalues of K and of Q."""
    figure = _sheet(10, 3.8)
    for name, ax in zip("KQ", figure.subplots(1, 2), strict=True):
        spectra = {k: getattr(f, f"eigenvalues_{name}") for k, f in run.fits.items()}
        n = MAX_RANK if name == "K" else None
        lines = {k: (np.arange(1.0, 1 + len(s))[:n], s[:n]) for k, s in spectra.items()}
        plot_lines(lines, n_marks=20, ax=ax).set(yscale="log", xlabel="index", title=f"eigenvalues of {name}")
        ax.set(ylabel=f"eigenvalue of {name}", ylim=(1e-7, None))
    return figure


# -------------------------------------------------------------------------------------- beyond the paper


def draw_gridworld_beyond(trials: Sequence[Trial]) -> Figure:
    """Relevances, error and subset size of the gridworld with more and more inputs that do not matter."""
    figure = _sheet(12, 3.8)
    left, centre, right = figure.subplots(1, 3)
    plot_strengths(trials, ax=left).set(title="II: does it tell what matters?")
    plot_growth(trials, "mse", "mean squared error", ax=centre).set(title="error")
    plot_growth(trials, "subset_size", "states chosen", ax=right).set(title="incomplete Cholesky, tolerance 0.1")
    return figure


def draw_pendulum_beyond(trials: Sequence[Trial]) -> Figure:
    """Relevances of the pendulum's state and of its noisy copies."""
    figure = _sheet(9, 4.0)
    n_copies = trials[0].n_irrelevant // 2
    symbols = (r"$\varphi$", DOT)
    names = [*symbols, *(f"{symbol} {i}" for i in range(1, n_copies + 1) for symbol in symbols)]
    ax = plot_input_strengths(trials, names, ax=figure.subplots())
    ax.set(title=f"II: the pendulum's state among {n_copies} noisy copies of it")
    return figure


def _sheet(width: float, height: float) -> Figure:
    """An empty figure, of so many inches, that keeps colour bars apart from their neighbours."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.04))


def _axes(ax: Axes | None) -> Axes:
    return ax or Figure(layout="constrained").subplots()


def _figure(ax: Axes) -> Figure:
    return cast(Figure, ax.figure)


def _extent(run: pendulum.Run) -> tuple[float, float, float, float]:
    top = run.agent.value.grid.task.max_speed
    return -np.pi, np.pi, -top, top
