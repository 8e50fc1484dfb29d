"""Stationary kernels with each metric, and the paper's kernel."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.inference.model import Model
from gptd_rl.kernels import (
    ARD,
    DataScale,
    Isotropic,
    Kernel,
    Matern32,
    Matern52,
    MultiScale,
    SquaredExponential,
    base,
    paper_kernel,
)
from tests.helpers import METRICS, naive_kernel
from tests.kernels.checks import PROFILES, KernelChecks

NAN, INF = float("nan"), float("inf")
CLASSES = [SquaredExponential, Matern32, Matern52, MultiScale]


class TestStationary(KernelChecks):
    @pytest.fixture(params=CLASSES, ids=lambda c: c.__name__)
    def kernel_class(self, request):
        return request.param

    @pytest.fixture(params=METRICS)
    def kernel(self, request, kernel_class) -> Kernel:
        return kernel_class(METRICS[request.param](), 1.7)

    def test_theta_is_v0_and_the_metric(self, kernel):
        assert_allclose(kernel.theta, [np.log(1.7), *kernel.metric.theta])
        assert kernel.parameter_names == ("v0", *kernel.metric.parameter_names)
        assert_array_equal(kernel.is_log, [True, *kernel.metric.is_log])
        assert kernel.n_amplitudes == 1

    def test_never_exceeds_its_diagonal(self, kernel):
        X = np.repeat(np.random.default_rng(0).normal(size=(5, 3)) * 1e3, 2, axis=0)
        assert kernel(X).max() <= kernel.diagonal(X)[0]

    def test_contraction_by_loops(self, kernel, kernel_class, X):
        """Without differences in θ, to many digits: ∂K/∂log v₀, and ∂K/∂Ω through the metric."""
        A = np.random.default_rng(4).normal(size=(len(X), len(X)))
        by_v0, by_omega, h = 0.0, np.zeros((3, 3)), 1e-6
        profile = PROFILES[kernel_class]
        for i in range(len(X)):
            for j in range(len(X)):
                d = X[i] - X[j]
                u = 0.5 * d @ kernel.metric.matrix @ d
                by_v0 += A[i, j] * 1.7 * profile(u)
                if i != j:
                    slope = (profile(u + h) - profile(u - h)) / (2 * h)
                    by_omega += 0.5 * A[i, j] * 1.7 * slope * np.outer(d, d)
        expected = [by_v0, *kernel.metric.pull_back(by_omega)]
        assert_allclose(kernel.contract(A, X, X), expected, rtol=1e-7, atol=1e-8)
        assert_allclose(kernel.contract_lower(0.5 * (A + A.T), X), expected, rtol=1e-7, atol=1e-8)

    def test_contraction_far_from_the_origin(self, kernel, X):
        A = np.eye(len(X)) + 1.0
        assert_allclose(kernel.contract_lower(A, X + 2.0**20), kernel.contract_lower(A, X), rtol=1e-6, atol=1e-7)

    def test_with_metric_keeps_v0(self, kernel):
        other = kernel.fix("v0").with_metric(Isotropic(2.0, 3))
        assert type(other) is type(kernel)
        assert (other.signal_variance, other.metric.h, other.fixed) == (1.7, 2.0, {"v0"})

    def test_relevances_are_those_of_the_metric(self, kernel):
        assert_array_equal(kernel.relevances, kernel.metric.relevances)

    def test_repr_is_short(self, kernel, kernel_class):
        assert repr(kernel) == f"{kernel_class.__name__}({kernel.metric!r}, signal_variance=1.7)"


@pytest.mark.parametrize("kernel_class", CLASSES)
def test_profiles_are_one_at_zero_and_fall(kernel_class):
    """And −dC/du is what `slope` says, against differences."""
    kernel, u, h = kernel_class(ARD([1.0])), np.linspace(0.1, 20.0, 50), 1e-6
    assert_allclose(kernel.profile(np.zeros(1)), 1.0)
    assert (np.diff(kernel.profile(-u)) < 0).all()
    numeric = (kernel.profile(-(u - h)) - kernel.profile(-(u + h))) / (2 * h)
    assert_allclose(kernel.slope(-u), numeric, rtol=1e-6, atol=1e-10)


def test_stationary_kernels_read_the_first_columns_of_their_states():
    """As a part of a kernel over pairs [x, a]."""
    pairs = np.random.default_rng(0).normal(size=(4, 3))
    kernel = Matern52(ARD([1.0, 2.0]))
    assert_array_equal(kernel.pairs(pairs, pairs).values(slice(None), slice(None)), kernel(pairs[:, :2]))


def test_multi_scale_keeps_relevances_between_its_lengthscales():
    """From half a standard deviation to eight, also of a constant input."""
    scale = DataScale(4.0, -3.0, np.array([0.5, 1.0]), np.array([False, True]))
    space = MultiScale(ARD([1.0, 1.0])).space(scale)
    assert_allclose(np.exp(-0.5 * space.upper[1:]), [0.25, 0.5])
    assert_allclose(np.exp(-0.5 * space.lower[1:]), [4.0, 8.0])


def test_fixed_relevances_are_free_again_where_inputs_are_taken():
    kernel = SquaredExponential(ARD([1.0, 2.0]), fixed=["v0", "a2"])
    assert kernel.take_inputs(np.array([0])).fixed == {"v0"}


def test_repr_shows_fixed_parameters_if_any():
    kernel = Matern52(ARD([1.0, 1.0]))
    assert repr(kernel) == "Matern52(ARD([1.0, 1.0]), signal_variance=1.0)"
    held = "Matern52(ARD([1.0, 1.0]), signal_variance=1.0, fixed=['a1', 'v0'])"
    assert repr(kernel.fix("v0", "a1")) == held


# The paper's kernel


class TestPaperKernel(KernelChecks):
    @pytest.fixture(params=METRICS)
    def kernel(self, request) -> Kernel:
        return paper_kernel(METRICS[request.param](), signal_variance=1.7, bias=0.4)

    def test_values(self, kernel, X, Z):
        assert_allclose(kernel(X, Z), naive_kernel(kernel, X, Z), rtol=1e-12)

    def test_theta_is_v0_b_and_the_metric(self, kernel):
        assert_allclose(kernel.theta, [np.log(1.7), np.log(0.4), *kernel.metric.theta])
        assert kernel.parameter_names == ("v0", "b", *kernel.metric.parameter_names)
        assert_array_equal(kernel.is_log, [True, True, *kernel.metric.is_log])


def test_paper_kernel_by_hand():
    kernel = paper_kernel(ARD([0.5, 2.0]), signal_variance=3.0, bias=0.25)
    # d² = 0.5·2² + 2·1² = 4
    assert_allclose(kernel(np.array([[0.0, 0.0]]), np.array([[2.0, 1.0]])), [[3 * np.exp(-2) + 0.25]])


def test_a_bias_or_relevance_of_zero_stays_zero():
    kernel = paper_kernel(ARD([0.0, 1.0]), bias=0.0)
    assert_array_equal(kernel.theta, [0, -INF, -INF, 0])
    again = kernel.with_theta(kernel.theta)
    assert_array_equal(again(np.eye(2)), kernel(np.eye(2)))
    assert_array_equal(again.theta, kernel.theta)
    assert_array_equal(Model(kernel, 0.1).is_free, [True, False, True, False, True])


@pytest.mark.parametrize("n", [0, 1, 4, 5, 9])
def test_tiles_cover_the_triangle_once(n, monkeypatch):
    monkeypatch.setattr(base, "TILE", 4)
    times = np.zeros((n, n))
    for rows, columns in base.lower_tiles(n):
        times[rows, columns] += 1
    assert (times[np.tril_indices(n)] == 1).all()
    assert times.max(initial=0) <= 1


BAD = {
    "negative v0": (
        lambda: paper_kernel(ARD([1.0]), signal_variance=-1.0),
        "signal_variance must be finite and not negative; got -1",
    ),
    "NaN v0": (
        lambda: Matern32(ARD([1.0]), signal_variance=NAN),
        "signal_variance must be finite and not negative; got nan",
    ),
    "infinite bias": (lambda: paper_kernel(ARD([1.0]), bias=INF), "bias must be finite and not negative; got inf"),
    "unknown parameters fixed": (
        lambda: paper_kernel(ARD([1.0]), fixed=("b", "a2", "noise")),
        r"fixed names \['a2', 'noise'\], but the parameters are \('v0', 'b', 'a1'\)",
    ),
    "unknown parameter of one kernel fixed": (
        lambda: Matern52(ARD([1.0]), fixed=("b",)),
        r"fixed names \['b'\], but the parameters are \('v0', 'a1'\)",
    ),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert re.search(message, str(caught.value)), str(caught.value)
