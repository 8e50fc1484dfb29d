"""Parts of sampled data that are not methods of `Trajectories`; those are tested with the record."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl.data.resampling import (
    coarsen,
    evenly_spaced,
    random_pieces,
    sample_segments,
    split_into_shards,
)
from gptd_rl.data.trajectories import Trajectories
from tests.helpers import assert_same, sample

LONG = sample([(60, True), (41, False), (80, True)])
SHORT = sample([(4, True), (3, False)] * 30)


@pytest.mark.parametrize(
    ("n", "k", "expected"),
    [(3, 3, [0, 1, 2]), (3, 9, [0, 1, 2]), (9, 3, [0, 4, 8]), (9, 2.6, [0, 4, 8]), (7, 0.2, [0]), (1, 1, [0])],
)
def test_evenly_spaced_includes_both_ends(n, k, expected):
    assert_array_equal(evenly_spaced(n, k), expected)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 101])
def test_evenly_spaced_indices_are_distinct(n):
    for k in range(1, n + 1):
        indices = evenly_spaced(n, k)
        assert len(indices) == len(np.unique(indices)) == k
        assert indices.dtype == np.int64 and indices.max() < n


def test_sample_segments_keeps_whole_segments():
    part = sample_segments(SHORT, 40)
    assert 30 <= len(part) <= 50
    assert set(part.lengths) <= {3, 4}
    assert sample_segments(SHORT, len(SHORT)) is SHORT


def test_random_pieces_depend_on_the_seed_only():
    part = random_pieces(LONG, 64, seed=3)
    assert 64 <= len(part) <= 64 + 9 and part.lengths.max() <= 9
    assert_same(part, random_pieces(LONG, 64, seed=3))
    assert len(random_pieces(SHORT, 60)) in range(60, 64), "short segments stay whole"
    assert random_pieces(LONG, 1000) is LONG


def test_coarsen_thins_long_segments_and_picks_short_ones():
    assert_same(coarsen(LONG, 60), LONG.thin(4))
    assert coarsen(SHORT, 1000) is SHORT
    assert set(coarsen(SHORT, 50).lengths) <= {3, 4}


@pytest.mark.parametrize("size", [5, 50, 100, 1000])
def test_split_into_shards_partitions_segments(size):
    shards = list(split_into_shards(LONG, size))
    assert_same(Trajectories.concatenate(shards), LONG)
    assert all(np.shares_memory(shard.states, LONG.states) for shard in shards)
