"""Do the intervals of `compare_agents` hold the true differences, and how much does the pairing narrow them?

    python benchmarks/compare.py
    python benchmarks/compare.py --from-json

Systems whose true values are known: a gridworld, where V is in closed form or solves a linear system, and CartPole,
where it is the mean over 20 000 other starts. The statistics are those of `compare_agents`; the value function that
stands for what comes after a rollout is a wide constant. Each row is of `--repeats` comparisons with `--starts` start
states:

- coverage of the 95 % interval of the difference of values from the starts (400 repeats leave a standard error of 1 %);
- its half-width beside that of an interval from other starts and other random numbers for each agent;
- share of comparisons in which an interval of a single state, of all together, misses the truth: 5 % are allowed.
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

import gptd_rl  # registers its environments
from gptd_rl.agents.reference.gridworld import TowardsMiddle
from gptd_rl.envs.gridworld import LatentGridworld
from gptd_rl.evaluation.differences import (
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
    states_missed: float | None  # share of comparisons with a wrong interval of a state; None: values are not known
    seconds: float  # processor time of all

    @property
    def ratio(self) -> float:
        """Width of the paired interval, as a share of the unpaired one."""
        return self.half_width / self.unpaired_half_width


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
    lazy = {f"stuck {n}": Lazy(task, n) for n in ((2,) if agents == "two" else (1, 2, 0, 0))}
    if agents == "many":  # the last two are as good as the first
        lazy = {"stuck 1": Lazy(task, 1), "stuck 2": Lazy(task, 2), "same": Lazy(task, 0)}
    members = {"middle": middle} | lazy

    def values(states: Array) -> Array:
        return np.array([member.value(states, GAMMA) for member in members.values()])

    name = f"gridworld, slip {slip:g}"
    return Case(name, dict(members), lambda: gym.make("gptd_rl/LatentGridworld-v0", slip=slip), values)


def cartpole(gains: tuple[float, float], label: str) -> Case:
    """Two linear controllers of CartPole."""

    def controller(gain: float) -> Policy:
        def act(observations: Any) -> Any:
            return (observations[:, 2] + gain * observations[:, 3] > 0).astype(np.int64)

        act.batched = True  # type: ignore[attr-defined]
        return act

    names = {f"gain {gain:g}": controller(gain) for gain in gains}
    return Case(f"CartPole, {label}", names, lambda: gym.make("CartPole-v1"), None)


def cases() -> list[Case]:
    """All groups of agents."""
    return [
        gridworld(0.1, "two"),
        gridworld(0.3, "two"),
        gridworld(0.3, "many"),
        cartpole((0.05, 0.1), "alike"),
        cartpole((0.0, 0.1), "unlike"),
    ]


def start_values(case: Case, seeds: list[int], policy: Policy, wide: Wide) -> tuple[Array, Array]:
    """Values from starts, and their largest systematic errors."""
    with open_environment(case.env(), policy, 1) as (env, opened):
        made = start_rollouts(env, opened, seeds, gamma=GAMMA, deterministic=True)
    return made.values(wide)


def seeds_of(repeat: int, purpose: int, n: int) -> list[int]:
    """Seeds that no other repeat shares."""
    return [int(s) >> 1 for s in np.random.SeedSequence([FIRST_SEED, repeat, purpose]).generate_state(n)]


def true_values(case: Case, wide: Wide, n: int) -> Array:
    """Mean values from the starts, of shape (k,)."""
    if case.values is not None:  # starts are uniform over all cells outside the middle column
        columns = np.array([x for x in range(1, 12) if x != 6], dtype=float)
        return case.values(np.stack([columns, columns], axis=1)).mean(axis=1)
    seeds = seeds_of(10**6, 0, n)
    return np.array([start_values(case, seeds, policy, wide)[0].mean() for policy in case.agents.values()])


def measure(case: Case, n_repeats: int, n_starts: int, n_truth: int, n_state_repeats: int) -> Row:
    """Repeat the comparison and count."""
    began = time.process_time()
    low, high = (-1.0 / (1.0 - GAMMA), 0.0) if case.values is not None else (0.0, 1.0 / (1.0 - GAMMA))
    wide = Wide(low, high)
    truth = true_values(case, wide, n_truth)
    gaps = pairwise_differences(truth[:, None])[0]  # of all pairs
    pool = [start_values(case, seeds_of(0, i, 2 * n_repeats * n_starts), p, wide) for i, p in pool_of(case)]
    half_widths, held, unpaired_widths, unpaired_held = [], [], [], []
    for r in range(n_repeats):
        rows = slice(r * n_starts, (r + 1) * n_starts)
        values, errors = (np.array([one[part][rows] for one in pool[: len(truth)]]) for part in (0, 1))
        samples, error = pairwise_differences(values), errors.mean(axis=1).max() * 2
        half = simultaneous_quantile(samples, seed=r) * samples.std(axis=0, ddof=1) / np.sqrt(n_starts) + error
        half_widths.append(half[0])
        held.append(bool((np.abs(samples.mean(axis=0) - gaps) <= half).all()))
        a, b = pool[0][0][rows], pool[-1][0][rows]
        plain = student_quantile(n_starts) * np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / n_starts) + error
        unpaired_widths.append(plain)
        unpaired_held.append(abs(a.mean() - b.mean() - gaps[0]) <= plain)
    missed = None
    if case.values is not None:
        missed = float(np.mean([misses(case, r, wide) for r in range(n_state_repeats)]))
    return Row(
        case.system,
        ", ".join(case.agents),
        n_starts,
        n_repeats,
        round(float(np.mean(held)), 4),
        float(f"{np.mean(half_widths):.4g}"),
        round(float(np.mean(unpaired_held)), 4),
        float(f"{np.mean(unpaired_widths):.4g}"),
        None if missed is None else round(missed, 4),
        round(time.process_time() - began, 1),
    )


def pool_of(case: Case) -> list[tuple[int, Policy]]:
    """Agents with the number of their starts: common ones, and at the end the second agent with others."""
    policies = list(case.agents.values())
    return [(0, policy) for policy in policies] + [(1, policies[1])]


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
    copies = [one for part in starts for one in part.copies]
    observations = [copy.copy(one) for part in starts for one in part.observations]
    samples, errors = [], np.zeros(len(states))
    for policy in policies[:2]:
        returns = []
        for s in seeds_of(repeat, 3, n_rollouts):
            steps = horizon(GAMMA, len(states))
            made = rollout(copies, observations, policy, gamma=GAMMA, seed=s, deterministic=True, steps=steps)
            value, error = made.values(wide)
            returns.append(value)
            errors += error / n_rollouts
        samples.append(np.array(returns))
    mean, half = state_intervals(samples[0] - samples[1], errors, 0.95, len(states))
    values = case.values(states)
    return bool((np.abs(mean - (values[0] - values[1])) > half + 1e-9).any())


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [
        "| system | agents | starts | coverage | half-width | unpaired: coverage | half-width | ratio | states: missed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        missed = "" if row["states_missed"] is None else f"{100 * row['states_missed']:.1f} %"
        ratio = row["half_width"] / row["unpaired_half_width"]
        lines.append(
            f"| {row['system']} | {row['agents']} | {row['n_starts']} | {100 * row['coverage']:.1f} % | "
            f"{row['half_width']:.3g} | {100 * row['unpaired_coverage']:.1f} % | {row['unpaired_half_width']:.3g} | "
            f"{ratio:.2f} | {missed} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all systems, store and print the table; or print the stored one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--state-repeats", type=int, default=100)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--truth", type=int, default=20_000, help="starts for true values that are not known")
    parser.add_argument("--systems", nargs="*", help="beginnings of names; all by default")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the table is stored")
    parser.add_argument("--from-json", action="store_true", help="print the stored table")
    args = parser.parse_args()
    if args.from_json:
        print(table(json.loads(args.json.read_text(encoding="utf-8"))))
        return
    chosen = [case for case in cases() if not args.systems or case.system.startswith(tuple(args.systems))]
    rows = []
    for case in chosen:
        rows.append(asdict(measure(case, args.repeats, args.starts, args.truth, args.state_repeats)))
        print(f"{case.system}: {rows[-1]['seconds']} s", flush=True)
        args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
