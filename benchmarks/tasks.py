"""Policy-evaluation tasks whose V^π is known: what the benchmarks of value estimation are run on.

A task is a system under a fixed policy (`systems.py`, `grids.py`), the number of transitions that are sampled, and the
length at which runs are cut.

    python benchmarks/tasks.py                   # lists them
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import grids
import numpy as np
import systems
from numpy.typing import NDArray
from runs import run_batch, sample_runs, trajectories
from systems import Array, Nature, System

from gptd_rl import Trajectories


@dataclass(frozen=True)
class Problem:
    """What a learner is given, and what it is asked."""

    data: Trajectories
    states: Array  # as the learner sees them  [n, D]
    truth: Array  # V^π of them  [n]


@dataclass(frozen=True)
class Task:
    """A system, and how much of it is sampled.

    Attributes
    ----------
    kind : str
        What is particular about it.
    max_steps : int
        Length at which a run is truncated.
    """

    name: str
    kind: str
    system: System
    n_transitions: int
    max_steps: int

    @property
    def gamma(self) -> float:
        return self.system.gamma

    @property
    def nature(self) -> Nature:
        """Whether it is deterministic, stochastic, or non-Markov."""
        return self.system.nature

    def problem(self, seed: int, n_transitions: int | None = None, n_states: int = 200) -> Problem:
        """Data, and states of fresh runs with their true values; the same for the same seed."""
        states = self.test_states(np.random.default_rng([seed, 1]), n_states)
        truth = self.system.truth(states, np.random.default_rng([seed, 2]))
        data = self.sample(np.random.default_rng([seed, 0]), n_transitions)
        return Problem(data, self.system.observe(states), truth)

    def sample(self, rng: np.random.Generator, n_transitions: int | None = None) -> Trajectories:
        """Runs until there are `n_transitions`; the last is cut off there."""
        n = n_transitions or self.n_transitions
        runs = sample_runs(self.system.start, self._move, n, self.max_steps, rng)
        return trajectories(runs, self.gamma, self.system.observe)

    def test_states(self, rng: np.random.Generator, n: int = 200) -> Array:
        """States that fresh runs of the policy pass through, of shape (n, d)."""
        runs = run_batch(self.system.start, self._move, max(n // 4, 10), self.max_steps, rng)
        visited = np.concatenate([run.states[:-1] for run in runs])
        return visited[rng.choice(len(visited), n, replace=len(visited) < n)]

    def _move(self, x: Array, rng: np.random.Generator) -> tuple[None, Array, Array, NDArray[np.bool_]]:
        return None, *self.system.step(x, rng)


def _student_noise(x: Array, rng: np.random.Generator) -> Array:
    """Heavy tails (three degrees of freedom), wider where |x₁| is large."""
    return 0.5 * (1 + np.abs(x[:, 0])) * rng.standard_t(3, len(x))


def _linear_tasks() -> list[Task]:
    """Ornstein–Uhlenbeck inputs with quadratic rewards, and observations that hide a part of the state."""
    drift = systems.linear_gaussian([0.9, 0.995], [0.4, 0.1], [1.0, 0.0], 0.9)
    product = systems.linear_gaussian([0.9, 0.8], [0.44, 0.6], [[0.0, 1.0], [0.0, 0.0]], 0.95)
    three = systems.linear_gaussian([0.9, 0.8, 0.7], [0.44, 0.6, 0.7], [[1, 0, 0], [0, 0, 1], [0, 0, 0]], 0.9)
    six = systems.linear_gaussian(
        [0.9, 0.9, 0.8, 0.8, 0.95, 0.99],
        [0.44, 0.44, 0.6, 0.6, 0.3, 0.14],
        np.diag([1.0, -0.5, 0, 0, 0, 0]) + np.diag([0, 0, 1.0, 0, 0], k=1),
        0.95,
        linear=[0, 0, 0, 0, 0.5, 0],
    )
    slow = systems.linear_gaussian([0.98], [0.2], [1.0], 0.995)
    heavy = systems.linear_gaussian([0.9, 0.995], [0.4, 0.1], [1.0, 0.0], 0.95, reward_noise=_student_noise)
    blurred = systems.linear_gaussian([0.9, 0.0], [0.44, 0.7], [1.0, 0.0], 0.9, linear=[1.0, 0.0], seen=[[1.0, 1.0]])
    swing = systems.linear_gaussian(
        [[0.95, 0.3], [-0.3, 0.95]], [0.05, 0.15], [1.0, 0.0], 0.95, linear=[1.0, 1.0], seen=[[1.0, 0.0]]
    )
    return [
        Task("drift", "an input that drifts and does not matter", drift, 1000, 200),
        Task("one long run", "drift in a single segment", drift, 1000, 1000),
        Task("drift cut at 10", "short truncated runs", drift, 4000, 10),
        Task("product 2-D", "product of two Ornstein–Uhlenbeck inputs", product, 1000, 50),
        Task("sum 3-D cut at 8", "very short truncated runs", three, 2000, 8),
        Task("sum 6-D", "squares, a product and a line; one input does not matter", six, 3000, 100),
        Task("sum 6-D, 20 000", "as sum 6-D, many data", six, 20_000, 200),
        Task("slow, γ = 0.995", "long horizon", slow, 5000, 500),
        Task("heavy tails", "heteroscedastic Student-t noise of rewards", heavy, 2000, 100),
        Task("blurred AR(1)", "seen through noise", blurred, 1000, 100),
        Task("blurred AR(1) cut at 30", "seen through noise, short truncated runs", blurred, 8000, 30),
        Task("hidden velocity", "an oscillator of which only the position is seen", swing, 2000, 200),
    ]


@cache
def all_tasks() -> tuple[Task, ...]:
    """Deterministic, stochastic and non-Markov; few and many runs, terminated and truncated."""
    random_grid, walk = grids.random_grid(), systems.walk()
    return (
        Task("gridworld", "the paper's: many short episodes", grids.gridworld(), 500, 100),
        Task("pendulum", "the paper's swing-up", systems.pendulum(), 1000, 200),
        Task("short pendulum", "cut before it is up", systems.pendulum(), 1000, 15),
        Task("spiral", "smooth, truncated, few data", systems.spiral(), 300, 25),
        Task("random grid", "repeated states", random_grid, 800, 200),
        Task("random grid, 300", "few data", random_grid, 300, 200),
        Task("random grid cut at 8", "very short truncated runs", random_grid, 1000, 8),
        Task("random grid cut at 30", "truncated runs", random_grid, 3200, 30),
        Task("walk", "many terminated episodes", walk, 1000, 300),
        Task("walk cut at 10", "short runs, many truncated", walk, 1000, 10),
        Task("walk cut at 20", "short runs, many truncated", walk, 4000, 20),
        Task("walk, 20 000", "many data", walk, 20_000, 300),
        Task("noisy cartpole", "few long episodes, a drifting cart", systems.cartpole(), 1500, 400),
        Task("noisy pendulum", "swing-up with 10 % random actions", systems.pendulum(random_actions=0.1), 2000, 100),
        *_linear_tasks(),
        Task("ring", "an angle as (cos, sin) beside a drifting input", systems.ring(), 1500, 100),
        Task("ring, one run", "a single segment", systems.ring(gamma=0.98, noise=0.2), 3000, 3000),
        Task(
            "ring, noisy rewards", "noise of rewards above their spread", systems.ring(0.9, reward_noise=2.0), 2000, 50
        ),
        Task("ruin", "gambler's ruin", grids.ruin(), 1500, 400),
        Task("two rooms", "V changes much behind a wall", grids.two_rooms(), 2000, 200),
        Task("slippery grid cut at 12", "few data, short runs", grids.slippery_grid(), 300, 12),
        Task("cliff", "V jumps", systems.cliff(), 1000, 200),
    )


def task_named(name: str) -> Task:
    """The task of this name."""
    found = {task.name: task for task in all_tasks()}
    if name not in found:
        raise ValueError(f"there is no task {name!r}; there are {', '.join(found)}.")
    return found[name]


def main() -> None:
    """Print the tasks as a Markdown table."""
    print("| task | γ | transitions | cut at | nature | |\n|---|---|---|---|---|---|")
    for task in all_tasks():
        print(f"| {task.name} | {task.gamma} | {task.n_transitions} | {task.max_steps} | {task.nature} | {task.kind} |")


if __name__ == "__main__":
    main()
