"""Looking at shards before anything is fitted to them: how much there is, and samples of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gptd_rl.fleet import Fleet
from gptd_rl.selection import coarsen
from gptd_rl.shards import Shard
from gptd_rl.trajectories import Array, Trajectories

# Steps in an unbroken stretch.
STRETCH = 1000


@dataclass(frozen=True, eq=False)
class Summary:
    """What one needs to know of all data before anything else."""

    n_states: int
    n_rows: int
    n_dims: int
    longest: int  # states in the longest segment
    n_terminated: int
    largest_loss: float  # of 1 − γ over all steps
    distinct: Array | None  # distinct states, unless there are more than `limit` of them
    limit: int

    def __add__(self, other: Summary) -> Summary:
        """Of both data."""
        known = None
        if self.distinct is not None and other.distinct is not None:
            known = distinct_up_to(np.concatenate([self.distinct, other.distinct]), self.limit)
        return Summary(
            self.n_states + other.n_states,
            self.n_rows + other.n_rows,
            self.n_dims,
            max(self.longest, other.longest),
            self.n_terminated + other.n_terminated,
            max(self.largest_loss, other.largest_loss),
            known,
            self.limit,
        )


def summarise(shard: Shard, limit: int) -> Summary:
    """Look at one shard."""
    data = shard.data
    inside = np.ones(len(data), dtype=bool)
    inside[data.last] = False
    return Summary(
        len(data),
        data.n_rows,
        data.n_dims,
        int(data.lengths.max()),
        int(data.terminated.sum()),
        float((1.0 - data.discounts[inside]).max(initial=0.0)),
        distinct_up_to(data.states, limit),
        limit,
    )


def survey(fleet: Fleet, limit: int, n_dims: int | None = None) -> Summary:
    """Look at all shards; their states must have `n_dims` dimensions, or as many as those of the first."""
    total: Summary | None = None
    for recipe, part in zip(fleet.recipes, fleet.map(summarise, limit), strict=True):
        n_dims = n_dims or part.n_dims
        if part.n_dims != n_dims:
            raise ValueError(f"{recipe.source.name}: states have {part.n_dims} dimensions; expected {n_dims}.")
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


def coarse(shard: Shard, share: float) -> Trajectories:
    """A share of the states."""
    return coarsen(shard.data, max(2, round(share * len(shard.data))))


def unbroken(shard: Shard, share: float) -> Trajectories:
    """Unbroken stretches that hold a share of the states."""
    return evenly(shard.data.cut(STRETCH), max(2, round(share * len(shard.data))))


def evenly(data: Trajectories, size: int) -> Trajectories:
    """Evenly spaced segments with about `size` states altogether."""
    if len(data) <= size:
        return data
    n_kept = max(1, round(data.n_segments * size / len(data)))
    return data[np.linspace(0, data.n_segments - 1, n_kept).round().astype(int)]


def joined(parts: Iterable[Trajectories]) -> Trajectories:
    """All parts as one."""
    return Trajectories.concatenate(list(parts))
