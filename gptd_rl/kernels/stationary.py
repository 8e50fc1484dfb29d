"""The squared-exponential covariance of the value function, ``k(x, x') = v₀·exp(−½ d²_Ω(x, x')) + b`` (paper eq. 3.3).

Kernels know states and nothing else. An objective hands them ``A = ∂L/∂K``; they contract it with ∂K/∂θ, tile by
tile, so that neither a second n×n matrix nor an n×n×P tensor ever exists:

    B = A∘(v₀C)        ∂L/∂log v₀ = ΣB        ∂L/∂log b = b·ΣA
    ∂L/∂Ω = −½[ Xᵀdiag(B1)X + X'ᵀdiag(Bᵀ1)X' − XᵀBX' − X'ᵀBᵀX ]

Symmetric matrices are kept as their lower triangle in a C-ordered array; what stands above the diagonal has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gptd_rl.kernels.metrics import Metric
from gptd_rl.types import Array

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

    def blocks(self, states: Array) -> list[NDArray[np.int64]]:
        """Groups of states between which K is zero, as row numbers: here all are in one."""
        return [np.arange(len(states))]

    @property
    def n_levels(self) -> int:
        """Number of levels that V varies around: one, or none without a bias."""
        return int(self.bias > 0.0)

    def levels(self, states: Array) -> Array:
        """With which weight each state has each level, of shape (n_states, n_levels)."""
        return np.ones((len(states), self.n_levels))

    def level_precision(self) -> tuple[Array, float]:
        """R⁻¹, of shape (n_levels, n_levels), and log det R, where the levels have the prior covariance b·R."""
        return np.ones((self.n_levels, self.n_levels)), 0.0

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


@dataclass(frozen=True, eq=False)
class ActionKernel(SquaredExponential):
    """The covariance of Q: that of V times 1 where the actions are the same, and ρ where they are not.

    States are pairs [x, a]: the last column numbers the action. The metric is over the columns before it, and θ is
    that of `SquaredExponential`. With ρ = 0, which is the δ(a, a') of GPTD for control, each action has a value
    function of its own: K is block diagonal, and nothing is computed outside the blocks.

    Parameters
    ----------
    metric, signal_variance, bias, fixed
        As in `SquaredExponential`, for states without the action.
    n_actions : int
        Actions are numbered from 0 to n_actions − 1.
    action_correlation : float
        ρ, from 0 to below 1.
    """

    n_actions: int = 1
    action_correlation: float = 0.0

    def __init__(
        self,
        metric: Metric,
        signal_variance: float = 1.0,
        bias: float = 1.0,
        fixed: Iterable[str] = (),
        n_actions: int = 1,
        action_correlation: float = 0.0,
    ) -> None:
        super().__init__(metric, signal_variance, bias, fixed)
        if not 0.0 <= action_correlation < 1.0:
            raise ValueError(f"action_correlation must lie in [0, 1); got {action_correlation}.")
        object.__setattr__(self, "n_actions", int(n_actions))
        object.__setattr__(self, "action_correlation", float(action_correlation))

    def blocks(self, states: Array) -> list[NDArray[np.int64]]:
        """Row numbers of each action's states, if actions do not correlate."""
        if self.action_correlation:
            return super().blocks(states)
        return [np.flatnonzero(states[:, -1] == action) for action in np.unique(states[:, -1])]

    @property
    def n_levels(self) -> int:
        """One level for each action, or none without a bias."""
        return self.n_actions if self.bias > 0.0 else 0

    def levels(self, states: Array) -> Array:
        """1 in the column of each state's action, of shape (n_states, n_levels)."""
        return (states[:, -1:] == np.arange(self.n_levels)).astype(np.float64)

    def level_precision(self) -> tuple[Array, float]:
        """R⁻¹ and log det R for R = (1−ρ)I + ρ11ᵀ."""
        n, rho = self.n_levels, self.action_correlation
        if n == 0:
            return np.zeros((0, 0)), 0.0
        # det R = (1−ρ)ⁿ⁻¹(1−ρ+nρ)        R⁻¹ = (I − 11ᵀρ/(1−ρ+nρ))/(1−ρ)
        largest = 1.0 - rho + n * rho
        inverse = (np.eye(n) - rho / largest) / (1.0 - rho)
        return inverse, float((n - 1) * np.log1p(-rho) + np.log(largest))

    def __call__(self, states: Array, others: Array | None = None) -> Array:
        """K between two sets of pairs, of shape (n_states, n_others)."""
        others = states if others is None else others
        return self._fill(np.empty((len(states), len(others))), super().__call__, states, others)

    def correlation(self, states: Array, others: Array, out: Array | None = None) -> Array:
        """C between two sets of pairs, of shape (n_states, n_others): K without v₀ and b."""
        out = np.empty((len(states), len(others))) if out is None else out
        return self._fill(out, super().correlation, states, others)

    def paired_correlation(self, states: Array, others: Array) -> Array:
        """C between each pair and the other of the same row, of shape (n_states,)."""
        same = states[:, -1] == others[:, -1]
        return super().paired_correlation(states[:, :-1], others[:, :-1]) * np.where(same, 1.0, self.action_correlation)

    def lower(self, states: Array, out: Array | None = None) -> Array:
        """Lower triangle of K, of shape (n_states, n_states), in `out` if given."""
        K = np.empty((len(states), len(states))) if out is None else out
        if self.action_correlation:
            return self._tie_lower(super().lower(states[:, :-1], K), states)
        K[:] = 0.0
        for rows in self.blocks(states):
            K[np.ix_(rows, rows)] = super().lower(states[rows, :-1])
        return K

    def contract(self, A: Array, states: Array, others: Array) -> Array:
        """Σ_ij A_ij ∂K_ij/∂θ for a full `A` of shape (n_states, n_others)."""
        return super().contract(A * self._ties(states, others), states[:, :-1], others[:, :-1])

    def contract_correlation(self, A: Array, states: Array, others: Array, C: Array) -> Array:
        """∂L/∂Ω, of shape (n_dims, n_dims), from A = ∂L/∂C and the correlation C, which is overwritten."""
        if self.action_correlation:
            return super().contract_correlation(A, states[:, :-1], others[:, :-1], C)
        omega = np.zeros((self.metric.n_dims, self.metric.n_dims))
        for rows, columns in _same_action(states, others):
            block = np.ix_(rows, columns)
            omega += super().contract_correlation(A[block], states[rows, :-1], others[columns, :-1], C[block])
        return omega

    def contract_paired_correlation(self, a: Array, states: Array, others: Array) -> Array:
        """∂L/∂Ω, of shape (n_dims, n_dims), from a = ∂L/∂(paired correlation), of shape (n_states,)."""
        a = np.where(states[:, -1] == others[:, -1], a, self.action_correlation * a)
        plain = SquaredExponential(self.metric)
        return plain.contract_paired_correlation(a, states[:, :-1], others[:, :-1])

    def contract_lower(self, A: Array, states: Array) -> Array:
        """Σ_ij A_ij ∂K_ij/∂θ for a symmetric `A` of which the lower triangle is read, and overwritten if ρ > 0."""
        if self.action_correlation:
            return super().contract_lower(self._tie_lower(A, states), states[:, :-1])
        return np.sum(
            [
                super(ActionKernel, self).contract_lower(A[np.ix_(rows, rows)], states[rows, :-1])
                for rows in self.blocks(states)
            ],
            axis=0,
        )

    def _fill(self, K: Array, between: Callable[[Array, Array], Array], states: Array, others: Array) -> Array:
        """Fill K by a function of states without actions: everywhere and scaled, or in the blocks only."""
        if self.action_correlation:
            K[:] = between(states[:, :-1], others[:, :-1])
            K *= self._ties(states, others)
            return K
        K[:] = 0.0
        for rows, columns in _same_action(states, others):
            K[np.ix_(rows, columns)] = between(states[rows, :-1], others[columns, :-1])
        return K

    def _ties(self, states: Array, others: Array) -> Array:
        """1 where the actions are the same and ρ elsewhere, of shape (n_states, n_others)."""
        return np.where(states[:, -1:] == others[:, -1], 1.0, self.action_correlation)

    def _tie_lower(self, K: Array, states: Array) -> Array:
        """Scale the lower triangle of K by the ties, in place."""
        for rows, columns in lower_tiles(len(states)):
            K[rows, columns] *= self._ties(states[rows], states[columns])
        return K


def _same_action(states: Array, others: Array) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """For each action that both sets of pairs have, the rows in which they have it."""
    for action in np.intersect1d(states[:, -1], others[:, -1]):
        yield np.flatnonzero(states[:, -1] == action), np.flatnonzero(others[:, -1] == action)


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
