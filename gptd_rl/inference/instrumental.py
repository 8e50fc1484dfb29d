"""Instrumental GPTD: values that bootstrap without bias.

GPTD with the noise σ²HHᵀ learns from whole returns, as Monte Carlo does. With the noise σ²I it bootstraps, but
regresses r on V(x) − γV(x'), whose noise is that of the TD error: biased wherever transitions are stochastic. TD errors
are martingale differences, so any function of the *present* state is a valid instrument (Bradtke & Barto 1996; LSTD is
instrumental-variables regression). With features ψ whose weights are w ~ N(0, I) a priori and x_t = ψ_t − γ_tψ_{t+1},

    b − Aw = Σψ_tδ_t ~ N(0, S)        A = Σψ_tx_tᵀ        b = Σψ_tr_t        S = Σδ_t²ψ_tψ_tᵀ

whose posterior mode solves b − Aw = S A⁻ᵀw. In the eigenbasis of G = Σψψᵀ = V diag(e) Vᵀ, A is nearly diagonal with
entries e_jq_j, where q_j = 1 − γp_j and p_j says how slowly direction j mixes. Keeping that diagonal alone of S A⁻ᵀ, m
numbers instead of m², is what keeps the estimate stable with many weak instruments as γ → 1:

    M = A + R        R = κs² V diag(1/q_j) Vᵀ        w = M⁻¹b        s² the variance of TD errors
    var(x) = unexplained(x) + ψᵀM⁻¹(W + RRᵀ)M⁻ᵀψ        W = Σ(δ_t/(1 − h_t))²ψ_tψ_tᵀ,  h_t = x_tᵀM⁻¹ψ_t

The variance has three parts: what the features cannot express, the sampling noise with each TD error's own size (left
out of its own prediction), and the bias of shrinking weights with the prior's covariance. All statistics add up over
transitions, hence over shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy import linalg as dense

from gptd_rl import linalg
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.features import InducingFeatures, KernelSplit
from gptd_rl.inference.inducing import REDUNDANT, independent
from gptd_rl.inference.posterior import in_chunks, sample_gaussian
from gptd_rl.kernels import Kernel
from gptd_rl.temporal.shards import BLOCK, Shard
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array

# κ: 1 would be the posterior mode if A did not depend on the errors.
SHRINKAGE = 3.0

# Rounds in which s² and the weights follow from each other.
N_ROUNDS = 6

# Directions in which features hardly vary are taken to vary by this share of the largest eigenvalue of G.
FLOOR = 1e-10

# s² is at least this share of that eigenvalue: less shrinkage would leave M singular to rounding.
LEAST_NOISE = 1e-13

# The smallest q, as a share of that of a constant function.
SLOWEST = 0.1

# A transition that makes up more than this of its own prediction counts as if it did not.
MAX_LEVERAGE = 0.9


class ValueFeatures(Protocol):
    """Features ψ whose weights are N(0, I) a priori, and what they leave unexplained."""

    @property
    def inducing_points(self) -> Array:
        """Z, of shape (m, n_dims)."""
        ...

    @property
    def split(self) -> KernelSplit:
        """The kernel as g + ΦCΦᵀ."""
        ...

    def __len__(self) -> int:
        """Number m' of features."""
        ...

    def __call__(self, states: Array) -> Array:
        """Ψ, of shape (n, m')."""
        ...

    def residual_variance(self, states: Array) -> Array:
        """What Z leaves of g(x, x), of shape (n,)."""
        ...

    def residual_covariance(self, states: Array) -> Array:
        """What Z leaves of g(x, x') between all pairs of states, of shape (n, n)."""
        ...


