"""Snapshots of environments: an episode can be continued from a state of it, many times, with other random numbers.

Gymnasium's environments cannot be set to a state. There are three ways around, tried in this order:

- a deep copy;
- a deep copy of the attributes, where copies start anew (`EzPickle`): MuJoCo's state is copied with them;
- a new environment with the seed and the actions of the episode so far, where parts cannot be copied: Box2D.

A way is used only if a trial episode continues exactly as the environment itself does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from gptd_rl.checks import as_generator
from gptd_rl.data.spaces import flattener, stack
from gptd_rl.rollouts.masks import sample_action

NO_LIMIT = np.iinfo(np.int64).max
INERT = (TimeLimit, OrderEnforcing, PassiveEnvChecker)  # wrappers that do nothing to a running episode without a limit
N_SEEDS = 20  # of trial episodes
STEPS_BEFORE = (3, 1, 0)  # of a trial episode until its snapshot; fewer where episodes are short
STEPS_AFTER = 8

Env = gym.Env[Any, Any]


class Snapshot(Protocol):
    """One state of one episode."""

    @property
    def n_replayed(self) -> int:
        """Steps that restoring takes."""
        ...

    def restore(self, seed: Sequence[int]) -> Env:
        """An environment in this state, with new random numbers and without a time limit."""
        ...


class RestorableEpisode(Protocol):
    """An environment whose states can be kept."""

    env: Env

    def reset(self, seed: int) -> Any:
        """Start, and return the observation."""
        ...

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As `gymnasium.Env.step`."""
        ...

    def snapshot(self) -> Snapshot:
        """Keep the present state."""
        ...


EpisodeMaker = Callable[[Env], RestorableEpisode]  # the environment itself is not changed


def episode_maker(env: Env) -> EpisodeMaker | None:
    """The first way to continue from states of `env` that works; None if there is none."""
    ways: tuple[EpisodeMaker, ...] = (CopiedEpisode, CopiedAttributesEpisode, ReplayedEpisode)
    return next((way for way in ways if _continues(env, way)), None)


# -------------------------------------------------------------------------------------- copies


class CopiedEpisode:
    """An episode whose snapshots are deep copies of the environment."""

    def __init__(self, env: Env) -> None:
        self.env = copy.deepcopy(env)

    def reset(self, seed: int) -> Any:
        """See `RestorableEpisode`."""
        return self.env.reset(seed=seed)[0]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `RestorableEpisode`."""
        return self.env.step(action)

    def snapshot(self) -> Snapshot:
        """See `RestorableEpisode`."""
        return CopySnapshot(copy_env(self.env), copy_env)


class CopiedAttributesEpisode(CopiedEpisode):
    """An episode whose snapshots are copies of all attributes of the environment and its wrappers."""

    def snapshot(self) -> Snapshot:
        """See `RestorableEpisode`."""
        return CopySnapshot(copy_attributes(self.env), copy_attributes)


@dataclass(frozen=True, eq=False)
class CopySnapshot:
    """A copy of an environment, of which copies are made."""

    env: Env
    copied: Callable[[Env, np.random.Generator], Env]
    n_replayed: int = 0

    def restore(self, seed: Sequence[int]) -> Env:
        """See `Snapshot`."""
        generator = as_generator(list(seed))
        return endless(reseeded(self.copied(self.env, generator), generator))


def copy_env(env: Env, generator: np.random.Generator | None = None) -> Env:
    """A deep copy that shares spaces and specifications, and has `generator` in place of all generators, if given."""
    return copy.deepcopy(env, _shared(env, generator))


def copy_attributes(env: Env, generator: np.random.Generator | None = None) -> Env:
    """As `copy_env`, but of the attributes of each layer, whatever `deepcopy` does with it."""
    memo = _shared(env, generator)
    twin: Any = None
    for layer in reversed(list(layers(env))):
        twin = object.__new__(type(layer))
        memo[id(layer)] = twin
        vars(twin).update(copy.deepcopy(vars(layer), memo))
    return twin


def _shared(env: Env, generator: np.random.Generator | None) -> dict[int, Any]:
    """What `deepcopy` puts in place of some attributes, by their id."""
    memo: dict[int, Any] = {}
    for layer in layers(env):
        for value in vars(layer).values():
            if isinstance(value, gym.Space | EnvSpec):
                memo[id(value)] = value
            elif generator is not None and isinstance(value, np.random.Generator):
                memo[id(value)] = generator
    return memo


# -------------------------------------------------------------------------------------- replays


class ReplayedEpisode:
    """An episode whose snapshots are its seed and its actions."""

    def __init__(self, env: Env) -> None:
        self.template, self.env = env, copy.deepcopy(env)
        self.seed, self.actions = 0, list[Any]()

    def reset(self, seed: int) -> Any:
        """See `RestorableEpisode`."""
        self.env, self.seed, self.actions = copy.deepcopy(self.template), seed, []
        return self.env.reset(seed=seed)[0]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `RestorableEpisode`."""
        self.actions.append(copy.copy(action))
        return self.env.step(action)

    def snapshot(self) -> Snapshot:
        """See `RestorableEpisode`."""
        return ReplaySnapshot(self.template, self.seed, self.actions, len(self.actions))


