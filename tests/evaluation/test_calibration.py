"""Intervals from errors at left-out episodes: by hand, by loops, and on made-up data whose law is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.evaluation import calibration
from gptd_rl.evaluation.calibration import Calibrated, Scale, calibrate, left_out, stack
from gptd_rl.evaluation.value_models import Returns, monte_carlo


def numbered(lengths: list[int], terminated: list[bool], gamma: float = 0.9) -> Trajectories:
    """Every state is its own number, from 1."""
    n = sum(lengths)
    last = np.cumsum(lengths) - 1
    discounts, rewards = np.full(n, gamma), np.random.default_rng(0).normal(size=n)
    discounts[last] = rewards[last] = 0.0
    return Trajectories(np.arange(1.0, n + 1)[:, None], rewards, discounts, np.array(lengths), np.array(terminated))


def one_step(x: Any, returns: Any) -> Trajectories:
    """Episodes of one step each, from states `x` of shape (n, D), which bring `returns`."""
    n = len(x)
    states = np.repeat(np.asarray(x, dtype=np.float64), 2, axis=0)
    rewards = np.column_stack([returns, np.zeros(n)]).ravel()
    return Trajectories(states, rewards, np.tile([0.9, 0.0], n), np.full(n, 2), np.ones(n, dtype=bool))


# Left-out episodes


@pytest.mark.parametrize("n_episodes", [2, 3, 5, 12])
def test_nobody_is_asked_about_an_episode_it_has_seen(n_episodes):
    lengths = [2 + i % 4 for i in range(n_episodes)]
    data = numbered(lengths, [i % 3 > 0 for i in range(n_episodes)])
    seen: list[tuple[set[float], set[float]]] = []

    def spy(train: Trajectories) -> Any:
        known = set(train.states[:, 0].tolist())

        def values(states: Any) -> Any:
            seen.append((known, set(states[:, 0].tolist())))
            return states[:, 0].copy()

        return values

    found = left_out([spy, lambda train: lambda states: -2.0 * states[:, 0]], data)
    asked = [state for _, states in seen for state in states]
    assert sorted(asked) == data.states[:, 0].tolist()  # each state once
    episode = dict(zip(data.states[:, 0].tolist(), data.segment_of.tolist(), strict=True))
    for known, states in seen:
        assert not {episode[s] for s in known} & {episode[s] for s in states}
        assert len(known | states) == len(data)  # and all others were there to learn from
    expected = data.states[:, 0].copy()
    expected[data.last[data.terminated]] = 0.0
    assert_array_equal(found, np.column_stack([expected, -2.0 * expected]))


def test_a_single_run_is_left_out_piece_by_piece():
    data = numbered([40], [False])
    found = left_out([monte_carlo], data)
    assert found.shape == (40, 1) and np.isfinite(found).all() and np.ptp(found) > 0


# Shares of learners


def stacked(columns: Any, data: Trajectories) -> Any:
    return stack(np.column_stack(columns), Returns.of(data))


def test_shares():
    rng = np.random.default_rng(0)
    data = numbered([6] * 10, [True, False] * 5)
    truth = Returns.of(data).y  # as if nothing came after the cut
    truth = np.where(np.isin(np.arange(len(data)), data.last), 0.0, truth)
    other, third = rng.normal(size=len(data)), rng.normal(size=len(data))
    assert_allclose(stacked([other, truth, third], data), [0, 1, 0], atol=1e-6)
    assert_array_equal(stacked([truth], data), [1.0])
    mixed = stacked([2.0 * truth + other, -other], data)  # half and half
    assert_allclose(mixed, [0.5, 0.5], atol=1e-5)
    a, b = truth + other, truth - 3.0 * other
    assert_allclose(stacked([a, b], data), [0.75, 0.25], atol=1e-5)
    some = stacked([other, third, -truth], data)
    assert (some >= 0).all() and some.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_shares_do_not_depend_on_the_unit(unit):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 1))
    a, b = rng.normal(size=(2, 50))
    guesses = np.repeat(unit * np.column_stack([a, b]), 2, axis=0)
    found = stack(guesses, Returns.of(one_step(x, unit * (0.3 * a + 0.7 * b))))
    assert_allclose(found, [0.3, 0.7], atol=1e-5)


def test_shares_of_learners_that_differ_in_nothing():
    data = numbered([6] * 10, [True] * 10)
    y = Returns.of(data).y
    for column in (y, np.zeros(len(data)), np.ones(len(data))):
        found = stacked([column, column, column], data)
        assert (found >= 0).all() and found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1e-8, 1e-12])
def test_shares_of_learners_that_say_next_to_nothing(size):
    data = one_step(np.arange(20.0)[:, None], np.ones(20))
    found = stacked([np.full(40, -size), np.full(40, -2 * size)], data)
    assert_allclose(found, [1.0, 0.0], atol=1e-6)


# What is usual nearby


def naive_scale(states, errors, episodes, weights, x, episode=None):
    out = []
    for i, point in enumerate(x):
        order = np.argsort(np.linalg.norm((states - point) * weights, axis=1), kind="stable")
        if episode is not None:
            order = order[: calibration.N_ASKED]
            order = order[episodes[order] != episode[i]]
        near = order[: calibration.N_NEIGHBOURS]
        mean = (errors[near] ** 2).mean() if len(near) else (errors**2).mean()
        out.append(np.sqrt(mean + calibration.FLOOR * (errors**2).mean()))
    return np.array(out)


@pytest.mark.parametrize("n", [3, 15, 60, 500])
@pytest.mark.parametrize("own", [False, True])
def test_scale_by_loops(n, own):
    rng = np.random.default_rng(n)
    states, errors, episodes = rng.normal(size=(n, 3)), rng.normal(size=n), rng.integers(max(2, n // 40), size=n)
    weights = np.array([1.0, 0.2, 0.0])
    x, asks = rng.normal(size=(12, 3)), rng.integers(max(2, n // 40), size=12)
    found = Scale(states, errors, episodes, weights)(x, asks if own else None)
    assert_allclose(found, naive_scale(states, errors, episodes, weights, x, asks if own else None))


def test_scale_is_that_of_the_place():
    rng = np.random.default_rng(0)
    states = np.concatenate([rng.normal(-5, 0.1, (100, 1)), rng.normal(5, 0.1, (100, 1))])
    errors = np.repeat([1.0, 10.0], 100)
    scale = Scale(states, errors, np.arange(200), np.ones(1))(np.array([[-5.0], [5.0]]))
    floor = calibration.FLOOR * 50.5
    assert_allclose(scale, np.sqrt([1.0 + floor, 100.0 + floor]))


def test_errors_of_an_episode_say_nothing_of_itself():
    states, errors = np.zeros((40, 1)), np.repeat([1.0, 100.0], 20)
    episodes = np.repeat([0, 1], 20)
    scale = Scale(states, errors, episodes, np.ones(1))
    floor = calibration.FLOOR * (1 + 100**2) / 2
    assert_allclose(scale(states[:2], np.array([0, 1])), np.sqrt([100.0**2 + floor, 1.0 + floor]))
    alone = Scale(states, errors, np.zeros(40, dtype=np.int64), np.ones(1))  # nobody else: what is usual anywhere
    assert_allclose(alone(states[:1], np.array([0])), np.sqrt((1 + 100**2) / 2 + floor))


def test_no_errors_no_width():
    data = one_step(np.arange(10.0)[:, None], np.ones(10))
    for weights in (None, np.ones(1), np.zeros(1)):
        sure = calibrate(lambda x: np.ones(len(x)), np.tile([1.0, 0.0], 10), data, weights)
        lower, upper = sure.confidence_interval([[3.0], [30.0]])
        assert_array_equal(lower, [1.0, 1.0])
        assert_array_equal(upper, [1.0, 1.0])


# Intervals


def some_intervals(n_episodes: int = 10) -> Calibrated:
    ratios = np.sort(np.random.default_rng(0).exponential(size=100))
    return Calibrated(lambda x: x[:, 0], lambda x: 1.0 + x[:, 0] ** 2, ratios, n_episodes)


def test_intervals_hold_narrower_ones():
    v, x = some_intervals(), np.linspace(-2, 2, 7)[:, None]
    before = v.confidence_interval(x, 0.01)
    for level in np.linspace(0.05, 0.99, 20):
        lower, upper = v.confidence_interval(x, level)
        assert (lower <= before[0]).all() and (upper >= before[1]).all()
        assert_allclose(0.5 * (lower + upper), v.predict(x), atol=1e-12)
        assert_allclose(upper - lower, 2.0 * v.quantile(level) * (1.0 + x[:, 0] ** 2))
        before = lower, upper
    assert_array_equal(np.array(v.confidence_interval(x)), np.array(v.confidence_interval(x, 0.95)))
    assert v.quantile(0.9) > v.quantile(0.2)


@pytest.mark.parametrize("level", [0.01, 0.3, 0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("n_episodes", [1, 5, 20, 1000])
def test_the_quantile_leaves_room_for_one_more_episode(level, n_episodes):
    v = some_intervals(n_episodes)
    share = min(level * (n_episodes + 1) / n_episodes, 1.0)
    q = v.quantile(level)
    assert q in v.ratios
    assert (v.ratios <= q).mean() >= share
    below = v.ratios[v.ratios < q]  # none smaller would do, but for NumPy's counting of n − 1 gaps
    assert not len(below) or (len(below) - 1) / 99 < share


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95, np.nan])
def test_no_level(level):
    with pytest.raises(ValueError, match=r"^level must lie between 0 and 1; got .*\.$"):
        some_intervals().confidence_interval([[0.0]], level)


def test_states_are_checked():
    with pytest.raises(ValueError, match=r"states must be finite"):
        some_intervals().predict([[np.nan]])
    assert_array_equal(some_intervals().predict([1.0, 2.0]), [1.0, 2.0])


def test_errors_are_those_of_left_out_values_with_their_tails():
    # One episode that ended, one that was cut off: its error is y − (V(x) − z V(x_end)).
    data = Trajectories(
        np.arange(4.0)[:, None],
        np.array([5.0, 0.0, 3.0, 0.0]),
        np.array([0.5, 0.0, 0.5, 0.0]),
        np.array([2, 2]),
        np.array([True, False]),
    )
    v = calibrate(lambda x: np.full(len(x), 7.0), np.array([4.0, 0.0, 1.0, 2.0]), data, None)
    assert_allclose(v.ratios, np.sort(np.abs([5.0 - 4.0, 3.0 - (1.0 - 0.5 * 2.0)])))
    assert v.n_episodes == 2
    assert_allclose(v.predict([[9.0]]), [7.0])  # not the left-out ones
    assert_allclose(v.confidence_interval([[9.0]], 0.9), [[4.0], [10.0]])


def test_scaled_errors_are_those_of_other_episodes():
    rng = np.random.default_rng(0)
    data = one_step(rng.normal(size=(60, 2)), rng.normal(size=60))
    weights = np.array([1.0, 0.3])
    v = calibrate(lambda x: np.zeros(len(x)), np.zeros(120), data, weights)
    x, errors, episodes = data.states[::2], data.rewards[::2], np.arange(60)
    assert_allclose(v.ratios, np.sort(np.abs(errors) / naive_scale(x, errors, episodes, weights, x, episodes)))
    new = rng.normal(size=(5, 2))
    assert_allclose(v.scale(new), naive_scale(x, errors, episodes, weights, new))


def test_not_all_errors_are_kept(monkeypatch):
    monkeypatch.setattr(calibration, "MAX_JUDGED", 30)
    data = one_step(np.arange(100.0)[:, None], np.arange(100.0))
    v = calibrate(lambda x: np.zeros(len(x)), np.zeros(200), data, None)
    assert len(set(v.ratios.tolist())) == 30 == v.n_episodes
    assert set(v.ratios.tolist()) <= set(np.arange(100.0))


def test_known_values_make_intervals_narrower():
    v = some_intervals(1000)
    x = np.linspace(-1, 1, 40)[:, None]
    exact = v.knowing(x, v.predict(x) + 0.1 * (1.0 + x[:, 0] ** 2), np.zeros(40))  # always a tenth of the scale off
    assert exact.quantile(0.95) == pytest.approx(0.1) and v.quantile(0.95) > 1
    assert exact.quantile(0.01) == v.quantile(0.01) < 0.1  # never wider
    assert_allclose(exact.predict(x), v.predict(x))
    lower, upper = exact.confidence_interval(x)
    assert_allclose(upper - lower, 0.2 * (1.0 + x[:, 0] ** 2))
    # What standard errors explain is no error of ours.
    noise = v.knowing(x, v.predict(x) + 1.0, np.ones(40))
    assert noise.quantile(0.95) == 0.0
    part = v.knowing(x, v.predict(x) + 5.0, np.full(40, 3.0))  # 4² = 5² − 3²
    assert part.narrower is not None
    assert_allclose(part.narrower.ratios, np.sort(4.0 / (1.0 + x[:, 0] ** 2)))


# Coverage where the law is known: V = x, returns x + (0.1 + |x|)·noise, episodes of one step


def coverage(weights: Any, level: float, n: int, n_repetitions: int) -> Any:
    """Shares of fresh returns inside, of shape (n_repetitions, 2): where noise is small, and where it is large."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(n_repetitions):
        x = rng.uniform(-2, 2, size=n)
        new = np.concatenate([rng.uniform(-1, 1, size=n), rng.choice([-1, 1], n) * rng.uniform(1, 2, size=n)])
        data = one_step(x[:, None], x + (0.1 + np.abs(x)) * rng.normal(size=n))
        v = calibrate(lambda states: states[:, 0], np.repeat(x, 2) * np.tile([1.0, 0.0], n), data, weights)
        lower, upper = v.confidence_interval(new[:, None], level)
        truth = new + (0.1 + np.abs(new)) * rng.normal(size=2 * n)
        held.append(((lower <= truth) & (truth <= upper)).reshape(2, n).mean(axis=1))
    return np.array(held)


def with_error(overall: Any) -> tuple[float, float]:
    return float(overall.mean()), float(overall.std(ddof=1) / np.sqrt(len(overall)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_intervals_cover(level):
    n = 150
    gaps = []
    for weights in (None, np.ones(1)):
        found = coverage(weights, level, n, 120)
        mean, error = with_error(found.mean(axis=1))
        # At least the level, and by no more than what one episode and NumPy's "higher" add.
        assert -4 * error < mean - level < 4 * error + 3 / n
        gaps.append(found[:, 0].mean() - found[:, 1].mean())
    # Scaled to what is usual nearby, they cover about as well wherever one asks.
    assert abs(gaps[1]) < gaps[0] / 4


def test_intervals_cover_with_few_episodes():
    # With 5 episodes 95 % is more than the largest error can promise: 5 in 6 it does.
    mean, error = with_error(coverage(None, 0.95, 5, 2000).mean(axis=1))
    assert abs(mean - 5 / 6) < 4 * error < 0.03
