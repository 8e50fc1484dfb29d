"""Regression of Q by action against dense algebra: the whole system, plain Gaussian-process regression, moments."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.by_action import ActionPosterior, ActionPrior, ActionRegression, StateFeatures
from gptd_rl.inference.model import Model
from gptd_rl.kernels import ARD, MultiScale

N_ACTIONS, NOISE_SHARE, NOISE_VARIANCE, PRIOR_MEAN = 3, 0.05, 0.3, 2.0

every_rho = pytest.mark.parametrize("rho", [0.0, 0.3, 0.95])


def make_kernel(n_dims: int) -> Any:
    return MultiScale(ARD(np.linspace(0.5, 2.0, n_dims)))


def regression_data(n: int = 30, seed: int = 0):
    """States, actions and targets; the last action is never tried."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.integers(N_ACTIONS - 1, size=n), rng.normal(size=n)


def condition(rho: float, m: int = 8, noise_variance: float | None = NOISE_VARIANCE) -> ActionPosterior:
    x, actions, y = regression_data()
    features = StateFeatures(make_kernel(2), x[:m])
    regression = ActionRegression.of(features(x), actions, ActionPrior(N_ACTIONS, NOISE_SHARE, rho))
    return ActionPosterior.condition(features, regression, y, PRIOR_MEAN, noise_variance)


