"""The model: kernel and noise in one vector θ."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.inference.model import Model
from gptd_rl.kernels import ARD, ActionDelta, Constant, Isotropic, Matern32, SquaredExponential
from tests.helpers import METRICS, make_model


@pytest.mark.parametrize("name", METRICS)
def test_theta_of_the_model(name):
    model = make_model(name)
    metric = METRICS[name]()
    assert_allclose(model.theta, [np.log(1.3), np.log(0.4), np.log(0.2), *metric.theta])
    assert model.parameter_names == ("v0", "b", "noise", *metric.parameter_names)
    assert_array_equal(model.is_log, [True, True, True, *metric.is_log])
    theta = model.theta + np.linspace(-0.2, 0.3, len(model.theta))
    assert_allclose(model.with_theta(theta).theta, theta)
    assert model.with_noise(0.7).noise_variance == 0.7
    assert model.with_noise(0.7).kernel is model.kernel


def test_noise_stands_behind_the_amplitudes():
    kernel = Matern32(Isotropic(0.7, 2)) + SquaredExponential(ARD([1.0, 2.0])) * ActionDelta(2) + Constant()
    model = Model(kernel, 0.2)
    assert model.noise_index == 3
    assert model.parameter_names == ("k1.v0", "k2.v0", "b", "noise", "h", "a1", "a2")
    assert_allclose(model.theta[3], np.log(0.2))


def test_free_parameters():
    model = make_model("ard", fixed=("v0", "a2"))
    assert_array_equal(model.is_free, [False, True, True, True, False, True])
    held = Model(model.kernel, 0.2, noise_is_fixed=True)
    assert_array_equal(held.is_free, [False, True, False, True, False, True])
    assert held.with_theta(held.theta).noise_is_fixed


def test_gradients_are_packed_in_the_order_of_theta():
    assert_array_equal(make_model("isotropic").pack_gradient(np.array([1.0, 2.0, 4.0]), 3.0), [1, 2, 3, 4])
    alone = Model(SquaredExponential(Isotropic(1.0, 2)), 0.1)
    assert_array_equal(alone.pack_gradient(np.array([1.0, 4.0]), 3.0), [1, 3, 4])
