"""Rewards in the form y = FᵀV + ε, against dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.kernels import ARD, ActionDelta, SquaredExponential
from gptd_rl.temporal import targets as targets_module
from gptd_rl.temporal.operators import Compressed, Differences, DistinctStates, Reflection, Scaling
from gptd_rl.temporal.targets import build_targets, distinct
from tests.helpers import MIXES, NOISES, Reference, dense_H, make_model, naive_null_vectors, naive_returns, sample

CLOSE: dict[str, Any] = dict(rtol=1e-9, atol=1e-10)

every_mix = pytest.mark.parametrize("mix", MIXES)
every_noise = pytest.mark.parametrize("noise", NOISES)
# each visit by itself; repeated states, each visit by itself; repeated states, merged
every_form = pytest.mark.parametrize(
    ("repeated", "merge"), [(False, True), (True, False), (True, True)], ids=["distinct", "unmerged", "merged"]
)


@every_mix
@every_noise
def test_the_operator_is_the_one_of_the_table(mix, noise):
    terminated = all(flag for _, flag in MIXES[mix])
    expected = Differences if noise == "deterministic" else Scaling if terminated else Reflection
    assert type(build_targets(sample(MIXES[mix]), noise).operator) is expected


@pytest.mark.parametrize("mix", ["terminated", "truncated", "mixed", "one truncated"])
@every_noise
def test_repeated_states_are_merged(mix, noise):
    data = sample(MIXES[mix], repeated=True)
    targets = build_targets(data, noise)
    n_distinct = len(np.unique(data.states, axis=0))
    assert n_distinct <= 4
    assert targets.states.shape == (n_distinct, 3)
    assert targets.operator.n_targets <= n_distinct
    assert type(targets.operator) is (
        Scaling if noise == "stochastic" and data.terminated.all() else DistinctStates
    )  # so that the tests below do compare what they say
    assert len(build_targets(data, noise, merge=False).states) == len(data)


@every_mix
@every_noise
@every_form
def test_operators_do_what_their_matrix_does(mix, noise, repeated, merge):
    data = sample(MIXES[mix], seed=2, repeated=repeated)
    targets = build_targets(data, noise, merge=merge)
    u, q = len(targets.states), targets.operator.n_targets
    assert u == len(data) or merge
    F = targets.operator.matvec(np.eye(q))  # [u, q]
    rng = np.random.default_rng(0)
    values, weights, K, A = (rng.normal(size=s) for s in [(u, 2), (q, 2), (u, u), (q, q)])
    K, A = K + K.T, A + A.T
    assert_allclose(targets.operator.rmatvec(values), F.T @ values, **CLOSE)
    assert_allclose(targets.operator.rmatvec(values[:, 0]), F.T @ values[:, 0], **CLOSE)
    assert_allclose(targets.operator.matvec(weights[:, 0]), F @ weights[:, 0], **CLOSE)
    lower_K, lower_A = np.tril(K), np.tril(A)  # only the lower triangle may be read, and only it need be right
    assert_allclose(np.tril(targets.operator.project_covariance(lower_K)), np.tril(F.T @ K @ F), **CLOSE)
    assert_allclose(np.tril(targets.operator.pull_back(lower_A)), np.tril(F @ A @ F.T), **CLOSE)


@pytest.mark.parametrize("mix", [mix for mix, kinds in MIXES.items() if not all(flag for _, flag in kinds)])
def test_reflection_is_an_orthonormal_basis_of_the_row_space(mix):
    data = sample(MIXES[mix], seed=2)
    targets = build_targets(data, "stochastic")
    H, Z, places = dense_H(data), naive_null_vectors(data), np.flatnonzero(data.has_row)
    F = targets.operator.matvec(np.eye(len(data)))
    assert_array_equal(F[:, ~data.has_row], 0.0)
    F = F[:, places]
    assert_allclose(F.T @ F, np.eye(len(places)), atol=1e-14)
    assert_allclose(F.T @ Z, 0.0, atol=1e-14)
    assert_allclose(F @ F.T, H.T @ np.linalg.solve(H @ H.T, H), atol=1e-12)  # Π
    assert_allclose(targets.y[places], F.T @ naive_returns(data), **CLOSE)


@every_mix
@every_noise
@every_form
def test_weights_of_targets_become_weights_of_rewards(mix, noise, repeated, merge):
    data = sample(MIXES[mix], seed=3, repeated=repeated, terminal_rewards=True)
    targets = build_targets(data, noise, merge=merge)
    g = np.random.default_rng(0).normal(size=(targets.operator.n_targets, 3))
    if targets.operator.n_targets == len(data):
        g[~data.has_row] = 0.0  # places that hold no target have no weight
    u = targets.reward_weights(g)
    assert u.shape == (len(data), 3)
    assert_array_equal(u[~data.has_row], 0.0)
    # Any rewards at all, as long as the visits agree: a value function and its rewards r = HV
    V = np.random.default_rng(1).normal(size=len(targets.states))
    V_at_visits = V if targets.visits is None else V[targets.visits]
    assert_allclose(u[data.has_row].T @ (dense_H(data) @ V_at_visits), g.T @ targets.operator.rmatvec(V), **CLOSE)
    assert_allclose(u[data.has_row].T @ data.rewards[data.has_row], g.T @ targets.y, **CLOSE)


def test_distinct_states_in_order_of_appearance():
    states = np.array([[2.0, 1], [0, 0], [2, 1], [5, 5], [0, 0], [-0.0, 0]])
    found, which = distinct(Trajectories.from_chain(states, np.zeros(5), np.full(5, 0.9)))
    assert_array_equal(found, [[2, 1], [0, 0], [5, 5]])
    assert_array_equal(which, [0, 1, 0, 2, 1, 1])


@every_noise
@pytest.mark.parametrize("mix", ["truncated", "mixed"])
def test_places_without_a_target_are_left_out_where_there_are_many(mix, noise, monkeypatch):
    data, model = sample(MIXES[mix], seed=3), make_model("ard")
    whole = build_targets(data, noise)
    monkeypatch.setattr(targets_module, "MIN_EMPTY_ROWS", 1)
    monkeypatch.setattr(targets_module, "EMPTY_SHARE", 0.0)
    compressed = build_targets(data, noise)
    assert isinstance(compressed.operator, Compressed)
    assert len(compressed.y) == compressed.operator.n_targets == data.n_rows < len(whole.y)
    F = compressed.operator.matvec(np.eye(data.n_rows))
    K = np.random.default_rng(0).normal(size=(len(data), len(data)))
    K, A = K + K.T, (K + K.T)[: data.n_rows, : data.n_rows]
    assert_allclose(compressed.operator.rmatvec(K), F.T @ K, **CLOSE)
    assert_allclose(np.tril(compressed.operator.project_covariance(np.tril(K))), np.tril(F.T @ K @ F), **CLOSE)
    assert_allclose(np.tril(compressed.operator.pull_back(np.tril(A))), np.tril(F @ A @ F.T), **CLOSE)
    value, gradient = exact.evidence_and_gradient(model, compressed)
    expected, expected_gradient = exact.evidence_and_gradient(model, whole)
    assert_allclose(value.log_likelihood, expected.log_likelihood, **CLOSE)
    assert_allclose(gradient, expected_gradient, **CLOSE)
    found, reference = exact.ExactPosterior.condition(model, compressed), Reference.of(model, data, noise)
    assert_allclose(found.interval_variance(data.states), reference.interval_variance(data.states), **CLOSE)


def test_parts_are_the_blocks_of_the_kernel():
    """Terminated episodes with σ²HHᵀ and independent actions: one problem for each action, whose evidences add up."""
    data = sample(MIXES["terminated"], seed=3)
    pairs = np.column_stack([data.states, np.arange(len(data)) % 3])
    data = Trajectories(pairs, data.rewards, data.discounts, data.lengths, data.terminated)
    kernel = SquaredExponential(ARD([0.3, 0.6, 1.1]), 1.3) * ActionDelta(3)
    targets = build_targets(data, "stochastic")
    parts = targets.parts(kernel)
    assert len(parts) == 3
    assert_array_equal(np.sort(np.concatenate([rows for rows, _ in parts])), np.arange(len(targets.y)))
    assert sum(part.n_rows for _, part in parts) == targets.n_rows
    alike = SquaredExponential(ARD([0.3, 0.6, 1.1]), 1.3) * ActionDelta(3, 0.5)
    assert len(targets.parts(alike)) == 1
    assert len(build_targets(data, "deterministic").parts(kernel)) == 1
    found = exact.evidence(Model(kernel, 0.2), targets).log_likelihood
    S = kernel(pairs) + 0.2 * np.eye(len(data))
    y = naive_returns(data)
    expected = -0.5 * (np.linalg.slogdet(2 * np.pi * S)[1] + y @ np.linalg.solve(S, y))
    assert_allclose(found, expected, rtol=1e-9)
