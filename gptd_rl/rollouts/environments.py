"""Any environment behind one interface: batched steps that report every episode end and the true final state.

An `EnvAdapter` hides how an environment batches, restarts and reports ends. Each step returns the observations that the
policy sees next and, for the episodes that ended, the final states. Where a vector environment uses an extra step to
restart (`AutoresetMode.NEXT_STEP`), `restart_steps` is 1, and that step is no transition.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import flatdim
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from gptd_rl.checks import as_floats, one_line
from gptd_rl.data.minari import vectors
from gptd_rl.data.spaces import Numbers, OutsideSpaceError, describe, flattener, require_flat, stack
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.actions import ActionCheck
from gptd_rl.rollouts.making import is_recipe, make_env
from gptd_rl.rollouts.masks import Masks, action_masks_of, as_masks
from gptd_rl.rollouts.observations import ObservationCheck
from gptd_rl.seeds import env_seeds
from gptd_rl.types import BoolArray, EnvLike

NUMBERS = (float, int, np.floating, np.integer, np.bool_)


class Step(NamedTuple):
    """Result of one batched step."""

    observations: Any  # that the policy sees next
    states: Numbers  # the same, flattened  [n_envs, n_dims]
    rewards: Numbers  # [n_envs]
    terminated: BoolArray  # [n_envs]
    truncated: BoolArray  # [n_envs]
    final_states: Numbers | None  # of the episodes that ended, unless in `states`  [k, n_dims]


class EnvAdapter(ABC):
    """Environments stepped together.

    Parameters
    ----------
    n_envs : int
    observation_space, action_space : gymnasium.Space
        Spaces of one environment.
    """

    restart_steps = 0  # batched steps between an end and the first step of the next episode
    spec: EnvSpec | None = None  # specification of one environment, if known

    def __init__(self, n_envs: int, observation_space: Space[Any], action_space: Space[Any]) -> None:
        try:
            require_flat(observation_space)
            self.actions = ActionCheck(action_space, n_envs)
            self.observations = ObservationCheck(observation_space)
        except ValueError as error:
            raise CollectionError(str(error)) from None
        self.n_envs = n_envs
        self.observation_space, self.action_space = observation_space, action_space
        self._flatten = flattener(observation_space)
        self._states_shape = n_envs, flatdim(observation_space)

    @abstractmethod
    def reset(self, seed: int | None) -> Any:
        """Start an episode everywhere and return the observations; environments get `env_seeds(seed, n)`."""

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Step:
        """Act everywhere; ended episodes start again by themselves."""

    def masks(self) -> Masks | None:
        """The function that says which actions are allowed, as `action_masks` of the environments; None without it."""
        return None

    def flatten(self, observations: Any) -> Numbers:
        """Observations of all sub-environments as states, of shape (n_envs, n_dims)."""
        states = self._flatten(observations)
        if np.shape(states) != self._states_shape:
            raise CollectionError(
                f"the environment must return {self.n_envs} observations of {describe(self.observation_space)}; "
                f"got shape {np.shape(observations)}"
            )
        return states

    def final_states(self, observation_of: Callable[[int], Any], done: BoolArray, like: Any) -> Numbers:
        """Final states of the episodes that ended, of shape (k, n_dims), with the dtypes of the batch `like`."""
        ended = np.flatnonzero(done).tolist()
        try:
            return self._flatten(stack(self.observation_space, [observation_of(i) for i in ended], like=like))
        except OutsideSpaceError as error:
            error.row = ended[error.row]
            raise

    def check_numbers(self, rewards: Any, *flags: Any) -> None:
        """Refuse rewards and flags that are not one number for each sub-environment."""
        expected = (self.n_envs,)
        for values in (rewards, *flags):
            if np.shape(values) != expected:
                raise CollectionError(
                    f"the environment must return {self.n_envs} rewards and flags; got shape {np.shape(values)}"
                )
        if isinstance(rewards, np.ma.MaskedArray) or np.asarray(rewards).dtype.kind not in "biuf":
            raise CollectionError(f"the environment must return rewards that are numbers; got {one_line(rewards)}")


class SingleEnvAdapter(EnvAdapter):
    """One `gymnasium.Env`, as a batch of one."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(1, env.observation_space, env.action_space)
        self.env, self.spec = env, env.spec
        self.failed_reset: Exception | None = None
        self._shape, self._dtype = env.observation_space.shape, env.observation_space.dtype

    def masks(self) -> Masks | None:
        """See `EnvAdapter`."""
        return action_masks_of([self.env])

    def reset(self, seed: int | None) -> Any:
        """See `EnvAdapter`."""
        self.failed_reset = None
        return self._stack(first_observation(self.env.reset(seed=seed)))

    def _stack(self, observation: Any) -> Any:
        """A batch of one observation."""
        if type(observation) is np.ndarray and observation.dtype == self._dtype and observation.shape == self._shape:
            return observation[np.newaxis].copy()  # what `stack` returns, sooner
        return stack(self.observation_space, [observation])

    def step(self, actions: NDArray[Any]) -> Step:
        """See `EnvAdapter`. If an episode cannot start again, the next step fails, so that the last one is kept."""
        if self.failed_reset is not None:
            raise self.failed_reset
        observation, reward, terminated, truncated, _ = check_length(self.env.step(actions[0]))
        observations = self._stack(observation)
        states, final_states = self._flatten(observations), None
        if terminated or truncated:
            final_states = states
            try:
                observations = self.reset(None)
                states = self._flatten(observations)
            except Exception as error:  # noqa: BLE001  (the next step raises it)
                self.failed_reset = error
                if isinstance(error, OutsideSpaceError):
                    error.is_first = True
        return Step(
            observations,
            states,
            np.array([reward if isinstance(reward, NUMBERS) else as_floats(reward, "reward").item()], dtype=np.float64),
            np.array([terminated], dtype=bool),
            np.array([truncated], dtype=bool),
            final_states,
        )


