"""Points of a plot that say what they are, under the pointer and by the keyboard (`gptd_rl.report.scripts`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.axes import Axes

from gptd_rl.report.charts import figure_of, short
from gptd_rl.report.numbers import number
from gptd_rl.report.records import EvaluationResults
from gptd_rl.types import Array, IntArray

MAX_INPUTS = 6  # of a state


@dataclass(frozen=True, eq=False)
class Points:
    """Points with a text each.

    Attributes
    ----------
    x, y : ndarray of shape (m,)
        In data coordinates.
    texts : sequence of str
        A few lines each.
    """

    x: Array
    y: Array
    texts: Sequence[str]


def positions(ax: Axes, x: Array, y: Array) -> Array:
    """Coordinates in the SVG of points of axes, of shape (m, 2), once the figure was drawn."""
    figure = figure_of(ax)
    shares = figure.transFigure.inverted().transform(ax.transData.transform(np.column_stack([x, y])))
    width, height = 72 * figure.get_size_inches()
    return np.column_stack([shares[:, 0] * width, (1 - shares[:, 1]) * height])


def circles(ax: Axes, points: Points) -> str:
    """Invisible circles for an SVG, in order of x; the whole group is one stop of the tab key."""
    places = positions(ax, points.x, points.y)
    drawn = [
        f'<circle cx="{places[i, 0]:.1f}" cy="{places[i, 1]:.1f}" r="4" aria-label="{escape(points.texts[i])}"/>'
        for i in np.argsort(places[:, 0], kind="stable")
        if np.isfinite(places[i]).all()
    ]
    label = f"{len(drawn)} points: arrow keys go from one to the next"
    return f'<g class="points" role="group" tabindex="0" aria-label="{label}">{"".join(drawn)}</g>'


def shown_inputs(evaluation: EvaluationResults) -> IntArray:
    """The most important inputs, in the order of the observation."""
    return np.sort(evaluation.relevance.order[:MAX_INPUTS])


def describe_states(evaluation: EvaluationResults, states: Array) -> list[str]:
    """Names and values of the inputs at states of shape (m, n_dims), one line each."""
    names = evaluation.config.inputs
    if evaluation.config.is_categorical:
        return [names[int(i)] for i in np.argmax(states, axis=1)]
    shown = shown_inputs(evaluation)
    steps = 0.1 * evaluation.data.states.std(axis=0)[shown]
    labels = [short(names[i], 30) for i in shown]
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    lines = []
    for state in states[:, shown].tolist():
        values = zip(labels, state, steps.tolist(), strict=True)
        lines.append(", ".join(f"{label} {number(x, step)}" for label, x, step in values) + rest)
    return lines


def describe_values(
    evaluation: EvaluationResults,
    states: Array,
    predicted: Array,
    lower: Array,
    upper: Array,
    critic: Array | None,
    observed: Array | None = None,
    observed_name: str = "fresh rollouts",
) -> list[str]:
    """State, prediction with its interval, critic and truth, a line each, for m states."""
    texts = describe_states(evaluation, states)
    widths = resolutions(predicted, lower, upper)
    for i, (state, width) in enumerate(zip(texts, widths, strict=True)):
        low, high = number(float(lower[i]), width), number(float(upper[i]), width)
        lines = [state, f"V {number(float(predicted[i]), width)}, 95 % interval {low} to {high}"]
        if critic is not None:
            lines.append(f"critic {number(float(critic[i]), width)}")
        if observed is not None:
            lines.append(f"{observed_name} {number(float(observed[i]), width)}")
        texts[i] = "\n".join(lines)
    return texts


def resolutions(predicted: Array, lower: Array, upper: Array) -> list[float]:
    """Uncertainties to print m values with: of the interval, and no finer than a thousandth of the values' range."""
    finite = predicted[np.isfinite(predicted)]
    least = 1e-3 * float(np.ptp(finite)) if len(finite) else 0.0
    return np.fmax((upper - lower) / 2, least).tolist()
