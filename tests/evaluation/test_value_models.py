"""Learners of V for an evaluation, on problems with known answers, and their combination by stacking."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, Trajectories
from gptd_rl.estimators.conformal import folds
from gptd_rl.evaluation import value_models as learners
from gptd_rl.evaluation.value_models import (
    Clipped,
    Conditioning,
    RefittedCritic,
    StackedValue,
    monte_carlo,
    return_bounds,
    stacking_weights,
)
from gptd_rl.temporal.means import subtract_mean
from gptd_rl.temporal.returns import Returns
from tests.helpers import MIXES, Reference, sample
from tests.mdps import Gridworld, Spiral, Walk


def episode(rewards: Any, terminated: bool, start: float = 0.0) -> dict[str, Any]:
    return dict(observations=start + np.arange(len(rewards) + 1.0)[:, None], rewards=rewards, terminated=terminated)


def chains(*kinds: tuple[int, bool], gamma: float) -> Trajectories:
    """Episodes of so many rewards of 1."""
    return Trajectories.from_episodes(
        [episode(np.ones(n), ends, 100.0 * i) for i, (n, ends) in enumerate(kinds)], gamma
    )


# Learners


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_monte_carlo_of_a_constant_value_with_truncated_episodes(gamma):
    data = chains((3, False), (5, False), gamma=gamma)
    assert_allclose(monte_carlo(data)(data.states[:4]), np.full(4, 1.0 / (1.0 - gamma)))


def test_monte_carlo_is_the_average_return():
    data = Trajectories.from_episodes([episode([1.0, 2.0], True), episode([6.0], True)], 1.0)
    assert_allclose(monte_carlo(data)(np.zeros((2, 1))), [(3 + 2 + 6) / 3] * 2)
    # min Σ (y − (1 − z) c)² with one return that lacks z = 0.5
    data = Trajectories.from_episodes([episode([1.0], True), episode([4.0], False)], 0.5)
    assert_allclose(monte_carlo(data)(np.zeros((1, 1))), (1 * 1 + 0.5 * 4) / (1 + 0.25))


def test_monte_carlo_without_terminated_episodes_and_discount():
    data = chains((3, False), (5, False), gamma=1.0)
    assert np.isfinite(monte_carlo(data)(data.states)).all()


def test_return_bounds_by_hand():
    ended = Trajectories.from_episodes([episode([1.0, 2.0], True), episode([-3.0], True)], 0.5)
    assert return_bounds(ended) == (-3.0, 2.0)
    # 4 + z·(…) with z = 0.5: the best reward for ever is 8, the worst is 0.
    assert return_bounds(Trajectories.from_episodes([episode([4.0], False)], 0.5)) == (4.0, 8.0)
    assert return_bounds(Trajectories.from_episodes([episode([-4.0], False)], 0.5)) == (-8.0, -4.0)
    assert return_bounds(chains((3, False), gamma=1.0)) == (-np.inf, np.inf)
    assert return_bounds(chains((3, True), gamma=1.0)) == (1.0, 3.0)


@pytest.mark.parametrize("task", [Spiral(), Walk(), Gridworld(gamma=0.9)])
def test_return_bounds_hold_true_values(task):
    data = task.sample(400, np.random.default_rng(0))
    low, high = return_bounds(data)
    truth = task.value(data.states[Returns.of(data).usable])
    assert low - 1e-9 <= truth.min() and truth.max() <= high + 1e-9


def test_clipped():
    data = Trajectories.from_episodes([episode([1.0, 2.0], True)], 0.5)
    asked: list[Trajectories] = []

    def learn(given: Trajectories) -> Any:
        asked.append(given)
        return lambda states: states[:, 0]

    assert_array_equal(Clipped(learn)(data)(np.array([[-9.0], [2.0], [9.0]])), [2.0, 2.0, 2.0])
    wide = Trajectories.from_episodes([episode([5.0], True), episode([-5.0], True)], 0.5)
    assert_array_equal(Clipped(learn)(wide)(np.array([[-9.0], [2.0], [9.0]])), [-5.0, 2.0, 5.0])
    assert asked == [data, wide]


class MadeUp:
    """A critic made of two functions."""

    def __init__(self, value: Any, features: Any) -> None:
        self.value, self._features = value, features

    def __call__(self, states: Any) -> Any:
        return self.value(np.asarray(states))

    def features(self, states: Any) -> Any:
        return self._features(np.asarray(states))


def parabolas(x: Any) -> Any:
    """Features that make up the spiral's value, and then some."""
    return np.column_stack([x[:, 0] ** 2, x[:, 0] * x[:, 1], x[:, 1] ** 2, x])


@pytest.mark.parametrize("time_limit", [25, 60])
def test_refitted_critic_learns_values_in_the_span_of_its_features(time_limit):
    task = Spiral(time_limit=time_limit)
    data = task.sample(300, np.random.default_rng(0))
    start = 100.0  # far too much, everywhere
    critic = MadeUp(lambda x: start + 3.0 * x[:, 0], parabolas)
    new, seen = task.sample(100, np.random.default_rng(1)).states, parabolas(data.states)
    new = new[((parabolas(new) >= seen.min(axis=0)) & (parabolas(new) <= seen.max(axis=0))).all(axis=1)]
    found = RefittedCritic(critic)(data)(new)
    truth = task.value(new)
    assert len(new) > 50 and np.abs(critic(new) - truth).min() > 90
    assert_allclose(found, truth, atol=1e-2 * np.ptp(truth))


