"""What a policy saw, by sub-environment and time, and the segments to be cut out of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.spaces import Numbers
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import BoolArray, IntArray

PORTION = 16_384  # states to cut out at a time


class Block:
    """Room for the latest batched steps, by time: ``[room, n_envs, ...]``.

    Parameters
    ----------
    states : ndarray of shape (n_envs, n_dims)
    actions : ndarray of shape (n_envs, ...)
        Any ones, to know their shape and dtype.
    room : int
    """

    def __init__(self, states: Numbers, actions: NDArray[Any], room: int) -> None:
        precision = np.float32 if states.dtype == np.float32 else np.float64
        self.actions: NDArray[Any] = np.empty((room, *actions.shape), dtype=actions.dtype)
        self.rewards = np.empty((room, len(states)))
        self.states: Numbers = np.empty((room, *states.shape), dtype=precision)  # led to
        self.terminated = np.empty((room, len(states)), dtype=bool)
        self.truncated = np.empty((room, len(states)), dtype=bool)


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
    """All that was seen, by sub-environment: arrays ``[n_envs, room, ...]`` that grow.

    A segment is a range of times in one sub-environment plus a final state. So a batched step costs
    a few array writes, whatever the number of sub-environments, and segments are cut out together.

    Parameters
    ----------
    states : ndarray of shape (n_envs, n_dims)
        The first states.
    block : Block
        From which steps will come.
    room : int
        Number of steps to make room for at first.

    Attributes
    ----------
    time : int
        Number of steps recorded.
    states : ndarray of shape (n_envs, room, n_dims)
        Those at time t are left by step t.
    actions, rewards : ndarray of shape (n_envs, room, ...)
        Those of step t.
    segments : list of Segments
        Those that ended.
    """

    def __init__(self, states: Numbers, block: Block, room: int) -> None:
        def empty(like: NDArray[Any]) -> NDArray[Any]:
            return np.empty((len(states), room, *like.shape[2:]), dtype=like.dtype)

        self.time = 0
        self.states, self.actions = empty(block.states), empty(block.actions)
        self.rewards = empty(block.rewards)
        self.segments: list[Segments] = []
        self.states[:, 0] = states

    @property
    def room(self) -> int:
        """Number of steps there is room for."""
        return int(self.rewards.shape[1]) - 1

    def append(self, block: Block, n_steps: int) -> None:
        """Add the first `n_steps` of a block."""
        stop = self.time + n_steps
        while stop > self.room:
            for name in ("states", "actions", "rewards"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.empty_like(array)], axis=1))
        _items(self.actions)[:, self.time : stop] = _items(block.actions)[:n_steps].T
        _items(self.rewards)[:, self.time : stop] = _items(block.rewards)[:n_steps].T
        _items(self.states)[:, self.time + 1 : stop + 1] = _items(block.states)[:n_steps].T
        self.time = stop

    def take(self, gamma: float) -> Trajectories:
        """Cut out the segments that ended, by sub-environment and then by time, and forget them."""
        ended = Segments.in_order(self.segments)
        self.segments.clear()
        lengths = ended.stops - ended.starts + 1
        behind = np.cumsum(lengths)  # place behind each segment in the result
        n, last = behind[-1], behind - 1
        states = np.empty((n, self.states.shape[2]))
        rewards, discounts = np.empty(n), np.full(n, gamma)
        actions = np.empty((n, *self.actions.shape[2:]), dtype=self.actions.dtype)
        pairs = (self.states, states), (self.rewards, rewards), (self.actions, actions)
        for place, cells in _portions(ended.envs * (self.room + 1) + ended.starts, lengths):
            for record, result in pairs:
                result[place] = record.reshape(-1, *record.shape[2:]).take(cells, axis=0)
        states[last] = ended.finals
        rewards[last], discounts[last], actions[last] = 0.0, 0.0, 0
        return Trajectories._trusted(  # all finite, and consistent by construction
            states=states,
            rewards=rewards,
            discounts=discounts,
            lengths=lengths,
            terminated=ended.terminated,
            actions=actions,
        )

    def forget(self, before: int) -> int:
        """Drop the times `before` one, if that frees half the room.

        Returns by how much the clock went back. No segment that ended may be left in the record.
        """
        assert not self.segments, "take the segments first"
        if 2 * before < self.room:
            return 0
        for array in (self.states, self.actions, self.rewards):
            array[:, : self.time + 1 - before] = array[:, before : self.time + 1]
        self.time -= before
        return before


def _items(array: NDArray[Any]) -> NDArray[Any]:
    """See an array [a, b, ...] as one of shape (a, b), whose items are copied as a whole: that is faster."""
    flat = array.reshape(*array.shape[:2], math.prod(array.shape[2:]))
    return flat.view(np.dtype((np.void, flat.shape[2] * flat.itemsize)))[:, :, 0]


def _portions(firsts: IntArray, lengths: IntArray) -> Iterator[tuple[slice, IntArray]]:
    """Lay ranges ``first, ..., first + length - 1`` end to end, and yield the result in portions.

    Index arrays for everything at once would cost more, in fresh memory, than all the copying.
    """
    behind = np.cumsum(lengths)
    offsets = firsts - (behind - lengths)
    edges = np.searchsorted(behind, np.arange(PORTION, behind[-1], PORTION))
    for a, b in pairwise(np.unique([0, *edges, len(lengths)])):
        place = slice(behind[a] - lengths[a], behind[b - 1])
        yield place, np.repeat(offsets[a:b], lengths[a:b]) + np.arange(place.start, place.stop)
