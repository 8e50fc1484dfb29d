"""Values by instruments online equal those of the batch with the same features, after every transition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import growing, instrumental, online_instrumental
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.instrumental import (
    InstrumentalPosterior,
    MomentSolution,
    MomentStatistics,
    WhiteFeatures,
    moment_noise,
    moment_statistics,
)
from gptd_rl.inference.online_instrumental import OnlineInstrumentalPosterior
from gptd_rl.kernels import paper_kernel
from gptd_rl.kernels.metrics import Isotropic
from gptd_rl.temporal.shards import Shard
from gptd_rl.types import Array
from tests.helpers import MIXES, make_model, sample
from tests.mdps import Walk

MODEL = make_model("ard")
SOMEWHERE = np.random.default_rng(99).normal(size=(12, 3))
OPTIONS: dict[str, Any] = dict(noise_variance=0.2, tolerance=1e-3, max_size=None, keep_history=True, forgetting=1.0)


def make(kernel: Any = MODEL.kernel, **options: Any) -> OnlineInstrumentalPosterior:
    return OnlineInstrumentalPosterior(kernel, **(OPTIONS | options))


def batch(p: OnlineInstrumentalPosterior, data: Trajectories) -> InstrumentalPosterior:
    """The batch posterior of `data` with the dictionary of `p`."""
    features = WhiteFeatures(InducingFeatures(p.features.split.kernel, p.inducing_points, whitened=True))
    shard = Shard.of(data, "stochastic")
    solution = MomentSolution.of(moment_statistics(shard, features))
    return InstrumentalPosterior(features, solution, moment_noise(shard, features, solution), is_exact=False)


def assert_equal_posteriors(ours: Any, theirs: Any, states: Array = SOMEWHERE, rtol: float = 1e-8) -> None:
    assert_allclose(ours.mean(states), theirs.mean(states), rtol=rtol, atol=rtol)
    assert_allclose(ours.variance(states), theirs.variance(states), rtol=rtol)
    assert_array_equal(ours.interval_variance(states), ours.variance(states))


def take_in(p: OnlineInstrumentalPosterior, data: Trajectories) -> Iterator[Trajectories]:
    """Take in `data` step by step; after each step all data so far, the running segment cut off."""
    past: list[Trajectories] = []
    for segment in data:
        p.start(segment.states[0])
        for i in range(len(segment) - 1):
            p.step(segment.rewards[i], segment.discounts[i], segment.states[i + 1])
            rewards, discounts = segment.rewards[: i + 2].copy(), segment.discounts[: i + 2].copy()
            rewards[-1] = discounts[-1] = 0.0
            cut = Trajectories(segment.states[: i + 2], rewards, discounts, np.array([i + 2]), np.array([False]))
            yield Trajectories.concatenate([*past, cut])
        p.stop(bool(segment.terminated[0]), segment.rewards[-1])
        past.append(segment)
        yield Trajectories.concatenate(past)


# -------------------------------------------------------------------------------------- equal to the batch


@pytest.mark.parametrize("gamma", [None, 0.0, 1.0])
@pytest.mark.parametrize("mix", MIXES)
def test_equals_batch_after_every_step_and_every_end(mix, gamma):
    p = make(tolerance=0.5)
    for so_far in take_in(p, sample(MIXES[mix], gamma=gamma)):
        assert_equal_posteriors(p, batch(p, so_far))


def test_equals_batch_while_the_dictionary_grows_now_and_then():
    p, sizes = make(tolerance=0.5), []
    for so_far in take_in(p, sample([(20, False), (30, True), (20, True), (30, False)])):
        assert_equal_posteriors(p, batch(p, so_far))
        sizes.append(len(p.inducing_points))
    growth = np.flatnonzero(np.diff(sizes))
    assert sizes[growth[-1]] < growth[-1] / 2 and len(growth) > 10  # past states that are not in the dictionary count


@pytest.mark.parametrize("metric", ["isotropic", "factor 2"])
@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_equals_batch_for_other_kernels_and_repeated_states(bias, metric):
    p = make(make_model(metric, bias=bias).kernel)
    for so_far in take_in(p, sample(MIXES["mixed"], repeated=True)):
        assert_equal_posteriors(p, batch(p, so_far))
    assert len(p.inducing_points) <= 4


def test_equals_batch_where_terminal_states_are_regression_targets():
    data = sample(MIXES["mixed"], terminal_rewards=True).thin(4, offset=1)
    assert 1 in data.lengths and np.any(data.rewards[data.last] != 0.0)
    p = make()
    assert_equal_posteriors(p.condition_on(data), batch(p, data))


def test_equals_batch_on_a_stochastic_walk_whose_past_is_read_in_blocks(monkeypatch):
    for module in (growing, instrumental):
        monkeypatch.setattr(module, "BLOCK", 64)
    walk = Walk()
    data = walk.sample(500, np.random.default_rng(0))
    p = make(paper_kernel(Isotropic(0.05, 1), 20.0, 60.0), tolerance=1e-4).condition_on(data)
    assert_equal_posteriors(p, batch(p, data), walk.cells, rtol=1e-6)


def test_a_full_dictionary_still_equals_batch():
    p = make(max_size=6)
    for so_far in take_in(p, sample(MIXES["mixed"])):
        assert_equal_posteriors(p, batch(p, so_far))
    assert len(p.inducing_points) == 6


def test_the_order_of_segments_does_not_matter():
    """Features of all states in another order are the same functions in other white coordinates."""
    data = sample([(6, True), (4, False), (8, True), (5, False)])
    forth, back = make(tolerance=1e-6).condition_on(data), make(tolerance=1e-6)
    for segment in reversed(list(data)):
        back.condition_on(segment)
    assert len(forth.inducing_points) == len(back.inducing_points) == len(data)
    assert_equal_posteriors(forth, back, rtol=1e-6)


def test_one_state_at_a_time_equals_all_at_once():
    p = make(tolerance=0.1).condition_on(sample([(30, False), (20, True)]))
    for i, x in enumerate(SOMEWHERE):
        assert_allclose(p.mean(x[None]), p.mean(SOMEWHERE)[i : i + 1], rtol=1e-12)
        assert_allclose(p.variance(x[None]), p.variance(SOMEWHERE)[i : i + 1], rtol=1e-12)
    assert_allclose(np.diag(p.covariance(SOMEWHERE)), p.variance(SOMEWHERE), rtol=1e-9)
    assert p.mean(SOMEWHERE[:0]).shape == p.variance(SOMEWHERE[:0]).shape == (0,)


# -------------------------------------------------------------------------------------- forgetting, by loops


def naive(p: OnlineInstrumentalPosterior, data: Trajectories, states: Array) -> tuple[Array, Array]:
    """Mean and variance with rows of the weight λ^age, each sum a loop; no segment has a regression target."""
    rows: list[tuple[Array, Array, float, float]] = []
    for segment in data:
        Psi = p.features(segment.states)
        for i in range(len(segment) - 1):
            ends = bool(segment.terminated[0]) and i == len(segment) - 2
            gamma = 0.0 if ends else float(segment.discounts[i])
            rows.append((Psi[i], Psi[i] - gamma * Psi[i + 1], float(segment.rewards[i]), 1.0 - gamma))
    omega = [p.forgetting**age for age in range(len(rows))][::-1]
    G = sum(o * np.outer(psi, psi) for o, (psi, *_) in zip(omega, rows, strict=True))
    A = sum(o * np.outer(psi, x) for o, (psi, x, *_) in zip(omega, rows, strict=True))
    XX = sum(o * np.outer(x, x) for o, (_, x, *_) in zip(omega, rows, strict=True))
    b = sum(o * r * psi for o, (psi, _, r, _) in zip(omega, rows, strict=True))
    Xr = sum(o * r * x for o, (_, x, r, _) in zip(omega, rows, strict=True))
    rr, lost = (
        sum(o * c for o, c in zip(omega, column, strict=True))
        for column in [[t[2] ** 2 for t in rows], [t[3] for t in rows]]
    )
    known: Any = (G, A, b, XX, Xr, rr, sum(omega), lost, min(t[3] for t in rows))
    solution = MomentSolution.of(MomentStatistics(*known))
    R, w = solution.shrinkage, solution.weights
    M = np.linalg.inv(A + R)
    assert_allclose(M @ b, w, rtol=1e-8)
    W = np.zeros_like(R)
    for o, (psi, x, r, _) in zip(omega, rows, strict=True):
        W += o * ((r - x @ w) / (1.0 - np.clip(o * x @ M @ psi, -1.0, 0.9))) ** 2 * np.outer(psi, psi)
    P = p.features(states)
    return P @ w, np.diag(P @ M @ (W + R @ R.T) @ M.T @ P.T) + p.features.residual_variance(states)


@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_forgetting_weighs_rows_by_their_age(forgetting):
    p = make(forgetting=forgetting, tolerance=0.5)
    for so_far in take_in(p, sample([(12, False), (20, True), (15, False)])):
        mean, variance = naive(p, so_far, SOMEWHERE)
        assert_allclose(p.mean(SOMEWHERE), mean, rtol=1e-7, atol=1e-8)
        assert_allclose(p.variance(SOMEWHERE), variance, rtol=1e-7)


def test_forgetting_forgets():
    a, b = np.zeros(3), np.full(3, 9.0)
    keeps, forgets = make(), make(forgetting=0.9)
    for p in (keeps, forgets):
        for reward in [1.0] * 50 + [-1.0] * 50:
            p.start(a)
            p.step(reward, 0.0, b)
            p.stop(terminated=False)
    assert_allclose(keeps.mean(a[None]), 0.0, atol=0.05)
    assert forgets.mean(a[None])[0] < -0.9


# -------------------------------------------------------------------------------------- without a history


def test_without_history_the_mean_is_close_for_a_small_tolerance():
    data = sample([(60, False), (40, True), (50, False)])
    errors = []
    for tolerance in (1e-1, 1e-3, 1e-5):
        all_known, forgotten = (make(tolerance=tolerance, keep_history=k).condition_on(data) for k in (True, False))
        assert_array_equal(forgotten.inducing_points, all_known.inducing_points)
        errors.append(np.abs(forgotten.mean(SOMEWHERE) - all_known.mean(SOMEWHERE)).max())
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 5e-3 < errors[0]  # it is an approximation


def test_without_history_errors_are_those_of_the_weights_before_each_transition(monkeypatch):
    monkeypatch.setattr(online_instrumental, "REFRESH", 0.0)  # solve after each row
    data = sample([(8, False), (6, True)])
    p, past = make(keep_history=False), make()
    for q in (p, past):
        for state in data.states:
            q._enter(state)  # nothing is approximate but W
    W, weights = np.zeros((len(p.features), len(p.features))), np.zeros(len(p.features))
    for segment in data:
        Psi = p.features(segment.states)
        for i in range(len(segment) - 1):
            ends = bool(segment.terminated[0]) and i == len(segment) - 2
            x = Psi[i] - (0.0 if ends else segment.discounts[i]) * Psi[i + 1]
            W += (segment.rewards[i] - x @ weights) ** 2 * np.outer(Psi[i], Psi[i])
            past.start(segment.states[i])
            past.step(segment.rewards[i], segment.discounts[i], segment.states[i + 1])
            past.stop(terminated=ends)
            weights = past.solution.weights
    p.condition_on(data)
    assert_allclose(p.batch.noise, W, rtol=1e-8, atol=1e-12)
    assert_allclose(p.mean(SOMEWHERE), past.mean(SOMEWHERE), rtol=1e-8)


@pytest.mark.parametrize("keep_history", [True, False])
def test_predictions_do_not_change_what_is_learnt(keep_history):
    silent, asked = (make(tolerance=0.1, keep_history=keep_history) for _ in range(2))
    data = sample([(20, False), (30, True)])
    for _ in take_in(asked, data):
        asked.variance(SOMEWHERE)
    assert_equal_posteriors(silent.condition_on(data), asked, rtol=1e-12)


def test_without_history_memory_does_not_grow():
    p = make(keep_history=False, max_size=5).condition_on(sample([(300, False)]))
    assert p.history is None and p.noise is not None
    assert p.moments.gram.shape == (13, 13) and p.noise.moments.shape == (6, 6)


# -------------------------------------------------------------------------------------- little data, little noise


def test_before_the_first_transition_it_is_the_prior():
    p = make()
    p.start(SOMEWHERE[0])
    assert_array_equal(p.mean(SOMEWHERE), np.zeros(12))
    assert_allclose(p.variance(SOMEWHERE), MODEL.kernel.diagonal(SOMEWHERE), rtol=1e-10)


@pytest.mark.parametrize("keep_history", [True, False])
def test_rewards_of_zero_take_the_given_noise(keep_history):
    data = sample([(30, False), (20, True)], gamma=0.9)
    silent = Trajectories(data.states, np.zeros(len(data)), data.discounts, data.lengths, data.terminated)
    p = make(tolerance=0.1, keep_history=keep_history).condition_on(silent)
    assert_array_equal(p.mean(SOMEWHERE), np.zeros(12))
    assert p.solution.error_variance == 0.2
    assert np.all(p.variance(SOMEWHERE) < MODEL.kernel.diagonal(SOMEWHERE))
    noisier = make(noise_variance=2.0, tolerance=0.1, keep_history=keep_history).condition_on(silent)
    assert np.all(noisier.variance(SOMEWHERE) > p.variance(SOMEWHERE))


@pytest.mark.parametrize("options", [dict(), dict(keep_history=False), dict(forgetting=0.99)], ids=str)
def test_a_corridor_without_noise_and_discount_is_solved(options):
    """V(x) = x − 10 by hand. TD errors vanish, and with them the regulariser: variances stay variances."""
    x = np.arange(10.0)[:, None]
    p = make(paper_kernel(Isotropic(0.1, 1), 10.0, 10.0), tolerance=1e-6, **options)
    for _ in range(20):
        p.start(x[0])
        for here in x:
            p.step(-1.0, 1.0, here + 1.0)
            assert np.all(p.variance(x) >= 0.0) and np.all(np.isfinite(p.mean(x)))
        p.stop(terminated=True)
    assert_allclose(p.mean(x), x[:, 0] - 10.0, atol=0.02)


def test_intervals_cover_on_a_stochastic_walk():
    """95 % intervals of 500 transitions, with and without a history, over six data sets."""
    walk = Walk()
    truth, kernel = walk.value(walk.cells), paper_kernel(Isotropic(0.05, 1), 20.0, 60.0)
    for keep_history in (True, False):
        inside = []
        for seed in range(6):
            p = make(kernel, keep_history=keep_history).condition_on(walk.sample(500, np.random.default_rng(seed)))
            error = np.abs(p.mean(walk.cells) - truth)
            inside.append(np.mean(error <= 1.96 * np.sqrt(p.interval_variance(walk.cells))))
        assert np.mean(inside) > 0.85
