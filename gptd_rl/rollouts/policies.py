"""Any policy as one batched function: a batch of observations in, a batch of actions out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from gptd_rl.data.spaces import row, stack, unflatten
from gptd_rl.data.state_actions import copy_action
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.masks import Masks
from gptd_rl.types import BoolArray, Policy


class BatchPolicy(Protocol):
    """Actions for all sub-environments at once."""

    needs_episode_flags: bool  # whether `starting` and `active` are used

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """Choose actions.

        Parameters
        ----------
        observations : array of shape (n_envs, ...), or dict or tuple of such
        starting : ndarray of shape (n_envs,)
            Where an episode begins with this action.
        active : ndarray of shape (n_envs,)
            Where the action is used; elsewhere any valid action may be returned.

        Returns
        -------
        actions : array of shape (n_envs, ...)
        """
        ...


def as_batch_policy(
    policy: Policy,
    *,
    observation_space: Space[Any],
    action_space: Space[Any],
    n_envs: int,
    seed: int | None,
    deterministic: bool,
    masks: Masks | None = None,
) -> BatchPolicy:
    """Turn a policy of any kind into a `BatchPolicy`.

    Parameters
    ----------
    policy : object with `predict`, callable, or None
        As for `gptd_rl.collect`.
    observation_space, action_space : gymnasium.Space
        Spaces of one environment.
    n_envs : int
    seed : int or None
        Seed of random actions.
    deterministic : bool
        Passed to `predict`.
    masks : callable, optional
        Which actions are allowed now, in each of the environments; None if they do not say.
    """
    if policy is None:
        return RandomActions(action_space, n_envs, seed)
    if hasattr(policy, "predict"):
        return PredictAdapter(policy, deterministic, masks)
    if not callable(policy):
        raise TypeError(
            "expected a policy with predict(obs, deterministic=...), a callable obs -> action, or "
            f"None for random actions; got {type(policy).__name__}."
        )
    if getattr(policy, "batched", False):
        return BatchCallable(policy)
    return SingleCallable(policy, observation_space, n_envs)


# -------------------------------------------------------------------------------------- kinds of policies


class BatchCallable:
    """A callable of all observations at once."""

    needs_episode_flags = False

    def __init__(self, policy: Callable[[Any], Any]) -> None:
        self.policy = policy

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """See `BatchPolicy`."""
        return self.policy(observations)


class PredictAdapter:
    """Stable-Baselines3's `predict` on the whole batch, with hidden states of recurrent policies and action masks."""

    def __init__(self, policy: Any, deterministic: bool, masks: Masks | None = None) -> None:
        self.predict, self.deterministic = policy.predict, deterministic
        self.state: Any = None
        parameters = inspect.signature(policy.predict).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.needs_episode_flags = takes_any or {"state", "episode_start"} <= parameters.keys()
        self.masks = masks if needs_masks(policy) else None
        if self.masks is None and needs_masks(policy):
            raise CollectionError(
                f"{_type_name(policy)} chooses among the actions that are allowed, and nothing here says which are: "
                "the environment needs a method action_masks(), as sb3_contrib.common.wrappers.ActionMasker gives it."
            )

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """See `BatchPolicy`."""
        more: dict[str, Any] = dict(state=self.state, episode_start=starting) if self.needs_episode_flags else {}
        if self.masks is not None:
            more["action_masks"] = self.masks()
        answer = self.predict(observations, deterministic=self.deterministic, **more)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"predict must return (actions, state), as in Stable-Baselines3; got {type(answer).__name__}."
            )
        actions, self.state = answer
        return actions


def needs_masks(policy: Any) -> bool:
    """Whether a policy chooses among allowed actions only, as MaskablePPO of sb3-contrib does."""
    predict = getattr(getattr(policy, "model", policy), "predict", None)
    return predict is not None and "action_masks" in inspect.signature(predict).parameters


def _type_name(policy: Any) -> str:
    return type(getattr(policy, "model", policy)).__name__


class SingleCallable:
    """A callable of one observation, called only in active sub-environments.

    Inactive ones repeat their previous action. The first call goes to every sub-environment, so that each has one.
    """

    needs_episode_flags = True

    def __init__(self, policy: Callable[[Any], Any], observation_space: Space[Any], n_envs: int) -> None:
        self.policy, self.space = policy, observation_space
        self.actions: list[Any] = [None] * n_envs
        self.called = False

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """See `BatchPolicy`."""
        for i in np.flatnonzero(active).tolist() if self.called else range(len(self.actions)):
            self.actions[i] = copy_action(self.policy(row(self.space, observations, i)))
        self.called = True
        return np.asarray(self.actions)


class RandomActions:
    """Uniform actions, with one random stream per sub-environment.

    Sub-environment i takes the same actions however environments are batched and whenever the others restart. Its
    stream differs from that of an environment with the same seed, so that actions do not repeat the environment's
    random numbers.
    """

    needs_episode_flags = True
    BLOCK = 512

    def __init__(self, space: Space[Any], n_envs: int, seed: int | None) -> None:
        roots = np.random.SeedSequence(seed).spawn(n_envs)
        self.streams = [batch_space(space, self.BLOCK) for _ in range(n_envs)]
        for stream, root in zip(self.streams, roots, strict=True):
            stream.seed(int(root.generate_state(1)[0]))
        drawn = [[stream.sample() for stream in self.streams] for _ in range(2)]
        # Two blocks: with less than one used up, the other lasts for BLOCK steps.
        self.actions = np.concatenate([np.stack(d, axis=1) for d in drawn])  # [2 BLOCK, n_envs, …]
        self.used = np.zeros(n_envs, dtype=np.int64)
        self.envs = np.arange(n_envs)
        self.steps = 0

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> NDArray[Any]:
        """See `BatchPolicy`."""
        actions: NDArray[Any] = self.actions[self.used, self.envs]
        self.used += active
        self.steps += 1
        if self.steps == self.BLOCK:
            self._draw()
        return actions

    def _draw(self) -> None:
        self.steps = 0
        for i in np.flatnonzero(self.used >= self.BLOCK):
            self.actions[: self.BLOCK, i] = self.actions[self.BLOCK :, i]
            self.actions[self.BLOCK :, i] = self.streams[i].sample()
            self.used[i] -= self.BLOCK


