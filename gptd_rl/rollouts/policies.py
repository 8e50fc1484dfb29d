"""Every kind of policy as one: a batch of observations in, a batch of actions out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium import Space
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from gptd_rl.data.spaces import row
from gptd_rl.types import BoolArray


class Act(Protocol):
    """Actions for all sub-environments at once."""

    heeds_flags: bool  # whether `starting` and `active` matter; else they may be anything

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """Choose actions.

        Parameters
        ----------
        observations : array of shape (n_envs, ...), or dict or tuple of such
        starting : ndarray of shape (n_envs,)
            Where an episode begins with this action.
        active : ndarray of shape (n_envs,)
            Where the action matters; elsewhere any valid one will do.

        Returns
        -------
        actions : array of shape (n_envs, ...)
        """
        ...


def as_act(
    policy: Any,
    *,
    observation_space: Space[Any],
    action_space: Space[Any],
    n_envs: int,
    seed: int | None,
    deterministic: bool,
) -> Act:
    """Turn a policy of any kind into an `Act`."""
    if policy is None:
        return RandomActions(action_space, n_envs, seed)
    if hasattr(policy, "predict"):
        return Predict(policy.predict, deterministic)
    if not callable(policy):
        raise TypeError(
            "expected a policy with predict(obs, deterministic=...), a callable obs -> action, or "
            f"None for random actions; got {type(policy).__name__}."
        )
    if getattr(policy, "batched", False):
        return OnBatches(policy)
    return RowByRow(policy, observation_space, n_envs)


class OnBatches:
    """A callable that takes all observations at once."""

    heeds_flags = False

    def __init__(self, policy: Callable[[Any], Any]) -> None:
        self.policy = policy

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """See `Act`."""
        return self.policy(observations)


class Predict:
    """Stable-Baselines3's `predict` on the whole batch, with the state that recurrent ones keep."""

    def __init__(self, predict: Callable[..., Any], deterministic: bool) -> None:
        self.predict, self.deterministic = predict, deterministic
        self.state: Any = None
        parameters = inspect.signature(predict).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self.heeds_flags = takes_any or {"state", "episode_start"} <= parameters.keys()

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """See `Act`."""
        memory = dict(state=self.state, episode_start=starting) if self.heeds_flags else {}
        answer = self.predict(observations, deterministic=self.deterministic, **memory)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"predict must return (actions, state), as in Stable-Baselines3; got {type(answer).__name__}."
            )
        actions, self.state = answer
        return actions


class RowByRow:
    """A callable that takes one observation: called only where its action matters.

    Elsewhere its last action is taken again; at first it is called everywhere to have one.
    """

    heeds_flags = True

    def __init__(self, policy: Callable[[Any], Any], observation_space: Space[Any], n_envs: int) -> None:
        self.policy, self.space = policy, observation_space
        self.actions: list[Any] = [None] * n_envs
        self.asked = False

    def __call__(self, observations: Any, starting: BoolArray, active: BoolArray) -> Any:
        """See `Act`."""
        for i in np.flatnonzero(active).tolist() if self.asked else range(len(self.actions)):
            self.actions[i] = self.policy(row(self.space, observations, i))
        self.asked = True
        return np.asarray(self.actions)


class RandomActions:
    """Uniform actions, a stream of its own for each sub-environment.

    So sub-environment i takes the same actions however the environments are batched and whenever
    the others restart. Its stream is not that of an environment with the same seed: the two would
    draw the same numbers.
    """

    heeds_flags = True
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
        """See `Act`."""
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
