"""Looking at shards before anything is fitted to them: how much there is, and samples of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.resampling import evenly_spaced
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.sharding.backends import ShardFunction
from gptd_rl.sharding.dataset import ShardedDataset
from gptd_rl.temporal.shards import Shard
from gptd_rl.types import Array

# Steps in an unbroken stretch.
PIECE = 1000


@dataclass(frozen=True, eq=False)
class DatasetSummary:
    """What one needs to know of all data before anything else."""

    n_states: int
    n_rows: int
    n_dims: int
    longest: int  # states in the longest segment
    n_terminated: int
    largest_loss: float  # of 1 − γ over all steps
    distinct: Array | None  # distinct states, unless there are more than `limit` of them
    limit: int
    n_segments: tuple[int, ...]  # of each shard
    n_pieces: tuple[int, ...]  # of at most PIECE steps, of each shard

    @property
    def n_distinct(self) -> float:
        """Number of distinct states; infinite if there are more than `limit`."""
        return np.inf if self.distinct is None else len(self.distinct)

    def __add__(self, other: DatasetSummary) -> DatasetSummary:
        """Of both data."""
        known = None
        if self.distinct is not None and other.distinct is not None:
            known = distinct_up_to(np.concatenate([self.distinct, other.distinct]), self.limit)
        return DatasetSummary(
            self.n_states + other.n_states,
            self.n_rows + other.n_rows,
            self.n_dims,
            max(self.longest, other.longest),
            self.n_terminated + other.n_terminated,
            max(self.largest_loss, other.largest_loss),
            known,
            self.limit,
            self.n_segments + other.n_segments,
            self.n_pieces + other.n_pieces,
        )


def summarize_shard(shard: Shard, limit: int) -> DatasetSummary:
    """Look at one shard."""
    data = shard.data
    return DatasetSummary(
        len(data),
        data.n_rows,
        data.n_dims,
        int(data.lengths.max()),
        int(data.terminated.sum()),
        float((1.0 - data.discounts[data.has_transition]).max(initial=0.0)),
        distinct_up_to(data.states, limit),
        limit,
        (data.n_segments,),
        (data.cut(PIECE).n_segments,),
    )


def summarize(dataset: ShardedDataset, limit: int, n_dims: int | None = None) -> DatasetSummary:
    """Look at all shards; their states must have `n_dims` dimensions, or as many as those of the first."""
    total: DatasetSummary | None = None
    for spec, part in zip(dataset.specs, dataset.map(summarize_shard, limit), strict=True):
        n_dims = n_dims or part.n_dims
        if part.n_dims != n_dims:
            raise ValueError(f"{spec.source.name}: states have {part.n_dims} dimensions; expected {n_dims}.")
        total = part if total is None else total + part
    assert total is not None
    return total


def distinct_up_to(states: Array, limit: int) -> Array | None:
    """Distinct states, or None if there are more than `limit`."""
    known = states[:0]
    step = 2 * limit + 1
    for start in range(0, len(states), step):
        known = np.unique(np.concatenate([known, states[start : start + step]]), axis=0)
        if len(known) > limit:
            return None
    return known


# -------------------------------------------------------------------------------------- samples
# They are the same however the data are cut into shards: what is taken depends on the place of a segment among all.


def sample(dataset: ShardedDataset, summary: DatasetSummary, size: int, every: int = 1) -> Trajectories:
    """About `size` states, thinned by `every`: of all segments where these are long, else of some of them."""
    step = -(-summary.n_states // (size * every))
    n_segments = sum(summary.n_segments)
    if step == 1 or summary.n_states / n_segments >= 4 * step * every:
        return concatenate(dataset.map(_thinned, step * every))
    chosen = evenly_spaced(n_segments, n_segments / step)
    return concatenate(_picked(dataset, summary.n_segments, chosen, _some_segments, every))


def contiguous_sample(dataset: ShardedDataset, summary: DatasetSummary, size: int) -> Trajectories:
    """Unbroken pieces with about `size` states altogether."""
    n_pieces = sum(summary.n_pieces)
    chosen = evenly_spaced(n_pieces, n_pieces * size / summary.n_states)
    return concatenate(_picked(dataset, summary.n_pieces, chosen, _some_pieces))


def _picked(
    dataset: ShardedDataset,
    counts: tuple[int, ...],
    chosen: NDArray[np.int64],
    function: ShardFunction,
    *arguments: Any,
) -> Iterator[Trajectories]:
    """Have `function` pick, from each shard, those of all the things it has that were chosen."""
    first = 0
    for spec, count in zip(dataset.specs, counts, strict=True):
        inside = chosen[(chosen >= first) & (chosen < first + count)] - first
        if inside.size:
            yield from ShardedDataset([spec], dataset.backend).map(function, inside, *arguments)
        first += count


def _thinned(shard: Shard, every: int) -> Trajectories | None:
    if every == 1:
        return shard.data
    try:
        return shard.data.thin(every)
    except ValueError:  # no segment is that long
        return None


def _some_segments(shard: Shard, chosen: NDArray[np.int64], every: int) -> Trajectories | None:
    return _thinned(replace(shard, data=shard.data[chosen]), every)


def _some_pieces(shard: Shard, chosen: NDArray[np.int64]) -> Trajectories:
    return shard.data.cut(PIECE)[chosen]


def concatenate(parts: Iterable[Trajectories]) -> Trajectories:
    """All parts as one."""
    return Trajectories.concatenate(list(parts))