# -------------------------------------------------------------------------------------- policies without a rollout


class EpisodePolicy:
    """A policy in several episodes that start together, one call per step.

    Parameters
    ----------
    policy : object with `predict`, callable, or None
        As for `gptd_rl.collect`; recurrent ones keep their hidden state from call to call.
    observation_space, action_space : gymnasium.Space
        Spaces of one environment.
    n_envs : int
    seed : int, optional
        Seed of random actions.
    deterministic : bool
        Passed to `predict`.
    masks : callable, optional
        As for `as_batch_policy`.
    memories : list, optional
        What `memory` returned for the state in which each episode is; by default they start.
    """

    def __init__(
        self,
        policy: Policy,
        observation_space: Space[Any],
        action_space: Space[Any],
        n_envs: int,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        masks: Masks | None = None,
        memories: list[Any] | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.policy = as_batch_policy(
            policy,
            observation_space=observation_space,
            action_space=action_space,
            n_envs=n_envs,
            seed=seed,
            deterministic=deterministic,
            masks=masks,
        )
        self.starting = np.ones(n_envs, dtype=bool)
        if memories is not None and any(memory is not None for memory in memories):
            self._remember(memories)

    def memory(self, i: int) -> Any:
        """What a recurrent policy remembers in episode i: a tuple of arrays; None of others, and at its start."""
        state: Any = getattr(self.policy, "state", None)
        if not _is_memory(state, len(self.starting)) or self.starting[i]:
            return None
        return tuple(part[:, i].copy() for part in state)

    def _remember(self, memories: list[Any]) -> None:
        """Continue with memories, instead of starting."""
        like = next(memory for memory in memories if memory is not None)
        self.starting = np.array([memory is None for memory in memories])
        filled = [tuple(map(np.zeros_like, like)) if memory is None else memory for memory in memories]
        self.policy.state = tuple(np.stack(parts, axis=1) for parts in zip(*filled, strict=True))  # type: ignore[attr-defined]  # has one, since it remembered

    def __call__(self, observations: Any, active: BoolArray | None = None) -> Any:
        """Actions for one step.

        Parameters
        ----------
        observations : list of n_envs observations, or a batch of them
        active : ndarray of shape (n_envs,), optional
            Episodes that are still running; by default all. The actions of others are arbitrary.

        Returns
        -------
        actions : array of shape (n_envs, ...)

        Raises
        ------
        CollectionError
            If the policy fails.
        """
        if isinstance(observations, list):
            observations = stack(self.observation_space, observations)
        running = np.ones(len(self.starting), dtype=bool) if active is None else active
        try:
            actions = self.policy(observations, self.starting, running)
        except Exception as error:
            raise CollectionError(f"the policy failed: {type(error).__name__}: {error}") from error
        self.starting = np.zeros_like(self.starting)
        return actions


class StatePolicy:
    """A policy as a function of flattened states: its action in each of many independent states.

    The result can be passed as a policy itself, to `GPTDQ.fit` or to `query_policy`.

    Parameters
    ----------
    policy : object with `predict`, callable, or None
        As for `gptd_rl.collect`. Recurrent policies see every state as the start of an episode.
    observation_space, action_space : gymnasium.Space
        Spaces of one environment; states are turned back into its observations.
    deterministic : bool
        Passed to `predict`.
    seed : int, optional
        Seed of random actions.
    batch_size : int
        Largest number of observations that the policy gets at once.
    """

    batched = True

    def __init__(
        self,
        policy: Policy,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        deterministic: bool = True,
        seed: int | None = 0,
        batch_size: int = 16_384,
    ) -> None:
        self.policy, self.deterministic = policy, deterministic
        self.observation_space, self.action_space = observation_space, action_space
        self.seed, self.batch_size = seed, batch_size

    def __call__(self, states: ArrayLike) -> NDArray[Any]:
        """Actions in states of shape (n, n_dims), of shape (n, ...)."""
        x = np.asarray(states)
        if self.policy is None or not len(x):
            sampled = batch_space(self.action_space, max(1, len(x)))
            sampled.seed(self.seed)
            return np.asarray(sampled.sample())[: len(x)]
        batches = [x[i : i + self.batch_size] for i in range(0, len(x), self.batch_size)]
        return np.concatenate([self._answer(batch) for batch in batches])

    def _answer(self, x: NDArray[Any]) -> NDArray[Any]:
        act = EpisodePolicy(
            self.policy,
            self.observation_space,
            self.action_space,
            len(x),
            seed=self.seed,
            deterministic=self.deterministic,
        )
        actions = np.asarray(act(unflatten(self.observation_space, x)))
        if actions.shape[:1] != (len(x),):
            raise ValueError(f"the policy was asked in {len(x)} states and gave actions of shape {actions.shape}.")
        return actions


def _is_memory(state: Any, n_envs: int) -> bool:
    """Whether a hidden state is of recurrent layers, as sb3-contrib's: arrays of shape (n_layers, n_envs, ...)."""
    return (
        isinstance(state, tuple)
        and len(state) > 0
        and all(isinstance(part, np.ndarray) and part.ndim >= 2 and part.shape[1] == n_envs for part in state)
    )