@dataclass(frozen=True, eq=False)
class WhiteFeatures:
    """Features ψ whose weights are N(0, I) a priori: those of whitened inducing points, and of the finite-rank part."""

    inducing: InducingFeatures

    @classmethod
    def of(cls, kernel: Kernel, inducing_points: Array) -> WhiteFeatures:
        """Features of inducing points, without redundant ones."""
        kept, _ = independent(KernelSplit.of(kernel).inducing, inducing_points, REDUNDANT)
        return cls(InducingFeatures(kernel, inducing_points[kept], whitened=True))

    @property
    def inducing_points(self) -> Array:
        """Z, of shape (m, n_dims)."""
        return self.inducing.states

    @property
    def split(self) -> KernelSplit:
        """The kernel as g + ΦCΦᵀ."""
        return self.inducing.split

    @cached_property
    def explicit_factor(self) -> Array:
        """D with C = DDᵀ, the prior covariance of the weights of the finite-rank part."""
        C = self.inducing.split.weight_covariance
        return np.tril(linalg.cholesky(C.copy)) if len(C) else C

    def __len__(self) -> int:
        """Number m' of features."""
        return len(self.inducing)

    def __call__(self, states: Array) -> Array:
        """Ψ, of shape (n, m')."""
        rows, m = self.inducing(states), self.inducing.n_inducing
        rows[:, m:] = rows[:, m:] @ self.explicit_factor
        return rows

    def residual_variance(self, states: Array) -> Array:
        """What Z leaves of g(x, x), of shape (n,)."""
        return self.inducing.residual_variance(states)

    def residual_covariance(self, states: Array) -> Array:
        """What Z leaves of g(x, x') between all pairs of states, of shape (n, n)."""
        return self.inducing.residual_covariance(states)


@dataclass(frozen=True, eq=False)
class MomentStatistics:
    """What the weights need of the data. They add up over transitions."""

    gram: Array  # G = Σψψᵀ  [m', m']
    cross: Array  # A = Σψxᵀ  [m', m']
    moment: Array  # b = Σψr  [m']
    difference_gram: Array  # Σxxᵀ  [m', m']
    difference_moment: Array  # Σxr  [m']
    squared_rewards: float  # Σr²
    n_rows: float  # with forgetting, the sum of the weights
    total_loss: float  # Σ(1 − γ), with γ = 0 into terminal states
    smallest_loss: float  # smallest 1 − γ
    present_cross: Array | None = None  # Σψxᵀ where instruments are traces (`traces`) and `cross` is Σzxᵀ  [m', m']

    def __add__(self, other: MomentStatistics) -> MomentStatistics:
        """Of both data."""
        return MomentStatistics(
            self.gram + other.gram,
            self.cross + other.cross,
            self.moment + other.moment,
            self.difference_gram + other.difference_gram,
            self.difference_moment + other.difference_moment,
            self.squared_rewards + other.squared_rewards,
            self.n_rows + other.n_rows,
            self.total_loss + other.total_loss,
            min(self.smallest_loss, other.smallest_loss),
            None if self.present_cross is None else self.present_cross + np.asarray(other.present_cross),
        )


def moment_statistics(shard: Shard, features: ValueFeatures) -> MomentStatistics:
    """One pass over a shard."""
    return summarize_moments(Transitions.of(shard.data), features)


def summarize_moments(transitions: Transitions, features: ValueFeatures) -> MomentStatistics:
    """Statistics of some transitions."""
    m = len(features)
    square, vector = np.zeros((m, m)), np.zeros(m)
    total = MomentStatistics(square, square, vector, square, vector, 0.0, 0, 0.0, 1.0)
    for part, P, X in feature_blocks(transitions, features):
        r, loss = part.rewards, 1.0 - part.discounts
        losses = float(loss.sum()), float(loss.min(initial=1.0))
        total = total + MomentStatistics(P.T @ P, P.T @ X, r @ P, X.T @ X, r @ X, float(r @ r), len(r), *losses)
    return total


def moment_noise(shard: Shard, features: ValueFeatures, solution: MomentSolution) -> Array:
    """W = Σ(δ_t/(1 − h_t))²ψ_tψ_tᵀ, of shape (m', m'), in another pass."""
    return summarize_noise(Transitions.of(shard.data), features, solution)