def pairs_at(n: int, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([1.5 * rng.normal(size=(n, 2)), rng.integers(N_ACTIONS, size=n)])


def between(actions: np.ndarray, others: np.ndarray, rho: float) -> np.ndarray:
    return np.where(actions[:, None] == others, 1.0, rho)


class Dense:
    """The same posterior with one weight for each inducing state and action, all in one matrix."""

    def __init__(self, rho: float, m: int = 8) -> None:
        self.kernel, self.rho, self.m = make_kernel(2), rho, m
        x, actions, self.y = regression_data()
        self.Z = x[:m]
        self.L = np.linalg.cholesky(self.kernel(self.Z, self.Z))
        self.Phi = self.spread(x, actions)
        index = np.arange(N_ACTIONS)
        self.R = np.kron(between(index, index, rho), np.eye(m))
        self.v0 = NOISE_VARIANCE / NOISE_SHARE
        self.M = self.Phi.T @ self.Phi + NOISE_SHARE * np.linalg.inv(self.R)
        self.w = np.linalg.solve(self.M, self.Phi.T @ (self.y - PRIOR_MEAN))

    def spread(self, x: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Features of pairs, of shape (n, |A|·m), the weights of one action behind those of the other."""
        phi = np.linalg.solve(self.L, self.kernel(self.Z, x)).T
        Phi = np.zeros((len(x), N_ACTIONS * self.m))
        for i, a in enumerate(actions):
            Phi[i, a * self.m : (a + 1) * self.m] = phi[i]
        return Phi

    def mean(self, pairs: np.ndarray) -> np.ndarray:
        return PRIOR_MEAN + self.spread(pairs[:, :-1], pairs[:, -1].astype(int)) @ self.w

    def covariance(self, pairs: np.ndarray) -> np.ndarray:
        x, a = pairs[:, :-1], pairs[:, -1].astype(int)
        Psi = self.spread(x, a)
        prior = self.v0 * self.kernel(x, x) * between(a, a, self.rho)
        explained = self.v0 * Psi @ self.R @ Psi.T
        return NOISE_VARIANCE * Psi @ np.linalg.solve(self.M, Psi.T) + prior - explained

    def sandwich_variance(self, pairs: np.ndarray) -> np.ndarray:
        x, a = pairs[:, :-1], pairs[:, -1].astype(int)
        Psi = self.spread(x, a)
        V = np.linalg.solve(self.M, Psi.T)
        errors = self.y - PRIOR_MEAN - self.Phi @ self.w
        noise = V.T @ (self.Phi.T * errors**2) @ self.Phi @ V
        prior = NOISE_VARIANCE * NOISE_SHARE * V.T @ np.linalg.solve(self.R, V)
        residual = self.v0 * (self.kernel(x, x) - Psi @ self.R @ Psi.T)
        return np.diagonal(noise + prior + residual)


@every_rho
@pytest.mark.parametrize("n_actions", [1, 2, 4])
def test_solve_is_that_of_the_whole_system(rho, n_actions):
    rng = np.random.default_rng(0)
    features, actions, targets = rng.normal(size=(30, 5)), rng.integers(n_actions, size=30), rng.normal(size=30)
    regression = ActionRegression.of(features, actions, ActionPrior(n_actions, 0.03, rho))
    w = regression.solve(targets)
    Phi = np.zeros((30, n_actions * 5))
    for i, a in enumerate(actions):
        Phi[i, a * 5 : (a + 1) * 5] = features[i]
    index = np.arange(n_actions)
    P = Phi.T @ Phi + 0.03 * np.linalg.inv(np.kron(between(index, index, rho), np.eye(5)))
    expected = np.linalg.solve(P, Phi.T @ targets)
    assert_allclose(w, expected.reshape(n_actions, 5).T, rtol=1e-8, atol=1e-10)
    assert_allclose(regression.fitted(w), Phi @ expected, rtol=1e-8, atol=1e-10)


@every_rho
def test_solve_gives_an_untried_action_the_correlated_share_of_the_others(rho):
    rng = np.random.default_rng(1)
    features, targets = rng.normal(size=(20, 4)), rng.normal(size=20)
    w = ActionRegression.of(features, np.zeros(20, dtype=np.int64), ActionPrior(2, 0.1, rho)).solve(targets)
    assert_allclose(w[:, 1], rho * w[:, 0], rtol=1e-8, atol=1e-12)
    assert_allclose(w[:, 0], np.linalg.solve(features.T @ features + 0.1 * np.eye(4), features.T @ targets), rtol=1e-8)


def test_features_reproduce_the_kernel_between_inducing_points():
    x, *_ = regression_data()
    features = StateFeatures(make_kernel(2), x[:7])
    phi = features(x)
    assert phi.shape == (30, 7)
    assert_allclose(phi[:7] @ phi[:7].T, features.kernel(x[:7], x[:7]), atol=1e-10)
    assert_allclose(features.residual_variance(x[:7], phi[:7]), 0.0, atol=1e-12)
    assert (features.residual_variance(x, phi)[7:] > 0).all()


@every_rho
def test_mean_and_moments_against_dense_algebra(rho):
    posterior, dense, pairs = condition(rho), Dense(rho), pairs_at(40)
    assert_allclose(posterior.mean(pairs), dense.mean(pairs), rtol=1e-8, atol=1e-10)
    expected = dense.covariance(pairs)
    assert_allclose(posterior.covariance(pairs), expected, rtol=1e-7, atol=1e-9)
    assert_allclose(posterior.variance(pairs), np.diagonal(expected), rtol=1e-7)
    sandwich = dense.sandwich_variance(pairs)
    assert_allclose(posterior._sandwich_variance(pairs), sandwich, rtol=1e-7)
    assert_allclose(posterior.interval_variance(pairs), np.maximum(sandwich, np.diagonal(expected)), rtol=1e-7)


@every_rho
def test_posterior_with_all_states_inducing_is_plain_regression(rho):
    x, actions, y = regression_data()
    posterior, pairs = condition(rho, m=len(x)), pairs_at(25)
    v0 = NOISE_VARIANCE / NOISE_SHARE
    assert posterior.signal_variance == pytest.approx(v0)
    a = pairs[:, -1].astype(int)
    kernel = make_kernel(2)
    S = v0 * kernel(x, x) * between(actions, actions, rho) + NOISE_VARIANCE * np.eye(len(x))
    k = v0 * kernel(pairs[:, :2], x) * between(a, actions, rho)
    prior = v0 * kernel(pairs[:, :2], pairs[:, :2]) * between(a, a, rho)
    assert_allclose(posterior.mean(pairs), PRIOR_MEAN + k @ np.linalg.solve(S, y - PRIOR_MEAN), rtol=1e-6, atol=1e-8)
    assert_allclose(posterior.covariance(pairs), prior - k @ np.linalg.solve(S, k.T), rtol=1e-5, atol=1e-6)


@every_rho
def test_evidence_is_that_of_the_weights(rho):
    posterior, dense = condition(rho), Dense(rho)
    S = dense.v0 * dense.Phi @ dense.R @ dense.Phi.T + NOISE_VARIANCE * np.eye(30)
    y = dense.y - PRIOR_MEAN
    expected = -0.5 * (y @ np.linalg.solve(S, y) + np.linalg.slogdet(S)[1] + 30 * np.log(2 * np.pi))
    evidence = posterior.evidence(Model(make_kernel(2), NOISE_VARIANCE))
    assert evidence.log_likelihood == pytest.approx(expected, rel=1e-9)
    assert evidence.data_fit == pytest.approx(0.5 * y @ np.linalg.solve(S, y), rel=1e-8)


@every_rho
def test_posterior_returns_to_the_prior_far_from_the_data(rho):
    posterior = condition(rho)
    far = np.array([[1e3, 1e3, 0.0], [1e3, 1e3, 2.0]])
    assert_allclose(posterior.mean(far), PRIOR_MEAN, rtol=1e-12)
    v0 = posterior.signal_variance
    assert_allclose(posterior.covariance(far), v0 * between(far[:, -1], far[:, -1], rho), rtol=1e-9)


def test_noise_variance_is_the_mean_square_of_the_residuals():
    posterior = condition(0.3, noise_variance=None)
    x, actions, y = regression_data()
    errors = y - posterior.mean(np.column_stack([x, actions]))
    assert posterior.noise_variance == pytest.approx(np.mean(errors**2), rel=1e-9)


@every_rho
def test_samples_have_the_mean_and_the_covariance_of_the_posterior(rho):
    posterior, pairs, n = condition(rho), pairs_at(5), 6000
    samples = posterior.sample(pairs, n, np.random.default_rng(0))
    assert samples.shape == (n, 5)
    L = np.linalg.cholesky(posterior.covariance(pairs))
    whitened = np.linalg.solve(L, (samples - posterior.mean(pairs)).T)  # N(0, I)
    assert np.abs(whitened.mean(axis=1)).max() < 4.5 / np.sqrt(n)
    assert np.abs(np.cov(whitened) - np.eye(5)).max() < 4.5 * np.sqrt(2.0 / n)


@every_rho
def test_sample_function_has_the_posterior_of_the_weights(rho):
    posterior, dense, n = condition(rho, m=3), Dense(rho, m=3), 6000
    rng = np.random.default_rng(0)
    L = np.tril(posterior.features.L)
    drawn = np.array([(L.T @ posterior.sample_function(rng).weights).T.ravel() for _ in range(n)])
    whitened = (drawn - dense.w) @ np.linalg.cholesky(dense.M) / np.sqrt(NOISE_VARIANCE)  # N(0, I)
    assert np.abs(whitened.mean(axis=0)).max() < 4.5 / np.sqrt(n)
    assert np.abs(np.cov(whitened.T) - np.eye(3 * N_ACTIONS)).max() < 4.5 * np.sqrt(2.0 / n)


def test_sample_function_is_a_function():
    posterior = condition(0.3)
    one, same, other = (posterior.sample_function(np.random.default_rng(seed)) for seed in (0, 0, 1))
    x = pairs_at(20)[:, :2]
    assert one(x).shape == (20, N_ACTIONS)
    assert_array_equal(one(x), same(x))
    assert not np.allclose(one(x), other(x))
    assert_array_equal(one.greedy(x), one(x).argmax(axis=1))


@every_rho
def test_condition_on_further_targets_is_conditioning_on_all(rho):
    x, actions, y = regression_data()
    features, prior = StateFeatures(make_kernel(2), x[:8]), ActionPrior(N_ACTIONS, NOISE_SHARE, rho)
    first = ActionPosterior.condition(
        features, ActionRegression.of(features(x[:20]), actions[:20], prior), y[:20], PRIOR_MEAN, NOISE_VARIANCE
    )
    further = Trajectories.from_values(np.column_stack([x, actions])[20:], y[20:])
    both, whole, pairs = first.condition_on(further), condition(rho), pairs_at(20)
    assert_allclose(both.mean(pairs), whole.mean(pairs), rtol=1e-9)
    assert_allclose(both.covariance(pairs), whole.covariance(pairs), rtol=1e-8, atol=1e-10)
    assert_allclose(both.interval_variance(pairs), whole.interval_variance(pairs), rtol=1e-8)


def test_q_values_are_the_means_of_all_actions():
    posterior, x = condition(0.3), pairs_at(20)[:, :2]
    q = posterior.q_values(x)
    for a in range(N_ACTIONS):
        assert_array_equal(q[:, a], posterior.mean(np.column_stack([x, np.full(20, a)])))


def test_posterior_of_no_pairs_is_empty():
    posterior, none = condition(0.3), np.zeros((0, 3))
    for moment in (posterior.mean, posterior.variance, posterior.interval_variance):
        assert moment(none).shape == (0,)
    assert posterior.covariance(none).shape == (0, 0)
    assert posterior.q_values(none[:, :2]).shape == (0, N_ACTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0.0, 0.5), "noise_share must be positive; got 0"),
        ((-1.0, 0.5), "noise_share must be positive; got -1"),
        ((np.nan, 0.5), "noise_share must be positive; got nan"),
        ((0.1, 1.0), r"action_correlation must lie in \[0, 1\); got 1"),
        ((0.1, -0.1), r"action_correlation must lie in \[0, 1\); got -0.1"),
        ((0.1, np.nan), r"action_correlation must lie in \[0, 1\); got nan"),
    ],
)
def test_action_prior_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        ActionPrior(2, *options)


# -------------------------------------------------------------------------------------- a target for every action


def completed_data(n: int = 25, m: int = 6):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(n, 2)), rng.normal(size=(n, N_ACTIONS))
    return x, y, StateFeatures(make_kernel(2), x[:m])


def test_complete_is_the_regression_on_rows_written_out_action_by_action():
    x, y, features = completed_data()
    prior, phi = ActionPrior(N_ACTIONS, NOISE_SHARE), features(x)
    written = ActionRegression.of(np.tile(phi, (N_ACTIONS, 1)), np.repeat(np.arange(N_ACTIONS), len(x)), prior)
    targets, pairs = y.T.reshape(-1), pairs_at(30)
    one, other = (
        ActionPosterior.condition(features, regression, targets, PRIOR_MEAN)
        for regression in (ActionRegression.complete(phi, prior), written)
    )
    for name in ("mean", "variance", "interval_variance", "covariance"):
        assert_allclose(getattr(one, name)(pairs), getattr(other, name)(pairs), rtol=1e-9, atol=1e-12, err_msg=name)
    assert_allclose(one.mean_function.weights, other.mean_function.weights, rtol=1e-8, atol=1e-10)
    assert one.noise_variance == pytest.approx(other.noise_variance, rel=1e-10)
    model = Model(make_kernel(2), one.noise_variance)
    assert one.evidence(model).log_likelihood == pytest.approx(other.evidence(model).log_likelihood, rel=1e-9)
    for a, b in zip(one.regression.all_rows(), written.all_rows(), strict=True):
        assert_allclose(a, b)


def test_samples_of_a_complete_regression_have_the_moments_of_the_posterior():
    x, y, features = completed_data()
    regression = ActionRegression.complete(features(x), ActionPrior(N_ACTIONS, NOISE_SHARE))
    posterior = ActionPosterior.condition(features, regression, y.T.reshape(-1), PRIOR_MEAN)
    asked, rng, n = x[:5], np.random.default_rng(0), 4000
    samples = np.stack([posterior.sample_function(rng)(asked) for _ in range(n)])  # [n, 5, A]; in the span of features
    for a in range(N_ACTIONS):
        pairs = np.column_stack([asked, np.full(5, a)])
        std = np.sqrt(posterior.variance(pairs))
        assert_allclose(samples[:, :, a].mean(axis=0), posterior.mean(pairs), atol=5 * std.max() / np.sqrt(n))
        assert_allclose(samples[:, :, a].std(axis=0), std, rtol=0.08)  # ±5 standard errors of a standard deviation


def test_differences_of_actions_in_a_complete_regression_are_smoothed_differences_of_targets():
    x, y, features = completed_data()
    phi = features(x)
    S = phi @ np.linalg.inv(phi.T @ phi + NOISE_SHARE * np.eye(phi.shape[1])) @ phi.T
    regression = ActionRegression.complete(phi, ActionPrior(N_ACTIONS, NOISE_SHARE))
    q = ActionPosterior.condition(features, regression, y.T.reshape(-1), PRIOR_MEAN).q_values(x)
    for a in range(N_ACTIONS):
        for b in range(a):
            assert_allclose(q[:, a] - q[:, b], S @ (y[:, a] - y[:, b]), rtol=1e-8, atol=1e-10)
