"""Policies on normalized observations, and the check of an agent's spaces."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from gptd_rl.sb3.loading import load_statistics
from gptd_rl.sb3.policies import NormalizedPolicy, check_spaces
from tests.sb3.test_loading import make, make_statistics, refusal

pytest.importorskip("stable_baselines3")


def test_normalized_policy_predicts_as_the_model_behind_vec_normalize(tmp_path):
    venv = make_statistics(tmp_path / "some.pkl")
    model = make("PPO", "Pendulum-v1", gamma=0.97)
    venv.training = False
    policy = NormalizedPolicy(model, load_statistics(tmp_path / "some.pkl"))
    seen = venv.reset()
    raw = venv.get_original_obs()
    for _ in range(10):
        action = model.predict(seen, deterministic=True)[0]
        assert_array_equal(policy.predict(raw, deterministic=True)[0], action)
        assert_array_equal(policy.predict(raw[0], deterministic=True)[0], action[0])
        seen = venv.step(action)[0]
        raw = venv.get_original_obs()
    assert np.abs(seen - raw).max() > 0.1


def test_normalized_policy_spaces_and_gamma(tmp_path):
    venv = make_statistics(tmp_path / "some.pkl")
    model = make("SAC", gamma=0.97)
    statistics = load_statistics(tmp_path / "some.pkl")
    policy = NormalizedPolicy(model, statistics)
    assert (policy.model, policy.statistics, policy.gamma) == (model, statistics, 0.97)
    assert policy.observation_space == venv.observation_space and policy.action_space == model.action_space
    assert not statistics.training
    assert_array_equal(statistics.obs_rms.mean, venv.obs_rms.mean)
    message = refusal(NormalizedPolicy, make("PPO"), statistics)
    assert message.startswith("the agent observes Box(4,) and the statistics are of Box(3,)")


def test_normalized_policy_passes_the_hidden_state(tmp_path):
    class Remembers:
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            return observation, (state, episode_start, deterministic)

    make_statistics(tmp_path / "some.pkl")
    policy = NormalizedPolicy(Remembers(), load_statistics(tmp_path / "some.pkl"))
    assert policy.predict(np.zeros(3), 1, 2, True)[1] == (1, 2, True)
    assert policy.predict(np.zeros(3))[1] == (None, None, False)


class Declared:
    """A policy or an environment, as far as its spaces go."""

    def __init__(self, observation_space: Any, action_space: Any = None) -> None:
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)


def test_check_spaces_accepts_the_environment_of_training():
    from stable_baselines3.common.vec_env import DummyVecEnv

    agent = make("PPO")
    check_spaces(agent, gym.make("CartPole-v1"))
    check_spaces(agent, gym.make_vec("CartPole-v1", 2))
    check_spaces(agent, DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    check_spaces(lambda observation: 0, gym.make("Acrobot-v1"))  # it declares no spaces
    expected = "the agent observes Box(4,) and Acrobot-v1 gives Box(6,): was it trained there?"
    assert refusal(check_spaces, agent, gym.make("Acrobot-v1")) == expected
    vectors: Any = (gym.make_vec("Acrobot-v1", 2), DummyVecEnv([lambda: gym.make("Acrobot-v1")]))
    for env in vectors:
        assert "gives Box(6,): was it trained there?" in refusal(check_spaces, agent, env)
    message = refusal(check_spaces, make("SAC"), Declared(spaces.Box(-1, 1, (3,))))
    assert message == "the agent acts in Box(1,) and the environment takes Discrete(2): was it trained there?"


BOX = spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize(
    ("a", "b", "fit"),
    [
        (BOX, spaces.Box(-np.inf, np.inf, (2,), np.float64), True),
        (BOX, spaces.Box(-1.0, 1.0, (3,)), False),
        (BOX, spaces.Box(-1, 1, (2,), np.int64), False),
        (BOX, spaces.Discrete(2), False),
        (spaces.Discrete(3), spaces.Discrete(3), True),
        (spaces.Discrete(3), spaces.Discrete(4), False),
        (spaces.Discrete(3), spaces.Discrete(3, start=1), False),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3]), True),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2]), False),
        (spaces.MultiBinary(2), spaces.MultiBinary(2), True),
        (spaces.MultiBinary(2), spaces.MultiBinary(3), False),
        (spaces.Dict(a=BOX), spaces.Dict(a=spaces.Box(0.0, 9.0, (2,))), True),
        (spaces.Dict(a=BOX), spaces.Dict(b=BOX), False),
        (spaces.Dict(a=BOX), spaces.Dict(a=spaces.Discrete(2)), False),
        (spaces.Dict({"a": BOX, "b": BOX}), spaces.Dict({"b": BOX, "a": BOX}), True),  # Gymnasium sorts them
        (spaces.Dict(a=BOX, b=BOX), spaces.Dict(b=BOX, a=BOX), False),
        (spaces.Tuple([BOX]), spaces.Tuple([spaces.Box(0.0, 9.0, (2,))]), True),
        (spaces.Tuple([BOX]), spaces.Tuple([BOX, BOX]), False),
        (spaces.Tuple([BOX]), spaces.Tuple([spaces.Discrete(2)]), False),
    ],
)
def test_check_spaces_by_case(a, b, fit):
    if fit:
        check_spaces(Declared(a), Declared(b))
        check_spaces(Declared(BOX, a), Declared(BOX, b))
    else:
        assert "was it trained there?" in refusal(check_spaces, Declared(a), Declared(b))
        assert "was it trained there?" in refusal(check_spaces, Declared(BOX, a), Declared(BOX, b))
        assert "was it trained there?" in refusal(check_spaces, Declared(b), Declared(a))


def test_check_spaces_message_shows_the_difference():
    message = refusal(check_spaces, Declared(spaces.Dict(a=BOX)), Declared(spaces.Box(0, 9, (2,), np.int64)))
    assert "observes Dict(a: Box(2,)) and the environment gives Box(2,) of int64" in message


def test_check_spaces_refuses_images():
    image = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    assert "image observations" in refusal(check_spaces, Declared(image), Declared(image))
    assert "(84, 84, 4)" in refusal(check_spaces, object(), Declared(image))
    assert "image observations" in refusal(check_spaces, Declared(spaces.Dict(a=image)), Declared(BOX))
