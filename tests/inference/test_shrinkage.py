"""Empirical Bayes for means of groups."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl.inference.shrinkage import shrunken_mean


def test_shrunken_mean_is_the_posterior_of_normal_means():
    rng = np.random.default_rng(0)
    tau, s, n = 2.0, 3.0, 5
    theta = tau * rng.standard_normal(200_000)
    measured = theta + s / np.sqrt(n) * rng.standard_normal(len(theta))
    mean, std = shrunken_mean(measured, s**2 / n, tau**2)
    assert abs((theta - mean).mean()) < 0.01
    assert (theta - mean).std() == pytest.approx(float(std), rel=0.01)
    assert np.corrcoef(theta - mean, measured)[0, 1] == pytest.approx(0.0, abs=0.01)  # nothing more to learn from it


def test_shrunken_mean_at_the_limits():
    assert_allclose(shrunken_mean(3.0, 0.0, 4.0), (3.0, 0.0))  # measured exactly
    assert_allclose(shrunken_mean(3.0, 1.0, 0.0), (0.0, 0.0))  # groups do not differ
    assert_allclose(shrunken_mean(3.0, 0.0, 0.0), (0.0, 0.0))
    mean, std = shrunken_mean(np.array([1.0, 2.0]), np.array([1.0, 1e12]), 1.0)
    assert_allclose(mean, [0.5, 0.0], atol=1e-9)
    assert_allclose(std, [np.sqrt(0.5), 1.0])
