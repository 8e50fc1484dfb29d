"""Exploring where nothing is to be gained by what is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from gptd_rl import DynamicsModel
from gptd_rl.agents import PolicyIteration
from gptd_rl.agents.exploration import FAR, nothing_to_gain, reward_novelty
from gptd_rl.agents.policy_iteration import UNKNOWN_VALUE
from gptd_rl.estimators.completed import CompletedProblem
from gptd_rl.estimators.dynamics.output import state_kernel, unit_relevances
from gptd_rl.kernels import MultiScale
from gptd_rl.rollouts.collect import collect


class Corridor(gym.Env[Any, Any]):
    """Moving costs a little; what lies at the far end pays for it. A random walk does not get there."""

    observation_space: Any = spaces.Box(0.0, 10.0, (1,), np.float64)
    action_space: Any = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.time = float(self.np_random.uniform(0.0, 1.0)), 0
        return np.array([self.x]), {}

    def step(self, action: Any) -> Any:
        self.x = float(np.clip(self.x + 0.25 * (int(action) - 1), 0.0, 10.0))
        self.time += 1
        arrived = self.x >= 9.5
        reward = (10.0 if arrived else 0.0) - 0.02 * (int(action) != 1)
        return np.array([self.x]), reward, arrived, self.time >= 100, {}


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_learn_finds_a_reward_that_doing_nothing_hides(seed):
    agent = PolicyIteration(Corridor(), seed=seed).learn(600)
    assert agent.data.rewards.max() > 9.0
    assert (agent.evaluate(5, seed=1) > 9.0).all()


@pytest.fixture(scope="module")
def corridor() -> tuple[DynamicsModel, CompletedProblem]:
    model = DynamicsModel(bounds=([0.0], [10.0])).fit(collect(Corridor(), n_transitions=200, gamma=0.9, seed=0))
    data = model.complete(states=np.array([[9.0], [0.5]]))
    kernel = state_kernel(model.space_, unit_relevances(model.space_, data.states), MultiScale)
    return model, CompletedProblem.of(data, kernel, 50, np.random.default_rng(0))


def test_nothing_is_to_be_gained_if_doing_nothing_is_the_best_that_is_known(corridor):
    data = corridor[1].data
    assert nothing_to_gain(data)
    assert nothing_to_gain(replace(data, rewards=np.zeros_like(data.rewards)))
    assert not nothing_to_gain(replace(data, rewards=data.rewards - 1.0))  # time costs
    found = data.rewards.copy()
    found[0, 0] = 5.0
    assert not nothing_to_gain(replace(data, rewards=found))  # there is a reward


def test_novelty_is_rewarded_far_from_visited_states_only(corridor):
    model, problem = corridor
    sought, reward = reward_novelty(model, problem)
    assert reward == pytest.approx(0.02 / (1.0 - 0.9))
    visited, following = model.transitions_.states[:, 0], problem.data.next_states[..., 0]
    nearest = np.abs(following[..., None] - visited).min(axis=-1)
    is_far = nearest > FAR * nearest[: problem.data.n_real].max()
    assert is_far.any() and not is_far.all()
    np.testing.assert_array_equal(sought.data.rewards == reward, is_far)
    np.testing.assert_array_equal(sought.data.discounts[is_far], 0.0)
    np.testing.assert_array_equal(sought.data.rewards[~is_far], problem.data.rewards[~is_far])


def test_unknown_values_look_good_as_long_as_every_reward_was_zero():
    agent = PolicyIteration("FrozenLake-v1", seed=0, model=None).learn(60)
    assert not agent.data.rewards.any()
    assert agent.estimator.q_values(np.full((1, 16), 1e3)).min() == pytest.approx(UNKNOWN_VALUE)  # far from everything
    agent.learn(1940, reset_num_timesteps=False)
    assert agent.data.rewards.any()
    assert agent.estimator.q_values(np.full((1, 16), 1e3)).max() == pytest.approx(1.0)  # a goal pays once, not for ever
    assert np.mean(agent.evaluate(100, seed=1)) > 0.5
