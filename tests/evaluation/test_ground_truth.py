"""Monte Carlo estimates of V^π from copies of environments, in chains with known values."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from gptd_rl import CollectionError
from gptd_rl.evaluation import ground_truth
from gptd_rl.evaluation.ground_truth import StartStates, rollout_values, sample_start_states
from gptd_rl.evaluation.snapshots import CopySnapshot
from gptd_rl.seeds import env_seeds


class Chain(gym.Env):
    """Cells 0, 1, 2, … one after the other; the last is terminal, or cuts the episode off, or never comes.

    A step is paid 1 and noise.
    """

    def __init__(self, n_cells: int | None = 5, noise: float = 0.0, cuts: bool = False, start: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.n_cells, self.noise, self.cuts, self.start = n_cells, noise, cuts, start
        self.place = 0
        self.n_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.start
        return self._seen(), {}

    def step(self, action):
        self.n_steps += 1
        if self.n_steps > 30_000:
            raise TimeoutError("too many steps")
        self.place += 1
        at_end = self.n_cells is not None and self.place >= self.n_cells
        reward = 1.0 + self.noise * self.np_random.normal()
        return self._seen(), reward, at_end and not self.cuts, at_end and self.cuts, {}

    def _seen(self) -> Any:
        return np.array([float(self.place)])


def stay(observation: Any) -> int:
    return 0


def no_tail(states: Any) -> Any:
    """For rollouts that terminate."""
    return np.full(len(states), np.nan)


def start_states(env: Any, n_states: int = 50, n_episodes: int = 1, seed: int = 0, policy: Any = stay) -> StartStates:
    return sample_start_states(env, policy, n_episodes=n_episodes, n_states=n_states, seed=seed, deterministic=True)


def values(env: Any, gamma: float, tail: Any = no_tail, *, where: StartStates | None = None, **more: Any) -> Any:
    where = start_states(env, **more) if where is None else where
    found = rollout_values(where, stay, gamma=gamma, seed=0, deterministic=True, tail=tail)
    return where.states[:, 0], *found


# Start states


def by_one(env: gym.Env, policy: Any, seed: int) -> tuple[float, list[Any]]:
    observation, _ = env.reset(seed=seed)
    total, seen, done = 0.0, [], False
    while not done:
        seen.append(observation)
        observation, reward, terminated, truncated, _ = env.step(policy(observation))
        total, done = total + float(reward), terminated or truncated
    return total, seen


def lean(observation: Any) -> int:
    return int(observation[2] + 0.2 * observation[3] > 0)


def test_sample_start_states_runs_episodes_as_one_by_one():
    env = gym.make("CartPole-v1", max_episode_steps=60)
    found = start_states(env, n_states=10_000, n_episodes=6, seed=11, policy=lean)
    seeds = env_seeds(11, 6)
    for i in range(6):
        total, seen = by_one(gym.make("CartPole-v1", max_episode_steps=60), lean, seed=seeds[i])
        assert (found.returns[i], found.lengths[i]) == (total, len(seen))
        assert_allclose(found.states[found.episodes == i], np.array(seen))
    assert len(found.states) == found.lengths.sum() == len(found.snapshots) == len(found.observations)
    assert 60 in found.lengths  # as the environment ends them
    with pytest.raises(gym.error.ResetNeeded):  # the given environment is unchanged
        env.step(0)


@pytest.mark.parametrize("predicts", [False, True])
def test_sample_start_states_does_not_step_finished_episodes(predicts):
    class Uneven(Chain):
        def reset(self, *, seed=None, options=None):
            assert seed is not None
            self.start = env_seeds(0, 3).index(seed)
            return super().reset(seed=seed)

    asked = []

    class Agent:
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            asked.append((len(observation), episode_start.tolist(), state, deterministic))
            return np.zeros(len(observation), dtype=np.int64), "memory"

    def counted(observation):
        asked.append(observation)
        return 0

    found = start_states(Uneven(), n_episodes=3, policy=Agent() if predicts else counted)
    assert_array_equal(found.lengths, [5, 4, 3])
    assert_array_equal(found.returns, [5, 4, 3])
    if predicts:
        assert asked[0] == (3, [True] * 3, None, True)
        assert asked[1:] == [(3, [False] * 3, "memory", True)] * 4
    else:
        assert len(asked) == 12


def copies(where: StartStates) -> list[Any]:
    """The environments in snapshots that are copies."""
    assert all(isinstance(one, CopySnapshot) for one in where.snapshots)
    return [one.env.unwrapped for one in where.snapshots if isinstance(one, CopySnapshot)]


def test_sample_start_states_snapshots_are_in_the_states():
    found = start_states(Chain(), n_states=100, n_episodes=2)
    assert_array_equal(found.states[:, 0], [0, 1, 2, 3, 4] * 2)
    assert_array_equal(found.episodes, np.repeat([0, 1], 5))
    assert [one.place for one in copies(found)] == found.states[:, 0].tolist()
    assert len({id(one) for one in copies(found)}) == 10


def test_sample_start_states_is_uniform():
    n, counts = 600, np.zeros(10)
    for seed in range(n):
        found = start_states(Chain(), n_states=3, n_episodes=2, seed=seed)
        assert len(found.states) == 3
        np.add.at(counts, 5 * found.episodes + found.states[:, 0].astype(int), 1)
        assert len(set(zip(found.episodes.tolist(), found.states[:, 0].tolist(), strict=True))) == 3
    # 3 of 10 without putting back: the variance is 0.7 of that of independent draws.
    statistic = ((counts - 0.3 * n) ** 2 / (0.3 * n)).sum() / 0.7 * 0.9
    assert stats.chi2(9).sf(statistic) > 1e-4


def test_sample_start_states_with_copied_observations():
    assert_array_equal(start_states(InPlace(Chain(), copy=True)).states[:, 0], np.arange(5.0))


class InPlace(gym.Wrapper):
    """Returns the same array at every step."""

    def __init__(self, env: gym.Env, copy: bool) -> None:
        super().__init__(env)
        self.copy = copy
        self.seen = np.zeros(1)

    def reset(self, **options):
        self.seen[:] = super().reset(**options)[0]
        return self.seen.copy() if self.copy else self.seen, {}

    def step(self, action):
        observation, *rest = super().step(action)
        self.seen[:] = observation
        return (self.seen.copy() if self.copy else self.seen, *rest)


def test_sample_start_states_with_overwritten_observations():
    assert_array_equal(start_states(InPlace(Chain(), copy=False)).states[:, 0], np.arange(5.0))


def test_sample_start_states_truncates_endless_episodes():
    assert len(start_states(Chain(n_cells=None), n_states=3).states) == 3


# Rollouts


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
def test_rollout_values_of_a_chain(gamma):
    states, mean, error, n_rollouts = values(Chain(), gamma)
    steps = 5 - states
    assert_allclose(mean, [sum(gamma**t for t in range(int(n))) for n in steps])
    assert_array_equal(error, np.zeros(5))
    assert n_rollouts == 1


def test_rollout_values_ignore_time_limits():
    limited = TimeLimit(Chain(n_cells=30), 4)
    where = start_states(limited, n_episodes=2)
    assert_array_equal(where.lengths, [4, 4])
    states, mean, _, _ = values(limited, 1.0, where=where)
    assert_allclose(mean, 30 - states)


def test_rollout_values_of_truncated_rollouts_include_the_tail():
    states, mean, _, _ = values(Chain(cuts=True), 0.5, lambda x: 100.0 + x[:, 0])
    n = 5 - states
    assert_allclose(mean, 2 * (1 - 0.5**n) + 0.5**n * 105.0)


def test_rollout_values_termination_wins():
    class Both(Chain):
        def step(self, action):
            seen, reward, terminated, _, info = super().step(action)
            return seen, reward, terminated, terminated, info

    states, mean, _, _ = values(Both(), 1.0, lambda x: np.full(len(x), 1e6))
    assert_allclose(mean, 5 - states)


def test_rollout_values_stop_at_a_negligible_discount(monkeypatch):
    where = start_states(Chain(n_cells=30), n_states=4)
    for copied in copies(where):
        copied.n_cells = None
    states, mean, _, n_rollouts = values(None, 0.9, lambda x: 1000.0 + x[:, 0], where=where)
    horizon = 44  # the first at which 0.9ᵗ ≤ 0.01
    assert_allclose(mean, (1 - 0.9**horizon) / 0.1 + 0.9**horizon * (1000 + states + horizon))
    assert n_rollouts == 1
    # Without any discount, after so many steps as there is time for.
    for most, each in ((8_000, 2_000), (100, 1_000)):
        monkeypatch.setattr(ground_truth, "MAX_STEPS", most)
        _, mean, _, _ = values(None, 1.0 - 1e-12, lambda x: np.full(len(x), 0.5), where=where)
        assert_allclose(mean, each + 0.5)


def test_rollout_values_limit_the_number_of_steps(monkeypatch):
    monkeypatch.setattr(ground_truth, "MAX_STEPS", 8_000)
    where = start_states(Chain(n_cells=30, noise=1.0), n_states=4)
    for copied in copies(where):
        copied.n_cells = None
    _, _, _, n_rollouts = values(None, 0.9999, lambda x: np.zeros(len(x)), where=where)
    assert n_rollouts == 2  # of 4 · 2000 steps each, there is room for no more
    monkeypatch.setattr(ground_truth, "MAX_STEPS", 1_000)
    _, _, _, n_rollouts = values(None, 0.9, lambda x: np.zeros(len(x)), where=where)
    assert n_rollouts == 1_000 // (4 * 43 + 4) or n_rollouts == 1_000 // (4 * 44)


def test_rollout_values_in_a_stochastic_chain():
    env = Chain(n_cells=4, noise=2.0)
    where = start_states(env, n_states=1000, n_episodes=150)
    states, mean, error, n_rollouts = values(env, 0.9, where=where)
    assert n_rollouts == ground_truth.N_ROLLOUTS == 10
    n = 4 - states
    truth = (1 - 0.9**n) / 0.1
    std = 2.0 * np.sqrt((1 - 0.81**n) / 0.19)
    scores = (mean - truth) / (std / np.sqrt(10))
    assert abs(scores.mean()) < 4 / np.sqrt(len(scores))
    assert stats.kstest(scores, "norm").pvalue > 1e-3
    # Standard errors, squared, are right on average: χ²(9)/9.
    assert abs((error**2 / (std**2 / 10)).mean() - 1) < 4 * np.sqrt(2 / 9 / len(error))


def test_rollout_values_of_a_random_policy():
    """Rollouts differ by their actions alone."""

    class Paid(Chain):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, float(action), *rest

    where = sample_start_states(Paid(), None, n_episodes=40, n_states=200, seed=0, deterministic=True)
    mean, error, n_rollouts = rollout_values(where, None, gamma=1.0, seed=0, deterministic=True, tail=no_tail)
    steps = 5 - where.states[:, 0]
    assert n_rollouts == 10 and (error > 0).mean() > 0.9
    scores = (mean - steps) / np.sqrt(steps * (2 / 3) / 10)
    assert abs(scores.mean()) < 4 / np.sqrt(len(scores)) and 0.8 < scores.std() < 1.2


def test_rollout_values_leave_start_states_unchanged():
    env = Chain(n_cells=6, noise=1.0)
    where = start_states(env, n_episodes=3)
    first, again = values(env, 0.9, where=where), values(env, 0.9, where=where)
    for a, b in zip(first, again, strict=True):
        assert_array_equal(a, b)
    other = rollout_values(where, stay, gamma=0.9, seed=100, deterministic=True, tail=no_tail)
    assert (other[0] != first[1]).all()


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_rollout_values_refuse_what_is_not_finite(what):
    class Broken(Chain):
        is_broken = False

        def step(self, action):
            seen, reward, *rest = super().step(action)
            if self.is_broken:
                seen, reward = (seen, np.nan) if what == "reward" else (np.array([np.inf]), reward)
            return seen, reward, *rest

    where = start_states(Broken())
    for copied in copies(where):
        copied.is_broken = True
    with pytest.raises(CollectionError, match=r"not finite\.$"):
        values(None, 0.9, where=where)


def ticks(noise: float) -> list[tuple[int, int]]:
    told: list[tuple[int, int]] = []
    where = start_states(Chain(n_cells=200, noise=noise), n_states=3)
    rollout_values(
        where, stay, gamma=0.99, seed=0, deterministic=True, tail=no_tail, tick=lambda a, b: told.append((a, b))
    )
    return told


def test_rollout_values_progress():
    for noise in (0.0, 1.0):
        told = ticks(noise)
        assert len(told) > 4 and all(0 <= done <= total for done, total in told)


def test_rollout_values_progress_never_decreases():
    shares = [done / total for done, total in ticks(1.0)]
    assert shares == sorted(shares)


def test_sample_start_states_with_dict_observations():
    class Parts(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = spaces.Dict(
                place=spaces.Box(-np.inf, np.inf, (1,), np.float64), odd=spaces.Discrete(2)
            )

        def observation(self, observation):
            return dict(place=observation, odd=int(observation[0]) % 2)

    found = sample_start_states(
        Parts(Chain()), lambda o: int(o["odd"]), n_episodes=1, n_states=9, seed=0, deterministic=True
    )
    assert_array_equal(found.states, np.column_stack([np.arange(5.0), [1, 0, 1, 0, 1], [0, 1, 0, 1, 0]]))


class Counting:
    """Remembers how many steps it made in each episode, and takes that as its action, modulo 3."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        n = len(observation)
        count = np.zeros((1, n, 1)) if state is None else state[0] * ~episode_start[np.newaxis, :, np.newaxis]
        return count[0, :, 0].astype(np.int64) % 3, (count + 1,)


class PaidByAction(Chain):
    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, reward - 1.0 + float(action), *rest


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_rollout_values_continue_what_a_policy_remembers(noise):
    env = PaidByAction(n_cells=8, noise=noise)
    where = sample_start_states(env, Counting(), n_episodes=2, n_states=100, seed=0, deterministic=True)
    assert where.memories[0] is None and where.memories[3] is not None
    mean = rollout_values(where, Counting(), gamma=1.0, seed=0, deterministic=True, tail=no_tail)[0]
    expected = [sum(t % 3 for t in range(int(place), 8)) for place in where.states[:, 0]]
    assert_allclose(mean, expected, atol=1e-4)
