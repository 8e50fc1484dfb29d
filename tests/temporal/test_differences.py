"""The operator H against its dense matrix, built row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import block_diag

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.differences import TemporalDifference, discounted_returns
from tests.helpers import MIXES, dense_H, naive_null_vectors, naive_returns, row_places, sample, segments

EXACT: dict[str, Any] = dict(rtol=1e-12, atol=1e-12)


@pytest.fixture(params=MIXES)
def data(request) -> Trajectories:
    return sample(MIXES[request.param], seed=1, terminal_rewards=True)


@pytest.fixture
def H(data) -> TemporalDifference:
    return TemporalDifference.of(data)


@pytest.fixture(params=[(), (1,), (3,), (2, 2)], ids=str)
def trailing(request) -> tuple[int, ...]:
    """Axes behind the first: vectors, matrices, and more."""
    return request.param


def test_H_by_hand():
    # 0 → 1 → 2 (terminal) | 3 → 4 (cut off)
    data = Trajectories.from_chain(np.arange(5.0), [1, 2, 0, 3], [0.9, 0.8, 0, 0.7])
    by_hand = np.array([[1, -0.9, 0, 0, 0], [0, 1, -0.8, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, -0.7]])
    assert_array_equal(dense_H(data), by_hand)
    H = TemporalDifference.of(data)
    assert H.shape == (4, 5)
    assert_allclose(H.matmul(np.eye(5)), by_hand, **EXACT)
    assert_allclose(H.returns(data.rewards), [1 + 0.9 * 2, 2, 0, 3, 0], **EXACT)
    assert_allclose(H.null_vectors(), [0, 0, 0, 0.7, 1], **EXACT)


def test_products(data, H, trailing):
    rng = np.random.default_rng(0)
    dense, rows = dense_H(data), row_places(data)
    values = rng.normal(size=(len(data), *trailing))
    expected = np.tensordot(dense, values, 1)
    padded = np.zeros_like(values)
    padded[rows] = expected
    assert H.shape == dense.shape
    assert_allclose(H.matmul(values), expected, **EXACT)
    assert_allclose(H.apply(values), padded, **EXACT)


def test_transposed_products(data, H, trailing):
    rng = np.random.default_rng(0)
    dense, rows = dense_H(data), row_places(data)
    weights = rng.normal(size=(len(rows), *trailing))
    expected = np.tensordot(dense.T, weights, 1)
    padded = np.full((len(data), *trailing), np.nan)  # what stands where there is no row must not matter
    padded[rows] = weights
    assert_allclose(H.apply_transposed(padded), expected, **EXACT)


def test_of_is_built_once(data, H):
    assert TemporalDifference.of(data) is H
    assert TemporalDifference.of(data[:]) is not H


def test_discounted_returns(data):
    y = discounted_returns(data)
    assert_allclose(y, naive_returns(data), **EXACT)
    assert discounted_returns(data) is y
    assert not y.flags.writeable  # it is shared


def test_products_leave_their_argument_alone(data, H):
    values = np.random.default_rng(0).normal(size=(len(data), 2))
    before = values.copy()
    for product in (H.apply, H.apply_transposed, H.solve, H.solve_transposed, H.project, H.matmul, H.segment_sums):
        product(values)
        assert_array_equal(values, before)


def test_products_do_not_care_for_memory_order(data, H):
    values = np.random.default_rng(0).normal(size=(len(data), 3))
    for product in (H.apply, H.apply_transposed, H.solve, H.solve_transposed, H.project):
        assert_array_equal(product(np.asfortranarray(values)), product(values))


def gram(data: Trajectories) -> np.ndarray:
    """HHᵀ."""
    H = TemporalDifference.of(data).sparse()
    return (H @ H.T).toarray()


def test_gram_is_tridiagonal(data):
    assert_allclose(gram(data), dense_H(data) @ dense_H(data).T, **EXACT)
    assert_array_equal(gram(data), np.triu(np.tril(gram(data), 1), -1))


def test_gram_has_the_smaller_index_beside_the_diagonal():
    # the paper's slip: [HHᵀ]_{i+1,i} is −γ_i, not −γ_{i+1}
    data = Trajectories.from_episodes([dict(observations=np.arange(3.0), rewards=[0, 0], discounts=[0.5, 0.7])])
    expected = np.array([[1.25, -0.5], [-0.5, 1.49]])
    assert_allclose(gram(data), expected, **EXACT)


def test_sparse(data, H):
    assert_allclose(H.sparse().toarray(), dense_H(data), **EXACT)


def square(data: Trajectories) -> np.ndarray:
    """Ĥ: H with a unit row at the last state of each truncated segment."""
    return block_diag(
        *[np.eye(len(places)) - np.diag(data.discounts[list(places)[:-1]], 1) for places in segments(data)]
    )


def test_solves(data, H, trailing):
    right = np.random.default_rng(0).normal(size=(len(data), *trailing))
    flat = right.reshape(len(data), -1)
    assert_allclose(H.solve(right), np.linalg.solve(square(data), flat).reshape(right.shape), **EXACT)
    assert_allclose(H.solve_transposed(right), np.linalg.solve(square(data).T, flat).reshape(right.shape), **EXACT)


def test_solve_takes_integers(data, H):
    right = np.arange(len(data))
    assert_allclose(H.solve(right), np.linalg.solve(square(data), right), **EXACT)


def test_returns(data, H):
    y = H.returns(data.rewards)
    assert_allclose(y, naive_returns(data), **EXACT)
    assert_allclose(H.matmul(y), data.rewards[data.has_row], **EXACT)


def test_returns_ignore_what_stands_behind_a_truncation(data, H):
    noisy = data.rewards.copy()
    noisy[~data.has_row] = 1e6
    assert_array_equal(H.returns(noisy), H.returns(data.rewards))


def test_null_vectors(data, H):
    Z = naive_null_vectors(data)
    assert_allclose(H.null_vectors(), Z.sum(axis=1), **EXACT)  # their supports do not overlap
    assert_allclose(H.matmul(H.null_vectors()), 0.0, atol=1e-14)
    assert Z.shape[1] == len(data) - np.linalg.matrix_rank(dense_H(data))


@pytest.mark.parametrize("columns", [(), (3,)], ids=["vector", "matrix"])
def test_segment_sums(data, H, columns):
    values = np.random.default_rng(0).normal(size=(len(data), *columns))
    assert_allclose(H.segment_sums(values), [values[list(p)].sum(axis=0) for p in segments(data)], **EXACT)


def test_log_det_gram(data, H):
    dense, Z = dense_H(data), naive_null_vectors(data)
    sign, expected = np.linalg.slogdet(dense @ dense.T)
    assert sign == 1
    assert_allclose(H.log_det_gram(), expected, **EXACT)
    assert_allclose(H.log_det_gram(), np.linalg.slogdet(Z.T @ Z)[1], **EXACT)  # det HHᵀ = det ZᵀZ


@pytest.mark.parametrize("columns", [(), (3,)], ids=["vector", "matrix"])
def test_projection(data, H, columns):
    dense = dense_H(data)
    values = np.random.default_rng(0).normal(size=(len(data), *columns))
    assert_allclose(H.project(values), dense.T @ np.linalg.solve(dense @ dense.T, dense @ values), **EXACT)
    assert_allclose(H.project(H.project(values)), H.project(values), **EXACT)


def test_a_discount_of_zero_inside_a_segment():
    data = Trajectories.from_episodes(
        [dict(observations=np.arange(5.0), rewards=[1, 2, 3, 4], discounts=[0.9, 0.0, 0.8, 0.7])]
    )
    H = TemporalDifference.of(data)
    assert_allclose(H.null_vectors(), [0, 0, 0.8 * 0.7, 0.7, 1], **EXACT)
    assert_allclose(H.returns(data.rewards), naive_returns(data), **EXACT)
    assert_allclose(H.log_det_gram(), np.linalg.slogdet(dense_H(data) @ dense_H(data).T)[1], **EXACT)


def test_lone_terminal_states_have_a_row():
    data = sample([(2, True), (7, True), (3, False)]).thin(3, 1)
    H = TemporalDifference.of(data)
    assert_allclose(H.matmul(np.eye(len(data))), dense_H(data), **EXACT)
    assert_allclose(H.returns(data.rewards), naive_returns(data), **EXACT)


def test_a_long_truncated_segment_underflows_quietly():
    """γ^3000 is no number any more, and needs to be none."""
    n = 3000
    data = Trajectories.from_episodes([dict(observations=np.arange(n + 1.0), rewards=np.ones(n))], gamma=0.5)
    H = TemporalDifference.of(data)
    assert_allclose(H.log_det_gram(), np.log(1 / (1 - 0.25)), rtol=1e-12)  # Σ γ^2k
    assert_allclose(H.returns(data.rewards)[0], 2.0, rtol=1e-12)
    assert_allclose(H.project(H.null_vectors()), 0.0, atol=1e-14)


def test_H_is_not_built_densely():
    """A million states are nothing."""
    n = 500_000
    goes_on = (np.arange(2 * n) % n < n - 1).astype(float)
    data = Trajectories(np.zeros(2 * n), goes_on, goes_on, np.array([n, n]), np.array([True, False]))
    H = TemporalDifference.of(data)
    assert H.returns(data.rewards)[0] == n - 1
    assert H.matmul(np.ones(2 * n)).sum() == 1.0
    assert_allclose(H.log_det_gram(), np.log(n))
    assert H.sparse().nnz <= 4 * n
