"""The check of an evaluation as a table."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.report.evaluations import INPUTS, make

pytest.importorskip("pandas")


def test_to_pandas_has_a_row_for_each_held_out_state():
    evaluation = make()
    table, check = evaluation.to_pandas(), evaluation.check
    numbers = ["observed", "error", "predicted", "lower", "upper", "covered"]
    assert list(table) == ["episode", *INPUTS, *numbers, "critic"]
    assert_array_equal(table[list(INPUTS)], check.states)
    assert_array_equal(table["predicted"], check.predicted)
    inside = (check.lower <= check.observed) & (check.observed <= check.upper)
    assert_allclose(table["covered"].mean(), inside.mean())


def test_to_pandas_without_critic():
    assert "critic" not in make(with_critic=False).to_pandas()
