"""What a policy saw, by time and sub-environment, and the segments to be cut out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptd_rl.spaces import Numbers
from gptd_rl.trajectories import Trajectories

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
ROOM = 256  # steps to make room for at first
PORTION = 16_384  # states to cut out at a time


@dataclass(frozen=True, eq=False)
class Segments:
    """Ranges of time in single sub-environments, with the states in which they ended."""

    envs: IntArray  # [k]
    starts: IntArray  # time of the first state  [k]
    stops: IntArray  # time behind the last transition  [k]
    finals: Numbers  # [k, n_dims]
    terminated: BoolArray  # [k]

    @classmethod
    def in_order(cls, parts: list[Segments]) -> Segments:
        """Join segments and order them by sub-environment, then by time."""
        names = cls.__dataclass_fields__
        joined = {name: np.concatenate([getattr(p, name) for p in parts]) for name in names}
        order = np.lexsort((joined["starts"], joined["envs"]))
        return cls(**{name: array[order] for name, array in joined.items()})


class Record:
    """What each batched step brought, as arrays ``[time, n_envs, ...]`` that grow.

    A segment is a range of times in one sub-environment plus a final state. So a batched step costs
    a few array writes, whatever the number of sub-environments, and segments are cut out together.

    Parameters
    ----------
    states : ndarray of shape (n_envs, n_dims)
        The first states.
    actions : ndarray of shape (n_envs, ...)
        Any actions, to know their shape and dtype.

    Attributes
    ----------
    time : int
        Number of steps recorded.
    states : ndarray of shape (ROOM, n_envs, n_dims)
        Those of time t are left by step t.
    actions, rewards, terminated, done : ndarray of shape (ROOM, n_envs, ...)
        Those of step t.
    """

    def __init__(self, states: Numbers, actions: NDArray[Any]) -> None:
        self.time = 0
        n = len(states)
        precision = np.float32 if states.dtype == np.float32 else np.float64
        self.states: Numbers = np.empty((ROOM, *states.shape), dtype=precision)
        self.actions: NDArray[Any] = np.empty((ROOM, *actions.shape), dtype=actions.dtype)
        self.rewards = np.empty((ROOM, n))
        self.terminated = np.empty((ROOM, n), dtype=bool)
        self.done = np.empty((ROOM, n), dtype=bool)
        self.segments: list[Segments] = []  # those that ended
        self.states[0] = states

    def make_room(self, n_steps: int) -> None:
        """See to it that there is room for so many steps more."""
        while self.time + n_steps >= len(self.states):
            for name in ("states", "actions", "rewards", "terminated", "done"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.empty_like(array)]))

    def take(self, gamma: float) -> Trajectories:
        """Cut out the segments that ended, by sub-environment and then by time, and forget them."""
        ended = Segments.in_order(self.segments)
        self.segments.clear()
        lengths = ended.stops - ended.starts + 1
        behind = np.cumsum(lengths)
        n = int(behind[-1])
        states = np.empty((n, self.states.shape[2]))
        rewards = np.zeros(n)
        actions = np.zeros((n, *self.actions.shape[2:]), dtype=self.actions.dtype)
        # By portions, so that index arrays stay small: fresh memory costs more than the copying.
        cuts = np.searchsorted(behind, np.arange(PORTION, n, PORTION))
        for part in np.split(np.arange(len(lengths)), np.unique(cuts)):
            if part.size == 0:
                continue
            steps = lengths[part] - 1
            within = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
            place = np.repeat(behind[part] - lengths[part], steps) + within
            cell = (np.repeat(ended.starts[part], steps) + within, np.repeat(ended.envs[part], steps))
            states[place] = self.states[cell]
            rewards[place] = self.rewards[cell]
            actions[place] = self.actions[cell]
        states[behind - 1] = ended.finals
        discounts = np.full(n, gamma)
        discounts[behind - 1] = 0.0
        return Trajectories(states, rewards, discounts, lengths, ended.terminated, actions)

    def forget(self, before: int) -> int:
        """Drop the times `before` one, if that frees half the room.

        Returns by how much the clock went back. No segment that ended may be left in the record.
        """
        assert not self.segments, "take the segments first"
        if 2 * before < len(self.states):
            return 0
        for array in (self.states, self.actions, self.rewards, self.terminated, self.done):
            array[: self.time + 1 - before] = array[before : self.time + 1]
        self.time -= before
        return before
