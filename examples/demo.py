"""From a gridworld to a value function with error bars, and a statement of what matters: what ``make demo`` runs.

The paper's gridworld is 11 × 11. The policy walks to the middle column; each step costs 1; y moves at random and does
not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np

import gptd_rl
from gptd_rl.agents.gridworld import TowardsMiddle
from gptd_rl.plotting import plot_relevances, plot_section, plot_value

mpl.use("Agg")


@dataclass
class Arguments:
    """What the demo does."""

    n_transitions: int = 500
    gamma: float = 0.99
    seed: int = 0
    picture: str = "demo.png"


def main(args: Arguments) -> gptd_rl.GPTD:
    """Collect, fit, print and draw."""
    from matplotlib import pyplot as plt

    data = gptd_rl.collect(
        "gptd_rl/LatentGridworld-v0",
        TowardsMiddle(),
        n_transitions=args.n_transitions,
        gamma=args.gamma,
        seed=args.seed,
    )
    print(data)
    v = gptd_rl.GPTD(kernel="ard").fit(data)
    print(f"relevances: x {v.relevances_[0]:.3g}, y {v.relevances_[1]:.1g}")
    print(f"evidence {v.log_marginal_likelihood_:.1f}, complexity {v.complexity_:.1f}, data fit {v.data_fit_:.1f}")
    print(v.prune().pruning_)
    start = np.array([[1.0, 6.0]])
    lower, upper = v.confidence_interval(start)
    truth = TowardsMiddle().value(start, args.gamma)[0]
    print(f"V at (1, 6): {v.predict(start)[0]:.3f}, 95 % interval [{lower[0]:.3f}, {upper[0]:.3f}]; true {truth:.3f}")

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    plot_value(v, ax=axes[0]).set(title="value function and visited states", xlabel="x", ylabel="y")
    plot_section(v, ax=axes[1]).set(title="along x, with 95 % interval", xlabel="x")
    plot_relevances(v, ["x", "y"], ax=axes[2]).set(title="what matters")
    figure.savefig(args.picture, dpi=120)
    print(f"picture: {args.picture}")
    return v


if __name__ == "__main__":
    main(Arguments())
