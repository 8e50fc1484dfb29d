"""Calibrated intervals: by hand, by loops, and their coverage on data with a known distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import gptd_rl
from gptd_rl import GPTD, GPTDQ, Isotropic, Trajectories
from gptd_rl.estimators import conformal
from gptd_rl.estimators.conformal import Calibrated, ErrorQuantiles, LocalErrorScale, cross_val_predict, folds
from gptd_rl.exceptions import NotFittedError
from gptd_rl.kernels.stationary import paper_kernel
from tests.helpers import MIXES, sample


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


class Given:
    """An estimator whose values, left-out values and relevances are given."""

    def __init__(self, values: Any, left_out: Any, weights: Any = None) -> None:
        self.predict, self.cross_val_values_ = values, left_out
        self.relevances_ = None if weights is None else np.asarray(weights) ** 2

    def fit(self, data: Trajectories) -> Any:
        return self


def calibrated(values: Any, left_out: Any, data: Trajectories, weights: Any) -> Calibrated:
    return Calibrated(Given(values, left_out, weights)).fit(data)


# Cross-validation


@pytest.mark.parametrize("n_episodes", [2, 3, 5, 12])
def test_cross_val_predict_leaves_out_whole_episodes(n_episodes):
    lengths = [2 + i % 4 for i in range(n_episodes)]
    data = numbered(lengths, [i % 3 > 0 for i in range(n_episodes)])
    seen: list[tuple[set[float], set[float]]] = []

    def spy(train: Trajectories) -> Any:
        known = set(train.states[:, 0].tolist())

        def values(states: Any) -> Any:
            seen.append((known, set(states[:, 0].tolist())))
            return states[:, 0].copy()

        return values

    found = cross_val_predict([spy, lambda train: lambda states: -2.0 * states[:, 0]], data)
    asked = [state for _, states in seen for state in states]
    assert sorted(asked) == data.states[:, 0].tolist()  # each state once
    episode = dict(zip(data.states[:, 0].tolist(), data.segment_of.tolist(), strict=True))
    for known, states in seen:
        assert not {episode[s] for s in known} & {episode[s] for s in states}
        assert len(known | states) == len(data)  # and all others were there to learn from
    expected = data.states[:, 0].copy()
    expected[data.last[data.terminated]] = 0.0
    assert_array_equal(found, np.column_stack([expected, -2.0 * expected]))


def test_cross_val_predict_cuts_a_single_run_into_pieces():
    data = numbered([40], [False])
    found = cross_val_predict([lambda train: lambda states: np.full(len(states), train.states.mean())], data)
    assert found.shape == (40, 1) and np.isfinite(found).all() and np.ptp(found) > 0


def test_cross_val_predict_of_too_short_a_run():
    with pytest.raises(ValueError, match="1 transitions are too few to leave any out"):
        cross_val_predict([lambda train: lambda states: np.zeros(len(states))], numbered([2], [False]))


@pytest.mark.parametrize("n_folds", [2, 3, 7])
def test_cross_val_predict_trains_once_for_each_fold(n_folds):
    calls = []

    def learn(train: Trajectories) -> Any:
        calls.append(train.n_segments)
        return lambda states: np.zeros(len(states))

    cross_val_predict([learn], numbered([3] * 14, [True] * 14), n_folds=n_folds)
    assert len(calls) == n_folds and sum(14 - n for n in calls) == 14


# Local scale


def naive_scale(states, errors, episodes, weights, x, episode=None):
    out = []
    for i, point in enumerate(x):
        order = np.argsort(np.linalg.norm((states - point) * weights, axis=1), kind="stable")
        if episode is not None:
            order = order[: conformal.N_CANDIDATES]
            order = order[episodes[order] != episode[i]]
        near = order[: conformal.N_NEIGHBOURS]
        mean = (errors[near] ** 2).mean() if len(near) else (errors**2).mean()
        out.append(np.sqrt(mean + conformal.FLOOR * (errors**2).mean()))
    return np.array(out)


@pytest.mark.parametrize("n", [3, 15, 60, 500])
@pytest.mark.parametrize("own", [False, True])
def test_local_error_scale_by_loops(n, own):
    rng = np.random.default_rng(n)
    states, errors, episodes = rng.normal(size=(n, 3)), rng.normal(size=n), rng.integers(max(2, n // 40), size=n)
    weights = np.array([1.0, 0.2, 0.0])
    x, asks = rng.normal(size=(12, 3)), rng.integers(max(2, n // 40), size=12)
    found = LocalErrorScale(states, errors, episodes, weights)(x, asks if own else None)
    assert_allclose(found, naive_scale(states, errors, episodes, weights, x, asks if own else None))


def test_local_error_scale_is_local():
    rng = np.random.default_rng(0)
    states = np.concatenate([rng.normal(-5, 0.1, (100, 1)), rng.normal(5, 0.1, (100, 1))])
    errors = np.repeat([1.0, 10.0], 100)
    scale = LocalErrorScale(states, errors, np.arange(200), np.ones(1))(np.array([[-5.0], [5.0]]))
    floor = conformal.FLOOR * 50.5
    assert_allclose(scale, np.sqrt([1.0 + floor, 100.0 + floor]))


def test_local_error_scale_leaves_out_the_own_episode():
    states, errors = np.zeros((40, 1)), np.repeat([1.0, 100.0], 20)
    episodes = np.repeat([0, 1], 20)
    scale = LocalErrorScale(states, errors, episodes, np.ones(1))
    floor = conformal.FLOOR * (1 + 100**2) / 2
    assert_allclose(scale(states[:2], np.array([0, 1])), np.sqrt([100.0**2 + floor, 1.0 + floor]))
    alone = LocalErrorScale(states, errors, np.zeros(40, dtype=np.int64), np.ones(1))
    assert_allclose(alone(states[:1], np.array([0])), np.sqrt((1 + 100**2) / 2 + floor))


def test_calibrated_without_errors_has_no_width():
    data = one_step(np.arange(10.0)[:, None], np.ones(10))
    for weights in (None, np.ones(1), np.zeros(1)):
        sure = calibrated(lambda x: np.ones(len(x)), np.tile([1.0, 0.0], 10), data, weights)
        lower, upper = sure.confidence_interval([[3.0], [30.0]])
        assert_array_equal(lower, [1.0, 1.0])
        assert_array_equal(upper, [1.0, 1.0])


# Intervals


def some_intervals(n_episodes: int = 10) -> Calibrated:
    ratios = np.sort(np.random.default_rng(0).exponential(size=100))
    v = Calibrated(Given(lambda x: x[:, 0], None))
    v.estimator_, v.scale_ = v.estimator, lambda x: 1.0 + x[:, 0] ** 2
    v.errors_, v.sizes_ = ErrorQuantiles(ratios, n_episodes), None
    return v


def test_confidence_intervals_are_nested():
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
def test_quantile_leaves_room_for_one_more_episode(level, n_episodes):
    v = some_intervals(n_episodes)
    share = min(level * (n_episodes + 1) / n_episodes, 1.0)
    q = v.quantile(level)
    ratios = v.errors_.ratios
    assert q in ratios
    assert (ratios <= q).mean() >= share
    below = ratios[ratios < q]  # none smaller would do, but for NumPy's counting of n − 1 gaps
    assert not len(below) or (len(below) - 1) / 99 < share


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95, np.nan])
def test_confidence_interval_refuses_a_bad_level(level):
    with pytest.raises(ValueError, match=r"^level must lie between 0 and 1; got .*\.$"):
        some_intervals().confidence_interval([[0.0]], level)


def test_calibrated_checks_states():
    with pytest.raises(ValueError, match=r"states must be finite"):
        some_intervals().predict([[np.nan]])
    assert_array_equal(some_intervals().predict([1.0, 2.0]), [1.0, 2.0])


def test_calibrated_errors_of_truncated_episodes():
    # One episode that ended, one that was cut off: its error is y − (V(x) − z V(x_end)).
    data = Trajectories(
        np.arange(4.0)[:, None],
        np.array([5.0, 0.0, 3.0, 0.0]),
        np.array([0.5, 0.0, 0.5, 0.0]),
        np.array([2, 2]),
        np.array([True, False]),
    )
    v = calibrated(lambda x: np.full(len(x), 7.0), np.array([4.0, 0.0, 1.0, 2.0]), data, None)
    assert_allclose(v.errors_.ratios, np.sort(np.abs([5.0 - 4.0, 3.0 - (1.0 - 0.5 * 2.0)])))
    assert v.errors_.n_groups == 2
    assert_allclose(v.predict([[9.0]]), [7.0])  # not the left-out ones
    assert_allclose(v.confidence_interval([[9.0]], 0.9), [[4.0], [10.0]])


def test_calibrated_ratios_by_loops():
    rng = np.random.default_rng(0)
    data = one_step(rng.normal(size=(60, 2)), rng.normal(size=60))
    weights = np.array([1.0, 0.3])
    v = calibrated(lambda x: np.zeros(len(x)), np.zeros(120), data, weights)
    x, errors, episodes = data.states[::2], data.rewards[::2], np.arange(60)
    assert_allclose(v.errors_.ratios, np.sort(np.abs(errors) / naive_scale(x, errors, episodes, weights, x, episodes)))
    new = rng.normal(size=(5, 2))
    assert_allclose(v.scale_(new), naive_scale(x, errors, episodes, weights, new))


def test_calibrated_keeps_a_limited_number_of_errors(monkeypatch):
    monkeypatch.setattr(conformal, "MAX_ERRORS", 30)
    data = one_step(np.arange(100.0)[:, None], np.arange(100.0))
    v = calibrated(lambda x: np.zeros(len(x)), np.zeros(200), data, None)
    errors = v.errors_
    assert len(set(errors.ratios.tolist())) == 30 == errors.n_groups
    assert set(errors.ratios.tolist()) <= set(np.arange(100.0))


def test_recalibrated_intervals_have_the_size_of_the_errors():
    v, rng = some_intervals(1000), np.random.default_rng(0)
    x = np.linspace(-1, 1, 200)[:, None]
    scale = 1.0 + x[:, 0] ** 2
    truth = v.predict(x) + 0.1 * scale * rng.standard_normal(200)
    for noise in (0.0, 0.1, 0.3):
        known = v.recalibrate(x, truth + noise * rng.standard_normal(200), np.full(200, noise))
        assert known.sizes_ is not None and v.sizes_ is None
        for level, q in ((0.5, 0.674), (0.95, 1.96)):
            assert known.quantile(level) * known.scale_(x) == pytest.approx(0.1 * q * scale, rel=0.35)
        assert_allclose(known.predict(x), v.predict(x))
        lower, upper = known.confidence_interval(x, 0.95)
        assert 0.9 <= np.mean((lower <= truth) & (truth <= upper)) <= 1.0


def test_recalibrate_takes_the_scale_that_describes_the_errors():
    x = np.linspace(-1, 1, 100)[:, None]
    rng = np.random.default_rng(0)
    for own, expected in ((lambda x: np.exp(3.0 * x[:, 0]), "own"), (lambda x: np.exp(-3.0 * x[:, 0]), "constant")):
        v = some_intervals()
        v.scale_ = lambda x: np.exp(-6.0 * x[:, 0])
        v.estimator_.error_scale_ = own
        errors = rng.standard_normal(100) * (np.exp(3.0 * x[:, 0]) if expected == "own" else 1.0)
        scale = v.recalibrate(x, v.predict(x) + errors).scale_
        assert_allclose(scale(x), own(x) if expected == "own" else np.ones(100))


def test_recalibrated_intervals_have_a_width_where_noise_hides_the_errors():
    v = some_intervals()
    x = np.linspace(-1, 1, 40)[:, None]
    noisy = v.recalibrate(x, v.predict(x) + np.random.default_rng(0).standard_normal(40), np.ones(40), np.arange(40))
    for level in (0.05, 0.5, 0.95):
        lower, upper = noisy.confidence_interval(x, level)
        assert (upper > lower).all()
    few = v.recalibrate(x, v.predict(x) + 1.0, np.zeros(40), np.zeros(40))  # all of one episode
    many = v.recalibrate(x, v.predict(x) + 1.0, np.zeros(40), np.arange(40))
    assert few.quantile(0.95) > 1.5 * many.quantile(0.95)


# Coverage with a known distribution: V = x, returns x + (0.1 + |x|)·noise, episodes of one step


def coverage(weights: Any, level: float, n: int, n_repetitions: int) -> Any:
    """Shares of fresh returns inside, of shape (n_repetitions, 2): where noise is small, and where it is large."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(n_repetitions):
        x = rng.uniform(-2, 2, size=n)
        new = np.concatenate([rng.uniform(-1, 1, size=n), rng.choice([-1, 1], n) * rng.uniform(1, 2, size=n)])
        data = one_step(x[:, None], x + (0.1 + np.abs(x)) * rng.normal(size=n))
        v = calibrated(lambda states: states[:, 0], np.repeat(x, 2) * np.tile([1.0, 0.0], n), data, weights)
        lower, upper = v.confidence_interval(new[:, None], level)
        truth = new + (0.1 + np.abs(new)) * rng.normal(size=2 * n)
        held.append(((lower <= truth) & (truth <= upper)).reshape(2, n).mean(axis=1))
    return np.array(held)


