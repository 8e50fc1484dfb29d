"""Blocks of rows for repeated passes over the data, so that memory does not grow with them.

A `Shard` is some whole segments with all that does not depend on the model worked out once: the targets, and which part
of the values the rewards do not depend on. In the form ``y = FᵀV + ε`` of `targets`, a pass over the shard turns
features of states, Ψ, into features of targets, FᵀΨ:

- σ²HHᵀ: F is the projection Π. Rows stay as they are; from those of a truncated segment ``z̃ (z̃ᵀΨ)`` is taken away, with
  z̃ the segment's null vector, scaled to length one.
- σ²I: F is Hᵀ. Each row is a difference of two neighbours; segments are cut so that a block holds whole pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.differences import TemporalDifference, discounted_returns
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import Array

# Rows of a block: with some hundred features, a block and its products stay near a core's cache.
BLOCK = 1024

# Entries of a null vector below this do not change a sum.
NEGLIGIBLE = 1e-18

Features = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows of a shard."""

    rows: slice
    H: TemporalDifference  # of these rows
    tails: sparse.csr_array | None  # z̃ of each truncated segment that reaches into the block, as rows  [p, c]
    whole: NDArray[np.int64]  # which rows of `tails` are of segments that lie within the block
    spilled: NDArray[np.int64]  # which are of segments that reach beyond it …
    spilled_numbers: NDArray[np.int64]  # … and which of the shard's long tails these are


@dataclass(frozen=True, eq=False)
class Shard:
    """Whole segments, prepared for passes over them.

    Attributes
    ----------
    data : Trajectories
    noise : {"stochastic", "deterministic"}
    targets : ndarray of shape (n,)
        Πy, the returns less what the unknown tails could explain; or the rewards.
    tail : ndarray of shape (n,)
        Null vectors of the truncated segments, each of length one; zero elsewhere.
    n_rows : int
        Number of rewards.
    log_jacobian : float
        ½ log det HHᵀ for σ²HHᵀ, 0 for σ²I.
    """

    data: Trajectories
    noise: Noise
    H: TemporalDifference
    targets: Array
    tail: Array
    n_rows: int
    log_jacobian: float

    @classmethod
    def of(cls, data: Trajectories, noise: Noise) -> Shard:
        """Prepare `data`."""
        if noise == "deterministic":
            data = data.cut(BLOCK - 1)
            H = TemporalDifference.of(data)
            return cls(data, noise, H, np.where(H.has_row, data.rewards, 0.0), np.zeros(len(data)), data.n_rows, 0.0)
        H = TemporalDifference.of(data)
        z, squared = H.null_vectors(), H.squared_norms
        tail = z / np.sqrt(np.where(squared > 0, squared, 1.0))[H.segment_of]
        tail[tail < NEGLIGIBLE] = 0.0
        targets = H.project(discounted_returns(data))
        return cls(data, noise, H, targets, tail, data.n_rows, 0.5 * H.log_det_gram())

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        arrays = (self.data.states, self.data.rewards, self.data.discounts, self.targets, self.tail, self.H.segment_of)
        return sum(a.nbytes for a in arrays)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Rows in pieces of at most BLOCK, cut between segments where that is possible."""
        cuts = _cuts(self.data.lengths)
        block_of_first = np.searchsorted(cuts, self.data.starts, side="right")
        block_of_last = np.searchsorted(cuts, self.data.last, side="right")
        long = np.flatnonzero((block_of_first < block_of_last) & ~self.data.terminated)
        return tuple(self._block(slice(a, b), long) for a, b in pairwise(cuts.tolist()))

    @property
    def block_size(self) -> int:
        """Rows of the largest block."""
        return max(block.rows.stop - block.rows.start for block in self.blocks)

    @property
    def n_long_tails(self) -> int:
        """Truncated segments that do not fit into a block."""
        return 1 + max((int(b.spilled_numbers.max(initial=-1)) for b in self.blocks), default=-1)

    def long_tails(self, features: Features, n_features: int) -> Array:
        """z̃ᵀΨ of the truncated segments that do not fit into a block, of shape (n_long_tails, n_features)."""
        sums = np.zeros((self.n_long_tails, n_features))
        for block in self.blocks:
            if block.spilled.size:
                assert block.tails is not None
                sums[block.spilled_numbers] += block.tails[block.spilled] @ features(self.data.states[block.rows])
        return sums

    def _block(self, rows: slice, long: NDArray[np.int64]) -> Block:
        segment_of = self.H.segment_of[rows]
        H = TemporalDifference(self.H.discounts[rows], self.H.has_row[rows], segment_of, self.H.n_segments)
        z = self.tail[rows]
        seen = np.flatnonzero(z)
        nothing = np.zeros(0, dtype=np.int64)
        if not seen.size:
            return Block(rows, H, None, nothing, nothing, nothing)
        segments, number = np.unique(segment_of[seen], return_inverse=True)
        tails = sparse.csr_array((z[seen], (number.reshape(-1), seen)), shape=(len(segments), len(z)))
        is_long = np.isin(segments, long)
        spilled = np.flatnonzero(is_long)
        return Block(rows, H, tails, np.flatnonzero(~is_long), spilled, np.searchsorted(long, segments[spilled]))


def _cuts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where blocks begin, and the end of the last one."""
    cuts, ends = [0], np.cumsum(lengths)
    while cuts[-1] < ends[-1]:
        reach = cuts[-1] + BLOCK
        last_end = int(np.searchsorted(ends, reach, side="right")) - 1
        end = int(ends[last_end]) if last_end >= 0 else 0
        cuts.append(end if end > cuts[-1] else reach)
    return np.array(cuts, dtype=np.int64)
