"""Prior means of V for an evaluation: functions from trajectories to functions of states.

A learner takes some episodes and predicts others, so that each can be cross-validated (`gptd_rl.estimators.conformal`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.left_out import Values, folds
from gptd_rl.temporal.means import subtract_mean
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array, IntArray

# Penalties of ridge regression, in units of the mean square of a feature and of the number of returns.
PENALTIES = np.logspace(-6, 1, 15)


class CriticLike(Protocol):
    """The value function of an agent, with the features of its last layer."""

    def __call__(self, states: Array) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        ...

    def features(self, states: Array) -> Array:
        """Inputs of the last layer, of shape (m, n_features)."""
        ...


def return_bounds(data: Trajectories) -> tuple[float, float]:
    """The smallest and the largest return that the data allow.

    The rewards that a truncated episode lacks are replaced by the smallest or the largest reward, for ever.
    """
    returns, gamma = Returns.of(data), float(data.discounts.max(initial=0.0))
    y, z = returns.y[returns.usable], returns.z[returns.usable]
    if gamma >= 1.0 and z.any():
        return -np.inf, np.inf
    horizon = 1.0 / (1.0 - gamma) if gamma < 1.0 else 0.0
    worst, best = min(float(data.rewards.min()), 0.0), max(float(data.rewards.max()), 0.0)
    return float((y + z * worst * horizon).min()), float((y + z * best * horizon).max())


def monte_carlo(data: Trajectories) -> Values:
    """One number for all states: the average return."""
    returns = Returns.of(data)
    # y = (1 − z) V for a constant V
    weight = 1.0 - returns.z[returns.usable]
    total = float(weight @ weight)
    constant = float(weight @ returns.y[returns.usable]) / total if total > 0 else 0.0
    return lambda states: np.full(len(states), constant)


@dataclass(frozen=True, eq=False)
class RefittedCritic:
    """The agent's critic, corrected by a refit of its last layer.

    The correction is a ridge regression of the critic's errors on the features of its last layer; the penalty is the
    one that predicts left-out episodes best.
    """

    critic: CriticLike

    def __call__(self, data: Trajectories) -> Values:
        """Fit the correction to `data`."""
        returns = Returns.of(subtract_mean(data, self.critic))
        seen = self.critic.features(data.states)
        # Features are clipped to the range seen: in units of a small standard deviation they would extrapolate far.
        low, high, centre, spread = seen.min(axis=0), seen.max(axis=0), seen.mean(axis=0), seen.std(axis=0)
        spread = np.where(spread > 1e-8 * max(spread.max(initial=0.0), 1e-300), spread, np.inf)

        def standardise(features: Array) -> Array:
            """Standardised features, and a constant, of shape (m, n_features + 1)."""
            return np.column_stack([(np.clip(features, low, high) - centre) / spread, np.ones(len(features))])

        A, y = returns.difference(standardise(seen))[returns.usable], returns.y[returns.usable]
        weights = _ridge(A, y, _best_penalty(A, y, returns.episode[returns.usable]))
        return lambda x: self.critic(x) + standardise(self.critic.features(x)) @ weights


def _ridge(A: Array, y: Array, penalty: float) -> Array:
    """W = (AᵀA + λnI)⁻¹Aᵀy, of shape (n_features,)."""
    gram = A.T @ A
    gram.flat[:: len(gram) + 1] += penalty * len(A)
    return np.asarray(np.linalg.solve(gram, A.T @ y))


def _best_penalty(A: Array, y: Array, episodes: IntArray) -> float:
    """The λ that predicts left-out episodes best; with AᵀA = UΛUᵀ, w = U(Λ + λnI)⁻¹UᵀAᵀy for each."""
    fold = folds(episodes)
    errors = np.zeros(len(PENALTIES))
    if (fold == fold[0]).all():  # a single episode
        return float(PENALTIES[-1])
    for f in np.unique(fold):
        out = fold == f
        values, vectors = np.linalg.eigh(A[~out].T @ A[~out])
        projected, right = A[out] @ vectors, vectors.T @ (A[~out].T @ y[~out])
        for i, penalty in enumerate(PENALTIES):
            errors[i] += np.sum((y[out] - projected @ (right / (values + penalty * (~out).sum()))) ** 2)
    return float(PENALTIES[errors.argmin()])
