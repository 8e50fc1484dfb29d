"""Restored states continue as the episodes from which they come."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_array_equal

from gptd_rl.checks import as_generator
from gptd_rl.evaluation import evaluate_agent, snapshots
from gptd_rl.evaluation.snapshots import (
    CopiedAttributesEpisode,
    CopiedEpisode,
    ReplayedEpisode,
    endless,
    episode_maker,
    layers,
    reseeded,
)

Env = gym.Env[Any, Any]


class Chain(gym.Env):
    """Cells 0, 1, 2, … one after the other, for ever; a step is paid 1 and noise."""

    def __init__(self, noise: float = 0.0, start: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.noise, self.start = noise, start
        self.place = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.start
        return np.array([float(self.place)]), {}

    def step(self, action):
        self.place += 1
        return np.array([float(self.place)]), 1.0 + self.noise * self.np_random.normal(), False, False, {}


class Locked(Chain):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Forgetful(Chain, EzPickle):
    """Copied as MuJoCo's environments are: by making a new one."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        Chain.__init__(self, start=2)


class ForgetfulAndLocked(Forgetful):
    """Copied as Box2D's environments are: a part of it cannot be copied, either."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Unsteady(ForgetfulAndLocked):
    """Each one made is another."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Unsteady.made += 1
        self.start = Unsteady.made


class OwnGenerator(Chain):
    """Random by another generator than np_random."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, self.generator.normal(), *rest


class SampledNoise(Chain):
    """Random by its action space."""

    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, float(self.action_space.sample()), *rest


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (Chain, CopiedEpisode),
        (OwnGenerator, CopiedEpisode),
        (SampledNoise, CopiedEpisode),
        (lambda: gym.make("CartPole-v1"), CopiedEpisode),
        (lambda: TimeLimit(Chain(), 2), CopiedEpisode),
        (Forgetful, CopiedAttributesEpisode),
        (lambda: TimeLimit(Forgetful(), 50), CopiedAttributesEpisode),
        (ForgetfulAndLocked, ReplayedEpisode),
        (Locked, None),
        (lambda: TimeLimit(Locked(), 3), None),
        (Unsteady, None),
    ],
)
def test_episode_maker(make, way):
    assert episode_maker(make()) is way


def test_episode_maker_leaves_the_environment_alone():
    env, other = Chain(noise=1.0), Chain(noise=1.0)
    env.reset(seed=3), other.reset(seed=3)
    env.action_space.seed(3), other.action_space.seed(3)
    assert episode_maker(env) is CopiedEpisode
    assert rewards(env) == rewards(other)
    assert [env.action_space.sample() for _ in range(9)] == [other.action_space.sample() for _ in range(9)]


class SharedSpaces(Chain):
    """Spaces of the class, which other environments have, too."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space: Any = spaces.Discrete(1000)

    def __init__(self) -> None:
        self.noise, self.start, self.place = 0.0, 0, 0


def test_episode_maker_leaves_spaces_of_the_class_alone():
    SharedSpaces.action_space.seed(3)
    expected = [SharedSpaces.action_space.sample() for _ in range(5)]
    SharedSpaces.action_space.seed(3)
    assert episode_maker(SharedSpaces()) is CopiedEpisode
    assert [SharedSpaces.action_space.sample() for _ in range(5)] == expected


def rewards(env: Env, n: int = 5) -> list[float]:
    return [float(env.step(0)[1]) for _ in range(n)]


@pytest.mark.parametrize("way", [CopiedEpisode, CopiedAttributesEpisode, ReplayedEpisode])
def test_restore_draws_new_random_numbers_without_a_time_limit(way):
    episode = way(TimeLimit(Chain(noise=1.0), 4))
    episode.reset(0)
    episode.step(0)
    kept = episode.snapshot()
    futures = [rewards(kept.restore([seed, i])) for seed in range(2) for i in range(2)]
    assert len({tuple(f) for f in futures}) == 4
    assert rewards(kept.restore([1, 1])) == futures[3]
    twin = kept.restore([0, 0])
    assert [twin.step(0)[3] for _ in range(20)] == [False] * 20
    assert twin.unwrapped.place == 21
    # The episode itself is unchanged.
    other = TimeLimit(Chain(noise=1.0), 4)
    other.reset(seed=0)
    other.step(0)
    assert rewards(episode.env, 2) == rewards(other, 2)
    assert episode.env.step(0)[3]


