"""Every kind of environment as one: batched steps in which no episode end is lost or made up.

A *source* hides how an environment batches, restarts and reports ends. Each step says what the
policy sees next and, for the episodes that ended, the true final state. Where a vector environment
spends an extra step on restarting (`AutoresetMode.NEXT_STEP`), `restart_steps` is 1, and whoever
counts steps leaves that one out.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from gptd_rl.data.spaces import ActionCheck, Numbers, flattener, require_flat, stack
from gptd_rl.exceptions import CollectionError
from gptd_rl.types import BoolArray


class Step(NamedTuple):
    """What one batched step brought."""

    observations: Any  # what the policy sees next
    states: Numbers  # the same, flattened  [n_envs, n_dims]
    rewards: Numbers  # [n_envs]
    terminated: BoolArray  # [n_envs]
    truncated: BoolArray  # [n_envs]
    finals: Numbers | None  # true final states of episodes that ended, unless in `states`  [k, …]


class Source(ABC):
    """Environments stepped together.

    Parameters
    ----------
    n_envs : int
    observation_space, action_space : gymnasium.Space
        Spaces of one environment.
    """

    restart_steps = 0  # batched steps between an end and the first step of the next episode
    spec: EnvSpec | None = None  # how to make one such environment, if known

    def __init__(self, n_envs: int, observation_space: Space[Any], action_space: Space[Any]) -> None:
        try:
            require_flat(observation_space)
            self.actions = ActionCheck(action_space, n_envs)
        except ValueError as error:
            raise CollectionError(str(error)) from None
        self.n_envs = n_envs
        self.observation_space, self.action_space = observation_space, action_space
        self.flatten = flattener(observation_space)  # batched observations to states [n, n_dims]

    @abstractmethod
    def reset(self, seed: int | None) -> Any:
        """Start an episode everywhere and return the observations; environment i gets seed + i."""

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Step:
        """Act everywhere; ended episodes start again by themselves."""


class SingleEnv(Source):
    """One `gymnasium.Env`, as a batch of one."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(1, env.observation_space, env.action_space)
        self.env, self.spec = env, env.spec

    def reset(self, seed: int | None) -> Any:
        """See `Source`."""
        return stack(self.observation_space, [self.env.reset(seed=seed)[0]])

    def step(self, actions: NDArray[Any]) -> Step:
        """See `Source`."""
        observation, reward, terminated, truncated, _ = self.env.step(actions[0])
        observations = stack(self.observation_space, [observation])
        states, finals = self.flatten(observations), None
        if terminated or truncated:
            observations, finals = self.reset(None), states
            states = self.flatten(observations)
        return Step(
            observations,
            states,
            np.array([reward], dtype=np.float64),
            np.array([terminated], dtype=bool),
            np.array([truncated], dtype=bool),
            finals,
        )


class Vector(Source):
    """A `gymnasium.vector.VectorEnv`; each autoreset mode is a subclass."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.env = env

    def reset(self, seed: int | None) -> Any:
        """See `Source`."""
        return self.env.reset(seed=seed)[0]


class NextStepVector(Vector):
    """The step after an end restarts the episode; its action is ignored and it is no transition."""

    restart_steps = 1

    def step(self, actions: NDArray[Any]) -> Step:
        """See `Source`."""
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        return Step(observations, self.flatten(observations), rewards, terminated, truncated, None)


class SameStepVector(Vector):
    """The step that ends an episode returns the first observation of the next one."""

    def step(self, actions: NDArray[Any]) -> Step:
        """See `Source`."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        states, finals = self.flatten(observations), None
        if (done := terminated | truncated).any():
            if "final_obs" not in infos:
                raise CollectionError(
                    f"{self.env} says it resets in the same step, but its info has no 'final_obs', so the states in "
                    "which episodes ended are lost."
                )
            rows = [infos["final_obs"][i] for i in np.flatnonzero(done)]
            finals = self.flatten(stack(self.observation_space, rows, like=observations))
        return Step(observations, states, rewards, terminated, truncated, finals)


