"""Do the observations tell all that matters? CartPole with its velocities, without them, and with two frames stacked.

Whoever evaluates or trains an agent on observations that hide something fits a value function that does not exist. The
test needs transitions only, no model, and says which input betrays what is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import numpy as np

import gptd_rl
from gptd_rl import Trajectories


@dataclass
class Arguments:
    """Arguments of the example."""

    n_transitions: int = 1_500
    gamma: float = 0.97
    errors: float = 0.25  # share of steps in which the policy pushes the wrong way
    seed: int = 0


def main(args: Arguments) -> None:
    """Collect once; look at the same transitions in three ways."""
    rng = np.random.default_rng(args.seed)

    def policy(observation: np.ndarray) -> int:
        right = observation @ [0.05, 0.1, 1.0, 0.5] > 0
        return int(right ^ (rng.random() < args.errors))

    env = gym.make("CartPole-v1")
    data = gptd_rl.collect(env, policy, n_transitions=args.n_transitions, gamma=args.gamma, seed=args.seed)
    print(f"place, speed, angle, spin: {gptd_rl.markov_test(data)}\n")

    blind = data.take_inputs([0, 2])
    test = gptd_rl.markov_test(blind)
    print(f"place and angle: {test.summary(['place', 'angle'])}\n")

    print(f"place and angle, two frames: {gptd_rl.markov_test(stack_two_frames(blind))}")


def stack_two_frames(data: Trajectories) -> Trajectories:
    """Each observation beside the one before; episodes start when there are two."""
    long = data[data.lengths > 2]
    episodes = [
        dict(
            observations=np.hstack([segment.states[1:], segment.states[:-1]]),
            rewards=segment.rewards[1:-1],
            discounts=segment.discounts[1:-1],
            terminated=bool(segment.terminated[0]),
        )
        for segment in long
    ]
    return Trajectories.from_episodes(episodes)


if __name__ == "__main__":
    main(Arguments())
