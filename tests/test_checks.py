"""Checks of user input: the value in the library's type, or one line that says what was expected and what came."""

from __future__ import annotations

import numpy as np
import pytest

from gptd_rl.checks import (
    as_count,
    as_discount,
    as_discounts,
    as_states,
    as_vector,
    check_choice,
    check_number,
    is_count,
)


@pytest.mark.parametrize("value", [1, 7, np.int32(3)])
def test_as_count_takes_whole_numbers(value):
    assert as_count(value, "n") == value and type(as_count(value, "n")) is int and is_count(value)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", None, np.nan])
def test_as_count_refuses_anything_else(value):
    with pytest.raises(ValueError, match=f"^n must be a whole number of at least 1; got {value!r}.$"):
        as_count(value, "n")


def test_as_count_minimum():
    assert as_count(0, "n", minimum=0) == 0
    with pytest.raises(ValueError, match="at least 2; got 1"):
        as_count(1, "n", minimum=2)


@pytest.mark.parametrize("gamma", [0, 0.5, 1, np.float32(0.5), np.array(0.9)])
def test_as_discount_takes_numbers_from_0_to_1(gamma):
    assert as_discount(gamma) == gamma and type(as_discount(gamma)) is float


@pytest.mark.parametrize("gamma", [-0.1, 1.01, np.nan, np.inf, "much", None, [0.5, 0.5]])
def test_as_discount_refuses_anything_else(gamma):
    with pytest.raises(ValueError, match=r"^the discount gamma must lie in \[0, 1\]; got "):
        as_discount(gamma)


def test_as_discount_below_one():
    assert as_discount(0.99, below_one=True) == 0.99
    with pytest.raises(ValueError, match=r"gamma must lie in \[0, 1\); got 1"):
        as_discount(1, below_one=True)


@pytest.mark.parametrize("value", ["b", 1, None, ["a"]])
def test_check_choice_names_the_choices(value):
    check_choice("x", "a", ("a",))
    with pytest.raises(ValueError, match=r"^x must be one of 'a', 'c' or a kernel; got "):
        check_choice("x", value, ("a", "c"), "or a kernel")


@pytest.mark.parametrize(
    ("value", "bounds", "expected"),
    [
        (1.5, dict(integer=True), "an integer"),
        (True, dict(integer=True, minimum=1), "an integer >= 1"),
        (np.inf, {}, "a finite number"),
        (0.0, dict(above=0.0), "a finite number > 0"),
        ("a", dict(minimum=0.0), "a finite number >= 0"),
    ],
)
def test_check_number_names_the_bounds(value, bounds, expected):
    check_number("x", 2, **bounds)
    with pytest.raises(ValueError, match=f"^x: expected {expected}, got {value!r}.$"):
        check_number("x", value, **bounds)


def test_arrays_are_copies():
    mine = np.ones((2, 1))
    assert not np.shares_memory(as_states(mine), mine)
    assert not np.shares_memory(as_vector(mine[:, 0], 2, "y"), mine)
    with pytest.raises(ValueError, match=r"g must lie in \[0, 1\]; g\[1\] is 2"):
        as_discounts([0.5, 2.0], 2, "g")
