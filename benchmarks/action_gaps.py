"""Why greedy policies oscillate: the gap between the two best actions, and the residuals of the targets of Q.

    python benchmarks/action_gaps.py --seed 1

After a training of our agent on each task of `policy_iteration.py`: the median difference between the two best actions
and the root mean square of the residuals, both in standard deviations of the targets; the share of greedy actions that
changed from one improvement to the next, from 1000 transitions on; and the shortest lengthscale along each input.
"""

from __future__ import annotations

import argparse

import numpy as np
from control_tasks import TASKS, ControlTask
from exact import fix_threads, table


def row(task: ControlTask, seed: int) -> list[str]:
    """Train on a task and describe its Q-function."""
    from gptd_rl.agents import PolicyIteration
    from gptd_rl.kernels import MultiScale

    agent = PolicyIteration(task.make(), gamma=0.99, seed=seed).learn(task.budget)
    fit = agent.estimator.greedy_
    values = np.sort(fit.posterior.q_values(agent.data.states), axis=1)
    spread = float(fit.posterior.targets.std())
    gap = float(np.median(values[:, -1] - values[:, -2])) / spread
    changes = [i.policy_change for i in agent.history if i.n_transitions >= 1000]
    last = fit.residual / spread
    shortest = ", ".join(f"{scale:.2g}" for scale in MultiScale.SCALES.min() / np.sqrt(fit.kernel.relevances))
    return [task.name, f"{gap:.3f}", f"{last:.3f}", f"{np.median(changes):.0%}", f"{max(changes):.0%}", shortest]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    args = parser.parse_args()
    fix_threads(1)
    heads = [
        "task",
        "gap between actions",
        "residual of Q",
        "actions changed, median",
        "largest",
        "shortest lengthscales",
    ]
    print(table(heads, [row(TASKS[name], args.seed) for name in args.tasks]))


if __name__ == "__main__":
    main()
