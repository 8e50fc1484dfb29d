"""Maps of the value: the arrays that are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gptd_rl.report import charts, page
from gptd_rl.report.slices import Slice
from tests.report.evaluations import critic, discrete, make, one_input


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[Any, ...]]]:
    """Arguments of each function that draws."""
    calls: dict[str, list[tuple[Any, ...]]] = {}

    def record(name: str) -> None:
        draw = getattr(charts, name)

        def recorded(*args, **options):
            calls.setdefault(name, []).append((*args, *(options[k] for k in ("states", "names") if k in options)))
            return draw(*args, **options)

        monkeypatch.setattr(charts, name, recorded)

    for name in ("plot_heatmap", "plot_histogram", "plot_band", "plot_states"):
        record(name)
    return calls


def test_maps_show_value_uncertainty_and_gap(drawn: dict[str, list[tuple[Any, ...]]]):
    evaluation = make()
    page.render(evaluation)
    (value, extent, dots, names), (uncertainty, *_), (gap, *_) = drawn["plot_heatmap"]
    assert names == ("pole angle", "cart velocity")
    states = Slice.of(evaluation.data.states, np.eye(4)[[2, 1]]).states(len(value))
    np.testing.assert_allclose(value.ravel(), evaluation.value.predict(states))
    lower, upper = evaluation.value.confidence_interval(states)
    np.testing.assert_allclose(uncertainty.ravel(), (upper - lower) / 2)
    np.testing.assert_allclose(gap.ravel(), critic(states) - value.ravel())
    left, right, bottom, top = extent
    assert (dots >= [left - 1e-9, bottom - 1e-9]).all() and (dots <= [right + 1e-9, top + 1e-9]).all()
    ((values, starts),) = drawn["plot_histogram"]
    data = evaluation.data
    np.testing.assert_allclose(values, evaluation.value.predict(np.delete(data.states, data.last, axis=0)))
    np.testing.assert_allclose(starts, evaluation.value.predict(data.states[data.starts]))


def test_maps_show_a_section_or_discrete_states(drawn: dict[str, list[tuple[Any, ...]]]):
    evaluation = one_input()
    page.render(evaluation)
    ((x, mean, lower, upper, visited, name),) = drawn["plot_band"]
    np.testing.assert_allclose(mean, evaluation.value.predict(x[:, None]))
    np.testing.assert_allclose([lower, upper], evaluation.value.confidence_interval(x[:, None]))
    np.testing.assert_allclose(visited, evaluation.data.states[:, 0])
    assert name == "position"
    evaluation = discrete()
    page.render(evaluation)
    ((names, mean, _, _),) = drawn["plot_states"]
    assert names == [f"state {i}" for i in range(10)]  # two were never visited
    np.testing.assert_allclose(mean, evaluation.value.predict(np.eye(12)[:10]))
