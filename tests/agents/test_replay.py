"""The replay buffer: it keeps every transition, and gives them back as trajectories."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.agents.replay import Experience, ReplayBuffer
from tests.helpers import MIXES, assert_same, sample


@pytest.mark.parametrize("mix", MIXES)
def test_trajectories_undoes_from_trajectories(mix):
    data = sample(MIXES[mix], seed=2, gamma=0.9)
    actions = np.random.default_rng(0).integers(3, size=len(data))
    data = Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)
    seen = Experience.from_trajectories(data, actions)
    assert len(seen) == data.n_transitions
    assert seen.done.sum() == data.n_segments and seen.terminated.sum() == data.terminated.sum()
    assert (seen.done | ~seen.terminated).all()
    again = seen.trajectories(0.9, np.arange(3))
    assert again.actions is not None
    left = data.has_transition
    assert_array_equal(again.states, data.states)
    assert_array_equal(again.lengths, data.lengths)
    assert_array_equal(again.terminated, data.terminated)
    assert_array_equal(again.rewards[left], data.rewards[left])
    assert_array_equal(again.actions[left], actions[left])


def interleaved(pairs: int) -> tuple[Experience, list[dict[str, Any]]]:
    """Two environments side by side, step by step, and their episodes: first those of the first."""
    lengths = {0: [(3, True), (2, False), (9, False)], 1: [(1, True), (4, True), (9, False)]}
    buffer, episodes = ReplayBuffer.empty(2), []
    places = dict.fromkeys(lengths, (0, 0))
    whole: dict[tuple[int, int], dict[str, Any]] = {}
    for _ in range(pairs):
        for run in lengths:
            number, step = places[run]
            length, terminates = lengths[run][number]
            x, reached = np.array([[run, 100.0 * number + step]]), np.array([[run, 100.0 * number + step + 1]])
            over, action, reward = step + 1 == length, (run + step) % 2, 10.0 * run + step
            buffer.add(
                Experience(
                    x,
                    np.array([action]),
                    np.array([reward]),
                    reached,
                    np.array([over and terminates]),
                    np.array([over]),
                    np.array([run]),
                )
            )
            e = whole.setdefault((run, number), dict(observations=[x[0]], actions=[], rewards=[], terminated=False))
            e["observations"].append(reached[0])
            e["actions"].append(5 + action)
            e["rewards"].append(reward)
            e["terminated"] = over and terminates
            places[run] = (number + 1, 0) if over else (number, step + 1)
    episodes = [whole[key] for key in sorted(whole)]
    assert len(buffer) == 2 * pairs
    return buffer.experience, episodes


@pytest.mark.parametrize("pairs", [1, 3, 5, 8])
def test_trajectories_separates_environments(pairs):
    seen, episodes = interleaved(pairs)
    assert len(seen) == 2 * pairs
    assert_same(seen.trajectories(0.9, np.array([5, 6])), Trajectories.from_episodes(episodes, 0.9))


def test_add_appends():
    seen, _ = interleaved(3)
    buffer = ReplayBuffer(seen)
    buffer.add(seen)
    assert len(buffer) == 12
    assert_array_equal(buffer.experience.rewards, np.tile(seen.rewards, 2))
    buffer.add(seen)
    assert len(buffer) == len(buffer.experience) == 18
    assert len(ReplayBuffer.empty(4)) == 0 and ReplayBuffer.empty(4).n_dims == 4


def test_add_keeps_earlier_transitions_while_arrays_grow():
    seen, _ = interleaved(5)
    buffer = ReplayBuffer.empty(2)
    for i in range(300):
        buffer.add(seen[i % 10 : i % 10 + 1])
    assert len(buffer) == 300
    for f in fields(Experience):
        assert_array_equal(getattr(buffer.experience, f.name), np.concatenate([getattr(seen, f.name)] * 30))


@pytest.mark.parametrize(
    ("rewards", "ends", "is_uniform"),
    [
        ([-1.0, -1.0], [False, False], True),  # every policy loses as much
        ([-1.0, -1.0], [False, True], False),  # the sooner it ends, the better
        ([0.0, 0.0], [False, True], True),
        ([0.0, 1.0], [False, False], False),
    ],
)
def test_is_uniform_if_every_policy_looks_the_same(rewards, ends, is_uniform):
    x, zeros, ended = np.zeros((2, 1)), np.zeros(2, dtype=np.int64), np.array(ends)
    assert Experience(x, zeros, np.array(rewards), x, ended, ended, zeros).is_uniform == is_uniform
