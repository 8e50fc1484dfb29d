"""Learn how MountainCar moves from 600 random steps and one episode, then drive in the model.

A dynamics model is useful by itself: it predicts with error bars, tells how wrong it was on other data, and runs any
policy from any state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

import gptd_rl
from gptd_rl import DynamicsModel


@dataclass
class Arguments:
    """What the example does."""

    env: str = "MountainCar-v0"
    n_transitions: int = 600
    n_episodes: int = 20
    seed: int = 0


def pump(state: Any) -> int:
    """Push the way the car is moving: 0 is left, 2 is right."""
    return 2 if state[1] >= 0 else 0


def main(args: Arguments) -> float:
    """Fit, check, simulate, and compare with the environment; returns the largest difference of returns."""
    env = gym.make(args.env)
    box = env.observation_space
    assert isinstance(box, gym.spaces.Box)
    random = gptd_rl.collect(env, None, n_transitions=args.n_transitions, gamma=0.99, seed=args.seed)
    driven = gptd_rl.collect(env, pump, n_episodes=args.n_episodes, gamma=0.99, seed=args.seed)
    model = DynamicsModel(bounds=(box.low, box.high)).fit(random + driven[:1])
    print(model)

    outcome = model.predict([[-0.5, 0.02]], [2], return_std=True)
    assert outcome.next_state_std is not None
    (position, velocity), std = outcome.next_states[0], outcome.next_state_std[0]
    print(f"from (-0.5, 0.02), pushing right: ({position:.4f} ± {std[0]:.1g}, {velocity:.4f} ± {std[1]:.1g})")
    errors = model.errors(driven)
    print(f"one-step errors on {driven.n_transitions} other steps: {errors.median.max():.0e} standard deviations")

    simulated = model.simulate(pump, driven.states[driven.starts], n_steps=200)
    returns = [np.bincount(data.segment_of, weights=data.rewards) for data in (simulated, driven)]
    print(f"mean return in the model {returns[0].mean():.1f}, in the environment {returns[1].mean():.1f}")
    return float(np.abs(returns[0] - returns[1]).max())


if __name__ == "__main__":
    main(Arguments())
