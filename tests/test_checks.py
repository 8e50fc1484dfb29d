"""Checks of user input: the value in the library's type, or one line that says what was expected and what came."""

from __future__ import annotations

import numpy as np
import pytest

from gptd_rl.checks import (
    as_array,
    as_count,
    as_discount,
    as_discounts,
    as_states,
    as_vector,
    check_choice,
    check_number,
    is_count,
    is_positive,
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


# What floats would change silently: the mask, the imaginary part, the meaning.
LOSSY = {
    "masked": np.ma.masked_array([1.0, 2.0], mask=[True, False]),
    "list of masked": [np.ma.masked_array([1.0], mask=[True]), np.ma.masked_array([2.0], mask=[False])],
    "complex": np.array([1.0 + 2.0j, 0.0]),
    "complex list": [1.0 + 2.0j, 0.0],
    "dates": np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[ns]"),
    "durations": np.array([1, 2], dtype="timedelta64[s]"),
}


@pytest.mark.parametrize("values", LOSSY.values(), ids=LOSSY.keys())
def test_arrays_that_floats_would_change_are_refused(values):
    for check in (as_states, lambda x: as_vector(x, 2, "y"), lambda x: as_array(x, "a")):
        with pytest.raises(TypeError, match=r"must be numbers.*(masked array|complex128|datetime64|timedelta64)"):
            check(values)


@pytest.mark.parametrize("value", [1e150, -1e300, 10**100])
def test_arrays_of_numbers_too_large_to_square_are_refused(value):
    with pytest.raises(ValueError, match=r"^states must lie within ±1e\+70; states\[1, 0\] is -?1e\+\d+\. Use larger"):
        as_states([[1.0], [value]])


def test_arrays_refuse_integers_that_no_float_holds():
    with pytest.raises(TypeError, match=r"^y must be numbers: int too large to convert to float.$"):
        as_vector([1, 10**400], 2, "y")


@pytest.mark.parametrize("value", [10**400, 2**64])
def test_counts_and_numbers_refuse_integers_that_no_array_holds(value):
    with pytest.raises(ValueError, match=r"^n must be at most 2\^53; got an integer of \d+ bits\.$"):
        as_count(value, "n")
    with pytest.raises(ValueError, match="the discount gamma must lie in"):
        as_discount(value)


@pytest.mark.parametrize("value", [3, 0.5, np.float32(2), np.int8(1)])
def test_is_positive_takes_numbers_of_any_type(value):
    assert is_positive(value) and not is_positive(-value)


@pytest.mark.parametrize("value", [0, np.inf, np.nan, True, "1", None, 10**400])
def test_is_positive_refuses_anything_else(value):
    assert not is_positive(value)


def test_check_number_refuses_integers_that_no_float_holds():
    with pytest.raises(ValueError, match=r"^x: expected a finite number, got 1000"):
        check_number("x", 10**400)
