"""Control tasks with a level to be reached: what benchmarks/policy_iteration.py trains agents on.

A policy is judged by 20 fresh episodes, every return undiscounted. A task is solved at the first of three evaluations
in a row that attain its level, because one may do so by chance. Where the optimum is known, the level is paired: the
return of the optimal policy from the same start states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

import gptd_rl  # noqa: F401  (registers the environments)
from gptd_rl.agents import TowardsMiddle
from gptd_rl.agents.reference.dynamic_programming import OptimalPendulum, solve_pendulum
from gptd_rl.envs.gridworld import LatentGridworld
from gptd_rl.types import Array, Predictor

N_EPISODES = 20  # of one evaluation
N_IN_A_ROW = 3  # evaluations that must attain the level
TOLERANCE = 1.1  # of the optimal pendulum's return, which is negative
FIRST_EVALUATION_SEED = 1_000_000  # training has the seeds far below


# -------------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True)
class Episodes:
    """First observations [n, D] and undiscounted returns [n] of the episodes that a seed starts."""

    seed: int
    starts: Array
    returns: Array


@dataclass(frozen=True)
class ControlTask:
    """An environment and the level that a policy must attain.

    Attributes
    ----------
    name : str
    make : callable
        () → one environment, to train in.
    make_vec : callable
        n → n of them, to evaluate in.
    budget : int
        Environment steps that our agent may take.
    level : float
        Mean return to be attained; where the level is paired, what that is on average over the start states.
    attained : callable
        Episodes → whether they attain the level.
    """

    name: str
    make: Callable[[], gym.Env]
    make_vec: Callable[[int], VectorEnv]
    budget: int
    level: float
    attained: Callable[[Episodes], bool]


def evaluate(policy: Predictor, task: ControlTask, seed: int, n_episodes: int = N_EPISODES) -> Episodes:
    """Episodes of a deterministic policy, side by side: one call of `predict` a step.

    Environments restart by themselves; only the first episode of each counts.
    """
    env = task.make_vec(n_episodes)
    observations, _ = env.reset(seed=seed)
    starts = observations.astype(np.float64)
    returns, alive = np.zeros(n_episodes), np.ones(n_episodes, dtype=bool)
    while alive.any():
        actions, _ = policy.predict(observations, deterministic=True)
        observations, rewards, terminated, truncated, _ = env.step(actions)
        returns[alive] += rewards[alive]
        alive &= ~(terminated | truncated)
    env.close()
    return Episodes(seed, starts, returns)


def evaluation_seed(training_seed: int, index: int) -> int:
    """Seed of a training's evaluation: fresh in every one, as each takes at most 100 seeds from here on."""
    return FIRST_EVALUATION_SEED * (1 + training_seed) + 100 * index


# -------------------------------------------------------------------------------------- levels


def mean_attains(level: float, episodes: Episodes) -> bool:
    """Whether the mean return is at least `level`."""
    return bool(episodes.returns.mean() >= level)


def grid_is_optimal(n_irrelevant: int, episodes: Episodes) -> bool:
    """Whether every episode went straight to the middle column: return −|x − middle|."""
    optimum = TowardsMiddle(LatentGridworld(n_irrelevant=n_irrelevant)).value(episodes.starts, gamma=1.0)
    return bool((episodes.returns >= optimum).all())


def pendulum_is_near_optimal(episodes: Episodes) -> bool:
    """Whether the mean return is within 10 % of the optimal policy's from the same starts."""
    best = optimal_swing_up(episodes.seed, len(episodes.returns))
    assert np.array_equal(best.starts, episodes.starts), "the optimum must start in the same states"
    return bool(episodes.returns.mean() >= TOLERANCE * best.returns.mean())


@cache
def optimal_swing_up(seed: int, n_episodes: int) -> Episodes:
    """Episodes of the dynamic-programming solution for γ = 0.99."""
    return evaluate(_optimal_pendulum(), swing_up(), seed, n_episodes)


@cache
def _optimal_pendulum() -> OptimalPendulum:
    return solve_pendulum(gamma=0.99)


# -------------------------------------------------------------------------------------- the tasks


