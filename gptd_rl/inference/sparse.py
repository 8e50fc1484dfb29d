"""Sparse GPTD: m states stand for all n, and one pass over the data costs O(n·m²) time and O(m²) memory.

Between the m basis states Z the value function is a weighted sum of correlations with them, and of a constant:

    V(x) = ψ(x)ᵀw        ψ(x) = [C(x, Z), 1]        w ~ N(0, Λ⁻¹)        Λ = diag(C(Z, Z)/v₀, 1/b)

This is the paper's *subset of regressors* (Section 4), except that the level b, which needs no states to stand for it,
is a regressor of its own and so exact; for Q, one for each action. All that a model with metric Ω has to know of the
data is one Gram matrix, ``[FᵀΨ, y]ᵀ[FᵀΨ, y]``, where y and F are those of `observations`. It is a sum over segments:
over blocks of rows, over threads, over machines. What v₀, b and σ² are does not matter to it. With ``S = ΨᵀFFᵀΨ`` and
``M = S + σ²Λ``,

    mean(x) = ψᵀM⁻¹ΨᵀFy                              (paper, Section 4.1)
    var(x)  = σ²ψᵀM⁻¹ψ                               subset of regressors: too sure far from Z
            + v₀(1 − CᵀC(Z, Z)⁻¹C)                   projected process: what the basis cannot express

Model selection uses the collapsed variational bound on the evidence (Titsias 2009), which has to pay for what the basis
leaves out:

    −log p(r) ≤ ½ log det M/(σ²Λ) + ½ n log 2πσ² + (yᵀy − ‖ΨᵀFy‖²_{M⁻¹})/2σ² + v₀ tr(C_nn − C̃_nn)/2σ² + ½ log det HHᵀ
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.linalg import blas

from gptd_rl import linalg
from gptd_rl.inference.exact import Evidence, in_chunks
from gptd_rl.inference.model import Model, pack_gradient
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.temporal.shards import Block, Shard
from gptd_rl.types import Array

Variance = Literal["projected_process", "subset_of_regressors"]


@dataclass(frozen=True, eq=False)
class Basis:
    """The regressors: correlations with m states, and the constants of a kernel with a bias: one, or one per action.

    With C(Z, Z) = LLᵀ, a *whitened* basis has L⁻¹C(Z, x) instead of C(Z, x): the same model with Λ = diag(I/v₀, 1/b).
    It costs one more triangular product per block, and keeps its digits where states of the basis nearly represent
    each other and σ² is small: a Gram matrix of raw features squares the condition of C(Z, Z).
    """

    kernel: SquaredExponential
    states: Array  # Z  [m, D]
    whitened: bool = False

    def __len__(self) -> int:
        """Number m' of regressors."""
        return len(self.states) + self.kernel.n_levels

    def features(self, states: Array) -> Array:
        """Ψ, of shape (n, m')."""
        C = self.kernel.correlation(states, self.states)
        if self.whitened:
            C = linalg.half_solve(self._factor_and_jitter[0], C.T).T
        return np.column_stack([C, self.kernel.levels(states)])

    def whiten_in_place(self, rows: Array) -> None:
        """Whiten the correlations in `rows` = [C, …], of shape (c, w), a contiguous array; the rest stays."""
        if self.whitened:
            blas.dtrmm(1.0, self._whitener(rows.shape[1]), rows.T, side=0, lower=1, overwrite_b=1)

    def to_raw(self, slopes: Array) -> Array:
        """Turn derivatives with respect to whitened moments, of shape (w, w) or (w,), into those of the raw ones."""
        if not self.whitened:
            return slopes
        T = self._whitener(len(slopes))
        return T.T @ slopes if slopes.ndim == 1 else T.T @ slopes @ T

    def _whitener(self, width: int) -> Array:
        """diag(L⁻¹, I), of shape (width, width)."""
        if width not in self._whiteners:
            m = len(self.states)
            T = np.eye(width, order="F")
            T[:m, :m] = linalg.half_solve(self._factor_and_jitter[0], np.eye(m))
            self._whiteners[width] = T
        return self._whiteners[width]

    @cached_property
    def _whiteners(self) -> dict[int, Array]:
        return {}

    def at(self, kernel: SquaredExponential) -> Basis:
        """The same states under another kernel."""
        return self if kernel is self.kernel else replace(self, kernel=kernel)

    def raw(self) -> Basis:
        """The same states, not whitened."""
        return replace(self, whitened=False)

    @cached_property
    def correlation(self) -> Array:
        """C(Z, Z) = LLᵀ, of shape (m, m), with the jitter of its factor: the bound then stays a bound."""
        if self.whitened:
            return np.eye(len(self.states))
        C = self.kernel.correlation(self.states, self.states)
        C.flat[:: len(C) + 1] += self._factor_and_jitter[1]
        return C

    @property
    def factor(self) -> Array:
        """Cholesky factor of `correlation`."""
        return self.correlation if self.whitened else self._factor_and_jitter[0]

    @cached_property
    def _factor_and_jitter(self) -> tuple[Array, float]:
        return linalg.cholesky_and_jitter(lambda: self.kernel.correlation(self.states, self.states))

    @property
    def precision(self) -> Array:
        """Λ, the prior precision of the weights, of shape (m', m')."""
        m, full = len(self.states), np.zeros((len(self), len(self)))
        full[:m, :m] = self.correlation / self.kernel.signal_variance
        if len(self) > m:
            full[m:, m:] = self.kernel.level_precision()[0] / self.kernel.bias
        return full

    @property
    def log_det_precision(self) -> float:
        """Log det Λ."""
        n_levels = self.kernel.n_levels
        log_det = linalg.log_det(self.factor) - len(self.states) * np.log(self.kernel.signal_variance)
        if n_levels:
            log_det -= n_levels * np.log(self.kernel.bias) + self.kernel.level_precision()[1]
        return float(log_det)

    def unexplained(self, states: Array) -> Array:
        """1 − Cᵀ C(Z, Z)⁻¹ C for each state, of shape (n,): the share of v₀ that the basis cannot express."""
        half = linalg.half_solve(self._factor_and_jitter[0], self.kernel.correlation(self.states, states))
        return np.maximum(1.0 - np.einsum("mn,mn->n", half, half), 0.0)

    def unexplained_between(self, states: Array) -> Array:
        """C(x, x') − C(x, Z) C(Z, Z)⁻¹ C(Z, x') between all pairs of states, of shape (n, n)."""
        half = linalg.half_solve(self._factor_and_jitter[0], self.kernel.correlation(self.states, states))
        return self.kernel.correlation(states, states) - half.T @ half


