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

# -------------------------------------------------------------------------------------- numbers


def is_count(value: object, minimum: int = 1) -> bool:
    """Whether `value` is a whole number of at least `minimum`; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= minimum)


def as_count(value: Any, name: str, minimum: int = 1) -> int:
    """Check a whole number of at least `minimum`."""
    if not is_count(value, minimum):
        raise ValueError(f"{name} must be a whole number of at least {minimum}; got {value!r}.")
    return int(value)


def as_discount(gamma: Any, *, below_one: bool = False) -> float:
    """Check a discount γ, from 0 to 1, or from 0 to below 1."""
    try:
        value = float(gamma)
    except (TypeError, ValueError):
        value = np.nan
    if not 0.0 <= value <= 1.0 or (below_one and value == 1.0):
        raise ValueError(f"the discount gamma must lie in [0, 1{')' if below_one else ']'}; got {gamma}.")
    return value


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
        number = float(value)
        if np.isfinite(number) and number >= minimum and number > above:
            return
    expected = "an integer" if integer else "a finite number"
    if minimum > -np.inf:
        expected += f" >= {minimum:g}"
    if above > -np.inf:
        expected += f" > {above:g}"
    raise ValueError(f"{name}: expected {expected}, got {value!r}.")


def check_choice(name: str, value: object, allowed: Sequence[str], otherwise: str = "") -> None:
    """Check that `value` is one of the strings `allowed`; `otherwise` names further possibilities in the message."""
    if not isinstance(value, str) or value not in allowed:
        expected = f"{name} must be one of {', '.join(map(repr, allowed))} {otherwise}".rstrip()
        raise ValueError(f"{expected}; got {value!r}.")


# -------------------------------------------------------------------------------------- arrays


def as_states(values: ArrayLike, *, name: str = "states") -> Array:
    """Check and copy states to floats of shape (n, n_dims); a flat list counts as one dimension."""
    try:
        states = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers in an array of shape (n, n_dims): {error}.") from None
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
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers: {error}.") from None
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
    check_finite(array, name)
    return np.asarray(array, dtype=np.float64)


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
    """Check that an array holds neither NaN nor infinity."""
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        index = ", ".join(str(i) for i in bad[0])
        raise ValueError(f"{name} must be finite; {name}[{index}] is {array[tuple(bad[0])]}.")
