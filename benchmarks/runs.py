"""Sampling runs of a system, many side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptd_rl import Trajectories

Array = NDArray[np.float64]
Start = Callable[[int, np.random.Generator], Array]
# states → (actions or None, states reached, rewards, whether the states reached are terminal)
Move = Callable[[Array, np.random.Generator], tuple[NDArray[Any] | None, Array, Array, NDArray[np.bool_]]]


@dataclass(frozen=True)
class Run:
    """One unbroken run."""

    states: Array  # [t + 1, d]
    rewards: Array  # [t]
    terminated: bool
    actions: NDArray[Any] | None = None  # [t]

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.rewards)

    def cut(self, n: int) -> Run:
        """The first n steps."""
        if n >= len(self):
            return self
        return Run(self.states[: n + 1], self.rewards[:n], False, None if self.actions is None else self.actions[:n])


def run_batch(start: Start, move: Move, n: int, n_steps: int, rng: np.random.Generator) -> list[Run]:
    """n runs side by side, of `n_steps`, or less if they terminate."""
    x = start(n, rng)
    states, actions, rewards = [x], [], []
    lengths, terminated = np.full(n, n_steps), np.zeros(n, dtype=bool)
    for t in range(n_steps):
        action, reached, reward, terminal = move(x, rng)
        x = np.where(terminated[:, None], x, reached)
        states.append(x)
        actions.append(action)
        rewards.append(reward)
        ends = terminal & ~terminated
        lengths[ends], terminated[ends] = t + 1, True
        if terminated.all():
            break
    S, R = np.stack(states, axis=1), np.stack(rewards, axis=1)  # [n, t + 1, d], [n, t]
    A = None if actions[0] is None else np.stack(actions, axis=1)
    return [
        Run(S[i, : k + 1], R[i, :k], bool(terminated[i]), None if A is None else A[i, :k])
        for i, k in enumerate(lengths)
    ]


def sample_runs(start: Start, move: Move, n_transitions: int, max_steps: int, rng: np.random.Generator) -> list[Run]:
    """Runs of `max_steps` at most until there are `n_transitions`; the last is cut off there."""
    runs: list[Run] = []
    left, length = n_transitions, float(max_steps)
    while left > 0:
        fresh = run_batch(start, move, int(np.ceil(left / length)), min(max_steps, left), rng)
        length = float(np.mean([len(run) for run in fresh]))
        for run in fresh:
            if left > 0:
                runs.append(run.cut(left))
                left -= len(runs[-1])
    return runs


def trajectories(runs: list[Run], gamma: float, observe: Callable[[Array], Array] = np.asarray) -> Trajectories:
    """The runs as a learner sees them."""
    episodes = []
    for run in runs:
        episode = dict(observations=observe(run.states), rewards=run.rewards, terminated=run.terminated)
        episodes.append(episode if run.actions is None else episode | dict(actions=run.actions))
    return Trajectories.from_episodes(episodes, gamma=gamma)
