"""The choice of a subset of states against pivoted Cholesky of LAPACK and against loops with dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import lapack

from gptd_rl.inference.inducing import Dictionary, Subset, incomplete_cholesky, linearly_independent
from gptd_rl.kernels import paper_kernel
from gptd_rl.kernels.metrics import ARD, Isotropic
from gptd_rl.kernels.stationary import SquaredExponential
from tests.helpers import METRICS, make_model, naive_kernel

CLOSE: dict[str, Any] = dict(rtol=1e-9, atol=1e-10)

every_metric = pytest.mark.parametrize("metric", METRICS)
every_bias = pytest.mark.parametrize("bias", [0.0, 0.4])


def kernel_of(metric: str, bias: float = 0.4) -> SquaredExponential:
    return make_model(metric, bias=bias).kernel


def random_states(n: int = 60, seed: int = 0, n_dims: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, n_dims))


def repeated_states(n: int = 90, n_distinct: int = 12, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_distinct, 3))[rng.integers(n_distinct, size=n)]


def dense_residual(kernel: SquaredExponential, states: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """K − K_nm K_mm⁻¹ K_mn."""
    K = naive_kernel(kernel, states, states)
    return K - K[:, taken] @ np.linalg.solve(K[np.ix_(taken, taken)], K[taken]) if len(taken) else K


def naive_linearly_independent(
    kernel: SquaredExponential, states: np.ndarray, tolerance: float, max_size: int | None = None
) -> list[int]:
    """One state at a time: k(x, x) − k_mᵀ K_mm⁻¹ k_m against the tolerance."""
    taken: list[int] = []
    for i in range(len(states)):
        residual = dense_residual(kernel, states[[*taken, i]], np.arange(len(taken)))[-1, -1]
        if residual > tolerance and (max_size is None or len(taken) < max_size):
            taken.append(i)
    return taken


# Incomplete Cholesky factorisation


@every_metric
@every_bias
def test_pivots_are_those_of_lapack(metric, bias):
    kernel, states = kernel_of(metric, bias), random_states()
    found = incomplete_cholesky(kernel, states, max_size=25)
    _, pivots, _, _ = lapack.dpstrf(naive_kernel(kernel, states, states), lower=1)
    assert_array_equal(found.indices, pivots[:25] - 1)


@every_metric
@every_bias
def test_residuals_are_those_of_the_dense_matrix(metric, bias):
    kernel, states = kernel_of(metric, bias), random_states(seed=1)
    found = incomplete_cholesky(kernel, states, max_size=20)
    left = [np.diag(dense_residual(kernel, states, found.indices[:m])) for m in range(21)]
    assert_allclose(found.residual_traces, [d.sum() for d in left], **CLOSE)
    assert_allclose(found.largest_residuals, [d.max() for d in left], **CLOSE)
    assert found.residual_trace == found.residual_traces[-1]
    assert_allclose(found.residual_trace, np.trace(dense_residual(kernel, states, found.indices)), **CLOSE)


@every_metric
def test_each_state_taken_has_the_largest_residual(metric):
    kernel, states = kernel_of(metric), random_states(seed=2)
    found = incomplete_cholesky(kernel, states, max_size=20)
    for m, taken in enumerate(found.indices):
        left = np.diag(dense_residual(kernel, states, found.indices[:m]))
        assert_allclose(left[taken], left.max(), **CLOSE)


@every_metric
def test_residuals_never_grow(metric):
    found = incomplete_cholesky(kernel_of(metric), random_states(seed=3))
    assert (np.diff(found.residual_traces) <= 0).all()
    assert (np.diff(found.largest_residuals) <= 0).all()
    assert (found.residual_traces >= found.largest_residuals).all()
    assert found.largest_residuals[-1] >= 0


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
def test_stopped_by_size(size):
    kernel, states = paper_kernel(Isotropic(50.0, 3)), random_states()  # a matrix of full rank
    found = incomplete_cholesky(kernel, states, max_size=size)
    m = min(size, 60)
    assert len(found) == len(found.indices) == m
    assert found.residual_traces.shape == found.largest_residuals.shape == (m + 1,)
    assert_array_equal(found.indices, incomplete_cholesky(kernel, states).indices[:m])


@every_metric
@pytest.mark.parametrize("tolerance", [1.0, 1e-1, 1e-2, 1e-3])
def test_stopped_by_tolerance(metric, tolerance):
    kernel, states = kernel_of(metric), random_states(200, seed=4)
    found = incomplete_cholesky(kernel, states, tolerance=tolerance)
    assert 0 < len(found) < 200
    assert found.largest_residuals[-1] <= tolerance < found.largest_residuals[-2]
    assert np.diag(dense_residual(kernel, states, found.indices)).max() <= tolerance + 1e-10
    # whichever comes first
    assert len(incomplete_cholesky(kernel, states, max_size=3, tolerance=tolerance)) == min(3, len(found))


def test_stopped_before_the_first():
    assert len(incomplete_cholesky(kernel_of("ard"), random_states(), max_size=0)) == 0


def test_a_tolerance_above_the_variance_takes_nothing():
    kernel, states = kernel_of("ard"), random_states()
    found = incomplete_cholesky(kernel, states, tolerance=1.8)
    assert len(found) == 0
    assert found.indices.dtype == np.int64
    assert_allclose(found.residual_traces, [60 * 1.7])
    assert_allclose(found.largest_residuals, [1.7])


@pytest.mark.parametrize("n", [0, 1])
def test_hardly_any_states(n):
    found = incomplete_cholesky(kernel_of("ard"), random_states(n))
    assert len(found) == n
    assert_allclose(found.residual_traces, [1.7 * n, 0.0][: n + 1])
    assert_array_equal(linearly_independent(kernel_of("ard"), random_states(n), 0.1), np.arange(n))


@every_metric
@every_bias
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_state_is_taken_twice(metric, bias, dtype):
    states = repeated_states()
    found = incomplete_cholesky(kernel_of(metric, bias), states, dtype=dtype)
    assert len(np.unique(states[found.indices], axis=0)) == len(found) <= 12
    assert found.residual_trace <= 90 * (1e-11 if dtype is np.float64 else 2e-6) * 1.7
    assert len(incomplete_cholesky(kernel_of(metric, bias), np.zeros((5, 3)), dtype=dtype)) == 1


def test_crowded_states_are_taken_up_to_the_rank():
    """500 points on a short line: the covariance has a rank of ten or so, and no more states are taken."""
    kernel, states = paper_kernel(Isotropic(1.0, 1)), np.linspace(0.0, 1.0, 500)[:, None]
    found = incomplete_cholesky(kernel, states)
    assert len(found) <= np.linalg.matrix_rank(naive_kernel(kernel, states, states)) <= 12
    assert found.largest_residuals[-1] <= 2e-12


@every_metric
def test_single_precision(metric):
    kernel, states = kernel_of(metric), random_states(200, seed=5)
    double = incomplete_cholesky(kernel, states, tolerance=1e-2)
    single = incomplete_cholesky(kernel, states, tolerance=1e-2, dtype=np.float32)
    assert_array_equal(single.indices, double.indices)
    assert_allclose(single.residual_traces, double.residual_traces, rtol=1e-4)
    assert_allclose(single.largest_residuals, double.largest_residuals, rtol=1e-4)


def test_single_precision_stops_where_it_has_to():
    kernel, states = kernel_of("ard"), random_states(300, seed=6)
    double = incomplete_cholesky(kernel, states)
    single = incomplete_cholesky(kernel, states, dtype=np.float32)
    assert len(single) < len(double)
    residual = np.diag(dense_residual(kernel, states, single.indices))
    assert single.largest_residuals[-1] <= 2e-6
    assert residual.max() <= 1e-5
    assert_allclose(single.residual_trace, residual.sum(), atol=300 * 2e-6)


def test_size_at_a_tolerance():
    subset = Subset(np.array([4, 2, 9]), np.array([8.0, 4.0, 1.0, 0.2]), np.array([2.0, 1.0, 0.5, 0.1]))
    assert [subset.size_at(t) for t in (3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.1)] == [0, 0, 1, 1, 2, 2, 3]
    assert subset.size_at(0.01) == 3  # never reached
    assert len(subset) == 3
    assert subset.residual_trace == 0.2


@every_metric
def test_one_factorisation_knows_the_size_at_every_tolerance(metric):
    kernel, states = kernel_of(metric), random_states(seed=7)
    whole = incomplete_cholesky(kernel, states)
    for tolerance in (2.0, 1.0, 0.3, 0.1, 1e-2, 1e-3):
        stopped = incomplete_cholesky(kernel, states, tolerance=tolerance)
        assert whole.size_at(tolerance) == len(stopped)
        assert_array_equal(whole.indices[: len(stopped)], stopped.indices)


# Approximate linear dependence, one state after the other


@every_metric
@every_bias
@pytest.mark.parametrize("tolerance", [0.5, 1e-1, 1e-3])
def test_linear_independence_one_state_at_a_time(metric, bias, tolerance):
    kernel, states = kernel_of(metric, bias), random_states(80, seed=8)
    found = linearly_independent(kernel, states, tolerance)
    assert found.dtype == np.int64
    assert 0 < len(found) < 80
    assert_array_equal(found, naive_linearly_independent(kernel, states, tolerance))
    assert np.diag(dense_residual(kernel, states, found)).max() <= tolerance + 1e-10


@pytest.mark.parametrize("block", [1, 2, 7, 79, 80, 81])
@pytest.mark.parametrize("max_size", [None, 9])
def test_linear_independence_does_not_depend_on_the_block(block, max_size):
    kernel, states = kernel_of("ard"), random_states(80, seed=8)
    expected = naive_linearly_independent(kernel, states, 0.05, max_size)
    assert_array_equal(linearly_independent(kernel, states, 0.05, max_size, block), expected)


@pytest.mark.parametrize("max_size", [0, 1, 5, 500])
def test_linear_independence_stopped_by_size(max_size):
    kernel, states = kernel_of("ard"), random_states(80, seed=8)
    whole = linearly_independent(kernel, states, 0.05)
    found = linearly_independent(kernel, states, 0.05, max_size, block=16)
    assert_array_equal(found, whole[:max_size])


@pytest.mark.parametrize("block", [1, 16, 1024])
def test_linear_independence_takes_each_repeated_state_once_where_it_first_appears(block):
    states = repeated_states()
    found = linearly_independent(paper_kernel(Isotropic(30.0, 3)), states, 0.0, block=block)
    _, first = np.unique(states, axis=0, return_index=True)
    assert_array_equal(found, np.sort(first))


def test_linear_independence_without_a_tolerance():
    """What is rounding must neither be taken nor stop the program, however the states are read."""
    kernel = paper_kernel(Isotropic(1.0, 2), 1.0, 0.5)
    for seed in range(4):
        states = random_states(200, seed, n_dims=2)
        whole = linearly_independent(kernel, states, 0.0)
        assert_array_equal(linearly_independent(kernel, states, 0.0, block=16), whole)


def test_linear_independence_of_states_in_another_order():
    """What comes first is taken: the first state always, and a repeated one never again."""
    kernel, states = kernel_of("ard"), random_states(80, seed=8)
    backwards = linearly_independent(kernel, states[::-1], 0.05)
    assert backwards[0] == 0
    assert_array_equal(backwards, naive_linearly_independent(kernel, states[::-1], 0.05))
    twice = np.concatenate([states, states])
    assert linearly_independent(kernel, twice, 0.05).max() < 80


@every_metric
@every_bias
def test_dictionary(metric, bias):
    kernel, states = kernel_of(metric, bias), random_states(9, seed=9)
    new = random_states(11, seed=10)
    dictionary = Dictionary.empty(kernel)
    residual, half = dictionary.residuals(new)
    assert_allclose(residual, kernel.signal_variance + bias)
    assert half.shape == (0, 11)
    for m, state in enumerate(states, start=1):
        dictionary = dictionary.extended(state)
        K = naive_kernel(kernel, states[:m], states[:m])
        K_new = naive_kernel(kernel, states[:m], new)
        assert_array_equal(dictionary.states, states[:m])
        assert_array_equal(np.triu(dictionary.L, 1), 0.0)
        assert_allclose(dictionary.L, np.linalg.cholesky(K), **CLOSE)
        residual, half = dictionary.residuals(new)
        assert_allclose(half, np.linalg.solve(np.linalg.cholesky(K), K_new), **CLOSE)
        expected = np.diag(naive_kernel(kernel, new, new) - K_new.T @ np.linalg.solve(K, K_new))
        assert_allclose(residual, expected, **CLOSE)
        assert_allclose(dictionary.residuals(states[:m])[0], 0.0, atol=1e-10)
        assert (dictionary.residuals(states)[0] >= 0).all()


def test_extending_a_dictionary_leaves_the_old_one_alone():
    one = Dictionary.empty(kernel_of("ard")).extended(np.zeros(3))
    before = one.L.copy(), one.states.copy()
    one.extended(np.ones(3))
    assert_array_equal(one.L, before[0])
    assert_array_equal(one.states, before[1])


def test_lots_leave_less_in_all_than_the_largest_residual_first():
    """The sum of residuals is what a sparse model pays for; pivots at the rim of the data do little for it."""
    kernel = paper_kernel(ARD([0.5, 0.25, 0.1]), 1.0, 0.0)
    states = random_states(1000, seed=3, n_dims=3)
    greedy = incomplete_cholesky(kernel, states, 60)
    drawn = [incomplete_cholesky(kernel, states, 60, rng=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert_array_equal(drawn[0].indices, drawn[1].indices)
    assert not np.array_equal(drawn[0].indices, drawn[2].indices)
    for one in drawn:
        assert len(np.unique(one.indices)) == 60
        assert one.residual_trace < 0.6 * greedy.residual_trace
        K, Knm = kernel(states), kernel(states, states[one.indices])
        explained = np.trace(Knm @ np.linalg.solve(K[np.ix_(one.indices, one.indices)], Knm.T))
        assert_allclose(one.residual_trace, np.trace(K) - explained, rtol=1e-6)


def test_lots_stop_where_nothing_is_left():
    kernel, states = paper_kernel(ARD([0.5]), 1.0, 0.0), np.repeat(np.arange(7.0)[:, None], 5, axis=0)
    found = incomplete_cholesky(kernel, states, rng=np.random.default_rng(0))
    assert len(found) == 7 and len(np.unique(states[found.indices])) == 7
