"""Dense linear algebra in place: one n×n buffer goes from a covariance to its Cholesky factor to its inverse.

Symmetric matrices are lower triangles of C-ordered arrays. LAPACK sees the transpose, an upper triangle in Fortran
order, and works on the same memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import blas, lapack

from gptd_rl.threads import spare_cores
from gptd_rl.types import Array

# Rows of the blocks in which a matrix is made symmetric, and which entries of one are above the diagonal.
TILE = 256
_ABOVE = np.triu(np.ones((TILE, TILE), dtype=bool), 1)

# The one jitter policy: nothing at first, then these multiples of the mean of the diagonal.
JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)


def cholesky(build: Callable[[], Array]) -> Array:
    """Factor of the symmetric matrix that `build` returns, as a lower triangle in the same memory.

    Rounding can make a covariance look indefinite. It is then built again and a little is added to its diagonal.
    """
    return cholesky_and_jitter(build)[0]


def cholesky_and_jitter(build: Callable[[], Array]) -> tuple[Array, float]:
    """Factor as by `cholesky`, and what had to be added to the diagonal."""
    for share in JITTERS:
        S = build()
        jitter = share * float(np.diagonal(S).mean()) if share else 0.0
        S.flat[:: len(S) + 1] += jitter
        with spare_cores(len(S)):
            _, info = lapack.dpotrf(S.T, lower=0, clean=0, overwrite_a=1)
        if info == 0:
            return S, jitter
    raise np.linalg.LinAlgError(
        f"the {len(S)}×{len(S)} covariance is not positive definite, even with {JITTERS[-1]:g} of its "
        "diagonal added; raise the noise variance or the noise floor."
    )


def log_det(L: Array) -> float:
    """Log det of LLᵀ."""
    return 2.0 * float(np.log(np.diagonal(L)).sum())


def solve(L: Array, right: Array) -> Array:
    """(LLᵀ)⁻¹·right."""
    solution, info = lapack.dpotrs(L.T, np.asfortranarray(right), lower=0)
    assert info == 0
    return np.asarray(solution).reshape(right.shape)


def half_solve(L: Array, right: Array) -> Array:
    """L⁻¹·right."""
    solution, info = lapack.dtrtrs(L.T, np.asfortranarray(right), lower=0, trans=1)
    assert info == 0
    return np.asarray(solution).reshape(right.shape)


def half_solve_transposed(L: Array, right: Array) -> Array:
    """L⁻ᵀ·right."""
    solution, info = lapack.dtrtrs(L.T, np.asfortranarray(right), lower=0, trans=0)
    assert info == 0
    return np.asarray(solution).reshape(right.shape)


def inverse_in_place(L: Array) -> Array:
    """(LLᵀ)⁻¹ as a lower triangle, over the factor."""
    with spare_cores(len(L)):
        _, info = lapack.dpotri(L.T, lower=0, overwrite_c=1)
    assert info == 0
    return L


def add_outer_in_place(S: Array, scale: float, vector: Array) -> Array:
    """S + scale·vvᵀ on the lower triangle, in place."""
    blas.dsyr(scale, vector, a=S.T, lower=0, overwrite_a=1)
    return S


def reflect_in_place(S: Array, U: Array) -> Array:
    """(I − 2UUᵀ)S(I − 2UUᵀ) on the lower triangle, in place, for orthonormal columns of U."""
    SU = blas.dsymm(2.0, S.T, U, lower=0)
    # S − UBᵀ − BUᵀ with B = 2SU − 2U(UᵀSU)
    B = SU - U @ (U.T @ SU)
    blas.dsyr2k(-1.0, U, B, beta=1.0, c=S.T, lower=0, overwrite_c=1)
    return S


def symmetrise_in_place(S: Array) -> Array:
    """Copy the lower triangle of S above its diagonal."""
    for i in range(0, len(S), TILE):
        block = S[i : i + TILE, i : i + TILE]
        block[:] = mirrored(block)
        S[:i, i : i + TILE] = S[i : i + TILE, :i].T
    return S


def mirrored(block: Array) -> Array:
    """The symmetric matrix whose lower triangle is that of `block`, of at most TILE rows."""
    n = len(block)
    return np.where(_ABOVE[:n, :n], block.T, block)
