"""How many environments are stepped together, and how they are made."""

from __future__ import annotations

import gymnasium as gym
import pytest
from gymnasium.vector import SyncVectorEnv

from gptd_rl.rollouts.making import MAX_ENVS, choose_n_envs, make_envs


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (dict(n_transitions=1, time_limit=500), 1),
        (dict(n_transitions=1999, time_limit=500), 1),
        (dict(n_transitions=2000, time_limit=500), 2),
        (dict(n_transitions=10**6, time_limit=500), MAX_ENVS),
        (dict(n_transitions=4000), 2),
        (dict(n_episodes=1), 1),
        (dict(n_episodes=3, time_limit=10), 3),
        (dict(n_episodes=100), MAX_ENVS),
    ],
)
def test_choose_n_envs(amount, expected):
    assert choose_n_envs(**amount) == expected


@pytest.mark.parametrize("env", ["CartPole-v1", gym.spec("CartPole-v1")], ids=["id", "spec"])
def test_make_envs_makes_one_or_several(env):
    one, several = make_envs(env, 1, render_mode=None), make_envs(env, 3)
    assert isinstance(one, gym.Env) and one.spec is not None and one.spec.id == "CartPole-v1"
    assert isinstance(several, SyncVectorEnv) and several.num_envs == 3
    one.close()
    several.close()
