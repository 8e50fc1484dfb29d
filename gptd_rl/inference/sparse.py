"""Sparse GPTD: weights of m' features instead of n values, in O(n·m²) time and O(m²) memory.

This is the paper's *subset of regressors* (Section 4), except that the finite-rank part of the kernel is exact. With
``S = ΨᵀFFᵀΨ`` and ``M = S + σ²Λ`` (`features`, `statistics`),

    mean(x) = ψᵀM⁻¹ΨᵀFy                              paper eq. (12)
    var(x)  = σ²ψᵀM⁻¹ψ                               subset of regressors: too small far from the inducing points
            + g(x, x) − g(x, Z)g(Z, Z)⁻¹g(Z, x)      projected process: the residual variance

Model selection uses the collapsed variational bound on the evidence (Titsias 2009), which pays for the residual
variance:

    −log p(r) ≤ ½ log det M/(σ²Λ) + ½ n log 2πσ² + (yᵀy − ‖ΨᵀFy‖²_{M⁻¹})/2σ² + tr(G_nn − G̃_nn)/2σ² + ½ log det HHᵀ
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from gptd_rl import linalg
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence, in_chunks, sample_gaussian
from gptd_rl.inference.statistics import Statistics, StatisticsGradient, noise_moments, statistics
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import Array

SparseVariance = Literal["projected_process", "subset_of_regressors"]


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights of the features given the data, and the bound on the evidence."""

    model: Model
    features: InducingFeatures
    statistics: Statistics
    L: Array  # factor of M = S + σ²Λ  [m', m']
    half: Array  # L⁻¹ΨᵀFy  [m']
    weights: Array  # β = M⁻¹ΨᵀFy  [m']

    @classmethod
    def of(cls, model: Model, features: InducingFeatures, statistics: Statistics) -> Solution:
        """Solve for the weights."""
        features = features.at(model.kernel)
        m = len(features)
        L = _equilibrated_cholesky(statistics.gram[:m, :m] + model.noise_variance * features.precision)
        half = linalg.half_solve(L, statistics.gram[m, :m])
        return cls(model, features, statistics, L, half, linalg.half_solve_transposed(L, half))

    @cached_property
    def evidence(self) -> Evidence:
        """Lower bound on the log marginal likelihood of the rewards; equal to it if all states are inducing points."""
        known, noise = self.statistics, self.model.noise_variance
        m = len(self.features)
        log_det = linalg.log_det(self.L) - self.features.log_det_precision + (known.n_rows - m) * np.log(noise)
        fit = (known.gram[m, m] - self.half @ self.half + self._residual_trace) / noise
        return Evidence(0.5 * float(log_det) + known.log_jacobian, 0.5 * float(fit), known.n_rows)

    def statistics_gradient(self) -> StatisticsGradient:
        """Derivatives of minus the bound with respect to the statistics."""
        noise, n_inducing = self.model.noise_variance, self.features.n_inducing
        by_nullspace = np.zeros_like(self.L)
        by_nullspace[:n_inducing, :n_inducing] = (-0.5 / noise) * self._inverse_covariance
        outer = np.multiply.outer(self.weights, self.weights)
        by_gram = 0.5 * self._inverse + (0.5 / noise) * outer + by_nullspace
        return StatisticsGradient(by_gram, by_nullspace, -self.weights / noise, 0.5 / noise)

    def gradient(self, by_statistics: Array) -> Array:
        """∂(−bound)/∂θ, given the part through the statistics, from one more pass over the data (`pull_back`)."""
        features, known, noise = self.features, self.statistics, self.model.noise_variance
        m, n_inducing = len(features), features.n_inducing
        # ∂/∂Λ = ½(σ²M⁻¹ + ββᵀ − Λ⁻¹), of which the last term follows for each block
        by_precision = 0.5 * (noise * self._inverse + np.multiply.outer(self.weights, self.weights))
        # g(Z, Z) enters through Λ and through G̃.
        Gi = self._inverse_covariance
        by_covariance = by_precision[:n_inducing, :n_inducing] - 0.5 * Gi
        by_covariance += (0.5 / noise) * (Gi @ self._visible_and_hidden @ Gi)
        Z, g = features.states, features.split.inducing
        by_inducing = by_statistics + g.contract(features.to_raw(by_covariance), Z, Z)
        # Λ = C⁻¹ for the finite-rank part: ∂/∂C = −C⁻¹(∂/∂Λ)C⁻¹, and ½C⁻¹ from −½ log det Λ
        Ci = features.precision[n_inducing:, n_inducing:]
        by_weights = 0.5 * Ci - Ci @ by_precision[n_inducing:, n_inducing:] @ Ci
        by_noise = float((by_precision * features.precision).sum()) + 0.5 * (known.n_rows - m)
        by_noise -= 0.5 * float(known.gram[m, m] - self.half @ self.half + self._residual_trace) / noise
        return self.model.pack_gradient(features.split.gradient(by_inducing, by_weights), by_noise)

    @cached_property
    def _inverse(self) -> Array:
        """M⁻¹, of shape (m', m')."""
        return linalg.symmetrise_in_place(linalg.inverse_in_place(self.L.copy()))

    @cached_property
    def _inverse_covariance(self) -> Array:
        """g(Z, Z)⁻¹, of shape (m, m)."""
        return linalg.symmetrise_in_place(linalg.inverse_in_place(self.features.factor.copy()))

    @cached_property
    def _visible_and_hidden(self) -> Array:
        """Σ g(Z, x)g(x, Z) over what targets depend on, unknown tails included, of shape (m, m)."""
        m = self.features.n_inducing
        return linalg.symmetrise_in_place(self.statistics.gram[:m, :m] + self.statistics.nullspace_gram[:m, :m])

    @property
    def residual_variance(self) -> float:
        """Prior variance of a target that the inducing points leave out, on average."""
        return self._residual_trace / max(self.statistics.n_rows, 1)

    @cached_property
    def _residual_trace(self) -> float:
        """tr(G_nn − G̃_nn), the prior variance that the inducing points leave out."""
        explained = float((self._inverse_covariance * self._visible_and_hidden).sum())
        return max(self.statistics.prior_trace - explained, 0.0)


