"""Sparse GPTD against the weight-space model written with dense matrices, against exact GPTD, and against itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference import posterior as posterior_module
from gptd_rl.inference.features import InducingFeatures, KernelSplit
from gptd_rl.inference.inducing import REDUNDANT, incomplete_cholesky, independent
from gptd_rl.inference.model import Model
from gptd_rl.inference.sparse import Solution, SparsePosterior
from gptd_rl.inference.statistics import Statistics, noise_moments, pull_back, statistics
from gptd_rl.kernels import ARD, Kernel, paper_kernel
from gptd_rl.temporal import shards
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import build_targets, distinct
from tests.helpers import (
    NOISES,
    central_differences,
    dense_H,
    first,
    make_model,
    naive_kernel,
    naive_null_vectors,
    naive_returns,
    row_places,
    sample,
    segments,
    vary_one,
)
from tests.mdps import Gridworld, Spiral

CLOSE: dict[str, Any] = dict(rtol=1e-8, atol=1e-9)
NEW_STATES = np.random.default_rng(9).normal(size=(6, 3))

# Segments longer than the small blocks below, short ones before, between and behind them, and blocks' worth of each.
MIXES: dict[str, list[tuple[int, bool]]] = {
    "terminated": [(3, True), (33, True), (2, True), (7, True), (9, True)],
    "truncated": [(31, False), (2, False), (8, False), (7, False), (16, False)],
    "mixed": [(5, False), (26, True), (2, True), (19, False), (3, True), (2, False), (23, False)],
}

every_mix = pytest.mark.parametrize("mix", MIXES)
every_noise = pytest.mark.parametrize("noise", NOISES)
METRICS, BIASES = ["ard", "isotropic", "factor 2"], [0.4, 0.0]
every_bias = pytest.mark.parametrize("bias", BIASES)
every_block = pytest.mark.parametrize("block", [1024, 16, 7], indirect=True, ids="blocks of {}".format)


@pytest.fixture
def block(request, monkeypatch) -> int:
    """Rows that are passed over at a time."""
    monkeypatch.setattr(shards, "BLOCK", request.param)
    return request.param


def far_sighted(kinds: list[tuple[int, bool]], seed: int = 0, **options: Any) -> Trajectories:
    """Random trajectories with discounts near 1, so that the tail of a long segment is felt at its front."""
    data = sample(kinds, seed, **options)
    return Trajectories(data.states, data.rewards, data.discounts**0.15, data.lengths, data.terminated)


def signal(kernel: Kernel) -> Kernel:
    """The kernel without its level."""
    return KernelSplit.of(kernel).inducing


def chosen_features(model: Model, data: Trajectories, max_size: int = 9) -> InducingFeatures:
    """Few states, far enough from each other for g(Z, Z) to be well conditioned."""
    taken = incomplete_cholesky(signal(model.kernel), data.states, max_size, tolerance=1e-3 * 1.3)
    return InducingFeatures(model.kernel, data.states[taken.indices])


def solve(model: Model, data: Trajectories, noise: Any, features: InducingFeatures) -> tuple[Shard, Solution]:
    shard = Shard.of(data, noise)
    return shard, Solution.of(model, features, statistics(shard, features))


def condition(
    model: Model, data: Trajectories, noise: Any, features: InducingFeatures, **options: Any
) -> SparsePosterior:
    shard, solution = solve(model, data, noise, features)
    return SparsePosterior(solution, noise_moments(shard, features, solution.weights), noise=noise, **options)


def assert_gradient(model: Model, data: Trajectories, noise: Any, states: np.ndarray, whitened: bool = False) -> None:
    """Compare with central differences; the absolute tolerance covers the rounding of the differences themselves."""
    value, gradient = evidence_and_gradient(model, data, noise, states, whitened)

    def minus_bound(theta: np.ndarray) -> float:
        moved = model.with_theta(theta)
        return -solve(moved, data, noise, InducingFeatures(moved.kernel, states, whitened))[1].evidence.log_likelihood

    numeric = central_differences(minus_bound, model.theta)
    assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8 * max(1.0, abs(value)))


def evidence_and_gradient(
    model: Model, data: Trajectories, noise: Any, states: np.ndarray, whitened: bool = False
) -> tuple[float, np.ndarray]:
    """Minus the bound, and its gradient by θ."""
    features = InducingFeatures(model.kernel, states, whitened)
    shard, solution = solve(model, data, noise, features)
    gradient = solution.gradient(pull_back(shard, features, solution.statistics_gradient()))
    return -solution.evidence.log_likelihood, gradient


@dataclass(frozen=True)
class Naive:
    """r = H V + η with V = Ψw, w ~ N(0, Λ⁻¹), for Σ = σ²HHᵀ or σ²I, as plain matrices."""

    model: Model
    data: Trajectories
    noise: str
    inducing_points: np.ndarray

    @property
    def kernel(self) -> Any:
        return self.model.kernel

    @cached_property
    def H(self) -> np.ndarray:
        return dense_H(self.data)

    @cached_property
    def rewards(self) -> np.ndarray:
        return self.data.rewards[row_places(self.data)]

    @cached_property
    def G(self) -> np.ndarray:
        """HΨ."""
        return self.H @ self.Psi(self.data.states)

    def g(self, states: np.ndarray, others: np.ndarray) -> np.ndarray:
        """The kernel without its level."""
        return naive_kernel(self.model.kernel, states, others) - self.kernel.bias

    def Psi(self, states: np.ndarray) -> np.ndarray:
        columns = [self.g(states, self.inducing_points)]
        if self.kernel.bias > 0:
            columns.append(np.ones((len(states), 1)))
        return np.hstack(columns)

    @cached_property
    def prior(self) -> np.ndarray:
        """Λ⁻¹."""
        m = len(self.inducing_points)
        covariance = self.kernel.bias * np.eye(m + (self.kernel.bias > 0))
        covariance[:m, :m] = np.linalg.inv(self.g(self.inducing_points, self.inducing_points))
        return covariance

    @cached_property
    def Q(self) -> np.ndarray:
        Sigma = self.model.noise_variance * (self.H @ self.H.T if self.noise == "stochastic" else np.eye(len(self.H)))
        return self.G @ self.prior @ self.G.T + Sigma

    def reward_weights(self, states: np.ndarray) -> np.ndarray:
        """Weight of each reward in the mean, one column per state."""
        return np.linalg.solve(self.Q, self.G @ self.prior @ self.Psi(states).T)

    def mean(self, states: np.ndarray) -> np.ndarray:
        return self.reward_weights(states).T @ self.rewards

    def subset_of_regressors_variance(self, states: np.ndarray) -> np.ndarray:
        psi = self.Psi(states)
        cross = self.G @ self.prior @ psi.T
        return np.diag(psi @ self.prior @ psi.T - cross.T @ np.linalg.solve(self.Q, cross))

    def unexplained(self, states: np.ndarray) -> np.ndarray:
        """Prior covariance of V less that of Ψw."""
        psi = self.Psi(states)
        return naive_kernel(self.model.kernel, states, states) - psi @ self.prior @ psi.T

    def projected_process_variance(self, states: np.ndarray) -> np.ndarray:
        return self.subset_of_regressors_variance(states) + np.diag(self.unexplained(states))

    @cached_property
    def penalty(self) -> float:
        left_out = self.unexplained(self.data.states)
        if self.noise == "deterministic":
            left_out = self.H @ left_out @ self.H.T
        return float(np.trace(left_out)) / (2 * self.model.noise_variance)

    @cached_property
    def complexity(self) -> float:
        sign, log_det = np.linalg.slogdet(self.Q)
        assert sign == 1
        return 0.5 * log_det

    @cached_property
    def data_fit(self) -> float:
        return 0.5 * float(self.rewards @ np.linalg.solve(self.Q, self.rewards)) + self.penalty

    @cached_property
    def bound(self) -> float:
        return -self.complexity - self.data_fit - 0.5 * len(self.rewards) * np.log(2 * np.pi)

    @cached_property
    def squared_errors(self) -> np.ndarray:
        """δ², one per reward."""
        return (self.rewards - self.H @ self.mean(self.data.states)) ** 2

    @cached_property
    def noise_moments(self) -> np.ndarray:
        """Σ_t δ_t² u_t u_tᵀ, where ΨᵀHᵀΣ⁻¹r·σ² = Σ_t u_t r_t."""
        U = np.linalg.solve(self.H @ self.H.T, self.G) if self.noise == "stochastic" else self.G
        return U.T @ np.diag(self.squared_errors) @ U

    def interval_variance(self, states: np.ndarray) -> np.ndarray:
        return np.maximum(self.martingale_variance(states), self.projected_process_variance(states))

    def martingale_variance(self, states: np.ndarray) -> np.ndarray:
        """Of V(x) − aᵀV − uᵀη, with the noise of each reward as large as its TD error, state by state."""
        out = []
        for x, u in zip(states, self.reward_weights(states).T, strict=True):
            off = self.Psi(x[None])[0] - self.G.T @ u  # what of the weights is not seen
            out.append(off @ self.prior @ off + self.squared_errors @ u**2 + self.unexplained(x[None])[0, 0])
        return np.array(out)


# Against the dense formulas


@pytest.mark.parametrize(
    ("mix", "block", "metric", "bias", "whitened"),
    vary_one(product(first("mixed", MIXES), [16, 7, 1024]), METRICS, BIASES, [False, True]),
    indirect=["block"],
)
@every_noise
def test_posterior_and_bound(mix, block, metric, bias, whitened, noise):
    data = far_sighted(MIXES[mix], seed=1, terminal_rewards=True)
    model = make_model(metric, bias=bias)
    features = replace(chosen_features(model, data), whitened=whitened)
    naive = Naive(model, data, noise, features.states)
    projected = condition(model, data, noise, features)
    regressors = replace(projected, kind="subset_of_regressors")
    for states in (NEW_STATES, data.states[:8]):
        assert_allclose(projected.mean(states), naive.mean(states), **CLOSE)
        assert_allclose(projected.variance(states), naive.projected_process_variance(states), **CLOSE)
        assert_allclose(regressors.mean(states), naive.mean(states), **CLOSE)
        assert_allclose(regressors.variance(states), naive.subset_of_regressors_variance(states), **CLOSE)
        assert_allclose(projected.interval_variance(states), naive.interval_variance(states), **CLOSE)
        regressors_interval = np.maximum(naive.martingale_variance(states), naive.subset_of_regressors_variance(states))
        assert_allclose(regressors.interval_variance(states), regressors_interval, **CLOSE)
    found = projected.solution.evidence
    assert naive.penalty > 0.1  # or else it would not be compared
    assert found.n_rows == len(naive.rewards)
    assert_allclose(found.complexity, naive.complexity, **CLOSE)
    assert_allclose(found.data_fit, naive.data_fit, **CLOSE)
    assert_allclose(found.log_likelihood, naive.bound, **CLOSE)


@every_mix
@every_noise
@every_bias
@every_block
def test_noise_moments(mix, noise, bias, block):
    data = far_sighted(MIXES[mix], seed=2, terminal_rewards=True)
    model = make_model("ard", bias=bias)
    features = chosen_features(model, data)
    shard, solution = solve(model, data, noise, features)
    found = noise_moments(shard, features, solution.weights)
    expected = Naive(model, data, noise, features.states).noise_moments
    assert_allclose(np.tril(found), np.tril(expected), rtol=1e-8, atol=1e-9 * expected.max())


@every_mix
@every_block
def test_noise_moments_by_the_recursion_of_the_page(mix, block):
    """u_t = a_t + γ_{t−1}u_{t−1} along each segment, where a_t are the rows of ΠΨ."""
    data = far_sighted(MIXES[mix], seed=3)
    model = make_model("factor 1")
    features = chosen_features(model, data)
    naive = Naive(model, data, "stochastic", features.states)
    Pi, Psi = np.eye(len(data)), naive.Psi(data.states)
    for z in naive_null_vectors(data).T:
        Pi -= np.outer(z, z) / (z @ z)
    V = naive.mean(data.states)
    expected = np.zeros((len(features), len(features)))
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        u = np.zeros(len(features))
        for t in places:
            u = (Pi @ Psi)[t] + (data.discounts[t - 1] * u if t > places[0] else 0.0)
            if t < places[-1]:
                delta = data.rewards[t] + data.discounts[t] * V[t + 1] - V[t]
                expected += delta**2 * np.outer(u, u)
        if terminated:
            expected += V[places[-1]] ** 2 * np.outer(u, u)
    shard, solution = solve(model, data, "stochastic", features)
    found = noise_moments(shard, features, solution.weights)
    assert_allclose(np.tril(found), np.tril(expected), rtol=1e-8, atol=1e-9 * expected.max())


@every_mix
@every_noise
@every_bias
@every_block
def test_statistics(mix, noise, bias, block):
    data, model = far_sighted(MIXES[mix], seed=4, terminal_rewards=True), make_model("ard", bias=bias)
    features = chosen_features(model, data)
    naive = Naive(model, data, noise, features.states)
    H, Psi = naive.H, naive.Psi(data.states)
    found = statistics(Shard.of(data, noise), features)
    if noise == "stochastic":
        Z = naive_null_vectors(data)
        Z /= np.linalg.norm(Z, axis=0)
        Pi, y = np.eye(len(data)) - Z @ Z.T, naive_returns(data)
        rows, hidden, trace = np.column_stack([Pi @ Psi, Pi @ y]), Psi.T @ Z @ Z.T @ Psi, 1.3 * len(data)
        jacobian = 0.5 * np.linalg.slogdet(H @ H.T)[1]
    else:
        rows, hidden = np.column_stack([H @ Psi, naive.rewards]), np.zeros((len(features), len(features)))
        trace, jacobian = np.trace(H @ naive.g(data.states, data.states) @ H.T), 0.0
    assert_allclose(np.tril(found.gram), np.tril(rows.T @ rows), **CLOSE)
    assert_allclose(np.tril(found.nullspace_gram), np.tril(hidden), **CLOSE)
    assert_allclose(found.prior_trace, trace, rtol=1e-10)
    assert_allclose(found.log_jacobian, jacobian, **CLOSE)
    assert found.n_rows == len(H)


@every_mix
@every_noise
def test_statistics_do_not_depend_on_the_level_and_have_the_units_of_the_kernel(mix, noise):
    data = far_sighted(MIXES[mix])
    one, other, larger = (
        statistics(Shard.of(data, noise), InducingFeatures(paper_kernel(ARD([0.3, 0.6, 1.1]), v0, b), NEW_STATES))
        for v0, b in ((1.3, 0.4), (1.3, 20.0), (5.2, 0.4))
    )
    assert_array_equal(one.gram, other.gram)
    assert_array_equal(one.nullspace_gram, other.nullspace_gram)
    assert one.prior_trace == other.prior_trace
    unit = np.where(np.arange(8) < 6, 4.0, 1.0)  # of the features, the level and the target
    assert_allclose(np.tril(larger.gram), np.tril(one.gram * np.multiply.outer(unit, unit)), rtol=1e-10)
    assert_allclose(larger.prior_trace, 4.0 * one.prior_trace)


@pytest.mark.parametrize("kind", ["projected_process", "subset_of_regressors"])
@every_noise
def test_covariance_and_samples(noise, kind):
    """The diagonal of the covariance is the variance, and samples have the moments that they should have."""
    data, model = far_sighted(MIXES["mixed"], seed=1), make_model("ard")
    posterior = condition(model, data, noise, chosen_features(model, data), kind=kind)
    covariance = posterior.covariance(NEW_STATES)
    assert_allclose(np.diag(covariance), posterior.variance(NEW_STATES), rtol=1e-8)
    assert_allclose(covariance, covariance.T, atol=1e-12)
    drawn = posterior.sample(NEW_STATES, 20_000, np.random.default_rng(0))
    assert drawn.shape == (20_000, 6)
    assert_allclose(drawn.mean(axis=0), posterior.mean(NEW_STATES), atol=0.05)
    assert_allclose(np.cov(drawn.T), covariance, atol=0.06)


@every_noise
def test_condition_on_further_segments_is_conditioning_on_all(noise):
    some, more = far_sighted(MIXES["mixed"], seed=1), far_sighted(MIXES["truncated"], seed=2)
    model = make_model("ard")
    features = chosen_features(model, some)
    posterior = condition(model, some, noise, features).condition_on(more)
    together = condition(model, some + more, noise, features)
    assert_allclose(posterior.mean(NEW_STATES), together.mean(NEW_STATES), **CLOSE)
    assert_allclose(posterior.variance(NEW_STATES), together.variance(NEW_STATES), **CLOSE)
    evidence = together.solution.evidence.log_likelihood
    assert_allclose(posterior.evidence(model).log_likelihood, evidence, rtol=1e-9)


@every_noise
@every_block
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_extreme_discounts(noise, block, gamma):
    data, model = sample(MIXES["mixed"], seed=5, gamma=gamma), make_model("ard")
    features = chosen_features(model, data)
    naive, posterior = Naive(model, data, noise, features.states), condition(model, data, noise, features)
    assert_allclose(posterior.solution.evidence.log_likelihood, naive.bound, **CLOSE)
    assert_allclose(posterior.mean(NEW_STATES), naive.mean(NEW_STATES), **CLOSE)
    assert_allclose(posterior.variance(NEW_STATES), naive.projected_process_variance(NEW_STATES), **CLOSE)
    assert_allclose(posterior.interval_variance(NEW_STATES), naive.interval_variance(NEW_STATES), **CLOSE)
    assert_gradient(model, data, noise, features.states)


@every_noise
@every_block
def test_a_discount_of_zero_and_of_one_inside_a_segment(noise, block):
    data = sample([(25, False), (20, True), (9, False)], seed=6)
    discounts = data.discounts.copy()
    discounts[[2, 6, 15, 30, 31, 46]] = 0.0
    discounts[[3, 7, 16, 17, 32, 47]] = 1.0
    data = Trajectories(data.states, data.rewards, discounts, data.lengths, data.terminated)
    model = make_model("ard")
    features = chosen_features(model, data)
    naive, posterior = Naive(model, data, noise, features.states), condition(model, data, noise, features)
    assert_allclose(posterior.solution.evidence.log_likelihood, naive.bound, **CLOSE)
    assert_allclose(posterior.mean(NEW_STATES), naive.mean(NEW_STATES), **CLOSE)
    assert_allclose(posterior.interval_variance(NEW_STATES), naive.interval_variance(NEW_STATES), **CLOSE)


@every_noise
@every_block
@pytest.mark.parametrize("offset", [0, 4])
def test_thinned_data(noise, block, offset):
    """Every fifth state with its returns: terminal states that are paid, and segments of one terminal state."""
    data, model = far_sighted([*MIXES["mixed"], *MIXES["terminated"]], seed=7).thin(5, offset), make_model("ard")
    assert data.lengths.min() == 1
    features = chosen_features(model, data)
    naive, posterior = Naive(model, data, noise, features.states), condition(model, data, noise, features)
    assert_allclose(posterior.solution.evidence.log_likelihood, naive.bound, **CLOSE)
    assert_allclose(posterior.mean(NEW_STATES), naive.mean(NEW_STATES), **CLOSE)
    assert_allclose(posterior.interval_variance(NEW_STATES), naive.interval_variance(NEW_STATES), **CLOSE)
    assert_gradient(model, data, noise, features.states)


@every_noise
def test_a_tail_that_fades_away(noise):
    """γ = 0.5 over 300 steps: the null vector is too small to be felt at the front, and left out there."""
    data, model = sample([(300, False), (4, True)], seed=7, gamma=0.5), make_model("ard")
    features = chosen_features(model, data)
    naive, posterior = Naive(model, data, noise, features.states), condition(model, data, noise, features)
    assert (Shard.of(data, noise).tail[:200] == 0.0).all()
    assert_allclose(posterior.solution.evidence.log_likelihood, naive.bound, rtol=1e-8)
    assert_allclose(posterior.interval_variance(NEW_STATES), naive.interval_variance(NEW_STATES), **CLOSE)


@every_noise
def test_far_away(noise):
    """The subset of regressors knows only the level there; the projected process knows that it knows no more."""
    data, model = far_sighted(MIXES["mixed"]), make_model("ard")
    posterior = condition(model, data, noise, chosen_features(model, data))
    far, farther = np.full((1, 3), 1e3), np.full((1, 3), 2e3)
    level = posterior.solution.weights[-1]
    assert_allclose(posterior.mean(far), level)
    at_level = replace(posterior, kind="subset_of_regressors").variance(far)
    assert 0 < at_level[0] < 0.4
    assert_allclose(posterior.variance(far), at_level + 1.3)
    assert_allclose(posterior.variance(farther), posterior.variance(far))


@every_noise
def test_predictions_in_pieces(noise, monkeypatch):
    data, model = far_sighted(MIXES["mixed"]), make_model("ard")
    posterior = condition(model, data, noise, chosen_features(model, data))
    functions = (posterior.mean, posterior.variance, posterior.interval_variance)
    whole = [f(data.states) for f in functions]
    monkeypatch.setattr(posterior_module, "CHUNK", 4)
    for f, expected in zip(functions, whole, strict=True):
        assert_allclose(f(data.states), expected, rtol=1e-10, atol=1e-12)
        assert f(np.zeros((0, 3))).shape == (0,)


# Blocks


@every_noise
@every_bias
@pytest.mark.parametrize("block", [2, 3, 7, 16, 64])
def test_the_size_of_blocks_does_not_matter(noise, bias, block, monkeypatch):
    data, model = far_sighted([*MIXES["mixed"], *MIXES["truncated"]], seed=8), make_model("ard", bias=bias)
    features = chosen_features(model, data)

    def everything() -> list[Any]:
        shard, solution = solve(model, data, noise, features)
        seen = solution.statistics
        moments = noise_moments(shard, features, solution.weights)
        slope = pull_back(shard, features, solution.statistics_gradient())
        return [seen.gram, seen.nullspace_gram, seen.prior_trace, seen.n_rows, seen.log_jacobian, moments, slope]

    whole = everything()
    assert len(Shard.of(data, noise).blocks) == 1
    monkeypatch.setattr(shards, "BLOCK", block)
    assert len(Shard.of(data, noise).blocks) > 1
    for found, expected in zip(everything(), whole, strict=True):
        assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())


@every_mix
@every_noise
@every_block
def test_blocks_cover_all_rows_once(mix, noise, block):
    shard = Shard.of(far_sighted(MIXES[mix]), noise)
    sizes = [b.rows.stop - b.rows.start for b in shard.blocks]
    assert [b.rows.start for b in shard.blocks] == list(np.cumsum([0, *sizes[:-1]]))
    assert sum(sizes) == len(shard.data)
    assert max(sizes) == shard.block_size <= block
    # a cut lies within a segment only where the segment alone is longer than a block
    ends = set(np.cumsum(shard.data.lengths))
    for b in shard.blocks:
        segment = shard.H.segment_of[b.rows.stop - 1]
        assert b.rows.stop in ends or shard.data.lengths[segment] > block
    if noise == "deterministic":
        assert shard.data.lengths.max() <= block
        assert shard.n_long_tails == 0
    else:
        long = (shard.data.lengths > block) & ~shard.data.terminated
        assert shard.n_long_tails == long.sum()


@every_noise
def test_a_shard_keeps_all_rewards(noise):
    data = far_sighted(MIXES["mixed"], terminal_rewards=True)
    shard = Shard.of(data, noise)
    assert shard.n_rows == data.n_rows
    assert shard.nbytes >= data.states.nbytes + 4 * data.rewards.nbytes
    y = naive_returns(data)
    for z in naive_null_vectors(data).T:
        y -= z * (z @ y) / (z @ z)
    assert_allclose(shard.targets, y if noise == "stochastic" else np.where(data.has_row, data.rewards, 0.0), **CLOSE)


# The gradient


@pytest.mark.parametrize(
    ("mix", "metric", "bias", "whitened"), vary_one(first("mixed", MIXES), METRICS, BIASES, [False, True])
)
@every_noise
def test_gradient(mix, metric, bias, whitened, noise, monkeypatch):
    monkeypatch.setattr(shards, "BLOCK", 16)
    data, model = far_sighted(MIXES[mix], seed=9, terminal_rewards=True), make_model(metric, bias=bias)
    states = chosen_features(model, data).states
    assert_gradient(model, data, noise, states, whitened)


@every_noise
@pytest.mark.parametrize("noise_variance", [1e-3, 10.0])
def test_gradient_with_little_and_much_noise(noise, noise_variance):
    data = far_sighted(MIXES["mixed"], seed=10)
    model = make_model("factor 2", noise_variance=noise_variance)
    states = chosen_features(model, data).states
    assert_gradient(model, data, noise, states)


@every_mix
@every_noise
def test_gradient_with_all_states_as_inducing_points_is_that_of_the_evidence(mix, noise):
    data, model = far_sighted(MIXES[mix], seed=11, repeated=True), make_model("ard")
    states = distinct(data)[0]
    value, gradient = evidence_and_gradient(model, data, noise, states)
    expected, expected_gradient = exact.evidence_and_gradient(model, build_targets(data, noise))
    assert_allclose(-value, expected.log_likelihood, rtol=1e-8)
    assert_allclose(gradient, expected_gradient, rtol=1e-6, atol=1e-6)


# A bound, and equal to the evidence where nothing is left out


@pytest.mark.parametrize(
    ("mix", "metric", "noise_variance"), vary_one(first("mixed", MIXES), METRICS, [0.2, 1e-3, 5.0])
)
@every_noise
def test_the_bound_grows_with_the_inducing_points_and_stays_below_the_evidence(mix, metric, noise_variance, noise):
    data, model = far_sighted(MIXES[mix], seed=12), make_model(metric, noise_variance=noise_variance)
    order = incomplete_cholesky(signal(model.kernel), data.states, tolerance=1e-3).indices
    evidence = exact.evidence(model, build_targets(data, noise)).log_likelihood
    sizes = [1, 2, 3, 5, 8, 13, 21, 34, len(order)]
    bounds = []
    for m in sizes:
        _, solution = solve(model, data, noise, InducingFeatures(model.kernel, data.states[order[:m]]))
        bounds.append(solution.evidence.log_likelihood)
    assert (np.diff(bounds) > 0).all()
    assert bounds[-1] <= evidence + 1e-9 * abs(evidence)
    assert bounds[0] < evidence - 1.0


@pytest.mark.parametrize(
    ("mix", "repeated", "metric", "bias"),
    vary_one(product(first("mixed", MIXES), [False, True]), METRICS, BIASES),
)
@every_noise
def test_all_states_as_inducing_points_are_exact(mix, repeated, metric, bias, noise):
    data = far_sighted(MIXES[mix], seed=13, repeated=repeated, terminal_rewards=True)
    kernel = make_model(metric, bias=bias).kernel
    # distances four times as large: the states are well separated
    wide = Trajectories(4.0 * data.states, data.rewards, data.discounts, data.lengths, data.terminated)
    model = Model(kernel, 0.2)
    seen = build_targets(wide, noise)
    reference = exact.ExactPosterior.condition(model, seen)
    posterior = condition(model, wide, noise, InducingFeatures(kernel, distinct(wide)[0]))
    assert_allclose(posterior.solution.evidence.log_likelihood, exact.evidence(model, seen).log_likelihood, rtol=1e-8)
    for states in (NEW_STATES, 3.0 * NEW_STATES, wide.states):
        assert_allclose(posterior.mean(states), reference.mean(states), rtol=1e-6, atol=1e-8)
        assert_allclose(posterior.variance(states), reference.variance(states), rtol=1e-6, atol=1e-8)
        assert_allclose(posterior.interval_variance(states), reference.interval_variance(states), rtol=1e-6, atol=1e-8)


def stable_bound(model: Model, data: Trajectories, states: np.ndarray) -> float:
    """The bound for σ²HHᵀ without Gram matrices: an orthogonal factor of [FᵀΨΛ^(−½)/σ; I], row by row."""
    naive, sigma = Naive(model, data, "stochastic", states), np.sqrt(model.noise_variance)
    v0 = naive.kernel.signal_variance
    L = np.linalg.cholesky(naive.g(states, states) + 1e-13 * v0 * np.eye(len(states)))
    A = linalg.solve_triangular(L, naive.g(states, data.states), lower=True).T
    rows = np.column_stack([A, np.full(len(data), np.sqrt(naive.kernel.bias)), naive_returns(data)])
    for z in naive_null_vectors(data).T:
        rows -= np.outer(z, z @ rows) / (z @ z)
    m = len(states) + 1
    Q, R = np.linalg.qr(np.vstack([rows[:, :m] / sigma, np.eye(m)]))
    target = np.append(rows[:, m] / sigma, np.zeros(m))
    misfit = np.sum((target - Q @ (Q.T @ target)) ** 2) + (len(data) * v0 - np.sum(A * A)) / sigma**2
    log_det = 2 * np.log(np.abs(np.diag(R))).sum() + np.linalg.slogdet(naive.H @ naive.H.T)[1]
    return float(-0.5 * (log_det + misfit + len(naive.rewards) * np.log(2 * np.pi * sigma**2)))


@pytest.mark.parametrize("noise_share", [1e-2, 1e-5])
@pytest.mark.parametrize(
    ("left_out", "whitened"), [(1e-2, False), (1e-4, False), (1e-2, True), (1e-4, True), (1e-10, True)]
)
def test_the_bound_has_its_digits(noise_share, left_out, whitened):
    """A smooth deterministic system, hardly any noise, and inducing points that leave out less and less."""
    data = Spiral().sample(300, np.random.default_rng(0))
    model = Model(paper_kernel(ARD([4.0, 4.0]), 2.0, 3.0), 2.0 * noise_share)
    order = incomplete_cholesky(signal(model.kernel), data.states, tolerance=2.0 * left_out).indices
    _, solution = solve(model, data, "stochastic", InducingFeatures(model.kernel, data.states[order], whitened))
    expected = stable_bound(model, data, data.states[order])
    assert expected <= exact.evidence(model, build_targets(data, "stochastic")).log_likelihood + 1e-3
    assert_allclose(solution.evidence.log_likelihood, expected, rtol=1e-6, atol=1e-3)


@every_noise
@pytest.mark.parametrize("relevances", [[0.1, 0.1], [0.1, 1e-6]], ids=["smooth", "flat along y"])
def test_all_states_of_a_gridworld_with_a_smooth_value_are_exact(noise, relevances):
    """121 states that span far fewer functions: those that the others represent are left out."""
    data = Gridworld().sample(600, np.random.default_rng(0))
    model = Model(paper_kernel(ARD(relevances), 10.0, 10.0), 0.1)
    states = distinct(data)[0]
    kept, smallest = independent(model.kernel, states, REDUNDANT)
    assert len(kept) < 121 and smallest >= REDUNDANT
    _, solution = solve(model, data, noise, InducingFeatures(model.kernel, states[kept], whitened=True))
    evidence = exact.evidence(model, build_targets(data, noise)).log_likelihood
    assert solution.evidence.log_likelihood <= evidence + 1e-6 * abs(evidence)
    assert_allclose(solution.evidence.log_likelihood, evidence, rtol=1e-4)


# Statistics add up


def assert_same_statistics(one: Statistics, other: Statistics, rtol: float = 1e-12) -> None:
    for name in ("gram", "nullspace_gram", "prior_trace", "n_rows", "log_jacobian"):
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        scale = max(np.abs(one.gram).max(), np.abs(one.nullspace_gram).max(initial=0.0)) if a.ndim else np.abs(b)
        assert_allclose(a, b, rtol=rtol, atol=rtol * float(scale), err_msg=name)


@every_noise
@every_bias
@every_block
@pytest.mark.parametrize(("one", "other"), [("terminated", "truncated"), ("truncated", "mixed"), ("mixed", "mixed")])
def test_statistics_add_up(noise, bias, block, one, other):
    a, b = far_sighted(MIXES[one], seed=14), far_sighted(MIXES[other], seed=15)
    features = InducingFeatures(make_model("factor 2", bias=bias).kernel, NEW_STATES)
    apart = statistics(Shard.of(a, noise), features) + statistics(Shard.of(b, noise), features)
    assert_same_statistics(apart, statistics(Shard.of(a + b, noise), features))


kinds = st.lists(st.tuples(st.integers(2, 40), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    one=kinds,
    other=kinds,
    seed=st.integers(0, 2**32 - 1),
    noise=st.sampled_from(NOISES),
    gamma=st.sampled_from([None, 0.0, 0.5, 0.99, 1.0]),
    repeated=st.booleans(),
    bias=st.sampled_from([0.0, 0.4]),
    blocks=st.tuples(*[st.sampled_from([2, 3, 5, 16, 1024])] * 3),
)
def test_statistics_of_any_segments_add_up_whatever_the_blocks(one, other, seed, noise, gamma, repeated, bias, blocks):
    """Parts may even be passed over in blocks of different sizes, as on different machines."""
    a = sample(one, seed, gamma=gamma, repeated=repeated)
    b = sample(other, seed + 1, gamma=gamma, repeated=repeated)
    features = InducingFeatures(make_model("ard", bias=bias).kernel, NEW_STATES)
    parts = []
    for data, block in zip((a, b, a + b), blocks, strict=True):
        with mock.patch.object(shards, "BLOCK", block):
            parts.append(statistics(Shard.of(data, noise), features))
    assert_same_statistics(parts[0] + parts[1], parts[2], rtol=1e-11)


# Memory

N, M = 200_000, 200
PASSES = f"""
import json
from pathlib import Path

