"""Learn to swing up a double pendulum in a thousand steps, then ask how much each state variable mattered.

The agent speaks Stable-Baselines3's verbs; nothing was tuned for this task. It writes policy_iteration.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gptd_rl.agents import PolicyIteration


@dataclass
class Arguments:
    """What the example does."""

    env: str = "Acrobot-v1"
    total_timesteps: int = 1_000
    n_episodes: int = 10
    seed: int = 0
    picture: Path = Path("policy_iteration.png")


def main(args: Arguments) -> PolicyIteration:
    """Learn, evaluate on new episodes, plot."""
    agent = PolicyIteration(args.env, seed=args.seed).learn(args.total_timesteps)
    returns = agent.evaluate(args.n_episodes, seed=1_000)
    error = np.std(returns) / np.sqrt(len(returns))
    print(f"{args.env} after {args.total_timesteps} steps: return {np.mean(returns):.1f} ± {error:.1f}, fresh episodes")
    for number, share in enumerate(agent.relevances_ * agent.data.states.var(axis=0)):
        print(f"  observation {number}: relevance {share:.3f} in units of its spread")
    agent.plot_history().savefig(args.picture)
    print(f"wrote {args.picture}")
    return agent


if __name__ == "__main__":
    main(Arguments())
