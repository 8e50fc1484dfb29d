"""Ways to learn V for an evaluation: returns with their tails by hand, and learners on problems with known answers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, Trajectories
from gptd_rl.evaluation import value_models as learners
from gptd_rl.evaluation.value_models import (
    Bounded,
    Conditioned,
    RefittedCritic,
    Returns,
    along,
    extremes,
    folds,
    monte_carlo,
    relative_to,
)
from tests.helpers import MIXES, Reference, dense_H, naive_null_vectors, naive_returns, row_places, sample
from tests.mdps import Gridworld, Spiral, Walk


def episode(rewards: Any, terminated: bool, start: float = 0.0) -> dict[str, Any]:
    return dict(observations=start + np.arange(len(rewards) + 1.0)[:, None], rewards=rewards, terminated=terminated)


def chains(*kinds: tuple[int, bool], gamma: float) -> Trajectories:
    """Episodes of so many rewards of 1."""
    return Trajectories.from_episodes(
        [episode(np.ones(n), ends, 100.0 * i) for i, (n, ends) in enumerate(kinds)], gamma
    )


# Returns


def test_returns_by_hand():
    data = Trajectories.from_episodes([episode([1.0, 2.0, 3.0], True), episode([1.0, 1.0, 1.0], False)], 0.5)
    found = Returns.of(data)
    assert_array_equal(found.y, [2.75, 3.5, 3.0, 0.0, 1.75, 1.5, 1.0, 0.0])
    assert_array_equal(found.z, [0.0, 0.0, 0.0, 0.0, 0.125, 0.25, 0.5, 1.0])
    assert_array_equal(found.end, [3, 3, 3, 3, 7, 7, 7, 7])
    assert_array_equal(found.usable, [0, 1, 2, 4, 5, 6])  # terminal and last states say nothing
    assert_array_equal(found.episode, [0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("mix", MIXES)
def test_returns_as_loops_have_them(mix):
    data = sample(MIXES[mix], seed=3)
    found = Returns.of(data)
    assert_allclose(found.y, naive_returns(data), atol=1e-12)
    assert_allclose(found.z, naive_null_vectors(data).sum(axis=1), atol=1e-12)
    assert not set(found.usable) & set(data.last)
    values = np.random.default_rng(0).normal(size=(len(data), 2))
    by_loop = [values[i] - found.z[i] * values[data.last[data.segment_of[i]]] for i in range(len(data))]
    assert_allclose(found.difference(values), by_loop)
    assert_allclose(found.difference(values[:, 0]), np.array(by_loop)[:, 0])


def test_what_is_mostly_tail_is_of_little_use():
    # z = 0.9³, 0.9², 0.9 in the cut-off episode: more than half is missing.
    found = Returns.of(chains((3, True), (3, False), gamma=0.9))
    assert_array_equal(found.usable, [0, 1, 2])


@pytest.mark.parametrize(("n_long", "usable"), [(9, 1), (10, 5)])
def test_a_tenth_of_good_returns_is_enough(n_long, usable):
    # One good return; of the others, of one cut-off episode, none is good. Below a tenth, the better half serves.
    data = chains((1, True), (n_long, False), gamma=0.99)
    found = Returns.of(data)
    assert (found.z[:-1] <= 0.5).sum() - 1 == 1  # the terminal state apart
    if usable == 1:
        assert_array_equal(found.usable, [0])
    else:
        inner = np.setdiff1d(np.arange(len(data)), data.last)
        assert_array_equal(found.usable, inner[found.z[inner] <= np.median(found.z[inner])])
        assert len(found.usable) == 6


def test_short_truncated_episodes_leave_the_better_half():
    found = Returns.of(chains((4, False), (4, False), gamma=0.99))
    assert_array_equal(found.usable, [0, 1, 5, 6])


def test_without_discount_and_with_nothing_but_the_reward():
    data = chains((3, False), (2, False), gamma=1.0)
    found = Returns.of(data)
    assert_array_equal(found.y, [3, 2, 1, 0, 2, 1, 0])
    assert_array_equal(found.z, np.ones(7))
    assert_array_equal(found.usable, [0, 1, 2, 4, 5])
    found = Returns.of(chains((3, False), (2, True), gamma=0.0))
    assert_array_equal(found.y, [1, 1, 1, 0, 1, 1, 0])
    assert_array_equal(found.z, [0, 0, 0, 1, 0, 0, 0])
    assert_array_equal(found.usable, [0, 1, 2, 4, 5])


def test_true_values_explain_returns_exactly():
    task = Spiral()
    data = task.sample(100, np.random.default_rng(0))
    found = Returns.of(data)
    assert_allclose(found.y, found.difference(task.value(data.states)), atol=1e-10)


# What is left of V


@pytest.mark.parametrize("mix", MIXES)
def test_relative_to(mix):
    data = sample(MIXES[mix], seed=1)
    values = np.random.default_rng(1).normal(size=len(data))
    left = relative_to(data, values)
    rows = row_places(data)
    assert_allclose(left.rewards[rows], data.rewards[rows] - dense_H(data) @ values)
    assert (left.rewards[np.setdiff1d(np.arange(len(data)), rows)] == 0).all()
    for name in ("states", "discounts", "lengths", "terminated"):
        assert_array_equal(getattr(left, name), getattr(data, name))
    # Returns of what is left, and the function added back, are the returns there were.
    assert_allclose(Returns.of(left).y + Returns.of(data).difference(values), Returns.of(data).y, atol=1e-12)


def test_along_is_zero_where_all_is_over():
    data = chains((2, True), (2, False), gamma=0.9)
    given = np.arange(1.0, 7.0)
    found = along(lambda states: given, data)
    assert_array_equal(found, [1, 2, 0, 4, 5, 6])
    assert_array_equal(given, np.arange(1.0, 7.0))  # nobody's array was written to


# Learners


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.9])
def test_monte_carlo_of_a_constant_is_exact_even_where_all_was_cut_off(gamma):
    data = chains((3, False), (5, False), gamma=gamma)
    assert_allclose(monte_carlo(data)(data.states[:4]), np.full(4, 1.0 / (1.0 - gamma)))


def test_monte_carlo_is_the_average_return():
    data = Trajectories.from_episodes([episode([1.0, 2.0], True), episode([6.0], True)], 1.0)
    assert_allclose(monte_carlo(data)(np.zeros((2, 1))), [(3 + 2 + 6) / 3] * 2)
    # min Σ (y − (1 − z) c)² with one return that lacks z = 0.5
    data = Trajectories.from_episodes([episode([1.0], True), episode([4.0], False)], 0.5)
    assert_allclose(monte_carlo(data)(np.zeros((1, 1))), (1 * 1 + 0.5 * 4) / (1 + 0.25))


def test_monte_carlo_of_differences_only_is_finite():
    data = chains((3, False), (5, False), gamma=1.0)
    assert np.isfinite(monte_carlo(data)(data.states)).all()


def test_extremes_by_hand():
    ended = Trajectories.from_episodes([episode([1.0, 2.0], True), episode([-3.0], True)], 0.5)
    assert extremes(ended) == (-3.0, 2.0)
    # 4 + z·(…) with z = 0.5: the best reward for ever is 8, the worst that of having ended.
    assert extremes(Trajectories.from_episodes([episode([4.0], False)], 0.5)) == (4.0, 8.0)
    assert extremes(Trajectories.from_episodes([episode([-4.0], False)], 0.5)) == (-8.0, -4.0)
    assert extremes(chains((3, False), gamma=1.0)) == (-np.inf, np.inf)
    assert extremes(chains((3, True), gamma=1.0)) == (1.0, 3.0)


@pytest.mark.parametrize("task", [Spiral(), Walk(), Gridworld(gamma=0.9)])
def test_true_values_lie_between_the_extremes(task):
    data = task.sample(400, np.random.default_rng(0))
    low, high = extremes(data)
    truth = task.value(data.states[Returns.of(data).usable])
    assert low - 1e-9 <= truth.min() and truth.max() <= high + 1e-9


def test_bounded():
    data = Trajectories.from_episodes([episode([1.0, 2.0], True)], 0.5)
    asked: list[Trajectories] = []

    def learn(given: Trajectories) -> Any:
        asked.append(given)
        return lambda states: states[:, 0]

    assert_array_equal(Bounded(learn)(data)(np.array([[-9.0], [2.0], [9.0]])), [2.0, 2.0, 2.0])
    wide = Trajectories.from_episodes([episode([5.0], True), episode([-5.0], True)], 0.5)
    assert_array_equal(Bounded(learn)(wide)(np.array([[-9.0], [2.0], [9.0]])), [-5.0, 2.0, 5.0])
    assert asked == [data, wide]


class MadeUp:
    """A critic of two functions."""

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
def test_a_refitted_critic_learns_what_its_features_express(time_limit):
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


def test_features_beyond_those_seen_stay_at_the_edge():
    task = Spiral()
    data = task.sample(200, np.random.default_rng(0))
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), lambda x: x))(data)
    edge = data.states.max(axis=0, keepdims=True)
    assert_allclose(found(100.0 + edge), found(edge))


def test_a_perfect_critic_is_left_alone():
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


def test_useless_features_hardly_count():
    # 30 features and 60 returns that have nothing to do with them: least squares would be wrong by about 1.
    data = noisy(60, 0, 30)
    new = np.random.default_rng(1).normal(size=(200, 30))
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), lambda x: x))(data)(new)
    A = np.column_stack([data.states, np.ones(len(data))])[::2]
    plain = np.column_stack([new, np.ones(200)]) @ np.linalg.lstsq(A, data.rewards[::2], rcond=None)[0]
    assert np.sqrt((found**2).mean()) < 0.35 < 0.6 < np.sqrt((plain**2).mean())


def test_features_that_are_the_same_everywhere():
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


def test_features_that_are_the_same_but_for_rounding():
    task = Spiral()
    data = task.sample(200, np.random.default_rng(0))

    def features(x: Any) -> Any:
        seen = np.isin(x[:, 0], data.states[:, 0])
        return np.column_stack([parabolas(x), np.where(seen, 7.0 + 1e-13 * np.sin(1e4 * x[:, 0]), 8.0)])

    new = data.states[:20] + 0.01
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), features))(data)(new)
    assert_allclose(found, task.value(new), atol=0.02 * np.ptp(task.value(data.states)))


@pytest.mark.parametrize("n_episodes", [2, 3, 6])
def test_a_critic_refitted_to_few_episodes(n_episodes):
    task = Spiral()
    data = task.sample(25 * n_episodes, np.random.default_rng(0))
    assert data.n_segments == n_episodes
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), parabolas))(data)
    assert_allclose(found(data.states), task.value(data.states), atol=0.1 * np.ptp(task.value(data.states)))


def test_a_critic_refitted_to_one_episode():
    task = Spiral()
    data = task.sample(25, np.random.default_rng(0))
    found = RefittedCritic(MadeUp(lambda x: np.zeros(len(x)), parabolas))(data)(data.states)
    assert np.isfinite(found).all()


def test_the_penalty_is_that_which_predicts_other_episodes():
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


# A process that was chosen before


def fitted(data: Trajectories, **options: Any) -> GPTD:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GPTD("ard", n_restarts=0, **options).fit(data)


def grid(n: int, seed: int = 0) -> Trajectories:
    return Gridworld(gamma=0.9).sample(n, np.random.default_rng(seed))


@pytest.mark.parametrize("thinning", [1, 3])
def test_conditioned_on_the_same_data_it_is_the_model_itself(thinning):
    data = Spiral().sample(60, np.random.default_rng(0))
    v = fitted(data, objective="thinned", thinning=thinning)
    assert v.thinning_ == thinning
    all_states = Conditioned.on(v, data, size=1000)
    few = Conditioned.on(v, data, size=3)
    new = Spiral().sample(40, np.random.default_rng(1)).states
    assert_allclose(all_states(data)(new), v.predict(new), rtol=1e-4, atol=1e-4 * np.ptp(v.predict(new)))
    assert len(few.basis.states) == 3
    assert np.abs(few(data)(new) - v.predict(new)).max() > 1e-2 * np.ptp(v.predict(new))


@pytest.mark.parametrize("thinning", [1, 4])
def test_conditioned_on_the_same_noisy_data_it_is_the_model_itself(thinning):
    task = Walk()
    data = task.sample(200, np.random.default_rng(0))
    v = fitted(data, objective="thinned", thinning=thinning)
    learner = Conditioned.on(v, data, size=1000)
    assert_allclose(learner(data)(task.cells), v.predict(task.cells), rtol=1e-5, atol=1e-5)
    softer = v.model_.with_noise(10.0 * v.model_.noise_variance)  # it does matter how much noise there is
    other = Reference.of(softer, data, "stochastic").mean(task.cells)
    assert np.abs(other - v.predict(task.cells)).max() > 0.02


@pytest.mark.parametrize("mix", ["terminated", "truncated", "mixed"])
def test_conditioned_on_other_data_it_is_what_the_paper_writes(mix):
    data, other = sample(MIXES[mix], seed=0, gamma=0.9), sample(MIXES[mix], seed=5, gamma=0.9)
    v = fitted(data, objective="thinned", thinning=1)
    # Not what was chosen, which may be a model of noise alone.
    v.model_ = v.model_.with_noise(0.1 * v.model_.kernel.signal_variance)
    both = data + other
    new = np.random.default_rng(2).normal(size=(10, 3))
    learner = Conditioned.on(v, both, size=100)
    assert_allclose(learner(other)(new), Reference.of(v.model_, other, "stochastic").mean(new), rtol=1e-5, atol=1e-7)

    def mean(states: Any) -> Any:
        return 3.0 + states[:, 0] * 2.0

    asked: list[Trajectories] = []

    def learn(given: Trajectories) -> Any:
        asked.append(given)
        return mean

    with_mean = Conditioned(v, learner.basis, learn)
    rest = relative_to(other, along(mean, other))
    expected = mean(new) + Reference.of(v.model_, rest, "stochastic").mean(new)
    assert_allclose(with_mean(other)(new), expected, rtol=1e-5, atol=1e-6)
    assert asked == [other]  # the mean is learnt from the data given


def test_where_data_speak_for_themselves_the_mean_does_not_matter():
    data = grid(120)
    v = fitted(data, objective="thinned", thinning=1)
    learner = Conditioned.on(v, data, size=200)
    with_mean = Conditioned(v, learner.basis, lambda _: lambda states: 0.5 * states[:, 0] - 4.0)
    inner = data.states[~np.isin(np.arange(len(data)), data.last)]
    truth = Gridworld(gamma=0.9).value(inner)
    assert_allclose(learner(data)(inner), truth, atol=1e-2)
    assert_allclose(with_mean(data)(inner), truth, atol=1e-2)


def test_basis_states_come_from_a_limited_number_of_candidates(monkeypatch):
    monkeypatch.setattr(learners, "N_CANDIDATES", 5)
    data = Spiral().sample(60, np.random.default_rng(0))
    v = fitted(data, objective="thinned", thinning=1)
    basis = Conditioned.on(v, data, size=50).basis.states
    assert len(basis) <= 5 and all((data.states == b).all(axis=1).any() for b in basis)


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
