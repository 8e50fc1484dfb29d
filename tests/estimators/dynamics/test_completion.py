"""Transitions completed with the actions not taken."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import DynamicsModel
from gptd_rl.estimators.dynamics.completion import repeat_actions
from tests.estimators.dynamics.cases import BENT, BOUNDS, GOAL, NOISY, hits_wall, parts
from tests.systems import transitions


def test_complete_keeps_what_was_done_and_adds_the_difference_of_predictions(noisy):
    x, a, reached, rewards, _ = parts(NOISY.sample(600, 0))
    data, rows = noisy.complete(), np.arange(600)
    assert data.n_actions == 2 and len(data) == 600 and data.gamma == 0.9
    assert_array_equal(data.next_states[rows, a], reached)
    assert_array_equal(data.rewards[rows, a], rewards)
    assert_array_equal(data.reward_std[rows, a], 0.0)
    predicted = noisy.outcomes(x).next_states
    inside = (np.abs(data.next_states) < [1.05, 1.2]).all(axis=(1, 2))  # nothing is clipped
    assert inside.sum() > 300
    difference = predicted[rows, 1 - a] - predicted[rows, a]
    assert_allclose((data.next_states[rows, 1 - a] - reached)[inside], difference[inside], atol=1e-10)
    assert_array_equal(data.discounts, 0.9)
    assert len(data.terminal_states) == 0


def test_complete_keeps_terminal_states_and_gives_rewards_on_ending_to_ends_only(goal):
    _, a, reached, _, ended = parts(GOAL.sample(400, 0))
    data, rows = goal.complete(), np.arange(400)
    assert_array_equal(data.terminal_states, reached[ended][-200:])
    assert_array_equal(data.discounts[rows, a], np.where(ended, 0.0, 0.9))
    others = data.discounts[rows, 1 - a] == 0.0
    assert_allclose(data.rewards[rows, 1 - a], np.where(others, -3.0, -1.0), atol=1e-6)


def test_complete_does_not_hand_on_a_reward_on_ending():
    """Left and right of a goal line, which only action 1 crosses: the other action costs what a step costs."""
    rng = np.random.default_rng(0)
    x, a = rng.uniform(0.0, 1.0, size=(300, 1)), rng.integers(2, size=300)
    reached = x + 0.3 * (2 * a[:, None] - 1)
    ended = reached[:, 0] > 1.0
    rewards = np.where(ended, 10.0, -1.0 + 0.5 * x[:, 0])
    data = DynamicsModel().fit(transitions(x, a, reached, rewards, ended)).complete()
    assert_allclose(data.rewards[ended, 0], -1.0 + 0.5 * x[ended, 0], atol=1e-3)


def test_complete_of_rows_stopped_at_a_wall_is_the_prediction_for_the_others():
    x, a, reached, stopped = hits_wall(500, 0)
    model = DynamicsModel(bounds=BOUNDS).fit(transitions(x, a, reached, 0.0))
    data, rows = model.complete(), np.flatnonzero(stopped)
    expected = model.outcomes(x[rows]).next_states[np.arange(len(rows)), 1 - a[rows]]
    assert_allclose(data.next_states[rows, 1 - a[rows]], expected, atol=1e-12)


def test_complete_adds_predicted_states(smooth):
    more = np.random.default_rng(1).uniform(-1.0, 1.0, size=(20, 2))
    data, outcome = smooth.complete(states=more), smooth.outcomes(more)
    assert len(data) == 320 and data.n_real == 300
    assert_array_equal(data.states[300:], more)
    assert_allclose(data.next_states[300:], outcome.next_states)
    assert_allclose(data.rewards[300:], outcome.rewards)
    assert (data.reward_std[300:] > 0).all()
    assert ((data.reward_std[:300] > 0).sum(axis=1) == 1).all()  # of the action not taken
    other = smooth.complete(BENT.sample(30, 4))
    assert_array_equal(other.states, BENT.sample(30, 4).states[::2])


def test_epistemic_std_is_the_standard_deviation_of_the_posterior(smooth, noisy):
    x = np.random.default_rng(1).uniform(-2.0, 2.0, size=(60, 2))
    for output in (smooth.outputs_[1], smooth.outputs_[2], noisy.outputs_[1]):
        for action in (0, 1):
            actions = np.full(60, action)
            variance = output.posterior.variance(np.column_stack([x, actions]))
            assert_allclose(output.epistemic_std(x, actions), np.sqrt(variance), rtol=1e-3)


def test_repeat_actions_iterates_predict_until_an_end(goal):
    data, rng = goal.complete(), np.random.default_rng(0)
    found = repeat_actions(goal, data, 3, rng)
    assert found.gamma == data.gamma**3 and found.states is data.states
    n_ended = 0
    for i in range(0, 400, 7):
        for a in range(2):
            x, reward, discount = data.next_states[i, a], data.rewards[i, a], data.discounts[i, a]
            for _ in range(2):
                if discount > 0.0:
                    outcome = goal.predict(x[None], [a])
                    reward, x = reward + discount * outcome.rewards[0], outcome.next_states[0]
                    discount *= 0.0 if outcome.terminated[0] else data.gamma
            assert_allclose(found.next_states[i, a], x)
            assert_allclose([found.rewards[i, a], found.discounts[i, a]], [reward, discount])
            assert found.may_end[i, a] or discount > 0.0
            n_ended += discount == 0.0
    assert 5 < n_ended < 100


def test_repeat_actions_once_changes_nothing(smooth):
    data = smooth.complete()
    same = repeat_actions(smooth, data, 1, np.random.default_rng(0))
    for name in ("next_states", "rewards", "discounts", "may_end", "gamma"):
        assert_array_equal(getattr(same, name), getattr(data, name))
