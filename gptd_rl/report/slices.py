"""Lines and planes through the visited states, for maps of functions of many inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gptd_rl.types import Array

N_DOTS = 300  # visited states on a map
BANDWIDTH = 0.06  # of the weights of visited states, as a share of an axis


@dataclass(frozen=True, eq=False)
class Slice:
    """A line or plane through the visited states.

    Attributes
    ----------
    axes : ndarray of shape (k, n_dims)
        Directions in units of the inputs' spreads.
    centre, spread : ndarray of shape (n_dims,)
    visited : ndarray of shape (m, n_dims)
        Visited states in these units.
    """

    axes: Array
    centre: Array
    spread: Array
    visited: Array

    @classmethod
    def of(cls, states: Array, axes: Array) -> Self:
        """Slice along `axes`."""
        centre, spread = np.median(states, axis=0), states.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        return cls(axes, centre, spread, (states - centre) / spread)

    def states(self, n: int) -> Array:
        """States on an even grid of n points along each axis, of shape (nᵏ, n_dims); the first axis varies fastest.

        Coordinates off the axes are averages over the visited states, with Gaussian weights of their distance.
        """
        coordinates = self.visited @ self.axes.T  # [m, k]
        low, high = self._limits(coordinates)
        along = [np.linspace(*ends, n) for ends in zip(low, high, strict=True)]
        grid = np.stack(np.meshgrid(*along), axis=-1).reshape(-1, len(along))  # [g, k]
        distances = (((grid[:, None] - coordinates) / (BANDWIDTH * (high - low))) ** 2).sum(axis=-1)  # [g, m]
        weights = np.exp(-0.5 * (distances - distances.min(axis=1, keepdims=True)))
        near = weights @ self.visited / weights.sum(axis=1, keepdims=True)
        moved = near + (grid - near @ self.axes.T) @ np.linalg.pinv(self.axes).T
        return moved * self.spread + self.centre

    def dots(self) -> Array:
        """Coordinates of at most `N_DOTS` visited states on the axes, of shape (m, k)."""
        return self._shown(subsample(self.visited, N_DOTS) @ self.axes.T)

    def dot_states(self) -> Array:
        """The states of `dots`, of shape (m, n_dims)."""
        return subsample(self.visited, N_DOTS) * self.spread + self.centre

    def ticks(self, axis: int, n: int) -> Array:
        """Coordinates of the grid on an axis, of shape (n,)."""
        low, high = self._shown(np.array(self._limits(self.visited @ self.axes.T)))[:, axis]
        return np.linspace(low, high, n)

    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of a plane."""
        (left, bottom), (right, top) = self._shown(np.array(self._limits(self.visited @ self.axes.T)))
        return float(left), float(right), float(bottom), float(top)

    def _shown(self, coordinates: Array) -> Array:
        """Coordinates in the units of the input, where an axis is a single input."""
        single = (self.axes != 0).sum(axis=1) == 1
        inputs = np.argmax(np.abs(self.axes), axis=1)
        return np.where(single, coordinates * self.spread[inputs] + self.centre[inputs], coordinates)

    @staticmethod
    def _limits(coordinates: Array) -> tuple[Array, Array]:
        low, high = coordinates.min(axis=0), coordinates.max(axis=0)
        room = np.where(high > low, 0.0, 0.5)
        return low - room, high + room


def subsample(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """At most `most` rows at even distances."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(int)]
