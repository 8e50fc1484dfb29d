"""The mode of logistic classification: stationary, equal to SciPy's, finite where classes separate."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from gptd_rl.inference.classification import logistic_mode


def problem(seed: int = 0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(60, 4))
    return features, rng.random(60) < 1 / (1 + np.exp(-2.0 * features[:, 0] + features[:, 2]))


def minus_log_posterior(w, features, labels, variance):
    signed = np.where(labels, 1.0, -1.0) * (features @ w)
    return np.logaddexp(0.0, -signed).sum() + 0.5 * w @ w / variance


@pytest.mark.parametrize("variance", [0.1, 1.0, 1e4])
def test_logistic_mode_is_stationary_and_that_of_scipy(variance):
    features, labels = problem()
    w = logistic_mode(features, labels, variance)
    p = 1.0 / (1.0 + np.exp(-features @ w))
    assert_allclose(features.T @ (p - labels) + w / variance, 0.0, atol=1e-4)
    other = minimize(minus_log_posterior, np.zeros(4), (features, labels, variance), tol=1e-10)
    assert_allclose(w, other.x, atol=1e-3)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_logistic_mode_of_separable_classes_is_finite(scale):
    features = scale * np.linspace(-1.0, 1.0, 50)[:, None]
    labels = features[:, 0] > 0.1 * scale
    features = np.column_stack([features, np.full(50, scale)])
    w = logistic_mode(features, labels, 1e4)
    assert np.isfinite(w).all()
    assert ((features @ w > 0) == labels).all()


def test_logistic_mode_of_one_class():
    w = logistic_mode(np.ones((20, 1)), np.ones(20, dtype=bool), 1.0)
    f = minimize(minus_log_posterior, np.zeros(1), (np.ones((20, 1)), np.ones(20, dtype=bool), 1.0), tol=1e-10)
    assert_allclose(w, f.x, atol=1e-3)
