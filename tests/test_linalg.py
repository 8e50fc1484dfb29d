"""Linear algebra in place, against NumPy's out of place; what stands above the diagonal must never matter."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import linalg

SIZES = [1, 2, 7, 40]


def positive_definite(n: int, seed: int = 0) -> np.ndarray:
    B = np.random.default_rng(seed).normal(size=(n, n))
    return B @ B.T + n * np.eye(n)


def lower_only(S: np.ndarray) -> np.ndarray:
    """A lower triangle with nonsense above it."""
    out = S.copy()
    out[np.triu_indices(len(S), 1)] = np.nan
    return out


@pytest.fixture(params=SIZES)
def S(request) -> np.ndarray:
    return positive_definite(request.param)


@pytest.fixture
def L(S) -> np.ndarray:
    """The factor as the code keeps it, with nonsense above the diagonal."""
    return lower_only(linalg.cholesky(lambda: lower_only(S)))


def test_cholesky_in_the_same_memory(S):
    buffer = lower_only(S)
    L = linalg.cholesky(lambda: buffer)
    assert L is buffer
    assert_allclose(np.tril(L), np.linalg.cholesky(S), rtol=1e-12, atol=1e-12)


def test_log_det(S, L):
    assert_allclose(linalg.log_det(L), np.linalg.slogdet(S)[1], rtol=1e-12)


@pytest.mark.parametrize("columns", [(), (1,), (3,)], ids=str)
def test_solves(S, L, columns):
    right = np.random.default_rng(1).normal(size=(len(S), *columns))
    before = right.copy()
    exact = np.linalg.cholesky(S)
    assert_allclose(linalg.solve(L, right), np.linalg.solve(S, right), rtol=1e-10, atol=1e-12)
    assert_allclose(linalg.half_solve(L, right), np.linalg.solve(exact, right), rtol=1e-10, atol=1e-12)
    assert_allclose(linalg.half_solve_transposed(L, right), np.linalg.solve(exact.T, right), rtol=1e-10, atol=1e-12)
    assert_array_equal(right, before)
    assert linalg.solve(L, right).shape == right.shape


def test_solve_takes_either_memory_order(S, L):
    right = np.random.default_rng(1).normal(size=(len(S), 3))
    for f in (linalg.solve, linalg.half_solve, linalg.half_solve_transposed):
        assert_allclose(f(L, np.asfortranarray(right)), f(L, np.ascontiguousarray(right)), rtol=1e-12)


def test_inverse_in_place(S, L):
    inverse = linalg.inverse_in_place(L)
    assert inverse is L
    assert_allclose(np.tril(inverse), np.tril(np.linalg.inv(S)), rtol=1e-10, atol=1e-13)


def test_outer_product_in_place(S):
    v = np.random.default_rng(2).normal(size=len(S))
    buffer = lower_only(S)
    out = linalg.add_outer_in_place(buffer, -0.5, v)
    assert out is buffer
    assert_allclose(np.tril(out), np.tril(S - 0.5 * np.outer(v, v)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile", [1, 3, 256])
def test_symmetrise_in_place(S, tile, monkeypatch):
    monkeypatch.setattr(linalg, "TILE", tile)
    buffer = lower_only(S)
    out = linalg.symmetrise_in_place(buffer)
    assert out is buffer
    assert_array_equal(out, S)


# The jitter policy


def test_no_jitter_without_need():
    S = positive_definite(5)
    calls: list[None] = []

    def build():
        calls.append(None)
        return S.copy()

    L = linalg.cholesky(build)
    assert len(calls) == 1
    assert_allclose(np.tril(L) @ np.tril(L).T, S, rtol=1e-14)


@pytest.mark.parametrize("deficit", [1e-13, 1e-11, 1e-9, 1e-7])
def test_as_much_jitter_as_needed_and_no_more(deficit):
    """A matrix built again for each try, with the least of the jitters that mends it."""
    scale = 50.0
    S = scale * np.diag([1.0, 1.0, -deficit])
    L = np.tril(linalg.cholesky(S.copy))
    mean = scale * (2.0 - deficit) / 3.0
    least = min(jitter for jitter in linalg.JITTERS if jitter * mean > scale * deficit)
    assert_allclose(L @ L.T - S, least * mean * np.eye(3), atol=1e-14)


def test_beyond_the_largest_jitter():
    S = np.diag([1.0, 1.0, -0.1])
    with pytest.raises(
        np.linalg.LinAlgError, match=r"3×3 covariance is not positive definite, even with 1e-06 .*raise the noise"
    ):
        linalg.cholesky(S.copy)


def test_reflect_in_place_reads_and_writes_the_lower_triangle():
    rng = np.random.default_rng(0)
    U = np.asfortranarray(np.linalg.qr(rng.normal(size=(7, 2)))[0])
    B = rng.normal(size=(7, 7))
    S, P = B @ B.T, np.eye(7) - 2.0 * U @ U.T
    lower = np.where(np.tri(7, dtype=bool), S, np.nan)
    np.testing.assert_allclose(np.tril(linalg.reflect_in_place(lower, U)), np.tril(P @ S @ P), atol=1e-12)
    assert np.isnan(lower[np.triu_indices(7, 1)]).all()
