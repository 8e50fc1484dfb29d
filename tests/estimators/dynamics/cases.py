"""Systems that are known, for the tests of the dynamics model."""

from __future__ import annotations

from typing import Any

import numpy as np

from gptd_rl import DynamicsModel, Trajectories
from tests.systems import System, bent, straight

BENT = System(bent)
NOISY = System(bent, noise=(0.03, 0.1), reward=lambda x, a: x[:, 0] + a)
GOAL = System(straight, ends=lambda x: x[:, 0] > 0.6, reward=lambda x, a: -np.ones(len(x)), end_reward=-3.0)
PIT = System(straight, ends=lambda x: np.abs(x[:, 1]) > 0.7, reward=lambda x, a: np.ones(len(x)), end_reward=-5.0)


def parts(data: Trajectories) -> tuple[Any, ...]:
    """States, actions, next states, rewards and ends of single transitions."""
    assert data.actions is not None
    return data.states[::2], data.actions[::2], data.states[1::2], data.rewards[::2], data.terminated


def hits_wall(n: int, seed: int, low: float = -1.0):
    """A point mass (y, x, v): x stops at −1, and v is 0 then; y drifts along the wall."""
    rng = np.random.default_rng(seed)
    x, a = rng.uniform([-1.0, low, -0.5], [1.0, 1.0, 0.5], size=(n, 3)), rng.integers(2, size=n)
    reached = np.column_stack([0.9 * x[:, 0], x[:, 1] + 0.4 * x[:, 2], x[:, 2] + 0.1 * a - 0.05])
    stopped = reached[:, 1] < -1.0
    reached[stopped, 1:] = [-1.0, 0.0]
    return x, a, reached, stopped


BOUNDS = ([-5.0, -1.0, -5.0], [5.0, 5.0, 5.0])


def answers(model: DynamicsModel) -> list[np.ndarray]:
    x = np.random.default_rng(9).uniform(-1.0, 1.0, size=(40, model.n_dims_))
    a = np.arange(40) % model.n_actions_
    out = model.predict(x, a, return_std=True)
    assert out.next_state_std is not None and out.reward_std is not None
    simulated = model.simulate(None, x[:5], 6, seed=3)
    return [out.next_states, out.rewards, out.terminated, out.next_state_std, out.reward_std, simulated.states]
