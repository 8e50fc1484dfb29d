"""Whatever environment a user brings: functions, vectors of any kind, observations of several parts."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics as RecordVectorEpisodes

import gptd_rl
from gptd_rl import CollectionError
from gptd_rl.evaluation import evaluate_agent
from gptd_rl.evaluation.environments import open_environment, part_names, time_limit

SMALL: dict[str, Any] = dict(n_transitions=120, n_episodes=4, n_states=10, gamma=0.9, analyse_inputs=False)


def lean(observation: Any) -> int:
    return int(observation[2] + 0.2 * observation[3] > 0)


def cartpole(max_episode_steps: int = 30) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=max_episode_steps)


# Functions


def test_evaluate_agent_in_an_environment_given_as_a_function():
    found = evaluate_agent(lean, cartpole, **SMALL)
    named = evaluate_agent(lean, "CartPole-v1", **SMALL, env_kwargs=dict(max_episode_steps=30))
    assert found.config.env == named.config.env == "CartPole-v1"
    assert found.start.value == named.start.value and found.check.n_rollouts == named.check.n_rollouts == 1
    np.testing.assert_array_equal(found.data.states, named.data.states)
    assert max(np.diff(np.append(found.data.starts, len(found.data.states)))) <= 31


def test_env_kwargs_are_arguments_of_the_function():
    found = evaluate_agent(lean, cartpole, **SMALL, env_kwargs=dict(max_episode_steps=7))
    assert found.start.mean == 7.0
    with pytest.raises(TypeError, match=r"^env_kwargs are for an environment that is made here"):
        evaluate_agent(lean, cartpole(), **SMALL, env_kwargs=dict(max_episode_steps=7))


def test_open_environment_makes_as_many_as_the_time_limit_allows():
    with open_environment(partial(cartpole, 10), lean, 120) as (env, _):
        assert env.vector_env.num_envs == 6
    assert time_limit(TimeLimit(cartpole(9), 20)) == 9


def broken() -> gym.Env[Any, Any]:
    raise RuntimeError("no\nlicence")


def nothing() -> Any:
    return [cartpole()]


@pytest.mark.parametrize(
    ("function", "words"),
    [(broken, "^cannot make environment broken: no licence$"), (nothing, "^nothing returned a list: expected a gym")],
)
def test_functions_that_return_no_environment(function, words):
    with pytest.raises(CollectionError, match=words):
        evaluate_agent(None, function, **SMALL)
    with pytest.raises(CollectionError, match=words):
        gptd_rl.collect(function, None, n_episodes=1, gamma=0.9)


def test_collect_in_an_environment_given_as_a_function():
    data, other = (gptd_rl.collect(env, lean, n_episodes=2, gamma=0.9, seed=1) for env in (cartpole, cartpole()))
    np.testing.assert_array_equal(data.states, other.states)


# Vectors


def many(n: int = 2) -> list[Any]:
    return [cartpole] * n


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_evaluate_agent_in_vectors_of_any_mode(kind, mode):
    env = kind(many(), autoreset_mode=mode)
    try:
        found = evaluate_agent(lean, env, **SMALL)
    finally:
        env.close()
    expected = evaluate_agent(lean, SyncVectorEnv(many()), **SMALL)
    assert found.check.n_rollouts == 1  # from states of a single one
    np.testing.assert_allclose(found.check.observed, expected.check.observed)
    assert sorted(found.data.rewards.tolist()) == sorted(expected.data.rewards.tolist())


def test_evaluate_agent_in_wrapped_vectors():
    found = evaluate_agent(lean, RecordVectorEpisodes(SyncVectorEnv(many())), **SMALL)
    assert found.check.n_rollouts == 1


def test_evaluate_agent_behind_recorders_of_episodes(tmp_path):
    assert evaluate_agent(lean, RecordEpisodeStatistics(cartpole()), **SMALL).check.n_rollouts == 1
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    from stable_baselines3.common.monitor import Monitor

    monitored = Monitor(cartpole(), str(tmp_path / "log"))  # with an open file, which cannot be copied
    for env in (vec_env.DummyVecEnv([lambda: monitored]), vec_env.VecMonitor(vec_env.DummyVecEnv([cartpole]))):
        assert evaluate_agent(lean, env, **SMALL).check.n_rollouts == 1
        env.close()


# Names


PARTS = spaces.Dict(
    arm=spaces.Dict(angle=spaces.Box(-1, 1, (1,)), speed=spaces.Box(-1, 1, ())),
    grid=spaces.Box(0, 1, (1, 2)),
    lamps=spaces.MultiBinary(2),
    dials=spaces.MultiDiscrete([2, 1]),
    position=spaces.Box(-1, 1, (2,)),
    room=spaces.Discrete(2, start=3),
    pair=spaces.Tuple([spaces.Discrete(1), spaces.Box(-1, 1, (2,))]),
)
NAMES = [
    *("arm.angle", "arm.speed", "dials[0] = 0", "dials[0] = 1", "dials[1] = 0", "grid[0, 0]", "grid[0, 1]"),
    *("lamps[0]", "lamps[1]", "pair[0] = 0", "pair[1][0]", "pair[1][1]", "position[0]", "position[1]"),
    *("room = 3", "room = 4"),
]


def test_part_names_of_several_parts():
    space = spaces.Dict(sorted(PARTS.items()))
    assert part_names(space) == NAMES and len(NAMES) == spaces.flatdim(space)


def test_part_names_are_in_the_order_of_flattened_observations():
    """The index in a name is that in the part, of an observation whose numbers count upwards."""
    space = spaces.Dict(b=spaces.Box(0, 99, (2, 2)), a=spaces.Box(0, 99, (3,)))
    observation: Any = spaces.unflatten(space, np.arange(7.0))
    for i, name in enumerate(part_names(space)):
        key, place = name.rstrip("]").split("[")
        assert observation[key][tuple(map(int, place.split(", ")))] == i


class Goal(gym.ObservationWrapper):
    def __init__(self) -> None:
        super().__init__(cartpole())
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(position=box, speed=box)

    def observation(self, observation):
        return dict(position=observation[::2], speed=observation[1::2])


def test_evaluate_agent_names_inputs_by_key():
    found = evaluate_agent(lambda seen: int(seen["position"][1] > 0), Goal, **SMALL)
    assert found.config.inputs == ("position[0]", "position[1]", "speed[0]", "speed[1]")
    assert found.config.env == "CartPole-v1" and found.check.n_rollouts == 1
