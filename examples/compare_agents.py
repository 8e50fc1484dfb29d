"""Compare two policies: which is better, by how much, in which states, and what each relies on.

Both start in the same states. So little of the difference is chance, and its interval is narrow. The page shows the
states where each is better.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gptd_rl


@dataclass
class Arguments:
    """Arguments of the example."""

    n_transitions: int = 3_000  # of each policy
    n_starts: int = 100
    n_states: int = 80
    seed: int = 0
    out: Path = Path("comparison")


def by_angle(observation: np.ndarray) -> int:
    """A rule for CartPole: push to the side to which the pole leans."""
    return int(observation[2] > 0)


def by_angle_and_speed(observation: np.ndarray) -> int:
    """The same, and look ahead a little."""
    return int(observation[2] + 0.01 * observation[3] > 0)


def main(args: Arguments) -> None:
    """Compare, print, and write the page."""
    found = gptd_rl.compare_agents(
        {"angle": by_angle, "angle and speed": by_angle_and_speed},
        "CartPole-v1",
        n_transitions=args.n_transitions,
        n_starts=args.n_starts,
        n_states=args.n_states,
        seed=args.seed,
    )
    print(found.summary())
    print(f"page: {found.write(args.out)}")


if __name__ == "__main__":
    main(Arguments(n_transitions=250, n_starts=20, n_states=12) if "--small" in sys.argv else Arguments())
