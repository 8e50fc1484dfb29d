"""Values from whole returns by instruments: traces against loops, regression of returns, blocks, shards, files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import GPTD, Trajectories, markov_test
from gptd_rl.estimators import planning
from gptd_rl.inference import instrumental, traces
from gptd_rl.inference.instrumental import InstrumentalPosterior, MomentSolution, MomentStatistics, WhiteFeatures
from gptd_rl.inference.traces import WHOLE_RETURNS, trace_noise, trace_statistics
from gptd_rl.kernels import ARD, Isotropic, paper_kernel
from gptd_rl.temporal.shards import Shard
from tests.helpers import MIXES, naive_returns, sample, segments
from tests.mdps import Drifting, Walk

KERNEL = paper_kernel(ARD([0.3, 0.6, 1.1]), 1.3, 0.4)
CASES = {
    **{name: sample(kinds, seed=1) for name, kinds in MIXES.items()},
    "undiscounted": sample(MIXES["mixed"], seed=2, gamma=1.0),
    "one discount": sample(MIXES["mixed"], seed=3, gamma=0.9),
    "nothing follows": sample(MIXES["mixed"], seed=3, gamma=0.0),
    "terminal rewards": sample(MIXES["mixed"], seed=5, terminal_rewards=True),
    "targets and runs": sample([(1, True), (4, False), (1, True), (3, True)], seed=7, terminal_rewards=True),
}
WALK = Walk(n_cells=9, gamma=0.9)
LINE = Drifting(gamma=0.9, time_limit=25, drift=0.0)

every_case = pytest.mark.parametrize("data", CASES.values(), ids=CASES.keys())


def shard_of(data: Trajectories) -> Shard:
    return Shard.of(data, "stochastic")


def features_of(data: Trajectories) -> WhiteFeatures:
    return WhiteFeatures.of(KERNEL, data.states[::2])


def naive_rows(data: Trajectories, features: WhiteFeatures) -> list[tuple[Any, ...]]:
    """(ψ, x, z, r, γ, step within the segment) of each transition, by a loop over segments."""
    psi, rows = features(data.states), []
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        last = places[-1]
        is_target = terminated and (len(places) == 1 or data.rewards[last] != 0.0)
        z = np.zeros(len(features))
        for step, i in enumerate(places):
            if i == last and not is_target:
                continue
            goes_on = i != last and not (i + 1 == last and terminated and not is_target)
            gamma = data.discounts[i] if goes_on else 0.0
            x = psi[i] - gamma * psi[i + 1] if gamma else psi[i]
            z = psi[i] + (data.discounts[i - 1] * z if step else 0.0)
            rows.append((psi[i], x, z, data.rewards[i], gamma, step))
    return rows


def naive_statistics(data: Trajectories, features: WhiteFeatures) -> MomentStatistics:
    P, X, Z, r, gamma, _ = (np.array(column) for column in zip(*naive_rows(data, features), strict=True))
    losses = 1.0 - gamma
    return MomentStatistics(
        P.T @ P, Z.T @ X, Z.T @ r, X.T @ X, X.T @ r, float(r @ r), len(r), losses.sum(), losses.min(), P.T @ X
    )


def assert_same_statistics(found: MomentStatistics, expected: MomentStatistics, rtol: float = 1e-9) -> None:
    for name in MomentStatistics.__dataclass_fields__:
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=rtol, atol=rtol, err_msg=name)


# ------------------------------------------------------------------------------------------ statistics


@every_case
def test_trace_statistics_are_those_of_a_loop(data):
    features = features_of(data)
    assert_same_statistics(trace_statistics(shard_of(data), features), naive_statistics(data, features))


@every_case
@pytest.mark.parametrize("block", [1, 2, 5])
def test_trace_statistics_and_noise_do_not_depend_on_blocks(data, block, monkeypatch):
    """A trace goes on from one block to the next, but not into the next segment."""
    features, shard = features_of(data), shard_of(data)
    whole = trace_statistics(shard, features)
    solution = MomentSolution.of(whole)
    noise = trace_noise(shard, features, solution)
    monkeypatch.setattr(instrumental, "BLOCK", block)
    assert_same_statistics(trace_statistics(shard, features), whole)
    assert_allclose(trace_noise(shard, features, solution), noise, rtol=1e-8, atol=1e-8 * noise.max())


@pytest.mark.parametrize("seed", range(3))
def test_trace_solution_is_the_same_over_any_shards(seed):
    rng = np.random.default_rng(seed)
    data = LINE.sample(300, rng)
    features = WhiteFeatures.of(paper_kernel(ARD([0.5]), 20.0, 60.0), data.states[::7])
    number = rng.integers(4, size=data.n_segments)
    shards = [shard_of(data[number == i]) for i in range(4) if (number == i).any()]
    total = trace_statistics(shards[0], features)
    for shard in shards[1:]:
        total = total + trace_statistics(shard, features)
    whole, found = MomentSolution.of(trace_statistics(shard_of(data), features)), MomentSolution.of(total)
    assert_allclose(found.weights, whole.weights, rtol=1e-8, atol=1e-8)
    noise = np.sum([trace_noise(shard, features, found) for shard in shards], axis=0)
    expected = trace_noise(shard_of(data), features, whole)
    assert_allclose(noise, expected, rtol=1e-8, atol=1e-8 * expected.max())


@pytest.mark.parametrize("name", ["terminated", "one transition", "terminal rewards"])
def test_trace_statistics_of_terminated_segments_regress_returns_on_features(name):
    """Σ_{t≥s} γ…x_t telescopes to ψ_s where the value of the end is 0: A = ΨᵀΨ and b = Ψᵀy, with y the returns."""
    data = CASES[name] if name != "terminal rewards" else sample(MIXES["terminated"], 4, terminal_rewards=True)
    features = features_of(data)
    found = trace_statistics(shard_of(data), features)
    ends = data.last[data.rewards[data.last] == 0.0]
    kept = np.setdiff1d(np.arange(len(data)), ends)  # terminal states are no rows
    P, y = features(data.states[kept]), naive_returns(data)[kept]
    assert_allclose(found.gram, P.T @ P, rtol=1e-9)
    assert_allclose(found.cross, P.T @ P, rtol=1e-9, atol=1e-11)
    assert_allclose(found.moment, P.T @ y, rtol=1e-9, atol=1e-11)


def test_trace_statistics_of_truncated_segments_bootstrap_at_their_ends_only():
    """A = Σ ψ_s(ψ_s − γ…ψ_L)ᵀ: the value of the state where the segment was cut off."""
    data = CASES["truncated"]
    features = features_of(data)
    psi, A = features(data.states), np.zeros((len(features), len(features)))
    for places in segments(data):
        for s in places[:-1]:
            A = A + np.outer(psi[s], psi[s] - np.prod(data.discounts[s : places[-1]]) * psi[places[-1]])
    assert_allclose(trace_statistics(shard_of(data), features).cross, A, rtol=1e-9, atol=1e-11)


def test_trace_weights_of_terminated_segments_are_those_of_ridge_regression():
    """(ΨᵀΨ + R)w = Ψᵀy; with next to no shrinkage, a table averages the returns from each cell."""
    data = WALK.sample(600, np.random.default_rng(0))
    data = data[data.terminated]
    features = WhiteFeatures.of(paper_kernel(Isotropic(50.0, 1), 100.0, 1.0), WALK.cells)
    known = trace_statistics(shard_of(data), features)
    solution = MomentSolution.of(known)
    left = data.has_transition
    P, y = features(data.states[left]), naive_returns(data)[left]
    assert_allclose(solution.weights, np.linalg.solve(P.T @ P + solution.shrinkage, P.T @ y), rtol=1e-6, atol=1e-8)
    table = features(WALK.cells) @ MomentSolution.of(known, error_variance=1e-9).weights
    averages = [y[data.states[left, 0] == cell].mean() for cell in WALK.cells[:, 0]]
    assert_allclose(table, averages, rtol=1e-5)


# ------------------------------------------------------------------------------------------ noise


@every_case
@pytest.mark.parametrize("longest", [1, 3, 1000])
def test_trace_noise_is_that_of_pieces(data, longest, monkeypatch):
    monkeypatch.setattr(traces, "LONGEST", longest)
    features, shard = features_of(data), shard_of(data)
    solution = MomentSolution.of(trace_statistics(shard, features))
    inverse = np.linalg.inv(solution.statistics.cross + solution.shrinkage)
    rows = naive_rows(data, features)
    smallest = max(min(1.0 - gamma for *_, gamma, _ in rows), 1e-12)
    length = max(1, min(longest, int(10.0 / smallest)))
    W, score = np.zeros_like(inverse), np.zeros(len(inverse))
    for _, x, z, r, _, step in rows:
        if step % length == 0:  # a new piece
            W, score = W + np.outer(score, score), np.zeros(len(inverse))
        leverage = np.clip(x @ inverse @ z, -1.0, instrumental.MAX_LEVERAGE)
        score = score + z * (r - x @ solution.weights) / (1.0 - leverage)
    W += np.outer(score, score)
    assert_allclose(trace_noise(shard, features, solution), W, rtol=1e-5, atol=1e-6 * W.max())


def test_trace_noise_keeps_errors_of_a_segment_together():
    """Where errors within a segment add up, returns are noisier than single errors say: W holds their sum's square."""
    rng = np.random.default_rng(0)
    luck = np.repeat(rng.normal(size=40), 11)  # of a whole episode, and not seen
    states = rng.normal(size=(440, 1))
    discounts, rewards = np.full(440, 0.9), luck.copy()
    discounts[10::11] = rewards[10::11] = 0.0
    data = Trajectories(states, rewards, discounts, np.full(40, 11), np.ones(40, dtype=bool))
    features = WhiteFeatures.of(paper_kernel(Isotropic(1.0, 1), 1.0, 10.0), states[:10])
    solution = MomentSolution.of(trace_statistics(shard_of(data), features))
    posterior = InstrumentalPosterior(features, solution, trace_noise(shard_of(data), features, solution), False)
    x = np.zeros((1, 1))
    std = float(np.sqrt(posterior.variance(x)[0]))
    by_segment = naive_returns(data)[data.has_transition].reshape(40, 10).mean(axis=1)
    assert 0.8 < std / (by_segment.std() / np.sqrt(40)) < 1.5  # single errors say 0.44
    assert abs(posterior.mean(x)[0]) < 3.0 * std


