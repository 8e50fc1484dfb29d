"""Total effects of inputs: functions with known answers, dependent inputs, and the estimator's attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, Trajectories, collect
from gptd_rl.estimators.importances import importances

SEGMENTS = np.repeat(np.arange(50), 40)


def normal(n_dims: int) -> Any:
    return np.random.default_rng(0).standard_normal((len(SEGMENTS), n_dims))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: 3.0 * x[:, 0] + 7.0, [1.0, 0.0]),  # linear: its relevance would be small
        (lambda x: x[:, 0] ** 2, [1.0, 0.0]),
        (lambda x: x[:, 0] + 2.0 * x[:, 1], [0.2, 0.8]),
        (lambda x: x[:, 0] * x[:, 1], [1.0, 1.0]),  # an interaction alone: either is needed to know anything
        (lambda x: np.zeros(len(x)), [0.0, 0.0]),
    ],
    ids=["linear", "quadratic", "sum", "interaction", "constant"],
)
def test_total_effects_of_independent_inputs(function: Callable[[Any], Any], expected: list[float]) -> None:
    found = importances(function, normal(2), SEGMENTS)
    assert_allclose(found.total_effects, expected, atol=0.12)
    assert ((found.lower <= expected) & (found.upper >= np.array(expected) - 0.02)).all()
    assert_array_equal(np.array(expected) == 0.0, found.total_effects == 0.0)


def test_a_copy_of_an_input_is_not_missed() -> None:
    x = normal(3)
    x[:, 1] = x[:, 0] + 1e-3 * x[:, 1]
    found = importances(lambda x: x[:, 0] + x[:, 1] + x[:, 2], x, SEGMENTS)
    assert (found.total_effects[:2] < 0.02).all()  # the other one tells
    assert found.total_effects[2] == pytest.approx(0.2, abs=0.1)


def test_a_slow_input_is_compared_across_segments() -> None:
    x = normal(2)
    x[:, 0] = normal(1)[SEGMENTS, 0]  # constant within a segment
    found = importances(lambda x: x[:, 0], x, SEGMENTS)
    assert found.total_effects[0] == pytest.approx(1.0, abs=0.3)


def test_units_and_constant_inputs_do_not_matter() -> None:
    x = np.column_stack([normal(2), np.full(len(SEGMENTS), 5.0)])
    one = importances(lambda x: np.sin(x[:, 0]) + x[:, 1], x, SEGMENTS)
    other = importances(lambda x: 7.0 * (np.sin(1e-6 * x[:, 0]) + x[:, 1]), x * [1e6, 1.0, 3.0], SEGMENTS)
    assert_allclose(one.total_effects, other.total_effects, rtol=1e-6)
    assert one.total_effects[2] == one.upper[2] == 0.0


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_states_have_importances(n: int) -> None:
    x = np.arange(2.0 * n).reshape(n, 2)
    found = importances(lambda x: x[:, 0], x, np.zeros(n, dtype=np.int64))
    assert np.isfinite(found.total_effects).all() and (found.lower <= found.upper).all()


def test_importances_of_an_estimator() -> None:
    data = collect("gptd_rl/LatentGridworld-v0", n_transitions=400, gamma=0.99, seed=0)
    v = GPTD().fit(data)
    found = v.importances_
    assert v.importances_ is found
    assert found.total_effects[0] > 0.8 and found.upper[1] < 0.01  # y is irrelevant
    assert "0   " in str(found) and len(str(found).splitlines()) == 3
    v.partial_fit(data[:2])
    assert v.importances_ is not found  # of the newer posterior


def test_importances_of_regression_targets_see_what_is_linear() -> None:
    x = normal(2)[:300]
    v = GPTD().fit(Trajectories.from_values(x, 10.0 * x[:, 0] + 0.1 * np.sin(3.0 * x[:, 1])))
    assert v.relevances_[0] < v.relevances_[1]  # nearly linear along the first
    assert v.importances_.lower[0] > 0.9 and v.importances_.upper[1] < 0.01
