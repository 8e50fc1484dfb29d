"""The paper's figures, drawn from the computed results. Lines differ by dashes, markers and brightness.

Functions called ``plot_…`` draw into axes and return them; ``draw_…`` return whole figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Ellipse

from gptd_rl.kernels.metric import Metric
from gptd_rl.report.charts import new_axes, plot_heatmap
from gptd_rl.report.numbers import number
from gptd_rl.reproduction.gridworld import WITHOUT, GridworldResult
from gptd_rl.reproduction.irrelevant_inputs import TOLERANCE, InputSelection
from gptd_rl.reproduction.pendulum import PendulumResult
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
MAX_RANK = 130  # of K over the cells of the gridworld; further eigenvalues are rounding errors
RELEVANCE_FLOOR = 1e-9  # relevances are not drawn below this
RELEVANT = dict(marker="o", c="#e69f00", ec="black", s=30)
IRRELEVANT = dict(marker="x", c="0.35", s=18)


def plot_metric(metric: Metric, label: str, limit: float, *, ax: Axes | None = None) -> Axes:
    """Ellipse of the states at distance 1 from the origin: its axes are the length scales of the kernel."""
    ax = new_axes(ax)
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


def plot_surface(x: Array, y: Array, values: Array, *, ax: Axes | None = None) -> Axes:
    """Surface of a function over the plane."""
    ax = ax or Figure(layout="constrained").add_subplot(projection="3d")
    cast(Any, ax).plot_surface(x, y, values, cmap="cividis", rcount=100, ccount=100, linewidth=0, antialiased=False)
    return ax


def plot_lines(lines: Mapping[str, tuple[Array, Array]], *, n_marks: int = 9, ax: Axes | None = None) -> Axes:
    """One line for each covariance."""
    ax = new_axes(ax)
    for label, (x, y) in lines.items():
        every = max(1, len(x) // n_marks)
        ax.plot(x, y, lw=1.6, ms=5, mfc="white", markevery=every, label=NAMES[label], **STYLES[label])
    ax.grid(color="0.9")
    ax.legend(frameon=False, fontsize=8)
    return ax


def plot_selections(selections: Sequence[InputSelection], *, ax: Axes | None = None) -> Axes:
    """Relevances of all inputs in II, by the number of irrelevant inputs."""
    ax = new_axes(ax)
    counts = sorted({s.n_irrelevant for s in selections})
    for place, n in enumerate(counts):
        chosen = [s for s in selections if s.n_irrelevant == n and s.label == "II"]
        relevant = np.concatenate([s.scaled_relevances[: s.n_relevant] for s in chosen])
        irrelevant = np.concatenate([s.scaled_relevances[s.n_relevant :] for s in chosen])
        for name, values, style in (("irrelevant", irrelevant, IRRELEVANT), ("relevant", relevant, RELEVANT)):
            shift = np.linspace(-0.3, 0.3, len(values)) if len(values) > 1 else np.zeros(1)
            heights = np.maximum(values, RELEVANCE_FLOOR)
            ax.scatter(place + shift, heights, label=name if place == 0 else None, **cast(Any, style))
    ax.set_xticks(range(len(counts)), [str(n) for n in counts])
    ax.set(yscale="log", ylabel="relevance × variance of the input", xlabel="irrelevant inputs")
    ax.grid(color="0.9", axis="y")
    ax.set_axisbelow(True)
    ax.legend(frameon=False, fontsize=8, loc="center right")
    return ax


def plot_relevances_by_input(
    selections: Sequence[InputSelection], names: Sequence[str], *, ax: Axes | None = None
) -> Axes:
    """Relevance of each named input in II, with a mark for each seed."""
    ax = new_axes(ax)
    for s in (s for s in selections if s.label == "II"):
        heights, x = np.maximum(s.scaled_relevances, RELEVANCE_FLOOR), np.arange(len(s.scaled_relevances))
        ax.scatter(x[: s.n_relevant], heights[: s.n_relevant], **cast(Any, RELEVANT))
        ax.scatter(x[s.n_relevant :], heights[s.n_relevant :], **cast(Any, IRRELEVANT))
    ax.axvline(1.5, color="0.6", lw=1, ls=":")
    ax.set_xticks(range(len(names)), names, fontsize=9)
    ax.set(yscale="log", ylabel="relevance × variance of the input", xlabel="input: the state, then its noisy copies")
    ax.grid(color="0.9", axis="y")
    ax.set_axisbelow(True)
    return ax


def plot_growth(selections: Sequence[InputSelection], quantity: str, ylabel: str, *, ax: Axes | None = None) -> Axes:
    """A quantity by the number of irrelevant inputs: mean over seeds, with bars from the smallest to the largest."""
    ax = new_axes(ax)
    counts = np.array(sorted({s.n_irrelevant for s in selections}))
    for label in ("I", "II"):
        by_count = [
            [float(getattr(s, quantity)) for s in selections if (s.label, s.n_irrelevant) == (label, n)] for n in counts
        ]
        mean = np.array([np.mean(values) for values in by_count])
        bars = [mean - [min(v) for v in by_count], np.array([max(v) for v in by_count]) - mean]
        ax.errorbar(counts, mean, bars, capsize=3, lw=1.6, ms=5, mfc="white", label=NAMES[label], **STYLES[label])
    ax.set(xlabel="irrelevant inputs", ylabel=ylabel, yscale="log", xticks=counts)
    ax.grid(color="0.9")
    ax.legend(frameon=False, fontsize=8)
    return ax


# -------------------------------------------------------------------------------------- pendulum


def draw_metrics(result: PendulumResult) -> Figure:
    """Figure 1: the three selected metrics."""
    figure = _sheet(11, 3.9)
    metrics = {label: fit.kernel.metric for label, fit in result.fits.items()}
    limit = 1.25 / np.sqrt(min(m.eigenvalues.min() for m in metrics.values()))
    for (label, metric), ax in zip(metrics.items(), figure.subplots(1, 3), strict=True):
        plot_metric(metric, label, limit, ax=ax)
    return figure


def draw_optimal_value(result: PendulumResult) -> Figure:
    """Figure 2: the optimal values, as a surface and as a map."""
    figure = _sheet(11, 4.2)
    grid = result.agent.value.grid
    n_angles, n_speeds = grid.shape
    values = result.agent.value.values.reshape(grid.shape)
    angles, speeds = (grid.points[:, i].reshape(grid.shape) for i in (0, 1))
    ax = plot_surface(angles, speeds, values, ax=figure.add_subplot(1, 2, 1, projection="3d"))
    cast(Any, ax).set(xlabel=ANGLE, ylabel=SPEED, zlabel="V*", title=f"{n_angles} × {n_speeds} grid")
    cast(Any, ax).view_init(elev=38, azim=-60)
    ax = plot_heatmap(values.T, _extent(result), label="V*", ax=figure.add_subplot(1, 2, 2))
    ax.set(xlabel=ANGLE, ylabel=SPEED, title="as a map")
    return figure


def draw_value_maps(result: PendulumResult) -> Figure:
    """Figure 3: values, predictive variance with the states of the data, and errors for each covariance."""
    figure = _sheet(12, 9.2)
    limits = (float(result.truth.min()), max(0.0, float(result.truth.max())))
    spreads = (0.0, max(float(f.variance.max()) for f in result.fits.values()))
    worst = float(np.quantile(np.abs([f.mean - result.truth for f in result.fits.values()]), 0.99))
    extent = _extent(result)
    for (label, fit), row in zip(result.fits.items(), figure.subplots(3, 3, sharex=True, sharey=True), strict=True):
        plot_heatmap(fit.mean, extent, label="V", limits=limits, ax=row[0]).set(title=f"V, {NAMES[label]}")
        plot_heatmap(fit.variance, extent, label="variance", cmap="gray", limits=spreads, ax=row[1])
        row[1].plot(*result.data.states.T, "o", mfc="none", mec=RED, ms=2.5, mew=0.5)
        row[1].set(title="predictive variance and the data")
        error = np.abs(fit.mean - result.truth)
        plot_heatmap(error, extent, label="|V − V*|", cmap="gray_r", limits=(0.0, worst), ax=row[2])
        row[2].set(title=f"error, MSE {fit.grid_mse:.1f}")
        row[0].set(ylabel=SPEED)
    for ax in row:
        ax.set(xlabel=ANGLE)
    return figure


def draw_covariances(result: PendulumResult) -> Figure:
    """Figure 4: spectrum of K, number of inducing points by tolerance, and error of the approximation."""
    figure = _sheet(12, 3.6)
    left, centre, right = figure.subplots(1, 3)
    spectra = {label: fit.spectrum for label, fit in result.fits.items()}
    eigenvalues = {k: (np.arange(1.0, 1 + len(c.eigenvalues)), c.eigenvalues) for k, c in spectra.items()}
    plot_lines(eigenvalues, ax=left).set(
        yscale="log", ylim=(1e-6, None), xlabel="index", ylabel="eigenvalue of K", title="eigenspectrum of K"
    )
    tolerances = np.geomspace(1e-3, 1e2, 120)
    sizes = {k: (tolerances, np.array([c.subset.size_at(t) for t in tolerances])) for k, c in spectra.items()}
    plot_lines(sizes, ax=centre).set(
        xscale="log", xlim=(1e2, 1e-3), xlabel="tolerance", ylabel="inducing points", title="incomplete Cholesky"
    )
    errors = {k: (c.sizes, c.errors) for k, c in spectra.items()}
    plot_lines(errors, ax=right).set(
        yscale="log", xlabel="inducing points", ylabel="‖K − K̃‖ (Frobenius)", title="error of the approximation"
    )
    return figure


# -------------------------------------------------------------------------------------- gridworld


def draw_gridworld_values(result: GridworldResult) -> Figure:
    """Figure 5: values (true, I, II without y), visits in the data, and errors."""
    figure = _sheet(12, 6.6)
    top, bottom = figure.subplots(2, 3, sharex=True, sharey=True)
    size = len(result.truth)
    extent = (1, size, 1, size)
    limits = (float(result.truth.min()), 0.0)
    plot_heatmap(result.truth, extent, label="V", limits=limits, ax=top[0]).set(title="true values")
    plot_heatmap(result.visits, extent, label="visits", cmap="gray_r", ax=bottom[0]).set(title="states in the data")
    for label, above, below in zip(("I", WITHOUT), top[1:], bottom[1:], strict=True):
        fit = result.fits[label]
        plot_heatmap(fit.values, extent, label="V", limits=limits, ax=above).set(title=NAMES[label])
        error = np.maximum(np.abs(fit.values - result.truth), 1e-12)
        plot_heatmap(np.log10(error), extent, label="log₁₀ |error|", cmap="gray_r", limits=(-8.0, 0.0), ax=below)
        below.set(title=f"error, MSE {number(fit.mse, digits=2)}")
    for ax in bottom:
        ax.set(xlabel="x", xticks=range(1, size + 1, 2), yticks=range(1, size + 1, 2))
    for ax in (top[0], bottom[0]):
        ax.set(ylabel="y")
    return figure


def draw_gridworld_spectra(result: GridworldResult) -> Figure:
    """Figure 6: eigenvalues of K and of Q."""
    figure = _sheet(10, 3.8)
    for name, ax in zip("KQ", figure.subplots(1, 2), strict=True):
        spectra = {k: getattr(f, f"eigenvalues_{name}") for k, f in result.fits.items()}
        n = MAX_RANK if name == "K" else None
        lines = {k: (np.arange(1.0, 1 + len(s))[:n], s[:n]) for k, s in spectra.items()}
        plot_lines(lines, n_marks=20, ax=ax).set(yscale="log", xlabel="index", title=f"eigenvalues of {name}")
        ax.set(ylabel=f"eigenvalue of {name}", ylim=(1e-7, None))
    return figure


# -------------------------------------------------------------------------------------- beyond the paper


def draw_gridworld_selections(selections: Sequence[InputSelection]) -> Figure:
    """Relevances, error and subset size of the gridworld by the number of irrelevant inputs."""
    figure = _sheet(12, 3.8)
    left, centre, right = figure.subplots(1, 3)
    plot_selections(selections, ax=left).set(title="relevances selected by II")
    plot_growth(selections, "mse", "mean squared error", ax=centre).set(title="error")
    plot_growth(selections, "subset_size", "inducing points", ax=right)
    right.set(title=f"incomplete Cholesky, tolerance {TOLERANCE:g}")
    return figure


def draw_pendulum_selections(selections: Sequence[InputSelection]) -> Figure:
    """Relevances of the pendulum's state and of its noisy copies."""
    figure = _sheet(9, 4.0)
    n_copies = selections[0].n_irrelevant // 2
    symbols = (r"$\varphi$", DOT)
    names = [*symbols, *(f"{symbol} {i}" for i in range(1, n_copies + 1) for symbol in symbols)]
    ax = plot_relevances_by_input(selections, names, ax=figure.subplots())
    ax.set(title=f"relevances selected by II, with {n_copies} noisy copies of the state")
    return figure


def _sheet(width: float, height: float) -> Figure:
    """An empty figure in inches, with space between its columns."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.04))


def _extent(result: PendulumResult) -> tuple[float, float, float, float]:
    top = result.agent.value.grid.task.max_speed
    return -np.pi, np.pi, -top, top
