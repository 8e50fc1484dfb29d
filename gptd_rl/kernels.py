"""The squared-exponential covariance of the value function, ``k(x, x') = v₀·exp(−½ d²_Ω(x, x')) + b`` (paper eq. 3.3).

Kernels know states and nothing else. An objective hands them ``A = ∂L/∂K``; they contract it with ∂K/∂θ, tile by
tile, so that neither a second n×n matrix nor an n×n×P tensor ever exists:

    B = A∘(v₀C)        ∂L/∂log v₀ = ΣB        ∂L/∂log b = b·ΣA
    ∂L/∂Ω = −½[ Xᵀdiag(B1)X + X'ᵀdiag(Bᵀ1)X' − XᵀBX' − X'ᵀBᵀX ]

Symmetric matrices are kept as their lower triangle in a C-ordered array; what stands above the diagonal has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gptd_rl.metrics import Metric
from gptd_rl.trajectories import Array

# Rows and columns of a tile: small enough for a tile and its factor to stay in a core's cache.
TILE = 128


@dataclass(frozen=True, eq=False)
class SquaredExponential:
    """Squared exponential with a metric, a signal variance and a bias.

    Parameters
    ----------
    metric : Isotropic, ARD or FactorAnalysis
        The distance between states.
    signal_variance : float
        v₀, the variance of the value function around its level.
    bias : float
        b, the variance of that level.
    fixed : iterable of str
        Names of the parameters that model selection must leave alone, such as ``("b", "a2")``.
    """

    metric: Metric
    signal_variance: float = 1.0
    bias: float = 1.0
    fixed: frozenset[str] = frozenset()

    def __init__(
        self,
        metric: Metric,
        signal_variance: float = 1.0,
        bias: float = 1.0,
        fixed: Iterable[str] = (),
    ) -> None:
        for name, value in (("signal_variance", signal_variance), ("bias", bias)):
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative; got {value}.")
        object.__setattr__(self, "metric", metric)
        object.__setattr__(self, "signal_variance", float(signal_variance))
        object.__setattr__(self, "bias", float(bias))
        object.__setattr__(self, "fixed", frozenset(fixed))
        if unknown := sorted(self.fixed - set(self.parameter_names)):
            raise ValueError(f"fixed names {unknown}, but the parameters are {self.parameter_names}.")

    # ---------------------------------------------------------------------------------- parameters

    @property
    def theta(self) -> Array:
        """[log v₀, log b, metric…]; a bias or relevance of exactly 0 is −inf here, and stays where it is."""
        with np.errstate(divide="ignore"):
            return np.concatenate([np.log([self.signal_variance, self.bias]), np.atleast_1d(self.metric.theta)])

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the entries of `theta`."""
        return ("v0", "b", *self.metric.parameter_names)

    @property
    def is_log(self) -> NDArray[np.bool_]:
        """Which entries of `theta` are logarithms."""
        return np.concatenate([[True, True], self.metric.is_log])

    def with_theta(self, theta: Array) -> SquaredExponential:
        """Return the same kernel with other parameters."""
        v0, b = np.exp(theta[:2])
        return replace(self, metric=self.metric.with_theta(theta[2:]), signal_variance=v0, bias=b)

    # ---------------------------------------------------------------------------------- values

    def __call__(self, states: Array, others: Array | None = None) -> Array:
        """K between two sets of states, of shape (n_states, n_others)."""
        pair = _Pair.of(self.metric, states, states if others is None else others)
        K = pair.correlation(slice(None), slice(None))
        K *= self.signal_variance
        K += self.bias
        return K

    def correlation(self, states: Array, others: Array, out: Array | None = None) -> Array:
        """C = exp(−½ d²) between two sets of states, of shape (n_states, n_others): K without v₀ and b, to rounding."""
        pair = _Pair.of(self.metric, states, others)
        exponent = pair.exponent(slice(None), slice(None), out)
        return np.exp(exponent, out=exponent)

    def paired_correlation(self, states: Array, others: Array) -> Array:
        """C between each state and the other of the same row, of shape (n_states,)."""
        w = self.metric.whiten(states - others)
        return np.exp(-0.5 * (w * w).sum(axis=1))

    def diagonal(self, states: Array) -> Array:
        """k(x, x) for each state, of shape (n_states,)."""
        return np.full(len(states), self.signal_variance + self.bias)

    def lower(self, states: Array, out: Array | None = None) -> Array:
        """Lower triangle of K, of shape (n_states, n_states), in `out` if given."""
        pair = _Pair.of(self.metric, states, states)
        K = np.zeros((len(states), len(states))) if out is None else out
        for rows, columns in lower_tiles(len(states)):
            tile = pair.correlation(rows, columns)
            tile *= self.signal_variance
            tile += self.bias
            K[rows, columns] = tile
        return K

    # ---------------------------------------------------------------------------------- derivatives

    def contract(self, A: Array, states: Array, others: Array) -> Array:
        """Σ_ij A_ij ∂K_ij/∂θ for a full `A` of shape (n_states, n_others); the result has the shape of `theta`."""
        pair = _Pair.of(self.metric, states, others)
        sums = _Sums.zero(self.metric.n_dims)
        sums.add(A, pair, slice(None), slice(None), factor=1.0)
        return self._gradient(sums)

    def contract_correlation(self, A: Array, states: Array, others: Array, C: Array) -> Array:
        """∂L/∂Ω, of shape (n_dims, n_dims), from A = ∂L/∂C and the correlation C, which is overwritten."""
        pair = _Pair.of(self.metric, states, others)
        sums = _Sums.zero(self.metric.n_dims)
        C *= A
        sums.add_product(C, pair, slice(None), slice(None), factor=1.0)
        return sums.omega

    def contract_paired_correlation(self, a: Array, states: Array, others: Array) -> Array:
        """∂L/∂Ω, of shape (n_dims, n_dims), from a = ∂L/∂(paired correlation), of shape (n_states,)."""
        apart = states - others
        return -0.5 * (apart.T * (a * self.paired_correlation(states, others))) @ apart

    def contract_lower(self, A: Array, states: Array) -> Array:
        """Σ_ij A_ij ∂K_ij/∂θ for a symmetric `A` of which only the lower triangle is read."""
        pair = _Pair.of(self.metric, states, states)
        sums = _Sums.zero(self.metric.n_dims)
        for rows, columns in lower_tiles(len(states)):
            tile = A[rows, columns]
            if rows == columns:
                sums.add(np.tril(tile) + np.tril(tile, -1).T, pair, rows, columns, factor=1.0)
            else:  # it stands for its mirror image too
                sums.add(tile, pair, rows, columns, factor=2.0)
        return self._gradient(sums)

    def _gradient(self, sums: _Sums) -> Array:
        v0 = self.signal_variance
        return np.concatenate([[v0 * sums.B, self.bias * sums.A], self.metric.pull_back(v0 * sums.omega)])