class VectorEnvAdapter(EnvAdapter):
    """A `gymnasium.vector.VectorEnv`; each autoreset mode is a subclass."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.env = env

    def reset(self, seed: int | None) -> Any:
        """See `EnvAdapter`. One that computes all at once has one generator, which gets `seed`."""
        several = isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        seeds: Any = env_seeds(seed, self.n_envs) if several and seed is not None else seed
        return first_observation(self.env.reset(seed=seeds))

    def masks(self) -> Masks | None:
        """See `EnvAdapter`."""
        env: Any = self.env.unwrapped
        if isinstance(env, SyncVectorEnv):
            return action_masks_of(env.envs)
        try:
            return as_masks(lambda: env.call("action_masks"))
        except Exception:  # noqa: BLE001  (it has no `call`, or its environments have no masks)
            return None

    def step_all(self, actions: NDArray[Any]) -> tuple[Any, ...]:
        """What the environment returns: observations, rewards, terminated, truncated, info."""
        result = check_length(self.env.step(actions))
        self.check_numbers(*result[1:4])
        return result


class NextStepAdapter(VectorEnvAdapter):
    """The step after an end restarts the episode; its action is ignored and it is no transition."""

    restart_steps = 1

    def step(self, actions: NDArray[Any]) -> Step:
        """See `EnvAdapter`."""
        observations, rewards, terminated, truncated, _ = self.step_all(actions)
        return Step(observations, self.flatten(observations), rewards, terminated, truncated, None)


class SameStepAdapter(VectorEnvAdapter):
    """The step that ends an episode returns the first observation of the next one."""

    def step(self, actions: NDArray[Any]) -> Step:
        """See `EnvAdapter`."""
        observations, rewards, terminated, truncated, infos = self.step_all(actions)
        states, final_states = self.flatten(observations), None
        if (done := terminated | truncated).any():
            if "final_obs" not in infos:
                raise CollectionError(
                    f"{self.env} says it resets in the same step, but its info has no 'final_obs', so the states in "
                    "which episodes ended are lost."
                )
            final_states = self.final_states(lambda i: infos["final_obs"][i], done, observations)
        return Step(observations, states, rewards, terminated, truncated, final_states)


class DisabledAutoresetAdapter(VectorEnvAdapter):
    """Ended episodes wait until they are reset one by one."""

    def step(self, actions: NDArray[Any]) -> Step:
        """See `EnvAdapter`."""
        observations, rewards, terminated, truncated, _ = self.step_all(actions)
        states, final_states = self.flatten(observations), None
        if (done := terminated | truncated).any():
            final_states, running = states[done], states[~done]
            observations = first_observation(self.env.reset(options={"reset_mask": done.copy()}))
            states = self.flatten(observations)
            if not np.array_equal(states[~done], running, equal_nan=True):
                raise CollectionError(
                    f"{self.env} does not reset by itself and ignores options['reset_mask']: it also reset "
                    "sub-environments whose episode was under way."
                )
        return Step(observations, states, rewards, terminated, truncated, final_states)


class SB3VecEnvAdapter(EnvAdapter):
    """A Stable-Baselines3 `VecEnv`, with the rewards as they were before any `VecNormalize`."""

    def __init__(self, env: Any) -> None:
        super().__init__(env.num_envs, env.observation_space, env.action_space)
        self.env = env
        self.normalizers = _normalizers(env)  # outermost first
        if self.normalizers:  # the space is that of observations before
            self.observations = ObservationCheck(vectors(flatdim(env.observation_space)))

    def masks(self) -> Masks | None:
        """See `EnvAdapter`."""
        if not (hasattr(self.env, "has_attr") and self.env.has_attr("action_masks")):
            return None
        return as_masks(lambda: self.env.env_method("action_masks"))

    def reset(self, seed: int | None) -> Any:
        """See `EnvAdapter`."""
        if seed is not None:
            self.env.seed(seed)  # seed + i
            if hasattr(self.env.unwrapped, "_seeds"):  # what `reset` uses next
                self.env.unwrapped._seeds = env_seeds(seed, self.n_envs)
        return self.env.reset()

    def step(self, actions: NDArray[Any]) -> Step:
        """See `EnvAdapter`."""
        observations, rewards, done, infos = self.env.step(actions)
        if self.normalizers:
            rewards = self.normalizers[-1].get_original_reward()
        self.check_numbers(rewards, done)
        final_states, terminated = None, done  # no end, so far
        if done.any():
            ended = np.flatnonzero(done)
            final_states = self.final_states(lambda i: infos[i]["terminal_observation"], done, observations)
            terminated = done.copy()
            terminated[ended] = [not infos[i].get("TimeLimit.truncated", False) for i in ended]
        states, truncated = self.flatten(observations), done & ~terminated
        return Step(observations, states, rewards, terminated, truncated, final_states)


def first_observation(result: Any) -> Any:
    """The observation that `reset` returned."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise CollectionError(
            f"reset must return (observation, info), as in Gymnasium; got {type(result).__name__} {one_line(result)}"
        )
    return result[0]


