"""Which state variables matter? One of twenty-one, and the evidence of the data says which.

The paper's gridworld: the policy walks to the middle column, each step costs 1. Only x matters; y and the other
coordinates move at random. GPTD fits a lengthscale to each, finds that one is needed, and leaves the others out. It
writes relevances.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np

import gptd_rl
from gptd_rl.agents import TowardsMiddle
from gptd_rl.envs import LatentGridworld
from gptd_rl.report.plots import plot_relevances, plot_section, plot_value


@dataclass
class Arguments:
    """What the example does."""

    n_irrelevant: int = 20
    n_transitions: int = 500
    gamma: float = 0.99
    seed: int = 0
    picture: Path = Path("relevances.png")


def main(args: Arguments) -> None:
    """First the paper's gridworld, for the picture, then one with many more coordinates."""
    policy, v = fitted(args, 1)
    print(f"two inputs: relevance of x {v.relevances_[0]:.3g}, of y {v.relevances_[1]:.1g}")
    pruned = v.prune()
    print(pruned.pruning_)
    start = np.array([[1.0, 6.0]])
    lower, upper = pruned.confidence_interval(start)
    truth = policy.value(start, args.gamma)[0]
    print(f"V at (1, 6): {pruned.predict(start)[0]:.3f}, 95 % from {lower[0]:.3f} to {upper[0]:.3f}; true {truth:.3f}")

    policy, many = fitted(args, args.n_irrelevant)
    strongest = many.relevances_[1:].max()
    print(f"\n{many.n_dims_} inputs: relevance of x {many.relevances_[0]:.3g}, of the others {strongest:.1g} at most")
    few, alike = many.prune(), gptd_rl.GPTD(kernel="isotropic").fit(many.data_)
    print(f"inputs kept: {few.inputs_.tolist()}")
    states = np.random.default_rng(1).integers(1, 12, (1000, many.n_dims_)).astype(float)
    for name, model in (("all inputs", many), ("only those", few), ("all alike", alike)):
        error = np.sqrt(np.mean((model.predict(states) - policy.value(states, args.gamma)) ** 2))
        print(f"  RMSE of V at new states, {name}: {error:.2g}")
    draw(v, many, args.picture)


def fitted(args: Arguments, n_irrelevant: int) -> tuple[TowardsMiddle, gptd_rl.GPTD]:
    """The policy, and its value function with a lengthscale for each input."""
    env = gym.make("gptd_rl/LatentGridworld-v0", n_irrelevant=n_irrelevant)
    policy = TowardsMiddle(LatentGridworld(n_irrelevant=n_irrelevant))
    data = gptd_rl.collect(env, policy, n_transitions=args.n_transitions, gamma=args.gamma, seed=args.seed)
    return policy, gptd_rl.GPTD(kernel="ard").fit(data)


def draw(v: gptd_rl.GPTD, many: gptd_rl.GPTD, path: Path) -> None:
    """The value function of two inputs, and the relevances of many."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    plot_value(v, ax=axes[0]).set(title="value function and visited states", xlabel="x", ylabel="y")
    plot_section(v, ax=axes[1]).set(title="along x, with 95 % interval", xlabel="x")
    names = ["x", *(f"noise {i}" for i in range(1, many.n_dims_))]
    plot_relevances(many, names, ax=axes[2]).set(title=f"what matters, of {len(names)} inputs")
    axes[2].tick_params(axis="y", labelsize=6)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(Arguments())