# -------------------------------------------------------------------------------------- what a pass over the data gives


@dataclass(frozen=True, eq=False)
class Statistics:
    """All that a basis sees of the data. They add up over whole segments."""

    gram: Array  # [FᵀΨ, y]ᵀ[FᵀΨ, y], lower triangle  [m'+1, m'+1]
    hidden: Array  # Σ_s Ψᵀz̃z̃ᵀΨ, what the unknown tails hide, lower triangle  [m', m']
    prior_trace: float  # tr of the prior covariance of what the targets see, hidden or not, in units of v₀
    n_rows: int
    log_jacobian: float

    def __add__(self, other: Statistics) -> Statistics:
        """Of both data."""
        return Statistics(
            self.gram + other.gram,
            self.hidden + other.hidden,
            self.prior_trace + other.prior_trace,
            self.n_rows + other.n_rows,
            self.log_jacobian + other.log_jacobian,
        )


def statistics(shard: Shard, basis: Basis) -> Statistics:
    """One pass: a SYRK per block."""
    m = len(basis)
    gram, hidden = np.zeros((m + 1, m + 1)), np.zeros((m, m))
    prior_trace = 0.0
    long = shard.long_tails(basis.features, m)
    memory = np.empty((shard.block_size, m + 1))
    for block in shard.blocks:
        E = _seen_features(shard, block, basis, memory)
        _add_gram(gram, E)
        if block.tails is not None and block.whole.size:
            _add_gram(hidden, block.tails[block.whole] @ E[:, :m])
        prior_trace += _prior_trace(shard, block, basis.kernel)
    _add_gram(hidden, long)
    gram[:m, :m] -= hidden
    return Statistics(gram, hidden, prior_trace, shard.n_rows, shard.log_jacobian)


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives of an objective with respect to `Statistics`."""

    by_gram: Array  # with respect to S = ΨᵀFFᵀΨ, as for independent entries  [m', m']
    by_hidden: Array  # [m', m']
    by_moment: Array  # with respect to ΨᵀFy  [m']
    by_prior_trace: float


def pull_back(shard: Shard, basis: Basis, slopes: Slopes) -> Array:
    """∂L/∂Ω through the raw statistics, of shape (n_dims, n_dims): another pass, a GEMM per block."""
    assert not basis.whitened
    m, n_states = len(basis), len(basis.states)
    kernel = basis.kernel
    # ∂L/∂Ψ = F(2FᵀΨ·L_S + y·L_bᵀ), where rows of E are [FᵀΨ, y]
    onto_features = np.vstack([2.0 * slopes.by_gram[:, :n_states], slopes.by_moment[:n_states]])
    hidden_less_seen = 2.0 * (slopes.by_hidden - slopes.by_gram)[:, :n_states]
    long = shard.long_tails(basis.features, m)
    omega = np.zeros((kernel.metric.n_dims, kernel.metric.n_dims))
    memory, product = np.empty((shard.block_size, m + 1)), np.empty((shard.block_size, n_states))
    for block in shard.blocks:
        states = shard.data.states[block.rows]
        E = _seen_features(shard, block, basis, memory)
        A = np.matmul(E, onto_features, out=product[: len(E)])  # [c, m]
        if shard.noise == "deterministic":
            A = block.H.apply_transposed(A)
            C = kernel.correlation(states, basis.states)
            omega += _pull_back_prior_trace(block, kernel, states, slopes.by_prior_trace)
        else:
            C = E[:, :n_states]
            if block.tails is not None:
                A += block.tails.T @ (_tail_features(block, E[:, :m], long) @ hidden_less_seen)
        omega += kernel.contract_correlation(A, states, basis.states, C)
    return omega


def noise_moments(shard: Shard, basis: Basis, weights: Array) -> Array:
    """W = Σ_t δ_t² u_t u_tᵀ, lower triangle of shape (m', m'): the sampling noise of ΨᵀFy with its true correlation.

    ``ΨᵀFy = Σ_t u_t r_t``: u_t says how the reward r_t enters. The TD errors δ_t of the mean ψᵀ`weights` stand for the
    noise of the rewards, one by one, since they are uncorrelated.
    """
    m, states = len(basis), shard.data.states
    raw, raw_weights = basis.raw(), basis.to_raw(weights)
    value = np.concatenate([raw.features(states[block.rows]) @ raw_weights for block in shard.blocks])
    # δ = r − HV
    errors = np.where(shard.H.has_row, shard.data.rewards - shard.H.apply(value), 0.0)
    long = shard.long_tails(basis.features, m)
    moments, before = np.zeros((m, m)), np.zeros(m)
    memory = np.empty((shard.block_size, m + 1))
    for block in shard.blocks:
        U = np.ascontiguousarray(_seen_features(shard, block, basis, memory)[:, :m])
        if shard.noise == "stochastic":
            if block.tails is not None:
                U -= block.tails.T @ _tail_features(block, U, long)  # ΠΨ
            if block.rows.start > 0:  # goes on from the block before, unless a segment ended there
                U[0] += shard.H.discounts[block.rows.start - 1] * before
            U = block.H.solve_transposed(U)  # u_t = a_t + γ_{t−1} u_{t−1}
            before = U[-1].copy()
        _add_gram(moments, U * errors[block.rows, None])
    return moments


def _seen_features(shard: Shard, block: Block, basis: Basis, memory: Array) -> Array:
    """Rows [FᵀΨ, y] of a block, of shape (c, m' + 1), in `memory`; for truncated segments before Π."""
    m, n_states = len(basis), len(basis.states)
    states = shard.data.states[block.rows]
    E = memory[: len(states)]
    basis.kernel.correlation(states, basis.states, out=E[:, :n_states])
    E[:, n_states:m] = basis.kernel.levels(states)
    E[:, m] = 0.0
    basis.whiten_in_place(E)
    if shard.noise == "deterministic":
        E[:, :m] = block.H.apply(E[:, :m])
    E[:, m] = shard.targets[block.rows]
    return E


def _tail_features(block: Block, features: Array, long: Array) -> Array:
    """z̃ᵀΨ of each truncated segment in sight, of shape (p, m')."""
    assert block.tails is not None
    sums = block.tails @ features
    sums[block.spilled] = long[block.spilled_numbers]
    return np.asarray(sums)


def _prior_trace(shard: Shard, block: Block, kernel: SquaredExponential) -> float:
    """Prior variance of what the block's targets see: of each value, or of each difference V(x_t) − γV(x_{t+1})."""
    if shard.noise == "stochastic":
        return float(block.rows.stop - block.rows.start)
    states, gamma = shard.data.states[block.rows], block.H.discounts[:-1]
    near = kernel.paired_correlation(states[:-1], states[1:])
    return float(block.H.has_row.sum() + (gamma**2 - 2.0 * gamma * near).sum())


def _pull_back_prior_trace(block: Block, kernel: SquaredExponential, states: Array, slope: float) -> Array:
    gamma = block.H.discounts[:-1]
    return kernel.contract_paired_correlation(-2.0 * slope * gamma, states[:-1], states[1:])


def _add_gram(total: Array, rows: Array) -> None:
    """Add rowsᵀrows to the lower triangle of `total`, in place."""
    if len(rows):
        blas.dsyrk(1.0, np.ascontiguousarray(rows).T, beta=1.0, c=total.T, lower=0, overwrite_c=1)


# -------------------------------------------------------------------------------------- posterior and bound


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights of the regressors given the data, and the bound on the evidence."""

    model: Model
    basis: Basis
    statistics: Statistics
    L: Array  # factor of M = S + σ²Λ  [m', m']
    half: Array  # L⁻¹ΨᵀFy  [m']
    weights: Array  # M⁻¹ΨᵀFy  [m']

    @classmethod
    def of(cls, model: Model, basis: Basis, seen: Statistics) -> Solution:
        """Solve for the weights."""
        basis = basis.at(model.kernel)
        m = len(basis)
        L = linalg.cholesky(lambda: seen.gram[:m, :m] + model.noise_variance * basis.precision)
        half = linalg.half_solve(L, seen.gram[m, :m])
        return cls(model, basis, seen, L, half, linalg.half_solve_transposed(L, half))

    @cached_property
    def evidence(self) -> Evidence:
        """Lower bound on the log marginal likelihood of the rewards; equal to it if the basis is all states."""
        seen, noise, v0 = self.statistics, self.model.noise_variance, self.model.kernel.signal_variance
        m = len(self.basis)
        log_det = linalg.log_det(self.L) - self.basis.log_det_precision + (seen.n_rows - m) * np.log(noise)
        fit = (seen.gram[m, m] - self.half @ self.half + v0 * self._unexplained) / noise
        return Evidence(0.5 * float(log_det) + seen.log_jacobian, 0.5 * float(fit), seen.n_rows)

    def slopes(self) -> Slopes:
        """Derivatives of minus the bound with respect to the statistics of the basis as it is when not whitened."""
        noise, v0 = self.model.noise_variance, self.model.kernel.signal_variance
        n_states = len(self.basis.states)
        hidden = np.zeros_like(self.L)
        hidden[:n_states, :n_states] = (-0.5 * v0 / noise) * self._inverse_correlation
        outer = np.multiply.outer(self.weights, self.weights)
        gram = 0.5 * self._inverse + (0.5 / noise) * outer + hidden
        raw = self.basis.to_raw
        return Slopes(raw(gram), raw(hidden), raw(-self.weights / noise), 0.5 * v0 / noise)

    def gradient(self, by_omega: Array) -> Array:
        """∂(−bound)/∂θ, given what comes through the statistics from one more pass over the data (`pull_back`)."""
        kernel, seen = self.model.kernel, self.statistics
        noise, v0 = self.model.noise_variance, kernel.signal_variance
        m, n_states = len(self.basis), len(self.basis.states)
        C, Ci, inverse = self.basis.correlation, self._inverse_correlation, self._inverse
        outer = np.multiply.outer(self.weights, self.weights)
        unexplained = 0.5 * v0 * self._unexplained / noise
        # ∂/∂Λ = ½(σ²M⁻¹ − Λ⁻¹ + ββᵀ)
        by_precision = 0.5 * (noise * inverse + outer)
        by_precision_of_states = by_precision[:n_states, :n_states] - 0.5 * v0 * Ci
        by_v0 = unexplained - float((by_precision_of_states * C).sum()) / v0
        of_levels = by_precision[n_states:, n_states:] * kernel.level_precision()[0]
        by_b = 0.5 * (m - n_states) - float(of_levels.sum()) / kernel.bias if m > n_states else 0.0
        precision = self.basis.precision
        by_noise = float((by_precision * precision).sum()) + 0.5 * (seen.n_rows - m) - unexplained
        by_noise -= 0.5 * float(seen.gram[m, m] - self.half @ self.half) / noise
        # The correlation of Z enters through Λ and through C̃.
        by_correlation = by_precision_of_states / v0 + (0.5 * v0 / noise) * (Ci @ self._visible_and_hidden @ Ci)
        by_correlation = self.basis.to_raw(by_correlation)
        states, raw = self.basis.states, self.basis.raw().correlation
        omega = by_omega + kernel.contract_correlation(by_correlation, states, states, raw)
        return pack_gradient(np.concatenate([[by_v0, by_b], kernel.metric.pull_back(omega)]), by_noise)

    @cached_property
    def _inverse(self) -> Array:
        """M⁻¹, of shape (m', m')."""
        return linalg.symmetrise_in_place(linalg.inverse_in_place(self.L.copy()))

    @cached_property
    def _inverse_correlation(self) -> Array:
        """C(Z, Z)⁻¹, of shape (m, m)."""
        return linalg.symmetrise_in_place(linalg.inverse_in_place(self.basis.factor.copy()))

    @cached_property
    def _visible_and_hidden(self) -> Array:
        """Σ C(Z, x)C(x, Z) over what targets see, hidden or not, of shape (m, m)."""
        n_states = len(self.basis.states)
        both = self.statistics.gram[:n_states, :n_states] + self.statistics.hidden[:n_states, :n_states]
        return linalg.symmetrise_in_place(both)

    @cached_property
    def _unexplained(self) -> float:
        """tr(C_nn − C̃_nn), the prior variance that the basis leaves out, in units of v₀."""
        explained = float((self._inverse_correlation * self._visible_and_hidden).sum())
        return max(self.statistics.prior_trace - explained, 0.0)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the rewards say about values, seen through the basis."""

    solution: Solution
    noise_moments: Array  # W of `noise_moments`  [m', m']
    kind: Variance = "projected_process"

    @property
    def subset(self) -> Array:
        """The states that stand for all others, of shape (m, n_dims)."""
        return self.solution.basis.states

    def evidence(self, model: Model) -> Evidence:
        """Bound on the evidence under `model`, which is the one conditioned on up to its noise."""
        return Solution.of(model, self.solution.basis, self.solution.statistics).evidence

    def mean(self, states: Array) -> Array:
        """Posterior mean of V, of shape (n,)."""
        basis, weights = self.solution.basis, self.solution.weights
        return in_chunks(lambda x: basis.features(x) @ weights, states)

    def variance(self, states: Array) -> Array:
        """Posterior variance of V under the noise model as it stands, of shape (n,)."""
        return in_chunks(self._variance, states)

    def martingale_variance(self, states: Array) -> Array:
        """Variance of the error of the mean when the noise is what it is in a Markov chain, of shape (n,)."""
        return in_chunks(self._martingale_variance, states)

    def _variance(self, states: Array) -> Array:
        basis, model = self.solution.basis, self.solution.model
        half = linalg.half_solve(self.solution.L, basis.features(states).T)
        variance = model.noise_variance * np.einsum("mn,mn->n", half, half)
        if self.kind == "projected_process":
            variance += model.kernel.signal_variance * basis.unexplained(states)
        return variance

    def covariance(self, states: Array) -> Array:
        """Posterior covariance of V between all pairs of states, of shape (n, n), whose diagonal is `variance`."""
        basis, model = self.solution.basis, self.solution.model
        half = linalg.half_solve(self.solution.L, basis.features(states).T)
        covariance = model.noise_variance * (half.T @ half)
        if self.kind == "projected_process":
            covariance += model.kernel.signal_variance * basis.unexplained_between(states)
            # What the subtraction leaves uncertain.
            eps = model.kernel.signal_variance * np.finfo(np.float64).eps
            covariance.flat[:: len(covariance) + 1] += eps * max(len(basis), len(covariance))
        return covariance

    def _martingale_variance(self, states: Array) -> Array:
        basis, model = self.solution.basis, self.solution.model
        v = linalg.solve(self.solution.L, basis.features(states).T)  # M⁻¹ψ  [m', n]
        open_to_the_basis = model.noise_variance**2 * np.einsum("mn,mn->n", v, basis.precision @ v)
        beyond_the_basis = model.kernel.signal_variance * basis.unexplained(states)
        W = linalg.symmetrise_in_place(self.noise_moments.copy())
        return beyond_the_basis + open_to_the_basis + np.einsum("mn,mn->n", v, W @ v)
