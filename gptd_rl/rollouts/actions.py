"""Actions of a Gymnasium space: checked against it, or numbered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import as_floats
from gptd_rl.data.actions import DiscreteActions
from gptd_rl.data.spaces import OutsideSpaceError, describe
from gptd_rl.types import BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class ActionSet:
    """A finite set of actions, numbered from 0.

    Parameters
    ----------
    actions : ndarray of shape (n, ...)
        The actions as the environment takes them.
    is_continuous : bool
        Whether they are candidates from a continuous space.
    """

    actions: NDArray[Any]
    is_continuous: bool = False

    @property
    def n(self) -> int:
        """Number of actions."""
        return len(self.actions)

    @classmethod
    def from_space(cls, space: Space[Any], candidates: ArrayLike | None = None) -> ActionSet:
        """All actions of a discrete space, or the given candidates of a continuous one.

        Parameters
        ----------
        space : gymnasium.spaces.Discrete or gymnasium.spaces.Box
        candidates : array-like of shape (n, *space.shape), optional
            Required for a Box, refused for a Discrete.
        """
        if isinstance(space, spaces.Discrete):
            if candidates is not None:
                raise ValueError(f"candidates are for continuous actions; the action space is {describe(space)}.")
            return cls(np.arange(space.n) + space.start)
        if not isinstance(space, spaces.Box):
            raise ValueError(f"actions from {describe(space)} are not supported: expected Discrete or Box.")
        if candidates is None:
            raise ValueError(
                f"the action space {describe(space)} is continuous: give candidates, the actions to choose from, "
                "e.g. candidates=[[-1.0], [0.0], [1.0]]."
            )
        given = as_floats(candidates, "candidates")
        with np.errstate(all="ignore"):
            chosen = given.astype(space.dtype)
        if chosen.shape[1:] != space.shape or len(chosen) < 2:
            raise ValueError(f"candidates must be two or more actions of shape {space.shape}; got {chosen.shape}.")
        is_whole = chosen.dtype.kind in "iu"
        for action, converted in zip(given, chosen, strict=True):
            if not space.contains(converted) or (is_whole and (converted != action).any()):
                raise ValueError(f"candidate {action} is outside {describe(space)}.")
        return cls(chosen, is_continuous=True)

    @classmethod
    def from_data(cls, actions: NDArray[Any], candidates: ArrayLike | None = None) -> ActionSet:
        """The candidates, or else the integers from 0 to the largest of `actions`, of shape (n_states,)."""
        if candidates is not None:
            return cls(as_floats(candidates, "candidates"), is_continuous=True)
        if actions.dtype.kind not in "iu" or actions.ndim != 1:
            raise ValueError("the actions of the data are continuous: give candidates, the actions to choose from.")
        return cls(np.arange(DiscreteActions(int(actions.max()) + 1).n))

    def indices(self, actions: NDArray[Any]) -> IntArray:
        """Index of each action, of shape (n_states,): that of the nearest candidate if they are continuous."""
        if self.is_continuous:
            flat, mine = actions.reshape(len(actions), -1), self.actions.reshape(self.n, -1)
            return ((flat[:, np.newaxis] - mine) ** 2).sum(axis=2).argmin(axis=1)
        indices = np.asarray(actions).reshape(-1).astype(np.int64) - int(self.actions[0])
        if (outside := np.flatnonzero((indices < 0) | (indices >= self.n))).size:
            raise ValueError(f"unknown action {actions[outside[0]]}: there are {self.n}, from {self.actions[0]}.")
        return indices


class ActionCheck:
    """Checks batches of actions against a space.

    Parameters
    ----------
    space : gymnasium.Space
        The space of one action: Box, Discrete, MultiDiscrete or MultiBinary.
    n_envs : int
        Number of actions in a batch.
    """

    def __init__(self, space: Space[Any], n_envs: int) -> None:
        low: Any
        high: Any
        if isinstance(space, spaces.Box):
            low, high = space.low, space.high
        elif isinstance(space, spaces.Discrete):
            low, high = int(space.start), int(space.start + space.n - 1)
        elif isinstance(space, spaces.MultiDiscrete):
            low, high = space.start, space.start + space.nvec - 1
        elif isinstance(space, spaces.MultiBinary):
            low, high = 0, 1
        else:
            raise ValueError(
                f"actions from {describe(space)} are not supported: expected Box, Discrete, "
                "MultiDiscrete or MultiBinary."
            )
        assert space.shape is not None, "only composite spaces have no shape"
        self.space = space
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.real = np.issubdtype(self.dtype, np.floating)
        self.low, self.high = low, high
        self.shape = (n_envs, *space.shape)

    def example(self) -> NDArray[Any]:
        """A batch of zeros, of shape (n_envs, ...)."""
        return np.zeros(self.shape, dtype=self.dtype)

    def __call__(self, actions: Any) -> NDArray[Any]:
        """Convert actions to an array of the space's dtype; refuse a wrong shape or type.

        Bounds are left to `outside`, unless the conversion would hide a violation.
        """
        if isinstance(actions, np.ma.MaskedArray):
            raise TypeError("it returned a masked array: expected an action everywhere")
        given = np.asarray(actions)
        if given.dtype == self.dtype and given.shape == self.shape:
            return given
        if given.shape != self.shape or given.dtype.kind not in ("iuf" if self.real else "iu"):
            raise ValueError(
                f"it returned actions of shape {given.shape} and type {given.dtype}; "
                f"expected shape {self.shape} for {describe(self.space)}"
            )
        if not self.real:
            for env in np.argwhere(self.outside(given))[:1, 0].tolist():
                raise OutsideSpaceError(self.describe_violation(given[env]), env)
        return given.astype(self.dtype)

    def outside(self, actions: NDArray[Any]) -> BoolArray:
        """Which numbers of `actions` violate their bounds, NaN included; of the shape of `actions`."""
        inside: BoolArray = (actions >= self.low) & (actions <= self.high)
        return ~inside

    def describe_violation(self, action: Any) -> str:
        """Message for an action outside the space."""
        return f"action {action} is outside {describe(self.space)}"
