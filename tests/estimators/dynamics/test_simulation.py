"""Episodes in the dynamics model."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal


class Agent:
    def predict(self, states, deterministic=False):
        return (states[:, 0] > 0).astype(int), None


def by_sign(x):
    return int(x[0] > 0)


@pytest.mark.parametrize("policy", [by_sign, Agent()], ids=["callable", "predict"])
def test_simulate_iterates_predict(goal, policy):
    starts = np.array([[0.5, 0.9], [-0.9, -0.5], [0.0, 0.2]])
    data = goal.simulate(policy, starts, 12)
    assert data.n_segments == 3
    for i, start in enumerate(starts):
        rewards: list[float] = []
        x, states, ended = start, [start], False
        while not ended and len(rewards) < 12:
            outcome = goal.predict(x[None], [by_sign(x)])
            x, ended = outcome.next_states[0], bool(outcome.terminated[0])
            states.append(x)
            rewards.append(outcome.rewards[0])
        segment = data[i]
        assert_allclose(segment.states, states, atol=1e-10)
        assert_allclose(segment.rewards[:-1], rewards, atol=1e-10)
        assert bool(segment.terminated[0]) == ended
        assert segment.n_transitions == (len(rewards) if ended else 12)
    assert data.terminated.any() and not data.terminated.all()
    assert_allclose(data.discounts[data.has_transition], 0.9)


def test_simulate_with_noise_is_determined_by_its_seed(noisy):
    one, same, other = (noisy.simulate(None, np.zeros((4, 2)), 5, seed=seed).states for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


def test_the_mean_of_simulated_steps_is_the_predicted_one(noisy):
    n = 3000
    reached = noisy.simulate(lambda x: 1, np.zeros((n, 2)), 1).states[1::2]
    expected = noisy.predict([[0.0, 0.0]], [1]).next_states[0]
    assert_allclose(reached.mean(axis=0), expected, atol=5 * 0.1 / np.sqrt(n))
    assert_allclose(reached.std(axis=0), noisy.noise_[:2], rtol=0.1)


@pytest.mark.parametrize("action", [2, -1, 0.5, np.nan])
def test_simulate_refuses_unknown_actions(smooth, action):
    with pytest.raises(ValueError, match=r"^the policy must choose among the 2 actions 0 to 1 of the model\.$"):
        smooth.simulate(lambda x: action, [[0.0, 0.0]], 3)


def test_simulate_takes_another_discount_and_needs_a_start(smooth):
    assert smooth.simulate(None, [[0.0, 0.0]], 2, gamma=0.5).discounts[0] == 0.5
    with pytest.raises(ValueError, match="at least one state"):
        smooth.simulate(None, np.zeros((0, 2)), 2)
    with pytest.raises(ValueError, match="n_steps must be a whole number of at least 1; got 0"):
        smooth.simulate(None, [[0.0, 0.0]], 0)
