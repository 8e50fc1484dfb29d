"""The posterior, the evidence and the martingale variance against the paper's formulas with dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference import posterior as posterior_module
from gptd_rl.inference.model import Model
from gptd_rl.kernels import base, paper_kernel
from gptd_rl.kernels.metrics import ARD, Isotropic
from gptd_rl.temporal.targets import build_targets
from tests.helpers import (
    METRICS,
    MIXES,
    NOISES,
    Reference,
    central_differences,
    dense_H,
    every_mix_or_metric,
    first,
    make_model,
    naive_kernel,
    naive_null_vectors,
    naive_returns,
    sample,
    vary_one,
)

CLOSE: dict[str, Any] = dict(rtol=1e-9, atol=1e-10)
NEW_STATES = np.random.default_rng(9).normal(size=(6, 3))

every_mix = pytest.mark.parametrize("mix", MIXES)
every_noise = pytest.mark.parametrize("noise", NOISES)
every_combination = every_mix_or_metric(MIXES, METRICS)
# each visit by itself; repeated states, each visit by itself; repeated states, merged
every_form = pytest.mark.parametrize(
    ("repeated", "merge"), [(False, True), (True, False), (True, True)], ids=["distinct", "unmerged", "merged"]
)


# Evidence


@every_noise
@every_combination
@every_form
def test_evidence(mix, metric, noise, repeated, merge):
    data = sample(MIXES[mix], seed=4, repeated=repeated, terminal_rewards=True)
    model = make_model(metric)
    reference = Reference.of(model, data, noise)
    found = exact.evidence(model, build_targets(data, noise, merge=merge))
    assert found.n_rows == len(reference.rewards)  # the number of rewards, not of states
    assert_allclose(found.complexity, reference.complexity, **CLOSE)
    assert_allclose(found.data_fit, reference.data_fit, **CLOSE)
    assert_allclose(found.log_likelihood, reference.log_likelihood, **CLOSE)


@pytest.mark.parametrize(("mix", "rubbish"), vary_one(first("mixed", MIXES), [np.nan, 1e308]))
@every_noise
@every_form
def test_memory_that_is_used_again(mix, rubbish, noise, repeated, merge, monkeypatch):
    """What was in the buffer, above the diagonal too, neither counts nor makes NumPy complain."""
    monkeypatch.setattr(base, "TILE", 2)
    data, model = sample(MIXES[mix], seed=4, repeated=repeated), make_model("ard")
    targets = build_targets(data, noise, merge=merge)
    scratch = np.full((len(targets.states), len(targets.states)), rubbish)
    value, gradient = exact.evidence_and_gradient(model, targets)
    again, gradient_again = exact.evidence_and_gradient(model, targets, scratch)
    assert_allclose(again.log_likelihood, value.log_likelihood, **CLOSE)
    assert_allclose(gradient_again, gradient, **CLOSE)
    scratch[:] = rubbish
    assert_allclose(exact.evidence(model, targets, scratch).log_likelihood, value.log_likelihood, **CLOSE)


@every_noise
def test_evidence_is_a_density_of_the_rewards(noise):
    data = sample(MIXES["mixed"], seed=5)
    model = make_model("ard")
    reference = Reference.of(model, data, noise)
    density = multivariate_normal(np.zeros(len(reference.Q)), reference.Q).logpdf(reference.rewards)
    assert_allclose(exact.evidence(model, build_targets(data, noise)).log_likelihood, density, rtol=1e-10)


@every_noise
@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_extreme_discounts(noise, gamma):
    data = sample(MIXES["mixed"], seed=5, gamma=gamma)
    model = make_model("ard")
    reference, targets = Reference.of(model, data, noise), build_targets(data, noise)
    posterior = exact.ExactPosterior.condition(model, targets)
    assert_allclose(exact.evidence(model, targets).log_likelihood, reference.log_likelihood, **CLOSE)
    assert_allclose(posterior.mean(NEW_STATES), reference.mean(NEW_STATES), **CLOSE)
    assert_allclose(posterior.variance(NEW_STATES), reference.variance(NEW_STATES), **CLOSE)


@every_noise
@every_form
def test_a_discount_of_zero_inside_a_segment(noise, repeated, merge):
    data = sample([(6, False), (5, True)], seed=6, repeated=repeated)
    discounts = data.discounts.copy()
    discounts[[2, 8]] = 0.0
    data = Trajectories(data.states, data.rewards, discounts, data.lengths, data.terminated)
    model = make_model("ard")
    found = exact.evidence(model, build_targets(data, noise, merge=merge))
    assert_allclose(found.log_likelihood, Reference.of(model, data, noise).log_likelihood, **CLOSE)


@pytest.mark.parametrize("noise_variance", [1e-8, 1e-4, 1e4])
@every_noise
@pytest.mark.parametrize("mix", ["terminated", "mixed"])
def test_evidence_with_little_and_much_noise(noise_variance, noise, mix):
    data = sample(MIXES[mix], seed=7)
    model = make_model("ard", noise_variance=noise_variance)
    found = exact.evidence(model, build_targets(data, noise))
    assert_allclose(found.log_likelihood, Reference.of(model, data, noise).log_likelihood, rtol=1e-7)


# The identities of MATHS.md, each side by itself


@every_mix
def test_temporal_differences_are_regression_on_returns(mix):
    data, model = sample(MIXES[mix], seed=8), make_model("factor 1")
    H, Z, y = dense_H(data), naive_null_vectors(data), naive_returns(data)
    S = naive_kernel(model.kernel, data.states, data.states) + 0.2 * np.eye(len(data))
    inverse = np.linalg.inv(S)
    P = H.T @ np.linalg.solve(H @ S @ H.T, H)
    inner = Z.T @ inverse @ Z
    assert_allclose(P, inverse - inverse @ Z @ np.linalg.solve(inner, Z.T @ inverse), atol=1e-11)
    found = exact.evidence(model, build_targets(data, "stochastic"))
    log_det = np.linalg.slogdet(S)[1] + np.linalg.slogdet(inner)[1]
    assert_allclose(found.complexity, 0.5 * log_det, **CLOSE)
    assert_allclose(found.data_fit, 0.5 * y @ P @ y, **CLOSE)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, "stochastic"))
    k = naive_kernel(model.kernel, data.states, NEW_STATES)
    assert_allclose(posterior.weights, P @ y, **CLOSE)  # α
    assert_allclose(posterior.mean(NEW_STATES), k.T @ P @ y, **CLOSE)
    assert_allclose(posterior.variance(NEW_STATES), 1.7 - np.einsum("im,ij,jm->m", k, P, k), **CLOSE)
    # the bootstrap at a truncation does not matter: any tail value gives the same
    tail = Z @ np.arange(1.0, Z.shape[1] + 1)
    assert_allclose((y + tail) @ P @ (y + tail), y @ P @ y, **CLOSE)


@every_mix
def test_gradient_of_the_evidence_is_half_of_P_less_an_outer_product(mix):
    data, model = sample(MIXES[mix], seed=8), make_model("factor 2")
    reference = Reference.of(model, data, "stochastic")
    P = reference.H.T @ np.linalg.solve(reference.Q, reference.H)
    alpha = P @ naive_returns(data)
    A = 0.5 * (P - np.outer(alpha, alpha))
    _, gradient = exact.evidence_and_gradient(model, build_targets(data, "stochastic"))
    by_kernel = model.kernel.contract(A, data.states, data.states)
    assert_allclose(gradient, np.insert(by_kernel, 2, 0.2 * np.trace(A)), **CLOSE)


@every_mix
def test_gradient_with_deterministic_noise(mix):
    data, model = sample(MIXES[mix], seed=8), make_model("factor 2")
    reference = Reference.of(model, data, "deterministic")
    inverse = np.linalg.inv(reference.Q)
    w = inverse @ reference.rewards
    by_Q = 0.5 * (inverse - np.outer(w, w))
    _, gradient = exact.evidence_and_gradient(model, build_targets(data, "deterministic"))
    by_kernel = model.kernel.contract(reference.H.T @ by_Q @ reference.H, data.states, data.states)
    assert_allclose(gradient, np.insert(by_kernel, 2, 0.2 * np.trace(by_Q)), **CLOSE)


@every_mix
def test_statistics_of_a_subset_of_regressors(mix):
    data, model = sample(MIXES[mix], seed=8), make_model("ard")
    H, Z, y = dense_H(data), naive_null_vectors(data), naive_returns(data)
    Phi = model.kernel(data.states, NEW_STATES)
    W = np.linalg.inv(H @ H.T)
    G = H @ Phi
    projected = [np.outer(Phi.T @ z, Phi.T @ z) / (z @ z) for z in Z.T]
    assert_allclose(G.T @ W @ G, Phi.T @ Phi - sum(projected, np.zeros((6, 6))), **CLOSE)
    Pi = np.eye(len(data)) - sum((np.outer(z, z) / (z @ z) for z in Z.T), np.zeros((len(data),) * 2))
    rewards = data.rewards[data.has_row]
    assert_allclose(G.T @ W @ rewards, Phi.T @ Pi @ y, **CLOSE)


# The posterior


@every_noise
@every_combination
@every_form
def test_posterior(mix, metric, noise, repeated, merge):
    data = sample(MIXES[mix], seed=10, repeated=repeated, terminal_rewards=True)
    model = make_model(metric)
    reference = Reference.of(model, data, noise)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, noise, merge=merge))
    for states in (NEW_STATES, data.states):
        assert_allclose(posterior.mean(states), reference.mean(states), **CLOSE)
        assert_allclose(posterior.variance(states), reference.variance(states), **CLOSE)
        assert_allclose(posterior.interval_variance(states), reference.interval_variance(states), **CLOSE)


@every_mix
@every_noise
@every_form
def test_squared_temporal_difference_errors(mix, noise, repeated, merge):
    data = sample(MIXES[mix], seed=10, repeated=repeated, terminal_rewards=True)
    model = make_model("ard")
    reference = Reference.of(model, data, noise)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, noise, merge=merge))
    errors = reference.rewards - reference.H @ reference.mean(data.states)
    assert_allclose(posterior.squared_errors[data.has_row], errors**2, **CLOSE)
    assert_array_equal(posterior.squared_errors[~data.has_row], 0.0)


@pytest.mark.parametrize("mix", ["terminated", "mixed"])
def test_interval_variance_by_the_recursion_of_the_page(mix):
    """a = Pk*, u_t = a_t + γ_{t−1}u_{t−1} along each segment, as MATHS.md writes it."""
    data, model = sample(MIXES[mix], seed=11), make_model("ard")
    reference = Reference.of(model, data, "stochastic")
    P = reference.H.T @ np.linalg.solve(reference.Q, reference.H)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, "stochastic"))
    delta = data.rewards + data.discounts * np.append(reference.mean(data.states)[1:], 0.0)
    delta = np.where(data.has_row, delta - reference.mean(data.states), 0.0)
    for x, found in zip(NEW_STATES, posterior.interval_variance(NEW_STATES), strict=True):
        k = naive_kernel(model.kernel, data.states, x[None])[:, 0]
        a = P @ k
        u, before = np.zeros(len(data)), 0.0
        for t in range(len(data)):
            u[t] = before = a[t] + (0.0 if t in data.starts else data.discounts[t - 1] * before)
        martingale = 1.7 - 2 * a @ k + a @ reference.K @ a + delta**2 @ u**2
        assert_allclose(found, max(martingale, 1.7 - k @ P @ k), **CLOSE)


def test_predictions_in_pieces(monkeypatch):
    data, model = sample(MIXES["mixed"], seed=10), make_model("ard")
    posterior = exact.ExactPosterior.condition(model, build_targets(data, "stochastic"))
    states = np.random.default_rng(0).normal(size=(11, 3))
    whole = [f(states) for f in (posterior.mean, posterior.variance, posterior.interval_variance)]
    monkeypatch.setattr(posterior_module, "CHUNK", 4)
    in_pieces = [f(states) for f in (posterior.mean, posterior.variance, posterior.interval_variance)]
    for a, b in zip(whole, in_pieces, strict=True):
        assert_allclose(a, b, rtol=1e-12)
    assert posterior.mean(np.zeros((0, 3))).shape == (0,)
    assert posterior.variance(np.zeros((0, 3))).shape == (0,)


@every_noise
@pytest.mark.parametrize("noise_variance", [1e-12, 1e-6, 1.0])
def test_variance_is_never_negative(noise, noise_variance):
    """Hundreds of visits in one spot and hardly any noise: what is left is rounding, and must not go below zero."""
    rng = np.random.default_rng(0)
    episodes = [
        dict(observations=rng.normal(scale=1e-3, size=(20, 2)), rewards=np.zeros(19), terminated=True)
        for _ in range(10)
    ]
    data = Trajectories.from_episodes(episodes, gamma=0.9)
    model = Model(paper_kernel(Isotropic(1e-3, 2), 100.0, 10.0), noise_variance)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, noise))
    assert (posterior.variance(data.states) > 0).all()
    assert (posterior.interval_variance(data.states) >= posterior.variance(data.states)).all()


@every_noise
def test_far_away_the_posterior_is_the_prior(noise):
    data, model = sample(MIXES["mixed"]), make_model("ard", bias=0.0)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, noise))
    far = np.full((1, 3), 1e3)
    assert_allclose(posterior.mean(far), 0.0, atol=1e-12)
    assert_allclose(posterior.variance(far), 1.3)
    assert_allclose(posterior.interval_variance(far), 1.3)


# Data with little in them


DULL = {
    "constant rewards": lambda: Trajectories.from_chain(np.arange(6.0), [1, 1, 1, 1, 1], [0.9] * 5),
    "all rewards zero": lambda: Trajectories.from_chain(np.arange(6.0), [0] * 5, [0.9] * 5),
    "one state for ever": lambda: Trajectories.from_chain(np.zeros(6), [1, 1, 1, 1, 1], [0.9] * 5),
    "one transition": lambda: Trajectories.from_chain([0.0, 1.0], [1.0], [0.9]),
    "one transition, terminated": lambda: Trajectories.from_chain([0.0, 1.0, 2.0], [1.0, 0.0], [1.0, 0.0]),
}


@pytest.mark.parametrize("make", DULL.values(), ids=DULL.keys())
@every_noise
@pytest.mark.parametrize("noise_variance", [1e-6, 1.0])
def test_dull_data_give_finite_answers(make, noise, noise_variance):
    data = make()
    model = Model(paper_kernel(Isotropic(1.0, 1), 1.0, 1.0), noise_variance)
    targets = build_targets(data, noise)
    value, gradient = exact.evidence_and_gradient(model, targets)
    posterior = exact.ExactPosterior.condition(model, targets)
    reference = Reference.of(model, data, noise)
    assert_allclose(value.log_likelihood, reference.log_likelihood, rtol=1e-7)
    assert np.isfinite(gradient).all()
    states = np.array([[0.0], [0.5], [9.0]])
    assert_allclose(posterior.mean(states), reference.mean(states), rtol=1e-5, atol=1e-7)
    assert_allclose(posterior.variance(states), reference.variance(states), rtol=1e-5, atol=1e-7)
    assert np.isfinite(posterior.interval_variance(states)).all()


@every_noise
def test_a_loop_that_tells_nothing(noise):
    """γ = 1 from a state into itself: r = V − V says nothing about V, and the posterior is the prior."""
    data = Trajectories.from_chain([0.0, 0.0], [0.5], [1.0])
    model = Model(paper_kernel(Isotropic(1.0, 1), 1.0, 1.0), 0.1)
    targets, reference = build_targets(data, noise), Reference.of(model, data, noise)
    assert_allclose(exact.evidence(model, targets).log_likelihood, reference.log_likelihood, rtol=1e-7)
    posterior = exact.ExactPosterior.condition(model, targets)
    assert_allclose(posterior.mean(np.zeros((1, 1))), 0.0, atol=1e-7)
    assert_allclose(posterior.variance(np.zeros((1, 1))), 2.0, rtol=1e-7)


@every_noise
def test_a_duplicated_column_is_one_column_twice_as_relevant(noise):
    data = sample(MIXES["mixed"], n_dims=1)
    twice = Trajectories(
        np.hstack([data.states, data.states]), data.rewards, data.discounts, data.lengths, data.terminated
    )
    one = exact.evidence(Model(paper_kernel(ARD([0.8])), 0.1), build_targets(data, noise))
    two = exact.evidence(Model(paper_kernel(ARD([0.5, 0.3])), 0.1), build_targets(twice, noise))
    assert_allclose(two.log_likelihood, one.log_likelihood, rtol=1e-10)


@every_noise
def test_a_constant_column_changes_nothing(noise):
    data = sample(MIXES["mixed"], n_dims=1)
    wider = Trajectories(
        np.hstack([data.states, np.full((len(data), 1), 7.0)]),
        data.rewards,
        data.discounts,
        data.lengths,
        data.terminated,
    )
    narrow = exact.evidence_and_gradient(Model(paper_kernel(ARD([0.8])), 0.1), build_targets(data, noise))
    wide = exact.evidence_and_gradient(Model(paper_kernel(ARD([0.8, 5.0])), 0.1), build_targets(wider, noise))
    assert_allclose(wide[0].log_likelihood, narrow[0].log_likelihood, rtol=1e-10)
    assert_allclose(wide[1], [*narrow[1], 0.0], rtol=1e-8, atol=1e-12)


# Long runs over few states


@every_noise
@pytest.mark.parametrize("terminated", [True, False])
def test_a_long_run_over_few_states(noise, terminated):
    """Merged, a run of 20 000 states costs what its nine distinct states cost; on a prefix it is the dense formula."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(9, 3))

    def run(n_episodes: int) -> Trajectories:
        episodes = []
        for _ in range(n_episodes):
            places = rng.integers(9, size=50)
            rewards = points[places[:-1]] @ [1.0, -1.0, 0.5] + 0.1 * rng.normal(size=49)
            episodes.append(dict(observations=points[places], rewards=rewards, terminated=terminated))
        return Trajectories.from_episodes(episodes, gamma=0.9)

    model = make_model("ard")
    long, prefix = build_targets(run(400), noise), build_targets(run(4), noise)
    assert len(long.states) == 9
    reference = Reference.of(model, prefix.data, noise)
    assert_allclose(exact.evidence(model, prefix).log_likelihood, reference.log_likelihood, rtol=1e-9)
    value, gradient = exact.evidence_and_gradient(model, long)
    numeric = central_differences(
        lambda theta: -exact.evidence(model.with_theta(theta), long).log_likelihood, model.theta
    )
    assert value.n_rows == 400 * (49 + terminated)
    assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-3)  # values near 10⁵ leave the differences few digits


