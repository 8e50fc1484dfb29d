"""`compare_agents` from end to end, with small budgets: known differences, bad input, interrupts."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_allclose

from gptd_rl import compare_agents
from gptd_rl.agents import TowardsMiddle
from gptd_rl.evaluation import candidates, compare
from gptd_rl.evaluation.comparison import AgentComparison
from gptd_rl.evaluation.paired import time_limit
from gptd_rl.exceptions import AgentError

GRID = "gptd_rl/LatentGridworld-v0"
SMALL: dict[str, Any] = dict(n_transitions=100, n_starts=12, n_states=12)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few states to choose a kernel by."""
    monkeypatch.setattr(candidates, "N_SELECTED", 60)
    monkeypatch.setattr(compare, "N_CHECK", dict(n_episodes=4, n_states=8))


class Line(gym.Env):
    """A walk from x in (0, 1): action 1 goes a tenth to the right, 0 half of that; the end is at 1, a step costs 1."""

    observation_space: Any = spaces.Box(-1.0, 2.0, (1,), np.float64)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, noise: float = 0.0, can_be_copied: bool = True) -> None:
        self.noise, self.can_be_copied = noise, can_be_copied
        self.x = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(0.0, 0.9))
        return np.array([self.x]), {}

    def step(self, action):
        self.x += (0.1 if action else 0.05) * (1.0 + self.noise * self.np_random.uniform(-1.0, 1.0))
        return np.array([self.x]), -1.0, self.x >= 1.0, False, {}

    def __deepcopy__(self, memo):
        if not self.can_be_copied:
            raise TypeError("a simulator in another process")
        twin = Line(self.noise)
        twin.x, twin.np_random = self.x, np.random.default_rng()
        twin.np_random.bit_generator.state = self.np_random.bit_generator.state
        return twin


def fast(observation: Any) -> int:
    return 1


def slow(observation: Any) -> int:
    return 0


def stops_half_way(observation: Any) -> int:
    """Fast on the left, slow on the right."""
    return int(observation[0] < 0.5)


def cost(x: Any, step: float, gamma: float = 0.99) -> Any:
    """V of a walk with constant steps."""
    n = np.ceil((1.0 - np.asarray(x)) / step - 1e-9)
    return -(1.0 - gamma**n) / (1.0 - gamma)


def sane(found: AgentComparison) -> None:
    text = json.dumps(found.as_json(), allow_nan=False)
    assert all(agent.name in text for agent in found.agents)
    for d in found.differences:
        assert d.value.lower <= d.value.estimate <= d.value.upper
    if found.at_states is not None:
        states = found.at_states
        assert states.values.shape == states.differences.shape == (len(found.agents), len(states.states))
        assert (states.lower <= states.differences).all() and (states.differences <= states.upper).all()
        row = [agent.name for agent in found.agents].index(found.config.reference)
        assert not (states.better | states.worse)[row].any()


def test_compare_agents_finds_known_differences():
    found = compare_agents({"fast": fast, "slow": slow}, Line(), **SMALL)
    sane(found)
    (d,) = found.differences
    assert (d.agent, d.reference, d.credible, d.higher, d.lower) == ("fast", "slow", "better", 1.0, 0.0)
    states = found.at_states
    assert states is not None and states.kind == "rollouts" and states.n_rollouts == 1
    x = states.states[:, 0]
    assert_allclose(states.values, [cost(x, 0.1), cost(x, 0.05)])
    assert_allclose(states.differences[0], cost(x, 0.1) - cost(x, 0.05))
    assert (states.better[0] == (states.differences[0] > 0)).all() and states.better[0].sum() >= 10
    split = states.splits[0]
    assert split is not None and split.input == 0 and split.below > split.above > 0
    # The same starts for both: the values of each start are those of its x.
    assert_allclose(d.value.estimate, np.mean(found.agents[0].start_values - found.agents[1].start_values))
    assert found.agents[1].start_returns.min() < -10 and d.value.half_width < 0.7 * d.unpaired_half_width
    assert found.config.gamma == 0.99 and found.is_complete


def test_compare_agents_with_itself():
    for noise in (0.0, 0.5):
        found = compare_agents({"one": fast, "two": fast}, Line(noise), **SMALL)
        sane(found)
        (d,) = found.differences
        assert d.value.estimate == 0.0 and d.credible is None and d.higher == d.lower == 0.0
        assert found.at_states is not None and not (found.at_states.better | found.at_states.worse).any()
        assert any("equal returns from all 12 start states" in text for text in found.warnings)


def test_compare_agents_uses_common_random_numbers():
    found = compare_agents({"fast": fast, "half": stops_half_way}, Line(0.9), **SMALL)
    sane(found)
    states = found.at_states
    assert states is not None and 6 <= states.n_rollouts <= 20
    (d,) = found.differences
    assert d.credible == "better" and d.value.half_width < d.unpaired_half_width
    same = compare_agents({"fast": fast, "half": stops_half_way}, Line(0.9), **SMALL)
    assert same.differences == found.differences  # the seed decides
    other = compare_agents({"fast": fast, "half": stops_half_way}, Line(0.9), **SMALL, seed=1)
    assert (other.agents[0].start_values != found.agents[0].start_values).mean() > 0.5


def test_compare_agents_of_several_chooses_the_best():
    agents = {"slow": slow, "fast": fast, "half": stops_half_way, "twin": fast}
    found = compare_agents(agents, Line(), **SMALL)
    sane(found)
    assert found.config.reference == "fast" and found.config.is_best
    assert [(d.agent, d.credible) for d in found.differences] == [("slow", "worse"), ("half", "worse"), ("twin", None)]
    given = compare_agents(agents, Line(), **SMALL, reference="slow")
    assert given.config.reference == "slow" and not given.config.is_best
    assert [d.credible for d in given.differences] == ["better", "better", "better"]
    assert {d.agent: d.value.half_width for d in given.differences}["fast"] < next(
        d.value.half_width for d in found.differences if d.agent == "slow"
    )  # fewer intervals to hold together


