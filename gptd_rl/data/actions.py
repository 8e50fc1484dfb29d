"""How actions are encoded in a pair [x, a] of a state and an action: one categorical column, or coordinates like x.

`DiscreteActions` are category numbers: equal or not, but without distances. `ContinuousActions` are coordinates: the
metric of the kernel covers [x, a] and gives each of them a relevance. `NoActions` describes states alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import LARGEST_COUNT, as_array, as_floats, check_finite
from gptd_rl.types import Array, BoolArray, IntArray

# Continuous actions within these tolerances are equal: two calls of a policy may round differently.
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-5, 1e-6

# Discrete actions, at most: kernels hold a matrix of all pairs of them, and a terminal state has a row for each.
MAX_ACTIONS = 4096


class Actions(Protocol):
    """Encoding of actions in the last columns of a pair."""

    @property
    def n_columns(self) -> int:
        """Columns of a pair that hold the action."""
        ...

    @property
    def n_categorical(self) -> int:
        """How many of these columns are category numbers instead of coordinates."""
        ...


@dataclass(frozen=True)
class NoActions:
    """States without actions."""

    n_columns = 0
    n_categorical = 0


NO_ACTIONS = NoActions()


@dataclass(frozen=True)
class DiscreteActions:
    """Actions numbered from 0 to n − 1.

    Parameters
    ----------
    n : int
        Number of actions.
    correlation : float
        Prior correlation ρ of Q between different actions, from 0 to below 1.
    """

    n: int
    correlation: float = 0.0
    n_columns = 1
    n_categorical = 1

    def __post_init__(self) -> None:
        if self.n > MAX_ACTIONS:
            raise ValueError(
                f"there can be {MAX_ACTIONS} discrete actions at most; got {self.n}, as they are numbered from 0 to "
                f"{self.n - 1}. Number those that occur 0, 1, 2, …"
            )

    def encode(self, actions: ArrayLike) -> Array:
        """Actions as the last columns of pairs, of shape (n_actions, 1)."""
        numbers = as_int_actions(actions)
        outside = np.flatnonzero((numbers < 0) | (numbers >= self.n))
        if outside.size:
            i = outside[0]
            raise ValueError(
                f"unknown action: actions[{i}] is {numbers[i]}, but the {self.n} actions are 0 to {self.n - 1}."
            )
        return numbers[:, None].astype(np.float64)

    def decode(self, columns: Array) -> NDArray[Any]:
        """Actions from the last columns of pairs, of shape (n_actions,)."""
        return columns[:, 0].astype(np.int64)

    def equal(self, columns: Array, others: Array) -> BoolArray:
        """Whether each action equals that of the same row in `others`, of shape (n_actions,)."""
        return np.asarray(columns[:, 0] == others[:, 0])

    def terminal_actions(self, taken: Array) -> Array:
        """Actions for which Q of a terminal state is 0: all, of shape (n_states, n, 1)."""
        return np.tile(np.arange(float(self.n))[:, None], (len(taken), 1, 1))


@dataclass(frozen=True)
class ContinuousActions:
    """Actions that are vectors of numbers.

    Parameters
    ----------
    shape : tuple of int
        Shape of one action; () for a single number.
    """

    shape: tuple[int, ...]
    n_categorical = 0

    @property
    def n_columns(self) -> int:
        """Numbers in an action."""
        return int(np.prod(self.shape))

    def encode(self, actions: ArrayLike) -> Array:
        """Actions as the last columns of pairs, of shape (n_actions, n_columns)."""
        values = as_floats(actions, "actions")
        one_number = self.n_columns == 1 and values.ndim in (1, 2) and values.shape[1:] in ((), (1,))
        if not one_number and values.shape[1:] != self.shape:
            expected = ", ".join(map(str, ("n", *self.shape)))
            raise ValueError(f"actions must have shape ({expected}), as in fit; got {values.shape}.")
        values = values.reshape(len(values), -1)
        if (bad := np.argwhere(~np.isfinite(values))).size:
            raise ValueError(f"actions must be finite; actions[{bad[0][0]}] is {values[bad[0][0]]}.")
        check_finite(values, "actions")
        return values

    def decode(self, columns: Array) -> NDArray[Any]:
        """Actions from the last columns of pairs, of shape (n_actions, *shape)."""
        return columns.reshape(len(columns), *self.shape)

    def equal(self, columns: Array, others: Array) -> BoolArray:
        """Whether each action equals that of the same row in `others` up to rounding, of shape (n_actions,)."""
        return np.asarray(np.isclose(columns, others, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE).all(axis=1))

    def terminal_actions(self, taken: Array) -> Array:
        """Actions for which Q of a terminal state is 0: the last one taken, of shape (n_states, 1, n_columns)."""
        return taken[:, None]


def as_int_actions(actions: ArrayLike) -> IntArray:
    """Check discrete actions: whole numbers of shape (n,) or (n, 1)."""
    values = as_array(actions, "discrete actions", "whole numbers")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(
            f"discrete actions must have shape (n,), one number each; got {values.shape}. "
            "Number the combinations of several."
        )
    if values.dtype.kind not in "iubf":
        raise TypeError(f"discrete actions must be whole numbers; got {values.dtype}.")
    if values.dtype.kind == "f" and (broken := np.flatnonzero(values != np.round(values))).size:
        raise ValueError(
            f"discrete actions must be whole numbers; actions[{broken[0]}] is {values[broken[0]]}. "
            "Leave n_actions out if actions are continuous."
        )
    if (large := np.flatnonzero(~(np.abs(values.astype(np.float64)) <= LARGEST_COUNT))).size:
        raise ValueError(f"discrete actions must be numbered 0, 1, 2, …; actions[{large[0]}] is {values[large[0]]}.")
    return values.astype(np.int64)
