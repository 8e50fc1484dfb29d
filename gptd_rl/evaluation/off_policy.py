"""The value of one policy, from what another one did."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import as_states
from gptd_rl.data.spaces import unflatten
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.evaluation.fitting import excerpt, uninterrupted
from gptd_rl.evaluation.results import OffPolicy, Relevance
from gptd_rl.rollouts.policies import as_batch_policy
from gptd_rl.types import Array

N_FITTED = 3000  # states, at most
N_ASKED = 2000
FAR = 0.1  # of the range of a continuous action


class OnStates:
    """A policy as a function of flattened states: what it would do there."""

    batched = True

    def __init__(self, policy: Any, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.policy, self.space, self.action_space = policy, observation_space, action_space

    def __call__(self, states: ArrayLike) -> NDArray[Any]:
        """The most likely actions in states of shape (m, n_dims)."""
        x = np.asarray(states)
        everywhere = np.ones(len(x), dtype=bool)
        act = as_batch_policy(
            self.policy,
            observation_space=self.space,
            action_space=self.action_space,
            n_envs=len(x),
            seed=0,
            deterministic=True,
        )
        return np.asarray(act(unflatten(self.space, x), everywhere, everywhere))


class ValueOfActions:
    """V(x) = Q(x, π(x)), with the intervals of Q, as far as rewards allow: the worst or the best of them, for ever."""

    def __init__(self, q: GPTDQ, act: OnStates, data: Trajectories) -> None:
        self.q, self.act = q, act
        gamma = float(data.discounts.max(initial=0.0))
        horizon = 1.0 / (1.0 - gamma) if gamma < 1.0 else np.inf
        worst, best = min(float(data.rewards.min()), 0.0), max(float(data.rewards.max()), 0.0)
        self.low, self.high = worst and worst * horizon, best and best * horizon

    def predict(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        x = as_states(states, name="states")
        return np.clip(self.q.predict(x, self.act(x)), self.low, self.high)

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval of the model: it does not know of the bias that off-policy data have in stochastic systems."""
        x = as_states(states, name="states")
        lower, upper = self.q.confidence_interval(x, self.act(x), level)
        # An interval of what cannot be says that the model is wrong: then anything may be.
        impossible = (lower > self.high) | (upper < self.low)
        lower = np.where(impossible, self.low, np.clip(lower, self.low, self.high))
        return lower, np.where(impossible, self.high, np.clip(upper, self.low, self.high))


def fit_target(data: Trajectories, act: OnStates) -> tuple[ValueOfActions, Relevance]:
    """Learn the value of the policy `act` from `data`, which another policy made."""
    part = excerpt(data, N_FITTED)
    with uninterrupted():
        q = GPTDQ(n_restarts=0).fit(part, policy=act)
    everything = tuple(range(data.n_dims))
    strengths = q.relevances_ * part.states.var(axis=0)
    return ValueOfActions(q, act, data), Relevance(
        "ard", strengths, None, None, everything, (), np.nan, np.nan, part.n_transitions
    )


def compare_policies(data: Trajectories, act: OnStates, space: Space[Any], target: str) -> OffPolicy:
    """How far what `act` would do is from what was done in `data`."""
    inner = np.ones(len(data), dtype=bool)
    inner[data.last] = False
    rows = np.flatnonzero(inner)
    rows = rows[np.linspace(0, len(rows) - 1, min(N_ASKED, len(rows))).round().astype(int)]
    assert data.actions is not None
    done, would = data.actions[rows], act(data.states[rows])
    if isinstance(space, spaces.Box):
        width = np.where(np.isfinite(space.high - space.low), space.high - space.low, 2.0 * np.abs(done).max())
        apart = np.abs(would.reshape(done.shape) - done) / np.maximum(width, 1e-12)
        apart = apart.reshape(len(rows), -1).max(axis=1)
        differ = apart > FAR
    else:
        differ = (would.reshape(done.shape) != done).reshape(len(rows), -1).any(axis=1)
        apart = differ.astype(np.float64)
    share = float(differ.mean())
    text = ""
    if share > 0.02:
        text = (
            f"{target} would act otherwise in {100 * share:.0f} % of the states: the data say little about what "
            "follows there, and in a stochastic system the estimate is biased. Trust the check by fresh rollouts, not "
            "the interval."
        )
    return OffPolicy(target, len(rows), share, float(apart.mean()), text)
