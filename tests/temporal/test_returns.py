"""Discounted returns of terminated and truncated segments: by hand, by loops, and with known values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.temporal.means import subtract_mean, values_at
from gptd_rl.temporal.returns import Returns
from tests.helpers import MIXES, naive_null_vectors, naive_returns, sample
from tests.mdps import Spiral


def episode(rewards: Any, terminated: bool, start: float = 0.0) -> dict[str, Any]:
    return dict(observations=start + np.arange(len(rewards) + 1.0)[:, None], rewards=rewards, terminated=terminated)


def chains(*kinds: tuple[int, bool], gamma: float) -> Trajectories:
    """Episodes of so many rewards of 1."""
    return Trajectories.from_episodes(
        [episode(np.ones(n), ends, 100.0 * i) for i, (n, ends) in enumerate(kinds)], gamma
    )


def test_returns_by_hand():
    data = Trajectories.from_episodes([episode([1.0, 2.0, 3.0], True), episode([1.0, 1.0, 1.0], False)], 0.5)
    found = Returns.of(data)
    assert_array_equal(found.y, [2.75, 3.5, 3.0, 0.0, 1.75, 1.5, 1.0, 0.0])
    assert_array_equal(found.z, [0.0, 0.0, 0.0, 0.0, 0.125, 0.25, 0.5, 1.0])
    assert_array_equal(found.end, [3, 3, 3, 3, 7, 7, 7, 7])
    assert_array_equal(found.usable, [0, 1, 2, 4, 5, 6])  # terminal and last states say nothing
    assert_array_equal(found.episode, [0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("mix", MIXES)
def test_returns_by_loops(mix):
    data = sample(MIXES[mix], seed=3)
    found = Returns.of(data)
    assert_allclose(found.y, naive_returns(data), atol=1e-12)
    assert_allclose(found.z, naive_null_vectors(data).sum(axis=1), atol=1e-12)
    assert not set(found.usable) & set(data.last)
    values = np.random.default_rng(0).normal(size=(len(data), 2))
    by_loop = [values[i] - found.z[i] * values[data.last[data.segment_of[i]]] for i in range(len(data))]
    assert_allclose(found.difference(values), by_loop)
    assert_allclose(found.difference(values[:, 0]), np.array(by_loop)[:, 0])


def test_returns_with_a_large_tail_are_not_usable():
    # z = 0.9³, 0.9², 0.9 in the cut-off episode: more than half is missing.
    found = Returns.of(chains((3, True), (3, False), gamma=0.9))
    assert_array_equal(found.usable, [0, 1, 2])


@pytest.mark.parametrize(("n_long", "usable"), [(9, 1), (10, 5)])
def test_returns_usable_if_a_tenth_has_a_small_tail(n_long, usable):
    # One good return; of the others, of one cut-off episode, none is good. Below a tenth, the better half serves.
    data = chains((1, True), (n_long, False), gamma=0.99)
    found = Returns.of(data)
    assert (found.z[:-1] <= 0.5).sum() - 1 == 1  # the terminal state apart
    if usable == 1:
        assert_array_equal(found.usable, [0])
    else:
        inner = np.setdiff1d(np.arange(len(data)), data.last)
        assert_array_equal(found.usable, inner[found.z[inner] <= np.median(found.z[inner])])
        assert len(found.usable) == 6


def test_returns_of_short_truncated_episodes_use_the_better_half():
    found = Returns.of(chains((4, False), (4, False), gamma=0.99))
    assert_array_equal(found.usable, [0, 1, 5, 6])


def test_returns_with_gamma_1_and_0():
    data = chains((3, False), (2, False), gamma=1.0)
    found = Returns.of(data)
    assert_array_equal(found.y, [3, 2, 1, 0, 2, 1, 0])
    assert_array_equal(found.z, np.ones(7))
    assert_array_equal(found.usable, [0, 1, 2, 4, 5])
    found = Returns.of(chains((3, False), (2, True), gamma=0.0))
    assert_array_equal(found.y, [1, 1, 1, 0, 1, 1, 0])
    assert_array_equal(found.z, [0, 0, 0, 1, 0, 0, 0])
    assert_array_equal(found.usable, [0, 1, 2, 4, 5])


def test_returns_difference_of_true_values():
    task = Spiral()
    data = task.sample(100, np.random.default_rng(0))
    found = Returns.of(data)
    assert_allclose(found.y, found.difference(task.value(data.states)), atol=1e-10)


@pytest.mark.parametrize("mix", MIXES)
def test_returns_after_subtract_mean(mix):
    data = sample(MIXES[mix], seed=1)
    mean = lambda x: 3.0 + x[:, 0] - 2.0 * x[:, 1]  # noqa: E731
    left = Returns.of(subtract_mean(data, mean)).y
    assert_allclose(left + Returns.of(data).difference(values_at(mean, data)), Returns.of(data).y, atol=1e-12)
