"""What estimators tell of the posterior beside its mean: samples, covariances, scores; and searches side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import r2_score

from gptd_rl import ARD, GPTD, Isotropic, OnlineGPTD, Trajectories
from gptd_rl.kernels import Constant, Matern52, paper_kernel
from tests.mdps import Drifting, Gridworld, Walk

X = np.random.default_rng(1).normal(size=(6, 2))
FIXED = paper_kernel(ARD([0.8, 0.3]), 20.0, 60.0)
QUICK: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)


def data() -> Trajectories:
    return Drifting(time_limit=25).sample(200, np.random.default_rng(0))


def held(**options: Any) -> GPTD:
    return GPTD(FIXED.fix(*FIXED.parameter_names), noise_variance=4.0, **(QUICK | options))


MODELS: dict[str, dict[str, Any]] = {
    "exact": dict(method="exact"),
    "sparse": dict(method="sparse", subset_size=12),
    "subset of regressors": dict(method="sparse", subset_size=12, sparse_variance="subset_of_regressors"),
    "with a mean": dict(method="exact", mean=5.0),
}
every_model = pytest.mark.parametrize("kind", MODELS)


@every_model
def test_samples_have_the_mean_and_covariance_of_the_posterior(kind):
    v = held(**MODELS[kind]).fit(data())
    n = 40_000
    values = v.sample(X, n, seed=0)
    mean, cov = v.predict(X, return_cov=True)
    assert values.shape == (n, len(X))
    std = np.sqrt(np.diag(cov))
    assert_allclose(values.mean(axis=0), mean, atol=5 * std.max() / np.sqrt(n))
    assert_allclose(np.cov(values.T), cov, atol=6 * std.max() ** 2 / np.sqrt(n))


@every_model
def test_predict_covariance_goes_with_the_standard_deviation(kind):
    v = held(**MODELS[kind]).fit(data())
    mean, cov = v.predict(X, return_cov=True)
    same, std = v.predict(X, return_std=True)
    assert_array_equal(mean, same)
    assert_allclose(np.diag(cov), std**2, rtol=1e-8)
    assert_array_equal(cov, cov.T)
    assert np.linalg.eigvalsh(cov).min() > -1e-9
    with pytest.raises(ValueError, match=r"^return_std and return_cov: ask for one of them\.$"):
        v.predict(X, return_std=True, return_cov=True)  # type: ignore[call-overload]


def test_samples_in_weight_space_agree_with_the_covariance():
    """At more states than features, samples of the subset of regressors span no more than the features do."""
    v = held(**MODELS["subset of regressors"]).fit(data())
    states = np.random.default_rng(2).normal(size=(40, 2))
    values = v.sample(states, 200, seed=0)
    rank = np.linalg.matrix_rank(values - v.predict(states), tol=1e-6)
    assert rank == len(v.posterior_.solution.weights) == 12 + 1
    _, cov = v.predict(states, return_cov=True)
    found = np.cov(v.sample(states, 20_000, seed=1).T)
    assert_allclose(found, cov, atol=6 * cov.max() / np.sqrt(20_000))


def test_samples_follow_their_seed():
    v = held().fit(data())
    assert_array_equal(v.sample(X, 3, seed=1), v.sample(X, 3, seed=1))
    assert not np.allclose(v.sample(X, 3, seed=1), v.sample(X, 3, seed=2))
    rng = np.random.default_rng(1)
    assert not np.allclose(v.sample(X, 1, seed=rng), v.sample(X, 1, seed=rng)), "a generator goes on"
    assert v.sample(X).shape == (1, len(X))
    assert v.sample(np.zeros((0, 2)), 4).shape == (4, 0)
    with pytest.raises(ValueError, match=r"^n must be a whole number of 1 or more; got 0\.$"):
        v.sample(X, 0)


def test_one_sample_at_repeated_states_is_one_function():
    v = held().fit(data())
    values = v.sample(np.repeat(X, 3, axis=0), seed=0).reshape(-1, 3)
    assert_allclose(values, values[:, [0, 0, 0]], atol=1e-5)


# -------------------------------------------------------------------------------------- score


def test_score_is_the_coefficient_of_determination():
    grid = Gridworld()
    v = GPTD(**QUICK).fit(grid.sample(150, np.random.default_rng(0)))
    truth = grid.value(grid.cells)
    assert_allclose(v.score(grid.cells, truth), r2_score(truth, v.predict(grid.cells)))
    assert v.score(grid.cells, truth) > 0.9
    assert v.score(grid.cells, np.zeros(len(truth))) == 0.0, "a constant has no variance to explain"
    assert v.score(grid.cells, v.predict(grid.cells)) == 1.0
    with pytest.raises(ValueError, match=r"^values must have shape \(\d+,\); got \(3,\)\.$"):
        v.score(grid.cells, [1.0, 2.0, 3.0])


# -------------------------------------------------------------------------------------- n_jobs


@pytest.mark.parametrize("n_jobs", [2, -1])
@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_searches_side_by_side_find_the_same(n_jobs, method):
    options: dict[str, Any] = dict(method=method, subset_size=12, objective="marginal_likelihood")
    alone, together = GPTD("ard", **options).fit(data()), GPTD("ard", n_jobs=n_jobs, **options).fit(data())
    assert_array_equal(together.theta_, alone.theta_)
    assert_array_equal(together.predict(X), alone.predict(X))


# -------------------------------------------------------------------------------------- online learning


def online() -> OnlineGPTD:
    return OnlineGPTD(FIXED, 4.0, tolerance=0.05).update(data())


def test_online_samples_have_the_mean_and_covariance_of_the_posterior():
    v, n = online(), 40_000
    values, (mean, cov) = v.sample(X, n, seed=0), v.predict(X, return_cov=True)
    std = np.sqrt(np.diag(cov))
    assert_allclose(values.mean(axis=0), mean, atol=5 * std.max() / np.sqrt(n))
    assert_allclose(np.cov(values.T), cov, atol=6 * std.max() ** 2 / np.sqrt(n))
    assert_array_equal(v.sample(X, 2, seed=3), v.sample(X, 2, seed=3))
    with pytest.raises(ValueError, match=r"^n must be a whole number of 1 or more; got 0\.$"):
        v.sample(X, 0)


def test_online_covariance_goes_with_the_standard_deviation():
    v = online()
    mean, cov = v.predict(X, return_cov=True)
    same, std = v.predict(X, return_std=True)
    assert_array_equal(mean, same)
    assert_allclose(np.diag(cov), std**2, rtol=1e-8)
    assert_allclose(cov, cov.T, rtol=1e-12)
    with pytest.raises(ValueError, match=r"^return_std and return_cov: ask for one of them\.$"):
        v.predict(X, return_std=True, return_cov=True)  # type: ignore[call-overload]


def test_online_intervals_are_never_narrower_than_the_posterior():
    v = online()
    for level, quantile in ((0.5, 0.6744897501960817), (0.95, 1.959963984540054)):
        lower, upper = v.confidence_interval(X, level)
        mean, std = v.predict(X, return_std=True)
        assert_allclose(0.5 * (lower + upper), mean)
        assert (upper - lower >= 2 * quantile * std * (1 - 1e-12)).all()
    with pytest.raises(ValueError, match=r"^level must lie between 0 and 1; got 1\.5\.$"):
        v.confidence_interval(X, 1.5)


@pytest.mark.parametrize("noise", ["stochastic", "deterministic"])
def test_online_intervals_are_the_posterior_where_td_errors_vanish(noise):
    """Rewards of 0: every TD error is 0, so there is no sampling noise, and the posterior's variance is the larger."""
    d = data()
    silent = Trajectories(d.states, np.zeros(len(d)), d.discounts, d.lengths, d.terminated)
    v = OnlineGPTD(FIXED, 4.0, noise=noise, tolerance=0.05).update(silent)
    lower, upper = v.confidence_interval(X, level=0.6826894921370859)
    assert_allclose(0.5 * (upper - lower), v.predict(X, return_std=True)[1], rtol=1e-7)


