"""Policies outside of rollouts: in many independent states, and in episodes that run side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from gptd_rl.data.spaces import flatten
from gptd_rl.data.state_actions import query_policy
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.policies import EpisodePolicy, StatePolicy

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
STATES = np.random.default_rng(0).uniform(-1, 1, size=(50, 2)).astype(np.float32).astype(np.float64)
EXPECTED = (STATES[:, 0] > 0).astype(int)


def rowwise(observation):
    assert observation.shape == (2,) and observation.dtype == np.float32
    return int(observation[0] > 0)


class Batched:
    batched = True

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, observations):
        self.sizes.append(len(observations))
        return (observations[:, 0] > 0).astype(int)


class Predicts:
    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert deterministic and state is None and episode_start.all()
        return (observation[:, 0] > 0).astype(int), np.ones(len(observation))


@pytest.mark.parametrize("policy", [rowwise, Batched(), Predicts()], ids=["row", "batch", "predict"])
@pytest.mark.parametrize("batch_size", [7, 50, 1000])
def test_state_policy_answers_like_the_policy(policy, batch_size):
    act = StatePolicy(policy, BOX, spaces.Discrete(2), batch_size=batch_size)
    assert_array_equal(act(STATES), EXPECTED)
    assert_array_equal(query_policy(act, STATES), EXPECTED)
    assert act(STATES[:0]).shape == (0,)


def test_state_policy_limits_the_batch():
    policy = Batched()
    StatePolicy(policy, BOX, spaces.Discrete(2), batch_size=20)(STATES)
    assert policy.sizes == [20, 20, 10]


def test_state_policy_restores_observations_of_any_space():
    space = spaces.Dict({"cell": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (1,), np.float32)})
    observations = {"cell": np.array([2, 0, 1]), "speed": np.array([[0.5], [-0.5], [0.25]], dtype=np.float32)}

    def policy(observation):
        return int(observation["cell"]) + int(observation["speed"][0] < 0)

    act = StatePolicy(policy, space, spaces.Discrete(5))
    assert_array_equal(act(flatten(space, observations)), [2, 1, 1])


def test_state_policy_none_samples_the_space():
    act = StatePolicy(None, BOX, spaces.Box(-2.0, 2.0, (3,), np.float32), seed=1)
    actions = act(STATES)
    assert actions.shape == (50, 3) and len(np.unique(actions)) > 100
    assert_array_equal(act(STATES), actions)
    assert act(STATES[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        ("left", TypeError, "expected a policy with predict.*; got str"),
        (lambda x: 1 / 0, CollectionError, "the policy failed: ZeroDivisionError"),
    ],
)
def test_state_policy_refuses_bad_policies(policy: Any, error, message):
    with pytest.raises(error, match=message):
        StatePolicy(policy, BOX, spaces.Discrete(2))(STATES)


def test_state_policy_refuses_a_wrong_number_of_actions():
    def one(observations):
        return np.zeros(1)

    one.batched = True  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"asked in 50 states and gave actions of shape \(1,\)"):
        StatePolicy(one, BOX, spaces.Discrete(2))(STATES)


def test_episode_policy_keeps_hidden_states_and_flags_the_start():
    class Counts:
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            state = np.zeros(len(observation), dtype=int) if state is None else state
            state = np.where(episode_start, 0, state) + 1
            return state, state

    act = EpisodePolicy(Counts(), BOX, spaces.Discrete(9), 3)
    observations = list(STATES[:3].astype(np.float32))
    for expected in ([1, 1, 1], [2, 2, 2], [3, 3, 3]):
        assert_array_equal(act(observations), expected)


def test_episode_policy_calls_only_running_episodes():
    calls = []

    def policy(observation):
        calls.append(observation)
        return 1

    act = EpisodePolicy(policy, BOX, spaces.Discrete(2), 3)
    act(STATES[:3].astype(np.float32))
    act(list(STATES[:3].astype(np.float32)), np.array([True, False, False]))
    assert len(calls) == 4


class Reusing:
    """A callable that returns the same array each time."""

    def __init__(self) -> None:
        self.action = np.zeros(1)

    def __call__(self, observation):
        self.action[0] = observation[0]
        return self.action


class ReusingList(Reusing):
    """A callable that returns the same list each time."""

    def __call__(self, observation):
        return [super().__call__(observation)]


@pytest.mark.parametrize("policy", [Reusing(), ReusingList()])
def test_a_callable_may_return_the_same_array_each_time(policy):
    states = np.arange(4.0)[:, np.newaxis]
    box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    act = EpisodePolicy(policy, box, box, 4)
    assert_array_equal(np.ravel(act(states)), states[:, 0])
    assert_array_equal(np.ravel(query_policy(policy, states)), states[:, 0])


@pytest.mark.parametrize("action", [np.ma.masked_array([1.0], mask=[True]), np.array([1j])])
def test_actions_that_numbers_would_change_are_refused(action):
    def odd(observation):
        return action

    box = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    message = r"actions of the policy must be numbers; got (a masked array|complex128)"
    with pytest.raises(CollectionError, match=f"TypeError: {message}"):
        EpisodePolicy(odd, box, box, 2)(np.zeros((2, 1)))
    with pytest.raises(TypeError, match=message):
        query_policy(odd, np.zeros((2, 1)))
