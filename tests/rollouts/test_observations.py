"""Environments that leave their own spaces are refused, with the step, the value and the space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.testing import assert_array_equal

from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts import collect as collecting
from gptd_rl.rollouts import rollout
from gptd_rl.rollouts.collect import collect
from gptd_rl.rollouts.observations import ObservationCheck

GAMMA = 0.9
LENGTH = 3  # of episodes


class Showing(gym.Env):
    """Episodes of three steps that show one observation, and another one at a given episode and step."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, usual: Any, odd: Any, at: tuple[int, int]) -> None:
        self.observation_space, self.usual, self.odd, self.at = space, usual, odd, at
        self.episode = -1

    def show(self) -> Any:
        return self.odd if (self.episode, self.steps) == self.at else self.usual

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return self.show(), {}

    def step(self, action):
        self.steps += 1
        return self.show(), 1.0, self.steps == LENGTH, False, {}


def real(shape: tuple[int, ...] = (2,), dtype: type = np.float32) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, dtype)


MULTI = spaces.MultiDiscrete([2, 3], start=[0, 5])
BYTES = spaces.Box(0, 255, (2,), np.uint8)
BOTH: Any = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
PAIR = spaces.Dict({"a": spaces.Discrete(2), "b": real((1,))})
# What an environment shows usually, what it shows instead, and how that is named.
ODD: dict[str, tuple[spaces.Space, Any, Any, str]] = {
    "discrete below": (spaces.Discrete(3), 1, -1, r"observation -1 is outside Discrete\(3\)"),
    "discrete above": (spaces.Discrete(3), 1, 3, r"observation 3 is outside Discrete\(3\)"),
    "discrete before start": (spaces.Discrete(3, start=5), 5, 0, r"observation 0 is outside Discrete\(3, start=5\)"),
    "discrete behind start": (spaces.Discrete(3, start=5), 5, 8, r"observation 8 is outside Discrete\(3, start=5\)"),
    "discrete fraction": (spaces.Discrete(3), 1, 1.5, r"observation 1.5 is no int64: expected Discrete\(3\)"),
    "discrete nan": (spaces.Discrete(3), 1, np.nan, r"observation nan is no int64: expected Discrete\(3\)"),
    "discrete vector": (spaces.Discrete(3), 1, np.array([1]), r"observation \[1\] has shape \(1,\): expected Discrete"),
    "discrete big": (spaces.Discrete(3), 1, 2**70, r"observation \d+ is no number: expected Discrete\(3\)"),
    "discrete none": (spaces.Discrete(3), 1, None, r"observation None is no number: expected Discrete\(3\)"),
    "multi-discrete": (MULTI, np.array([1, 5]), np.array([1, 8]), r"observation \[1 8\] is outside MultiDiscrete"),
    "multi-discrete start": (MULTI, np.array([1, 5]), np.array([1, 2]), r"observation \[1 2\] is outside MultiDiscr"),
    "multi-discrete below": (MULTI, np.array([1, 5]), np.array([-1, 5]), r"observation \[-1  5\] is outside MultiD"),
    "multi-binary": (
        spaces.MultiBinary(2),
        np.array([0, 1]),
        np.array([0, 2]),
        r"\[0.? 2.?\] is outside MultiBinary\(",
    ),
    "bytes": (BYTES, np.array([1, 2]), np.array([300, 2]), r"\[300   2\] is no uint8: expected Box\(0, 255, \(2,\), u"),
    "negative bytes": (BYTES, np.array([1, 2]), np.array([-1, 2]), r"\[-1  2\] is no uint8"),
    "python integers": (BYTES, [1, 2], [1, 256], r"\[  1 256\] is no uint8"),
    "fractions": (spaces.Box(-9, 9, (2,), np.int32), np.array([1, 2]), np.array([1, 2.5]), r"\[1.  2.5\] is no int32"),
    "bounds": (spaces.Box(-9, 9, (1,), np.int32), np.array([1]), np.array([10]), r"\[10.?\] is outside Box\(-9, 9"),
    "big integers": (
        spaces.Box(-(2**62), 2**62, (1,), np.int64),
        np.array([1]),
        np.array([2**60]),
        r"observation \[1\d*\.?\d*(e\+18)?\] is beyond ±2\^53, up to which floats hold all integers of Box",
    ),
    "coarse floats": (
        real(),
        np.zeros(2, np.float32),
        np.array([1e8 + 1, 0.0]),
        r"observation \[1.00000001e\+08 0.00000000e\+00\] is no float32: expected Box\(-inf, inf, \(2,\), float32\)",
    ),
    "huge floats": (real(), np.zeros(2), np.array([1e300, 0.0]), r"1.e\+300 0.e\+000\] is no float32"),
    "too large": (real((1,), np.float64), np.zeros(1), np.array([1e200]), r"observation \[1.e\+200\]: beyond ±1e\+70"),
    "broadcast": (
        real(),
        np.zeros(2),
        np.zeros(1),
        r"observation \[0.\] has shape \(1,\): expected Box\(-inf, inf, \(2",
    ),
    "wide": (real(), np.zeros(2), np.zeros(3), r"observation \[0. 0. 0.\] has shape \(3,\): expected Box"),
    "ragged": (
        real((2, 2)),
        np.zeros((2, 2)),
        [[0.0], [0.0, 1.0]],
        r"\[\[0.0\], \[0.0, 1.0\]\] is ragged: expected Box",
    ),
    "masked": (
        real(),
        np.zeros(2),
        np.ma.masked_array([0.0, 1.0], mask=[True, False]),
        r"\[-- 1.0\] is a masked array: expec",
    ),
    "complex": (
        real(),
        np.zeros(2),
        np.array([1j, 0.0]),
        r"observation \[0.\+1.j 0.\+0.j\] is no number: expected Box",
    ),
    "dates": (real(), np.zeros(2), np.zeros(2, "datetime64[s]"), r"is no number: expected Box\(-inf, inf, \(2,\)"),
    "more parts": (
        PAIR,
        {"a": 1, "b": np.zeros(1)},
        {"a": 1, "b": np.zeros(1), "c": 0},
        r"has other parts: expected Di",
    ),
    "no part": (PAIR, {"a": 1, "b": np.zeros(1)}, {"a": 1}, r"observation \{'a': 1\} has other parts: expected Dict"),
    "no parts": (PAIR, {"a": 1, "b": np.zeros(1)}, 1, r"observation 1 has other parts: expected Dict"),
    "longer tuple": (BOTH, (1, 0), (1, 0, 1), r"observation \(1, 0, 1\) has other parts: expected Tuple\(Discrete"),
    "part": (PAIR, {"a": 1, "b": np.zeros(1)}, {"a": 2, "b": np.zeros(1)}, r"observation 2 is outside Discrete\(2\)"),
}


