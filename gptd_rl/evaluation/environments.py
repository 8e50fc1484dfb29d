"""The environments of an evaluation: some to collect from, one to copy, and names of the inputs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv

from gptd_rl.data.spaces import flattener, require_flat, stack
from gptd_rl.exceptions import AgentError, CollectionError
from gptd_rl.rollouts.environments import choose_n_envs
from gptd_rl.sb3.policies import NormalizedPolicy, check_spaces
from gptd_rl.types import EnvLike, Policy

# Names of the observations of well-known environments, as in their documentation.
NAMES = {
    "CartPole": ("position", "velocity", "angle", "angular velocity"),
    "Acrobot": ("cos θ₁", "sin θ₁", "cos θ₂", "sin θ₂", "speed of θ₁", "speed of θ₂"),
    "MountainCar": ("position", "velocity"),
    "MountainCarContinuous": ("position", "velocity"),
    "Pendulum": ("cos θ", "sin θ", "angular velocity"),
    "LunarLander": ("x", "y", "speed in x", "speed in y", "angle", "angular velocity", "left leg", "right leg"),
    "PendulumSwingUp": ("angle", "angular velocity"),
    "PendulumSwingUpContinuous": ("angle", "angular velocity"),
    "LatentGridworld": ("x", "y"),
    "CartPoleSwingUp": ("position", "velocity", "cos θ", "sin θ", "angular velocity"),
}


@dataclass(frozen=True, eq=False)
class Environment:
    """An environment to evaluate in.

    Attributes
    ----------
    name : str
    vector_env : gymnasium.Env, gymnasium.vector.VectorEnv or VecEnv
        To collect from.
    template_env : gymnasium.Env or None
        To copy; None if it cannot be copied.
    observation_space : gymnasium.Space
    action_space : gymnasium.Space
    """

    name: str
    vector_env: Any
    template_env: gym.Env[Any, Any] | None
    observation_space: Space[Any]
    action_space: Space[Any]

    @property
    def is_categorical(self) -> bool:
        """Whether observations are discrete."""
        return isinstance(self.observation_space, spaces.Discrete)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the flattened observation's coordinates."""
        n = spaces.flatdim(self.observation_space)
        known = NAMES.get(self.name.split("/")[-1].rsplit("-v", 1)[0], ())
        kind = "state" if self.is_categorical else "input"
        return known if len(known) == n else tuple(f"{kind} {i}" for i in range(n))


@contextmanager
def open_environment(env: EnvLike, policy: Policy, n_transitions: int) -> Iterator[tuple[Environment, Policy]]:
    """Open an environment; yields it, and the policy for it. Environments made here are closed at the end.

    Parameters
    ----------
    env : str, EnvSpec, gymnasium.Env or VectorEnv, Stable-Baselines3 VecEnv, or None
        None: the one of the model. A `VecNormalize` is taken off, and the policy normalizes its observations instead.
    policy : as for `gptd_rl.collect`
    n_transitions : int
        Transitions to be collected.
    """
    if env is None:
        env = getattr(policy, "get_env", lambda: None)()
        if env is None:
            raise AgentError("there is no environment: the agent has none of its own, so give one.")
    env, policy = _without_normalization(env, policy)
    made = isinstance(env, str | EnvSpec)
    single = _make(env) if made else _single(env)
    with single if made and single is not None else nullcontext():
        spaced = single if single is not None else env
        observation = getattr(spaced, "single_observation_space", spaced.observation_space)
        action = getattr(spaced, "single_action_space", spaced.action_space)
        check_spaces(policy, spaced)
        try:
            require_flat(observation)
        except ValueError as error:
            raise CollectionError(str(error)) from None
        vector_env = _several(env, single, n_transitions) if made else env
        with closing(vector_env) if made else nullcontext():
            template = single if single is not None and is_copyable(single) else None
            yield Environment(_name(env, single), vector_env, template, observation, action), policy


def _make(env: Any) -> gym.Env[Any, Any]:
    try:
        return gym.make(env)
    except Exception as error:
        raise CollectionError(f"cannot make environment {env!r}: {' '.join(str(error).split())}") from error


def _several(env: Any, single: Any, n_transitions: int) -> SyncVectorEnv:
    """Environments to step together."""
    n = choose_n_envs(n_transitions, time_limit=single.spec and single.spec.max_episode_steps)
    return SyncVectorEnv([lambda: gym.make(env) for _ in range(n)])


def _single(env: Any) -> gym.Env[Any, Any] | None:
    """One environment of a vector, unless they are in other processes."""
    if isinstance(env, gym.Env):
        return env
    if isinstance(env, SyncVectorEnv):
        return env.envs[0]
    sb3 = sys.modules.get("stable_baselines3.common.vec_env")
    if sb3 is not None and isinstance(env, sb3.DummyVecEnv):
        return env.envs[0]
    if isinstance(env, VectorEnv) or (sb3 is not None and isinstance(env, sb3.VecEnv)):
        return None
    raise TypeError(
        "expected an environment id, a gymnasium Env or VectorEnv, or a Stable-Baselines3 VecEnv; "
        f"got {type(env).__name__}."
    )


def _without_normalization(env: Any, policy: Any) -> tuple[Any, Any]:
    sb3 = sys.modules.get("stable_baselines3.common.vec_env")
    if sb3 is None or not isinstance(env, sb3.VecNormalize):
        return env, policy
    if isinstance(policy, NormalizedPolicy):  # it normalizes by its own statistics
        return env.venv, policy
    if policy is None or hasattr(policy, "predict"):
        return env.venv, policy and NormalizedPolicy(policy, env)

    def on_normalized(observations: Any) -> Any:
        return policy(env.normalize_obs(observations))

    on_normalized.batched = getattr(policy, "batched", False)  # type: ignore[attr-defined]
    return env.venv, on_normalized


def _name(env: Any, single: gym.Env[Any, Any] | None) -> str:
    if isinstance(env, str):
        return env.split(":")[-1]
    spec = getattr(single, "spec", None) or getattr(env, "spec", None) or (env if isinstance(env, EnvSpec) else None)
    return spec.id if spec is not None else type(getattr(single, "unwrapped", env)).__name__


def is_copyable(env: gym.Env[Any, Any]) -> bool:
    """Whether a copy of an environment continues from its state; some copies are new environments instead."""
    try:
        one, space = copy.deepcopy(env), copy.deepcopy(env.action_space)
        space.seed(0)
        for seed in range(20):  # until an episode is under way
            one.reset(seed=seed)
            action = space.sample()
            if not any(one.step(action)[2:4]):
                break
        else:
            one.reset(seed=0)
        twin = copy.deepcopy(one)
        ahead, behind = one.step(action), twin.step(action)
    except Exception:  # noqa: BLE001  (any error in a copy means the same)
        return False
    flatten = flattener(env.observation_space)
    here, there = (flatten(stack(env.observation_space, [step[0]])) for step in (ahead, behind))
    return np.array_equal(here, there) and ahead[1:4] == behind[1:4]
