"""Where states may lie: their bounds, angles that wrap, and pairs (cos, sin) on a circle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import as_floats, one_line
from gptd_rl.types import Array, BoolArray

# A predicted state may leave the visited range by this share of it.
MARGIN = 0.1
# A state variable is at a bound if it is this share of its range away from it. A known bound counts if one
# state reached it. Where none is known, the extreme of the visited states does if as many lie exactly there.
CLOSE, MIN_AT_BOUND = 1e-6, 3
# Two neighbouring inputs are cosine and sine if their squares sum to 1 this closely, in every state.
ON_CIRCLE = 1e-3
# An input is discrete if it has at most this many distinct values for each state.
DISTINCT = 0.1
# An input whose bounds are ±π this closely is an angle.
IS_PI = 1e-3


@dataclass(frozen=True, eq=False)
class StateSpace:
    """What is known of the space of states from its bounds and from visited states.

    Attributes
    ----------
    low, high : ndarray of shape (n_dims,)
        Bounds; infinite where there are none.
    lowest, highest : ndarray of shape (n_dims,)
        Range of the visited states.
    stops_low, stops_high : ndarray of shape (n_dims,)
        Whether the end of the visited range is a bound, at which the state variable stops.
    is_angle : ndarray of shape (n_dims,)
        Inputs with bounds ±π: they wrap around.
    is_discrete : ndarray of shape (n_dims,)
        Inputs with few values, such as integers, which are not to be perturbed.
    circles : tuple of int
        First column of each pair (cos φ, sin φ).
    """

    low: Array
    high: Array
    lowest: Array
    highest: Array
    stops_low: BoolArray
    stops_high: BoolArray
    is_angle: BoolArray
    is_discrete: BoolArray
    circles: tuple[int, ...]

    @classmethod
    def of(
        cls, states: Array, bounds: tuple[ArrayLike, ArrayLike] | None = None, before: Array | None = None
    ) -> StateSpace:
        """The space of visited states, with its bounds if they are known.

        Parameters
        ----------
        states : ndarray of shape (n, n_dims)
        bounds : tuple of 2 array-likes of shape (n_dims,), optional
        before : ndarray of shape (n, n_dims), optional
            The state before each, to tell who stopped at a bound from who stood still; itself where there was none.
        """
        n_dims = states.shape[1]
        low, high = check_bounds(bounds, n_dims)
        is_angle = (np.abs(low + np.pi) < IS_PI) & (np.abs(high - np.pi) < IS_PI)
        squares = states**2
        on_circle = (np.abs(squares[:, :-1] + squares[:, 1:] - 1.0) < ON_CIRCLE).all(axis=0)
        varies = np.ptp(states, axis=0) > ON_CIRCLE
        circles: list[int] = []
        for i in np.flatnonzero(on_circle & varies[:-1] & varies[1:]):
            if not circles or i > circles[-1] + 1:
                circles.append(int(i))
        lowest, highest = states.min(axis=0), states.max(axis=0)
        slack = CLOSE * (highest - lowest)
        turns = is_angle.copy()  # what goes round does not stop at the end of its range
        turns[[i + k for i in circles for k in (0, 1)]] = True
        has_moved = np.ones(states.shape, dtype=bool) if before is None else states != before
        stops_low = _is_bound(states, has_moved, lowest, low, slack) & ~turns
        stops_high = _is_bound(states, has_moved, highest, high, slack) & ~turns
        n_distinct = np.array([len(np.unique(column)) for column in states.T])
        is_discrete = n_distinct <= DISTINCT * len(states)
        return cls(low, high, lowest, highest, stops_low, stops_high, is_angle, is_discrete, tuple(circles))

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return len(self.low)

    @property
    def angles(self) -> tuple[int, ...]:
        """Columns of the angles."""
        return tuple(int(i) for i in np.flatnonzero(self.is_angle))

    @property
    def span(self) -> Array:
        """Extent of the visited range, of shape (n_dims,)."""
        return self.highest - self.lowest

    def coordinates(self, states: Array) -> Array:
        """States with cosine and sine behind each other in the place of each angle, of shape (n, n_coordinates)."""
        columns = [
            [np.cos(column), np.sin(column)] if is_angle else [column]
            for column, is_angle in zip(states.T, self.is_angle, strict=True)
        ]
        return np.stack([coordinate for pair in columns for coordinate in pair], axis=1)

    def difference(self, ends: Array, starts: Array) -> Array:
        """Change from `starts` to `ends`, angles by the short way round, of shape (..., n_dims)."""
        return self._wrapped(ends - starts)

    def move(self, states: Array, change: Array) -> Array:
        """States after a change: angles wrapped, others within their bounds and near the visited range."""
        moved = self._wrapped(states + change)
        low = np.maximum(self.low, self.lowest - np.where(self.stops_low, 0.0, MARGIN * self.span))
        high = np.minimum(self.high, self.highest + np.where(self.stops_high, 0.0, MARGIN * self.span))
        moved = np.where(self.is_angle, moved, np.clip(moved, low, high))
        for i in self.circles:
            pair = moved[..., i : i + 2]
            pair /= np.maximum(np.sqrt((pair**2).sum(axis=-1, keepdims=True)), np.finfo(np.float64).tiny)
        return moved

    def perturbed(self, states: Array, noise: Array) -> Array:
        """States with noise of shape (..., n_dims) added, but for discrete inputs."""
        return self.move(states, np.where(self.is_discrete, 0.0, noise))

    def is_outside(self, states: Array, margin: float) -> BoolArray:
        """Whether states left the visited range by more than a share `margin` of it, of shape (n,)."""
        slack = margin * self.span
        outside = ((states < self.lowest - slack) | (states > self.highest + slack)) & ~self.is_angle
        return np.asarray(outside.any(axis=-1))

    def _wrapped(self, states: Array) -> Array:
        if not self.is_angle.any():
            return states
        return np.where(self.is_angle, (states + np.pi) % (2.0 * np.pi) - np.pi, states)


def _is_bound(states: Array, has_moved: BoolArray, end: Array, known: Array, slack: Array) -> BoolArray:
    """Whether the ends of the visited range, of shape (n_dims,), are bounds.

    A known bound is one where states reached it. Where none is known, one is where states stopped often.
    """
    n_there = ((np.abs(states - end) <= slack) & has_moved).sum(axis=0)
    stopped = np.where(np.isfinite(known), (np.abs(end - known) <= slack) & (n_there > 0), n_there >= MIN_AT_BOUND)
    return np.asarray((slack > 0) & stopped)


def check_bounds(bounds: tuple[ArrayLike, ArrayLike] | None, n_dims: int) -> tuple[Array, Array]:
    """Lower and upper bounds, each of shape (n_dims,); infinite where none are given."""
    if bounds is None:
        return np.full(n_dims, -np.inf), np.full(n_dims, np.inf)
    try:
        low, high = (as_floats(bound, "bounds").reshape(-1) for bound in bounds)
    except (TypeError, ValueError):
        came = one_line(repr(bounds))
        raise ValueError(f"bounds must be two arrays of {n_dims} numbers each, (low, high); got {came}.") from None
    if low.shape != (n_dims,) or high.shape != (n_dims,):
        raise ValueError(f"bounds must be two arrays of {n_dims} numbers each; got {len(low)} and {len(high)}.")
    if not (ordered := (low <= high) & (low < np.inf) & (high > -np.inf)).all():
        i = int(np.flatnonzero(~ordered)[0])
        raise ValueError(f"bounds must be ordered; bounds of input {i} are {low[i]:g} and {high[i]:g}.")
    return low, high
