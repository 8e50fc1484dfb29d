"""Value estimation beside the field: RMSE, coverage and time over tasks with known V^π.

    python benchmarks/selection.py                                # held-out seeds 100 to 109
    python benchmarks/selection.py --seeds 0 1 --tasks walk ruin --contestants GPTD LSTD
    python benchmarks/selection.py --from-json                    # the tables of the stored results

Every contestant sees the same transitions (`tasks.py`, `value_estimators.py`). Seeds 0 to 19 are for design; results
are reported for seeds that nothing was chosen on. In ratios an error below 1 % of the spread of V counts as 1 %. The
seconds of LSTD do not include those of GPTD, whose kernel it is given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import scores
from scores import Field, Score, measure
from tasks import all_tasks, task_named
from value_estimators import DEFAULT, FIELD, KERNEL_OF_GPTD, VARIANTS, Case

RESULTS = Path(__file__).parent / "results" / "selection.json"
HELD_OUT = tuple(range(100, 110))


def run(task: str, seed: int, contestants: list[str]) -> list[Score]:
    """All contestants on one sample of a task."""
    problem = task_named(task).problem(seed)
    case = Case(problem.data, problem.states)
    found = []
    for name in contestants:
        if name in KERNEL_OF_GPTD:
            _ = case.features  # the kernel is given, not paid for
        contestant = (FIELD | VARIANTS)[name]
        found.append(measure(task, name, seed, problem.truth, lambda c=contestant: c(case)))
    return found


def main() -> None:
    """Run the comparison, store the scores and print the tables."""
    names = [task.name for task in all_tasks()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=HELD_OUT)
    parser.add_argument("--tasks", nargs="+", default=names, choices=names, metavar="TASK")
    everyone = [*FIELD, *VARIANTS]
    parser.add_argument("--contestants", nargs="+", default=list(FIELD), choices=everyone, metavar="CONTESTANT")
    scores.add_arguments(parser, RESULTS)
    args = parser.parse_args()
    chosen = [name for name in everyone if name in args.contestants]  # GPTD first: others use its kernel
    jobs = [(task, seed, chosen) for task in args.tasks for seed in args.seeds]
    found = scores.run_and_store(jobs, run, args, " ".join(sys.argv))
    found.sort(key=lambda s: everyone.index(s.contestant))
    print(Field(found, DEFAULT, DEFAULT, {task.name: task.nature for task in all_tasks()}).tables())


if __name__ == "__main__":
    main()
