"""Maps of the value and its uncertainty, and the states at which critic and model differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gptd_rl.report import charts, html, texts
from gptd_rl.report.hover import Points, describe_values
from gptd_rl.report.numbers import MISSING, bounds, count, number
from gptd_rl.report.records import Check, EvaluationResults, Interval, Relevance
from gptd_rl.report.sections import N_VISITED, figure, heading
from gptd_rl.report.slices import Slice, subsample
from gptd_rl.types import Array

MAX_STATES = 40  # of a discrete environment
MAX_COLUMNS = 6  # inputs in the table of states
N_MAP, N_SECTION = 40, 160  # points along an axis


def maps(evaluation: EvaluationResults) -> list[str]:
    """Value and uncertainty along the one or two most important axes."""
    if evaluation.config.is_categorical:
        plots = _discrete_states(evaluation)
    else:
        axes, names = _important_axes(evaluation.relevance, evaluation.config.inputs)
        plane = Slice.of(subsample(evaluation.data.states, N_VISITED), axes)
        plots = _section(evaluation, plane, names[0]) if len(axes) == 1 else _planes(evaluation, plane, names)
    if evaluation.critic is None:
        return [heading("maps"), *html.columns(plots)]
    differences = _who_is_closer(evaluation.check, bool(evaluation.disagreements))
    return [heading("maps", "maps_with_critic"), *html.columns([*plots, differences])]


def _important_axes(relevance: Relevance, names: Sequence[str]) -> tuple[Array, list[str]]:
    """The one or two most important inputs as unit vectors, of shape (k, n_dims), and their names."""
    ranked = relevance.order
    return np.eye(len(names))[ranked[:2]], [charts.short(names[i], 40) for i in ranked[:2]]


def _discrete_states(evaluation: EvaluationResults) -> list[str]:
    visits = evaluation.data.states.sum(axis=0)
    n_visited = int((visits > 0).sum())
    shown = np.sort(np.argsort(-visits, kind="stable")[: min(MAX_STATES, n_visited)])
    states = np.eye(len(visits))[shown]
    names = [evaluation.config.inputs[i] for i in shown]
    intervals = evaluation.value.confidence_interval(states)
    values = evaluation.value.predict(states)
    ax = charts.plot_states(names, values, *intervals)
    rest = f" The {len(shown)} most visited are shown." if len(shown) < n_visited else ""
    points = Points(
        values, np.arange(len(names), dtype=np.float64), describe_values(evaluation, states, values, *intervals, None)
    )
    return [figure(ax, "states", points, rest=rest)]


def _section(evaluation: EvaluationResults, line: Slice, name: str) -> list[str]:
    states = line.states(N_SECTION)
    intervals = evaluation.value.confidence_interval(states)
    x, visited = line.ticks(0, N_SECTION), line.dots()[:, 0]
    ax = charts.plot_band(x, evaluation.value.predict(states), *intervals, visited, name)
    points = Points(visited, *_at_dots(evaluation, line))
    return [figure(ax, "section", points, others=_other_inputs(evaluation))]


def _planes(evaluation: EvaluationResults, plane: Slice, names: Sequence[str]) -> list[str]:
    grid, shape = plane.states(N_MAP), (N_MAP, N_MAP)
    dots = plane.dots()
    points = Points(dots[:, 0], dots[:, 1], _at_dots(evaluation, plane)[1])
    around: dict[str, Any] = dict(states=dots, names=(names[0], names[1]), smooth=True)

    def heatmap(values: Array, name: str, label: str, **options: Any) -> str:
        ax = charts.plot_heatmap(values.reshape(shape), plane.extent(), label=label, **around, **options)
        return figure(ax, name, points, others=_other_inputs(evaluation))

    mean = evaluation.value.predict(grid)
    lower, upper = evaluation.value.confidence_interval(grid)
    plots = [
        heatmap(mean, "value", "value V"),
        heatmap((upper - lower) / 2, "uncertainty", "± (95 %)", cmap="magma"),
    ]
    if evaluation.critic is not None:
        gap = np.asarray(evaluation.critic(grid), dtype=float).reshape(-1) - mean
        limit = float(np.nanquantile(np.abs(gap), 0.95)) or 1.0  # critics extrapolate wildly far from the data
        plots.append(heatmap(gap, "gap", "critic − V", cmap="RdBu_r", limits=(-limit, limit)))
    return plots


def _at_dots(evaluation: EvaluationResults, shown: Slice) -> tuple[Array, list[str]]:
    """V at the visited states that are shown as dots, and what they are."""
    states = shown.dot_states()
    values = evaluation.value.predict(states)
    critic = None if evaluation.critic is None else np.asarray(evaluation.critic(states), dtype=float).reshape(-1)
    return values, describe_values(evaluation, states, values, *evaluation.value.confidence_interval(states), critic)


def _other_inputs(evaluation: EvaluationResults) -> str:
    return texts.OTHER_INPUTS if len(evaluation.config.inputs) > 1 else ""


def _who_is_closer(check: Check, is_listed: bool) -> str:
    """A paragraph on the states at which critic and model differ, counted over all states of the check."""
    n, n_states = check.n_disagreements, count(len(check.states), "state")
    if not n:
        return f"<div><p>At all {n_states} checked, the critic is inside the model’s 95 % interval.</p></div>"
    n_model, n_known = check.closer_model()
    closer = f"; the model is closer to fresh rollouts at {n_model} of these {n_known}" if n_known else ""
    listed = " The table below lists the largest differences, one per episode." if is_listed else ""
    share = f"At {n} of {n_states} checked the critic is outside the model’s 95 % interval"
    return f"<div><p>{share}{closer}.{listed}</p></div>"


def disagreements(evaluation: EvaluationResults) -> list[str]:
    """Table of the states at which critic and model differ most."""
    names, is_categorical = evaluation.config.inputs, evaluation.config.is_categorical
    if not evaluation.disagreements:
        return []
    shown = [] if is_categorical else [int(i) for i in evaluation.relevance.order[:MAX_COLUMNS]]
    spreads = evaluation.data.states.std(axis=0)
    rows = []
    for d in evaluation.disagreements:
        interval = Interval(d.value, d.lower, d.upper)
        values = [number(x, interval.half_width) for x in (d.critic, d.value)]
        observed = number(d.observed, interval.half_width)
        state = (
            [names[int(np.argmax(d.state))]]
            if is_categorical
            else [number(d.state[i], 0.1 * spreads[i]) for i in shown]
        )
        closer = {"model": "GPTD", "critic": "critic", None: MISSING}[d.closer]
        rows.append([*state, *values, bounds(interval), observed, closer])
    columns = ["state"] if is_categorical else [charts.short(names[i]) for i in shown]
    hidden = (
        f" The {len(shown)} most important of {len(names)} inputs are shown." if 0 < len(shown) < len(names) else ""
    )
    return [
        html.table(
            [*columns, "critic", "V", "95 % interval", "fresh rollouts", "closer"],
            rows,
            caption=f"States of different episodes with the largest differences between critic and model.{hidden}",
            kind="numbers named" if is_categorical else "numbers",
            named_rows=is_categorical,
        )
    ]
