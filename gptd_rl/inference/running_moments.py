"""The statistics of values by instruments, one transition at a time.

A transition is one row ζ = [r, ψ₁, x₁, ψ₂, x₂, …] with x = ψ(x) − γψ(x'), and all that `MomentStatistics` needs are
blocks of Σζζᵀ, which take O(m²) time for each row. A new feature adds two entries to the end of each row.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from gptd_rl import linalg
from gptd_rl.inference.features import KernelSplit
from gptd_rl.inference.growing import DictionaryFeatures, StateTable
from gptd_rl.inference.instrumental import MomentStatistics
from gptd_rl.temporal.transitions import Transitions, one_successor
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class InstrumentedRow:
    """One transition: ``r = xᵀw + δ`` with x = ψ − γψ'."""

    psi: Array  # of the state that is left  [m']
    next_psi: Array  # of the state that follows  [m']
    reward: float
    discount: float

    @property
    def difference(self) -> Array:
        """x, of shape (m',)."""
        return self.psi - self.discount * self.next_psi

    def interleaved(self) -> Array:
        """The row ζ = [r, ψ₁, x₁, ψ₂, x₂, …], of shape (1 + 2m',)."""
        zeta = np.empty(1 + 2 * len(self.psi))
        zeta[0], zeta[1::2], zeta[2::2] = self.reward, self.psi, self.difference
        return zeta


class RunningMoments:
    """`MomentStatistics` row by row, where each row multiplies the weight of those before it by λ."""

    def __init__(self, size: int, forgetting: float) -> None:
        self.forgetting = forgetting
        self.gram = np.zeros((1 + 2 * size, 1 + 2 * size))  # Σζζᵀ, its lower triangle
        self.n_rows, self.total_loss, self.smallest_loss = 0.0, 0.0, 1.0

    def add(self, row: InstrumentedRow) -> None:
        """Σ ← λΣ + ζζᵀ."""
        loss = 1.0 - row.discount
        if self.forgetting < 1.0:
            self.gram *= self.forgetting
        linalg.add_outer_in_place(self.gram, 1.0, row.interleaved())
        self.n_rows = self.forgetting * self.n_rows + 1.0
        self.total_loss = self.forgetting * self.total_loss + loss
        self.smallest_loss = min(self.smallest_loss, loss)

    def with_row(self, row: InstrumentedRow) -> RunningMoments:
        """A copy with one row more."""
        more = copy(self)
        more.gram = self.gram.copy()
        more.add(row)
        return more

    def grow(self, rows: Array) -> None:
        """Give each transition one feature more, where `rows` are the new last rows of Σζζᵀ, of shape (2, 1 + 2m')."""
        self.gram = np.pad(self.gram, (0, 2))
        self.gram[-2:] = rows

    def statistics(self) -> MomentStatistics:
        """The blocks of Σζζᵀ."""
        full = linalg.symmetrise_in_place(self.gram.copy())
        G, A, XX = (np.ascontiguousarray(full[i::2, j::2]) for i, j in ((1, 1), (1, 2), (2, 2)))
        b, Xr = full[1::2, 0].copy(), full[2::2, 0].copy()
        losses = self.n_rows, self.total_loss, self.smallest_loss
        return MomentStatistics(G, A, b, XX, Xr, float(full[0, 0]), *losses)


class TransitionTable(StateTable):
    """Past states and the rows that leave them: whether there is one, γ, r, and whether it begins a segment."""

    def __init__(self, split: KernelSplit) -> None:
        super().__init__(split, n_columns=4)

    def transitions(self) -> Transitions:
        """All rows; the state that follows is the next one in the table."""
        has_row, discounts, rewards, is_first = self.columns
        left = np.flatnonzero(has_row)
        successors = one_successor(left, discounts[left], len(self))
        return Transitions(self.states, left, successors, rewards[left], is_first[left] > 0)

    def end_in_last_state(self) -> None:
        """Make the last state a terminal one: the row into it has γ = 0."""
        self._table[len(self) - 2, 1] = 0.0

    def new_moments(self, features: DictionaryFeatures, forgetting: float) -> Array:
        """Last two rows of Σζζᵀ with the newest feature, of shape (2, 1 + 2m'), in O(n·m) time."""
        rows = self.transitions()
        p = features.newest(rows.points)
        omega = row_weights(len(rows), forgetting)
        # The newest ψ and x of each row, in columns …
        newest = omega[:, None] * np.column_stack([p[rows.left], rows.difference(p)])  # [n, 2]
        # … times all ψ and all x: ΨᵀEᵀ and Ψᵀ(E − N)ᵀ
        left = np.zeros((len(self), 2))
        np.add.at(left, rows.left, newest)
        sums = features.transposed(rows.points, np.column_stack([left, rows.difference_transposed(newest)]))  # [m', 4]
        moments = np.empty((2, 1 + 2 * len(features)))
        moments[:, 0], moments[:, 1::2], moments[:, 2::2] = rows.rewards @ newest, sums[:, :2].T, sums[:, 2:].T
        return moments


def row_weights(n: int, forgetting: float) -> Array:
    """λ^age of n rows, the last of which has the age 0."""
    return np.asarray(forgetting ** np.arange(n - 1.0, -1.0, -1.0))


class RecursiveNoise:
    """W from the TD errors of weights that were known before each transition."""

    def __init__(self, size: int, forgetting: float) -> None:
        self.forgetting = forgetting
        self.moments, self.weights = np.zeros((size, size)), np.zeros(size)  # W, its lower triangle, and w
        self.age = 0  # of the weights, in rows

    def add(self, row: InstrumentedRow) -> None:
        """W ← λW + δ²ψψᵀ."""
        delta = row.reward - float(row.difference @ self.weights)
        if self.forgetting < 1.0:
            self.moments *= self.forgetting
        linalg.add_outer_in_place(self.moments, delta**2, np.ascontiguousarray(row.psi))
        self.age += 1

    def with_row(self, row: InstrumentedRow) -> RecursiveNoise:
        """A copy with one row more."""
        more = copy(self)
        more.moments = self.moments.copy()
        more.add(row)
        return more

    def grow(self) -> None:
        """Give each row one feature more, which is 0 at past states."""
        self.moments, self.weights = np.pad(self.moments, (0, 1)), np.append(self.weights, 0.0)

    def refresh(self, weights: Array) -> None:
        """Take later errors from these weights."""
        self.weights, self.age = weights, 0