class FewTorques(gym.ActionWrapper):
    """Choice among evenly spaced torques instead of any."""

    def __init__(self, env: gym.Env, n_torques: int = 5) -> None:
        super().__init__(env)
        space = env.action_space
        self.torques = np.linspace(space.low, space.high, n_torques)  # [n_torques, 1]
        self.action_space = gym.spaces.Discrete(n_torques)

    def action(self, action: Any) -> Any:
        """Torque of an index, of shape (1,)."""
        return self.torques[action].astype(np.float32)


def few_torques_pendulum() -> gym.Env:
    """Gymnasium's pendulum with five torques from −2 to 2."""
    return FewTorques(gym.make("Pendulum-v1"))


def side_by_side(make: Callable[[], gym.Env], n: int) -> VectorEnv:
    """As many environments, stepped one after the other."""
    return SyncVectorEnv([make] * n)


def grid(n_irrelevant: int) -> ControlTask:
    """The paper's gridworld: five, four … one step to the middle, −3 on average."""
    env_id, options = "gptd_rl/LatentGridworld-v0", dict(n_irrelevant=n_irrelevant)
    return ControlTask(
        f"LatentGridworld-{n_irrelevant}",
        partial(gym.make, env_id, **options),
        partial(gym.make_vec, env_id, **options),
        budget=5000,
        level=-3.0,
        attained=partial(grid_is_optimal, n_irrelevant),
    )


def swing_up() -> ControlTask:
    """The paper's pendulum from anywhere."""
    env_id = "gptd_rl/PendulumSwingUp-v0"
    make, make_vec = partial(gym.make, env_id), partial(gym.make_vec, env_id)
    return ControlTask("PendulumSwingUp", make, make_vec, 10_000, SWING_UP_LEVEL, pendulum_is_near_optimal)


def classic(name: str, level: float, make: Callable[[], gym.Env] | None = None) -> ControlTask:
    """One of Gymnasium's, judged by the mean return."""
    make = make or partial(gym.make, name)
    return ControlTask(name, make, partial(side_by_side, make), 5000, level, partial(mean_attains, level))


SWING_UP_LEVEL = -20.9  # 1.1 times the mean over 4000 starts; every evaluation has a level of its own

TASKS: dict[str, ControlTask] = {
    task.name: task
    for task in (
        grid(1),
        grid(10),
        swing_up(),
        classic("CartPole-v1", 475.0),
        classic("MountainCar-v0", -110.0),
        classic("Acrobot-v1", -100.0),
        classic("Pendulum-v1", -200.0, few_torques_pendulum),
    )
}


# -------------------------------------------------------------------------------------- learning curves


@dataclass
class Run:
    """Learning curve of one training: an evaluation after each of `steps`.

    Attributes
    ----------
    budget : int
        Environment steps it was allowed.
    seconds : float
        Wall time of training up to the last evaluation, without the evaluations.
    """

    seed: int
    budget: int
    steps: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  # means over the episodes of an evaluation
    attained: list[bool] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def held(self) -> int | None:
        """Steps of the first of three evaluations in a row that attained the level, None without."""
        return held(self.steps, self.attained)

    def add(self, steps: int, episodes: Episodes, attained: bool) -> None:
        """Append an evaluation."""
        self.steps.append(steps)
        self.returns.append(float(episodes.returns.mean()))
        self.attained.append(attained)

    def to_json(self) -> dict[str, Any]:
        """Rounded; the flags as a string of 0 and 1."""
        flags = "".join("01"[flag] for flag in self.attained)
        returns = [float(f"{r:.4g}") for r in self.returns]
        return asdict(self) | dict(returns=returns, attained=flags, seconds=round(self.seconds, 1), held=self.held)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Run:
        """The inverse; what follows from the rest is left out."""
        known = {key: value for key, value in entry.items() if key != "held"}
        return cls(**known | dict(attained=[flag == "1" for flag in entry["attained"]]))


def held(steps: Sequence[int], attained: Sequence[bool], in_a_row: int = N_IN_A_ROW) -> int | None:
    """Steps of the first of `in_a_row` consecutive evaluations that attained the level.

    Examples
    --------
    >>> held([250, 500, 750, 1000, 1250], [True, False, True, True, True])
    750
    """
    for i in range(len(attained) - in_a_row + 1):
        if all(attained[i : i + in_a_row]):
            return steps[i]
    return None
