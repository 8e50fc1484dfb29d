"""Environments that leave their spaces, or return nonsense, at any step, behind any wrapper and reset mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.collect import collect
from tests.adversarial.harness import Attack, Category, pick
from tests.adversarial.nonsense import nonsense, spoiled
from tests.rollouts.test_observations import GAMMA, LENGTH, ODD, Showing


class Nonsensical(Showing):
    """Shows what its space holds, and returns something else in one place of one step."""

    def __init__(self, space: spaces.Space, usual: Any, odd: Any, at: tuple[int, int], where: str) -> None:
        super().__init__(space, usual, odd if where == "observation" else usual, at)
        self.where, self.wrong = where, odd

    def returned(self, normal: tuple[Any, ...], place: int) -> Any:
        if (self.episode, self.steps) != self.at or self.where == "observation":
            return normal
        if self.where == "error":
            raise pick(np.random.default_rng(self.steps), [RuntimeError, KeyError, ZeroDivisionError])(
                "the motor is hot"
            )
        if self.where == "everything":
            return self.wrong
        return (*normal[:place], self.wrong, *normal[place + 1 :])

    def reset(self, *, seed=None, options=None):
        return self.returned(super().reset(), 1)

    def step(self, action):
        return self.returned(super().step(action), dict(reward=1, terminated=2, truncated=3).get(self.where, 4))


def random_space(rng: np.random.Generator, depth: int = 2) -> spaces.Space:
    n = int(rng.integers(1, 4))
    makers: list[Callable[[], Any]] = [
        lambda: spaces.Discrete(n, start=int(rng.integers(-3, 4))),
        lambda: spaces.MultiDiscrete(rng.integers(1, 5, size=n), start=rng.integers(-2, 3, size=n)),
        lambda: spaces.MultiBinary(n),
        lambda: spaces.Box(-1.0, 1.0, (n,), pick(rng, [np.float32, np.float64, np.float16])),
        lambda: spaces.Box(-np.inf, np.inf, (n, 2), np.float32),
        lambda: spaces.Box(0, 255, (n,), np.uint8),
        lambda: spaces.Box(-9, 9, (), np.int32),
        lambda: spaces.Box(-(2**62), 2**62, (n,), np.int64),
        lambda: spaces.Text(3),
        lambda: spaces.Sequence(spaces.Discrete(2)),
        lambda: spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    ]
    if depth:
        makers += [
            lambda: spaces.Tuple([random_space(rng, depth - 1) for _ in range(n)]),
            lambda: spaces.Dict({f"part {i}": random_space(rng, depth - 1) for i in range(n)}),
        ]
    return pick(rng, makers)()


WRAPPERS: list[Callable[[gym.Env], gym.Env]] = [
    lambda env: env,
    lambda env: gym.wrappers.TimeLimit(env, 2),
    lambda env: gym.wrappers.OrderEnforcing(env),
    lambda env: gym.wrappers.RecordEpisodeStatistics(env),
    lambda env: gym.wrappers.PassiveEnvChecker(env),
    lambda env: gym.wrappers.Autoreset(env),
    lambda env: gym.wrappers.TransformReward(env, lambda r: 2.0 * float(r)),
]
PLACES = [
    "observation",
    "observation",
    "observation",
    "reward",
    "terminated",
    "truncated",
    "info",
    "everything",
    "error",
]


def prepare(folder: Path) -> Attack:
    def attack(rng: np.random.Generator) -> str | None:
        space, usual, odd = draw(rng)
        at, where = (int(rng.integers(3)), int(rng.integers(LENGTH + 1))), pick(rng, PLACES)
        if where != "observation":
            odd = nonsense(rng)
        wrap = pick(rng, WRAPPERS)

        def make() -> gym.Env:
            return wrap(Nonsensical(space, usual, odd, at, where))

        env: Any = make()
        if rng.random() < 0.3:
            env = SyncVectorEnv([make] * int(rng.integers(1, 4)), autoreset_mode=pick(rng, list(AutoresetMode)))
        amount = pick(rng, [dict(n_transitions=int(rng.integers(1, 20))), dict(n_episodes=int(rng.integers(1, 4)))])
        return outcome(lambda: collect(env, lambda _: 0, gamma=GAMMA, seed=0, **amount))

    return attack


def draw(rng: np.random.Generator) -> tuple[spaces.Space, Any, Any]:
    """A space, an observation in it, and another thing."""
    if rng.random() < 0.4:
        return pick(rng, list(ODD.values()))[:3]
    space = random_space(rng)
    space.seed(int(rng.integers(2**31)))
    usual = space.sample()
    return space, usual, spoiled(usual, rng)


def outcome(call: Callable[[], Any]) -> str | None:
    """What is wrong with data that were collected; with those before an error, too."""
    try:
        data = call()
    except CollectionError as error:
        if "\n" in str(error):
            raise
        data = error.trajectories
    if data is None or (np.isfinite(data.states).all() and np.isfinite(data.rewards).all()):
        return None
    return "states or rewards that are not finite were collected"


CATEGORY = Category("environments and wrappers", prepare, 0.15, may_refuse=True)
