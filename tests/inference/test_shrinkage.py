"""Empirical Bayes for means of groups."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl.inference.shrinkage import shrunken_mean, variance_between, variance_within


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


def test_variances_of_groups_are_estimated():
    rng = np.random.default_rng(0)
    theta, sizes = rng.normal(5.0, 2.0, size=3000), rng.integers(1, 6, size=3000)
    groups = [mean + 3.0 * rng.standard_normal(n) for mean, n in zip(theta, sizes, strict=True)]
    within = variance_within(groups)
    means = np.array([group.mean() for group in groups])
    assert within == pytest.approx(9.0, rel=0.05)
    assert variance_between(means, within / sizes) == pytest.approx(4.0, rel=0.15)
    assert variance_between(means, within / sizes, centre=0.0) == pytest.approx(4.0 + 25.0, rel=0.05)


def test_variances_of_few_numbers():
    single = [np.array([1.0]), np.array([3.0])]
    assert variance_within(single) == 0.0
    assert variance_within(single, expected=7.0) == 7.0  # nothing else is known of it
    assert variance_within([np.array([1.0, 3.0])], expected=8.0) == pytest.approx((2.0 + 8.0) / 2)
    assert variance_between(np.array([1.0, 3.0]), np.array([5.0, 5.0])) == 0.0  # noise explains the difference
