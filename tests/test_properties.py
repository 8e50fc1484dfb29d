"""What must hold for any data and any parameters, on whatever hypothesis comes up with."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.kernels import paper_kernel
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.temporal.targets import build_targets
from tests.helpers import (
    NOISES,
    assert_same,
    dense_H,
    naive_null_vectors,
    naive_returns,
    sample,
    segments,
)

# The same examples in every run: a failure of CI can be had again at home.
examples = settings(max_examples=40, deadline=None, derandomize=True)

N_DIMS = 2

seeds = st.integers(0, 2**32 - 1)
noises = st.sampled_from(NOISES)
kinds = st.lists(st.tuples(st.integers(2, 9), st.booleans()), min_size=1, max_size=5)


@st.composite
def trajectories(draw, repeated: bool | None = None) -> Trajectories:
    gamma, chosen = draw(st.sampled_from([None, 0.0, 0.5, 0.99, 1.0])), draw(kinds)
    if gamma == 1.0 and not any(terminated for _, terminated in chosen):
        gamma = 0.999  # a sum without end has no value
    return sample(
        chosen,
        draw(seeds),
        n_dims=N_DIMS,
        repeated=draw(st.booleans()) if repeated is None else repeated,
        gamma=gamma,
        terminal_rewards=draw(st.booleans()),
    )


def positive(low: float, high: float):
    """Numbers between two bounds, evenly in the logarithm."""
    return st.floats(np.log10(low), np.log10(high)).map(lambda exponent: 10.0**exponent)


def relevances(low: float, high: float):
    return st.lists(positive(low, high), min_size=N_DIMS, max_size=N_DIMS)


@st.composite
def metrics(draw, low=1e-3, high=1e2):
    kind = draw(st.sampled_from(["isotropic", "ard", "factor"]))
    if kind == "isotropic":
        return Isotropic(draw(positive(low, high)), N_DIMS)
    a = draw(relevances(low, high))
    if kind == "ard":
        return ARD(a)
    rank = draw(st.integers(1, N_DIMS))
    loadings = st.lists(st.floats(-3, 3), min_size=rank * N_DIMS, max_size=rank * N_DIMS)
    return FactorAnalysis(a, np.reshape(draw(loadings), (N_DIMS, rank)))


@st.composite
def models(draw) -> Model:
    kernel = paper_kernel(draw(metrics()), draw(positive(1e-2, 1e2)), draw(positive(1e-2, 1e2)))
    return Model(kernel, draw(positive(1e-3, 1e1)))


def new_states(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(scale=2.0, size=(5, N_DIMS))


# Kernels


@examples
@given(
    metric=metrics(1e-6, 1e6), scale=positive(1e-3, 1e3), bias=positive(1e-6, 1e6), seed=seeds, repeated=st.booleans()
)
def test_kernels_are_positive_semidefinite(metric, scale, bias, seed, repeated):
    states = np.random.default_rng(seed).normal(scale=scale, size=(12, N_DIMS))
    if repeated:
        states = np.concatenate([states, states])
    kernel = paper_kernel(metric, 1.0, bias)
    K = kernel(states)
    assert_allclose(K, K.T, rtol=1e-6)
    assert np.linalg.eigvalsh(0.5 * (K + K.T)).min() >= -1e-7 * (1.0 + bias)
    assert np.linalg.eigvalsh(metric.matrix).min() >= -1e-9 * metric.matrix.max()
    assert K.max() <= kernel.diagonal(states)[0]
    assert K.min() >= bias


# H


@examples
@given(trajectories())
def test_H_turns_returns_into_rewards(data):
    H = TemporalDifference.of(data)
    assert_allclose(H.matmul(H.returns(data.rewards)), data.rewards[data.has_row], atol=1e-12)
    assert_allclose(H.matmul(H.null_vectors()), 0.0, atol=1e-12)


@examples
@given(trajectories(), seeds)
def test_H_and_its_transpose_are_adjoint(data, seed):
    H = TemporalDifference.of(data)
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=len(data)), rng.normal(size=len(data))
    assert_allclose(weights @ H.apply(values), values @ H.apply_transposed(weights), atol=1e-11)
    assert_allclose(H.matmul(np.eye(len(data))), dense_H(data), atol=1e-15)


# Posterior and evidence


@examples
@given(trajectories(), models(), noises, st.booleans())
def test_data_never_widen_the_prior(data, model, noise, merge):
    posterior = exact.ExactPosterior.condition(model, build_targets(data, noise, merge=merge))
    states = np.concatenate([new_states(), data.states])
    prior = model.kernel.diagonal(states)
    variance = posterior.variance(states)
    assert (variance > 0).all()
    assert (variance <= prior * (1 + 1e-12)).all()
    assert (posterior.interval_variance(states) >= variance).all()
    assert np.isfinite(posterior.mean(states)).all()


@examples
@given(trajectories(), trajectories(), models(), noises)
def test_more_data_never_widen_the_posterior(some, more, model, noise):
    states = new_states()
    before = exact.ExactPosterior.condition(model, build_targets(some, noise)).variance(states)
    after = exact.ExactPosterior.condition(model, build_targets(some + more, noise)).variance(states)
    assert (after <= before + 1e-9 * model.kernel.diagonal(states)).all()


@examples
@given(trajectories(), models(), noises, st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(data, model, noise, random):
    order = list(range(data.n_segments))
    random.shuffle(order)
    one, other = build_targets(data, noise), build_targets(data[order], noise)
    (value, gradient), (value_2, gradient_2) = (exact.evidence_and_gradient(model, targets) for targets in (one, other))
    assert_allclose(value_2.log_likelihood, value.log_likelihood, rtol=1e-8)
    assert_allclose(gradient_2, gradient, rtol=1e-6, atol=1e-6)
    posterior, posterior_2 = (exact.ExactPosterior.condition(model, targets) for targets in (one, other))
    states = new_states()
    assert_allclose(posterior_2.mean(states), posterior.mean(states), rtol=1e-6, atol=1e-6)
    assert_allclose(posterior_2.variance(states), posterior.variance(states), rtol=1e-5, atol=1e-8)
    assert_allclose(posterior_2.interval_variance(states), posterior.interval_variance(states), rtol=1e-5, atol=1e-7)


@examples
@given(trajectories(repeated=True), models(), noises)
def test_merging_visits_changes_nothing(data, model, noise):
    merged, whole = build_targets(data, noise), build_targets(data, noise, merge=False)
    assume(len(merged.states) < len(whole.states))
    (value, gradient), (value_2, gradient_2) = (
        exact.evidence_and_gradient(model, targets) for targets in (merged, whole)
    )
    assert_allclose(value.complexity, value_2.complexity, rtol=1e-8, atol=1e-8)
    assert_allclose(value.data_fit, value_2.data_fit, rtol=1e-7, atol=1e-8)
    assert value.n_rows == value_2.n_rows
    assert_allclose(gradient, gradient_2, rtol=1e-6, atol=1e-5)
    posterior, posterior_2 = (exact.ExactPosterior.condition(model, targets) for targets in (merged, whole))
    states = np.concatenate([new_states(), data.states])
    assert_allclose(posterior.mean(states), posterior_2.mean(states), rtol=1e-6, atol=1e-6)
    assert_allclose(posterior.variance(states), posterior_2.variance(states), rtol=1e-5, atol=1e-7)
    assert_allclose(posterior.interval_variance(states), posterior_2.interval_variance(states), rtol=1e-5, atol=1e-6)


@examples
@given(trajectories(), models(), noises, st.sampled_from([1e-3, 0.5, 40.0]))
def test_units_of_reward_do_not_matter(data, model, noise, unit):
    """Rewards c times as large, variances c² times: the same density, per unit; the mean c times as large."""
    scaled = Trajectories(data.states, unit * data.rewards, data.discounts, data.lengths, data.terminated)
    kernel = model.kernel
    bigger = Model(
        paper_kernel(kernel.metric, unit**2 * kernel.signal_variance, unit**2 * kernel.bias),
        unit**2 * model.noise_variance,
    )
    one, other = exact.evidence(model, build_targets(data, noise)), exact.evidence(bigger, build_targets(scaled, noise))
    assert_allclose(other.data_fit, one.data_fit, rtol=1e-6, atol=1e-8)
    assert_allclose(other.complexity, one.complexity + one.n_rows * np.log(unit), rtol=1e-8, atol=1e-6)
    states = new_states()
    mean, mean_2 = (
        exact.ExactPosterior.condition(m, build_targets(d, noise)).mean(states)
        for m, d in ((model, data), (bigger, scaled))
    )
    assert_allclose(mean_2, unit * mean, rtol=1e-6, atol=1e-6 * unit)


@examples
@given(trajectories(), models(), noises)
def test_the_origin_of_states_does_not_matter(data, model, noise):
    shift = np.array([30.0, -7.0])
    moved = Trajectories(data.states + shift, data.rewards, data.discounts, data.lengths, data.terminated)
    one, other = exact.evidence(model, build_targets(data, noise)), exact.evidence(model, build_targets(moved, noise))
    assert_allclose(other.log_likelihood, one.log_likelihood, rtol=1e-6, atol=1e-6)


# Cutting, joining, thinning


@examples
@given(trajectories(), st.data())
def test_shards_of_whole_episodes_add_up(data, drawn):
    cuts = drawn.draw(st.sets(st.integers(1, data.n_segments - 1)) if data.n_segments > 1 else st.just(set()))
    edges = [0, *sorted(cuts), data.n_segments]
    shards = [data[a:b] for a, b in pairwise(edges)]
    assert sum(len(s) for s in shards) == len(data)
    assert sum(s.n_rows for s in shards) == data.n_rows
    together = Trajectories.concatenate(shards)
    assert_same(together, data)
    assert_allclose(  # H is block diagonal: what a shard says of itself is what the whole says of it
        np.concatenate([TemporalDifference.of(s).returns(s.rewards) for s in shards]),
        TemporalDifference.of(data).returns(data.rewards),
    )
    added = shards[0]
    for shard in shards[1:]:
        added = added + shard
    assert_same(added, data)


@examples
@given(kinds, models(), noises, seeds, st.integers(1, 4))
def test_evidence_of_a_run_read_in_shards(kinds, model, noise, seed, per_shard):
    """Episodes read at once, or a few at a time and then joined: one and the same evidence."""
    data = sample(kinds, seed, n_dims=N_DIMS)
    episodes = [
        dict(
            observations=part.states,
            rewards=part.rewards[:-1],
            discounts=part.discounts[:-1],
            terminated=part.terminated[0],
            truncated=not part.terminated[0],
        )
        for part in data
    ]
    at_once = Trajectories.from_episodes(episodes)
    assert_same(at_once, data)
    groups = [episodes[i : i + per_shard] for i in range(0, len(episodes), per_shard)]
    joined = Trajectories.concatenate([Trajectories.from_episodes(group) for group in groups])
    value, gradient = exact.evidence_and_gradient(model, build_targets(at_once, noise))
    value_2, gradient_2 = exact.evidence_and_gradient(model, build_targets(joined, noise))
    assert value_2 == value
    assert_array_equal(gradient_2, gradient)


@examples
@given(kinds, seeds, st.booleans())
def test_a_chain_with_resets_is_a_list_of_episodes(kinds, seed, last_terminated):
    """All episodes but the last end in a reset; the last may be cut off."""
    flags = [True] * (len(kinds) - 1) + [last_terminated]
    data = sample([(length, flag) for (length, _), flag in zip(kinds, flags, strict=True)], seed, n_dims=N_DIMS)
    episodes = [
        dict(observations=p.states, rewards=p.rewards[:-1], discounts=p.discounts[:-1], terminated=p.terminated[0])
        for p in data
    ]
    states, rewards, gammas = data.states, data.rewards, data.discounts
    if last_terminated:  # the last reset needs a state to lead to
        states = np.vstack([states, np.zeros(N_DIMS)])
    else:
        rewards, gammas = rewards[:-1], gammas[:-1]
    chain = Trajectories.from_chain(states, rewards, gammas)
    assert_same(chain, data)
    assert_same(chain, Trajectories.from_episodes(episodes))


@examples
@given(trajectories(), st.integers(1, 12))
def test_thinning_partitions_states_and_keeps_returns(data, every):
    seen = np.zeros(len(data), dtype=int)
    returns = naive_returns(data)
    Z = naive_null_vectors(data).sum(axis=1)
    for offset in range(every):
        expected = []  # of each segment that keeps a row, the places kept
        for places, terminated in zip(segments(data), data.terminated, strict=True):
            here = list(places)[offset::every]
            if len(here) >= (1 if terminated else 2):
                expected.append((here, bool(terminated)))
            elif here:
                seen[here] += 1  # a lone last state of a truncated run: no row, nothing to tell
        if not expected:
            with pytest.raises(ValueError, match="no segment is long enough"):
                data.thin(every, offset)
            continue
        thinned = data.thin(every, offset)
        kept = np.concatenate([here for here, _ in expected])
        seen[kept] += 1
        assert_array_equal(thinned.states, data.states[kept])
        assert_array_equal(thinned.lengths, [len(here) for here, _ in expected])
        assert_array_equal(thinned.terminated, [terminated for _, terminated in expected])
        found, null = naive_returns(thinned), naive_null_vectors(thinned).sum(axis=1)
        for (here, terminated), those in zip(expected, segments(thinned), strict=True):
            if terminated:
                assert_allclose(found[list(those)], returns[here], atol=1e-12)
                continue
            # the bootstrap of 0 has moved to the last state kept: a multiple of the null vector
            shift = returns[here[-1]]
            assert_allclose(found[list(those)], returns[here] - shift * null[list(those)], atol=1e-12)
            assert_allclose(null[list(those)] * Z[here[-1]], Z[here], atol=1e-12)
    assert_array_equal(seen, 1)


@examples
@given(trajectories(), st.integers(1, 4), st.integers(1, 4))
def test_thinning_twice_is_thinning_more(data, first, second):
    assume(data.terminated.all() or (data.lengths > first * second).all())
    once, twice = data.thin(first * second), data.thin(first).thin(second)
    assert_array_equal(twice.states, once.states)
    assert_array_equal(twice.terminated, once.terminated)
    assert_allclose(twice.rewards, once.rewards, atol=1e-12)
    assert_allclose(twice.discounts, once.discounts, atol=1e-15)


@examples
@given(trajectories(), st.integers(1, 10))
def test_cutting_keeps_every_row(data, longest):
    """Cut pieces share their ends, so each row of H is there once more, and its product with values is the same."""
    cut = data.cut(longest)
    values = np.random.default_rng(0).normal(size=len(data))
    at_places = np.concatenate(
        [
            values[first : min(first + longest, places[-1]) + 1]
            for places in segments(data)
            for first in range(places[0], places[-1], longest)
        ]
    )
    assert_array_equal(
        TemporalDifference.of(cut).matmul(at_places),
        TemporalDifference.of(data).matmul(values),
    )
    assert_array_equal(cut.rewards[cut.has_row], data.rewards[data.has_row])