def summarize_noise(
    transitions: Transitions, features: ValueFeatures, solution: MomentSolution, weights: Array | None = None
) -> Array:
    """W of some transitions; with weights ω_t it is Σω_t(δ_t/(1 − ω_th_t))²ψ_tψ_tᵀ."""
    W, first = np.zeros((len(features), len(features))), 0
    for part, P, X in feature_blocks(transitions, features):
        omega = np.ones(len(part)) if weights is None else weights[first : first + len(part)]
        first += len(part)
        errors = part.rewards - X @ solution.weights
        # h_t = x_tᵀM⁻¹ψ_t
        leverage = omega * np.einsum("nm,nm->n", X, solution.solve(P.T).T)
        P *= (np.sqrt(omega) * errors / (1.0 - np.clip(leverage, -1.0, MAX_LEVERAGE)))[:, None]
        W += P.T @ P
    return W


def feature_blocks(transitions: Transitions, features: ValueFeatures) -> Iterator[tuple[Transitions, Array, Array]]:
    """Transitions in blocks, with ψ of the states they leave and x = ψ − Σ w ψ', both of shape (c, m')."""
    for start in range(0, len(transitions), BLOCK):
        part = transitions.select(slice(start, start + BLOCK))
        psi = features(part.points)
        yield part, psi[part.left], part.difference(psi)


@dataclass(frozen=True, eq=False)
class MomentSolution:
    """The weights given the statistics."""

    statistics: MomentStatistics
    shrinkage: Array  # R  [m', m']
    error_variance: float  # s²
    lu: tuple[Array, Array]  # of M = A + R
    weights: Array  # w  [m']

    @classmethod
    def of(cls, known: MomentStatistics, error_variance: float | None = None) -> MomentSolution:
        """Solve for the weights and, unless it is given, for the variance of the TD errors."""
        e, V = np.linalg.eigh(known.gram)
        e = np.maximum(e, FLOOR * e[-1])
        # q_j = v_jᵀAv_j / e_j, at least that of the slowest direction that the discounts allow (if γ = 1 and no
        # terminal state was seen yet: as if one transition had ended in one)
        slowest = max(known.smallest_loss, SLOWEST * max(known.total_loss, 1.0) / known.n_rows)
        present = known.cross if known.present_cross is None else known.present_cross
        q = np.clip(np.einsum("ij,ij->j", V, present @ V) / e, slowest, 1.0)
        shape = (V / (q if known.present_cross is None else q**2)) @ V.T
        s2 = known.squared_rewards / known.n_rows if error_variance is None else error_variance
        for _ in range(N_ROUNDS):
            s2 = max(s2, LEAST_NOISE * e[-1])
            R = SHRINKAGE * s2 * shape
            lu = dense.lu_factor(known.cross + R)
            w = dense.lu_solve(lu, known.moment)
            solution = cls(known, R, s2, lu, w)
            if error_variance is not None:
                return solution
            s2 = solution.cross_validated_variance
        return replace(solution, error_variance=max(s2, LEAST_NOISE * e[-1]))

    @classmethod
    def prior(cls, nothing: MomentStatistics, error_variance: float) -> MomentSolution:
        """Without a transition: w ~ N(0, I)."""
        I = np.eye(len(nothing.moment))
        return cls(nothing, I, error_variance, dense.lu_factor(I), np.zeros(len(I)))

    def solve(self, right: Array) -> Array:
        """M⁻¹·right."""
        # SciPy counts the pivots from 1 while it solves, in place, and other threads may solve meanwhile: a copy each.
        lu, pivots = self.lu
        return np.asarray(dense.lu_solve((lu, pivots.copy()), right))

    @property
    def cross_validated_variance(self) -> float:
        """Mean squared TD error, generalised cross-validation: RSS/n / (1 − tr(M⁻¹A)/n)²."""
        known, w = self.statistics, self.weights
        residual = known.squared_rewards - float(2.0 * w @ known.difference_moment - w @ known.difference_gram @ w)
        residual = max(residual, float(np.finfo(np.float64).eps) * known.squared_rewards)
        dof = float(np.trace(self.solve(known.cross)))
        return residual / known.n_rows / (1.0 - np.clip(dof / known.n_rows, 0.0, MAX_LEVERAGE)) ** 2

    def covariance_factor(self, noise: Array) -> Array:
        """B with BBᵀ = M⁻¹(W + RRᵀ)M⁻ᵀ, of shape (m', m'): no variance that follows from it is negative."""
        e, V = np.linalg.eigh(noise)  # W is a sum of squares: what is below 0 is rounding
        both = self.solve(np.column_stack([V * np.sqrt(np.maximum(e, 0.0)), self.shrinkage]))
        return np.asarray(np.linalg.qr(both.T, mode="r")).T


