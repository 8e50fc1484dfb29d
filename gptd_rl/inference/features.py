"""The features of the sparse model: covariances with inducing points, and the finite-rank part of the kernel.

A kernel is split into a part that needs inducing points and a part of finite rank, such as the level b (for Q, one
level for each action), which is represented exactly:

    k(x, x') = g(x, x') + Φ(x) C Φ(x')ᵀ

    V(x) = ψ(x)ᵀw        ψ(x) = [g(x, Z), Φ(x)]        w ~ N(0, Λ⁻¹)        Λ = diag(g(Z, Z), C⁻¹)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import blas

from gptd_rl import linalg
from gptd_rl.kernels import Kernel, Sum
from gptd_rl.types import Array, IntArray


@dataclass(frozen=True, eq=False, repr=False)
class _InducingSum(Sum):
    """Terms of a kernel, over states with all the labels that the kernel reads, be it in other terms."""

    n_labels: int = 0

    @property
    def n_categorical(self) -> int:  # type: ignore[override]
        """Labels of a state."""
        return self.n_labels


@dataclass(frozen=True, eq=False)
class KernelSplit:
    """A kernel as g + ΦCΦᵀ."""

    kernel: Kernel
    inducing: Kernel  # g
    inducing_places: IntArray  # of its parameters in θ of the kernel
    explicit: tuple[tuple[Kernel, IntArray], ...]  # terms of finite rank, with the places of their parameters

    @classmethod
    def of(cls, kernel: Kernel) -> KernelSplit:
        """Split `kernel` into its terms; those of variance 0 are left out."""
        inducing: list[tuple[Any, IntArray]] = []
        explicit: list[tuple[Any, IntArray]] = []
        for term, places in kernel.terms():
            if term.rank is None:
                inducing.append((term, places))
            elif np.any(term.weight_covariance):
                explicit.append((term, places))
        if not inducing:
            raise ValueError("the sparse method needs a kernel with a part of infinite rank, such as Matern52.")
        if len(inducing) == 1 and inducing[0][0].n_categorical == kernel.n_categorical:
            return cls(kernel, *inducing[0], tuple(explicit))
        total = _InducingSum(tuple(term for term, _ in inducing), kernel.n_categorical)
        order = np.argsort(np.concatenate(total.places))
        return cls(kernel, total, np.concatenate([places for _, places in inducing])[order], tuple(explicit))

    @cached_property
    def n_explicit(self) -> int:
        """Columns of Φ."""
        return sum(term.rank or 0 for term, _ in self.explicit)

    def basis(self, states: Array) -> Array:
        """Φ, of shape (n_states, n_explicit)."""
        return np.column_stack([np.zeros((len(states), 0)), *(term.basis(states) for term, _ in self.explicit)])

    @cached_property
    def weight_covariance(self) -> Array:
        """C, of shape (n_explicit, n_explicit)."""
        C, first = np.zeros((self.n_explicit, self.n_explicit)), 0
        for term, _ in self.explicit:
            last = first + (term.rank or 0)
            C[first:last, first:last] = term.weight_covariance
            first = last
        return C

    def gradient(self, by_inducing: Array, by_weight_covariance: Array) -> Array:
        """∂L/∂θ of the kernel, of shape (n_parameters,), from that of g and from ∂L/∂C."""
        total = np.zeros(len(self.kernel.theta))
        np.add.at(total, self.inducing_places, by_inducing)
        first = 0
        for term, places in self.explicit:
            last = first + (term.rank or 0)
            block = by_weight_covariance[first:last, first:last]
            np.add.at(total, places, term.contract_weight_covariance(block))
            first = last
        return total


@dataclass(frozen=True, eq=False)
class InducingFeatures:
    """ψ for m inducing points, m' features in all.

    With g(Z, Z) = LLᵀ, *whitened* features have L⁻¹g(Z, x) instead of g(Z, x): the same model with Λ = diag(I, C⁻¹).
    They cost one more triangular solve per block, and keep their digits where inducing points nearly represent each
    other and σ² is small: a Gram matrix of raw features squares the condition of g(Z, Z).
    """

    kernel: Kernel
    states: Array  # Z  [m, D]
    whitened: bool = False

    @cached_property
    def split(self) -> KernelSplit:
        """The kernel as g + ΦCΦᵀ."""
        return KernelSplit.of(self.kernel)

    @property
    def n_inducing(self) -> int:
        """Number m of inducing points."""
        return len(self.states)

    def __len__(self) -> int:
        """Number m' of features."""
        return len(self.states) + self.split.n_explicit

    def __call__(self, states: Array) -> Array:
        """Ψ, whose products approximate the kernel: paper eq. (11); of shape (n, m')."""
        rows = np.empty((len(states), len(self)))
        self.fill(states, rows)
        self.whiten_in_place(rows)
        return rows

    def fill(self, states: Array, rows: Array) -> None:
        """Write raw features of `states` into `rows`, of shape (n, m') or wider."""
        m, k = len(self.states), len(self)
        self.split.inducing(states, self.states, out=rows[:, :m])
        rows[:, m:k] = self.split.basis(states)

    def whiten_in_place(self, rows: Array) -> None:
        """Whiten the covariances in `rows` = [g, …], of shape (n, w), a contiguous array; other columns stay.

        A triangular solve, not a product with L⁻¹: its rounding errors are like those of g(Z, Z) itself, and do not
        grow with the condition of L.
        """
        if self.whitened and len(rows):
            blas.dtrsm(1.0, self._padded_factor(rows.shape[1]), rows.T, side=0, lower=1, overwrite_b=1)

    def pull_back_in_place(self, derivatives: Array) -> Array:
        """Derivatives by g(x, Z) from those by its features, of shape (n, m), a contiguous array: A·L⁻¹."""
        if self.whitened and len(derivatives):
            L = self._padded_factor(derivatives.shape[1])
            blas.dtrsm(1.0, L, derivatives.T, side=0, lower=1, trans_a=1, overwrite_b=1)
        return derivatives

    def to_raw(self, derivatives: Array) -> Array:
        """Turn derivatives by whitened moments, of shape (w, w) or (w,), into those by raw ones: L⁻ᵀ·A·L⁻¹."""
        if not self.whitened:
            return derivatives
        L = self._padded_factor(len(derivatives))
        half = blas.dtrsm(1.0, L, derivatives.reshape(len(L), -1), side=0, lower=1, trans_a=1)
        if derivatives.ndim == 1:
            return np.asarray(half[:, 0])
        return np.asarray(blas.dtrsm(1.0, L, half, side=1, lower=1))

    def _padded_factor(self, width: int) -> Array:
        """diag(L, I), of shape (width, width)."""
        if width not in self._padded_factors:
            m = len(self.states)
            padded = np.eye(width, order="F")
            padded[:m, :m] = self._factor_and_jitter[0]
            self._padded_factors[width] = padded
        return self._padded_factors[width]

    @cached_property
    def _padded_factors(self) -> dict[int, Array]:
        return {}

    def at(self, kernel: Kernel) -> InducingFeatures:
        """The same inducing points under another kernel."""
        return self if kernel is self.kernel else replace(self, kernel=kernel)

    def raw(self) -> InducingFeatures:
        """The same inducing points, not whitened."""
        return replace(self, whitened=False)

    # ---------------------------------------------------------------------------------- prior of the weights

    @cached_property
    def covariance(self) -> Array:
        """g(Z, Z) = LLᵀ, of shape (m, m), with the jitter of its factor: the bound then stays a bound."""
        if self.whitened:
            return np.eye(len(self.states))
        G = self.split.inducing(self.states, self.states)
        G.flat[:: len(G) + 1] += self._factor_and_jitter[1]
        return G

    @property
    def factor(self) -> Array:
        """Cholesky factor of `covariance`."""
        return self.covariance if self.whitened else self._factor_and_jitter[0]

    @cached_property
    def _factor_and_jitter(self) -> tuple[Array, float]:
        return linalg.cholesky_and_jitter(lambda: self.split.inducing(self.states, self.states))

    @cached_property
    def _explicit(self) -> tuple[Array, float]:
        """C⁻¹ and log det C."""
        C = self.split.weight_covariance
        if not len(C):
            return C, 0.0
        L = linalg.cholesky(C.copy)
        return linalg.symmetrise_in_place(linalg.inverse_in_place(L.copy())), linalg.log_det(L)

    @cached_property
    def precision(self) -> Array:
        """Λ, the prior precision of the weights, of shape (m', m')."""
        m, full = len(self.states), np.zeros((len(self), len(self)))
        full[:m, :m] = self.covariance
        full[m:, m:] = self._explicit[0]
        return full

    @property
    def log_det_precision(self) -> float:
        """Log det Λ."""
        return linalg.log_det(self.factor) - self._explicit[1]

    # ---------------------------------------------------------------------------------- what the features leave out

    def residual_variance(self, states: Array) -> Array:
        """g(x, x) − g(x, Z) g(Z, Z)⁻¹ g(Z, x) for each state, paper eq. (15), of shape (n,)."""
        half = self._half(states)
        return np.maximum(self.split.inducing.diagonal(states) - np.einsum("mn,mn->n", half, half), 0.0)

    def residual_covariance(self, states: Array) -> Array:
        """g(x, x') − g(x, Z) g(Z, Z)⁻¹ g(Z, x') between all pairs of states, of shape (n, n)."""
        half = self._half(states)
        return self.split.inducing(states, states) - half.T @ half

    def _half(self, states: Array) -> Array:
        return linalg.half_solve(self._factor_and_jitter[0], self.split.inducing(states, self.states).T)