@pytest.mark.parametrize("at", [(0, 0), (0, 1), (0, 3), (1, 0), (1, 2)], ids=str)
@pytest.mark.parametrize(("space", "usual", "odd", "message"), ODD.values(), ids=ODD)
def test_collect_refuses_observations_outside_their_space(space, usual, odd, message, at):
    env = Showing(space, usual, odd, at)
    with pytest.raises(CollectionError, match=message) as info:
        collect(env, lambda observation: 0, n_transitions=50, gamma=GAMMA, seed=0)
    assert str(info.value).endswith(f"(episode {at[0]}, step {at[1]})")
    assert "\n" not in str(info.value)
    kept = info.value.trajectories
    n_kept = max(0, LENGTH * at[0] + at[1] - 1) if at[1] else LENGTH * at[0]
    assert (0 if kept is None else kept.n_transitions) == n_kept, "all before is kept, also if a reset is wrong"


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("name", ["discrete below", "discrete above", "discrete before start", "multi-discrete"])
def test_collect_refuses_observations_outside_their_space_in_vector_environments(name, mode):
    space, usual, odd, message = ODD[name]
    makers = [lambda at=at: Showing(space, usual, odd, at) for at in ((9, 9), (1, 2))]
    env = SyncVectorEnv(makers, autoreset_mode=mode)
    with pytest.raises(CollectionError, match=message) as info:
        collect(env, lambda observation: 0, n_transitions=50, gamma=GAMMA, seed=0)
    assert str(info.value).endswith("(sub-environment 1, episode 1, step 2)")