class DisabledVector(Vector):
    """Ended episodes wait until they are reset one by one."""

    def step(self, actions: NDArray[Any]) -> Step:
        """See `Source`."""
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        states, finals = self.flatten(observations), None
        if (done := terminated | truncated).any():
            finals, going_on = states[done], states[~done]
            observations = self.env.reset(options={"reset_mask": done.copy()})[0]
            states = self.flatten(observations)
            if not np.array_equal(states[~done], going_on, equal_nan=True):
                raise CollectionError(
                    f"{self.env} does not reset by itself and ignores options['reset_mask']: it also reset "
                    "sub-environments whose episode was under way."
                )
        return Step(observations, states, rewards, terminated, truncated, finals)


class SB3Vector(Source):
    """A Stable-Baselines3 `VecEnv`, with the rewards as they were before any `VecNormalize`."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.num_envs, env.observation_space, env.action_space)
        self.env = env
        self.normalisers = _normalisers(env)  # outermost first

    def reset(self, seed: int | None) -> Any:
        """See `Source`."""
        if seed is not None:
            self.env.seed(seed)
        return self.env.reset()

    def step(self, actions: NDArray[Any]) -> Step:
        """See `Source`."""
        observations, rewards, done, infos = self.env.step(actions)
        if self.normalisers:
            rewards = self.normalisers[-1].get_original_reward()
        finals, terminated = None, done  # no end, so far
        if done.any():
            ended = np.flatnonzero(done)
            rows = [infos[i]["terminal_observation"] for i in ended]
            finals = self.flatten(stack(self.observation_space, rows, like=observations))
            terminated = done.copy()
            terminated[ended] = [not infos[i].get("TimeLimit.truncated", False) for i in ended]
        states, truncated = self.flatten(observations), done & ~terminated
        return Step(observations, states, rewards, terminated, truncated, finals)


@contextmanager
def open_source(env: Any) -> Iterator[Source]:
    """Recognise what `env` is; leave it as it was found.

    An environment made here from an id is closed, and `VecNormalize` learns nothing meanwhile.
    """
    if isinstance(env, str | EnvSpec):
        try:
            made = gym.make(env)
        except Exception as error:
            raise CollectionError(f"cannot make environment {env!r}: {error}") from error
        with made:
            yield SingleEnv(made)
        return
    source = _recognise(carried_env(env) if is_model(env) else env)
    normalisers = source.normalisers if isinstance(source, SB3Vector) else []
    training = [n.training for n in normalisers]
    try:
        for normaliser in normalisers:
            normaliser.training = False
        yield source
    finally:
        for normaliser, was_training in zip(normalisers, training, strict=True):
            normaliser.training = was_training


def is_model(env: Any) -> bool:
    """Whether `env` is a Stable-Baselines3 model, which carries an environment."""
    return hasattr(env, "predict") and hasattr(env, "get_env")


def carried_env(model: Any) -> Any:
    """Return the environment of a Stable-Baselines3 model."""
    env = model.get_env()
    if env is None:
        raise CollectionError(
            f"the {type(model).__name__} model carries no environment: pass one, as in "
            "collect(env, model, ...), or load the model with env=..."
        )
    return env


def _recognise(env: Any) -> Source:
    if isinstance(env, gym.Env):
        return SingleEnv(env)
    if isinstance(env, VectorEnv):
        mode = env.metadata.get("autoreset_mode")
        kinds: dict[Any, Callable[[VectorEnv[Any, Any, Any]], Source]] = {
            AutoresetMode.NEXT_STEP: NextStepVector,
            AutoresetMode.SAME_STEP: SameStepVector,
            AutoresetMode.DISABLED: DisabledVector,
        }
        if mode not in kinds:
            raise CollectionError(
                f"{env} does not declare how it resets: expected metadata['autoreset_mode'] to be "
                f"a gymnasium.vector.AutoresetMode, got {mode!r}. Without it, resets cannot be "
                "told from transitions."
            )
        return kinds[mode](env)
    sb3 = sys.modules.get("stable_baselines3.common.vec_env")
    if sb3 is not None and isinstance(env, sb3.VecEnv):
        return SB3Vector(env)
    raise TypeError(
        "expected an environment id, a gymnasium Env or VectorEnv, or a Stable-Baselines3 VecEnv "
        f"or model; got {type(env).__name__}."
    )


def _normalisers(env: Any) -> list[Any]:
    vec_env = sys.modules["stable_baselines3.common.vec_env"]
    found = []
    while isinstance(env, vec_env.VecEnvWrapper):
        if isinstance(env, vec_env.VecNormalize):
            found.append(env)
        env = env.venv
    return found
