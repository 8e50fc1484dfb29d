"""The environments of an evaluation: some to collect from, one to copy, and names of the inputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorEpisodes

from gptd_rl.data.spaces import require_flat
from gptd_rl.evaluation.snapshots import episode_maker, layers
from gptd_rl.exceptions import AgentError, CollectionError
from gptd_rl.rollouts.making import choose_n_envs, is_recipe, make_env
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
        To continue from states of its episodes; None if it cannot be restored to them.
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
        if isinstance(self.observation_space, spaces.Dict | spaces.Tuple):
            return tuple(part_names(self.observation_space))
        if len(known) == n:
            return known
        kind = "state" if self.is_categorical else "input"
        return tuple(f"{kind} {i}" for i in range(n))


def part_names(space: Space[Any], name: str = "") -> list[str]:
    """Names of the coordinates of a flattened observation by its keys: "position[0]", "room = 2", "arm.angle"."""
    if isinstance(space, spaces.Dict):
        parts = [part_names(part, f"{name}.{key}" if name else str(key)) for key, part in space.items()]
        return [one for names in parts for one in names]
    if isinstance(space, spaces.Tuple):
        return [one for i, part in enumerate(space) for one in part_names(part, f"{name}[{i}]")]
    if isinstance(space, spaces.Discrete):
        return [f"{name} = {space.start + i}" for i in range(space.n)]
    places = [f"{name}[{', '.join(map(str, place))}]" for place in np.ndindex(space.shape or ())]
    if isinstance(space, spaces.MultiDiscrete):
        digits = zip(places, space.start.flat, space.nvec.flat, strict=True)
        return [f"{place} = {start + i}" for place, start, n in digits for i in range(n)]
    return places if len(places) > 1 else [name]


@contextmanager
def open_environment(
    env: EnvLike, policy: Policy, n_transitions: int, env_kwargs: Mapping[str, Any] | None = None
) -> Iterator[tuple[Environment, Policy]]:
    """Open an environment; yields it, and the policy for it. Environments made here are closed at the end.

    Parameters
    ----------
    env : str, EnvSpec, function, gymnasium.Env or VectorEnv, Stable-Baselines3 VecEnv, or None
        None: the one of the model. A `VecNormalize` is taken off, and the policy normalizes its observations instead.
    policy : as for `gptd_rl.collect`
    n_transitions : int
        Transitions to be collected.
    env_kwargs : mapping, optional
        Arguments of an environment that is made here.
    """
    if env is None:
        env = getattr(policy, "get_env", lambda: None)()
        if env is None:
            raise AgentError("there is no environment: the agent has none of its own, so give one.")
    env, policy = _without_normalization(env, policy)
    kwargs = dict(env_kwargs or {})
    if kwargs and not is_recipe(env):
        raise TypeError("env_kwargs are for an environment that is made here: give its id, or a function.")
    with ExitStack() as opened:
        single = _single(env, kwargs, opened)
        spaced = single if single is not None else env
        observation = getattr(spaced, "single_observation_space", spaced.observation_space)
        action = getattr(spaced, "single_action_space", spaced.action_space)
        check_spaces(policy, spaced)
        try:
            require_flat(observation)
        except ValueError as error:
            raise CollectionError(str(error)) from None
        vector_env = env
        if is_recipe(env):
            n = choose_n_envs(n_transitions, time_limit=time_limit(spaced))
            vector_env = SyncVectorEnv([lambda: make_env(env, **kwargs) for _ in range(n)])
            opened.enter_context(closing(vector_env))
        template = None if single is None else _bare(single)
        if template is not None and episode_maker(template) is None:
            template = None
        yield Environment(_name(env, single), vector_env, template, observation, action), policy


def time_limit(env: gym.Env[Any, Any]) -> int | None:
    """Steps after which an environment ends an episode; None if it does not say."""
    limits = [layer._max_episode_steps for layer in layers(env) if isinstance(layer, TimeLimit)]
    return min(limits, default=env.spec.max_episode_steps if env.spec is not None else None)


def _single(env: Any, kwargs: dict[str, Any], opened: ExitStack) -> gym.Env[Any, Any] | None:
    """One environment like those of a vector, made if necessary; None if there is no way to have it."""
    if is_recipe(env):
        return opened.enter_context(make_env(env, **kwargs))
    if isinstance(env, gym.Env):
        return env
    sb3 = sys.modules.get("stable_baselines3.common.vec_env")
    inner = env
    while isinstance(inner, RecordVectorEpisodes) or (sb3 is not None and isinstance(inner, sb3.VecMonitor)):
        inner = inner.env if isinstance(inner, RecordVectorEpisodes) else inner.venv
    if isinstance(inner, SyncVectorEnv) or (sb3 is not None and isinstance(inner, sb3.DummyVecEnv)):
        return inner.envs[0]
    if isinstance(inner, AsyncVectorEnv):
        return opened.enter_context(make_env(inner.env_fns[0]))
    if isinstance(env, VectorEnv) or (sb3 is not None and isinstance(env, sb3.VecEnv)):
        return None
    raise TypeError(
        "expected an environment id, a function that makes one, a gymnasium Env or VectorEnv, or a "
        f"Stable-Baselines3 VecEnv; got {type(env).__name__}."
    )


def _bare(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Without outer wrappers that only write down what happens, maybe to an open file."""
    monitor = sys.modules.get("stable_baselines3.common.monitor")
    kinds: tuple[Any, ...] = (RecordEpisodeStatistics, *([monitor.Monitor] if monitor is not None else []))
    while isinstance(env, kinds):
        env = env.env
    return env


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
    if is_recipe(env) and single is not None and single.spec is None:
        return type(single.unwrapped).__name__
    spec = getattr(single, "spec", None) or getattr(env, "spec", None) or (env if isinstance(env, EnvSpec) else None)
    return spec.id if spec is not None else type(getattr(single, "unwrapped", env)).__name__
