"""Prior means of V for an evaluation, on problems with known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl import Trajectories
from gptd_rl.estimators.left_out import folds
from gptd_rl.evaluation import value_models as learners
from gptd_rl.evaluation.value_models import RefittedCritic, monte_carlo, return_bounds
from gptd_rl.temporal.returns import Returns
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