@dataclass(frozen=True)
class MomentPasses:
    """Instruments of one kind: two passes over a shard, for the weights and for the noise."""

    trace_decay: float  # λ: 0 for functions of the present state, 1 for traces of all states before
    statistics: Callable[[Shard, ValueFeatures], MomentStatistics]
    noise: Callable[[Shard, ValueFeatures, MomentSolution], Array]


PRESENT_STATES = MomentPasses(0.0, moment_statistics, moment_noise)


@dataclass(frozen=True, eq=False)
class InstrumentalPosterior:
    """Values by instruments: a Gaussian with the mean ψᵀw and the variance of its error."""

    features: ValueFeatures
    solution: MomentSolution
    noise: Array  # W of `moment_noise`  [m', m']
    is_exact: bool  # the features express all states of the data
    passes: MomentPasses = PRESENT_STATES

    @property
    def trace_decay(self) -> float:
        """λ of the instruments."""
        return self.passes.trace_decay

    @property
    def inducing_points(self) -> Array | None:
        """Z, of shape (m, n_dims); None if the features express all states."""
        return None if self.is_exact else self.features.inducing_points

    @cached_property
    def weight_factor(self) -> Array:
        """B, where BBᵀ is the covariance of the error of the weights, of shape (m', m')."""
        return self.solution.covariance_factor(self.noise)

    def condition_on(self, data: Trajectories) -> InstrumentalPosterior:
        """Given further segments, θ and features as they are."""
        shard = Shard.of(data, "stochastic")
        solution = MomentSolution.of(self.solution.statistics + self.passes.statistics(shard, self.features))
        noise = self.noise + self.passes.noise(shard, self.features, solution)
        return replace(self, solution=solution, noise=noise)

    def statistics_of(self, data: Trajectories) -> MomentStatistics:
        """What the weights need of some segments."""
        return self.passes.statistics(Shard.of(data, "stochastic"), self.features)

    def mean_given(self, statistics: MomentStatistics) -> Callable[[Array], Array]:
        """Estimate of V, a function of states, if these were the statistics of all data."""
        weights = MomentSolution.of(statistics).weights
        return lambda states: in_chunks(lambda x: self.features(x) @ weights, states)

    def mean(self, states: Array) -> Array:
        """Estimate of V, of shape (n,)."""
        return in_chunks(lambda x: self.features(x) @ self.solution.weights, states)

    def variance(self, states: Array) -> Array:
        """Variance of the error of the mean, of shape (n,)."""
        return in_chunks(self._variance, states)

    interval_variance = variance

    def covariance(self, states: Array) -> Array:
        """Covariance of the errors between all pairs of states, of shape (n, n), whose diagonal is `variance`."""
        half = self.features(states) @ self.weight_factor
        residual = self.features.residual_covariance(states)
        prior = self.features.split.inducing.diagonal(states)
        # The rounding error of the subtraction.
        residual.flat[:: len(residual) + 1] += prior * np.finfo(np.float64).eps * max(half.shape)
        return np.asarray(residual + half @ half.T)

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint samples, of shape (n, m)."""
        return sample_gaussian(self.mean(states), self.covariance(states), n, rng)

    def _variance(self, states: Array) -> Array:
        half = self.features(states) @ self.weight_factor
        return np.asarray((half**2).sum(axis=1) + self.features.residual_variance(states))
