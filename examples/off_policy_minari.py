"""What is a policy worth that never ran? Its value, from a Minari dataset that another policy made.

The dataset is of somebody who walks through the paper's gridworld at random. `GPTDQ` learns from it what somebody would
earn who goes straight to the middle column: Q of the actions that were taken, with the target's action at every next
state, by instruments, which are right in stochastic systems, too. In the end the target walks, to see whether that was
right.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass

import numpy as np

import gptd_rl
from gptd_rl.agents import TowardsMiddle


@dataclass
class Arguments:
    """What the example does."""

    env: str = "gptd_rl/LatentGridworld-v0"
    dataset_id: str = "gridworld/random-v0"
    n_transitions: int = 2_000
    n_fresh: int = 20
    gamma: float = 0.99
    seed: int = 0


def main(args: Arguments) -> gptd_rl.GPTDQ:
    """Record, learn off-policy, and compare with what the target really earns."""
    target = TowardsMiddle()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder  # without this line the dataset stays
        dataset = gptd_rl.collect_to_minari(
            args.env,
            None,
            dataset_id=args.dataset_id,
            n_transitions=args.n_transitions,
            gamma=args.gamma,
            seed=args.seed,
        )
        data = gptd_rl.Trajectories.from_minari(dataset)
    assert data.actions is not None
    print(f"{args.dataset_id}: {data}")
    print(
        f"the target would have done the same in {np.mean(target.predict(data.states)[0] == data.actions):.0%} of them"
    )

    q = gptd_rl.GPTDQ().fit(data, policy=target)

    fresh = gptd_rl.collect(args.env, target, n_episodes=args.n_fresh, gamma=args.gamma, seed=args.seed + 1_000)
    starts, measured = fresh.states[fresh.starts], returns(fresh, args.gamma)
    actions = target.predict(starts)[0]
    predicted, (lower, upper) = q.predict(starts, actions), q.confidence_interval(starts, actions)
    print(f"mean discounted return of the random walk: {returns(data[data.terminated], args.gamma).mean():.3f}")
    print(f"of the target, from these data alone:       {predicted.mean():.3f}")
    print(f"of the target, in {args.n_fresh} fresh episodes:        {measured.mean():.3f}")
    held = np.mean((lower <= measured) & (measured <= upper))
    print(f"largest error of a prediction: {np.abs(predicted - measured).max():.3f}; {held:.0%} in the 95 % interval")
    print(f"relevances: x {q.relevances_[0]:.3g}, y {q.relevances_[1]:.1g}")
    return q


def returns(data: gptd_rl.Trajectories, gamma: float) -> np.ndarray:
    """Discounted returns from the start of each episode."""
    return np.array([episode.rewards @ gamma ** np.arange(len(episode)) for episode in data])


if __name__ == "__main__":
    main(Arguments())
