"""Evaluate policies of any kind: a rule of one line, and a controller with a ``predict`` method.

A function from an observation to an action is a policy. So is any object with a method
``predict(observations, deterministic=…)`` that returns the actions for a batch and a hidden state, or None: a few lines
around the agents of any library.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gptd_rl


@dataclass
class Arguments:
    """Arguments of the example."""

    n_transitions: int = 2_000
    seed: int = 0
    out: Path = Path("any_policy")


def push_the_way_it_moves(observation: np.ndarray) -> int:
    """A rule for MountainCar, which rocks the car out of its valley: 2 pushes right, 0 left."""
    return 2 if observation[1] >= 0 else 0


class LinearController:
    """A controller for CartPole, as of another library, with the one method that is needed."""

    def __init__(self, gains: list[float]) -> None:
        self.gains = np.array(gains)

    def control(self, states: np.ndarray) -> np.ndarray:
        """The desired force, of shape (n,)."""
        return states @ self.gains

    def predict(self, observations: np.ndarray, deterministic: bool = True) -> tuple[np.ndarray, Any]:
        """Push right or left; there is no hidden state."""
        return (self.control(observations) > 0).astype(np.int64), None


def main(args: Arguments) -> None:
    """Evaluate both; the second gets a page, too."""
    n, seed = args.n_transitions, args.seed
    rule = gptd_rl.evaluate_agent(push_the_way_it_moves, "MountainCar-v0", n_transitions=n, seed=seed)
    print(rule.summary())

    controller = LinearController(gains=[0.0, 0.0, 0.3, 1.0])  # it ignores the position of the cart
    found = gptd_rl.evaluate_agent(controller, "CartPole-v1", n_transitions=n, seed=seed)
    print(found.summary())
    print(f"page: {found.write(args.out)}")


if __name__ == "__main__":
    main(Arguments(n_transitions=250) if "--small" in sys.argv else Arguments())