# Fisher information


@every_mix
@every_noise
@every_form
def test_fisher_information(mix, noise, repeated, merge):
    """½ tr(Q⁻¹ ∂Q/∂θ_i Q⁻¹ ∂Q/∂θ_j), with ∂Q/∂θ by differences of the dense matrix."""
    data, model = sample(MIXES[mix], seed=12, repeated=repeated), make_model("factor 1")
    inverse = np.linalg.inv(Reference.of(model, data, noise).Q)
    slopes = []
    for i in range(len(model.theta)):
        step = np.zeros(len(model.theta))
        step[i] = 1e-4
        ahead, behind = (Reference.of(model.with_theta(model.theta + s), data, noise).Q for s in (step, -step))
        slopes.append((ahead - behind) / 2e-4)
    expected = [[0.5 * np.trace(inverse @ a @ inverse @ b) for b in slopes] for a in slopes]
    found = exact.fisher_information(model, build_targets(data, noise, merge=merge))
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert_array_equal(found, found.T)


def test_fisher_information_of_a_parameter_that_cannot_move():
    data = sample(MIXES["mixed"])
    model = Model(paper_kernel(ARD([0.3, 0.6, 1.1]), 1.3, bias=0.0), 0.2)
    found = exact.fisher_information(model, build_targets(data, "stochastic"))
    assert_array_equal(found[1], 0.0)
    assert_array_equal(found[:, 1], 0.0)
    assert np.isfinite(found).all()


