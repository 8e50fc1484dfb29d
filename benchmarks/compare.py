"""Do the intervals of `compare_agents` hold the true differences, and how much does the pairing narrow them?

    python benchmarks/compare.py
    python benchmarks/compare.py --from-json

For each group of agents a population of `--population` start states is rolled out by the library. Comparisons draw
`--starts` of them, so the true difference is the mean over the population, and is known exactly:

- coverage of the 95 % intervals of the differences of values, of all pairs together (1 000 comparisons leave a standard
  error of 0.7 %), and the half-width of the first;
- the same for unpaired samples, which draw other starts, and other random numbers, for each agent;
- the ratio of the half-widths: its square is the share of episodes that the pairing leaves necessary;
- bias: the difference over the population less the true one, in standard errors. In the gridworld V is known from
  linear equations, in CartPole from 200 000 starts by its equations of motion, both independent of the library;
- states: share of comparisons in which at least one of 40 intervals of single states, 8 rollouts each, misses the true
  difference: 5 % are allowed.

The value function that stands for what comes after a rollout is a constant with the width of all possible values.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from gptd_rl.agents.reference.gridworld import TowardsMiddle
from gptd_rl.envs.gridworld import LatentGridworld
from gptd_rl.evaluation.differences import (
    cautious_std,
    pairwise_differences,
    simultaneous_quantile,
    state_intervals,
    student_quantile,
)
from gptd_rl.evaluation.environments import open_environment
from gptd_rl.evaluation.ground_truth import sample_start_states
from gptd_rl.evaluation.paired import horizon, rollout, start_rollouts
from gptd_rl.types import Array, Policy

RESULTS = Path(__file__).parent / "results" / "compare.json"
GAMMA = 0.95
FIRST_SEED = 1000
ROUNDING = 1e-9


@dataclass(frozen=True)
class Row:
    """Results for one group of agents in one system."""

    system: str
    agents: str
    n_starts: int
    n_repeats: int
    coverage: float
    half_width: float
    unpaired_coverage: float
    unpaired_half_width: float
    bias: float  # in standard errors
    states_missed: float | None  # share of comparisons with a wrong interval of a state; None: values are not known


@dataclass(frozen=True)
class Case:
    """Agents in a system; the values of all agents at states are in closed form, or from the starts only."""

    system: str
    agents: dict[str, Policy]
    env: Callable[[], gym.Env[Any, Any]]
    values: Callable[[Array], Array] | None  # states of shape (m, n_dims) to values of shape (k, m)


class Lazy:
    """Walks to the middle, but away from it in columns 1 to `stuck`: it meets the wall, and leaves by slipping."""

    def __init__(self, task: LatentGridworld, stuck: int) -> None:
        self.task, self.stuck = task, stuck

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Actions, 0 for left and 1 for right."""
        x = np.asarray(observation)[..., 0]
        return ((x < self.task.middle) & (x > self.stuck)).astype(np.int64), None

    def value(self, states: Array, gamma: float) -> Array:
        """V by columns: V = r + γ P V, 0 in the middle."""
        size, middle, slip = self.task.size, self.task.middle, self.task.slip
        columns = np.arange(1, size + 1)
        P = np.zeros((size, size))
        forward = self.predict(columns[:, None])[0]
        for x in columns[columns != middle]:
            right = 1.0 - slip if forward[x - 1] else slip
            P[x - 1, min(x + 1, size) - 1] += right
            P[x - 1, max(x - 1, 1) - 1] += 1.0 - right
        reward = np.where(columns == middle, 0.0, self.task.step_reward)
        return np.asarray(np.linalg.solve(np.eye(size) - gamma * P, reward))[states[:, 0].astype(int) - 1]


class Wide:
    """A value function that knows only the bounds of the values."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def predict(self, states: Any) -> Array:
        """The middle."""
        return np.full(len(states), 0.5 * (self.low + self.high))

    def confidence_interval(self, states: Any, level: float = 0.95) -> tuple[Array, Array]:
        """The bounds."""
        return np.full(len(states), self.low), np.full(len(states), self.high)


def gridworld(slip: float, agents: str) -> Case:
    """Agents of the gridworld, with a slip or without."""
    task = LatentGridworld(slip=slip)
    middle = TowardsMiddle(task)
    stuck = (2,) if agents == "two" else (1, 2, 0)  # with 0 it is as good as the first
    members = {"middle": middle} | {f"stuck {n}": Lazy(task, n) for n in stuck}

    def values(states: Array) -> Array:
        return np.array([member.value(states, GAMMA) for member in members.values()])

    name = f"gridworld, slip {slip:g}"
    return Case(name, dict(members), lambda: gym.make("gptd_rl/LatentGridworld-v0", slip=slip), values)


def cartpole(gains: tuple[float, ...], label: str) -> Case:
    """Controllers of CartPole that push by the pole's angle and some of its velocity: with little of it, it falls."""
    names = {f"gain {gain:g}": controller(gain) for gain in gains}
    return Case(f"CartPole, {label}", names, lambda: gym.make("CartPole-v1", max_episode_steps=100), None)


