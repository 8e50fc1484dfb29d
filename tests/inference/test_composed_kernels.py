"""Exact and sparse inference with kernels beyond the paper's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.inference.model import Model
from gptd_rl.inference.sparse import Solution, SparsePosterior
from gptd_rl.inference.statistics import noise_moments, pull_back, statistics
from gptd_rl.kernels import (
    ARD,
    ActionDelta,
    Constant,
    FactorAnalysis,
    Isotropic,
    Kernel,
    Matern32,
    Matern52,
    MultiScale,
    SquaredExponential,
)
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import build_targets, distinct
from tests.helpers import NOISES, assert_gradient, dense_H, make_model, sample

V = SquaredExponential(ARD([0.3, 0.6, 1.1]), 1.3)
A = Matern52(Isotropic(0.7, 3), 0.8)

KERNELS: dict[str, Kernel] = {
    "Matern52 + level": A + Constant(0.4),
    "Matern32": Matern32(FactorAnalysis([0.3, 0.6, 1.1], [0.8, -0.5, 0.2]), 1.3),
    "MultiScale + level": MultiScale(ARD([0.3, 0.6, 1.1]), 1.3) + Constant(0.4),
    "sum * kernel": (V + Constant(0.4)) * A,
    "Q": (V + Constant(0.4)) * ActionDelta(3),
    "Q with correlated actions": (V + Constant(0.4)) * ActionDelta(3, 0.5),
    "V + A": V + A * ActionDelta(3),
    "V + level of each action": V + Constant(0.4) * ActionDelta(3, 0.2),
}
KINDS = [(5, False), (16, True), (2, True), (9, False), (3, True)]

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
every_noise = pytest.mark.parametrize("noise", NOISES)


def data_for(kernel: Kernel, kinds: Any = KINDS, seed: int = 0) -> Trajectories:
    """Random trajectories, of state-action pairs if the kernel reads actions."""
    data = sample(kinds, seed)
    if not kernel.n_categorical:
        return data
    pairs = np.column_stack([data.states, np.random.default_rng(seed).integers(3, size=len(data))])
    return Trajectories(pairs, data.rewards, data.discounts, data.lengths, data.terminated)


def sparse_solution(model: Model, data: Trajectories, noise: Any, Z: np.ndarray) -> tuple[Shard, Solution]:
    shard, features = Shard.of(data, noise), InducingFeatures(model.kernel, Z)
    return shard, Solution.of(model, features, statistics(shard, features))


def sparse_posterior(model: Model, data: Trajectories, noise: Any, Z: np.ndarray) -> SparsePosterior:
    shard, solution = sparse_solution(model, data, noise, Z)
    return SparsePosterior(solution, noise_moments(shard, solution.features, solution.weights), noise=noise)


@every_kernel
@every_noise
@pytest.mark.parametrize("kinds", [KINDS, [(7, True), (9, True)]], ids=["mixed", "terminated"])
def test_gradient_of_the_exact_evidence(kernel, noise, kinds):
    targets = build_targets(data_for(kernel, kinds), noise)

    def objective(model):
        value, gradient = exact.evidence_and_gradient(model, targets)
        return -value.log_likelihood, gradient

    assert_gradient(objective, Model(kernel, 0.2))


@every_kernel
@every_noise
def test_gradient_of_the_sparse_bound(kernel, noise):
    data = data_for(kernel)
    Z = data.states[incomplete_cholesky(kernel, data.states, 9).indices]

    def objective(model):
        shard, solution = sparse_solution(model, data, noise, Z)
        gradient = solution.gradient(pull_back(shard, solution.features, solution.statistics_gradient()))
        return -solution.evidence.log_likelihood, gradient

    assert_gradient(objective, Model(kernel, 0.2))


@every_kernel
@every_noise
def test_exact_posterior_is_the_dense_formula(kernel, noise):
    data, model = data_for(kernel), Model(kernel, 0.2)
    H = dense_H(data)
    Q = H @ kernel(data.states) @ H.T + 0.2 * (H @ H.T if noise == "stochastic" else np.eye(len(H)))
    new = data_for(kernel, seed=1).states
    k = H @ kernel(data.states, new)
    posterior = exact.ExactPosterior.condition(model, build_targets(data, noise))
    rewards = data.rewards[data.has_row]
    assert_allclose(posterior.mean(new), k.T @ np.linalg.solve(Q, rewards), rtol=1e-8, atol=1e-9)
    assert_allclose(posterior.covariance(new), kernel(new) - k.T @ np.linalg.solve(Q, k), rtol=1e-8, atol=1e-9)
    density = -0.5 * (np.linalg.slogdet(2 * np.pi * Q)[1] + rewards @ np.linalg.solve(Q, rewards))
    assert_allclose(exact.evidence(model, build_targets(data, noise)).log_likelihood, density, rtol=1e-9)


@every_kernel
@every_noise
def test_sparse_with_all_states_is_exact(kernel, noise):
    data, model = data_for(kernel), Model(kernel, 0.2)
    posterior = sparse_posterior(model, data, noise, distinct(data)[0])
    targets = build_targets(data, noise)
    reference = exact.ExactPosterior.condition(model, targets)
    evidence = exact.evidence(model, targets).log_likelihood
    assert_allclose(posterior.solution.evidence.log_likelihood, evidence, rtol=1e-6)
    for states in (data.states, data_for(kernel, seed=1).states):
        assert_allclose(posterior.mean(states), reference.mean(states), rtol=1e-5, atol=1e-6)
        assert_allclose(posterior.variance(states), reference.variance(states), rtol=1e-5, atol=1e-6)
        assert_allclose(posterior.interval_variance(states), reference.interval_variance(states), rtol=1e-5, atol=1e-6)


@every_noise
@pytest.mark.parametrize("kind", ["exact", "sparse"])
@pytest.mark.parametrize("kernel", [make_model("ard").kernel, *KERNELS.values()], ids=["paper", *KERNELS])
def test_predictions_do_not_depend_on_the_others_in_the_batch(kernel, kind, noise):
    """Not even on a state at 10⁹."""
    data, model = data_for(kernel), Model(kernel, 0.2)
    if kind == "exact":
        posterior: Any = exact.ExactPosterior.condition(model, build_targets(data, noise))
    else:
        posterior = sparse_posterior(model, data, noise, data.states[::3])
    states = np.concatenate([data.states[:4], data_for(kernel, seed=1).states[:4]])
    far = states[:1] + np.where(np.arange(states.shape[1]) < 3, 1e9, 0.0)
    batch = np.concatenate([far, states])
    for predict in (posterior.mean, posterior.variance, posterior.interval_variance):
        alone = np.concatenate([predict(x[None]) for x in batch])
        assert_allclose(predict(batch), alone, rtol=1e-9, atol=1e-12)
    assert_allclose(posterior.covariance(batch)[1:, 1:], posterior.covariance(states), rtol=1e-9, atol=1e-12)
    assert_allclose(np.diag(posterior.covariance(batch)), posterior.variance(batch), rtol=1e-9, atol=1e-12)
