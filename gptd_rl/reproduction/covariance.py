"""Spectrum and low-rank approximation of K over the states of some data (paper, Figures 4 and 6).

As in the paper, K includes the bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.kernels import Kernel
from gptd_rl.linalg import cholesky, half_solve
from gptd_rl.inference.inducing import Subset, incomplete_cholesky
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

# Tolerance of incomplete Cholesky factorisation: the largest residual variance, in units of K.
FINEST = 1e-3

# ‖K − K̃‖ is computed after every STRIDE inducing points, up to LARGEST.
STRIDE = 10
LARGEST = 400


@dataclass(frozen=True, eq=False)
class CovarianceSpectrum:
    """Eigenvalues and low-rank approximations of K over the states of some data.

    Attributes
    ----------
    eigenvalues : ndarray of shape (n,)
        Largest first.
    subset : Subset
        The inducing points that incomplete Cholesky factorisation selects, in the order of selection.
    sizes : ndarray of shape (k,)
        Numbers of inducing points.
    errors : ndarray of shape (k,)
        ‖K − K̃‖ (Frobenius) with so many inducing points.
    """

    eigenvalues: Array
    subset: Subset
    sizes: Array
    errors: Array

    @classmethod
    def of(cls, kernel: Kernel, states: Array) -> CovarianceSpectrum:
        """Spectrum of K over `states`, of shape (n, n_dims)."""
        K = kernel(states)
        subset = incomplete_cholesky(kernel, states, tolerance=FINEST)
        sizes, errors = approximation_errors(K, subset)
        return cls(descending_eigenvalues(K), subset, sizes, errors)


def approximation_errors(K: Array, subset: Subset) -> tuple[Array, Array]:
    """Numbers of inducing points, and ‖K − K̃‖ (Frobenius) with the first so many of `subset`, each of shape (k,)."""
    chosen = subset.indices[:LARGEST]
    L = cholesky(lambda: K[np.ix_(chosen, chosen)])
    R = half_solve(L, K[chosen])  # K̃ = RᵀR, row by row  [m, n]
    residual = K.copy()
    sizes, errors = [0], [np.linalg.norm(residual)]
    for start in range(0, len(chosen), STRIDE):
        rows = R[start : start + STRIDE]
        residual -= rows.T @ rows
        sizes.append(start + len(rows))
        errors.append(np.linalg.norm(residual))
    return np.array(sizes, dtype=float), np.array(errors)


def reward_covariance(kernel: Kernel, noise_variance: float, data: Trajectories) -> Array:
    """Q = H K Hᵀ + σ²HHᵀ, the covariance of the rewards (paper eqs. (6) and (7))."""
    H = TemporalDifference.of(data)
    S = kernel(data.states) + noise_variance * np.eye(len(data))
    return H.matmul(H.matmul(S).T)


def descending_eigenvalues(matrix: Array) -> Array:
    """Eigenvalues of a symmetric matrix, largest first."""
    return np.asarray(np.linalg.eigvalsh(matrix)[::-1], dtype=np.float64)
