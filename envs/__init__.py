"""Environments with known values, for `gymnasium.make`.

- `gptd_rl/PendulumSwingUp-v0`: the paper's pendulum, with five torques to choose from
- `gptd_rl/PendulumSwingUpContinuous-v0`: the same with continuous torques
- `gptd_rl/LatentGridworld-v0`: the paper's gridworld with irrelevant coordinates
- `gptd_rl/CartPoleSwingUp-v0`: PILCO's pole on a cart, with five forces to choose from

Importing `gptd_rl` registers them; `gymnasium.make("gptd_rl:gptd_rl/...")` imports it first.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from gptd_rl.envs import cartpole, gridworld, pendulum
from gptd_rl.envs.cartpole import CartPoleSwingUp, CartPoleSwingUpEnv, CartPoleSwingUpVectorEnv
from gptd_rl.envs.gridworld import LatentGridworld, LatentGridworldEnv, LatentGridworldVectorEnv
from gptd_rl.envs.pendulum import PendulumSwingUp, PendulumSwingUpEnv, PendulumSwingUpVectorEnv

__all__ = [
    "CartPoleSwingUp",
    "CartPoleSwingUpEnv",
    "CartPoleSwingUpVectorEnv",
    "LatentGridworld",
    "LatentGridworldEnv",
    "LatentGridworldVectorEnv",
    "PendulumSwingUp",
    "PendulumSwingUpEnv",
    "PendulumSwingUpVectorEnv",
    "register_environments",
]

_PENDULUM = dict(
    entry_point="gptd_rl.envs.pendulum:PendulumSwingUpEnv",
    vector_entry_point="gptd_rl.envs.pendulum:PendulumSwingUpVectorEnv",
    max_episode_steps=pendulum.MAX_EPISODE_STEPS,
)
_GRIDWORLD = dict(
    entry_point="gptd_rl.envs.gridworld:LatentGridworldEnv",
    vector_entry_point="gptd_rl.envs.gridworld:LatentGridworldVectorEnv",
    max_episode_steps=gridworld.MAX_EPISODE_STEPS,
)
_CARTPOLE = dict(
    entry_point="gptd_rl.envs.cartpole:CartPoleSwingUpEnv",
    vector_entry_point="gptd_rl.envs.cartpole:CartPoleSwingUpVectorEnv",
    max_episode_steps=cartpole.MAX_EPISODE_STEPS,
)
_SPECIFICATIONS: dict[str, dict[str, Any]] = {
    "gptd_rl/PendulumSwingUp-v0": _PENDULUM,
    "gptd_rl/PendulumSwingUpContinuous-v0": {**_PENDULUM, "kwargs": {"n_torques": None}},
    "gptd_rl/LatentGridworld-v0": _GRIDWORLD,
    "gptd_rl/CartPoleSwingUp-v0": _CARTPOLE,
}


def register_environments() -> None:
    """Register the environments with Gymnasium, unless they are registered already."""
    for env_id, specification in _SPECIFICATIONS.items():
        if env_id not in gym.registry:
            gym.register(id=env_id, **specification)