def _equilibrated_cholesky(M: Array) -> Array:
    """Cholesky factor of a matrix whose lower triangle is given and whose rows may differ much in size."""
    size = np.sqrt(np.diagonal(M))
    size = np.where(size > 0.0, size, 1.0)
    L = linalg.cholesky(lambda: np.ascontiguousarray(M / (size[:, None] * size)))
    return L * size[:, None]


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """The posterior over values through the features."""

    solution: Solution
    noise_moments: Array  # W of `noise_moments`  [m', m']
    kind: SparseVariance = "projected_process"
    noise: Noise = "stochastic"

    trace_decay = None

    @property
    def inducing_points(self) -> Array:
        """Z, of shape (m, n_dims)."""
        return self.solution.features.states

    def condition_on(self, data: Trajectories) -> SparsePosterior:
        """The posterior given further segments, θ and inducing points as they are."""
        shard, features = Shard.of(data, self.noise), self.solution.features
        both = self.solution.statistics + statistics(shard, features)
        solution = Solution.of(self.solution.model, features, both)
        moments = self.noise_moments + noise_moments(shard, features, solution.weights)
        return SparsePosterior(solution, moments, self.kind, self.noise)

    def statistics_of(self, data: Trajectories) -> Statistics:
        """What the weights need of some segments."""
        return statistics(Shard.of(data, self.noise), self.solution.features)

    def mean_given(self, statistics: Statistics) -> Callable[[Array], Array]:
        """Posterior mean, a function of states, if these were the statistics of all data."""
        solution = Solution.of(self.solution.model, self.solution.features, statistics)
        return lambda states: in_chunks(lambda x: solution.features(x) @ solution.weights, states)

    def evidence(self, model: Model) -> Evidence:
        """Bound on the evidence under `model`, which is the one conditioned on up to its noise."""
        return Solution.of(model, self.solution.features, self.solution.statistics).evidence

    def mean(self, states: Array) -> Array:
        """Posterior mean of V, paper eqs. (12) and (13), of shape (n,)."""
        features, weights = self.solution.features, self.solution.weights
        return in_chunks(lambda x: features(x) @ weights, states)

    def variance(self, states: Array) -> Array:
        """Posterior variance of V under the noise model, paper eq. (14), of shape (n,)."""
        return in_chunks(self._variance, states)

    def interval_variance(self, states: Array) -> Array:
        """Variance of the error of the mean with the noise of a Markov chain, never below `variance`, of shape (n,)."""
        return in_chunks(self._interval_variance, states)

    def covariance(self, states: Array) -> Array:
        """Posterior covariance of V between all pairs of states, of shape (n, n), whose diagonal is `variance`."""
        half = linalg.half_solve(self.solution.L, self.solution.features(states).T)
        covariance = self.solution.model.noise_variance * (half.T @ half)
        if self.kind == "projected_process":
            covariance += self._residual_covariance(states)
        return covariance

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint posterior samples, of shape (n, m): of the weights, and of the residual where that has variance."""
        solution = self.solution
        # w = β + σL⁻ᵀξ
        noise = linalg.half_solve_transposed(solution.L, rng.standard_normal((len(solution.weights), n)))
        w = solution.weights[:, None] + np.sqrt(solution.model.noise_variance) * noise  # [m', n]
        values = (solution.features(states) @ w).T
        if self.kind == "projected_process":
            values += sample_gaussian(np.zeros(len(states)), self._residual_covariance(states), n, rng)
        return np.asarray(values)

    def _residual_covariance(self, states: Array) -> Array:
        features = self.solution.features
        residual = features.residual_covariance(states)
        # The rounding error of the subtraction.
        prior = features.split.inducing.diagonal(states)
        residual.flat[:: len(residual) + 1] += prior * np.finfo(np.float64).eps * max(len(features), len(residual))
        return residual

    def _variance(self, states: Array) -> Array:
        half = linalg.half_solve(self.solution.L, self.solution.features(states).T)
        variance = self.solution.model.noise_variance * np.einsum("mn,mn->n", half, half)
        if self.kind == "projected_process":
            variance += self.solution.features.residual_variance(states)
        return variance

    def _interval_variance(self, states: Array) -> Array:
        features, noise = self.solution.features, self.solution.model.noise_variance
        half = linalg.half_solve(self.solution.L, features(states).T)
        v = linalg.half_solve_transposed(self.solution.L, half)  # M⁻¹ψ  [m', n]
        residual = features.residual_variance(states)
        prior_part = noise**2 * np.einsum("mn,mn->n", v, features.precision @ v)
        W = linalg.symmetrise_in_place(self.noise_moments.copy())
        sampling_part = np.einsum("mn,mn->n", v, W @ v)
        variance = noise * np.einsum("mn,mn->n", half, half)
        if self.kind == "projected_process":
            variance += residual
        return np.maximum(residual + prior_part + sampling_part, variance)
