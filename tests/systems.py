"""Small systems with numbered actions whose dynamics are known, as `Trajectories` of single transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gptd_rl import Trajectories
from gptd_rl.types import Array, BoolArray, IntArray

Dynamics = Callable[[Array, IntArray], Array]  # states [n, D], actions [n] → next states [n, D]


def transitions(
    states: Array, actions: Any, next_states: Array, rewards: Any, terminated: Any = False, gamma: float = 0.9
) -> Trajectories:
    """Each transition as an episode of its own."""
    n = len(states)
    x = np.stack([states, next_states], axis=1).reshape(2 * n, -1)
    a, r, g = (
        np.stack([np.broadcast_to(v, n), np.zeros(n, dtype=np.asarray(v).dtype)], axis=1).ravel()
        for v in (actions, np.asarray(rewards, dtype=float), gamma)
    )
    return Trajectories(x, r, g, np.full(n, 2), np.broadcast_to(terminated, n), a)


@dataclass(frozen=True)
class System:
    """x' = f(x, a) + noise, a reward that depends on x, and terminal states."""

    step: Dynamics
    low: tuple[float, ...] = (-1.0, -1.0)
    high: tuple[float, ...] = (1.0, 1.0)
    noise: tuple[float, ...] = (0.0, 0.0)
    n_actions: int = 2
    reward: Callable[[Array, IntArray], Array] = lambda x, a: np.cos(x[:, 0])
    ends: Callable[[Array], BoolArray] = lambda x: np.zeros(len(x), dtype=bool)
    end_reward: float = 0.0

    def sample(self, n: int, seed: int) -> Trajectories:
        rng = np.random.default_rng(seed)
        x, a = rng.uniform(self.low, self.high, size=(n, len(self.low))), rng.integers(self.n_actions, size=n)
        reached = self.step(x, a) + rng.normal(size=x.shape) * self.noise
        ended = self.ends(reached)
        return transitions(x, a, reached, np.where(ended, self.end_reward, self.reward(x, a)), ended)


def bent(x: Array, a: IntArray) -> Array:
    """A particle in a curved valley that is pushed."""
    push = 0.2 * (a - 0.5)
    return np.column_stack([x[:, 0] + 0.1 * x[:, 1], x[:, 1] - 0.1 * np.sin(3.0 * x[:, 0]) + push])


def straight(x: Array, a: IntArray) -> Array:
    return np.column_stack([x[:, 0] + 0.1 * x[:, 1], 0.9 * x[:, 1] + 0.2 * a])


# -------------------------------------------------------------------------------------- a corridor, solved by hand

N_CELLS, GAMMA = 7, 0.8  # cells 0 … 6; 6 is terminal


def corridor(n_copies: int = 3) -> Trajectories:
    """Actions left, stay and right; a step costs 1, cell 0 is a wall, cell 6 ends it."""
    x, a = (np.tile(i.ravel(), n_copies) for i in np.indices((N_CELLS - 1, 3)))
    reached = np.maximum(x + a - 1, 0)
    return transitions(x[:, None] * 1.0, a, reached[:, None] * 1.0, -1.0, reached == N_CELLS - 1, GAMMA)


def corridor_q(softness: float = 0.0) -> Array:
    """Value iteration, cell by cell, with V = (1−ε) max Q + ε mean Q; of shape (6, 3)."""
    Q = np.zeros((N_CELLS, 3))
    for _ in range(500):
        V = [0.0 if x == N_CELLS - 1 else (1 - softness) * Q[x].max() + softness * Q[x].mean() for x in range(N_CELLS)]
        for x in range(N_CELLS - 1):
            for a in range(3):
                Q[x, a] = -1.0 + GAMMA * V[max(x + a - 1, 0)]
    return Q[:-1]


def cells() -> Array:
    return np.arange(N_CELLS - 1.0)[:, None]