def test_refitted_critic_clips_features_to_the_range_seen():
    task = Spiral()
    data = task.sample(200, np.random.default_rng(0))
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), lambda x: x))(data)
    edge = data.states.max(axis=0, keepdims=True)
    assert_allclose(found(100.0 + edge), found(edge))


def test_refitted_critic_leaves_a_perfect_critic_unchanged():
    task = Spiral()
    data = task.sample(200, np.random.default_rng(0))
    critic = MadeUp(task.value, lambda x: np.sin(7.0 * x))
    assert_allclose(RefittedCritic(critic)(data)(data.states), task.value(data.states), atol=1e-9)


def noisy(n_episodes: int, seed: int, n_dims: int) -> Trajectories:
    """Episodes of one step, whose return is nothing but noise."""
    rng = np.random.default_rng(seed)
    return Trajectories(
        rng.normal(size=(2 * n_episodes, n_dims)),
        np.column_stack([rng.normal(size=n_episodes), np.zeros(n_episodes)]).ravel(),
        np.tile([0.9, 0.0], n_episodes),
        np.full(n_episodes, 2),
        np.ones(n_episodes, dtype=bool),
    )


def test_refitted_critic_shrinks_useless_features():
    # 30 features and 60 returns that have nothing to do with them: least squares would be wrong by about 1.
    data = noisy(60, 0, 30)
    new = np.random.default_rng(1).normal(size=(200, 30))
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), lambda x: x))(data)(new)
    A = np.column_stack([data.states, np.ones(len(data))])[::2]
    plain = np.column_stack([new, np.ones(200)]) @ np.linalg.lstsq(A, data.rewards[::2], rcond=None)[0]
    assert np.sqrt((found**2).mean()) < 0.35 < 0.6 < np.sqrt((plain**2).mean())


def test_refitted_critic_with_constant_features():
    task = Spiral()
    data = task.sample(200, np.random.default_rng(0))
    dead = MadeUp(lambda x: np.zeros(len(x)), lambda x: np.column_stack([parabolas(x), np.full(len(x), 7.0)]))
    alive = MadeUp(dead.value, parabolas)
    new = data.states[:20] + 0.01
    assert_allclose(RefittedCritic(dead)(data)(new), RefittedCritic(alive)(data)(new), atol=1e-6)
    nothing = MadeUp(dead.value, lambda x: np.full((len(x), 2), 7.0))  # then a constant is all there is
    assert np.ptp(RefittedCritic(nothing)(data)(new)) == 0
    with_none = MadeUp(dead.value, lambda x: np.zeros((len(x), 0)))
    assert_allclose(RefittedCritic(with_none)(data)(new), RefittedCritic(nothing)(data)(new), rtol=1e-9)


def test_refitted_critic_with_nearly_constant_features():
    task = Spiral()
    data = task.sample(200, np.random.default_rng(0))

    def features(x: Any) -> Any:
        seen = np.isin(x[:, 0], data.states[:, 0])
        return np.column_stack([parabolas(x), np.where(seen, 7.0 + 1e-13 * np.sin(1e4 * x[:, 0]), 8.0)])

    new = data.states[:20] + 0.01
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), features))(data)(new)
    assert_allclose(found, task.value(new), atol=0.02 * np.ptp(task.value(data.states)))


@pytest.mark.parametrize("n_episodes", [2, 3, 6])
def test_refitted_critic_with_few_episodes(n_episodes):
    task = Spiral()
    data = task.sample(25 * n_episodes, np.random.default_rng(0))
    assert data.n_segments == n_episodes
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), parabolas))(data)
    assert_allclose(found(data.states), task.value(data.states), atol=0.1 * np.ptp(task.value(data.states)))


def test_refitted_critic_with_one_episode():
    task = Spiral()
    data = task.sample(25, np.random.default_rng(0))
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), parabolas))(data)(data.states)
    assert np.isfinite(found).all()


def test_best_penalty_predicts_left_out_episodes():
    rng = np.random.default_rng(0)
    A, episodes = rng.normal(size=(100, 5)), np.repeat(np.arange(20), 5)
    assert learners._best_penalty(A, A @ np.arange(5.0), episodes) == learners.PENALTIES[0]
    assert learners._best_penalty(A, rng.normal(size=100), episodes) >= 0.1
    # Rows of an episode that are copies of each other teach nothing of other episodes.
    B = np.repeat(rng.normal(size=(20, 15)), 5, axis=0)
    y = np.repeat(rng.normal(size=20), 5)
    assert learners._best_penalty(B, y, episodes) > learners._best_penalty(B, y, np.arange(100))
    found = set()
    for size in (0.2, 0.5, 1.0, 2.0):
        y = size * A.sum(axis=1) / 5 + rng.normal(size=100)
        by_hand = [
            sum(
                np.sum((y[f] - A[f] @ learners._ridge(A[~f], y[~f], p)) ** 2)
                for f in (folds(episodes) == i for i in range(5))
            )
            for p in learners.PENALTIES
        ]
        found.add(learners._best_penalty(A, y, episodes))
        assert learners._best_penalty(A, y, episodes) == learners.PENALTIES[np.argmin(by_hand)]
    assert len(found) > 1


