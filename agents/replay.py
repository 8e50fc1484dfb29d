"""The replay buffer: every transition of an agent, in the order in which it came."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.rollouts.environments import Step
from gptd_rl.types import Array, BoolArray, IntArray

MIN_CAPACITY = 256


@dataclass(frozen=True, eq=False)
class Experience:
    """Transitions (x, a, r, x') of any policy.

    Attributes
    ----------
    states : ndarray of shape (n, n_dims)
        x.
    actions : ndarray of shape (n,)
        Index of the action.
    rewards : ndarray of shape (n,)
    next_states : ndarray of shape (n, n_dims)
        x', the last state of the episode where it ended.
    terminated : ndarray of shape (n,)
        Whether x' is terminal.
    done : ndarray of shape (n,)
        Whether the episode ended, terminated or truncated.
    streams : ndarray of shape (n,)
        Transitions of one stream follow each other unless an episode ended.
    """

    states: Array
    actions: IntArray
    rewards: Array
    next_states: Array
    terminated: BoolArray
    done: BoolArray
    streams: IntArray

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.rewards)

    @classmethod
    def from_trajectories(cls, data: Trajectories, actions: IntArray, stream: int = 0) -> Self:
        """Every transition of `data`; `actions` are the indices of its actions, of shape (n_states,)."""
        index = np.flatnonzero(data.has_transition)
        return cls(
            states=data.states[index],
            actions=actions[index],
            rewards=data.rewards[index],
            next_states=data.states[index + 1],
            terminated=np.isin(index + 1, data.last[data.terminated]),
            done=np.isin(index + 1, data.last),
            streams=np.full(len(index), stream, dtype=np.int64),
        )

    @classmethod
    def from_step(cls, states: Array, actions: IntArray, step: Step, first_stream: int) -> Self:
        """The transition of each environment in a step from `states`; their streams count from `first_stream`."""
        done = step.terminated | step.truncated
        next_states = np.array(step.states, dtype=np.float64)
        if step.final_states is not None:
            next_states[done] = step.final_states
        rewards = np.array(step.rewards, dtype=np.float64)
        return cls(states, actions, rewards, next_states, step.terminated, done, first_stream + np.arange(len(rewards)))

    def __getitem__(self, rows: BoolArray | slice) -> Self:
        """Some of the transitions."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))

    @property
    def starts(self) -> Array:
        """First states of episodes, of shape (k, n_dims)."""
        order = np.argsort(self.streams, kind="stable")
        new_stream = np.diff(self.streams[order], prepend=-1) != 0
        after_end = np.concatenate([[True], self.done[order][:-1]])
        return self.states[order[new_stream | after_end]]

    @property
    def is_uniform(self) -> bool:
        """Whether every policy looks the same: one reward, which is 0 or was never ended by a terminal state."""
        return bool(np.ptp(self.rewards) == 0.0 and (self.rewards[0] == 0.0 or not self.terminated.any()))

    def trajectories(self, gamma: float, actions: NDArray[Any]) -> Trajectories:
        """The same as segments, stream by stream, with the discount γ; `actions[i]` is the action of index i."""
        order = np.argsort(self.streams, kind="stable")
        last = self.done[order] | (np.diff(self.streams[order], append=-1) != 0)
        # Each segment takes one more place than it has transitions, for its last state.
        place = np.arange(len(order)) + np.cumsum(last) - last
        n = len(order) + int(last.sum())
        states = np.empty((n, self.states.shape[1]))
        states[place], states[place[last] + 1] = self.states[order], self.next_states[order[last]]
        rewards, discounts, taken = np.zeros(n), np.zeros(n), np.zeros((n, *actions.shape[1:]), actions.dtype)
        rewards[place], discounts[place], taken[place] = self.rewards[order], gamma, actions[self.actions[order]]
        lengths = np.diff(place[last] + 2, prepend=0)
        return Trajectories(states, rewards, discounts, lengths, self.terminated[order[last]], taken)


class ReplayBuffer:
    """Transitions in arrays that double in size when they are full."""

    def __init__(self, experience: Experience) -> None:
        self._arrays, self._size = experience, len(experience)

    @classmethod
    def empty(cls, n_dims: int) -> Self:
        """No transitions of states of this width."""
        rows, index, flags = np.zeros((0, n_dims)), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
        return cls(Experience(rows, index, np.zeros(0), rows, flags, flags, index))

    def __len__(self) -> int:
        """Number of transitions."""
        return self._size

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return int(self._arrays.states.shape[1])

    def add(self, new: Experience) -> None:
        """Append transitions."""
        end = self._size + len(new)
        if end > len(self._arrays):
            self._grow(max(MIN_CAPACITY, 2 * end))
        for f in fields(Experience):
            getattr(self._arrays, f.name)[self._size : end] = getattr(new, f.name)
        self._size = end

    @property
    def experience(self) -> Experience:
        """All transitions; views, valid until the next `add`."""
        return self._arrays[: self._size]

    def _grow(self, capacity: int) -> None:
        arrays = []
        for f in fields(Experience):
            old = getattr(self._arrays, f.name)
            arrays.append(np.empty((capacity, *old.shape[1:]), old.dtype))
            arrays[-1][: self._size] = old[: self._size]
        self._arrays = Experience(*arrays)