def controller(gain: float) -> Policy:
    """Actions for a batch of observations."""

    def act(observations: Any) -> Any:
        return (observations[:, 2] + gain * observations[:, 3] > 0).astype(np.int64)

    act.batched = True  # type: ignore[attr-defined]
    return act


def cartpole_values(policy: Any, n: int, steps: int = 500) -> Array:
    """Discounted returns from `n` random starts, by the equations of motion (Barto, Sutton & Anderson 1983)."""
    x, v, angle, spin = np.random.default_rng(FIRST_SEED).uniform(-0.05, 0.05, size=(4, n)).astype(np.float64)
    returns, running = np.zeros(n), np.ones(n, dtype=bool)
    for t in range(steps):
        returns += GAMMA**t * running
        seen = np.stack([x, v, angle, spin], axis=1).astype(np.float32)
        force = np.where(policy(seen) == 1, 10.0, -10.0)
        pushed = (force + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turn = (9.8 * np.sin(angle) - np.cos(angle) * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * np.cos(angle) ** 2 / 1.1))
        drift = pushed - 0.05 * turn * np.cos(angle) / 1.1
        x, v, angle, spin = x + 0.02 * v, v + 0.02 * drift, angle + 0.02 * spin, spin + 0.02 * turn
        running &= (np.abs(x) <= 2.4) & (np.abs(angle) <= 12 * np.pi / 180)
    return returns


def cases() -> list[Case]:
    """All groups of agents."""
    return [
        gridworld(0.1, "two"),
        gridworld(0.3, "two"),
        gridworld(0.3, "many"),
        cartpole((0.002, 0.0), "alike"),
        cartpole((0.01, 0.0), "unlike"),
    ]


def seeds_of(repeat: int, purpose: int, n: int) -> list[int]:
    """Seeds that no other repeat and purpose share."""
    return [int(s) >> 1 for s in np.random.SeedSequence([FIRST_SEED, repeat, purpose]).generate_state(n)]


def population(case: Case, n: int, wide: Wide) -> tuple[Array, float]:
    """Values of all agents from n start states, of shape (k, n), and the largest systematic error of a mean."""
    values, errors = [], []
    for policy in case.agents.values():
        with open_environment(case.env(), policy, 1) as (env, opened):
            made = start_rollouts(env, opened, seeds_of(0, 0, n), gamma=GAMMA, deterministic=True)
        value, error = made.values(wide)
        values.append(value)
        errors.append(error.mean())
    return np.array(values), 2.0 * max(errors)


def true_values(case: Case, n: int) -> tuple[Array, Array]:
    """Mean values from the starts and their standard errors, of shape (k,)."""
    if case.values is not None:  # starts are uniform over all cells outside the middle column
        columns = np.array([x for x in range(1, 12) if x != 6], dtype=float)
        values = case.values(np.stack([columns, columns], axis=1)).mean(axis=1)
        return values, np.zeros(len(values))
    samples = np.array([cartpole_values(policy, n) for policy in case.agents.values()])
    return samples.mean(axis=1), samples.std(axis=1) / np.sqrt(n)


def measure(case: Case, args: argparse.Namespace) -> list[Row]:
    """Repeat the comparison and count, for each number of starts."""
    low, high = (-1.0 / (1.0 - GAMMA), 0.0) if case.values is not None else (0.0, 1.0 / (1.0 - GAMMA))
    wide = Wide(low, high)
    values, error = population(case, args.population, wide)
    means, theirs = true_values(case, args.truth)
    first = values[0] - values[1]
    spread = np.sqrt(first.var() / args.population + theirs[0] ** 2 + theirs[1] ** 2)
    bias = (first.mean() - (means[0] - means[1])) / (spread + error + ROUNDING)
    missed = None
    if case.values is not None:
        missed = float(np.mean([misses(case, r, wide) for r in range(args.state_repeats)]))
    n_repeats = args.repeats if len(values) == 2 else args.repeats // 5  # each draws its quantile
    rows = []
    for n in args.starts:
        held, half, plain_held, plain_half = (float(f"{number:.4g}") for number in draw(values, n, n_repeats))
        names, shift = ", ".join(case.agents), round(float(bias), 2)
        rows.append(Row(case.system, names, n, n_repeats, held, half, plain_held, plain_half, shift, missed))
    return rows


