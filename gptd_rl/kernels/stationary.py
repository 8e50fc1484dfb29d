"""Stationary kernels: a profile of ½d²_Ω(x, x'), tiled. The squared exponential of paper eq. (18), and rougher ones.

Each profile is a function C(u) of u = ½d² with C(0) = 1, and its slope −C'(u). With B = A∘(−v₀C'),

    ∂L/∂log v₀ = ΣA∘v₀C        ∂L/∂Ω = −½[ Xᵀdiag(B1)X + X'ᵀdiag(Bᵀ1)X' − XᵀBX' − X'ᵀBᵀX ]

so that all derivatives with respect to the metric cost two matrix products, whatever the profile.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from gptd_rl.checks import one_line
from gptd_rl.kernels.base import Pairs, check_variance, describe_fixed, safe_log, short, unknown_names
from gptd_rl.kernels.compose import Kernel, Sum
from gptd_rl.kernels.constant import Constant
from gptd_rl.kernels.metric import Metric
from gptd_rl.kernels.metrics import build_metric, describe_metric
from gptd_rl.kernels.registry import register
from gptd_rl.kernels.scale import DataScale, Guess, ParameterSpace
from gptd_rl.types import Array, BoolArray, IntArray

# Largest rounding error of ½d² by a matrix product.
CANCELLATION = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Stationary(Kernel):
    """k(x, x') = v₀·C(½d²_Ω(x, x')).

    Parameters
    ----------
    metric : Isotropic, ARD or FactorAnalysis
        The distance between states.
    signal_variance : float
        v₀, the variance of the value function around its level.
    fixed : iterable of str
        Names of the parameters that model selection must leave alone, such as ``("v0", "a2")``.
    """

    metric: Metric
    signal_variance: float = 1.0
    fixed: frozenset[str] = frozenset()
    n_amplitudes = 1
    # Whether −C' is C itself, which spares one evaluation.
    is_own_slope: ClassVar[bool] = False

    def __init__(self, metric: Metric, signal_variance: float = 1.0, fixed: Iterable[str] = ()) -> None:
        if isinstance(metric, type) or not hasattr(metric, "parameter_names"):
            raise TypeError(f"metric must be a metric, such as ARD([1.0, 1.0]); got {one_line(repr(metric))}.")
        object.__setattr__(self, "metric", metric)
        object.__setattr__(self, "signal_variance", check_variance("signal_variance", signal_variance))
        object.__setattr__(self, "fixed", frozenset(fixed))
        unknown_names(self.fixed, self.parameter_names)

    def __repr__(self) -> str:
        variance = f"signal_variance={short(self.signal_variance)}"
        return f"{type(self).__name__}({self.metric!r}, {variance}{describe_fixed(self.fixed)})"

    @abstractmethod
    def profile(self, exponent: Array) -> Array:
        """C at −½d², which is not positive; may overwrite its argument."""

    @abstractmethod
    def slope(self, exponent: Array) -> Array:
        """−dC/du at u = ½d², given −u; may overwrite its argument."""

    # ---------------------------------------------------------------------------------- parameters

    @property
    def label(self) -> str:
        """Name of the kernel and of its metric."""
        return f"{type(self).__name__}({self.metric.label})"

    @property
    def n_dims(self) -> int:
        """Width of a state, without labels."""
        return self.metric.n_dims

    @property
    def theta(self) -> Array:
        """[log v₀, metric…]."""
        return np.concatenate([safe_log(np.array([self.signal_variance])), np.atleast_1d(self.metric.theta)])

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """("v0", metric…)."""
        return ("v0", *self.metric.parameter_names)

    @property
    def is_log(self) -> BoolArray:
        """Which entries of `theta` are logarithms."""
        return np.concatenate([[True], self.metric.is_log])

    def with_theta(self, theta: Array) -> Self:
        """The same kernel with other parameters."""
        return replace(self, metric=self.metric.with_theta(theta[1:]), signal_variance=float(np.exp(theta[0])))

    def with_metric(self, metric: Metric) -> Self:
        """The same kernel with another metric, of which nothing is fixed."""
        return replace(self, metric=metric, fixed=self.fixed & {"v0"})

    @property
    def relevances(self) -> Array:
        """Diagonal of Ω, of shape (n_dims,)."""
        return self.metric.relevances

    def space(self, scale: DataScale) -> ParameterSpace:
        """v₀ around the variance of the returns; relevances by the spread of each input."""
        variance = scale.return_variance
        return ParameterSpace.log(1e-4 * variance, 1e4 * variance) + self.metric.space(scale)

    def initial(self, scale: DataScale, guess: Guess, rng: np.random.Generator) -> Self:
        """Guess v₀ and the metric, within the bounds."""
        metric = self.metric.initial(scale, guess.relevance, rng)
        first = replace(self, metric=metric, signal_variance=guess.signal_variance)
        space = self.space(scale)
        return first.with_theta(np.clip(first.theta, space.lower, space.upper))

    def roughness(self, scale: DataScale) -> tuple[float, Array]:
        """½ Σ_ν std_ν² Ω_νν, and its gradient."""
        by_omega = 0.5 * np.diag(scale.input_std**2)
        value = float((by_omega * self.metric.matrix).sum())
        return value, np.concatenate([[0.0], self.metric.pull_back(by_omega)])

    def take_inputs(self, inputs: IntArray) -> Self:
        """The kernel of some of the inputs; fixed relevances keep their input."""
        return replace(self, metric=self.metric.take_inputs(inputs), fixed=self.fixed & {"v0", "h"})

    def to_dict(self) -> dict[str, Any]:
        """Metric, signal variance and fixed parameters."""
        return dict(metric=describe_metric(self.metric), signal_variance=self.signal_variance, fixed=sorted(self.fixed))

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Kernel:
        """Build what `to_dict` described."""
        return cls(**dict(description, metric=build_metric(description["metric"])))

    # ---------------------------------------------------------------------------------- values

    def pairs(self, states: Array, others: Array) -> Pairs:
        """Prepare two sets of states, of which the first `n_dims` columns are read."""
        read = others[:, : self.n_dims]
        return _StationaryPairs(self, read if states is others else states[:, : self.n_dims], read)

    def diagonal(self, states: Array) -> Array:
        """v₀ for each state, of shape (n_states,)."""
        return np.full(len(states), self.signal_variance)

    def paired(self, states: Array, others: Array) -> Array:
        """Covariance of each state and the other of the same row, of shape (n_states,)."""
        return self.signal_variance * self.profile(self._paired_exponent(states, others)[1])

    def contract_paired(self, a: Array, states: Array, others: Array) -> Array:
        """Σ_i a_i ∂k(x_i, x'_i)/∂θ, of shape (n_parameters,)."""
        apart, exponent = self._paired_exponent(states, others)
        b = self.signal_variance * a * self.slope(exponent.copy())
        by_amplitude = self.signal_variance * float(a @ self.profile(exponent))
        return np.append(by_amplitude, self.metric.pull_back(-0.5 * (apart.T * b) @ apart))

    def _paired_exponent(self, states: Array, others: Array) -> tuple[Array, Array]:
        """Differences x − x' and −½d² of each row."""
        apart = states[:, : self.n_dims] - others[:, : self.n_dims]
        w = self.metric.whiten(apart)
        return apart, -0.5 * (w * w).sum(axis=1)

    def contract_diagonal(self, a: Array, states: Array) -> Array:
        """Only v₀ changes the diagonal."""
        return np.append(self.signal_variance * float(a.sum()), np.zeros(len(self.theta) - 1))


class _StationaryPairs:
    """Two sets of states, in plain and in whitened coordinates, from which tiles are made."""

    def __init__(self, kernel: Stationary, states: Array, others: Array) -> None:
        centre = others.mean(axis=0) if len(others) else 0.0  # small numbers, small rounding errors
        self.kernel, self.others = kernel, others - centre
        self.states = self.others if states is others else states - centre
        w2 = kernel.metric.whiten(self.others)
        w = w2 if states is others else kernel.metric.whiten(self.states)
        h, h2 = (-0.5 * np.einsum("ij,ij->i", z, z) for z in (w, w2))
        self.left = _columns(w, h, 1.0)  # [n, W+2]
        self.right = _columns(w2, 1.0, h2)  # [n', W+2]
        self.others_and_one = _columns(self.others, 1.0)  # [n', D+1]
        self.apart: tuple[Array, Array] | None = None
        # Where both sets have states so far out that ½|w|² swallows d², distances are sums of squared differences.
        if np.finfo(np.float64).eps * min(-h.min(initial=0.0), -h2.min(initial=0.0)) > CANCELLATION:
            self.apart = kernel.metric.whiten(states), kernel.metric.whiten(others)
        self.by_amplitude = 0.0
        self.by_omega = np.zeros((kernel.n_dims, kernel.n_dims))

    def exponent(self, rows: slice, columns: slice) -> Array:
        """−½d² for a tile, by one matrix product if that keeps its digits."""
        if self.apart is not None:
            w, w2 = self.apart[0][rows], self.apart[1][columns]
            tile = np.zeros((len(w), len(w2)))
            for along, along2 in zip(w.T, w2.T, strict=True):
                tile -= 0.5 * np.subtract.outer(along, along2) ** 2
            return tile
        tile = self.left[rows] @ self.right[columns].T
        return np.minimum(tile, 0.0, out=tile)  # a squared distance is not negative, rounding or not

    def values(self, rows: slice, columns: slice) -> Array:
        tile = self.kernel.profile(self.exponent(rows, columns))
        tile *= self.kernel.signal_variance
        return tile

    def add(self, A: Array, rows: slice, columns: slice, K: Array | None = None) -> None:
        if self.kernel.is_own_slope:
            tile = self.values(rows, columns) if K is None else K
            B = np.multiply(tile, A, out=tile)
        else:
            tile = self.values(rows, columns) if K is None else K
            self.by_amplitude += float(np.einsum("ij,ij->", A, tile))
            B = self.kernel.slope(self.exponent(rows, columns))
            B *= A
            B *= self.kernel.signal_variance
        X, X2 = self.states[rows], self.others[columns]
        BX = B @ self.others_and_one[columns]  # [BX', B1]
        row_sums, column_sums = BX[:, -1], np.ones(len(B)) @ B
        cross = X.T @ BX[:, :-1]  # XᵀBX'  [D, D]
        if self.kernel.is_own_slope:
            self.by_amplitude += float(row_sums.sum())
        self.by_omega -= 0.5 * ((X.T * row_sums) @ X + (X2.T * column_sums) @ X2 - cross - cross.T)

    def gradient(self) -> Array:
        return np.concatenate([[self.by_amplitude], self.kernel.metric.pull_back(self.by_omega)])


def _columns(matrix: Array, *columns: Array | float) -> Array:
    """A matrix with further columns."""
    n, width = matrix.shape
    out = np.empty((n, width + len(columns)))
    out[:, :width] = matrix
    for i, column in enumerate(columns, width):
        out[:, i] = column
    return out


@register
@dataclass(frozen=True, eq=False, init=False, repr=False)
class SquaredExponential(Stationary):
    """k(x, x') = v₀·exp(−½d²): infinitely smooth (paper eq. (18), without the bias)."""

    is_own_slope = True

    @property
    def label(self) -> str:
        """The paper's name of the variant: that of the metric."""
        return self.metric.label

    def profile(self, exponent: Array) -> Array:
        """exp(−u)."""
        return np.exp(exponent, out=exponent)

    slope = profile


@register
@dataclass(frozen=True, eq=False, init=False, repr=False)
class Matern32(Stationary):
    """k(x, x') = v₀(1 + s)exp(−s), s = √3·d: once differentiable."""

    def profile(self, exponent: Array) -> Array:
        """(1 + s)exp(−s)."""
        s = np.sqrt(-6.0 * exponent)
        return (1.0 + s) * np.exp(-s)

    def slope(self, exponent: Array) -> Array:
        """3exp(−s)."""
        return 3.0 * np.exp(-np.sqrt(-6.0 * exponent))


@register
@dataclass(frozen=True, eq=False, init=False, repr=False)
class Matern52(Stationary):
    """k(x, x') = v₀(1 + s + s²/3)exp(−s), s = √5·d: twice differentiable."""

    def profile(self, exponent: Array) -> Array:
        """(1 + s + s²/3)exp(−s)."""
        s = np.sqrt(-10.0 * exponent)
        return (1.0 + s + s * s / 3.0) * np.exp(-s)

    def slope(self, exponent: Array) -> Array:
        """5/3·(1 + s)exp(−s)."""
        s = np.sqrt(-10.0 * exponent)
        return (5.0 / 3.0) * (1.0 + s) * np.exp(-s)


@register
@dataclass(frozen=True, eq=False, init=False, repr=False)
class MultiScale(Stationary):
    """k(x, x') = v₀ Σ_j w_j exp(−½d²/ℓ_j²), ℓ = 8, 4, 2, 1, ½: smooth far away and fine nearby.

    For value functions that change their shape while an agent learns. A long lengthscale alone forgets that unknown
    states may be good, a short one generalises nothing; the evidence then only has to say which inputs matter.
    """

    SCALES: ClassVar[Array] = np.array([8.0, 4.0, 2.0, 1.0, 0.5])  # each half the one before
    WEIGHTS: ClassVar[Array] = SCALES / SCALES.sum()  # functions vary more over long distances than over short ones
    # Lengthscales to consider, in standard deviations of each input: the kernel spans a factor of 16 by itself.
    LENGTHSCALES: ClassVar[tuple[float, float]] = (0.5, 8.0)

    def profile(self, exponent: Array) -> Array:
        """Σ_j w_j exp(−u/ℓ_j²)."""
        return self._sum(exponent, self.WEIGHTS)

    def slope(self, exponent: Array) -> Array:
        """Σ_j w_j/ℓ_j² exp(−u/ℓ_j²)."""
        return self._sum(exponent, self.WEIGHTS / self.SCALES**2)

    def _sum(self, exponent: Array, weights: Array) -> Array:
        exponent /= self.SCALES[0] ** 2
        C = np.exp(exponent, out=exponent)
        total = weights[0] * C
        term = np.empty_like(C)
        for weight in weights[1:]:
            # half the lengthscale is the fourth power, which spares an exp
            np.multiply(C, C, out=C)
            np.multiply(C, C, out=C)
            total += np.multiply(weight, C, out=term)
        return np.asarray(total)

    def space(self, scale: DataScale) -> ParameterSpace:
        """As for others, with relevances between the bounds on lengthscales."""
        space = super().space(scale)
        shortest, longest = self.LENGTHSCALES
        narrow = ~np.isnan(space.linear_below)
        squared = np.where(scale.is_constant, 1.0, scale.input_std) ** 2
        if narrow.sum() != len(squared):  # not one relevance for each input
            return space
        lower, upper = space.lower.copy(), space.upper.copy()
        lower[narrow], upper[narrow] = -np.log(longest**2 * squared), -np.log(shortest**2 * squared)
        return ParameterSpace(lower, upper, space.unit, np.full(len(narrow), np.nan))


def paper_kernel(metric: Metric, signal_variance: float = 1.0, bias: float = 1.0, fixed: Iterable[str] = ()) -> Sum:
    """The paper's covariance k(x, x') = v₀·exp(−½d²_Ω) + b: paper eq. (18).

    Parameters
    ----------
    metric : Isotropic, ARD or FactorAnalysis
    signal_variance : float
        v₀.
    bias : float
        b.
    fixed : iterable of str
        Names of the parameters that model selection must leave alone, such as ``("b", "a2")``.
    """
    kernel = SquaredExponential(metric, signal_variance) + Constant(bias)
    names = tuple(fixed)
    return kernel.fix(*names) if names else kernel
