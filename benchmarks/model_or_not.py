"""Policy iteration with and without a model of the dynamics where the model is in trouble.

    python benchmarks/model_or_not.py                              train what is not stored yet
    python benchmarks/model_or_not.py --tasks portals --seeds 1
    python benchmarks/model_or_not.py --from-json                  the table of the stored results

A state that does not tell everything, actions that are replaced by random ones, and dynamics that jump. An agent that
plans in a model must not end below the one that relies on real transitions alone: it has to notice. The policy that
`learn` returns after 2 000 steps, on 100 fresh episodes; seeds from 300 on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from control_runs import NEVER, Archive, Job, arguments, run
from control_tables import with_interval
from control_tasks import TASKS, ControlTask, classic
from exact import table
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation

MODELS: dict[str, dict[str, Any]] = {"gp": dict(model="gp"), "none": dict(model=None)}
STOPS = (2000,)
FIRST_SEED, N_SEEDS = 300, 5


def observing(env_id: str, inputs: Sequence[int]) -> gym.Env:
    """An environment of which only some observations are seen."""
    env, kept = gym.make(env_id), list(inputs)
    box: Any = env.observation_space
    seen = spaces.Box(box.low[kept], box.high[kept], dtype=box.dtype)
    return TransformObservation(env, lambda observation: observation[kept], seen)


class Gusts(gym.ActionWrapper):
    """Three in ten actions are replaced by random ones."""

    def action(self, action: Any) -> Any:
        """The action that is taken."""
        n = self.action_space.n  # type: ignore[attr-defined]
        return int(self.np_random.integers(n)) if self.np_random.random() < 0.3 else action


class Portals(gym.Env):
    """A unit square with a goal in one corner; a wall with one door that leads into another corner."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float64)
    action_space = spaces.Discrete(4)
    STEPS = 0.07 * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start anywhere in the left half."""
        super().reset(seed=seed)
        self.x, self.time = self.np_random.uniform([0.0, 0.0], [0.5, 1.0]), 0
        return self.x.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move; who runs into the wall at 0.5 is thrown back, who hits the door is carried away."""
        moved = np.clip(self.x + self.STEPS[int(action)], 0.0, 1.0)
        if (self.x[0] < 0.5) != (moved[0] < 0.5):
            moved = np.array([0.9, 0.1]) if 0.4 < moved[1] < 0.6 else np.array([0.1, moved[1]])
        self.x, self.time = moved, self.time + 1
        arrived = bool((moved > [0.8, 0.8]).all())
        return moved.copy(), -1.0, arrived, self.time >= 200, {}


def gusty(env_id: str) -> gym.Env:
    """An environment with random actions in between."""
    return Gusts(gym.make(env_id))


def hard_to_model(name: str, make: Callable[[], gym.Env]) -> ControlTask:
    """A task without a level."""
    return replace(classic(name, -np.inf, make, designed=False), stops=STOPS)


HARD = {
    task.name: task
    for task in (
        hard_to_model("CartPole, positions only", partial(observing, "CartPole-v1", (0, 2))),
        hard_to_model("Acrobot, angles only", partial(observing, "Acrobot-v1", (0, 1, 2, 3))),
        hard_to_model("CartPole with gusts", partial(gusty, "CartPole-v1")),
        hard_to_model("MountainCar with gusts", partial(gusty, "MountainCar-v0")),
        hard_to_model("portals", Portals),
    )
}
TASKS.update(HARD)  # in every process that imports this module


class HardJob(Job):
    """A training on one of these tasks; pickled by this module's name, so that a new process knows them, too."""


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """The trainings that are asked for, one seed on all tasks after the other."""
    for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
        for task in args.tasks:
            for model, options in MODELS.items():
                stops = tuple(round(args.budget_scale * stop) for stop in STOPS)
                yield HardJob(f"{task}, {model}", task, seed, stops, NEVER, options)


def model_table(archive: Archive, tasks: Sequence[str]) -> str:
    """Mean returns with 95 % intervals, and of the difference on the same seeds."""
    rows = []
    for task in tasks:
        means = {m: {run.seed: run.final for run in archive.runs(f"{task}, {m}")} for m in MODELS}
        seeds = sorted(set(means["gp"]) & set(means["none"]))
        if not seeds:
            continue
        gp, none = (np.array([means[m][seed] for seed in seeds]) for m in ("gp", "none"))
        cells = [with_interval([values], lambda x: float(np.mean(x))) for values in (gp, none, gp - none)]
        rows.append([task, str(len(seeds)), *cells])
    return table(["task", "seeds", 'model="gp" (95 %)', "model=None (95 %)", "difference (95 %)"], rows)


def main() -> None:
    """Train what is missing and print the table."""
    args = arguments(__doc__, N_SEEDS, tasks=([*HARD], [*HARD]))
    run(args, "model_or_not.json", jobs(args), lambda archive: model_table(archive, args.tasks))


if __name__ == "__main__":
    main()