def check_length(result: Any) -> Any:
    """What `step` returned: five values."""
    if len(result) != 5:
        raise CollectionError(
            "step must return (observation, reward, terminated, truncated, info), as in Gymnasium; "
            f"got {len(result)} values"
        )
    return result


@contextmanager
def open_adapter(env: EnvLike) -> Iterator[EnvAdapter]:
    """Open the adapter for `env`, and leave the environment as it was.

    An environment that is made here is closed at the end. `VecNormalize` does not update its statistics.

    Parameters
    ----------
    env : str, EnvSpec, function, gymnasium.Env, gymnasium.vector.VectorEnv, or Stable-Baselines3 VecEnv or model
    """
    if is_recipe(env):
        with make_env(env) as made:
            yield SingleEnvAdapter(made)
        return
    adapter = _adapter_of(carried_env(env) if is_model(env) else env)
    normalizers = adapter.normalizers if isinstance(adapter, SB3VecEnvAdapter) else []
    training = [n.training for n in normalizers]
    try:
        for normalizer in normalizers:
            normalizer.training = False
        yield adapter
    finally:
        for normalizer, was_training in zip(normalizers, training, strict=True):
            normalizer.training = was_training


def is_model(env: Any) -> bool:
    """Whether `env` is a Stable-Baselines3 model, which carries an environment."""
    return hasattr(env, "predict") and hasattr(env, "get_env")


def carried_env(model: Any) -> Any:
    """Environment of a Stable-Baselines3 model."""
    env = model.get_env()
    if env is None:
        raise CollectionError(
            f"the {type(model).__name__} model carries no environment: pass one, as in "
            "collect(env, model, ...), or load the model with env=..."
        )
    return env


def _adapter_of(env: Any) -> EnvAdapter:
    if isinstance(env, gym.Env):
        return SingleEnvAdapter(env)
    if isinstance(env, VectorEnv):
        mode = env.metadata.get("autoreset_mode")
        kinds: dict[Any, Callable[[VectorEnv[Any, Any, Any]], EnvAdapter]] = {
            AutoresetMode.NEXT_STEP: NextStepAdapter,
            AutoresetMode.SAME_STEP: SameStepAdapter,
            AutoresetMode.DISABLED: DisabledAutoresetAdapter,
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
        return SB3VecEnvAdapter(env)
    raise TypeError(
        "expected an environment id, a function that makes one, a gymnasium Env or VectorEnv, or a "
        f"Stable-Baselines3 VecEnv or model; got {type(env).__name__}."
    )


def _normalizers(env: Any) -> list[Any]:
    vec_env = sys.modules["stable_baselines3.common.vec_env"]
    found = []
    while isinstance(env, vec_env.VecEnvWrapper):
        if isinstance(env, vec_env.VecNormalize):
            found.append(env)
        env = env.venv
    return found