def test_collect_rounds_floats_of_ordinary_size():
    env = Showing(real(), np.zeros(2), np.array([0.1, 16_000_000.3]), (0, 1))
    data = collect(env, n_transitions=2, gamma=GAMMA, seed=0)
    assert_array_equal(data.states[1], np.array([0.1, 16_000_000.3], dtype=np.float32))


@pytest.mark.parametrize("dtype", [np.float64, np.int64, bool])
def test_collect_takes_observations_that_their_space_holds_exactly(dtype):
    env = Showing(spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, dtype), np.ones(2, dtype), (0, 1))
    assert_array_equal(collect(env, n_transitions=2, gamma=GAMMA, seed=0).states[:2], [[0, 0], [1, 1]])


def test_collect_copies_observations_that_the_environment_reuses():
    shown = np.zeros(2, np.float32)

    class Reusing(Showing):
        def step(self, action):
            shown[0] += 1
            return super().step(action)

    data = collect(Reusing(real(), shown, shown, (0, 0)), n_transitions=3, gamma=GAMMA, seed=0)
    assert_array_equal(data.states[:, 0], [0, 1, 2, 3])


# ------------------------------------------------------------------ what reset and step return


class OldReset(Showing):
    """Returns the observation alone, as before Gymnasium."""

    def reset(self, *, seed=None, options=None):
        return super().reset()[0]


@pytest.mark.parametrize("space", [real((2,)), spaces.Tuple([real((1,)), real((1,))]), spaces.Discrete(3)])
def test_collect_refuses_reset_without_info(space):
    usual = space.sample() if isinstance(space, spaces.Tuple) else np.zeros(space.shape, space.dtype)
    with pytest.raises(CollectionError, match=r"reset must return \(observation, info\), as in Gymnasium; got"):
        collect(OldReset(space, usual, None, (9, 9)), n_transitions=5, gamma=GAMMA)


def test_collect_refuses_step_with_four_values():
    class OldStep(Showing):
        def step(self, action):
            return super().step(action)[:4]

    with pytest.raises(
        CollectionError, match=r"step must return \(observation, .*\), as in Gymnasium; got 4 values \(ep"
    ):
        collect(OldStep(real(), np.zeros(2), None, (9, 9)), n_transitions=5, gamma=GAMMA)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (1j, r"complex128"),
        (np.complex128(1j), r"complex128"),
        (np.ma.masked_array([1.0], mask=[True]), r"masked"),
        (np.datetime64("2020-01-01"), r"datetime64"),
        (np.ones(2), r"size 1"),
        (None, r"reward nan: not finite"),
        (1e200, r"reward 1e\+200: beyond ±1e\+70 \(episode 0, step 1\)"),
        (10**400, r"too large"),
    ],
)
def test_collect_refuses_rewards_that_are_no_numbers(reward, message):
    class Paying(Showing):
        def step(self, action):
            observation, _, terminated, truncated, info = super().step(action)
            return observation, reward, terminated, truncated, info

    with pytest.raises(CollectionError, match=message) as info:
        collect(Paying(real(), np.zeros(2), None, (9, 9)), n_transitions=5, gamma=GAMMA)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int8(1), np.ones(1), np.ones(())])
def test_collect_takes_rewards_of_any_real_type(reward):
    class Paying(Showing):
        def step(self, action):
            observation, _, terminated, truncated, info = super().step(action)
            return observation, reward, terminated, truncated, info

    data = collect(Paying(real(), np.zeros(2), None, (9, 9)), n_transitions=3, gamma=GAMMA)
    assert_array_equal(data.rewards[:3], 1.0)


