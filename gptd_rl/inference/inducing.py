"""Choosing inducing points: m states whose kernel functions nearly span those of all data.

Inducing points leave at a state x the residual variance ``k(x, x) − k_m(x)ᵀ K_mm⁻¹ k_m(x)``, the variance V(x) would
keep if V were known at the inducing points. `incomplete_cholesky` looks at all candidates and takes the one with the
largest residual next (paper, Section 4); or, given a random generator, one that lowers the *sum* of residuals much, as
the variational bound wants: the best of some candidates drawn in proportion to their residuals (randomly pivoted
Cholesky, Chen et al. 2023). It builds the rows of a factor ``K ≈ RᵀR`` with R of shape (m, n), pivot by pivot.

`Dictionary` grows one state at a time, for online learning: the test of approximate linear dependence (Engel et al.).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import lapack

from gptd_rl.inference.features import KernelSplit
from gptd_rl.inference.model import Model
from gptd_rl.kernels import Kernel
from gptd_rl.linalg import half_solve
from gptd_rl.types import Array, IntArray

# Residuals below this share of the prior variance are rounding errors.
ROUNDING = 1e-12

# An inducing point is redundant where the others explain all but this share of its variance.
REDUNDANT = 1e-11

# Candidates drawn for each pivot.
N_DRAWN = 16

# Without pivoting rounding errors grow more.
UNPIVOTED_ROUNDING = 1e-8

# Inducing points are chosen at least as finely as this share of the prior variance.
FINE = 1e-7


@dataclass(frozen=True, eq=False)
class Subset:
    """Inducing points in the order in which they were taken, and the residual variances they leave.

    Attributes
    ----------
    indices : ndarray of shape (m,)
        The states taken.
    residual_traces : ndarray of shape (m + 1,)
        tr(K − K̃) over the candidates, after 0, 1, … m states.
    largest_residuals : ndarray of shape (m + 1,)
        Largest diagonal entry of K − K̃, likewise.
    """

    indices: IntArray
    residual_traces: Array
    largest_residuals: Array

    def __len__(self) -> int:
        """Number m of inducing points."""
        return len(self.indices)

    def size_at(self, tolerance: float) -> int:
        """Number of inducing points at which no residual exceeds `tolerance` (all, if that was never reached)."""
        below = np.flatnonzero(self.largest_residuals <= tolerance)
        return int(below[0]) if below.size else len(self)


def incomplete_cholesky(
    kernel: Kernel,
    states: Array,
    max_size: int | None = None,
    tolerance: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Subset:
    """Choose inducing points by a pivoted incomplete Cholesky factorisation of the covariance of candidates.

    Parameters
    ----------
    kernel : Kernel
    states : ndarray of shape (n, n_dims)
        The candidates.
    max_size : int, optional
        Stop at this many; n by default.
    tolerance : float
        Stop when no state has a larger residual variance, in units of the kernel.
    rng : Generator, optional
        For randomly pivoted Cholesky. If None, pivots are chosen greedily by the largest residual, which favours the
        boundary of the data.

    Returns
    -------
    Subset
        At most as many inducing points as the covariance has rank, to rounding.
    """
    n = len(states)
    residual = kernel.diagonal(states)
    floor = max(tolerance, ROUNDING * float(residual.max(initial=0.0)))
    factor = np.empty((n if max_size is None else min(n, max_size), n))
    taken: list[int] = []
    traces, largest = [float(residual.sum())], [float(residual.max(initial=0.0))]
    while len(taken) < len(factor) and largest[-1] > floor:
        if rng is None:
            pivot = int(residual.argmax())
            (row,) = _next_rows(kernel, states, factor[: len(taken)], residual, np.array([pivot]))
        else:
            weights = np.where(residual > floor, residual, 0.0)
            drawn = np.unique(rng.choice(n, N_DRAWN, p=weights / weights.sum()))
            rows = _next_rows(kernel, states, factor[: len(taken)], residual, drawn)
            best = int((rows**2).sum(axis=1).argmax())
            pivot, row = int(drawn[best]), rows[best]
        factor[len(taken)] = row
        residual = np.maximum(residual - row**2, 0.0)
        residual[pivot] = 0.0
        taken.append(pivot)
        traces.append(float(residual.sum()))
        largest.append(float(residual.max()))
    return Subset(np.array(taken, dtype=np.int64), np.array(traces), np.array(largest))


def _next_rows(kernel: Kernel, states: Array, factor: Array, residual: Array, pivots: IntArray) -> Array:
    """Rows of R for new pivots p: (k(x_p, ·) − R_pᵀR) / √residual_p."""
    rows = kernel(states[pivots], states)
    rows -= factor[:, pivots].T @ factor
    rows /= np.sqrt(residual[pivots])[:, None]
    return rows


def independent(kernel: Kernel, states: Array, tolerance: float) -> tuple[IntArray, float]:
    """Those states that the others do not represent already, in order, and the smallest residual among them.

    For few states, whose covariance fits into memory: LAPACK's pivoted Cholesky factorisation. Residuals and the
    tolerance are shares of the prior variance.
    """
    C = kernel(states, states)
    scale = np.sqrt(np.diagonal(C))
    C /= scale[:, None] * scale
    factor, pivots, rank, _ = lapack.dpstrf(C.T, tol=tolerance, lower=0, overwrite_a=1)
    return np.sort(pivots[:rank] - 1).astype(np.int64), float(factor[rank - 1, rank - 1] ** 2)


@dataclass(frozen=True, eq=False)
class InducingPointSelector:
    """How inducing points are chosen: from which candidates, how many, how finely."""

    candidates: Array  # [c, D]
    size: int
    tolerance: float | None  # the share of the prior variance below which a state counts as represented
    takes_all: bool = False  # the candidates are all distinct states
    cache: dict[bytes, Array] = field(default_factory=dict)  # inducing points with which models were found, by θ

    def select(self, model: Model, n_rows: int) -> Array:
        """Inducing points for a model of so many rewards, of shape (m, n_dims)."""
        if self.takes_all:
            return self.candidates
        kernel = KernelSplit.of(model.kernel).inducing
        variance = float(kernel.diagonal(self.candidates).max())
        tolerance = self.tolerance
        if tolerance is None:  # the residual variance then costs the bound about half a nat at most
            tolerance = min(FINE, model.noise_variance / (variance * n_rows))
        rng = np.random.default_rng(0)  # the same for the same kernel
        subset = incomplete_cholesky(kernel, self.candidates, self.size, tolerance * variance, rng=rng)
        return self.candidates[subset.indices]


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Inducing points that grow one at a time, and the factor of their covariance."""

    kernel: Kernel
    states: Array  # [m, D]
    L: Array  # factor of K_mm  [m, m]

    @classmethod
    def empty(cls, kernel: Kernel) -> Dictionary:
        """Without a state."""
        return cls(kernel, np.zeros((0, kernel.width or 0)), np.zeros((0, 0)))

    def residuals(self, states: Array) -> tuple[Array, Array]:
        """Residual variance of each state, of shape (n,), and L⁻¹K_mn, of shape (m, n)."""
        prior = self.kernel.diagonal(states)
        if not len(self.states):
            return prior, np.zeros((0, len(states)))
        half = half_solve(self.L, self.kernel(states, self.states).T)
        return np.maximum(prior - (half * half).sum(axis=0), 0.0), half

    def extended(self, state: Array) -> Dictionary:
        """With one state more."""
        residual, half = self.residuals(state[None])
        m = len(self.states)
        if not residual[0] > 0.0:
            raise ValueError(f"inducing point {m} is a combination of the others")
        L = np.zeros((m + 1, m + 1))
        L[:m, :m], L[m, :m], L[m, m] = self.L, half[:, 0], np.sqrt(residual[0])
        return Dictionary(self.kernel, np.vstack([self.states, state]), L)
