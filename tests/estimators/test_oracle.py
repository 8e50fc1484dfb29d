"""scikit-learn as oracle: on terminated episodes, GPTD with σ²HHᵀ is Gaussian-process regression on the returns."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.kernels import paper_kernel
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic
from gptd_rl.temporal.targets import build_targets
from tests.helpers import naive_returns, sample

V0, BIAS, NOISE = 1.3, 0.4, 0.2
RELEVANCES = np.array([0.3, 0.6, 1.1])
KINDS = [(12, True), (2, True), (20, True), (7, True)]
NEW_STATES = np.random.default_rng(1).normal(size=(10, 3))


def regressor(length_scale, noise: float = 0.0) -> GaussianProcessRegressor:
    """scikit-learn's version of the kernel; the noise as part of it (to have its gradient) or beside it."""
    kernel = ConstantKernel(V0) * RBF(length_scale) + ConstantKernel(BIAS)
    if noise:
        return GaussianProcessRegressor(kernel + WhiteKernel(noise), alpha=0.0, optimizer=None)
    return GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None)


CASES = {
    "isotropic": (Isotropic(0.7, 3), 1 / np.sqrt(0.7)),
    "ard": (ARD(RELEVANCES), 1 / np.sqrt(RELEVANCES)),
}


@pytest.fixture(params=[False, True], ids=["distinct", "repeated"])
def data(request):
    return sample(KINDS, seed=2, repeated=request.param, terminal_rewards=True)


@pytest.mark.parametrize(("metric", "length_scale"), CASES.values(), ids=CASES.keys())
def test_log_marginal_likelihood_and_gradient(data, metric, length_scale):
    model = Model(paper_kernel(metric, V0, BIAS), NOISE)
    ours, gradient = exact.evidence_and_gradient(model, build_targets(data, "stochastic"))
    theirs = regressor(length_scale, NOISE).fit(data.states, naive_returns(data))
    value, slope = theirs.log_marginal_likelihood(theirs.kernel_.theta, eval_gradient=True)
    assert_allclose(ours.log_likelihood, value, rtol=1e-10)
    # Their order: log v₀, log ℓ, log b, log σ². With a = ℓ⁻², ∂/∂log a = −½ ∂/∂log ℓ.
    by_v0, by_length, by_bias, by_noise = slope[0], slope[1:-2], slope[-2], slope[-1]
    assert_allclose(-gradient, [by_v0, by_bias, by_noise, *(-0.5 * by_length)], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("metric", "length_scale"), CASES.values(), ids=CASES.keys())
def test_mean_and_std(data, metric, length_scale):
    model = Model(paper_kernel(metric, V0, BIAS), NOISE)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, "stochastic"))
    theirs = regressor(length_scale).fit(data.states, naive_returns(data))
    for states in (NEW_STATES, data.states):
        mean, std = theirs.predict(states, return_std=True)
        assert_allclose(posterior.mean(states), mean, rtol=1e-9, atol=1e-10)
        assert_allclose(np.sqrt(posterior.variance(states)), std, rtol=1e-8)


def test_factor_analysis_is_regression_on_whitened_states(data):
    """scikit-learn knows no linear combinations of inputs; in coordinates where Ω is the identity it needs none."""
    metric = FactorAnalysis(RELEVANCES, [[0.8, -0.1], [-0.5, 0.4], [0.2, 0.7]])
    root = np.linalg.cholesky(metric.matrix)
    model = Model(paper_kernel(metric, V0, BIAS), NOISE)
    targets = build_targets(data, "stochastic")
    theirs = regressor(1.0).fit(data.states @ root, naive_returns(data))
    assert_allclose(exact.evidence(model, targets).log_likelihood, theirs.log_marginal_likelihood(), rtol=1e-10)
    mean, std = theirs.predict(NEW_STATES @ root, return_std=True)
    posterior = exact.ExactPosterior.condition(model, targets)
    assert_allclose(posterior.mean(NEW_STATES), mean, rtol=1e-9, atol=1e-10)
    assert_allclose(np.sqrt(posterior.variance(NEW_STATES)), std, rtol=1e-8)


def test_a_truncation_is_not_a_termination():
    """The oracle knows only terminated episodes: told that a run was cut off, we must answer otherwise."""
    cut_off = sample([(12, False)], seed=2)
    model = Model(paper_kernel(ARD(RELEVANCES), V0, BIAS), NOISE)
    posterior = exact.ExactPosterior.condition(model, build_targets(cut_off, "stochastic"))
    theirs = regressor(1 / np.sqrt(RELEVANCES)).fit(cut_off.states, naive_returns(cut_off))
    _, std = theirs.predict(cut_off.states, return_std=True)
    assert (posterior.variance(cut_off.states) > std**2).all()  # an unknown tail leaves more open