def test_snapshot_stays_where_it_is():
    for way in (CopiedEpisode, CopiedAttributesEpisode, ReplayedEpisode):
        episode = way(Chain())
        episode.reset(0)
        episode.step(0)
        kept = episode.snapshot()
        episode.step(0)
        for _ in range(2):
            assert kept.restore([0]).step(0)[0] == 2.0
        assert kept.n_replayed == (1 if way is ReplayedEpisode else 0)


@pytest.mark.parametrize("make", [OwnGenerator, SampledNoise])
def test_restore_draws_other_numbers_from_every_generator(make):
    episode = CopiedEpisode(make())
    episode.reset(0)
    kept = episode.snapshot()
    assert rewards(kept.restore([0]), 20) != rewards(kept.restore([1]), 20)


class Passing(gym.Wrapper):
    """Does nothing, but is none that Gymnasium knows."""


def test_endless_has_no_time_limit_in_any_layer():
    env = endless(TimeLimit(Passing(TimeLimit(Chain(), 3)), 5))
    assert isinstance(env, Passing)
    env.reset(seed=0)
    assert not any(env.step(0)[3] for _ in range(10))


class Accumulating(gym.Wrapper):
    """Has a state of its own, in the observation."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.total = np.zeros(1)

    def reset(self, **options):
        self.total = np.zeros(1)
        return super().reset(**options)

    def step(self, action):
        seen, reward, *rest = super().step(action)
        self.total = 0.9 * self.total + seen
        return self.total.copy(), reward, *rest


REAL: dict[str, tuple[Any, str | None]] = {
    "CartPole-v1": (CopiedEpisode, None),
    "Pendulum-v1": (CopiedEpisode, None),
    "Blackjack-v1": (CopiedEpisode, None),
    "Taxi-v4": (CopiedEpisode, None),
    "Hopper-v5": (CopiedAttributesEpisode, "mujoco"),
    "HalfCheetah-v5": (CopiedAttributesEpisode, "mujoco"),
    "LunarLander-v3": (ReplayedEpisode, "Box2D"),
    "BipedalWalker-v3": (ReplayedEpisode, "Box2D"),
}


def make(name: str) -> Env:
    needed = REAL[name][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the bindings, as they are imported
        if needed is not None:
            pytest.importorskip(needed)
        try:
            return gym.make(name)
        except gym.error.UnregisteredEnv:
            pytest.skip(f"no {name} in this Gymnasium")


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", REAL)
def test_restored_states_continue_exactly(name: str, wrapped: bool):
    """The same actions from a restored state and from the state itself, later in an episode."""
    env = make(name)
    if wrapped and not isinstance(env.observation_space, spaces.Box):
        pytest.skip("its observations cannot be added")
    if wrapped:
        env = Accumulating(env)
    way = episode_maker(env)
    assert way is REAL[name][0]
    env.action_space.seed(1)
    n_compared = 0
    for seed in range(8):
        episode = way(env)
        episode.reset(seed)
        for _ in range(1 if name == "Blackjack-v1" else 7):
            if any(episode.step(env.action_space.sample())[2:4]):
                break
        else:
            kept = episode.snapshot()
            ahead, behind = reseeded(episode.env, as_generator([5])), kept.restore([5])
            for _ in range(40):
                action = env.action_space.sample()
                a, b = ahead.step(action), behind.step(action)
                assert_array_equal(a[0], b[0])
                assert a[1:3] == b[1:3]
                n_compared += 1
                if a[2] or a[3]:
                    break
    assert n_compared > (1 if name == "Blackjack-v1" else 40)


@pytest.mark.parametrize("name", ["Hopper-v5", "LunarLander-v3"])
def test_copies_alone_would_not_continue(name: str):
    """A control: the trial sees that a deep copy is a new environment."""
    env = make(name)
    assert not snapshots._continues(env, CopiedEpisode)


@pytest.mark.parametrize("name", ["Hopper-v5", "LunarLander-v3"])
def test_truth_is_of_rollouts(name: str):
    """The mean of several returns from each state, and not a single one."""
    env = make(name)
    found = evaluate_agent(None, env, n_transitions=300, n_episodes=4, n_states=8, gamma=0.9, analyse_inputs=False)
    assert found.check.n_rollouts > 1
    assert not any("cannot be restored" in warning for warning in found.warnings)


def test_layers():
    env = TimeLimit(Passing(Chain()), 3)
    assert [type(layer) for layer in layers(env)] == [TimeLimit, Passing, Chain]
