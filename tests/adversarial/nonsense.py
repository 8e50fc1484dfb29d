"""Values that an argument should not have, and values that are almost right."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from tests.adversarial.harness import pick

NUMBERS: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 0.5, -0.0, 1.5, 1e-320, 1e-300, 1e-16, 1e71, 1e200, -1e308),
    *(float("nan"), float("inf"), -float("inf"), 1j, np.float32(0.3), np.int8(-3), np.uint8(200), np.float16(6e4)),
    *(np.longdouble(2), np.bool_(True), np.complex64(1), np.datetime64("NaT"), np.timedelta64(3, "s"), np.ma.masked),
    *(Fraction(1, 3), Decimal("0.1"), Decimal("NaN"), np.array(0.5), np.array([0.5]), np.array([[1]])),
]
# Amounts of work or memory: whoever asks for so much gets it, so only those that are checked may be so large.
HUGE: list[Any] = [10**6, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 1e18, np.uint64(2**64 - 1)]
OTHERS: list[Any] = [
    *("", "x", "nan", "auto", "ard", "greedy", "1", "\x00", "a\nb", "é" * 50, b"x", (), [], {}, set(), {1}, {"a": 1}),
    *([[]], [None], [[1.0], [1.0, 2.0]], [float("nan")], ["a"], (1, 2), [[[1.0]]], object, id, Ellipsis, slice(3)),
    *(NotImplemented, Path("nowhere"), Exception("e"), range(3), range(0), memoryview(b"abc"), bytearray(8)),
]
ARRAYS: list[Callable[[], Any]] = [
    lambda: object(),
    lambda: iter([1.0]),
    lambda: lambda *_: None,
    lambda: np.zeros(0),
    lambda: np.zeros((0, 3)),
    lambda: np.zeros((3, 0)),
    lambda: np.zeros((2, 3, 4)),
    lambda: np.full((4, 3), np.nan),
    lambda: np.full((4, 3), 1e200),
    lambda: np.array([None, 1.0]),
    lambda: np.array(["a", "b"]),
    lambda: np.array([10**30, 1], dtype=object),
    lambda: np.ma.masked_all((4, 3)),
    lambda: np.ones((4, 3), dtype=complex),
    lambda: np.zeros((4, 3), dtype="M8[s]"),
    lambda: np.zeros(4, dtype=[("a", "f8")]),
    lambda: np.zeros((4, 3), dtype="V8"),
    lambda: np.full((4, 3), 2**63, dtype=np.uint64),
    lambda: np.zeros((4, 3), dtype=">f8"),
    lambda: np.zeros((4, 3), dtype=np.float16),
    lambda: np.zeros((4, 3), dtype=np.longdouble),
    lambda: np.zeros((1,) * 30),
    lambda: np.matrix(np.zeros((4, 3))),
]


def nonsense(rng: np.random.Generator, work: bool = False) -> Any:
    """Any value; without huge numbers if it is an amount of work."""
    kind = rng.random()
    if kind < 0.4:
        return pick(rng, NUMBERS if work else NUMBERS + HUGE)
    return pick(rng, OTHERS) if kind < 0.7 else pick(rng, ARRAYS)()


def spoiled(value: Any, rng: np.random.Generator, work: bool = False) -> Any:
    """A value that is like a good one, but for something; any other value where there is no such thing."""
    if not isinstance(value, np.ndarray) or not value.size or rng.random() < 0.3:
        return nonsense(rng, work)
    with warnings.catch_warnings(action="ignore"):  # of our own making
        try:
            return pick(rng, ARRAY_CHANGES)(value.copy(), rng)
        except (RuntimeError, ValueError, OverflowError, TypeError):  # NumPy has no such array
            return nonsense(rng, work)


def _with(array: np.ndarray, rng: np.random.Generator, bad: float) -> np.ndarray:
    array = array.astype(float)
    array.flat[rng.integers(array.size)] = bad
    return array


ARRAY_CHANGES: list[Callable[[np.ndarray, np.random.Generator], Any]] = [
    lambda a, rng: _with(a, rng, pick(rng, [np.nan, np.inf, -np.inf, -1.0, 0.5, 1e70, 1e71, 1e300, -1e300, 1e-320])),
    lambda a, rng: a.astype(pick(rng, ["f2", "f4", "i1", "u1", "i8", "?", "c16", "O", "U9", ">f8", "M8[s]", "m8[s]"])),
    lambda a, rng: np.ma.masked_array(a, mask=rng.random(a.shape) < 0.5),
    lambda a, rng: a[None],
    lambda a, rng: a[..., None],
    lambda a, rng: a.T,
    lambda a, rng: a[: rng.integers(len(a))] if a.ndim else a,
    lambda a, rng: a[..., :0] if a.ndim else a,
    lambda a, rng: np.concatenate([a, a]) if a.ndim else a,
    lambda a, rng: np.concatenate([a, a], axis=-1) if a.ndim else a,
    lambda a, rng: a[::-1] if a.ndim else a,
    lambda a, rng: np.zeros_like(a),
    lambda a, rng: np.broadcast_to(a.flat[0], a.shape),
    lambda a, rng: 10.0 ** rng.integers(-320, 300) * a.astype(float),
    lambda a, rng: a.tolist(),
    lambda a, rng: iter(a.tolist()) if a.ndim else a,
    lambda a, rng: [*a.tolist(), None] if a.ndim else a,
    lambda a, rng: a.astype(object),
]