def test_online_intervals_cover_on_a_stochastic_walk():
    """95 % intervals of 2000 transitions: near nominal, where the posterior's standard deviation is too small."""
    walk = Walk()
    x, truth = walk.cells, walk.value(walk.cells)
    kernel = paper_kernel(Isotropic(0.05, 1), 20.0, 60.0)
    inside, naive = [], []
    for seed in range(6):
        v = OnlineGPTD(kernel, 10.0, tolerance=1e-2).update(walk.sample(2000, np.random.default_rng(seed)))
        lower, upper = v.confidence_interval(x)
        mean, std = v.predict(x, return_std=True)
        inside.append(np.mean((lower <= truth) & (truth <= upper)))
        naive.append(np.mean(np.abs(mean - truth) <= 1.96 * std))
    assert np.mean(inside) > 0.85
    assert np.mean(inside) > np.mean(naive)


@pytest.mark.parametrize("kernel", [Matern52(ARD([0.8, 0.3]), 20.0) + Constant(60.0), Matern52(ARD([0.8, 0.3]), 20.0)])
def test_online_learning_equals_the_batch_for_other_kernels(kernel):
    v = OnlineGPTD(kernel, 4.0, tolerance=1e-9).update(data())
    batch = GPTD(kernel.fix(*kernel.parameter_names), noise_variance=4.0, method="exact", **QUICK).fit(data())
    for ours, theirs in zip(v.predict(X, return_std=True), batch.predict(X, return_std=True), strict=True):
        assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
