"""What an action is in a pair [x, a] of a state and an action: one numbered column, or coordinates like those of x.

`Discrete` actions are numbers, compared but never subtracted: a *label* behind the state, which `ActionKernel` reads.
`Box` actions are coordinates: the metric of the kernel reaches over [x, a], and says how much each of them matters.
`NoActions` is for value functions of states alone, so that whoever holds data need not ask which it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.kernels.stationary import ActionKernel, SquaredExponential
from gptd_rl.types import Array

# Continuous actions that differ by no more are the same: a policy asked again may round differently.
RELATIVELY_CLOSE, CLOSE = 1e-5, 1e-6


class Actions(Protocol):
    """How actions stand in the last columns of a pair, and what the kernel makes of them."""

    @property
    def n_columns(self) -> int:
        """Columns of a pair that hold the action."""
        ...

    @property
    def n_labels(self) -> int:
        """How many of these are names, not coordinates."""
        ...

    def tie(self, kernel: SquaredExponential) -> SquaredExponential:
        """The kernel over pairs, from one over coordinates."""
        ...


@dataclass(frozen=True)
class NoActions:
    """States by themselves."""

    n_columns = 0
    n_labels = 0

    def tie(self, kernel: SquaredExponential) -> SquaredExponential:
        """The kernel as it is."""
        return kernel


NO_ACTIONS = NoActions()


@dataclass(frozen=True)
class Discrete:
    """Actions numbered from 0 to n − 1, between which Q correlates by ρ; not at all by default.

    Parameters
    ----------
    n : int
        Number of actions.
    correlation : float
        ρ, from 0 to below 1.
    """

    n: int
    correlation: float = 0.0
    n_columns = 1
    n_labels = 1

    def tie(self, kernel: SquaredExponential) -> SquaredExponential:
        """k(x, x') times 1 for equal actions and ρ for others."""
        return ActionKernel(kernel.metric, kernel.signal_variance, kernel.bias, kernel.fixed, self.n, self.correlation)

    def encode(self, actions: ArrayLike) -> Array:
        """Actions as the last columns of pairs, of shape (n_actions, 1)."""
        numbers = whole_numbers(actions)
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

    def same(self, columns: Array, others: Array) -> NDArray[np.bool_]:
        """Whether each action is that of the same row in `others`."""
        return np.asarray(columns[:, 0] == others[:, 0])

    def at_the_end(self, taken: Array) -> Array:
        """Actions for which terminal states are pinned to 0: all of them, of shape (n_states, n, 1)."""
        return np.tile(np.arange(float(self.n))[:, None], (len(taken), 1, 1))


@dataclass(frozen=True)
class Box:
    """Actions that are vectors of numbers: more coordinates for the metric.

    Parameters
    ----------
    shape : tuple of int
        Shape of one action; () for a single number.
    """

    shape: tuple[int, ...]
    n_labels = 0

    @property
    def n_columns(self) -> int:
        """Numbers in an action."""
        return int(np.prod(self.shape))

    def tie(self, kernel: SquaredExponential) -> SquaredExponential:
        """The kernel as it is: its metric is over [x, a]."""
        return kernel

    def encode(self, actions: ArrayLike) -> Array:
        """Actions as the last columns of pairs, of shape (n_actions, n_columns)."""
        try:
            values = np.array(actions, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(f"actions must be numbers: {error}.") from None
        one_number = self.n_columns == 1 and values.ndim in (1, 2) and values.shape[1:] in ((), (1,))
        if not one_number and values.shape[1:] != self.shape:
            expected = ", ".join(map(str, ("n", *self.shape)))
            raise ValueError(f"actions must have shape ({expected}), as in fit; got {values.shape}.")
        values = values.reshape(len(values), -1)
        if (bad := np.argwhere(~np.isfinite(values))).size:
            raise ValueError(f"actions must be finite; actions[{bad[0][0]}] is {values[bad[0][0]]}.")
        return values

    def decode(self, columns: Array) -> NDArray[Any]:
        """Actions from the last columns of pairs, of shape (n_actions, *shape)."""
        return columns.reshape(len(columns), *self.shape)

    def same(self, columns: Array, others: Array) -> NDArray[np.bool_]:
        """Whether each action is that of the same row in `others`, but for rounding."""
        return np.asarray(np.isclose(columns, others, RELATIVELY_CLOSE, CLOSE).all(axis=1))

    def at_the_end(self, taken: Array) -> Array:
        """Actions for which terminal states are pinned to 0: the last one taken, of shape (n_states, 1, n_columns)."""
        return taken[:, None]


def whole_numbers(actions: ArrayLike) -> NDArray[np.int64]:
    """Check that actions are whole numbers, one each, of shape (n,) or (n, 1)."""
    values = np.asarray(actions)
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
    return values.astype(np.int64)
