"""One evidence and one regression of Q: the core against naive formulas, and `by_action` against `sparse`.

The naive functions are those of the agent before it used the core.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact, sparse
from gptd_rl.inference.by_action import ActionPosterior, ActionPrior, ActionRegression, StateFeatures
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.model import Model
from gptd_rl.inference.statistics import noise_moments, statistics
from gptd_rl.kernels import ARD, ActionDelta, MultiScale, SquaredExponential
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import build_targets

RELEVANCES = np.array([0.7, 2.1, 0.3])
SCALES = np.array([8.0, 4.0, 2.0, 1.0, 0.5])
N_ACTIONS = 3

every_rho = pytest.mark.parametrize("rho", [0.0, 0.9])


def regression_data(n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, actions and targets of a regression y = Q(x, a) + noise."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.integers(N_ACTIONS, size=n), rng.normal(size=n)


# -------------------------------------------------------------------------------------- evidence


def naive_multiscale(relevances: np.ndarray, x: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """K = Σ_j w_j exp(−d²/2ℓ_j²) and −∂K/∂(½d²), each of shape (n, n)."""
    weights = scales / scales.sum()
    half_squares = 0.5 * ((x[:, None] - x) ** 2 @ relevances)
    terms = np.exp(-half_squares[..., None] / scales**2)
    return terms @ weights, terms @ (weights / scales**2)


def naive_minus_log_evidence(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray, R: np.ndarray, scales: np.ndarray
) -> tuple[float, np.ndarray]:
    """−log N(y; 0, S) with S = v₀ K∘R + σ²I, and its gradient with respect to θ = log [ω, v₀, σ²]."""
    relevances, (v0, noise) = np.exp(theta[:-2]), np.exp(theta[-2:])
    K, slope = naive_multiscale(relevances, x, scales)
    K, slope = v0 * R * K, v0 * R * slope
    S = K + noise * np.eye(len(K))
    inverse = np.linalg.inv(S)
    w = inverse @ y
    value = 0.5 * y @ w + 0.5 * np.linalg.slogdet(S)[1] + 0.5 * len(y) * np.log(2.0 * np.pi)
    A = 0.5 * (inverse - np.outer(w, w))
    # ∂K_ij/∂ω_d = −½ slope_ij (x_id − x_jd)²
    by_relevance = [-0.5 * o * (A * slope * (x[:, d, None] - x[:, d]) ** 2).sum() for d, o in enumerate(relevances)]
    return float(value), np.array([*by_relevance, (A * K).sum(), noise * np.trace(A)])


@every_rho
@pytest.mark.parametrize(
    ("kernel_class", "scales"), [(SquaredExponential, np.array([1.0])), (MultiScale, SCALES)], ids=["one", "many"]
)
def test_evidence_of_regression_targets_against_naive_formulas(rho: float, kernel_class: Any, scales: Any) -> None:
    x, actions, y = regression_data()
    v0, noise = 1.7, 0.3
    R = np.where(actions[:, None] == actions, 1.0, rho)
    value, gradient = naive_minus_log_evidence(np.log([*RELEVANCES, v0, noise]), x, y, R, scales)

    kernel = kernel_class(ARD(RELEVANCES), v0) * ActionDelta(N_ACTIONS, rho)
    targets = build_targets(Trajectories.from_values(np.column_stack([x, actions]), y), "stochastic")
    evidence, core_gradient = exact.evidence_and_gradient(Model(kernel, noise), targets)

    assert_allclose(-evidence.log_likelihood, value, rtol=1e-11)
    by_v0, by_noise, *by_relevance = core_gradient
    assert_allclose([*by_relevance, by_v0, by_noise], gradient, rtol=1e-9, atol=1e-9)


# -------------------------------------------------------------------------------------- posterior of Q


@every_rho
@pytest.mark.parametrize("kernel_class", [SquaredExponential, MultiScale])
def test_posterior_by_action_equals_sparse_posterior_on_the_product_of_states_and_actions(
    rho: float, kernel_class: Any
) -> None:
    x, actions, y = regression_data()
    noise, v0, m = 0.1, 2.0, 12
    Z = x[:m]
    features = StateFeatures(kernel_class(ARD(RELEVANCES)), Z)
    regression = ActionRegression.of(features(x), actions, ActionPrior(N_ACTIONS, noise / v0, rho))
    ours = ActionPosterior.condition(features, regression, y, 0.0, noise)

    kernel = kernel_class(ARD(RELEVANCES), v0) * ActionDelta(N_ACTIONS, rho)
    product = InducingFeatures(kernel, np.vstack([np.column_stack([Z, np.full(m, a)]) for a in range(N_ACTIONS)]))
    shard = Shard.of(Trajectories.from_values(np.column_stack([x, actions]), y), "stochastic")
    solution = sparse.Solution.of(Model(kernel, noise), product, statistics(shard, product))
    theirs = sparse.SparsePosterior(solution, noise_moments(shard, product, solution.weights))

    rng = np.random.default_rng(1)
    pairs = np.column_stack([rng.normal(size=(20, 3)), rng.integers(N_ACTIONS, size=20)])
    assert ours.signal_variance == pytest.approx(v0)
    assert_allclose(ours.mean(pairs), theirs.mean(pairs), rtol=1e-9, atol=1e-10)
    assert_allclose(ours.variance(pairs), theirs.variance(pairs), rtol=1e-8)
    assert_allclose(ours.covariance(pairs), theirs.covariance(pairs), rtol=1e-7, atol=1e-9)
    assert_allclose(ours.interval_variance(pairs), theirs.interval_variance(pairs), rtol=1e-7)
