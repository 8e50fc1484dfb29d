"""Steps of a rollout in arrays by sub-environment and time, and the segments to extract from them."""

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

PORTION = 16_384  # states copied at a time


class StepBuffer:
    """The latest batched steps by time: arrays of shape (capacity, n_envs, ...).

    Parameters
    ----------
    states : ndarray of shape (n_envs, n_dims)
        Example of a batch, for shape and dtype.
    actions : ndarray of shape (n_envs, ...)
        Example of a batch.
    capacity : int
        Number of steps.
    """

    def __init__(self, states: Numbers, actions: NDArray[Any], capacity: int) -> None:
        precision = np.float32 if states.dtype == np.float32 else np.float64
        self.actions: NDArray[Any] = np.empty((capacity, *actions.shape), dtype=actions.dtype)
        self.rewards = np.empty((capacity, len(states)))
        self.states: Numbers = np.empty((capacity, *states.shape), dtype=precision)  # reached by the step
        self.terminated = np.empty((capacity, len(states)), dtype=bool)
        self.truncated = np.empty((capacity, len(states)), dtype=bool)


@dataclass(frozen=True, eq=False)
class SegmentRanges:
    """Ranges of time in single sub-environments, and the final state of each."""

    envs: IntArray  # [k]
    starts: IntArray  # time of the first state  [k]
    stops: IntArray  # time of the final state  [k]
    final_states: Numbers  # [k, n_dims]
    terminated: BoolArray  # [k]

    @classmethod
    def in_order(cls, parts: list[SegmentRanges]) -> SegmentRanges:
        """Concatenate segments, ordered by sub-environment, then by time."""
        names = cls.__dataclass_fields__
        joined = {name: np.concatenate([getattr(p, name) for p in parts]) for name in names}
        order = np.lexsort((joined["starts"], joined["envs"]))
        return cls(**{name: array[order] for name, array in joined.items()})


class Recorder:
    """All recorded steps by sub-environment: arrays of shape (n_envs, capacity, ...) that grow.

    A segment is a range of times in one sub-environment plus a final state. So a batched step costs a few array writes,
    whatever the number of sub-environments, and segments are extracted together.

    Parameters
    ----------
    states : ndarray of shape (n_envs, n_dims)
        The first states.
    buffer : StepBuffer
        Buffer that steps will come from.
    capacity : int
        Initial number of steps.

    Attributes
    ----------
    time : int
        Number of steps recorded.
    states : ndarray of shape (n_envs, capacity, n_dims)
        Step t leaves those at time t.
    actions, rewards : ndarray of shape (n_envs, capacity, ...)
        Those of step t.
    segments : list of SegmentRanges
        Segments that ended and were not extracted yet.
    """

    def __init__(self, states: Numbers, buffer: StepBuffer, capacity: int) -> None:
        def empty(like: NDArray[Any]) -> NDArray[Any]:
            return np.empty((len(states), capacity, *like.shape[2:]), dtype=like.dtype)

        self.time = 0
        self.states, self.actions = empty(buffer.states), empty(buffer.actions)
        self.rewards = empty(buffer.rewards)
        self.segments: list[SegmentRanges] = []
        self.states[:, 0] = states

    @property
    def capacity(self) -> int:
        """Number of steps that fit into the arrays."""
        return int(self.rewards.shape[1]) - 1

    @property
    def n_bytes(self) -> int:
        """Size of the arrays."""
        return self.states.nbytes + self.actions.nbytes + self.rewards.nbytes

    def append(self, buffer: StepBuffer, n_steps: int) -> None:
        """Add the first `n_steps` of a buffer."""
        stop = self.time + n_steps
        while stop > self.capacity:
            for name in ("states", "actions", "rewards"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.empty_like(array)], axis=1))
        _items(self.actions)[:, self.time : stop] = _items(buffer.actions)[:n_steps].T
        _items(self.rewards)[:, self.time : stop] = _items(buffer.rewards)[:n_steps].T
        _items(self.states)[:, self.time + 1 : stop + 1] = _items(buffer.states)[:n_steps].T
        self.time = stop

    def pop(self, gamma: float) -> Trajectories:
        """Extract and remove the segments that ended, by sub-environment and then by time."""
        ended = SegmentRanges.in_order(self.segments)
        self.segments.clear()
        lengths = ended.stops - ended.starts + 1
        behind = np.cumsum(lengths)  # end of each segment in the result
        n, last = behind[-1], behind - 1
        states = np.empty((n, self.states.shape[2]))
        rewards, discounts = np.empty(n), np.full(n, gamma)
        actions = np.empty((n, *self.actions.shape[2:]), dtype=self.actions.dtype)
        pairs = (self.states, states), (self.rewards, rewards), (self.actions, actions)
        for place, cells in _portions(ended.envs * (self.capacity + 1) + ended.starts, lengths):
            for record, result in pairs:
                result[place] = record.reshape(-1, *record.shape[2:]).take(cells, axis=0)
        states[last] = ended.final_states
        rewards[last], discounts[last], actions[last] = 0.0, 0.0, 0
        return Trajectories._trusted(  # all finite, and consistent by construction
            states=states,
            rewards=rewards,
            discounts=discounts,
            lengths=lengths,
            terminated=ended.terminated,
            actions=actions,
        )

    def drop(self, before: int) -> int:
        """Remove the times before `before` if that frees half the capacity; times then shift by the number returned.

        All segments that ended must have been extracted.
        """
        assert not self.segments, "extract the segments first"
        if 2 * before < self.capacity:
            return 0
        for array in (self.states, self.actions, self.rewards):
            array[:, : self.time + 1 - before] = array[:, before : self.time + 1]
        self.time -= before
        return before


def _items(array: NDArray[Any]) -> NDArray[Any]:
    """View of an array of shape (a, b, ...) as one of shape (a, b) with opaque items, which are copied faster."""
    flat = array.reshape(*array.shape[:2], math.prod(array.shape[2:]))
    return flat.view(np.dtype((np.void, flat.shape[2] * flat.itemsize)))[:, :, 0]


def _portions(firsts: IntArray, lengths: IntArray) -> Iterator[tuple[slice, IntArray]]:
    """Concatenate the ranges `first, ..., first + length - 1`, and yield the result in portions.

    Allocating index arrays for everything at once would take longer than the copying.
    """
    behind = np.cumsum(lengths)
    offsets = firsts - (behind - lengths)
    edges = np.searchsorted(behind, np.arange(PORTION, behind[-1], PORTION))
    for a, b in pairwise(np.unique([0, *edges, len(lengths)])):
        place = slice(behind[a] - lengths[a], behind[b - 1])
        yield place, np.repeat(offsets[a:b], lengths[a:b]) + np.arange(place.start, place.stop)
