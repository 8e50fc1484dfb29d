"""Learners of V for an evaluation: functions from trajectories to functions of states, and their combination.

A learner takes some episodes and predicts others, so that each can be cross-validated (`gptd_rl.estimators.conformal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from gptd_rl.checks import as_states
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.conformal import Learner, Values, cross_val_predict, folds
from gptd_rl.estimators.gptd import GPTD
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


# ------------------------------------------------------------------------------------ learners


def monte_carlo(data: Trajectories) -> Values:
    """One number for all states: the average return."""
    returns = Returns.of(data)
    # y = (1 − z) V for a constant V
    weight = 1.0 - returns.z[returns.usable]
    total = float(weight @ weight)
    constant = float(weight @ returns.y[returns.usable]) / total if total > 0 else 0.0
    return lambda states: np.full(len(states), constant)


@dataclass(frozen=True, eq=False)
class Conditioning:
    """GPTD with its θ, and its inducing points if it is sparse, conditioned on the data given.

    Parameters
    ----------
    v : GPTD
        Fitted.
    mean : Learner, optional
        Prior mean, learnt from the data given.
    """

    v: GPTD
    mean: Learner | None = None

    def __call__(self, data: Trajectories) -> Values:
        """Condition on `data`."""
        if self.mean is None:
            return self.v.condition(data).predict
        mean = self.mean(data)
        f = self.v.condition(subtract_mean(data, mean))
        return lambda states: mean(states) + f.predict(states)


@dataclass(frozen=True, eq=False)
class Clipped:
    """A learner whose values are clipped to the returns that the data allow."""

    learner: Learner

    def __call__(self, data: Trajectories) -> Values:
        """Learn, and clip to `return_bounds`."""
        values, (low, high) = self.learner(data), return_bounds(data)
        return lambda states: np.clip(values(states), low, high)


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


# ------------------------------------------------------------------------------------ combination


def stacking_weights(values: Array, returns: Returns) -> Array:
    """Weights of learners that together predict left-out returns best: none negative, their sum 1.

    Stacked regressions (Breiman, 1996).

    Parameters
    ----------
    values : ndarray of shape (n_states, k)
        From `cross_val_predict`.
    returns : Returns

    Returns
    -------
    weights : ndarray of shape (k,)
    """
    A, y = returns.difference(values)[returns.usable], returns.y[returns.usable]
    scale = max(np.abs(A).max(), np.abs(y).max()) or 1.0
    # min ‖Aw − y‖² with w ≥ 0; the last row, a heavy one, makes the sum 1
    heavy = 1e3 * np.sqrt(len(A))
    weights, _ = nnls(np.vstack([A / scale, np.full(A.shape[1], heavy)]), np.append(y / scale, heavy))
    return weights / weights.sum()


class StackedValue:
    """Estimator of V that combines learners by stacking; it cross-validates itself for `Calibrated`.

    Parameters
    ----------
    learners : mapping of str to Learner
    relevances : ndarray of shape (n_dims,), optional
        Of the inputs, for distances between states.

    Attributes
    ----------
    weights_ : ndarray of shape (n_learners,)
    cross_val_values_ : ndarray of shape (n_states,)
        The value of each state, predicted without its episode.
    """

    def __init__(self, learners: Mapping[str, Learner], relevances: Array | None = None) -> None:
        self.learners, self.relevances_ = dict(learners), relevances

    def fit(self, data: Trajectories) -> Self:
        """Weigh the learners by their errors at left-out episodes, and train them on all data."""
        learners = list(self.learners.values())
        values = cross_val_predict(learners, data)
        single = len(learners) == 1
        self.weights_ = np.ones(1) if single else stacking_weights(values, Returns.of(data))
        self.cross_val_values_ = values @ self.weights_
        self._members = [(w, learner(data)) for w, learner in zip(self.weights_, learners, strict=True) if w > 0]
        return self

    def predict(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        x = as_states(states, name="states")
        return np.asarray(np.sum([weight * values(x) for weight, values in self._members], axis=0))
