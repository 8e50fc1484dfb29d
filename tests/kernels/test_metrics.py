"""The three metrics and the squared exponential over them, against the formula written out as a double loop."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.inference.model import Model, pack_gradient
from gptd_rl.kernels import paper_kernel
from gptd_rl.kernels import stationary as kernels
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic
from gptd_rl.kernels.stationary import SquaredExponential, lower_tiles
from tests.helpers import METRICS, central_differences, make_model, naive_kernel

NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=METRICS)
def metric(request):
    return METRICS[request.param]()


@pytest.fixture
def kernel(metric) -> SquaredExponential:
    return paper_kernel(metric, signal_variance=1.7, bias=0.4)


@pytest.fixture
def X() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(11, 3))


@pytest.fixture
def others() -> np.ndarray:
    return np.random.default_rng(1).normal(loc=2.0, size=(7, 3))


# Metrics


def test_matrices_by_hand():
    assert_array_equal(Isotropic(0.5, 2).matrix, [[0.5, 0], [0, 0.5]])
    assert_array_equal(ARD([0.5, 2]).matrix, [[0.5, 0], [0, 2]])
    # m = (1, −1): Ω = mmᵀ + diag(a)
    assert_array_equal(FactorAnalysis([0.5, 2], [1, -1]).matrix, [[1.5, -1], [-1, 3]])


def test_names_and_widths():
    assert Isotropic(1.0, 4).parameter_names == ("h",)
    assert ARD([1, 2, 3]).parameter_names == ("a1", "a2", "a3")
    factor = METRICS["factor 2"]()
    assert factor.parameter_names == ("a1", "a2", "a3", "m1_1", "m1_2", "m1_3", "m2_1", "m2_2", "m2_3")
    assert (factor.n_dims, factor.rank) == (3, 2)
    assert (Isotropic(1.0, 4).n_dims, ARD([1, 2, 3]).n_dims) == (4, 3)


def test_theta_is_logarithmic_but_for_loadings():
    assert_allclose(Isotropic(0.5, 2).theta, np.log([0.5]))
    assert_allclose(ARD([0.5, 2]).theta, np.log([0.5, 2]))
    factor = FactorAnalysis([0.5, 2], [[1, 3], [-1, 4]])  # columns m₁ = (1, −1), m₂ = (3, 4)
    assert_allclose(factor.theta, [np.log(0.5), np.log(2), 1, -1, 3, 4])
    assert_array_equal(factor.is_log, [True, True, False, False, False, False])
    assert ARD([0.5, 2]).is_log.all()
    assert Isotropic(0.5, 2).is_log.all()


def test_theta_there_and_back(metric):
    theta = metric.theta + np.linspace(0.1, 0.5, len(metric.theta))
    moved = metric.with_theta(theta)
    assert type(moved) is type(metric)
    assert_allclose(moved.theta, theta)
    assert_allclose(metric.with_theta(metric.theta).matrix, metric.matrix)
    assert len(metric.parameter_names) == len(metric.is_log) == len(metric.theta)


def test_whitened_distance_is_the_distance(metric, X, others):
    w, w2 = metric.whiten(X), metric.whiten(others)
    for i in range(len(X)):
        for j in range(len(others)):
            d = X[i] - others[j]
            assert_allclose(((w[i] - w2[j]) ** 2).sum(), d @ metric.matrix @ d)


def test_pull_back(metric):
    """For L = tr(GΩ), ∂L/∂Ω = G for a symmetric G."""
    G = np.random.default_rng(2).normal(size=(3, 3))
    G += G.T
    numeric = central_differences(lambda theta: np.sum(G * metric.with_theta(theta).matrix), metric.theta)
    assert_allclose(metric.pull_back(G), numeric, rtol=1e-6, atol=1e-9)


def test_spectrum(metric):
    s, U = metric.eigenvalues, metric.directions
    assert_allclose((U.T * s) @ U, metric.matrix, atol=1e-14)  # Σ s_i u_i u_iᵀ
    assert_allclose(U @ U.T, np.eye(3), atol=1e-14)
    assert (np.diff(s) <= 0).all()
    assert (s > 0).all()
    for u in U:
        assert u[np.abs(u).argmax()] > 0
    assert_allclose(metric.relevances, np.diag(metric.matrix))


def test_one_direction_is_found():
    metric = FactorAnalysis([1e-9, 1e-9], [3.0, -4.0])
    assert_allclose(metric.eigenvalues, [25, 0], atol=1e-8)
    assert_allclose(metric.directions[0], [-0.6, 0.8])


def test_a_flat_list_of_loadings_is_one_direction():
    assert_array_equal(FactorAnalysis([1, 1, 1], [1, 2, 3]).loadings, [[1], [2], [3]])


def test_metrics_do_not_alias_their_arguments():
    a, M = np.ones(2), np.ones((2, 1))
    ard, factor = ARD(a), FactorAnalysis(a, M)
    a[:] = M[:] = 7.0
    assert_array_equal(ard.a, [1, 1])
    assert_array_equal(factor.matrix, [[2, 1], [1, 2]])
    ard.relevances[0] = 9.0
    assert_array_equal(ard.a, [1, 1])


@pytest.mark.parametrize("name", ["h", "n_dims"])
def test_metrics_are_frozen(name):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(Isotropic(1.0, 2), name, 3)


BAD = {
    "negative h": (lambda: Isotropic(-1.0, 2), ValueError, r"h must be finite and not negative; got \[-1"),
    "NaN h": (lambda: Isotropic(NAN, 2), ValueError, r"h must be finite and not negative; got \[nan"),
    "infinite h": (lambda: Isotropic(INF, 2), ValueError, r"h must be finite and not negative; got \[inf"),
    "negative a": (lambda: ARD([1.0, -2.0]), ValueError, r"a must be finite and not negative; got \[ 1. -2.\]"),
    "NaN a": (lambda: ARD([NAN, 1.0]), ValueError, r"a must be finite and not negative; got \[nan"),
    "negative a beside factors": (
        lambda: FactorAnalysis([-1.0, 1.0], [1, 1]),
        ValueError,
        "a must be finite and not negative; got",
    ),
    "NaN loading": (lambda: FactorAnalysis([1.0, 1.0], [NAN, 1]), ValueError, "loadings must be finite"),
    "infinite loading": (lambda: FactorAnalysis([1.0, 1.0], [INF, 1]), ValueError, "loadings must be finite"),
    "loadings lying on their side": (
        lambda: FactorAnalysis([1.0, 1.0, 1.0], [[1, 2, 3], [4, 5, 6]]),
        ValueError,
        r"loadings must have shape \(3, .*got \(2, 3\)",
    ),
    "too few loadings": (lambda: FactorAnalysis([1.0, 1.0, 1.0], [1, 2]), ValueError, "loadings .*3.*2"),
    "negative v0": (
        lambda: paper_kernel(ARD([1.0]), signal_variance=-1.0),
        ValueError,
        "signal_variance must be finite and not negative; got -1",
    ),
    "NaN v0": (
        lambda: paper_kernel(ARD([1.0]), signal_variance=NAN),
        ValueError,
        "signal_variance must be finite and not negative; got nan",
    ),
    "infinite bias": (
        lambda: paper_kernel(ARD([1.0]), bias=INF),
        ValueError,
        "bias must be finite and not negative; got inf",
    ),
    "unknown parameter fixed": (
        lambda: paper_kernel(ARD([1.0]), fixed=("b", "a2", "noise")),
        ValueError,
        r"fixed names \['a2', 'noise'\], but the parameters are \('v0', 'b', 'a1'\)",
    ),
    "states too narrow": (
        lambda: paper_kernel(ARD([1.0, 1.0, 1.0]))(np.zeros((2, 2))),
        ValueError,
        "the kernel has 3 dimensions; got states of width 2",
    ),
    "other states too wide": (
        lambda: paper_kernel(ARD([1.0, 1.0, 1.0]))(np.zeros((2, 3)), np.zeros((2, 5))),
        ValueError,
        "the kernel has 3 dimensions; got states of width 5",
    ),
    "narrow states in a triangle": (
        lambda: paper_kernel(Isotropic(1.0, 3)).lower(np.zeros((2, 2))),
        ValueError,
        "the kernel has 3 dimensions; got states of width 2",
    ),
    "narrow states in a contraction": (
        lambda: paper_kernel(Isotropic(1.0, 3)).contract_lower(np.eye(2), np.zeros((2, 2))),
        ValueError,
        "the kernel has 3 dimensions; got states of width 2",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert re.search(message, str(caught.value)), str(caught.value)


# The kernel: values


def test_kernel_by_hand():
    kernel = paper_kernel(ARD([0.5, 2.0]), signal_variance=3.0, bias=0.25)
    # d² = 0.5·2² + 2·1² = 4
    assert_allclose(kernel(np.array([[0.0, 0.0]]), np.array([[2.0, 1.0]])), [[3 * np.exp(-2) + 0.25]])


def test_kernel(kernel, X, others):
    assert_allclose(kernel(X, others), naive_kernel(kernel, X, others), rtol=1e-12)
    assert_allclose(kernel(X), naive_kernel(kernel, X, X), rtol=1e-12)
    assert_allclose(kernel.diagonal(X), np.diag(naive_kernel(kernel, X, X)), rtol=1e-12)


def test_kernel_far_from_the_origin(kernel, X, others):
    """Distances of states near 10⁶ lose no digits to their squares."""
    assert_allclose(kernel(X + 1e6, others + 1e6), kernel(X, others), rtol=1e-8)
    assert_allclose(kernel.lower(X + 1e6), kernel.lower(X), rtol=1e-8)


def test_kernel_never_exceeds_its_diagonal(kernel):
    X = np.repeat(np.random.default_rng(0).normal(size=(5, 3)) * 1e3, 2, axis=0)
    assert kernel(X).max() <= kernel.diagonal(X)[0]


def test_no_states_give_an_empty_matrix(kernel, X):
    assert kernel(X, np.zeros((0, 3))).shape == (11, 0)
    assert kernel(np.zeros((0, 3)), X).shape == (0, 11)


@pytest.mark.parametrize("tile", [1, 3, 11, 256])
def test_lower_triangle(kernel, X, tile, monkeypatch):
    monkeypatch.setattr(kernels, "TILE", tile)
    assert_allclose(np.tril(kernel.lower(X)), np.tril(naive_kernel(kernel, X, X)), rtol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 4, 5, 9])
def test_tiles_cover_the_triangle_once(n, monkeypatch):
    monkeypatch.setattr(kernels, "TILE", 4)
    times = np.zeros((n, n))
    for rows, columns in lower_tiles(n):
        times[rows, columns] += 1
    assert (times[np.tril_indices(n)] == 1).all()
    assert times.max(initial=0) <= 1


# The kernel: parameters


def test_theta_of_the_kernel(kernel, metric):
    assert_allclose(kernel.theta, [np.log(1.7), np.log(0.4), *metric.theta])
    assert kernel.parameter_names == ("v0", "b", *metric.parameter_names)
    assert_array_equal(kernel.is_log, [True, True, *metric.is_log])
    theta = kernel.theta + np.linspace(-0.2, 0.3, len(kernel.theta))
    assert_allclose(kernel.with_theta(theta).theta, theta)


def test_fixed_parameters_stay_named(metric):
    kernel = paper_kernel(metric, fixed=["b"])
    assert kernel.with_theta(kernel.theta).fixed == {"b"}


def test_a_bias_or_relevance_of_zero_stays_zero():
    kernel = paper_kernel(ARD([0.0, 1.0]), bias=0.0)
    assert_array_equal(kernel.theta, [0, -INF, -INF, 0])
    again = kernel.with_theta(kernel.theta)
    assert again.bias == 0.0
    assert_array_equal(again.metric.relevances, [0, 1])
    assert_array_equal(Model(kernel, 0.1).is_free, [True, False, True, False, True])


def test_a_metric_with_a_relevance_of_zero_has_a_theta():
    assert_array_equal(ARD([0.0, 1.0]).theta, [-INF, 0])
    assert_array_equal(Isotropic(0.0, 2).theta, [-INF])


def test_kernels_are_frozen(kernel):
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.bias = 3.0


# The kernel: contractions


def contraction(kernel, A, states, others):
    return central_differences(lambda theta: np.sum(A * kernel.with_theta(theta)(states, others)), kernel.theta)


def test_contraction(kernel, X, others):
    A = np.random.default_rng(3).normal(size=(len(X), len(others)))
    assert_allclose(kernel.contract(A, X, others), contraction(kernel, A, X, others), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tile", [1, 3, 11, 256])
def test_contraction_of_a_triangle(kernel, X, tile, monkeypatch):
    monkeypatch.setattr(kernels, "TILE", tile)
    A = np.random.default_rng(3).normal(size=(len(X), len(X)))
    A += A.T
    expected = contraction(kernel, A, X, X)
    A[np.triu_indices(len(X), 1)] = NAN  # only the lower triangle is read ...
    before = A.copy()
    assert_allclose(kernel.contract_lower(A, X), expected, rtol=1e-6, atol=1e-8)
    assert_array_equal(A, before)  # ... and nothing written


def test_contraction_with_derivatives_by_loops(kernel, X):
    """Without differences, to many digits: ∂K/∂log v₀, ∂K/∂log b, and ∂K/∂Ω through the metric."""
    A = np.random.default_rng(4).normal(size=(len(X), len(X)))
    by_v0 = by_b = 0.0
    by_omega = np.zeros((3, 3))
    for i in range(len(X)):
        for j in range(len(X)):
            d = X[i] - X[j]
            k = 1.7 * np.exp(-0.5 * d @ kernel.metric.matrix @ d)
            by_v0 += A[i, j] * k
            by_b += A[i, j] * 0.4
            by_omega -= 0.5 * A[i, j] * k * np.outer(d, d)
    expected = [by_v0, by_b, *kernel.metric.pull_back(by_omega)]
    assert_allclose(kernel.contract(A, X, X), expected, rtol=1e-10, atol=1e-12)
    symmetric = 0.5 * (A + A.T)
    assert_allclose(kernel.contract_lower(symmetric, X), expected, rtol=1e-10, atol=1e-12)


def test_contraction_far_from_the_origin(kernel, X):
    A = np.eye(len(X)) + 1.0
    assert_allclose(kernel.contract_lower(A, X + 1e6), kernel.contract_lower(A, X), rtol=1e-7, atol=1e-8)


# The model: kernel and noise in one vector


@pytest.mark.parametrize("name", METRICS)
def test_theta_of_the_model(name):
    model = make_model(name)
    kernel = model.kernel
    assert_allclose(model.theta, [np.log(1.3), np.log(0.4), np.log(0.2), *kernel.metric.theta])
    assert model.parameter_names == ("v0", "b", "noise", *kernel.metric.parameter_names)
    assert_array_equal(model.is_log, [True, True, True, *kernel.metric.is_log])
    theta = model.theta + np.linspace(-0.2, 0.3, len(model.theta))
    assert_allclose(model.with_theta(theta).theta, theta)
    assert model.with_noise(0.7).noise_variance == 0.7
    assert model.with_noise(0.7).kernel is kernel


def test_free_parameters():
    model = make_model("ard", fixed=("v0", "a2"))
    assert_array_equal(model.is_free, [False, True, True, True, False, True])
    held = Model(model.kernel, 0.2, noise_is_fixed=True)
    assert_array_equal(held.is_free, [False, True, False, True, False, True])
    assert held.with_theta(held.theta).noise_is_fixed


def test_gradients_are_packed_in_the_order_of_theta():
    assert_array_equal(pack_gradient(np.array([1.0, 2.0, 4.0]), 3.0), [1, 2, 3, 4])
