"""Numbers in another dtype, and which of them it changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Convert numbers, and say which of them become other numbers.

    A float64 of ordinary size may be rounded to float32. But from 2^24 on float32 does not hold all whole numbers:
    values that differ by 1 or more would become equal.

    Parameters
    ----------
    values : ndarray of bool, integers or floats
    dtype : dtype

    Returns
    -------
    converted : ndarray of the same shape
    changed : ndarray of the same shape, or None if nothing changed
        Where integers differ from `values`, or floats by more than their fraction.
    """
    if np.can_cast(values.dtype, dtype):
        return values.astype(dtype), None
    largest_whole = 2.0 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else 0.0  # all up to it are exact
    if values.dtype.kind == "f" and np.vdot(values, values) < largest_whole**2:  # faster than a look at each of them
        return values.astype(dtype), None
    with np.errstate(all="ignore"):
        converted = values.astype(dtype)
    changed = converted != values
    if dtype.kind == "f":
        changed &= np.abs(values) > largest_whole
    return converted, changed if changed.any() else None
