"""What collecting costs over stepping a batched environment bare, with the same policy.

    python benchmarks/collect.py [--repeats 20]

Both sides make the same number of transitions and call the same policy; the bare loop keeps nothing. CPU time of
repeats that alternate between the two: the minimum of each, and the median of the overheads of neighbours, which a busy
machine disturbs less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import gptd_rl  # noqa: F401  (registers the environments)
from gptd_rl.rollouts.collect import collect

IDS = ("gptd_rl/PendulumSwingUp-v0", "gptd_rl/LatentGridworld-v0", "CartPole-v1")
STEPS = 2000  # batched steps of the bare loop


class Policy:
    """Goes by the sign of the first state variable."""

    batched = True

    def __call__(self, observations: Any) -> Any:
        return (observations[:, 0] > 0).astype(np.int64)


def step_bare(env: gym.vector.VectorEnv, policy: Policy) -> None:
    observations = env.reset(seed=0)[0]
    for _ in range(STEPS):
        observations = env.step(policy(observations))[0]


def count_transitions(env: gym.vector.VectorEnv, policy: Policy) -> int:
    """Transitions of the bare loop; the step after an end is none, as these environments restart in it."""
    observations, n_ends = env.reset(seed=0)[0], 0
    for _ in range(STEPS):
        observations, _, terminated, truncated, _ = env.step(policy(observations))
        n_ends += int((terminated | truncated).sum())
    return STEPS * env.num_envs - n_ends


def cpu_time(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    policy = Policy()
    print(f"{'environment':28}{'envs':>6}{'bare µs/step':>14}{'collect':>9}{'overhead':>10}{'median':>8}")
    for env_id in IDS:
        for n_envs in (16, 64, 256):
            env = gym.make_vec(env_id, num_envs=n_envs, vectorization_mode="vector_entry_point")
            bare = partial(step_bare, env, policy)
            amount = count_transitions(env, policy)
            collected = partial(collect, env, policy, n_transitions=amount, gamma=0.99, seed=0)
            pairs = np.array([(cpu_time(bare), cpu_time(collected)) for _ in range(repeats)])  # [repeats, 2]
            least = pairs.min(axis=0) / STEPS * 1e6
            median = np.median(pairs[:, 1] / pairs[:, 0]) - 1
            print(f"{env_id:28}{n_envs:6}{least[0]:14.1f}{least[1]:9.1f}{least[1] / least[0] - 1:10.0%}{median:8.0%}")


if __name__ == "__main__":
    main()
