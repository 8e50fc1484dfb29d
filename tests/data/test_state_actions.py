"""Regression targets of Q as pairs; trajectories as pairs are tested with `GPTDQ`."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, GPTDQ
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


def test_gptdq_of_values_is_a_regression_per_action():
    q = GPTDQ(noise_variance=0.01, objective="marginal_likelihood").fit(Trajectories.from_values(X, Y, A))
    assert q.actions_ == DiscreteActions(3)
    for a in range(3):
        of_action = GPTD(q.kernel, noise_variance=0.01).fit(Trajectories.from_values(X[a == A], Y[a == A]))
        assert_allclose(q.predict(X, np.full(40, a)), of_action.predict(X), atol=0.5)
    assert_allclose(q.predict(X, A), Y, atol=0.3)


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
