"""An environment whose observations say which episode and step they belong to, for tests of Minari datasets."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.testing import assert_array_equal

from gptd_rl.data.trajectories import Trajectories

GAMMA = 0.9


class Counting(gym.Env):
    """Observation (episode, step) as a Dict; the action is repeated in the reward."""

    observation_space = spaces.Dict({"episode": spaces.Discrete(1000), "step": spaces.Box(0, 1e6, (1,), np.float64)})
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, lengths: tuple = (3, 1, 4), fails_at: tuple | None = None) -> None:
        self.lengths, self.fails_at = lengths, fails_at
        self.episode = -1

    def observe(self) -> dict:
        return {"episode": np.int64(self.episode), "step": np.array([float(self.steps)])}

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        if (self.episode, self.steps) == self.fails_at:
            raise RuntimeError("out of order")
        over = self.steps == self.lengths[self.episode % len(self.lengths)]
        even = self.episode % 2 == 0
        terminated, truncated = over and even, over and (not even or self.episode % 4 == 0)
        return self.observe(), float(action[0]), terminated, truncated, {}


def assert_same(one: Trajectories, other: Trajectories) -> None:
    for name in ("states", "rewards", "discounts", "lengths", "terminated", "actions"):
        a, b = getattr(one, name), getattr(other, name)
        assert_array_equal(a, b, err_msg=name)
        assert a.dtype == b.dtype, name
