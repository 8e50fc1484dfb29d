"""Off-policy tasks: data of one policy, and Q of another, which is known.

python benchmarks/decision_tasks.py          # lists them
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import decision_systems as systems
import numpy as np
from decision_systems import Actions, DecisionSystem
from numpy.typing import NDArray
from runs import sample_runs, trajectories

from gptd_rl import Trajectories

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DecisionProblem:
    """What a learner is given, and what it is asked."""

    data: Trajectories
    states: Array  # [n, D]
    actions: Actions  # [n]
    truth: Array  # Q of the target policy  [n]


@dataclass(frozen=True)
class DecisionTask:
    """A system with a behaviour and a target policy, and the length at which runs are cut."""

    name: str
    kind: str
    system: DecisionSystem
    max_steps: int
    covered: bool = True  # whether the data hold what the target does

    @property
    def gamma(self) -> float:
        return self.system.gamma

    def problem(self, seed: int, n_transitions: int, n_pairs: int = 200) -> DecisionProblem:
        """Data, and pairs with their true Q: states of fresh runs of the data's policy, actions of all kinds."""
        rng = np.random.default_rng([seed, 1])
        visited = self.sample(rng, 10 * n_pairs)
        states = visited.states[rng.choice(np.flatnonzero(visited.has_transition), n_pairs)]
        n_actions = self.system.n_actions
        actions = self.system.act(states, rng) if n_actions is None else rng.integers(0, n_actions, n_pairs)
        truth = self.system.truth(states, actions, np.random.default_rng([seed, 2]))
        return DecisionProblem(self.sample(np.random.default_rng([seed, 0]), n_transitions), states, actions, truth)

    def sample(self, rng: np.random.Generator, n_transitions: int) -> Trajectories:
        """Runs of the behaviour policy until there are `n_transitions`; the last is cut off there."""
        runs = sample_runs(self.system.start, self._move, n_transitions, self.max_steps, rng)
        return trajectories(runs, self.gamma)

    def _move(self, x: Array, rng: np.random.Generator) -> tuple[Actions, Array, Array, NDArray[np.bool_]]:
        actions = self.system.act(x, rng)
        return actions, *self.system.step(x, actions, rng)


@cache
def all_decision_tasks() -> tuple[DecisionTask, ...]:
    """Discrete and continuous actions, deterministic and stochastic targets, with and without coverage."""
    return (
        DecisionTask("grid", "coordinates, slips", systems.slippery_grid(), 40),
        DecisionTask("random MDP", "one-hot states, stochastic target", systems.random_mdp(), 20),
        DecisionTask("inventory", "random demand", systems.inventory(), 50),
        DecisionTask("queue", "stochastic target", systems.queue(), 30),
        DecisionTask("pushed walk", "runs of five steps", systems.pushed_walk(), 5),
        DecisionTask("linear-quadratic", "continuous actions", systems.linear_quadratic(), 20),
        DecisionTask("noisy pendulum", "five torques, disturbed", systems.noisy_pendulum(), 50),
        DecisionTask("pushed walk, not covered", "an action is missing", systems.pushed_walk(covered=False), 20, False),
    )


def decision_task_named(name: str) -> DecisionTask:
    """The task of this name."""
    found = {task.name: task for task in all_decision_tasks()}
    if name not in found:
        raise ValueError(f"there is no task {name!r}; there are {', '.join(found)}.")
    return found[name]


def main() -> None:
    """Print the tasks as a Markdown table."""
    print("| task | γ | cut at | actions | covered | |\n|---|---|---|---|---|---|")
    for task in all_decision_tasks():
        actions = task.system.n_actions or "continuous"
        print(f"| {task.name} | {task.gamma} | {task.max_steps} | {actions} | {task.covered} | {task.kind} |")


if __name__ == "__main__":
    main()
