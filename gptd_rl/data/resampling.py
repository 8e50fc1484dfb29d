"""Parts of sampled data: thinned, cut into pieces, sampled by segment, split into shards.

`thin`, `cut` and `select_segments` return the arrays of a new record, for the methods of `Trajectories`. The other
functions use those methods and return records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import as_count, as_generator, as_index, is_count, one_line
from gptd_rl.data.record import SegmentedData
from gptd_rl.types import Array, BoolArray, IntArray

Data = TypeVar("Data", bound=SegmentedData)


def evenly_spaced(n: int, k: float) -> IntArray:
    """About k of the indices 0 … n − 1, evenly spaced, both ends included.

    Parameters
    ----------
    n : int
    k : float
        Rounded; at least 1 and at most n indices are returned.

    Returns
    -------
    ndarray of shape (min(n, max(1, round(k))),)
        Distinct and ascending.
    """
    return np.linspace(0, n - 1, min(n, max(1, round(k)))).round().astype(np.int64)


# -------------------------------------------------------------------------------------- arrays of a part


def take_rows(data: SegmentedData, rows: Any, **replaced: Any) -> dict[str, Any]:
    """Arrays of some states, except those that are given by name."""
    arrays: dict[str, Any] = dict(
        states=data.states[rows],
        rewards=data.rewards[rows],
        discounts=data.discounts[rows],
        lengths=data.lengths,
        terminated=data.terminated,
        actions=None if data.actions is None else data.actions[rows],
        policy_actions=None if data.policy_actions is None else data.policy_actions[rows],
    )
    return arrays | replaced


def select_segments(data: SegmentedData, segments: int | slice | ArrayLike) -> dict[str, Any]:
    """Select segments by number, slice, index array or mask; neighbours are views, others copies."""
    if isinstance(segments, (int, np.integer)):
        if not -data.n_segments <= segments < data.n_segments:
            raise IndexError(f"segment {segments} of {data.n_segments}.")
        segments = [int(segments)]
    index = segments if isinstance(segments, slice) else as_index(segments, data.n_segments, "segments")
    chosen = np.arange(data.n_segments)[index]
    if chosen.size == 0:
        raise ValueError("empty data: the selection holds no segment.")
    starts, lengths = data.starts[chosen], data.lengths[chosen]
    rows: Any
    if (np.diff(chosen) == 1).all():
        rows = slice(int(starts[0]), int(starts[-1] + lengths[-1]))
    else:
        rows = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
    return take_rows(data, rows, lengths=lengths, terminated=data.terminated[chosen])


def thin(data: SegmentedData, every: int, offset: int = 0) -> dict[str, Any]:
    """Keep every `every`-th state of each segment from `offset` on; see `Trajectories.thin`."""
    if not is_count(every) or not is_count(offset, 0) or not offset < every:
        came = f"{one_line(every)} and {one_line(offset)}"
        raise ValueError(f"every must be 1 or more, and offset from 0 to every − 1, whole numbers; got {came}.")
    step = np.arange(len(data)) - np.repeat(data.starts, data.lengths)  # number within the segment  [n]
    kept = np.flatnonzero((step >= offset) & ((step - offset) % every == 0))
    lengths = np.bincount(data.segment_of[kept], minlength=data.n_segments)
    rowless = (lengths == 0) | ((lengths == 1) & ~data.terminated)
    kept = kept[~rowless[data.segment_of[kept]]]
    if kept.size == 0:
        raise ValueError(f"no segment is long enough to keep every {every}th state from offset {offset}.")
    lengths, terminated = lengths[~rowless], data.terminated[~rowless]
    rewards, discounts = (array[kept] for array in _sum_over_steps(data, every))
    last = np.cumsum(lengths) - 1
    rewards[last[~terminated]] = 0.0
    discounts[last] = 0.0
    return take_rows(data, kept, rewards=rewards, discounts=discounts, lengths=lengths, terminated=terminated)


def _sum_over_steps(data: SegmentedData, steps: int) -> tuple[Array, Array]:
    """Discounted reward and product of discounts over the next `steps` steps within each state's segment."""
    rewards, discounts = np.zeros(len(data)), np.ones(len(data))
    index = np.arange(len(data))
    last = np.repeat(data.last, data.lengths)
    inside = np.ones(len(data), dtype=bool)
    for _ in range(min(steps, int(data.lengths.max()))):
        here = index[inside]
        rewards[inside] += discounts[inside] * data.rewards[here]
        discounts[inside] *= data.discounts[here]
        index = index + 1
        inside &= index <= last
    return rewards, discounts