# The posterior beyond single states


@every_noise
def test_covariance_and_samples(noise):
    data, model = sample(MIXES["mixed"], seed=10), make_model("ard")
    posterior = exact.ExactPosterior.condition(model, build_targets(data, noise))
    covariance = posterior.covariance(NEW_STATES)
    assert_allclose(covariance, Reference.of(model, data, noise).covariance(NEW_STATES), **CLOSE)
    drawn = posterior.sample(NEW_STATES, 20_000, np.random.default_rng(0))
    assert drawn.shape == (20_000, 6)
    assert_allclose(drawn.mean(axis=0), posterior.mean(NEW_STATES), atol=0.05)
    assert_allclose(np.cov(drawn.T), covariance, atol=0.06)
    assert posterior.sample(np.zeros((0, 3)), 2, np.random.default_rng(0)).shape == (2, 0)


@every_noise
def test_condition_on_further_segments_is_conditioning_on_all(noise):
    some, more, model = sample(MIXES["mixed"], seed=1), sample(MIXES["truncated"], seed=2), make_model("ard")
    posterior = exact.ExactPosterior.condition(model, build_targets(some, noise)).condition_on(more)
    reference = Reference.of(model, some + more, noise)
    assert_allclose(posterior.mean(NEW_STATES), reference.mean(NEW_STATES), **CLOSE)
    assert_allclose(posterior.interval_variance(NEW_STATES), reference.interval_variance(NEW_STATES), **CLOSE)
