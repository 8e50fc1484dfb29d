"""Which states stand for all others: m of them whose kernel functions span, nearly, those of the whole data.

What a subset leaves unexplained at a state x is the residual ``k(x, x) − k_m(x)ᵀ K_mm⁻¹ k_m(x)``, the variance V(x)
would keep if V were known on the subset. Two ways to choose:

- `incomplete_cholesky` looks at all candidates and takes the one with the largest residual next (paper, Section 4); or,
  if it may draw lots, one that lowers the *sum* of residuals much, which is what the sparse model pays for: of some
  candidates drawn in proportion to their residuals (randomly pivoted Cholesky, Chen et al. 2023), the best.
- `linearly_independent` reads the states once, in order, and takes each whose residual exceeds a tolerance: the test of
  approximate linear dependence (Engel et al.), which an online learner can apply.

Both build the rows of the same factor: ``K ≈ RᵀR`` with R of shape (m, n), pivot by pivot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.linalg import lapack

from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.linalg import half_solve
from gptd_rl.types import Array


class Covariance(Protocol):
    """Any kernel."""

    def __call__(self, states: Array, others: Array) -> Array:
        """K between two sets of states, of shape (n_states, n_others)."""
        ...

    def diagonal(self, states: Array) -> Array:
        """k(x, x) for each state, of shape (n_states,)."""
        ...


# Residuals below this share of the prior variance are rounding: in float64, and in float32.
ROUNDING = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-6}

# Candidates drawn for each pivot.
N_DRAWN = 16

# Without pivoting rounding errors grow more.
UNPIVOTED_ROUNDING = 1e-8


@dataclass(frozen=True, eq=False)
class Subset:
    """Some of the states, in the order in which they were taken, and what they leave unexplained.

    Attributes
    ----------
    indices : ndarray of shape (m,)
        The states taken.
    residual_traces : ndarray of shape (m + 1,)
        tr(K − K̃) over the candidates, after 0, 1, … m states.
    largest_residuals : ndarray of shape (m + 1,)
        Largest diagonal entry of K − K̃, likewise.
    """

    indices: NDArray[np.int64]
    residual_traces: Array
    largest_residuals: Array

    def __len__(self) -> int:
        """Number m of states."""
        return len(self.indices)

    @property
    def residual_trace(self) -> float:
        """tr(K − K̃) over the candidates."""
        return float(self.residual_traces[-1])

    def size_at(self, tolerance: float) -> int:
        """Number of states after which no residual exceeds `tolerance` (all of them, if that was never reached)."""
        below = np.flatnonzero(self.largest_residuals <= tolerance)
        return int(below[0]) if below.size else len(self)


def incomplete_cholesky(
    kernel: Covariance,
    states: Array,
    max_size: int | None = None,
    tolerance: float = 0.0,
    dtype: DTypeLike = np.float64,
    rng: np.random.Generator | None = None,
) -> Subset:
    """Choose states by a pivoted incomplete Cholesky factorisation of their covariance.

    Parameters
    ----------
    kernel : Covariance
    states : ndarray of shape (n, n_dims)
        The candidates.
    max_size : int, optional
        Stop at this many; n by default.
    tolerance : float
        Stop when no state has a larger residual, in units of the kernel.
    dtype : {float64, float32}
        Precision of the factor, which takes m·n entries. In float32, residuals below 1e-3 of the variance are not to be
        trusted.
    rng : Generator, optional
        Draws lots for the pivots. Without, the largest residual is next: often at the rim of the data.

    Returns
    -------
    Subset
        At most as many states as the covariance has rank, to rounding.
    """
    n = len(states)
    residual = kernel.diagonal(states)
    floor = max(tolerance, ROUNDING[np.dtype(dtype)] * float(residual.max(initial=0.0)))
    factor = np.empty((n if max_size is None else min(n, max_size), n), dtype)
    taken: list[int] = []
    traces, largest = [float(residual.sum())], [float(residual.max(initial=0.0))]
    while len(taken) < len(factor) and largest[-1] > floor:
        if rng is None:
            pivot = int(residual.argmax())
            row = _next_row(kernel, states, factor[: len(taken)], residual, pivot)
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


def independent(kernel: SquaredExponential, states: Array, tolerance: float) -> tuple[NDArray[np.int64], float]:
    """Those states that the others do not represent already, in order, and the smallest residual among them.

    For few states, whose covariance fits into memory: LAPACK's pivoted Cholesky factorisation. Residuals and the
    tolerance are shares of v₀.
    """
    C = kernel.correlation(states, states)
    factor, pivots, rank, _ = lapack.dpstrf(C.T, tol=tolerance, lower=0, overwrite_a=1)
    return np.sort(pivots[:rank] - 1).astype(np.int64), float(factor[rank - 1, rank - 1] ** 2)


def linearly_independent(
    kernel: SquaredExponential, states: Array, tolerance: float, max_size: int | None = None, block: int = 1024
) -> NDArray[np.int64]:
    """Read states in order and take each that those taken before it leave more than `tolerance` of unexplained.

    Parameters
    ----------
    kernel : SquaredExponential
    states : ndarray of shape (n, n_dims)
    tolerance : float
        ε, in units of the kernel.
    max_size : int, optional
        Stop at this many.
    block : int
        States looked at together; the result does not depend on it.

    Returns
    -------
    ndarray of shape (m,)
        Indices of the states taken, in order.
    """
    floor = max(tolerance, UNPIVOTED_ROUNDING * float(kernel.diagonal(states[:1]).max(initial=0.0)))
    dictionary = Dictionary.empty(kernel)
    taken: list[int] = []
    for start in range(0, len(states), block):
        part = states[start : start + block]
        residual, factor = dictionary.residuals(part)
        while max_size is None or len(taken) < max_size:
            new = np.flatnonzero(residual > floor)
            if not new.size:
                break
            pivot = int(new[0])
            row = _next_row(kernel, part, factor, residual, pivot)
            factor = np.vstack([factor, row])
            residual = residual - row**2
            residual[: pivot + 1] = 0.0
            taken.append(start + pivot)
            dictionary = dictionary.extended(part[pivot])
    return np.array(taken, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """States that stand for others, and the factor of their covariance."""

    kernel: SquaredExponential
    states: Array  # [m, D]
    L: Array  # factor of K_mm  [m, m]

    @classmethod
    def empty(cls, kernel: SquaredExponential) -> Dictionary:
        """Without a state."""
        return cls(kernel, np.zeros((0, kernel.metric.n_dims)), np.zeros((0, 0)))

    def residuals(self, states: Array) -> tuple[Array, Array]:
        """What the dictionary leaves unexplained of each state, of shape (n,), and L⁻¹K_mn, of shape (m, n)."""
        prior = self.kernel.diagonal(states)
        if not len(self.states):
            return prior, np.zeros((0, len(states)))
        half = half_solve(self.L, self.kernel(self.states, states))
        return np.maximum(prior - (half * half).sum(axis=0), 0.0), half

    def extended(self, state: Array) -> Dictionary:
        """With one state more."""
        residual, half = self.residuals(state[None])
        m = len(self.states)
        L = np.zeros((m + 1, m + 1))
        L[:m, :m], L[m, :m], L[m, m] = self.L, half[:, 0], np.sqrt(residual[0])
        return Dictionary(self.kernel, np.vstack([self.states, state]), L)


def _next_row(kernel: Covariance, states: Array, factor: NDArray[np.floating], residual: Array, pivot: int) -> Array:
    """Row of R for a new pivot p: (k(x_p, ·) − R_pᵀR) / √residual_p."""
    return np.asarray(_next_rows(kernel, states, factor, residual, np.array([pivot]))[0])


def _next_rows(
    kernel: Covariance,
    states: Array,
    factor: NDArray[np.floating],
    residual: Array,
    pivots: NDArray[np.int64],
) -> Array:
    rows = kernel(states[pivots], states)
    rows -= factor[:, pivots].T @ factor
    rows /= np.sqrt(residual[pivots])[:, None]
    return rows
