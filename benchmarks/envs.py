"""Steps per second of the batched environments, beside SyncVectorEnv on as many single ones.

    python benchmarks/envs.py [--num-envs 64] [--repeats 5]

Both take the same random actions, in turns, for about the same time; the fastest repeat of each
counts. Time limits and restarts are included.
"""

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time

import gymnasium as gym

import gptd_rl.envs

IDS = ["gptd_rl/PendulumSwingUp-v0", "gptd_rl/PendulumSwingUpContinuous-v0", "gptd_rl/LatentGridworld-v0"]
SECONDS = 0.5  # per repeat


def seconds_per_step(envs, n_steps):
    actions = envs.action_space.sample()
    start = time.perf_counter()
    for _ in range(n_steps):
        envs.step(actions)
    return (time.perf_counter() - start) / n_steps


def measure(env_id, num_envs, repeats):
    """Environment steps per second of SyncVectorEnv and of the batched environment."""
    both = [gym.make_vec(env_id, num_envs=num_envs, vectorization_mode=mode) for mode in ("sync", "vector_entry_point")]
    n_steps = []
    for envs in both:
        envs.reset(seed=0)
        envs.action_space.seed(0)
        n_steps.append(max(1, round(SECONDS / seconds_per_step(envs, 20))))
    times = [[seconds_per_step(e, n) for e, n in zip(both, n_steps, strict=True)] for _ in range(repeats)]
    return [num_envs / min(column) for column in zip(*times, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    gptd_rl.envs.register_environments()
    print(f"steps/s, {arguments.num_envs} environments")
    print(f"{'':38}{'SyncVectorEnv':>15}{'batched':>15}{'ratio':>8}")
    for env_id in IDS:
        sync, batched = measure(env_id, arguments.num_envs, arguments.repeats)
        print(f"{env_id:38}{sync:15,.0f}{batched:15,.0f}{batched / sync:8.0f}")


if __name__ == "__main__":
    main()
