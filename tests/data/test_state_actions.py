"""Regression targets of Q as pairs; trajectories as pairs are tested with `GPTDQ`."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTDQ
from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.state_actions import recorded_actions, to_state_actions
from gptd_rl.data.trajectories import Trajectories

RNG = np.random.default_rng(0)
X, A = RNG.normal(size=(40, 2)), RNG.integers(3, size=40)
Y = np.sin(X[:, 0]) * (A - 1) + 0.05 * RNG.normal(size=40)


@pytest.mark.parametrize("policy", [None, lambda x: 0])
def test_to_state_actions_of_values_is_one_row_per_target(policy):
    pairs = to_state_actions(Trajectories.from_values(X, Y, A), DiscreteActions(3), policy)
    assert pairs is not None
    assert_array_equal(pairs.states, np.column_stack([X, A]))
    assert_array_equal(pairs.rewards, Y)
    assert pairs.n_rows == 40 and pairs.n_transitions == 0 and pairs.actions is None


def test_to_state_actions_appends_values_to_runs():
    walk = Trajectories.from_episodes([dict(observations=[0.0, 1.0], rewards=[1], actions=[1], terminated=True)], 0.9)
    values = Trajectories.from_values([3.0], [5.0], [0])
    pairs = to_state_actions(values + walk, DiscreteActions(2))
    assert pairs is not None
    assert_array_equal(pairs.states, [[0, 1], [1, 0], [1, 1], [3, 0]])
    assert_array_equal(pairs.rewards, [1, 0, 0, 5])
    assert_array_equal(pairs.lengths, [3, 1])


def test_gptdq_of_values_is_gaussian_process_regression():
    q = GPTDQ(objective="marginal_likelihood").fit(Trajectories.from_values(X, Y, A))
    assert q.actions_ == DiscreteActions(3)
    pairs, queries = np.column_stack([X, A]), np.column_stack([X[::-1], A])
    K = q.kernel_(pairs, pairs) + q.noise_variance_ * np.eye(40)
    expected = q.kernel_(queries, pairs) @ np.linalg.solve(K, Y)
    assert_allclose(q.predict(queries[:, :2], A), expected, rtol=1e-6, atol=1e-8)


def test_recorded_actions_leaves_out_last_states_only():
    walk = Trajectories.from_episodes(
        [dict(observations=[0.0, 1.0, 2.0], rewards=[1, 2], actions=[5, 6], terminated=True)], gamma=0.9
    )
    assert_array_equal(recorded_actions(walk), [5, 6])
    assert_array_equal(recorded_actions(walk + Trajectories.from_values([3.0], [1.0], [7])), [5, 6, 7])
    assert recorded_actions(Trajectories.from_values([3.0], [1.0])).size == 0


def test_to_state_actions_of_values_encodes_continuous_actions():
    pairs = to_state_actions(Trajectories.from_values([1.0, 2.0], [3.0, 4.0], [[0.5], [0.7]]), ContinuousActions((1,)))
    assert pairs is not None
    assert_array_equal(pairs.states, [[1.0, 0.5], [2.0, 0.7]])
