"""Which part of policy iteration is worth what: the default agent beside variants that lack one part each.

    python benchmarks/ablation.py                                 train what is not stored yet
    python benchmarks/ablation.py --variants default --tasks CartPole-v1 --seeds 1
    python benchmarks/ablation.py --from-json                     the table of the stored results

Three tasks, seeds from 200 on; the policy that `learn` returns after 1 000 steps, on 100 fresh episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from control_runs import NEVER, Archive, Job, arguments, run
from control_tables import stops_of, with_interval
from control_tasks import TASKS
from exact import table

from gptd_rl.agents.planning import Planning
from gptd_rl.agents.planning_states import StateCounts

CRISP = tuple(replace(setting, softness=0.0) for setting in Planning().settings)
CRISP_REFINED = tuple(replace(setting, softness=0.0) for setting in Planning().refined)

# Name → arguments of PolicyIteration: the default, and what it is without one of its parts, or with another one.
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "no completion (model=None)": dict(model=None),
    "no softness (ε = 0)": dict(planning=Planning(settings=CRISP, refined=CRISP_REFINED)),
    "optimistic prior mean": dict(planning=Planning(prior_mean="largest")),
    "no trial": dict(planning=Planning(trial=False)),
    "no states from the model": dict(planning=Planning(states=StateCounts(perturbed=0, rollout=0, simulated=0))),
    "lookahead": dict(planning=Planning(lookahead=True)),
    "no caution, no curiosity": dict(planning=Planning(caution=0.0, curiosity=0.0)),
    "one round of planning": dict(planning=Planning(n_rounds=1)),
    "no refined candidate": dict(planning=Planning(refined=())),
}
CHOSEN = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0")
STOPS = (1000,)
FIRST_SEED, N_SEEDS = 200, 5


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """The trainings that are asked for, one seed of all variants after the other."""
    stops = tuple(round(args.budget_scale * stop) for stop in STOPS)
    for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
        for task in args.tasks:
            for variant in args.variants:
                yield Job(f"{variant}, {task}", task, seed, stops, NEVER, VARIANTS[variant])


def ablation_table(archive: Archive, variants: list[str], tasks: list[str]) -> str:
    """Mean return with its 95 % interval, and the seeds at the level, of every variant."""
    rows = []
    for task in tasks:
        for variant in variants:
            runs = archive.runs(f"{variant}, {task}")
            for steps in stops_of(runs):
                policies = [run.served[steps] for run in runs]
                means = np.array([policy.mean for policy in policies])
                n_attained = sum(policy.attained for policy in policies)
                cells = [with_interval([means], lambda x: float(np.mean(x))), f"{n_attained} of {len(runs)}"]
                seconds = np.median([policy.processor_seconds for policy in policies])
                rows.append([task, variant, f"{steps:,}", *cells, f"{means.min():.4g}", f"{seconds:.0f} s"])
    head = ["task", "variant", "steps", "mean return (95 %)", "seeds at the level", "worst seed", "processor"]
    return table(head, rows)


def main() -> None:
    """Train what is missing and print the table."""
    args = arguments(__doc__, N_SEEDS, variants=([*VARIANTS], [*VARIANTS]), tasks=([*CHOSEN], [*TASKS]))
    run(args, "ablation.json", jobs(args), lambda archive: ablation_table(archive, args.variants, args.tasks))


if __name__ == "__main__":
    main()
