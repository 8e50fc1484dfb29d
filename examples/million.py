"""A million transitions, more than a matrix of all pairs could hold: shards on disk, and a sparse model of them.

A cart is pushed left and right at random until its pole falls. The shards are written one after the other, and `fit`
reads them when it needs them; on a cluster it would take ``executor=client.get_executor()`` of a Dask client, and give
the same result.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np

import gptd_rl
from gptd_rl.exceptions import RelevanceWarning


@dataclass
class Arguments:
    """What the example does."""

    n_transitions: int = 1_000_000
    n_shards: int = 8
    n_envs: int = 256
    subset_size: int = 100
    gamma: float = 0.95
    seed: int = 0


def main(args: Arguments) -> gptd_rl.GPTD:
    """Collect, fit, and compare with fresh episodes."""
    warnings.simplefilter("default", RelevanceWarning)  # worth reading, no reason to stop
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        paths = [collect(args, shard).save(Path(folder) / f"{shard}.npz") for shard in range(args.n_shards)]
        print(f"{args.n_transitions:,} transitions in {len(paths)} files: {time.perf_counter() - began:.0f} s")

        began = time.perf_counter()
        v = gptd_rl.GPTD(subset_size=args.subset_size).fit(paths)
        assert v.inducing_points_ is not None
        print(f"fitted by the {v.method_} method: {time.perf_counter() - began:.0f} s")
    print(f"{len(v.inducing_points_)} inducing points, thinning {v.thinning_}, relevances {v.relevances_.round(2)}")

    fresh = collect(args, args.n_shards)[:2000]  # episodes that the model has not seen
    starts = fresh.states[fresh.starts]
    rewards = [episode.rewards @ args.gamma ** np.arange(len(episode)) for episode in fresh]
    predicted, measured = v.predict(starts).mean(), np.mean(rewards)
    error = np.std(rewards) / np.sqrt(len(rewards))
    print(f"return from the start: predicted {predicted:.2f}, measured {measured:.2f} ± {error:.2f}")
    return v


def collect(args: Arguments, shard: int) -> gptd_rl.Trajectories:
    """Some of the transitions."""
    envs = gym.make_vec("CartPole-v1", num_envs=args.n_envs, vectorization_mode="vector_entry_point")
    n = args.n_transitions // args.n_shards
    return gptd_rl.collect(envs, None, n_transitions=n, gamma=args.gamma, seed=args.seed + shard)


if __name__ == "__main__":
    main(Arguments(n_transitions=40_000, n_shards=4) if "--small" in sys.argv else Arguments())
