"""Why policies chatter: how much better the best action is than the next, beside how well Q fits its own targets.

    python benchmarks/action_gaps.py --seed 1

After a training of our agent on each task of `policy_iteration.py`: the median difference between the two best actions
and the root mean square of what Q leaves of its targets, both in standard deviations of the targets; and the share of
greedy actions that changed from one improvement to the next, once there were 1000 transitions; and the shortest
lengthscale of the kernel along each input.
"""

from __future__ import annotations

import argparse

import numpy as np
from control_tasks import TASKS, ControlTask
from exact import fix_threads, table


def row(task: ControlTask, seed: int) -> list[str]:
    """Train on a task and look at the Q-function learnt."""
    from gptd_rl.agents import PolicyIteration
    from gptd_rl.agents.multiscale import SCALES

    agent = PolicyIteration(task.make(), gamma=0.99, seed=seed).learn(task.budget)
    assert agent._newest is not None
    values = np.sort(agent._newest.q.values(agent.data.states), axis=1)
    spread = float(agent._newest.targets.std())
    gap = float(np.median(values[:, -1] - values[:, -2])) / spread
    changes = [i.policy_change for i in agent.history if i.n_transitions >= 1000]
    last = agent._newest.residual / spread
    shortest = ", ".join(f"{scale:.2g}" for scale in SCALES.min() / np.sqrt(agent._newest.q.kernel.relevances))
    return [task.name, f"{gap:.3f}", f"{last:.3f}", f"{np.median(changes):.0%}", f"{max(changes):.0%}", shortest]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    args = parser.parse_args()
    fix_threads(1)
    heads = ["task", "gap between actions", "error of Q", "actions changed, median", "largest", "shortest lengthscales"]
    print(table(heads, [row(TASKS[name], args.seed) for name in args.tasks]))


if __name__ == "__main__":
    main()
