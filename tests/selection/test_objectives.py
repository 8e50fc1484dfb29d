"""What model selection minimises: gradients by central differences, and leaving out by really leaving out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.kernels import DataScale, paper_kernel
from gptd_rl.kernels import base as kernels
from gptd_rl.kernels.metrics import ARD
from gptd_rl.selection.objectives import (
    MIN_OFFSETS,
    LeaveOut,
    MarginalLikelihood,
    Objective,
    Prior,
    episode_groups,
    predict_left_out,
    thinned_parts,
    visit_groups,
)
from gptd_rl.selection.search import SelectionProblem
from gptd_rl.temporal.targets import build_targets
from tests.helpers import (
    METRICS,
    MIXES,
    NOISES,
    Reference,
    assert_gradient,
    assert_same,
    dense_H,
    every_mix_or_metric,
    make_model,
    naive_kernel,
    naive_null_vectors,
    naive_returns,
    sample,
    segments,
)

CLOSE: dict[str, Any] = dict(rtol=1e-8, atol=1e-9)
GROUPS = {"visits": visit_groups, "episodes": episode_groups}


def make_prior(variance: float, spread: list[float]) -> Prior:
    std = np.array(spread)
    return Prior(DataScale(variance, 0.0, std, np.zeros(len(std), dtype=bool)))


def penalized(objective: Objective, prior: Prior) -> Any:
    """The objective with the prior, as a search sees it."""
    return SelectionProblem(objective, (), prior.scale, prior).penalized(objective)


every_mix = pytest.mark.parametrize("mix", ["terminated", "truncated", "mixed"])
every_noise = pytest.mark.parametrize("noise", NOISES)
every_combination = every_mix_or_metric(["terminated", "truncated", "mixed"], METRICS)
every_metric = pytest.mark.parametrize("metric", METRICS)
every_grouping = pytest.mark.parametrize("grouping", GROUPS)


# Gradients


@every_mix_or_metric(MIXES, METRICS)
@every_noise
@pytest.mark.parametrize(
    ("repeated", "merge"), [(False, True), (True, False), (True, True)], ids=["distinct", "unmerged", "merged"]
)
def test_gradient_of_the_evidence(metric, noise, mix, repeated, merge):
    seen = build_targets(sample(MIXES[mix], seed=1, repeated=repeated, terminal_rewards=True), noise, merge=merge)
    assert_gradient(MarginalLikelihood(seen), make_model(metric))


@every_combination
@every_noise
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
def test_gradient_of_the_thinned_evidence(metric, noise, mix, repeated):
    data = sample(MIXES[mix], seed=1, repeated=repeated)
    assert_gradient(
        MarginalLikelihood(*(build_targets(part, noise) for part in thinned_parts(data, 3))), make_model(metric)
    )


@every_combination
@every_noise
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
@every_grouping
def test_gradient_of_leaving_out(metric, noise, mix, repeated, grouping):
    seen = build_targets(sample(MIXES[mix], seed=1, repeated=repeated, terminal_rewards=True), noise, merge=False)
    assert_gradient(LeaveOut(seen, GROUPS[grouping](seen)), make_model(metric))


@every_metric
def test_gradient_of_the_prior(metric):
    assert_gradient(make_prior(2.5, [0.5, 1.0, 3.0]), make_model(metric))


@every_metric
def test_gradient_with_the_prior_added(metric):
    seen = build_targets(sample(MIXES["mixed"], seed=1), "stochastic")
    prior = make_prior(2.5, [0.5, 1.0, 3.0])
    assert_gradient(penalized(MarginalLikelihood(seen), prior), make_model(metric))


@pytest.mark.parametrize("noise_variance", [1e-4, 10.0])
@every_noise
@every_mix
def test_gradient_with_little_and_much_noise(noise_variance, noise, mix):
    model = make_model("ard", noise_variance=noise_variance)
    assert_gradient(MarginalLikelihood(build_targets(sample(MIXES[mix], seed=1), noise)), model, rtol=1e-5)


@every_noise
def test_gradient_beside_a_relevance_of_zero(noise):
    """What is held at zero has no slope; the others have theirs."""
    seen = build_targets(sample(MIXES["mixed"], seed=1), noise)
    model = Model(paper_kernel(ARD([0.0, 0.6, 1.1]), bias=0.0), 0.2)
    _, gradient = MarginalLikelihood(seen)(model)
    without = Model(paper_kernel(ARD([0.6, 1.1]), bias=0.0), 0.2)
    _, expected = MarginalLikelihood(build_targets(seen.data.take_inputs([1, 2]), noise))(without)
    assert_array_equal(gradient[[1, 3]], 0.0)
    assert_allclose(gradient[[0, 2, 4, 5]], expected[[0, 2, 3, 4]], **CLOSE)


# Values


@every_noise
@every_mix
def test_marginal_likelihood_is_minus_the_evidence(noise, mix):
    data, model = sample(MIXES[mix], seed=2), make_model("factor 1")
    value, _ = MarginalLikelihood(build_targets(data, noise))(model)
    assert_allclose(value, -Reference.of(model, data, noise).log_likelihood, **CLOSE)


@every_noise
@every_mix
def test_thinned_evidence_is_the_average_of_evidences(noise, mix):
    data, model = sample(MIXES[mix], seed=2), make_model("factor 1")
    parts = [data.thin(3, offset) for offset in range(2)]
    objective = MarginalLikelihood(*(build_targets(part, noise) for part in parts))
    value, _ = objective(model)
    references = [Reference.of(model, part, noise) for part in parts]
    assert_allclose(value, -np.mean([r.log_likelihood for r in references]), **CLOSE)
    assert_allclose(objective.evidence(model).complexity, np.mean([r.complexity for r in references]), **CLOSE)
    assert_allclose(objective.evidence(model).data_fit, np.mean([r.data_fit for r in references]), **CLOSE)


@every_mix
@pytest.mark.parametrize("offset", [0, 1])
def test_thinned_evidence_is_regression_on_some_of_the_returns(mix, offset):
    """The returns of the kept states, as they are in the whole data, each truncated tail with a flat prior."""
    data, model = sample(MIXES[mix], seed=2, terminal_rewards=True), make_model("ard")
    kept, Z = [], []
    all_null_vectors = naive_null_vectors(data)
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        here = list(places)[offset::3]
        if terminated or len(here) > 1:
            kept += here
            if not terminated:
                Z.append(all_null_vectors[:, [all_null_vectors[places[-1]].argmax()]])
    y = naive_returns(data)[kept]
    S = naive_kernel(model.kernel, data.states[kept], data.states[kept]) + 0.2 * np.eye(len(kept))
    inverse = np.linalg.inv(S)
    log_det = np.linalg.slogdet(S)[1]
    P = inverse
    if Z:
        columns = np.hstack(Z)[kept]
        # Scaled to 1 at the last state kept, as a null vector of the thinned H is.
        for c in columns.T:
            c /= c[np.flatnonzero(c)[-1]]
        inner = columns.T @ inverse @ columns
        P = inverse - inverse @ columns @ np.linalg.solve(inner, columns.T @ inverse)
        log_det += np.linalg.slogdet(inner)[1]
    expected = 0.5 * (log_det + y @ P @ y + (len(kept) - len(Z)) * np.log(2 * np.pi))
    value, _ = MarginalLikelihood(build_targets(data.thin(3, offset), "stochastic"))(model)
    assert_allclose(value, expected, **CLOSE)


def test_prior_by_hand():
    # Σ a·spread²/(2·3) + ½ (log(σ²/(0.3·variance))/1.5)²
    model = Model(paper_kernel(ARD([0.5, 2.0])), noise_variance=0.6)
    value, gradient = make_prior(2.0, [1.0, 3.0])(model)
    assert_allclose(value, (0.5 * 1 + 2.0 * 9) / 6)  # the noise is 0.3 of the variance: no penalty
    assert_allclose(gradient, [0, 0, 0, 0.5 / 6, 18 / 6], atol=1e-15)
    more, slope = make_prior(2.0, [1.0, 3.0])(model.with_noise(0.6 * np.exp(1.0)))
    assert_allclose(more - value, 0.5 / 1.5**2)
    assert_allclose(slope[2], 1 / 1.5**2)


def test_prior_adds_up():
    seen, model = build_targets(sample(MIXES["mixed"]), "stochastic"), make_model("ard")
    prior, objective = make_prior(2.0, [1.0, 1.0, 1.0]), MarginalLikelihood(seen)
    value, gradient = penalized(objective, prior)(model)
    assert_allclose(value, objective(model)[0] + prior(model)[0])
    assert_allclose(gradient, objective(model)[1] + prior(model)[1])


# Thinned parts


def test_thinning_of_one_is_the_data_themselves():
    data = sample(MIXES["mixed"])
    assert thinned_parts(data, 1) == [data]


def test_small_data_are_thinned_from_every_offset():
    data = sample([(20, True), (25, True)])
    parts = thinned_parts(data, 4)
    assert len(parts) == 4
    for offset, part in enumerate(parts):
        assert_same(part, data.thin(4, offset))


def test_large_data_are_thinned_from_a_handful_of_offsets():
    n = 4000
    data = Trajectories.from_episodes(
        [dict(observations=np.arange(n + 1.0), rewards=np.ones(n), terminated=True)], gamma=0.99
    )
    parts = thinned_parts(data, 10)
    assert len(parts) == MIN_OFFSETS
    assert_array_equal([part.states[0, 0] for part in parts], [0, 2, 4, 6, 8])  # evenly spaced


def test_offsets_beyond_the_data_are_left_out():
    data = sample([(5, True), (4, True)])
    parts = thinned_parts(data, 50)
    assert_array_equal([part.states[0, 0] for part in parts], data.states[:4, 0])
    assert [len(part) for part in parts] == [2, 2, 2, 2]  # and none of terminal states alone


def test_segments_too_short_to_be_thinned():
    """No state of a truncated segment has another one ten steps on: nothing is left to average over."""
    with pytest.raises(ValueError, match="no segment is long enough"):
        thinned_parts(sample([(4, False), (6, False)]), 10)


# Leaving out, by brute force


def brute_force(model: Model, targets: np.ndarray, F: np.ndarray, states: np.ndarray, groups):
    """Mean and variance of each target from a Gaussian process that never saw its group; F is [u, q]."""
    S = F.T @ naive_kernel(model.kernel, states, states) @ F
    noise = model.noise_variance
    means, variances = np.zeros(len(targets)), np.zeros(len(targets))
    for group in groups:
        rest = np.setdiff1d(np.concatenate(groups), group)
        inverse = np.linalg.inv(S[np.ix_(rest, rest)] + noise * np.eye(len(rest)))
        for i in group:
            means[i] = S[i, rest] @ inverse @ targets[rest]
            variances[i] = S[i, i] + noise - S[i, rest] @ inverse @ S[rest, i]
    return means, variances


def negative_log_density(targets, means, variances, places):
    r = (targets - means)[places]
    v = variances[places]
    return 0.5 * np.sum(np.log(2 * np.pi * v) + r**2 / v)


def targets_and_operator(data: Trajectories, noise: str):
    """Rewards and Hᵀ; returns and I; or returns and a basis of the row space, padded where there is no row."""
    places = np.flatnonzero(data.has_row)
    if noise == "deterministic":
        F = np.zeros((len(data), len(data)))
        F[:, places] = dense_H(data).T
        return np.where(data.has_row, data.rewards, 0.0), F
    if data.terminated.all():
        return naive_returns(data), np.eye(len(data))
    F = np.eye(len(data))
    for z in naive_null_vectors(data).T:
        last = np.flatnonzero(z)[-1]
        z = z / np.linalg.norm(z)
        z[last] += 1.0
        F -= 2 * np.outer(z, z) / (z @ z)
    F[:, ~data.has_row] = 0.0
    return F.T @ naive_returns(data), F


@every_noise
@pytest.mark.parametrize("mix", [*MIXES])
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
@every_grouping
def test_leaving_out_is_refitting_without(noise, mix, repeated, grouping):
    data, model = sample(MIXES[mix], seed=3, repeated=repeated, terminal_rewards=True), make_model("factor 1")
    seen = build_targets(data, noise, merge=False)
    groups = GROUPS[grouping](seen)
    targets, F = targets_and_operator(data, noise)
    means, variances = brute_force(model, targets, F, data.states, groups)
    places = np.flatnonzero(data.has_row)
    found = predict_left_out(model, seen, groups)
    assert_allclose(found.residuals[places], (targets - means)[places], **CLOSE)
    assert_allclose(found.variances[places], variances[places], **CLOSE)
    value, _ = LeaveOut(seen, groups)(model)
    assert_allclose(value, negative_log_density(targets, means, variances, places), **CLOSE)
    squared = [np.sum((targets - means)[g] ** 2) for g in groups]
    assert_allclose(found.squared_error, squared, **CLOSE)


@pytest.mark.parametrize("mix", ["terminated", "truncated", "mixed"])
def test_groups(mix):
    data = sample(MIXES[mix])
    seen = build_targets(data, "stochastic", merge=False)
    assert_array_equal(np.concatenate(visit_groups(seen)), np.flatnonzero(data.has_row))
    assert all(len(g) == 1 for g in visit_groups(seen))
    for group, places in zip(episode_groups(seen), segments(data), strict=True):
        assert_array_equal(group, [i for i in places if data.has_row[i]])


@every_mix
def test_left_out_episodes_are_predicted_by_a_posterior_of_the_others(mix):
    """Condition on the other episodes with the ordinary posterior, and compare with the returns of the one left out.

    Of a truncated episode returns are known up to its unknown tail, so what lies along the null vector is taken out.
    """
    data, model = sample(MIXES[mix], seed=4), make_model("ard")
    seen = build_targets(data, "stochastic", merge=False)
    found = predict_left_out(model, seen, episode_groups(seen))
    returns = naive_returns(data)
    for s, places in enumerate(segments(data)):
        rest = data[[other for other in range(data.n_segments) if other != s]]
        here = list(places)
        reference = Reference.of(model, rest, "stochastic")
        residuals = returns[here] - reference.mean(data.states[here])
        covariance = reference.covariance(data.states[here]) + 0.2 * np.eye(len(here))
        if not data.terminated[s]:
            z = naive_null_vectors(data)[here].sum(axis=1)
            Pi = np.eye(len(here)) - np.outer(z, z) / (z @ z)
            residuals, covariance = Pi @ residuals, Pi @ covariance @ Pi
        assert_allclose(found.squared_error[s], residuals @ residuals, **CLOSE)
        assert_allclose(found.variances[here].sum(), np.trace(covariance), **CLOSE)


# Leaving out, by the identities of MATHS.md


def dense_P(data: Trajectories, model: Model) -> tuple[np.ndarray, np.ndarray]:
    reference = Reference.of(model, data, "stochastic")
    P = reference.H.T @ np.linalg.solve(reference.Q, reference.H)
    return P, P @ naive_returns(data)


def test_leave_one_out_residuals_of_terminated_data():
    data, model = sample(MIXES["terminated"], seed=5), make_model("ard")
    P, alpha = dense_P(data, model)
    seen = build_targets(data, "stochastic", merge=False)
    found = predict_left_out(model, seen, visit_groups(seen))
    assert_allclose(found.residuals, alpha / np.diag(P), **CLOSE)
    assert_allclose(found.variances, 1 / np.diag(P), **CLOSE)


@every_mix
def test_leave_one_episode_out_residuals(mix):
    """P_ee⁺α_e, with the pseudo-inverse for truncated segments, whose P_ee is singular along z."""
    data, model = sample(MIXES[mix], seed=5), make_model("ard")
    P, alpha = dense_P(data, model)
    seen = build_targets(data, "stochastic", merge=False)
    found = predict_left_out(model, seen, episode_groups(seen))
    on_states = seen.operator.matvec(found.residuals)
    for s, places in enumerate(segments(data)):
        e = list(places)
        inverse = np.linalg.pinv(P[np.ix_(e, e)], rcond=1e-10, hermitian=True)
        assert_allclose(on_states[e], inverse @ alpha[e], **CLOSE)
        assert_allclose(found.variances[e].sum(), np.trace(inverse), **CLOSE)
        if not data.terminated[s]:
            z = naive_null_vectors(data)[e].sum(axis=1)
            assert_allclose(P[np.ix_(e, e)] @ z, 0.0, atol=1e-10)
            assert_allclose(z @ on_states[e], 0.0, atol=1e-10)  # free of the unknown tail


@every_mix
@every_grouping
def test_leaving_out_does_not_care_for_the_tail(mix, grouping):
    """Rewards are all that counts: the returns of a truncated run shifted along its null vector are as good."""
    data, model = sample(MIXES[mix], seed=6), make_model("ard")
    seen = build_targets(data, "stochastic", merge=False)
    Z = naive_null_vectors(data)
    shifted = seen.operator.rmatvec(naive_returns(data) + Z @ np.full(Z.shape[1], 7.0))
    assert_allclose(shifted[data.has_row], seen.y[data.has_row], **CLOSE)
    value, _ = LeaveOut(seen, GROUPS[grouping](seen))(model)
    assert np.isfinite(value)


def test_the_objective_of_one_episode_is_its_prior():
    """Leaving out the only episode leaves nothing to predict from: mean 0, variance k + σ²."""
    data, model = sample([(6, True)], seed=7), make_model("ard")
    seen = build_targets(data, "stochastic", merge=False)
    found = predict_left_out(model, seen, episode_groups(seen))
    assert_allclose(found.residuals, naive_returns(data), **CLOSE)
    assert_allclose(found.variances, 1.3 + 0.4 + 0.2, **CLOSE)


@every_noise
@pytest.mark.parametrize("terminated", [True, False])
def test_evaluating_again_and_again(noise, terminated, monkeypatch):
    """The buffer of an objective is used again hundreds of times; what piles up in its unused half must not burst."""
    monkeypatch.setattr(kernels, "TILE", 2)
    data = sample([(100, terminated)] * 4, repeated=True)
    objective, model = MarginalLikelihood(build_targets(data, noise)), make_model("ard")
    first = objective(model)
    for _ in range(200):
        again = objective(model)
    assert again[0] == first[0]
    assert_array_equal(again[1], first[1])


@every_noise
@every_mix
def test_objectives_leave_the_observations_alone(noise, mix):
    """Buffers are overwritten inside; nothing that is kept may be."""
    data, model = sample(MIXES[mix], seed=8), make_model("ard")
    seen = build_targets(data, noise, merge=False)
    objectives: list[Objective] = [
        MarginalLikelihood(seen),
        *(LeaveOut(seen, groups(seen)) for groups in GROUPS.values()),
    ]
    for objective in objectives:
        first, again = objective(model), objective(model)
        assert first[0] == again[0]
        assert_array_equal(first[1], again[1])
    assert_allclose(exact.evidence(model, seen).log_likelihood, Reference.of(model, data, noise).log_likelihood)
