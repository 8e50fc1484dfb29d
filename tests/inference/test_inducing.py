"""The choice of inducing points against pivoted Cholesky of LAPACK and against loops with dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import lapack

from gptd_rl.inference.inducing import Dictionary, InducingPointSelector, Subset, incomplete_cholesky, independent
from gptd_rl.kernels import Kernel, paper_kernel
from gptd_rl.kernels.metrics import ARD, Isotropic
from tests.helpers import METRICS, make_model, naive_kernel

CLOSE: dict[str, Any] = dict(rtol=1e-9, atol=1e-10)

every_metric = pytest.mark.parametrize("metric", METRICS)
every_bias = pytest.mark.parametrize("bias", [0.0, 0.4])


def kernel_of(metric: str, bias: float = 0.4) -> Kernel:
    return make_model(metric, bias=bias).kernel


def random_states(n: int = 60, seed: int = 0, n_dims: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, n_dims))


def repeated_states(n: int = 90, n_distinct: int = 12, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_distinct, 3))[rng.integers(n_distinct, size=n)]


def dense_residual(kernel: Kernel, states: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """K − K_nm K_mm⁻¹ K_mn."""
    K = naive_kernel(kernel, states, states)
    return K - K[:, taken] @ np.linalg.solve(K[np.ix_(taken, taken)], K[taken]) if len(taken) else K


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
    assert_allclose(found.residual_traces[-1], np.trace(dense_residual(kernel, states, found.indices)), **CLOSE)


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


@every_metric
@every_bias
def test_no_state_is_taken_twice(metric, bias):
    states = repeated_states()
    found = incomplete_cholesky(kernel_of(metric, bias), states)
    assert len(np.unique(states[found.indices], axis=0)) == len(found) <= 12
    assert found.residual_traces[-1] <= 90 * 1e-11 * 1.7
    assert len(incomplete_cholesky(kernel_of(metric, bias), np.zeros((5, 3)))) == 1


def test_crowded_states_are_taken_up_to_the_rank():
    """500 points on a short line: the covariance has a rank of ten or so, and no more states are taken."""
    kernel, states = paper_kernel(Isotropic(1.0, 1)), np.linspace(0.0, 1.0, 500)[:, None]
    found = incomplete_cholesky(kernel, states)
    assert len(found) <= np.linalg.matrix_rank(naive_kernel(kernel, states, states)) <= 12
    assert found.largest_residuals[-1] <= 2e-12


def test_size_at_a_tolerance():
    subset = Subset(np.array([4, 2, 9]), np.array([8.0, 4.0, 1.0, 0.2]), np.array([2.0, 1.0, 0.5, 0.1]))
    assert [subset.size_at(t) for t in (3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.1)] == [0, 0, 1, 1, 2, 2, 3]
    assert subset.size_at(0.01) == 3  # never reached
    assert len(subset) == 3


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
def test_dictionary(metric, bias):
    kernel, states = kernel_of(metric, bias), random_states(9, seed=9)
    new = random_states(11, seed=10)
    dictionary = Dictionary.empty(kernel)
    residual, half = dictionary.residuals(new)
    assert_allclose(residual, 1.3 + bias)
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


def test_random_pivots_leave_less_in_all_than_the_largest_residual_first():
    """The sum of residuals is what a sparse model pays for; pivots at the rim of the data do little for it."""
    kernel = paper_kernel(ARD([0.5, 0.25, 0.1]), 1.0, 0.0)
    states = random_states(1000, seed=3, n_dims=3)
    greedy = incomplete_cholesky(kernel, states, 60)
    drawn = [incomplete_cholesky(kernel, states, 60, rng=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert_array_equal(drawn[0].indices, drawn[1].indices)
    assert not np.array_equal(drawn[0].indices, drawn[2].indices)
    for one in drawn:
        assert len(np.unique(one.indices)) == 60
        assert one.residual_traces[-1] < 0.6 * greedy.residual_traces[-1]
        K, Knm = kernel(states), kernel(states, states[one.indices])
        explained = np.trace(Knm @ np.linalg.solve(K[np.ix_(one.indices, one.indices)], Knm.T))
        assert_allclose(one.residual_traces[-1], np.trace(K) - explained, rtol=1e-6)


def test_random_pivots_stop_where_nothing_is_left():
    kernel, states = paper_kernel(ARD([0.5]), 1.0, 0.0), np.repeat(np.arange(7.0)[:, None], 5, axis=0)
    found = incomplete_cholesky(kernel, states, rng=np.random.default_rng(0))
    assert len(found) == 7 and len(np.unique(states[found.indices])) == 7


# States that the others represent already


@every_metric
@every_bias
@pytest.mark.parametrize("tolerance", [0.3, 1e-2])
def test_independent_states(metric, bias, tolerance):
    """Residuals are shares of the prior variance: of the states left out below the tolerance, of the others above."""
    kernel, states, prior = kernel_of(metric, bias), random_states(200, seed=8), 1.3 + bias
    kept, smallest = independent(kernel, states, tolerance)
    assert 0 < len(kept) < 200
    assert (np.diff(kept) > 0).all()
    assert np.diag(dense_residual(kernel, states, kept)).max() <= tolerance * prior + 1e-10
    alone = [dense_residual(kernel, states, np.delete(kept, i))[k, k] / prior for i, k in enumerate(kept)]
    assert smallest >= tolerance
    assert np.abs(np.array(alone) - smallest).min() < 1e-8  # of the state taken last, given all others


def test_independent_states_do_not_depend_on_the_units_of_the_kernel():
    one, other = (
        independent(paper_kernel(ARD([0.3, 0.6, 1.1]), scale, 0.4 * scale), random_states(), 1e-3)
        for scale in (1.0, 1e6)
    )
    assert_array_equal(one[0], other[0])
    assert_allclose(one[1], other[1])


# Selecting for a model


def test_selector_leaves_residuals_below_its_tolerance():
    """The level b needs no inducing points: residuals are those of the signal, in shares of its variance."""
    model, states = make_model("ard", signal_variance=50.0, bias=1e3), random_states(200, seed=4)
    selector = InducingPointSelector(states, 100, tolerance=1e-2)
    Z = selector.select(model, n_rows=500)
    assert 0 < len(Z) < 100
    assert_array_equal(Z, selector.select(model, n_rows=500))  # the same for the same model
    taken = np.array([np.flatnonzero((states == z).all(axis=1))[0] for z in Z])
    signal = paper_kernel(METRICS["ard"](), 50.0, 0.0)
    assert np.diag(dense_residual(signal, states, taken)).max() <= 1e-2 * 50.0 + 1e-8
    assert len(selector.select(make_model("ard", signal_variance=50.0, bias=0.0), 500)) == len(Z)


def test_selector_is_finer_for_more_rewards_and_less_noise():
    states = random_states(200, seed=4)
    selector = InducingPointSelector(states, 200, tolerance=None)
    sizes = [
        len(selector.select(make_model("isotropic", noise_variance=noise), n_rows))
        for noise, n_rows in ((0.2, 10), (0.2, 10**9), (1e-9, 10**9))
    ]
    assert sizes == sorted(sizes)
    assert len(InducingPointSelector(states, 7, tolerance=None).select(make_model("ard"), 10)) == 7


def test_selector_takes_all_candidates_where_these_are_all_states():
    states = random_states(20)
    assert InducingPointSelector(states, 5, None, takes_all=True).select(make_model("ard"), 10) is states