import numpy as np

from gptd_rl.temporal import shards
from gptd_rl.inference.inducing import REDUNDANT
from gptd_rl.kernels import ARD, paper_kernel
from gptd_rl.inference.model import Model
from gptd_rl.temporal.shards import Shard
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.sparse import Solution
from gptd_rl.inference.statistics import noise_moments, pull_back, statistics
from gptd_rl.data.trajectories import Trajectories


def memory(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def peak(noise, work):
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory("VmRSS")
    work(Shard.of(data, noise))
    return memory("VmHWM") - before


rng = np.random.default_rng(0)
lengths = np.tile([40, 60, 5900, 200, 3800], {N} // 10_000)
discounts, rewards = np.full({N}, 0.99), rng.normal(size={N})
discounts[np.cumsum(lengths) - 1] = rewards[np.cumsum(lengths) - 1] = 0.0
data = Trajectories(rng.normal(size=({N}, 4)), rewards, discounts, lengths, np.arange(len(lengths)) % 2 == 0)
model = Model(paper_kernel(ARD([0.5, 0.5, 0.5, 0.5])), 1.0)
features = InducingFeatures(model.kernel, data.states[:: {N // M}].copy())


def solve(shard):
    return Solution.of(model, features, statistics(shard, features))


peaks = {{}}
for noise in ("stochastic", "deterministic"):
    solution = solve(Shard.of(data[:3], noise))  # whatever is loaded late is loaded now
    by_statistics = solution.statistics_gradient()
    peaks[noise + " pull_back"] = peak(noise, lambda shard: pull_back(shard, features, by_statistics))
    if noise == "stochastic":
        peaks["statistics"] = peak(noise, solve)
        peaks["noise_moments"] = peak(noise, lambda shard: noise_moments(shard, features, solution.weights))
shards.BLOCK = {N}
peaks["in one block"] = peak("stochastic", solve)
print(json.dumps(peaks))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")
def test_a_pass_takes_little_memory():
    """Megabytes above the data, in a fresh process. (Its ru_maxrss would start from the peak of this one.)"""
    done = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = json.loads(done.stdout)
    all_features = 8 * N * M / 2**20
    assert peaks.pop("in one block") > all_features  # the meter works
    assert len(peaks) == 4
    assert max(peaks.values()) < 60 < all_features, peaks
