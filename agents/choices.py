"""The finite set of actions that an agent chooses from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from gptd_rl.data.spaces import describe


@dataclass(frozen=True, eq=False)
class ActionSet:
    """Actions as the environment takes them, of shape (n, ...), in the order of their indices."""

    actions: NDArray[Any]
    is_box: bool = False  # whether they were picked from a continuous space

    @property
    def n(self) -> int:
        """Number of actions."""
        return len(self.actions)

    @classmethod
    def of(cls, space: Space[Any], candidates: NDArray[Any] | None) -> ActionSet:
        """All actions of a discrete space, or the candidates in a continuous one."""
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
        chosen = np.asarray(candidates, dtype=space.dtype)
        if chosen.shape[1:] != space.shape or len(chosen) < 2:
            raise ValueError(f"candidates must be two or more actions of shape {space.shape}; got {chosen.shape}.")
        for action in chosen:
            if not space.contains(action):
                raise ValueError(f"candidate {action} is outside {describe(space)}.")
        return cls(chosen, is_box=True)

    @classmethod
    def of_data(cls, actions: NDArray[Any], candidates: NDArray[Any] | None) -> ActionSet:
        """The actions that occur in data, without an environment."""
        if candidates is not None:
            return cls(np.asarray(candidates, dtype=np.float64), is_box=True)
        if actions.dtype.kind not in "iu" or actions.ndim != 1:
            raise ValueError("the actions of the data are continuous: give candidates, the actions to choose from.")
        return cls(np.arange(int(actions.max()) + 1))

    def indices(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Index of each action, of shape (n_states,): the nearest candidate if they are continuous."""
        if self.is_box:
            flat, mine = actions.reshape(len(actions), -1), self.actions.reshape(self.n, -1)
            return ((flat[:, np.newaxis] - mine) ** 2).sum(axis=2).argmin(axis=1)
        indices = np.asarray(actions).reshape(-1).astype(np.int64) - int(self.actions[0])
        if (outside := np.flatnonzero((indices < 0) | (indices >= self.n))).size:
            raise ValueError(f"unknown action {actions[outside[0]]}: there are {self.n}, from {self.actions[0]}.")
        return indices
