"""Different seeds share no episodes, in data, checks and rollouts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import gptd_rl
from gptd_rl import seeds
from gptd_rl.evaluation.ground_truth import sample_start_states
from gptd_rl.rollouts.environments import open_adapter

N_ENVS, N_EPISODES = 8, 40


def starts(data: gptd_rl.Trajectories) -> list[tuple[float, ...]]:
    return [tuple(x) for x in data.states[data.starts].tolist()]


def vector_env(**options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(N_ENVS)], **options)


def stable_baselines() -> Any:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    return vec_env.DummyVecEnv([lambda: gym.make("CartPole-v1") for _ in range(N_ENVS)])


def collect(env: Any, seed: int) -> gptd_rl.Trajectories:
    return gptd_rl.collect(env, None, n_episodes=N_EPISODES, gamma=0.99, seed=seed)


@pytest.mark.parametrize("make", [vector_env, stable_baselines], ids=["gymnasium", "stable-baselines"])
def test_collect_with_different_seeds_shares_no_episodes(make):
    found = [start for seed in range(5) for start in starts(collect(make(), seed))]
    assert len(set(found)) == len(found) == 5 * N_EPISODES


def test_seeds_of_gymnasium_share_most_episodes():
    """What a seed + i for environment i does: this test would find it."""
    first = [
        {tuple(x) for seed in range(begin, begin + N_ENVS) for x in gym.make("CartPole-v1").reset(seed=seed)[:1]}
        for begin in range(2)
    ]
    assert len(first[0] & first[1]) == N_ENVS - 1


def test_data_and_check_share_no_episodes():
    found: list[Any] = []
    for seed in range(5):
        found += starts(collect(vector_env(), seed))
        check = seeds.derived_seed(seed, seeds.CHECK)
        sampled = sample_start_states(
            gym.make("CartPole-v1"), None, n_episodes=N_EPISODES, n_states=100_000, seed=check, deterministic=True
        )
        first = np.r_[True, np.diff(sampled.episodes) > 0]
        found += [tuple(x) for x in sampled.states[first].tolist()]
    assert len(set(found)) == len(found) == 10 * N_EPISODES


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_first_environment_gets_the_seed_itself(mode):
    alone = gym.make("CartPole-v1").reset(seed=7)[0]
    for env in (vector_env(autoreset_mode=mode), SyncVectorEnv([lambda: gym.make("CartPole-v1")], autoreset_mode=mode)):
        with open_adapter(env) as adapter:
            assert (adapter.reset(7)[0] == alone).all()


def test_environments_in_other_processes_get_the_same_seeds():
    env = AsyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(2)])
    try:
        with open_adapter(env) as there, open_adapter(vector_env()) as here:
            assert (there.reset(3) == here.reset(3)[:2]).all()
    finally:
        env.close()


def test_env_seeds_do_not_depend_on_their_number():
    few, many = seeds.env_seeds(5, 3), seeds.env_seeds(5, 100)
    assert few == many[:3] and few[0] == 5
    assert all(0 <= seed < 2**31 for seed in many)
    keys = [(key, i) for key in (seeds.CHECK, seeds.STATES, seeds.ROLLOUT) for i in range(100)]
    derived = [seeds.derived_seed(seed, *key) for seed in range(10) for key in keys]
    assert len(set(derived)) == len(derived)
