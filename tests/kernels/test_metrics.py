"""The three metrics Ω: their matrices, parameters, distances and derivatives."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.kernels import ARD, DataScale, FactorAnalysis, Isotropic
from gptd_rl.kernels.metrics import build_metric, describe_metric
from tests.helpers import METRICS, central_differences

NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=METRICS)
def metric(request):
    return METRICS[request.param]()


@pytest.fixture
def X() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(11, 3))


@pytest.fixture
def others() -> np.ndarray:
    return np.random.default_rng(1).normal(loc=2.0, size=(7, 3))


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
}


@pytest.mark.parametrize(("make", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_metric_with_a_relevance_of_zero_has_a_theta():
    assert_array_equal(ARD([0.0, 1.0]).theta, [-INF, 0])
    assert_array_equal(Isotropic(0.0, 2).theta, [-INF])


def test_take_inputs(metric):
    inputs = np.array([2, 0])
    some = metric.take_inputs(inputs)
    assert type(some) is type(metric) and some.n_dims == 2
    assert_allclose(some.matrix, metric.matrix[np.ix_(inputs, inputs)])


def test_grow_adds_a_direction(metric):
    column = np.array([1.0, -2.0, 3.0])
    grown = metric.grow(column)
    assert grown.rank == metric.rank + 1
    assert_allclose(grown.matrix, metric.matrix + np.outer(column, column))


@pytest.mark.parametrize("relevance", [0.1, 1.0, 5.0])
def test_initial_metric_has_the_relevance_guessed(metric, relevance):
    """d² between states one standard deviation apart; directions come on top of a tenth of what ARD would guess."""
    scale = DataScale(4.0, -3.0, np.array([0.5, 1.0, 20.0]), np.zeros(3, dtype=bool))
    first = metric.initial(scale, relevance, np.random.default_rng(0))
    d2 = float(scale.input_std**2 @ np.diag(first.matrix))
    if metric.label == "ard":
        assert_allclose(d2, relevance)
    elif metric.label == "factor":
        assert_allclose(d2, (0.1 + metric.rank) * relevance)
    else:  # the geometric mean over inputs
        assert_allclose(np.log(first.h), np.log(relevance / 3 / scale.input_std**2).mean())
    space = metric.space(scale)
    assert (space.lower <= first.theta).all() and (first.theta <= space.upper).all()


def test_space_holds_constant_inputs_at_the_smallest_relevance():
    scale = DataScale(4.0, -3.0, np.array([0.5, 1.0, 20.0]), np.array([False, True, False]))
    space = METRICS["factor 2"]().space(scale)
    assert_array_equal(np.flatnonzero(space.lower == space.upper), [1, 4, 7])


def test_describe_and_build(metric):
    again = build_metric(describe_metric(metric))
    assert type(again) is type(metric)
    assert_allclose(again.matrix, metric.matrix, rtol=1e-15)
    assert_array_equal(build_metric(describe_metric(ARD([0.0, 2.0]))).relevances, [0.0, 2.0])


def test_describe_refuses_other_classes_in_one_line():
    class Mine(ARD):
        pass

    message = r"^metric class Mine is not one of Isotropic, ARD, FactorAnalysis, so it cannot be saved\.$"
    with pytest.raises(TypeError, match=message):
        describe_metric(Mine([1.0]))  # type: ignore[arg-type]


def test_repr_is_short():
    assert repr(Isotropic(0.7, 3)) == "Isotropic(0.7, n_dims=3)"
    assert repr(ARD([1.0, 1 / 3])) == "ARD([1.0, 0.3333])"
    assert repr(FactorAnalysis([1.0, 2.0], [3.0, 1e-9])) == "FactorAnalysis([1.0, 2.0], [[3.0], [1e-09]])"