def draw(values: Array, n: int, n_repeats: int) -> tuple[float, float, float, float]:
    """Coverage and mean half-width of paired intervals, and of unpaired ones, in samples from a population."""
    truth = pairwise_differences(values).mean(axis=0)
    rng = np.random.default_rng(FIRST_SEED)
    found = []
    for r in range(n_repeats):
        rows, others = rng.integers(values.shape[1], size=(2, n))
        samples = pairwise_differences(values[:, rows])
        half = simultaneous_quantile(samples, seed=r) * cautious_std(samples) / np.sqrt(n)
        is_held = (np.abs(samples.mean(axis=0) - truth) <= half + ROUNDING).all()
        a, b = values[0, rows], values[1, others]
        plain = student_quantile(n) * np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / n)
        found.append((is_held, half[0], abs(a.mean() - b.mean() - truth[0]) <= plain + ROUNDING, plain))
    coverage, half_width, unpaired_coverage, unpaired_half_width = np.mean(found, axis=0).tolist()
    return coverage, half_width, unpaired_coverage, unpaired_half_width


def misses(case: Case, repeat: int, wide: Wide, n_states: int = 40, n_rollouts: int = 8) -> bool:
    """Whether a simultaneous interval at one of many states misses the truth."""
    assert case.values is not None, "the values of states must be known"
    env, policies = case.env(), list(case.agents.values())
    seed = seeds_of(repeat, 2, 1)[0]
    starts = [
        sample_start_states(env, p, n_episodes=8, n_states=n_states // len(policies), seed=seed, deterministic=True)
        for p in policies
    ]
    states = np.concatenate([part.states for part in starts])
    snapshots = [one for part in starts for one in part.snapshots]
    observations = [copy.copy(one) for part in starts for one in part.observations]
    samples, errors = [], np.zeros(len(states))
    for policy in policies[:2]:
        returns = []
        for s in seeds_of(repeat, 3, n_rollouts):
            steps = horizon(GAMMA, len(states))
            made = rollout(snapshots, observations, policy, gamma=GAMMA, seed=s, deterministic=True, steps=steps)
            value, error = made.values(wide)
            returns.append(value)
            errors += error / n_rollouts
        samples.append(np.array(returns))
    mean, half = state_intervals(samples[0], samples[1], errors, 0.95, len(states))
    values = case.values(states)
    return bool((np.abs(mean - (values[0] - values[1])) > half + ROUNDING).any())


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    names = "system | agents | starts | coverage | half-width | unpaired: coverage | half-width | ratio | bias | states"
    lines = [f"| {names} |", "|---|---|" + "--:|" * 8]
    for row in rows:
        missed = "" if row["states_missed"] is None else f"{100 * row['states_missed']:.0f} %"
        ratio = row["half_width"] / row["unpaired_half_width"]
        lines.append(
            f"| {row['system']} | {row['agents']} | {row['n_starts']} | {100 * row['coverage']:.1f} % | "
            f"{row['half_width']:.3g} | {100 * row['unpaired_coverage']:.1f} % | {row['unpaired_half_width']:.3g} | "
            f"{ratio:.2f} | {row['bias']:.1f} | {missed} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all systems, store and print the table; or print the stored one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--population", type=int, default=800)
    parser.add_argument("--starts", type=int, nargs="+", default=[30, 100])
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--state-repeats", type=int, default=40)
    parser.add_argument("--truth", type=int, default=200_000, help="starts for true values that are not known")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the table is stored")
    parser.add_argument("--from-json", action="store_true", help="print the stored table")
    args = parser.parse_args()
    if args.from_json:
        print(table(json.loads(args.json.read_text(encoding="utf-8"))))
        return
    rows: list[dict[str, Any]] = []
    for case in cases():
        began = time.process_time()
        rows += [asdict(row) for row in measure(case, args)]
        print(f"{case.system}: {time.process_time() - began:.1f} s", flush=True)
        args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