class Batches(VectorEnv):
    """A vector environment that returns what it is told."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space, single_action_space = real(), spaces.Discrete(2)
    observation_space, action_space = batch_space(real(), 2), batch_space(spaces.Discrete(2), 2)

    def __init__(self, **returned: Any) -> None:
        usual = dict(first=np.zeros((2, 2)), observations=np.zeros((2, 2)), rewards=np.ones(2), flags=np.zeros(2, bool))
        self.returned = usual | returned

    def reset(self, *, seed=None, options=None):
        return self.returned["first"], {}

    def step(self, actions):
        r = self.returned
        return r["observations"], r["rewards"], r["flags"], np.zeros(2, bool), {}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (dict(first=np.zeros((1, 2))), r"must return 2 observations of Box.*; got shape \(1, 2\)"),
        (dict(observations=np.zeros((1, 2))), r"must return 2 observations of Box.*; got shape \(1, 2\)"),
        (dict(observations=np.zeros((2, 1))), r"must return 2 observations of Box.*; got shape \(2, 1\)"),
        (dict(rewards=np.ones(1)), r"must return 2 rewards and flags; got shape \(1,\)"),
        (dict(rewards=1.0), r"must return 2 rewards and flags; got shape \(\)"),
        (dict(rewards=np.full(2, 1j)), r"must return rewards that are numbers; got \[0.\+1.j 0.\+1.j\]"),
        (dict(rewards=np.ma.masked_all(2)), r"must return rewards that are numbers; got \[-- --\]"),
        (dict(flags=np.zeros(1, bool)), r"must return 2 rewards and flags; got shape \(1,\)"),
    ],
)
def test_collect_refuses_batches_of_another_shape(returned, message):
    with pytest.raises(CollectionError, match=message):
        collect(Batches(**returned), n_transitions=5, gamma=GAMMA)


# ------------------------------------------------------------------ amounts


@pytest.mark.parametrize("amount", [10**12, 2**53])
def test_collect_refuses_more_than_memory_holds(amount, monkeypatch):
    monkeypatch.setattr(collecting, "available_bytes", lambda: 2**30)
    env = Showing(real(), np.zeros(2), None, (9, 9))
    with pytest.raises(ValueError, match=r"transitions take .* GiB, and 1.0 GiB are free: .*collect_to_minari"):
        collect(env, n_transitions=amount, gamma=GAMMA)
    assert env.episode == -1, "before anything is collected"


def test_collect_names_masked_matrices_in_one_line():
    space, masked = real((2, 2)), np.ma.masked_array(np.zeros((2, 2), np.float32), mask=np.eye(2, dtype=bool))
    with pytest.raises(CollectionError, match=r"^the environment's observation \[\[-- .* is a masked array: .*\)$"):
        collect(Showing(space, np.zeros((2, 2), np.float32), masked, (1, 2)), n_episodes=3, gamma=GAMMA)


class Endless(Showing):
    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}


@pytest.mark.parametrize("n_envs", [1, 2])
def test_collect_gives_up_on_episodes_that_do_not_end(n_envs, monkeypatch):
    monkeypatch.setattr(rollout, "MAX_EPISODE", 1000)
    envs = SyncVectorEnv([lambda: Endless(real(), np.zeros(2), None, (9, 9))] * n_envs)
    env: Any = envs if n_envs > 1 else envs.envs[0]
    with pytest.raises(CollectionError, match=r"the episode has not ended within 1,000 steps: .*episode 0") as info:
        collect(env, n_episodes=4, gamma=GAMMA)
    assert info.value.trajectories.n_transitions > 1000 * n_envs
    assert collect(env, n_transitions=1500, gamma=GAMMA).n_transitions == 1500


def test_collect_takes_registered_time_limits_at_their_word(monkeypatch):
    monkeypatch.setattr(rollout, "MAX_EPISODE", 10)
    assert collect("CartPole-v1", lambda x: int(x[2] + x[3] > 0), n_episodes=2, gamma=GAMMA, seed=0).n_transitions > 100


def test_collect_stops_before_episodes_fill_the_memory(monkeypatch):
    monkeypatch.setattr(rollout, "available_bytes", lambda: 2**16)
    with pytest.raises(CollectionError, match=r"more transitions take .* GiB are free: .*collect_to_minari"):
        collect(Endless(real(), np.zeros(2), None, (9, 9)), n_episodes=1, gamma=GAMMA)


def test_observation_check_of_a_mixed_space():
    space: Any = spaces.Tuple([spaces.Box(0, 9, (1,), np.int64), spaces.Box(0.0, 1.0, (1,), np.float64)])
    states = np.array([[1.0, 0.5], [1.5, 0.5], [10.0, 0.5], [1.0, 2.0], [np.nan, np.inf]])
    expected = [[False, False], [True, False], [True, False], [False, False], [True, True]]
    assert_array_equal(ObservationCheck(space).outside(states), expected)