@dataclass(frozen=True, eq=False)
class ReplaySnapshot:
    """The seed of an episode and its actions, of which the first `n_replayed` lead to the state."""

    template: Env
    seed: int
    actions: list[Any]
    n_replayed: int

    def restore(self, seed: Sequence[int]) -> Env:
        """See `Snapshot`."""
        env = copy.deepcopy(self.template)
        env.reset(seed=self.seed)
        for action in self.actions[: self.n_replayed]:
            env.step(action)
        return endless(reseeded(env, as_generator(list(seed))))


# -------------------------------------------------------------------------------------- layers of an environment


def layers(env: Env) -> Iterator[Any]:
    """Wrappers from the outermost to the innermost, and the environment itself."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def reseeded(env: Env, generator: np.random.Generator) -> Env:
    """The same environment, with other random numbers from now on."""
    env.unwrapped.np_random = generator
    for layer in layers(env):
        for name, value in vars(layer).items():
            if isinstance(value, np.random.Generator):  # one beside np_random
                setattr(layer, name, generator)
    return env


def endless(env: Env) -> Env:
    """The same environment without time limits, and without outer wrappers that then do nothing."""
    for layer in layers(env):
        if isinstance(layer, TimeLimit):
            layer._max_episode_steps = NO_LIMIT
    while isinstance(env, INERT):
        env = env.env
    return env


# -------------------------------------------------------------------------------------- trial


def _continues(env: Env, way: EpisodeMaker) -> bool:
    """Whether a restored state leads to the same observations and rewards as the state itself."""
    try:
        space = copy.deepcopy(env.action_space)
        space.seed(0)
        episode = _under_way(env, way, space)
        kept = episode.snapshot()
        ahead = endless(reseeded(episode.env, as_generator([0])))
        actions, first = _trial(ahead, space, [])
        second = _trial(kept.restore([0]), space, actions)[1]
        return len(first) == len(second) and all(map(np.array_equal, first, second))
    except Exception:  # noqa: BLE001  (any error in a copy means the same)
        return False


def _under_way(env: Env, way: EpisodeMaker, space: gym.Space[Any]) -> RestorableEpisode:
    """An episode after some random actions, if any episode lasts so long."""
    for n_steps in STEPS_BEFORE:
        for seed in range(N_SEEDS):
            episode = way(env)
            episode.reset(seed)
            if not any(any(episode.step(sample_action(episode.env, space))[2:4]) for _ in range(n_steps)):
                return episode
    raise AssertionError("an episode without a step has not ended")


def _trial(env: Env, space: gym.Space[Any], actions: list[Any]) -> tuple[list[Any], list[Any]]:
    """Actions, random ones if none are given, and the observations, rewards and ends to which they lead."""
    flatten = flattener(env.observation_space)
    for name in ("observation_space", "action_space"):  # environments may sample from them
        with suppress(AttributeError):  # a property
            own = copy.deepcopy(getattr(env.unwrapped, name))  # it may belong to the class, and to others
            own.seed(0)
            setattr(env.unwrapped, name, own)
    made: list[Any] = []
    found: list[Any] = []
    for t in range(len(actions) or STEPS_AFTER):
        made.append(actions[t] if actions else sample_action(env, space))
        observation, reward, terminated, truncated, _ = env.step(made[-1])
        found += [flatten(stack(env.observation_space, [observation])), [reward, terminated, truncated]]
        if terminated or truncated:
            break
    return made, found
