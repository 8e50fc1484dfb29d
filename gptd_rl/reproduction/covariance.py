"""What a kernel makes of a set of states: the spectrum of K, and how few states stand for all (paper, Figures 4 and 6).

As in the paper, K is the whole kernel with its bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.linalg import cholesky, half_solve
from gptd_rl.inference.inducing import Subset, incomplete_cholesky
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

# States are chosen until no other keeps more than this unexplained, in units of K.
FINEST = 1e-3

# ‖K − K̃‖ is computed after each so many states, and up to so many.
STRIDE = 10
LARGEST = 400


@dataclass(frozen=True, eq=False)
class Covariance:
    """K over the states of some data.

    Attributes
    ----------
    eigenvalues : ndarray of shape (n,)
        Largest first.
    subset : Subset
        The states that incomplete Cholesky factorisation takes, the next always where most is unexplained.
    sizes : ndarray of shape (k,)
        Sizes of subsets.
    errors : ndarray of shape (k,)
        ‖K − K̃‖ (Frobenius) with the first so many states of the subset.
    """

    eigenvalues: Array
    subset: Subset
    sizes: Array
    errors: Array

    @classmethod
    def of(cls, kernel: SquaredExponential, states: Array) -> Covariance:
        """K of `kernel` over `states`."""
        K = kernel(states)
        subset = incomplete_cholesky(kernel, states, tolerance=FINEST)
        sizes, errors = approximation_errors(K, subset)
        return cls(descending_eigenvalues(K), subset, sizes, errors)


def approximation_errors(K: Array, subset: Subset) -> tuple[Array, Array]:
    """Sizes of subsets, and ‖K − K̃‖ (Frobenius) with the first so many states of `subset`."""
    chosen = subset.indices[:LARGEST]
    L = cholesky(lambda: K[np.ix_(chosen, chosen)])
    R = half_solve(L, K[chosen])  # K̃ = RᵀR, row by row  [m, n]
    left = K.copy()
    sizes, errors = [0], [np.linalg.norm(left)]
    for start in range(0, len(chosen), STRIDE):
        rows = R[start : start + STRIDE]
        left -= rows.T @ rows
        sizes.append(start + len(rows))
        errors.append(np.linalg.norm(left))
    return np.array(sizes, dtype=float), np.array(errors)


def reward_covariance(kernel: SquaredExponential, noise_variance: float, data: Trajectories) -> Array:
    """Q = H K Hᵀ + σ²HHᵀ, the covariance of the rewards (paper eq. 8)."""
    H = TemporalDifference.of(data)
    S = kernel(data.states) + noise_variance * np.eye(len(data))
    return H.matmul(H.matmul(S).T)


def descending_eigenvalues(matrix: Array) -> Array:
    """Eigenvalues of a symmetric matrix, largest first."""
    return np.asarray(np.linalg.eigvalsh(matrix)[::-1], dtype=np.float64)
