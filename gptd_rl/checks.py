"""Checks of what users pass in: each returns the value in the type the library uses, or says in one line what is wrong.

Messages name the argument, what was expected and what came.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.types import Array, BoolArray, IntArray

# Largest state or reward: fourth powers, such as the squared variance of a sum of many, must not overflow.
LARGEST = 1e70

# Largest count: far more than any machine holds; NumPy's integers and floats hold it exactly.
LARGEST_COUNT = 2**53

# -------------------------------------------------------------------------------------- numbers


def is_count(value: object, minimum: int = 1) -> bool:
    """Whether `value` is a whole number from `minimum` to LARGEST_COUNT; True and False are not."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole and bool(minimum <= value <= LARGEST_COUNT)  # type: ignore[operator]


def is_positive(value: object) -> bool:
    """Whether `value` is a finite number above 0; True is not."""
    return not isinstance(value, bool) and isinstance(value, Real) and 0.0 < as_float(value) < np.inf


def is_within(value: object, low: float, high: float) -> bool:
    """Whether `value` is a number between two others, which it may not be; True and False are not."""
    return not isinstance(value, bool) and isinstance(value, Real) and low < as_float(value) < high


def as_float(value: Any) -> float:
    """A number as a float: infinite if it is an integer that no float holds."""
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def as_count(value: Any, name: str, minimum: int = 1) -> int:
    """Check a whole number of at least `minimum`."""
    if isinstance(value, int | np.integer) and value > LARGEST_COUNT:
        raise ValueError(f"{name} must be at most 2^53; got an integer of {int(value).bit_length()} bits.")
    if not is_count(value, minimum):
        raise ValueError(f"{name} must be a whole number of at least {minimum}; got {one_line(repr(value))}.")
    return int(value)


def as_discount(gamma: Any, *, below_one: bool = False) -> float:
    """Check a discount γ, from 0 to 1, or from 0 to below 1."""
    try:
        value = np.nan if isinstance(gamma, np.ma.MaskedArray) else float(gamma)
    except (TypeError, ValueError, OverflowError):
        value = np.nan
    if not 0.0 <= value <= 1.0 or (below_one and value == 1.0):
        raise ValueError(f"the discount gamma must lie in [0, 1{')' if below_one else ']'}; got {one_line(gamma)}.")
    return value


def one_line(value: object) -> str:
    """A value on one line, for a message."""
    return " ".join(str(value).splitlines())


def as_correlation(value: Any) -> float:
    """Check a prior correlation ρ of actions, from 0 to below 1."""
    check_number("the correlation of actions", value, minimum=0.0)
    if value >= 1.0:
        raise ValueError(f"the correlation of actions must lie in [0, 1); got {value}.")
    return float(value)


def check_number(
    name: str,
    value: object,
    *,
    minimum: float = -np.inf,
    above: float = -np.inf,
    integer: bool = False,
) -> None:
    """Check a finite number against lower bounds.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : object
    minimum : float
        Smallest value allowed.
    above : float
        Exclusive lower bound.
    integer : bool
        Whether the number must be whole.
    """
    kind = Integral if integer else Real
    if not isinstance(value, bool) and isinstance(value, kind):
        number = as_float(value)
        if np.isfinite(number) and number >= minimum and number > above:
            return
    expected = "an integer" if integer else "a finite number"
    if minimum > -np.inf:
        expected += f" >= {minimum:g}"
    if above > -np.inf:
        expected += f" > {above:g}"
    raise ValueError(f"{name}: expected {expected}, got {one_line(repr(value))}.")


def check_choice(name: str, value: object, allowed: Sequence[str], otherwise: str = "") -> None:
    """Check that `value` is one of the strings `allowed`; `otherwise` names further possibilities in the message."""
    if not isinstance(value, str) or value not in allowed:
        expected = f"{name} must be one of {', '.join(map(repr, allowed))} {otherwise}".rstrip()
        raise ValueError(f"{expected}; got {one_line(repr(value))}.")


def as_generator(seed: Any) -> np.random.Generator:
    """Random numbers from a seed, or a generator as it is."""
    try:
        # A matrix has rows that are matrices, and NumPy looks for its numbers until the stack is full.
        return np.random.default_rng(np.asarray(seed) if isinstance(seed, np.ndarray) else seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"a seed must be a whole number of at least 0; got {one_line(repr(seed))}.") from None


# -------------------------------------------------------------------------------------- arrays


def as_array(values: ArrayLike, name: str, expected: str = "numbers") -> NDArray[Any]:
    """Copy to an array of any type and shape; refuse what loses its mask, imaginary part or meaning as real numbers.

    `expected` says in the message what the values should be.
    """
    if _is_masked(values):
        raise TypeError(f"{name} must be {expected}; got a masked array: leave out what is masked.")
    try:
        array = np.array(values)
    except ValueError as error:  # ragged
        raise TypeError(f"{name} must be {expected}: {error}.") from None
    if array.dtype.kind in "cmM":
        raise TypeError(f"{name} must be {expected}; got {array.dtype}: convert them to real numbers first.")
    return array


