"""Q of another policy than the one that made the data: RMSE, coverage and time on stochastic systems with known Q^π.

    python benchmarks/off_policy.py                               # held-out seeds 100 to 104
    python benchmarks/off_policy.py --seeds 0 --tasks grid --sizes 400 --contestants GPTDQ LSTDQ
    python benchmarks/off_policy.py --from-json                   # the tables of the stored results

Every contestant sees the same transitions (`decision_tasks.py`, `action_value_estimators.py`), at growing numbers of
them: the error of a consistent estimator falls. Pairs (x, a) are asked about at states that the data's policy visits,
with actions of all kinds. The seconds of LSTDQ and FQE do not include those of GPTDQ, whose kernel they are given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import scores
from action_value_estimators import DEFAULT, DISCRETE_ONLY, FIELD, KERNEL_OF_GPTDQ, DecisionCase
from decision_tasks import all_decision_tasks, decision_task_named
from scores import Field, Score, measure

RESULTS = Path(__file__).parent / "results" / "off_policy.json"
HELD_OUT = tuple(range(100, 105))
SIZES = (400, 1600, 6400)


def label(task: str, n: int) -> str:
    """Name of a task at a number of transitions."""
    return f"{task}, n = {n}"


def run(task: str, n: int, seed: int, contestants: list[str]) -> list[Score]:
    """All contestants on one sample of a task."""
    system = decision_task_named(task).system
    problem = decision_task_named(task).problem(seed, n)
    case = DecisionCase(system, problem.data, problem.states, problem.actions)
    found = []
    for name in contestants:
        if name in DISCRETE_ONLY and system.n_actions is None:
            continue
        if name in KERNEL_OF_GPTDQ:
            _ = case.features  # the kernel is given, not paid for
        found.append(measure(label(task, n), name, seed, problem.truth, lambda c=FIELD[name]: c(case)))
    return found


def groups() -> dict[str, str]:
    """Whether the data cover what the target does, of every task at every size, in the order of the tables."""
    return {
        label(task.name, n): "covered" if task.covered else "not covered"
        for task in all_decision_tasks()
        for n in SIZES
    }


def main() -> None:
    """Run the comparison, store the scores and print the tables."""
    names = [task.name for task in all_decision_tasks()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=HELD_OUT)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--tasks", nargs="+", default=names, choices=names, metavar="TASK")
    parser.add_argument("--contestants", nargs="+", default=list(FIELD), choices=list(FIELD), metavar="CONTESTANT")
    scores.add_arguments(parser, RESULTS)
    args = parser.parse_args()
    chosen = [name for name in FIELD if name in args.contestants]  # GPTDQ first: others use its kernel
    jobs = [(task, n, seed, chosen) for task in args.tasks for n in args.sizes for seed in args.seeds]
    found = scores.run_and_store(jobs, run, args, " ".join(sys.argv))
    found.sort(key=lambda s: list(FIELD).index(s.contestant))
    print(Field(found, DEFAULT, DEFAULT, groups()).tables())


if __name__ == "__main__":
    main()
