"""Environments as an evaluation needs them: several to collect from, one to copy, and names for what is observed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv

from gptd_rl.data.spaces import require_flat
from gptd_rl.evaluation.ground_truth import copyable
from gptd_rl.exceptions import AgentError, CollectionError
from gptd_rl.sb3.loading import Normalised, check_spaces

MAX_ENVS = 8
LONGEST = 1000  # steps of an episode, where nobody says

# What Gymnasium's pages and ours call the observations of well-known environments.
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
}


@dataclass(frozen=True, eq=False)
class Environment:
    """What an evaluation runs in.

    Attributes
    ----------
    name : str
    many : Any
        To collect from: one environment or several that are stepped together.
    one : gymnasium.Env or None
        To copy; None if it cannot be.
    observation_space : gymnasium.Space
    action_space : gymnasium.Space
    """

    name: str
    many: Any
    one: gym.Env[Any, Any] | None
    observation_space: Space[Any]
    action_space: Space[Any]

    @property
    def is_categorical(self) -> bool:
        """Whether an observation is one of a list."""
        return isinstance(self.observation_space, spaces.Discrete)

    @property
    def input_names(self) -> tuple[str, ...]:
        """One for each number of an observation."""
        n = spaces.flatdim(self.observation_space)
        known = NAMES.get(self.name.split("/")[-1].rsplit("-v", 1)[0], ())
        kind = "state" if self.is_categorical else "input"
        return known if len(known) == n else tuple(f"{kind} {i}" for i in range(n))


@contextmanager
def opened(env: Any, policy: Any, n_transitions: int) -> Iterator[tuple[Environment, Any]]:
    """Open what was given as an environment; yields it, and the policy for it.

    Parameters
    ----------
    env : str, EnvSpec, gymnasium.Env or VectorEnv, Stable-Baselines3 VecEnv, or None
        None: the one that the model carries. Behind `VecNormalize`, it is the environment inside, and the policy gets
        to see what `VecNormalize` makes of its observations.
    policy : as for `gptd_rl.collect`
    n_transitions : int
        How many are to be collected.
    """
    if env is None:
        env = policy.get_env() if hasattr(policy, "get_env") else None
        if env is None:
            raise AgentError("there is no environment: the agent carries none, so give one.")
    env, policy = _without_normaliser(env, policy)
    made = isinstance(env, str | EnvSpec)
    one = _make(env) if made else _single(env)
    with one if made and one is not None else nullcontext():
        spaced = one if one is not None else env
        observation = getattr(spaced, "single_observation_space", spaced.observation_space)
        action = getattr(spaced, "single_action_space", spaced.action_space)
        check_spaces(policy, spaced)
        try:
            require_flat(observation)
        except ValueError as error:
            raise CollectionError(str(error)) from None
        many = _several(env, one, n_transitions) if made else env
        with closing(many) if made else nullcontext():
            can_copy = one is not None and copyable(one)
            yield Environment(_name(env, one), many, one if can_copy else None, observation, action), policy


def _make(env: Any) -> gym.Env[Any, Any]:
    try:
        return gym.make(env)
    except Exception as error:
        raise CollectionError(f"cannot make environment {env!r}: {' '.join(str(error).split())}") from error


def _several(env: Any, one: Any, n_transitions: int) -> SyncVectorEnv:
    """So many environments that each has room for two of the longest episodes."""
    limit = (one.spec and one.spec.max_episode_steps) or LONGEST
    n = min(MAX_ENVS, max(1, n_transitions // (2 * limit)))
    return SyncVectorEnv([lambda: gym.make(env) for _ in range(n)])


def _single(env: Any) -> gym.Env[Any, Any] | None:
    """One environment of those given, if they can be reached."""
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


def _without_normaliser(env: Any, policy: Any) -> tuple[Any, Any]:
    sb3 = sys.modules.get("stable_baselines3.common.vec_env")
    if sb3 is None or not isinstance(env, sb3.VecNormalize):
        return env, policy
    if policy is None or hasattr(policy, "predict"):
        return env.venv, policy and Normalised(policy, env)

    def on_normalised(observations: Any) -> Any:
        return policy(env.normalize_obs(observations))

    on_normalised.batched = getattr(policy, "batched", False)  # type: ignore[attr-defined]
    return env.venv, on_normalised


def _name(env: Any, one: gym.Env[Any, Any] | None) -> str:
    if isinstance(env, str):
        return env.split(":")[-1]
    spec = getattr(one, "spec", None) or getattr(env, "spec", None) or (env if isinstance(env, EnvSpec) else None)
    return spec.id if spec is not None else type(getattr(one, "unwrapped", env)).__name__
