"""What an agent has seen: transitions, in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.rollouts.environments import Step
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class Transitions:
    """Transitions (x, a, r, x'), whatever policy made them.

    Attributes
    ----------
    states : ndarray of shape (n, n_dims)
        x.
    actions : ndarray of shape (n,)
        Number of the action taken.
    rewards : ndarray of shape (n,)
    reached : ndarray of shape (n, n_dims)
        x', the true one also where an episode ended.
    terminated : ndarray of shape (n,)
        Whether x' is terminal.
    ended : ndarray of shape (n,)
        Whether the episode ended, terminated or truncated.
    runs : ndarray of shape (n,)
        Which unbroken run it came from: transitions of one run follow each other unless an episode ended.
    """

    states: Array
    actions: NDArray[np.int64]
    rewards: Array
    reached: Array
    terminated: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    runs: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.rewards)

    @classmethod
    def empty(cls, n_dims: int) -> Self:
        """No transitions."""
        rows, numbers, flags = np.zeros((0, n_dims)), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
        return cls(rows, numbers, np.zeros(0), rows, flags, flags, numbers)

    @classmethod
    def of(cls, data: Trajectories, actions: NDArray[np.int64], run: int = 0) -> Self:
        """Every transition of `data`; `actions` are the numbers of its actions, of shape (n_states,)."""
        left = np.ones(len(data), dtype=bool)
        left[data.last] = False
        index = np.flatnonzero(left)
        ended = np.isin(index + 1, data.last)
        terminated = np.isin(index + 1, data.last[data.terminated])
        return cls(
            data.states[index],
            actions[index],
            data.rewards[index],
            data.states[index + 1],
            terminated,
            ended,
            np.full(len(index), run, dtype=np.int64),
        )

    @classmethod
    def of_step(cls, states: Array, actions: NDArray[np.int64], step: Step, first_run: int) -> Self:
        """What a step from `states` brought in each environment; they are the runs from `first_run` on."""
        ended = step.terminated | step.truncated
        reached = np.array(step.states, dtype=np.float64)
        if step.final_states is not None:
            reached[ended] = step.final_states
        rewards = np.array(step.rewards, dtype=np.float64)
        return cls(states, actions, rewards, reached, step.terminated, ended, first_run + np.arange(len(rewards)))

    def __getitem__(self, rows: NDArray[np.bool_]) -> Self:
        """Some of them, by a mask."""
        return type(self)(*(getattr(self, f.name)[rows] for f in fields(self)))

    def trajectories(self, gamma: float, actions: NDArray[Any]) -> Trajectories:
        """The same as segments, with the discount γ; `actions[i]` is what action number i stands for."""
        order = np.argsort(self.runs, kind="stable")
        runs, ended = self.runs[order], self.ended[order]
        cuts = np.flatnonzero(ended | (np.diff(runs, append=-1) != 0)) + 1
        episodes = []
        for rows in np.split(order, cuts[:-1]):
            last = rows[-1]
            episodes.append(
                dict(
                    observations=np.vstack([self.states[rows], self.reached[last]]),
                    actions=actions[self.actions[rows]],
                    rewards=self.rewards[rows],
                    terminated=bool(self.terminated[last]),
                )
            )
        return Trajectories.from_episodes(episodes, gamma)


class Memory:
    """Transitions that grow by a step of all environments at a time."""

    def __init__(self, transitions: Transitions) -> None:
        self._settled = transitions
        self._fresh: list[Transitions] = []

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self._settled) + sum(len(part) for part in self._fresh)

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return int(self._settled.states.shape[1])

    def add(self, part: Transitions) -> None:
        """Append."""
        self._fresh.append(part)

    @property
    def transitions(self) -> Transitions:
        """All of them."""
        if self._fresh:
            parts = [self._settled, *self._fresh]
            arrays = (np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Transitions))
            self._settled, self._fresh = Transitions(*arrays), []
        return self._settled
