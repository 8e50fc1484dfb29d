"""Two environments of the benchmark of evaluations: actions of several parts, and Blackjack as a vector."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from control_systems import SYSTEMS
from gymnasium import spaces
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class TwoTanksEnv(gym.Env[Observation, NDArray[np.int64]]):
    """Two tanks, with a pump and a valve of three positions each; see `control_systems.TwoTanks`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 2.0, (3,), np.float32)
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.state = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform([0.0, 0.0, 0.2], [0.6, 0.6, 0.6])
        return self.state.astype(np.float32), {}

    def step(self, action: NDArray[np.int64]) -> tuple[Observation, float, bool, bool, dict]:
        states, rewards, terminal = SYSTEMS["gptd_benchmarks/TwoTanks-v0"].step(self.state[None], np.array([action]))
        self.state = states[0]
        return self.state.astype(np.float32), float(rewards[0]), bool(terminal[0]), False, {}


def blackjack() -> gym.Env[Any, Any]:
    """Gymnasium's Blackjack-v1, whose tuples Stable-Baselines3 does not take, as (sum, dealer's card, usable ace)."""
    space = spaces.Box(np.zeros(3, np.float32), np.array([31.0, 10.0, 1.0], np.float32))
    return gym.wrappers.TransformObservation(gym.make("Blackjack-v1"), lambda x: np.array(x, np.float32), space)


gym.register("gptd_benchmarks/TwoTanks-v0", entry_point=TwoTanksEnv, max_episode_steps=200)
gym.register("gptd_benchmarks/Blackjack-v0", entry_point=blackjack)