def cut(data: SegmentedData, max_transitions: int) -> dict[str, Any]:
    """Cut long segments into pieces that share their end states; see `Trajectories.cut`."""
    rows, lengths, terminated = _pieces(data, as_count(max_transitions, "max_transitions"))
    rewards, discounts = data.rewards[rows], data.discounts[rows]
    truncated = (np.cumsum(lengths) - 1)[~terminated]
    rewards[truncated] = discounts[truncated] = 0.0
    pieces = take_rows(data, rows, rewards=rewards, discounts=discounts, lengths=lengths, terminated=terminated)
    if pieces["actions"] is not None:
        pieces["actions"][truncated] = 0
    return pieces


def _pieces(data: SegmentedData, max_transitions: int) -> tuple[IntArray, IntArray, BoolArray]:
    """States of each piece, one after the other; length of each piece; whether it ends in a terminal state."""
    rows: list[IntArray] = []
    terminated: list[bool] = []
    for start, last, ends in zip(data.starts, data.last, data.terminated, strict=True):
        if last == start:  # a terminal state by itself
            rows.append(np.array([start]))
            terminated.append(True)
            continue
        for first in range(start, last, max_transitions):
            stop = min(first + max_transitions, last)
            rows.append(np.arange(first, stop + 1))
            terminated.append(bool(ends) and stop == last)
    return np.concatenate(rows), np.array([len(r) for r in rows], dtype=np.int64), np.array(terminated)


# -------------------------------------------------------------------------------------- samples


def sample_segments(data: Data, size: int) -> Data:
    """Whole segments, evenly spaced, with about `size` states altogether; at least one."""
    if len(data) <= size:
        return data
    return data[evenly_spaced(data.n_segments, data.n_segments * size / len(data))]


def random_pieces(data: Data, size: int, seed: int = 0) -> Data:
    """Random contiguous pieces with about `size` states altogether, in the order of the data.

    Pieces are whole segments, unless these are long on average: then they are cut into pieces of an eighth of `size`.
    """
    if len(data) <= size:
        return data
    longest = max(2, size // 8)
    pieces = data.cut(longest) if len(data) / data.n_segments > longest else data
    order = as_generator(seed).permutation(pieces.n_segments)
    n_kept = int(np.searchsorted(np.cumsum(pieces.lengths[order]), size)) + 1
    return pieces[np.sort(order[:n_kept])]


def coarsen(data: Data, size: int) -> Data:
    """A sample of about `size` states: thinned where segments are long, whole segments where they are short."""
    every = -(-len(data) // size)
    if every == 1:
        return data
    if len(data) / data.n_segments >= 4 * every:
        return data.thin(every)
    return data[evenly_spaced(data.n_segments, data.n_segments * size / len(data))]


def split_into_shards(data: Data, size: int) -> Iterator[Data]:
    """Whole segments, about `size` states at a time, as views."""
    if len(data) <= size:
        yield data
        return
    shard = data.last // size  # number of the shard in which each segment ends  [n_segments]
    first = np.flatnonzero(np.diff(shard, prepend=-1))
    for start, stop in zip(first, [*first[1:], data.n_segments], strict=True):
        yield data[int(start) : int(stop)]