# ------------------------------------------------------------------------------------------ in an estimator

METHODS: dict[str, dict[str, Any]] = {"exact": dict(method="exact"), "sparse": dict(method="sparse", subset_size=12)}
both_methods = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS.keys())


@pytest.fixture
def not_markov(monkeypatch):
    """Whatever the data, they are not taken for Markov."""
    monkeypatch.setattr(planning, "markov_test", lambda data: replace(markov_test(data), pvalue=0.0))


def by_hand(v: GPTD, data: Trajectories) -> InstrumentalPosterior:
    features = v.posterior_.features
    solution = MomentSolution.of(naive_statistics(data, features))
    noise = trace_noise(shard_of(data), features, solution)
    return InstrumentalPosterior(features, solution, noise, True, WHOLE_RETURNS)


@both_methods
@pytest.mark.usefixtures("not_markov")
def test_gptd_of_traces_everything_it_offers(options, tmp_path):
    data, more = (LINE.sample(n, np.random.default_rng(n)) for n in (400, 1600))
    x = np.linspace(-2.0, 2.0, 9)[:, None]
    v = GPTD(n_restarts=0, **options).fit(data)
    assert v.trace_decay_ == 1.0 and not v.bootstrap_ and v.method_ == options["method"]
    expected = by_hand(v, data)
    assert_allclose(v.predict(x), expected.mean(x), rtol=1e-7)
    assert_allclose(v.predict(x, return_std=True)[1] ** 2, expected.variance(x), rtol=1e-5)

    shards = [data[part] for part in np.array_split(np.arange(data.n_segments), 3)]
    sharded = v.condition(iter(shards))
    assert sharded.trace_decay_ == 1.0
    assert_allclose(sharded.confidence_interval(x), v.confidence_interval(x), rtol=1e-8)

    w = gptd_rl.load(v.save(tmp_path / "v.gptd"))
    assert (w.trace_decay_, w.bootstrap_, w.method_, w.thinning_) == (1.0, False, v.method_, v.thinning_)
    assert_allclose(w.predict(x, return_std=True), v.predict(x, return_std=True), rtol=1e-10)
    assert w.log_marginal_likelihood_ == v.log_marginal_likelihood_
    if options["method"] == "exact":
        assert_allclose(w.log_marginal_likelihood(), v.log_marginal_likelihood_, rtol=1e-10)

    theta, before = v.theta_, v.predict(x, return_std=True)[1]
    v.partial_fit(more)
    assert v.trace_decay_ == 1.0
    assert_array_equal(v.theta_, theta)
    assert_allclose(v.predict(x), by_hand(v, data + more).mean(x), rtol=1e-7)
    assert v.predict(x, return_std=True)[1].mean() < 0.8 * before.mean()
    if options["method"] == "exact":
        assert_allclose(w.partial_fit(more).predict(x), v.predict(x), rtol=1e-9)


@pytest.mark.usefixtures("not_markov")
def test_gptd_of_traces_beside_a_prior_mean():
    """V − m learnt from r − Hm: the truth as prior mean leaves next to nothing to learn."""
    data = LINE.sample(400, np.random.default_rng(0))
    x = np.linspace(-2.0, 2.0, 9)[:, None]
    v = GPTD(n_restarts=0, mean=LINE.value).fit(data)
    plain = GPTD(n_restarts=0).fit(data)
    truth = LINE.value(x)
    assert v.trace_decay_ in (None, 1.0) and plain.trace_decay_ == 1.0
    assert np.abs(v.predict(x) - truth).max() < np.abs(plain.predict(x) - truth).max()