def test_compare_agents_without_copies():
    env = TimeLimit(Line(can_be_copied=False), 50)
    found = compare_agents([fast, slow], env, **SMALL)
    sane(found)
    (d,) = found.differences
    assert (d.agent, d.reference, d.credible) == ("fast", "slow", "better")
    a, b = found.agents
    assert_allclose(b.start_returns / a.start_returns, 2.0, rtol=0.5)  # the same starts
    states = found.at_states
    assert states is not None and states.kind == "models" and states.n_rollouts == 0
    assert any("cannot be copied" in text for text in found.warnings)


def test_compare_agents_in_discrete_states_and_with_known_values():
    class Hesitant(TowardsMiddle):
        """Walks away from the middle in column 1."""

        def predict(self, observation: Any, *args: Any, **options: Any) -> Any:
            actions, state = super().predict(observation)
            return np.where(np.asarray(observation)[..., 0] == 2, 0, actions), state

    found = compare_agents({"middle": TowardsMiddle(), "hesitant": Hesitant()}, GRID, gamma=0.9, **SMALL)
    sane(found)
    states = found.at_states
    assert states is not None
    assert_allclose(states.values[0], TowardsMiddle().value(states.states, 0.9), atol=1e-9)
    stuck = states.states[:, 0] <= 2
    assert (states.better[0] == stuck).all()
    frozen = compare_agents([None, None], "FrozenLake-v1", **SMALL)
    assert frozen.config.is_categorical and [agent.name for agent in frozen.agents] == [
        "random actions 1",
        "random actions 2",
    ]


def test_compare_agents_with_other_discounts_and_own_statistics():
    sb3 = pytest.importorskip("stable_baselines3")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    settings: Any = dict(device="cpu", seed=0, n_steps=64, policy_kwargs=dict(net_arch=[8]))
    plain = sb3.PPO("MlpPolicy", "CartPole-v1", gamma=0.9, **settings)
    inner = vec_env.DummyVecEnv([lambda: gym.make("CartPole-v1")])
    normalized = sb3.PPO("MlpPolicy", vec_env.VecNormalize(inner), gamma=0.95, **settings).learn(64)
    found = compare_agents({"plain": plain, "normalized": normalized}, "CartPole-v1", **SMALL)
    sane(found)
    assert found.config.gamma == 0.9 and [agent.gamma for agent in found.agents] == [0.9, 0.95]
    assert [agent.algorithm for agent in found.agents] == ["PPO", "PPO"]
    assert any("other discounts than γ = 0.9" in text and "normalized 0.95" in text for text in found.warnings)
    assert not any("expects normalized" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("agents", "options", "words"),
    [
        ({"a": fast}, {}, "^expected two agents or more to compare; got 1.$"),
        ([], {}, "two agents or more"),
        (fast, {}, "^agents must be a mapping of names to agents, or a list; got function.$"),
        ({"a": fast, "b": slow}, dict(reference="c"), "^reference must be one of 'a', 'b'; got 'c'.$"),
        ({"a": fast, "b": slow}, dict(env=None), "^there is no environment: .* so give one.$"),
        ({"a": fast, "b": slow}, dict(n_starts=1), "^n_starts must be a whole number of at least 2; got 1.$"),
        ({"a": fast, "b": slow}, dict(gamma=2.0), "discount gamma must lie in"),
    ],
)
def test_compare_agents_refuses(agents: Any, options: dict[str, Any], words: str):
    with pytest.raises((ValueError, TypeError), match=words):
        compare_agents(agents, **{"env": Line()} | options)


@pytest.mark.parametrize(
    ("observed", "acted", "words"),
    [
        (spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2), r"^other: the agent observes Box\(3,\) and .* gives Box"),
        (Line.observation_space, spaces.Discrete(5), r"^other: the agent acts in Discrete\(5\) and .* takes Discrete"),
    ],
)
def test_compare_agents_refuses_other_spaces(observed: Any, acted: Any, words: str):
    class Other:
        observation_space, action_space = observed, acted

        def predict(self, observation: Any, deterministic: bool = False) -> tuple[Any, None]:
            raise AssertionError("never asked")

    with pytest.raises(AgentError, match=words):
        compare_agents({"fast": fast, "other": Other()}, Line(), **SMALL)


@pytest.mark.parametrize(("stop", "left"), [(("agents", 9), 2), (("states", 1), 3)])
def test_compare_agents_keeps_what_is_finished(stop: tuple[str, int], left: int):
    def progress(stage: str, done: int, total: int) -> None:
        if (stage, done) == stop:
            raise KeyboardInterrupt

    found = compare_agents({"a": fast, "b": slow, "c": fast}, Line(0.5), **SMALL, progress=progress)
    sane(found)
    assert not found.is_complete and found.at_states is None and len(found.agents) == left
    assert found.warnings[0] == f"Interrupted: {left} of 3 agents were compared, and no states."
    assert "Interrupted" in found.summary()
    with pytest.raises(KeyboardInterrupt):
        compare_agents([fast, slow], Line(), **SMALL, progress=lambda stage, done, total: progress(*stop, 0))


def test_time_limit():
    assert time_limit(gym.make("CartPole-v1")) == 500
    assert time_limit(TimeLimit(Line(), 7)) == 7
    assert time_limit(Line()) is None