def as_floats(values: ArrayLike, name: str, expected: str = "numbers") -> Array:
    """Check and copy numbers of any shape to floats."""
    array = as_array(values, name, expected)
    try:
        with np.errstate(over="ignore"):  # long doubles beyond all floats are infinite
            return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be {expected}: {error}.") from None


def as_states(values: ArrayLike, *, name: str = "states") -> Array:
    """Check and copy states to floats of shape (n, n_dims); a flat list counts as one dimension."""
    states = as_floats(values, name, "numbers in an array of shape (n, n_dims)")
    if states.ndim == 1:
        states = states[:, None]
    if states.ndim != 2 or states.shape[1] == 0:
        raise ValueError(
            f"{name} must have shape (n, n_dims); got {states.shape}. Flatten images and nested observations first."
        )
    check_finite(states, name)
    return states


def as_vector(values: ArrayLike, n: int, name: str) -> Array:
    """Check and copy finite numbers to floats of shape (n,)."""
    vector = as_floats(values, name)
    if vector.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},); got {vector.shape}.")
    check_finite(vector, name)
    return vector


def as_numbers(values: ArrayLike, shape: tuple[int | None, ...], name: str) -> Array:
    """Check finite numbers of a shape, in which None stands for any size; floats are not copied."""
    array = np.asarray(values)
    _check_shape(array, shape, name)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers; got {array.dtype}.")
    with np.errstate(over="ignore"):
        floats = np.asarray(array, dtype=np.float64)
    check_finite(floats, name)
    return floats


def as_points(values: ArrayLike, n_dims: int | None, name: str = "inducing_points") -> Array:
    """Check one or more states, of shape (n, n_dims)."""
    points = as_numbers(values, (None, n_dims), name)
    if not len(points):
        raise ValueError(f"{name} must be one or more; got none.")
    return points


def as_flags(values: ArrayLike, shape: tuple[int | None, ...], name: str) -> BoolArray:
    """Check truth values of a shape, in which None stands for any size."""
    array = np.asarray(values)
    _check_shape(array, shape, name)
    if array.dtype.kind != "b":
        raise TypeError(f"{name} must be True or False; got {array.dtype}.")
    return array


def as_indices(values: ArrayLike, n: int, name: str) -> IntArray:
    """Check whole numbers from 0 to n − 1, of shape (k,)."""
    array = np.asarray(values)
    _check_shape(array, (None,), name)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be whole numbers; got {array.dtype}.")
    if (outside := np.flatnonzero((array < 0) | (array >= n))).size:
        raise ValueError(f"{name} must lie between 0 and {n - 1}; {name}[{outside[0]}] is {array[outside[0]]}.")
    return array.astype(np.int64, copy=False)


def as_index(values: ArrayLike, n: int, name: str) -> NDArray[Any]:
    """Check a choice among n things: whole numbers from −n to n − 1, or a mask of shape (n,)."""
    array = np.atleast_1d(as_array(values, name, "whole numbers or a mask"))
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind == "b" and array.shape == (n,):
        return array
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"{name} must be whole numbers or a mask of shape ({n},); got {array.dtype} of {array.shape}.")
    if (outside := np.flatnonzero((array < -n) | (array >= n))).size:
        raise ValueError(f"{name} must lie between {-n} and {n - 1}; {name}[{outside[0]}] is {array[outside[0]]}.")
    return array


def _check_shape(array: NDArray[Any], shape: tuple[int | None, ...], name: str) -> None:
    fits = array.ndim == len(shape) and all(size in (None, n) for n, size in zip(array.shape, shape, strict=True))
    if not fits:
        sizes = ", ".join("n" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({sizes}); got {array.shape}.")


def as_discounts(values: ArrayLike, n: int, name: str = "discounts") -> Array:
    """Check and copy discounts, from 0 to 1, to floats of shape (n,)."""
    discounts = as_vector(values, n, name)
    if (outside := np.flatnonzero((discounts < 0) | (discounts > 1))).size:
        i = outside[0]
        raise ValueError(f"{name} must lie in [0, 1]; {name}[{i}] is {discounts[i]:g}.")
    return discounts


def check_finite(array: Array, name: str) -> None:
    """Check that an array holds neither NaN nor infinity, nor numbers too large to compute with."""
    is_usable = np.abs(array) <= np.float64(LARGEST)  # single precision does not hold the bound
    if is_usable.all():
        return
    place = tuple(np.argwhere(~is_usable)[0])
    where, value = f"{name}[{', '.join(map(str, place))}]" if place else "it", array[place]
    if np.isfinite(value):
        raise ValueError(f"{name} must lie within ±{LARGEST:g}; {where} is {value:g}. Use larger units.")
    raise ValueError(f"{name} must be finite; {where} is {value}.")


def _is_masked(values: object) -> bool:
    """Whether `values` is a masked array, or a list with one."""
    parts = values if isinstance(values, list | tuple) else (values,)
    return any(isinstance(part, np.ma.MaskedArray) for part in parts)