def with_error(overall: Any) -> tuple[float, float]:
    return float(overall.mean()), float(overall.std(ddof=1) / np.sqrt(len(overall)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_calibrated_coverage(level):
    n = 150
    gaps = []
    for weights in (None, np.ones(1)):
        found = coverage(weights, level, n, 120)
        mean, error = with_error(found.mean(axis=1))
        # At least the level, and by no more than what one episode and NumPy's "higher" add.
        assert -4 * error < mean - level < 4 * error + 3 / n
        gaps.append(found[:, 0].mean() - found[:, 1].mean())
    # With a local scale, coverage is about the same everywhere.
    assert abs(gaps[1]) < gaps[0] / 4


def test_calibrated_coverage_with_few_episodes():
    # With 5 episodes no more than 5/6 can be had: the interval reaches to the largest error.
    mean, error = with_error(coverage(None, 0.95, 5, 2000).mean(axis=1))
    assert abs(mean - 5 / 6) < 4 * error < 0.03


# Around GPTD


def jumps(n: int, seed: int) -> Trajectories:
    """Episodes of one step; the return is −1 or 1 by the sign of x, plus a little noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, size=(n, 1))
    return one_step(x, np.sign(x[:, 0]) + 0.01 * rng.normal(size=n))


def too_smooth() -> GPTD:
    """A Gaussian process whose kernel knows no jumps, and whose noise is too small."""
    kernel = paper_kernel(Isotropic(1.0, 1), 1.0, 0.0, fixed=("v0", "b", "h"))
    return GPTD(kernel, noise_variance=1e-4, objective="marginal_likelihood", n_restarts=0)


def coverage_of_intervals(v: Any, level: float, seed: int) -> float:
    new = jumps(400, seed)
    lower, upper = v.confidence_interval(new.states[::2], level)
    returns = new.rewards[::2]
    return float(((lower <= returns) & (returns <= upper)).mean())


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_calibrated_gptd_covers_where_its_own_intervals_do_not(level):
    ours, plain = [], []
    for seed in range(12):
        data = jumps(120, seed)
        v = Calibrated(too_smooth()).fit(data)
        ours.append(coverage_of_intervals(v, level, 1000 + seed))
        plain.append(coverage_of_intervals(v.estimator_, level, 1000 + seed))
    mean, error = with_error(np.array(ours))
    assert mean > level - 4 * error and mean < level + 4 * error + 0.05
    # The control: a diagnostic that also passes intervals of the wrong model would say nothing.
    mean, error = with_error(np.array(plain))
    assert mean < level - 4 * error


def test_calibrated_predicts_as_its_estimator():
    data = jumps(60, 0)
    v = Calibrated(too_smooth()).fit(data)
    x = np.linspace(-1, 1, 9)[:, None]
    assert_array_equal(v.predict(x), too_smooth().fit(data).predict(x))
    assert not hasattr(v.estimator, "posterior_")  # it was copied


def test_calibrated_left_out_values_by_hand():
    data = jumps(30, 0)
    v = Calibrated(too_smooth(), n_folds=3, random_state=4).fit(data)
    fold = folds(np.arange(30), 3, 4)
    for f in range(3):
        without = too_smooth().fit(data[np.flatnonzero(fold != f)])
        rows = 2 * np.flatnonzero(fold == f)
        assert_allclose(v.cross_val_values_[rows], without.predict(data.states[rows]), rtol=1e-6, atol=1e-9)
    assert (v.cross_val_values_[1::2] == 0).all()


def test_calibrated_takes_shards_and_files(tmp_path):
    data = jumps(40, 0)
    whole = Calibrated(too_smooth()).fit(data)
    path = data[20:].save(tmp_path / "second.npz")
    parts = Calibrated(too_smooth()).fit([data[:20], path])
    x = np.linspace(-1, 1, 5)[:, None]
    assert_allclose(parts.confidence_interval(x), whole.confidence_interval(x))


def test_calibrated_folds_side_by_side_give_the_same():
    data = jumps(40, 0)
    one, two = (Calibrated(too_smooth(), n_jobs=n).fit(data) for n in (None, 2))
    assert_allclose(one.cross_val_values_, two.cross_val_values_, rtol=1e-10)


def test_calibrated_refuses_no_jobs():
    with pytest.raises(ValueError, match=r"n_jobs must be None, a positive whole number.*; got 0\."):
        Calibrated(too_smooth(), n_jobs=0).fit(jumps(20, 0))


def test_calibrated_is_public():
    assert gptd_rl.Calibrated is Calibrated


def test_calibrated_parameters():
    v = Calibrated(GPTD(n_restarts=3), n_folds=4)
    assert v.get_params(deep=False) == dict(estimator=v.estimator, n_folds=4, random_state=0, n_jobs=None)
    assert v.get_params()["estimator__n_restarts"] == 3
    assert repr(v) == "Calibrated(GPTD(n_restarts=3), n_folds=4)"
    v.set_params(estimator__n_restarts=1, random_state=7)
    assert repr(v) == "Calibrated(GPTD(), n_folds=4, random_state=7)"
    twin = clone(v)
    assert repr(twin) == repr(v) and twin.estimator is not v.estimator
    with pytest.raises(ValueError, match="Calibrated has no parameter 'folds'"):
        v.set_params(folds=3)


@pytest.mark.parametrize("estimator", [GPTDQ(), GPTD, None, "GPTD"])
def test_calibrated_refuses_other_estimators(estimator):
    with pytest.raises(TypeError, match=r"estimator must be an estimator of V, such as GPTD\(\); got"):
        Calibrated(estimator).fit(jumps(20, 0))


@pytest.mark.parametrize("n_folds", [1, 0, 2.5, True])
def test_calibrated_refuses_bad_folds(n_folds):
    with pytest.raises(ValueError, match="n_folds must be a whole number of 2 or more; got"):
        Calibrated(GPTD(), n_folds=n_folds).fit(jumps(20, 0))


def test_calibrated_before_fit():
    for ask in (Calibrated.predict, Calibrated.confidence_interval):
        with pytest.raises(NotFittedError, match="call fit"):
            ask(Calibrated(GPTD()), [[0.0]])


def test_calibrated_cannot_be_saved(tmp_path):
    with pytest.raises(TypeError, match="cannot be saved: save its estimator_"):
        Calibrated(GPTD()).save(tmp_path / "v.gptd")


# Folds


def test_folds():
    episodes = np.repeat([7, 3, 3, 11, 5, 20, 21, 22, 23, 24, 25], 3)
    fold = folds(episodes)
    names = np.unique(episodes)
    of = {name: set(fold[episodes == name].tolist()) for name in names}
    assert all(len(f) == 1 for f in of.values())  # an episode is in one fold only
    counts = np.bincount([f.pop() for f in of.values()], minlength=5)
    assert counts.sum() == 10 and counts.max() - counts.min() <= 1
    assert_array_equal(fold, folds(episodes))
    many = folds(np.arange(50))
    assert (many != np.arange(50) % 5).any() and (np.bincount(many) == 10).all()
    assert sorted(folds(np.arange(3))) == [0, 1, 2]
    assert_array_equal(folds(np.zeros(4, dtype=np.int64)), np.zeros(4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(values=[1.0]), r"^values must have shape \(4,\); got \(1,\)\.$"),
        (dict(values=np.full(4, 10**400, dtype=object)), r"^values must be numbers: int too large"),
        (dict(values=np.full(4, 1e200)), r"^values must lie within ±1e\+70"),
        (dict(errors=np.ones(3)), r"^errors must be one number or have shape \(4,\); got \(3,\)\.$"),
        (dict(errors=np.nan), r"^errors must be finite"),
    ],
)
def test_recalibrate_refuses_what_are_no_values(change, message):
    data = sample(MIXES["mixed"], seed=1)
    v = Calibrated(GPTD("isotropic", objective="marginal_likelihood", n_restarts=0), n_folds=2).fit(data)
    with pytest.raises((TypeError, ValueError), match=message):
        v.recalibrate(**(dict(states=data.states[:4], values=np.ones(4)) | change))
