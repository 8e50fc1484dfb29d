"""A million transitions, more than a matrix of all pairs could hold: shards on disk, and a sparse model of them.

A pendulum is pushed at random. The shards are written one after the other, and `fit` reads them when it needs them; on
a cluster it would take ``executor=client.get_executor()`` of a Dask client, and give the same result.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np

import gptd_rl
from gptd_rl.agents import policy_value


@dataclass
class Arguments:
    """What the example does."""

    n_transitions: int = 1_000_000
    n_shards: int = 8
    n_envs: int = 256
    subset_size: int = 300
    gamma: float = 0.95
    seed: int = 0


def main(args: Arguments) -> gptd_rl.GPTD:
    """Collect, fit, and compare with the truth."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        paths = [write_shard(args, shard, Path(folder)) for shard in range(args.n_shards)]
        print(f"{args.n_transitions:,} transitions in {len(paths)} files: {time.perf_counter() - began:.0f} s")

        began = time.perf_counter()
        v = gptd_rl.GPTD(subset_size=args.subset_size).fit(paths)
        print(f"fitted by the {v.method_} method: {time.perf_counter() - began:.0f} s, thinning {v.thinning_}")
    print(f"{0 if v.subset_ is None else len(v.subset_)} states stand for all others")

    truth = policy_value(None, gamma=args.gamma, shape=(200, 200))
    states = v.data_.states[::20]  # of the sample that the model keeps
    error = v.predict(states) - truth(states)
    lower, upper = v.confidence_interval(states)
    covered = (lower <= truth(states)) & (truth(states) <= upper)
    print(f"error {np.sqrt((error**2).mean()):.2f} where V spreads by {truth(states).std():.2f}", end="; ")
    print(f"{covered.mean():.0%} of the true values are in the 95 % interval")
    return v


def write_shard(args: Arguments, shard: int, folder: Path) -> Path:
    """Collect some of the transitions."""
    envs = gym.make_vec("gptd_rl/PendulumSwingUp-v0", num_envs=args.n_envs)
    n = args.n_transitions // args.n_shards
    data = gptd_rl.collect(envs, None, n_transitions=n, gamma=args.gamma, seed=args.seed + shard)
    return data.save(folder / f"shard-{shard}.npz")


if __name__ == "__main__":
    main(Arguments())