def test_ridge_by_hand():
    # (AᵀA + n·p) w = Aᵀy
    assert_allclose(learners._ridge(np.array([[1.0], [2.0]]), np.array([1.0, 1.0]), 0.5), [3.0 / 6.0])


# Conditioning with θ fixed


def fitted(data: Trajectories, **options: Any) -> GPTD:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GPTD("ard", n_restarts=0, **options).fit(data)


def grid(n: int, seed: int = 0) -> Trajectories:
    return Gridworld(gamma=0.9).sample(n, np.random.default_rng(seed))


@pytest.mark.parametrize("mix", ["terminated", "truncated", "mixed"])
def test_conditioning_on_other_data_is_the_papers_posterior(mix):
    data, other = sample(MIXES[mix], seed=0, gamma=0.9), sample(MIXES[mix], seed=5, gamma=0.9)
    v = fitted(data, objective="thinned", thinning=1)
    # Not the model selected, which may be one of noise alone.
    v.model_ = v.model_.with_noise(0.1 * float(v.model_.kernel.diagonal(data.states)[0]))
    new = np.random.default_rng(2).normal(size=(10, 3))
    learner = Conditioning(v.condition(data + other, inducing_points=100))
    assert_allclose(learner(other)(new), Reference.of(v.model_, other, "stochastic").mean(new), rtol=1e-5, atol=1e-7)

    def mean(states: Any) -> Any:
        return 3.0 + states[:, 0] * 2.0

    asked: list[Trajectories] = []

    def learn(given: Trajectories) -> Any:
        asked.append(given)
        return mean

    with_mean = Conditioning(learner.v, learn)
    expected = mean(new) + Reference.of(v.model_, subtract_mean(other, mean), "stochastic").mean(new)
    assert_allclose(with_mean(other)(new), expected, rtol=1e-5, atol=1e-6)
    assert asked == [other]  # the mean is learnt from the data given


def test_conditioning_with_much_data_depends_little_on_the_mean():
    data = grid(120)
    v = fitted(data, objective="thinned", thinning=1).condition(data, inducing_points=200)
    with_mean = Conditioning(v, lambda _: lambda states: 0.5 * states[:, 0] - 4.0)
    inner = data.states[~np.isin(np.arange(len(data)), data.last)]
    truth = Gridworld(gamma=0.9).value(inner)
    assert_allclose(Conditioning(v)(data)(inner), truth, atol=1e-2)
    assert_allclose(with_mean(data)(inner), truth, atol=1e-2)


# Stacking


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


def stacked(columns: Any, data: Trajectories) -> Any:
    return stacking_weights(np.column_stack(columns), Returns.of(data))


def test_stacking_weights():
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
def test_stacking_weights_do_not_depend_on_the_unit(unit):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 1))
    a, b = rng.normal(size=(2, 50))
    guesses = np.repeat(unit * np.column_stack([a, b]), 2, axis=0)
    found = stacking_weights(guesses, Returns.of(one_step(x, unit * (0.3 * a + 0.7 * b))))
    assert_allclose(found, [0.3, 0.7], atol=1e-5)


def test_stacking_weights_of_equal_learners():
    data = numbered([6] * 10, [True] * 10)
    y = Returns.of(data).y
    for column in (y, np.zeros(len(data)), np.ones(len(data))):
        found = stacked([column, column, column], data)
        assert (found >= 0).all() and found.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("size", [1e-8, 1e-12])
def test_stacking_weights_of_tiny_values(size):
    data = one_step(np.arange(20.0)[:, None], np.ones(20))
    found = stacked([np.full(40, -size), np.full(40, -2 * size)], data)
    assert_allclose(found, [1.0, 0.0], atol=1e-6)


def test_stacked_value_is_the_weighted_sum_of_its_learners():
    data = Walk().sample(300, np.random.default_rng(0))
    truth = Walk().value
    learners_ = {"half": lambda data: lambda x: 0.5 * truth(x), "double": lambda data: lambda x: 2.0 * truth(x)}
    v = StackedValue(learners_).fit(data)
    assert v.weights_.sum() == pytest.approx(1.0)
    x = Walk().cells
    assert_allclose(v.predict(x), v.weights_ @ [0.5 * truth(x), 2.0 * truth(x)])
    assert v.cross_val_values_.shape == (len(data),)
    assert (v.cross_val_values_[data.last[data.terminated]] == 0).all()


def test_stacked_value_of_one_learner_is_that_learner():
    data = Walk().sample(100, np.random.default_rng(0))
    v = StackedValue({"Monte Carlo": monte_carlo}).fit(data)
    assert_array_equal(v.weights_, [1.0])
    assert_array_equal(v.predict(data.states), monte_carlo(data)(data.states))
