"""Sufficient statistics of the sparse model: one pass over the data costs O(n·m²) time and O(m²) memory.

All that a model has to know of the data is one Gram matrix, ``[FᵀΨ, y]ᵀ[FᵀΨ, y]``, where y and F are those of `targets`
and Ψ those of `features`. It is a sum over segments: over blocks of rows, over threads, over machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas

from gptd_rl.inference.features import InducingFeatures
from gptd_rl.kernels import Kernel
from gptd_rl.temporal.shards import Block, Shard
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class Statistics:
    """All that inducing features need of the data. They add up over whole segments."""

    gram: Array  # [FᵀΨ, y]ᵀ[FᵀΨ, y], lower triangle  [m'+1, m'+1]
    nullspace_gram: Array  # Σ_s Ψᵀz̃z̃ᵀΨ, what the unknown tails take away, lower triangle  [m', m']
    prior_trace: float  # prior variance by g of the targets, tails included
    n_rows: int
    log_jacobian: float

    def __add__(self, other: Statistics) -> Statistics:
        """Of both data."""
        return Statistics(
            self.gram + other.gram,
            self.nullspace_gram + other.nullspace_gram,
            self.prior_trace + other.prior_trace,
            self.n_rows + other.n_rows,
            self.log_jacobian + other.log_jacobian,
        )


@dataclass(frozen=True, eq=False)
class StatisticsGradient:
    """Derivatives of an objective with respect to `Statistics`."""

    by_gram: Array  # with respect to S = ΨᵀFFᵀΨ, as for independent entries  [m', m']
    by_nullspace_gram: Array  # [m', m']
    by_moment: Array  # with respect to ΨᵀFy  [m']
    by_prior_trace: float


def statistics(shard: Shard, features: InducingFeatures) -> Statistics:
    """One pass: a SYRK per block."""
    m = len(features)
    gram, nullspace_gram = np.zeros((m + 1, m + 1)), np.zeros((m, m))
    prior_trace = 0.0
    long = shard.long_tails(features, m)
    memory = np.empty((shard.block_size, m + 1))
    for block in shard.blocks:
        E = _target_features(shard, block, features, memory)
        if block.tails is not None:
            # ΠΨ row by row: subtracting Gram matrices would leave the rounding errors of the larger one.
            tails = _tail_features(block, E[:, :m], long)
            _add_gram(nullspace_gram, tails[block.whole])
            E[:, :m] -= block.tails.T @ tails
        _add_gram(gram, E)
        prior_trace += _prior_trace(shard, block, features.split.inducing)
    _add_gram(nullspace_gram, long)
    return Statistics(gram, nullspace_gram, prior_trace, shard.n_rows, shard.log_jacobian)


def pull_back(shard: Shard, features: InducingFeatures, gradient: StatisticsGradient) -> Array:
    """∂L/∂θ of g through the statistics, of shape (n_parameters,): another pass, a GEMM per block."""
    m, n_inducing = len(features), features.n_inducing
    kernel = features.split.inducing
    # ∂L/∂Ψ = F(2FᵀΨ·L_S + y·L_bᵀ), where rows of E are [FᵀΨ, y]
    onto_features = np.vstack([2.0 * gradient.by_gram[:, :n_inducing], gradient.by_moment[:n_inducing]])
    tails_less_targets = 2.0 * (gradient.by_nullspace_gram - gradient.by_gram)[:, :n_inducing]
    long = shard.long_tails(features, m)
    total = np.zeros(len(kernel.theta))
    memory, product = np.empty((shard.block_size, m + 1)), np.empty((shard.block_size, n_inducing))
    overwritten = features.whitened or shard.noise == "deterministic"  # then g(x, Z) is kept beside E
    kept = np.empty((shard.block_size, n_inducing)) if overwritten else None
    for block in shard.blocks:
        states = shard.data.states[block.rows]
        E = _target_features(shard, block, features, memory, kept)
        A = np.matmul(E, onto_features, out=product[: len(E)])  # [c, m]
        if shard.noise == "deterministic":
            A = block.H.apply_transposed(A)
        elif block.tails is not None:
            A += block.tails.T @ (_tail_features(block, E[:, :m], long) @ tails_less_targets)
        G = E[:, :n_inducing] if kept is None else kept[: len(E)]
        total += kernel.contract(features.pull_back_in_place(A), states, features.states, G)
        total += _pull_back_prior_trace(shard, block, kernel, gradient.by_prior_trace)
    return total


def noise_moments(shard: Shard, features: InducingFeatures, weights: Array) -> Array:
    """W = Σ_t δ_t² u_t u_tᵀ, lower triangle of shape (m', m'): the sampling noise of ΨᵀFy with its true correlation.

    ``ΨᵀFy = Σ_t u_t r_t``: u_t says how the reward r_t enters. The squared TD errors δ_t² of the mean ψᵀ`weights`
    estimate the noise variances of the rewards, one by one, since TD errors are uncorrelated.
    """
    m, states = len(features), shard.data.states
    raw, raw_weights = features.raw(), features.to_raw(weights)
    value = np.concatenate([raw(states[block.rows]) @ raw_weights for block in shard.blocks])
    # δ = r − HV
    errors = np.where(shard.H.has_row, shard.data.rewards - shard.H.apply(value), 0.0)
    long = shard.long_tails(features, m)
    moments, before = np.zeros((m, m)), np.zeros(m)
    memory = np.empty((shard.block_size, m + 1))
    for block in shard.blocks:
        U = np.ascontiguousarray(_target_features(shard, block, features, memory)[:, :m])
        if shard.noise == "stochastic":
            if block.tails is not None:
                U -= block.tails.T @ _tail_features(block, U, long)  # ΠΨ
            if block.rows.start > 0:  # goes on from the block before, unless a segment ended there
                U[0] += shard.H.discounts[block.rows.start - 1] * before
            U = block.H.solve_transposed(U)  # u_t = a_t + γ_{t−1} u_{t−1}
            before = U[-1].copy()
        _add_gram(moments, U * errors[block.rows, None])
    return moments


def _target_features(
    shard: Shard, block: Block, features: InducingFeatures, memory: Array, kept: Array | None = None
) -> Array:
    """Rows [FᵀΨ, y] of a block, of shape (c, m' + 1), in `memory`, before Π; `kept` receives g(x, Z)."""
    m = len(features)
    states = shard.data.states[block.rows]
    E = memory[: len(states)]
    features.fill(states, E)
    if kept is not None:
        kept[: len(E)] = E[:, : features.n_inducing]
    E[:, m] = 0.0
    features.whiten_in_place(E)
    if shard.noise == "deterministic":
        E[:, :m] = block.H.apply(E[:, :m])
    E[:, m] = shard.targets[block.rows]
    return E


def _tail_features(block: Block, features: Array, long: Array) -> Array:
    """z̃ᵀΨ of each truncated segment in the block, of shape (p, m')."""
    assert block.tails is not None
    sums = block.tails @ features
    sums[block.spilled] = long[block.spilled_numbers]
    return np.asarray(sums)


def _prior_trace(shard: Shard, block: Block, kernel: Kernel) -> float:
    """Prior variance of the block's targets: of each value, or of each difference V(x_t) − γV(x_{t+1})."""
    states = shard.data.states[block.rows]
    variance = kernel.diagonal(states)
    if shard.noise == "stochastic":
        return float(variance.sum())
    gamma = block.H.discounts[:-1]
    # k(x, x) + γ²k(x', x') − 2γk(x, x')
    differences = gamma**2 * variance[1:] - 2.0 * gamma * kernel.paired(states[:-1], states[1:])
    return float(variance[block.H.has_row].sum() + differences.sum())


def _pull_back_prior_trace(shard: Shard, block: Block, kernel: Kernel, slope: float) -> Array:
    """∂L/∂θ of g through `prior_trace`, of shape (n_parameters,)."""
    states = shard.data.states[block.rows]
    if shard.noise == "stochastic":
        return kernel.contract_diagonal(np.full(len(states), slope), states)
    gamma = block.H.discounts[:-1]
    by_variance = slope * block.H.has_row.astype(np.float64)
    by_variance[1:] += slope * gamma**2
    by_covariance = kernel.contract_paired(-2.0 * slope * gamma, states[:-1], states[1:])
    return kernel.contract_diagonal(by_variance, states) + by_covariance


def _add_gram(total: Array, rows: Array) -> None:
    """Add rowsᵀrows to the lower triangle of `total`, in place."""
    if len(rows):
        blas.dsyrk(1.0, np.ascontiguousarray(rows).T, beta=1.0, c=total.T, lower=0, overwrite_c=1)
