"""Transitions with numbered actions: where they end, and caution about rewards."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.data.action_transitions import ActionTransitions, CompletedTransitions


def test_action_transitions_keep_both_kinds_of_ends():
    pairs = Trajectories(
        np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0], [5.0, 1.0], [6.0, 0.0]]),
        np.array([1.0, 2.0, 0.0, 3.0, 0.0]),
        np.array([0.9, 0.9, 0.0, 0.9, 0.0]),
        np.array([3, 2]),
        np.array([True, False]),
    )
    t = ActionTransitions.of(pairs)
    assert len(t) == 3 and t.gamma == 0.9
    assert_array_equal(t.states[:, 0], [0.0, 1.0, 5.0])
    assert_array_equal(t.next_states[:, 0], [1.0, 2.0, 6.0])
    assert_array_equal(t.actions, [1, 0, 1])
    assert_array_equal(t.rewards, [1.0, 2.0, 3.0])
    assert_array_equal(t.terminated, [False, True, False])
    assert_allclose(t.discounts, [0.9, 0.0, 0.9])


def test_cautious_rewards_stay_above_the_smallest_and_curious_ones_may_exceed_the_largest():
    zeros = np.zeros((2, 1))
    rewards, std = np.array([[0.0, 1.0], [3.0, 2.0]]), np.array([[0.0, 0.5], [0.1, 100.0]])
    ends = np.zeros((2, 2), dtype=bool)
    data = CompletedTransitions(
        zeros, np.zeros((2, 2, 1)), rewards, std, 0.9 * np.ones((2, 2)), ends, zeros[:0], 0.9, 2
    )
    assert len(data) == 2 and data.n_actions == 2
    assert_allclose(data.cautious_rewards(0.0), rewards)
    assert_allclose(data.cautious_rewards(1.0), [[0.0, 0.5], [2.9, 0.0]])
    assert_allclose(data.cautious_rewards(-1.0), [[0.0, 1.5], [3.1, 5.0]])  # by the range 3 at most
