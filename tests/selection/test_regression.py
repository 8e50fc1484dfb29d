"""Kernels for regression on states and actions, selected by the evidence."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.kernels import ARD, SquaredExponential
from gptd_rl.selection.regression import KernelSelection, RegressionTargets, rescale, select_regression_kernel

RHOS = (0.0, 0.5, 0.9, 0.99)


def make_targets(shared: bool, n: int = 90, n_dims: int = 3, seed: int = 0) -> RegressionTargets:
    """Functions of the second input alone: the same for both actions, or unrelated ones."""
    rng = np.random.default_rng(seed)
    x, a = rng.normal(size=(n, n_dims)), rng.integers(2, size=n)
    f = np.sin(2.0 * x[:, 1])
    y = f if shared else np.where(a == 0, f, np.cos(3.0 * x[:, 1] + 1.0))
    return RegressionTargets(x, a, y + 0.05 * rng.normal(size=n), 2)


def log_evidence(t: RegressionTargets, relevances, v0: float, noise: float, rho: float) -> float:
    n = len(t.values)
    S = noise * np.eye(n)
    for i in range(n):
        for j in range(n):
            d2 = float(relevances @ (t.states[i] - t.states[j]) ** 2)
            S[i, j] += v0 * np.exp(-0.5 * d2) * (1.0 if t.actions[i] == t.actions[j] else rho)
    return -0.5 * (t.values @ np.linalg.solve(S, t.values) + np.linalg.slogdet(S)[1] + n * np.log(2 * np.pi))


def select(t: RegressionTargets, starts=((1.0, 1e-2), (0.1, 1e-1)), correlations=RHOS, max_steps=40) -> KernelSelection:
    kernels = [(SquaredExponential(ARD(np.full(t.states.shape[1], r))), noise) for r, noise in starts]
    return select_regression_kernel(
        t, kernels, correlations=correlations, noise_shares=(1e-6, 1.0), max_steps=max_steps
    )


def test_select_regression_kernel_finds_the_relevant_input_and_the_noise():
    found = select(make_targets(True))
    relevances = found.kernel.relevances
    assert relevances.argmax() == 1
    assert np.delete(relevances, 1).max() < 0.05 * relevances[1]
    assert np.sqrt(found.noise_variance) == pytest.approx(0.05, rel=0.25)
    assert found.noise_share == found.noise_variance / found.signal_variance
    assert_allclose(found.kernel.diagonal(np.zeros((2, 3))), 1.0)


def test_select_regression_kernel_ties_actions_that_share_a_function_only():
    assert select(make_targets(True)).correlation == 0.99
    assert select(make_targets(False)).correlation <= 0.5


def test_the_evidence_is_that_of_dense_algebra_and_beats_every_start():
    t = make_targets(True, n=40)
    found = select(t)
    kernel = found.kernel
    expected = log_evidence(t, kernel.relevances, found.signal_variance, found.noise_variance, found.correlation)
    assert found.evidence.log_likelihood == pytest.approx(expected, rel=1e-6)
    size = float(np.mean(t.values**2))
    for relevance, noise in ((1.0, 1e-2), (0.1, 1e-1)):
        for rho in RHOS:
            assert expected > log_evidence(t, np.full(3, relevance), size, noise * size, rho)
    for factor in (0.7, 1.4):
        near = log_evidence(t, kernel.relevances, factor * found.signal_variance, found.noise_variance, 0.99)
        assert near < expected + 0.1


def test_one_action_has_no_correlation_to_choose():
    t = make_targets(True)
    one = RegressionTargets(t.states, np.zeros(len(t.values), dtype=np.int64), t.values, 1)
    assert select(one, correlations=(0.3, 0.9), max_steps=3).correlation == 0.3


def test_a_selection_survives_json():
    found = select(make_targets(True, n=30), max_steps=3)
    again = KernelSelection.from_dict(json.loads(json.dumps(found.to_dict(), default=lambda array: array.tolist())))
    assert_array_equal(again.kernel.theta, found.kernel.theta)
    assert again.evidence == found.evidence
    assert (again.correlation, again.noise_share) == (found.correlation, found.noise_share)


def test_rescale_multiplies_variance_and_metric():
    x = np.random.default_rng(0).normal(size=(4, 2))
    kernel = SquaredExponential(ARD([0.5, 2.0]))
    scaled = rescale(kernel, amplitude=3.0, relevance=4.0)
    assert_allclose(scaled(x, x), 3.0 * kernel(2.0 * x, 2.0 * x))


def test_sample_draws_rows_without_replacement():
    t = make_targets(True)
    some = t.sample(20, np.random.default_rng(0))
    assert len({tuple(row) for row in some.states}) == 20
    assert t.sample(200, np.random.default_rng(0)) is t