def lower_tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Tiles that cover the lower triangle of an n×n matrix."""
    cuts = [slice(i, min(i + TILE, n)) for i in range(0, n, TILE)]
    return ((cuts[i], cuts[j]) for i in range(len(cuts)) for j in range(i + 1))


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two sets of states, in plain and in whitened coordinates, from which tiles of C = exp(−½d²) are made."""

    states: Array  # [n, D], centred
    others: Array  # [n', D]
    others_and_one: Array  # [n', D+1]
    left: Array  # [n, W+2]: w, −½‖w‖², 1
    right: Array  # [n', W+2]: w', 1, −½‖w'‖²

    @classmethod
    def of(cls, metric: Metric, states: Array, others: Array) -> _Pair:
        for x in (states, others):
            if x.shape[1] != metric.n_dims:
                raise ValueError(f"the kernel has {metric.n_dims} dimensions; got states of width {x.shape[1]}.")
        centre = others.mean(axis=0) if len(others) else 0.0  # small numbers, small rounding errors
        states, others = states - centre, others - centre
        w, w2 = metric.whiten(states), metric.whiten(others)
        h, h2 = -0.5 * (w * w).sum(axis=1), -0.5 * (w2 * w2).sum(axis=1)
        left = np.column_stack([w, h, np.ones(len(w))])
        right = np.column_stack([w2, np.ones(len(w2)), h2])
        return cls(states, others, np.column_stack([others, np.ones(len(others))]), left, right)

    def correlation(self, rows: slice, columns: slice) -> Array:
        """C = exp(−½ d²) for a tile, by one matrix product and one exp."""
        tile = self.exponent(rows, columns)
        np.minimum(tile, 0.0, out=tile)  # a squared distance is not negative, rounding or not
        return np.exp(tile, out=tile)

    def exponent(self, rows: slice, columns: slice, out: Array | None = None) -> Array:
        """−½ d² for a tile."""
        return np.asarray(np.matmul(self.left[rows], self.right[columns].T, out=out))


@dataclass(eq=False)
class _Sums:
    """Running sums of a contraction, v₀ left out: ΣB, ΣA and ∂L/∂Ω."""

    B: float
    A: float
    omega: Array  # [D, D]

    @classmethod
    def zero(cls, n_dims: int) -> _Sums:
        return cls(0.0, 0.0, np.zeros((n_dims, n_dims)))

    def add(self, A: Array, pair: _Pair, rows: slice, columns: slice, factor: float) -> None:
        B = pair.correlation(rows, columns)
        B *= A
        self.A += factor * float(A.sum())
        self.add_product(B, pair, rows, columns, factor)

    def add_product(self, B: Array, pair: _Pair, rows: slice, columns: slice, factor: float) -> None:
        X, X2 = pair.states[rows], pair.others[columns]
        BX = B @ pair.others_and_one[columns]  # [BX', B1]
        row_sums, column_sums = BX[:, -1], np.ones(len(B)) @ B
        cross = X.T @ BX[:, :-1]  # XᵀBX'  [D, D]
        self.B += factor * float(row_sums.sum())
        self.omega -= (0.5 * factor) * ((X.T * row_sums) @ X + (X2.T * column_sums) @ X2 - cross - cross.T)
