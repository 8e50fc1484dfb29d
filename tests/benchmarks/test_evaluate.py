"""The batched systems of the benchmarks step as Gymnasium's do, and their rollouts give known values."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl  # noqa: F401  (registers environments)

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "CartPole-v1",
    "Acrobot-v1",
    "Pendulum-v1",
    "gptd_rl/PendulumSwingUp-v0",
    "MountainCarContinuous-v0",
    "gptd_benchmarks/TwoTanks-v0",
)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    importlib.import_module("evaluation_environments")  # registers the tanks
    return importlib.import_module("control_systems")


def test_systems_are_complete(control):
    assert set(control.SYSTEMS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_system_steps_as_gymnasium(control, name):
    system, env = control.SYSTEMS[name], gym.make(name).unwrapped
    env.action_space.seed(0)
    n_ends = 0
    for seed in range(6 if name == "CartPole-v1" else 3):
        observation, _ = env.reset(seed=seed)
        state = system.states_of(np.array([observation], dtype=np.float64))
        assert_allclose(system.observe(state)[0], observation, rtol=1e-6, atol=1e-6)
        for t in range(300):
            if t % 7 == 0:  # rounding errors grow otherwise: Acrobot is chaotic
                exact = getattr(env, "state", None)  # ours has no such attribute
                seen = np.array([observation], dtype=np.float64)
                state = system.states_of(seen) if exact is None else np.array(exact, dtype=np.float64).reshape(1, -1)
            action = env.action_space.sample() if t % 20 < 10 else env.action_space.sample() * 0 + held(env)
            observation, reward, terminated, _, _ = env.step(action)
            state, rewards, terminal = system.step(state, np.array([action]))
            seen = system.observe(state)[0]
            assert seen.dtype == np.float32
            assert_allclose(seen, observation, rtol=1e-5, atol=1e-5)
            assert rewards[0] == pytest.approx(float(reward), rel=1e-5, abs=1e-5)
            assert bool(terminal[0]) == terminated
            if terminated:
                n_ends += 1
                break
    assert name != "CartPole-v1" or n_ends == 6


def held(env: Any) -> Any:
    """A constant action, which drives a system to its limits."""
    if isinstance(env.action_space, gym.spaces.MultiDiscrete):
        return env.action_space.nvec - 1
    return 1 if isinstance(env.action_space, gym.spaces.Discrete) else np.array([2.0], dtype=np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_system_steps_batches_row_by_row(control, name):
    system, env = control.SYSTEMS[name], gym.make(name)
    observations = np.array([env.reset(seed=seed)[0] for seed in range(5)], dtype=np.float64)
    env.action_space.seed(0)
    actions = np.array([env.action_space.sample() for _ in range(5)])
    states = system.states_of(observations)
    before = states.copy()
    batch = system.step(states, actions)
    assert_array_equal(states, before)  # the input is unchanged
    for i in range(5):
        for whole, row in zip(batch, system.step(states[i : i + 1], actions[i : i + 1]), strict=True):
            assert_allclose(whole[i], row[0], rtol=1e-12)


class Countdown:
    """State n is n steps from its end; the action is the reward."""

    def states_of(self, observations: Any) -> Any:
        return observations.astype(np.float64)

    def observe(self, states: Any) -> Any:
        return states.astype(np.float32)

    def step(self, states: Any, actions: Any) -> Any:
        return states - 1.0, actions.astype(np.float64), states[:, 0] <= 1.0


def test_rolled_out_values_of_a_countdown(control):
    starts = np.array([[1.0], [2.0], [5.0], [1e6]])
    found, error = control.rolled_out_values(Countdown(), lambda x: np.ones(len(x)), starts, 0.9, 3)
    steps = np.minimum(starts[:, 0], np.ceil(np.log(1e-4) / np.log(0.9)))  # the last goes on until 0.9ᵗ < 10⁻⁴
    assert_allclose(found, (1 - 0.9**steps) / 0.1)
    assert_allclose(error, 0, atol=1e-12)
    one, none = control.rolled_out_values(Countdown(), lambda x: np.ones(len(x)), starts, 0.9, 1)
    assert_allclose(one, found)
    assert_array_equal(none, np.zeros(4))


def test_rolled_out_values_of_a_random_countdown(control):
    rng = np.random.default_rng(0)
    starts = np.full((50, 1), 3.0)
    mean, error = control.rolled_out_values(Countdown(), lambda x: rng.normal(2.0, 1.0, len(x)), starts, 0.5, 200)
    variance = (1 + 0.25 + 0.0625) / 200
    scores = (mean - 2.0 * 1.75) / np.sqrt(variance)
    assert abs(scores.mean()) < 4 / np.sqrt(50) and 0.6 < scores.std() < 1.4
    assert_allclose(error, np.sqrt(variance), rtol=0.3)


def test_rolled_out_values_are_gymnasiums_returns(control):
    env = gym.make("CartPole-v1").unwrapped
    starts = np.array([env.reset(seed=seed)[0] for seed in range(4)], dtype=np.float64)

    def act(observations: Any) -> Any:
        return (observations[:, 2] > 0).astype(np.int64)

    found, _ = control.rolled_out_values(control.SYSTEMS["CartPole-v1"], act, starts, 0.95, 1)
    paid = np.zeros(4)
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        terminated, discount = False, 1.0
        while not terminated:
            observation, reward, terminated, _, _ = env.step(int(observation[2] > 0))
            paid[seed] += discount * float(reward)
            discount *= 0.95
    assert_allclose(found, paid, rtol=1e-9)
