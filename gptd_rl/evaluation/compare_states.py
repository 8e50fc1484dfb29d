"""Agents at the same states: rollouts from copies of the environment, or their value functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gptd_rl.evaluation.differences import best_split, state_intervals
from gptd_rl.evaluation.environments import Environment
from gptd_rl.evaluation.ground_truth import MAX_STEPS, StartStates, sample_start_states
from gptd_rl.evaluation.paired import Rollouts, horizon, rollout, start_rollouts
from gptd_rl.evaluation.results import Evaluation
from gptd_rl.report.comparison_records import StateComparison
from gptd_rl.report.slices import subsample
from gptd_rl.types import Array, Policy

LEVEL = 0.95
N_ROLLOUTS = (6, 20)  # from each state if returns are random: at least, at most

StageProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class FinishedAgent:
    """An agent with its value function and its rollouts from the start states."""

    name: str
    policy: Policy
    gamma: float | None
    evaluation: Evaluation
    rollouts: Rollouts

    def start_values(self) -> tuple[Array, Array]:
        """Value from each start state, and its largest systematic error."""
        return self.rollouts.values(self.evaluation.value)


@dataclass(frozen=True, eq=False)
class CommonRun:
    """Where and how all agents act."""

    env: Environment
    gamma: float
    deterministic: bool
    seed: int

    def starts(self, policy: Policy, n: int) -> Rollouts:
        """Rollouts from the start states."""
        return start_rollouts(self.env, policy, self.seeds(0, n), gamma=self.gamma, deterministic=self.deterministic)

    def seeds(self, purpose: int, n: int) -> list[int]:
        """Seeds that other purposes and other seeds of the comparison do not share."""
        sequence = np.random.SeedSequence([self.seed, purpose])
        return [int(state) >> 1 for state in sequence.generate_state(n)]


def compare_states(
    run: CommonRun, found: Sequence[FinishedAgent], reference: int, n_states: int, tell: StageProgress
) -> StateComparison:
    """Values of all agents at states of episodes of each."""
    each = -(-n_states // len(found))
    if run.env.template_env is None:
        return _compare_models(found, reference, each)
    parts = _sampled_states(run, found, each)
    snapshots = [one for part in parts for one in part.snapshots]
    observations = [one for part in parts for one in part.observations]
    episodes = np.concatenate([part.episodes + 10 * i for i, part in enumerate(parts)])
    states = np.concatenate([part.states for part in parts])
    steps = horizon(run.gamma, len(snapshots))

    def returns(agent: FinishedAgent, seed: int) -> tuple[Array, Array, int]:
        made = rollout(
            snapshots,
            observations,
            agent.policy,
            gamma=run.gamma,
            seed=seed,
            deterministic=run.deterministic,
            steps=steps,
        )
        return *made.values(agent.evaluation.value), made.n_steps

    samples, errors = _repeated(returns, found, run.seeds(2, N_ROLLOUTS[1]), tell)
    values = samples.mean(axis=1)
    differences, half = np.zeros_like(values), np.zeros_like(values)
    n_intervals = len(states) * (len(found) - 1)
    for i in range(len(found)):
        if i != reference:
            error = errors[i] + errors[reference]
            differences[i], half[i] = state_intervals(samples[i], samples[reference], error, LEVEL, n_intervals)
    return StateComparison(
        kind="rollouts",
        n_rollouts=samples.shape[1],
        level=LEVEL,
        states=states,
        episodes=episodes,
        values=values,
        differences=differences,
        lower=differences - half,
        upper=differences + half,
        modelled=_modelled(found, reference, states),
        splits=tuple(best_split(states, row) for row in differences),
    )


def _sampled_states(run: CommonRun, found: Sequence[FinishedAgent], each: int) -> list[StartStates]:
    """States of fresh episodes of each agent, with snapshots of the environment."""
    template = run.env.template_env
    assert template is not None, "only environments that can be copied have copies"
    (seed,) = run.seeds(1, 1)
    return [
        sample_start_states(
            template,
            agent.policy,
            n_episodes=min(10, each),
            n_states=each,
            seed=seed,
            deterministic=run.deterministic,
        )
        for agent in found
    ]


def _repeated(
    returns: Callable[[FinishedAgent, int], tuple[Array, Array, int]],
    found: Sequence[FinishedAgent],
    seeds: Sequence[int],
    tell: StageProgress,
) -> tuple[Array, Array]:
    """Returns of shape (k, n_rollouts, m), and their mean largest errors, of shape (k, m); one rollout if that does."""
    most = len(seeds)
    rounds = []
    for r, seed in enumerate(seeds):
        rounds.append([returns(agent, seed) for agent in found])
        tell("states", r + 1, most)
        if r == 1:
            first, second = ([one[0] for one in made] for made in rounds)
            if np.allclose(first, second, rtol=1e-9, atol=1e-9):
                rounds = rounds[:1]
                break
            cost = max(one[2] for one in rounds[0])
            most = int(np.clip(MAX_STEPS // max(cost, 1), *N_ROLLOUTS))
        if r + 1 == most:
            break
    tell("states", 1, 1)
    samples = np.array([[one[0] for one in made] for made in rounds]).swapaxes(0, 1)
    return samples, np.array([[one[1] for one in made] for made in rounds]).mean(axis=0)


def _compare_models(found: Sequence[FinishedAgent], reference: int, each: int) -> StateComparison:
    """Values by the agents' value functions, where the environment cannot be copied."""
    checks = [agent.evaluation.check for agent in found]
    kept = [subsample(np.arange(len(check.states)), each) for check in checks]
    states = np.concatenate([check.states[rows] for check, rows in zip(checks, kept, strict=True)])
    episodes = np.concatenate(
        [check.episodes[rows] + 1000 * i for i, (check, rows) in enumerate(zip(checks, kept, strict=True))]
    )
    values = np.array([agent.evaluation.value.predict(states) for agent in found])
    # Both hold with probability 0.95 or more.
    level = 1.0 - 0.5 * (1.0 - LEVEL)
    ends = np.array([agent.evaluation.value.confidence_interval(states, level) for agent in found])  # [k, 2, m]
    lower, upper = ends[:, 0] - ends[reference, 1], ends[:, 1] - ends[reference, 0]
    lower[reference] = upper[reference] = 0.0
    differences = values - values[reference]
    splits = tuple(best_split(states, row) for row in differences)
    return StateComparison("models", 0, LEVEL, states, episodes, values, differences, lower, upper, differences, splits)


def _modelled(found: Sequence[FinishedAgent], reference: int, states: Array) -> Array:
    """Differences by the value functions, of shape (k, m)."""
    values = np.array([agent.evaluation.value.predict(states) for agent in found])
    return values - values[reference]
