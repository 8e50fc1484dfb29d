"""Ways to learn V from trajectories: each a function from data to a function of states.

All of them take data of *some* episodes and can be asked about others, so that each can be judged on episodes it has
not seen (`gptd_rl.evaluation.calibration`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.engines import open_dataset
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.inference import sparse
from gptd_rl.selection.bound import Bound, Choice
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.types import Array

Rows = NDArray[np.int64]
Values = Callable[[Array], Array]
Learner = Callable[[Trajectories], Values]

# Penalties that are tried, by the mean square of a feature and by the number of returns.
PENALTIES = np.logspace(-6, 1, 15)
N_FOLDS = 5
# States from which basis states are chosen.
N_CANDIDATES = 2000


class Critic(Protocol):
    """What an agent itself thinks of states."""

    def __call__(self, states: Array) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""

    def features(self, states: Array) -> Array:
        """What the last layer makes its value of, of shape (m, n_features)."""


# ------------------------------------------------------------------------------------ returns, with their tails


@dataclass(frozen=True, eq=False)
class Returns:
    """Discounted returns as far as the data go: ``y = V(x) − z V(x_end) + noise``.

    Where an episode was cut off, the future of its last state x_end is missing; z is its discount, 0 for episodes that
    ended by themselves. So what is compared with y is a difference of values, and nothing is made up.
    """

    y: Array  # [n]
    z: Array  # [n]
    end: Rows  # row of x_end  [n]
    usable: Rows  # at which y says enough about V(x)  [k]
    episode: Rows  # [n]

    @classmethod
    def of(cls, data: Trajectories) -> Returns:
        """Returns of `data`; of little use are those that are mostly tail."""
        H = TemporalDifference.of(data)
        z = H.null_vectors()
        inner = np.ones(len(data), dtype=bool)
        inner[data.last] = False
        most = 0.5 if (z[inner] <= 0.5).mean() >= 0.1 else float(np.median(z[inner]))
        usable = np.flatnonzero(inner & (z <= most)).astype(np.int64)
        return cls(H.returns(data.rewards), z, np.repeat(data.last, data.lengths), usable, data.segment_of)

    def difference(self, values: Array) -> Array:
        """V(x) − z V(x_end), of shape (n, ...), for values of shape (n, ...)."""
        z = self.z.reshape(-1, *[1] * (values.ndim - 1))
        return values - z * values[self.end]


def extremes(data: Trajectories) -> tuple[float, float]:
    """The worst and the best return that `data` allow: no state like these is worth less, or more.

    Where an episode was cut off, the smallest or the largest reward, for ever, stands for what is missing.
    """
    returns, gamma = Returns.of(data), float(data.discounts.max(initial=0.0))
    y, z = returns.y[returns.usable], returns.z[returns.usable]
    if gamma >= 1.0 and z.any():
        return -np.inf, np.inf
    horizon = 1.0 / (1.0 - gamma) if gamma < 1.0 else 0.0
    worst, best = min(float(data.rewards.min()), 0.0), max(float(data.rewards.max()), 0.0)
    return float((y + z * worst * horizon).min()), float((y + z * best * horizon).max())


def relative_to(data: Trajectories, values: Array) -> Trajectories:
    """The same trajectories with rewards r − H·values: what is left of V is their value function."""
    H = TemporalDifference.of(data)
    return replace(data, rewards=np.where(H.has_row, data.rewards - H.apply(values), 0.0))


def along(values: Values, data: Trajectories) -> Array:
    """Values at all states of the data, 0 at terminal ones, of shape (n,)."""
    found = np.array(values(data.states), dtype=np.float64)
    found[data.last[data.terminated]] = 0.0
    return found


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
class Bounded:
    """A learner that keeps to what returns the data allow: neither features nor kernels know where to stop."""

    learner: Learner

    def __call__(self, data: Trajectories) -> Values:
        """Learn, and keep to the `extremes`."""
        values, (low, high) = self.learner(data), extremes(data)
        return lambda states: np.clip(values(states), low, high)


@dataclass(frozen=True, eq=False)
class RefittedCritic:
    """The agent's critic with its last layer fitted again to returns, as far as they call for it.

    Ridge regression of what the critic leaves of the returns, on the features of its last layer; the penalty is the one
    that predicts left-out episodes best.
    """

    critic: Critic

    def __call__(self, data: Trajectories) -> Values:
        """Fit the correction to `data`."""
        left = relative_to(data, along(self.critic, data))
        returns = Returns.of(left)
        seen = self.critic.features(data.states)
        # Beyond what was seen, features are kept at its edge: in units of a small spread they would go very far.
        low, high, centre, spread = seen.min(axis=0), seen.max(axis=0), seen.mean(axis=0), seen.std(axis=0)
        spread = np.where(spread > 1e-8 * max(spread.max(initial=0.0), 1e-300), spread, np.inf)

        def in_units(features: Array) -> Array:
            """Features in units of their spread, and a constant, of shape (m, n_features + 1)."""
            return np.column_stack([(np.clip(features, low, high) - centre) / spread, np.ones(len(features))])

        A, y = returns.difference(in_units(seen))[returns.usable], returns.y[returns.usable]
        weights = _ridge(A, y, _best_penalty(A, y, returns.episode[returns.usable]))
        return lambda x: self.critic(x) + in_units(self.critic.features(x)) @ weights


def _ridge(A: Array, y: Array, penalty: float) -> Array:
    """W = (AᵀA + λnI)⁻¹Aᵀy, of shape (n_features,)."""
    gram = A.T @ A
    gram.flat[:: len(gram) + 1] += penalty * len(A)
    return np.asarray(np.linalg.solve(gram, A.T @ y))


def _best_penalty(A: Array, y: Array, episodes: Rows) -> float:
    """The λ that predicts left-out episodes best; with AᵀA = UΛUᵀ, w = U(Λ + λnI)⁻¹UᵀAᵀy for each."""
    fold = folds(episodes)
    errors = np.zeros(len(PENALTIES))
    if (fold == fold[0]).all():  # there is no other episode to predict
        return float(PENALTIES[-1])
    for f in np.unique(fold):
        out = fold == f
        values, vectors = np.linalg.eigh(A[~out].T @ A[~out])
        projected, right = A[out] @ vectors, vectors.T @ (A[~out].T @ y[~out])
        for i, penalty in enumerate(PENALTIES):
            errors[i] += np.sum((y[out] - projected @ (right / (values + penalty * (~out).sum()))) ** 2)
    return float(PENALTIES[errors.argmin()])


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A Gaussian process whose θ and basis states were chosen before; only conditioning is left to be done.

    Parameters
    ----------
    v : GPTD
        Fitted, to a part of the data perhaps: its kernel, noise and thinning are taken over.
    basis : sparse.Basis
    mean : Learner, optional
        What the process is added to.
    """

    v: GPTD
    basis: sparse.Basis
    mean: Learner | None = None

    @classmethod
    def on(cls, v: GPTD, data: Trajectories, size: int, mean: Learner | None = None) -> Conditioned:
        """Choose up to `size` basis states among those of `data`."""
        candidates = np.unique(data.states, axis=0)
        picked = np.linspace(0, len(candidates) - 1, min(N_CANDIDATES, len(candidates))).round().astype(int)
        choice = Choice(candidates[picked], size, None)
        bound = Bound([open_dataset(data, "stochastic")], choice, data.n_rows)
        return cls(v, bound.at(v.model_).basis(v.model_, whitened=True), mean)

    def __call__(self, data: Trajectories) -> Values:
        """Condition on `data`."""
        if self.mean is None:
            return self._process(data)
        mean = self.mean(data)
        process = self._process(relative_to(data, along(mean, data)))
        return lambda states: mean(states) + process(states)

    def _process(self, data: Trajectories) -> Values:
        model, dataset = self.v.model_, open_dataset(data, "stochastic")
        noisy = model.with_noise(self.v.thinning_ * model.noise_variance)
        solution = sparse.Solution.of(noisy, self.basis, dataset.sum(sparse.statistics, self.basis))
        return sparse.Posterior(solution, np.zeros(0), "projected_process").mean


def folds(episodes: Rows) -> Rows:
    """A fold 0 … N_FOLDS − 1 for each row, the same for all rows of an episode, at random."""
    names, row = np.unique(episodes, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(names))
    return (order % N_FOLDS)[row]
