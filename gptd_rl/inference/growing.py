"""What posteriors that learn online share: a dictionary of inducing points that grows, and a table of past states.

In coordinates in which the prior of the weights is white, with the kernel g + ΦCΦᵀ, ``g(Z, Z) = LLᵀ`` and ``C = DDᵀ``,

    φ(x) = [DᵀΦ(x), L⁻¹g(Z, x)]        w ~ N(0, I)

a new inducing point adds a last feature and leaves the others as they are. A state becomes an inducing point if the
dictionary leaves more than a share ε of its prior variance (Engel's test of approximate linear dependence).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gptd_rl import linalg
from gptd_rl.checks import as_numbers
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.features import KernelSplit
from gptd_rl.inference.inducing import UNPIVOTED_ROUNDING, Dictionary
from gptd_rl.kernels import Kernel
from gptd_rl.temporal.shards import BLOCK
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class DictionaryFeatures:
    """φ for a dictionary of m inducing points, m' features in all."""

    split: KernelSplit
    dictionary: Dictionary
    explicit_factor: Array  # D

    @classmethod
    def of(cls, kernel: Kernel) -> DictionaryFeatures:
        """Without an inducing point."""
        split = KernelSplit.of(kernel)
        C = split.weight_covariance
        D = np.tril(linalg.cholesky(C.copy)) if len(C) else C
        return cls(split, Dictionary.empty(split.inducing), D)

    @property
    def inducing_points(self) -> Array:
        """The dictionary, of shape (m, n_dims)."""
        return self.dictionary.states

    def __len__(self) -> int:
        """Number m' of features."""
        return len(self.dictionary.states) + self.split.n_explicit

    def __call__(self, states: Array) -> Array:
        """Φ, of shape (n, m')."""
        return self.with_residuals(states)[0]

    def with_residuals(self, states: Array) -> tuple[Array, Array]:
        """Φ, of shape (n, m'), and the residual variance, of shape (n,)."""
        residual, half = self.dictionary.residuals(states)
        return np.column_stack([self.split.basis(states) @ self.explicit_factor, half.T]), residual

    def residual_variance(self, states: Array) -> Array:
        """g(x, x) − g(x, Z) g(Z, Z)⁻¹ g(Z, x) for each state, of shape (n,)."""
        return self.dictionary.residuals(states)[0]

    def residual_covariance(self, states: Array) -> Array:
        """g(x, x') − g(x, Z) g(Z, Z)⁻¹ g(Z, x') between all pairs of states, of shape (n, n)."""
        _, explained = self.dictionary.residuals(states)
        return np.asarray(self.split.inducing(states, states) - explained.T @ explained)

    def extended(self, state: Array) -> DictionaryFeatures:
        """With one inducing point more."""
        return replace(self, dictionary=self.dictionary.extended(state))

    # ---------------------------------------------------------------------------------- many states, O(n·m)

    def newest(self, states: Array) -> Array:
        """The last feature of each state, g(X, Z)L⁻ᵀe_m, of shape (n,)."""
        kernel, Z = self.dictionary.kernel, self.dictionary.states
        last = np.zeros(len(Z))
        last[-1] = 1.0
        onto_newest = linalg.half_solve_transposed(self.dictionary.L, last)
        parts = [kernel(states[rows], Z) @ onto_newest for rows in _blocks(len(states))]
        return np.concatenate([np.zeros(0), *parts])

    def transposed(self, states: Array, weights: Array) -> Array:
        """Φᵀ·weights for weights of shape (n, k), of shape (m', k)."""
        kernel, Z = self.dictionary.kernel, self.dictionary.states
        Ga = np.zeros((len(Z), weights.shape[1]))
        for rows in _blocks(len(states)):
            Ga += kernel(states[rows], Z).T @ weights[rows]
        explicit = self.explicit_factor.T @ (self.split.basis(states).T @ weights)
        return np.concatenate([explicit, linalg.half_solve(self.dictionary.L, Ga)])


def _blocks(n: int) -> list[slice]:
    return [slice(i, i + BLOCK) for i in range(0, n, BLOCK)]


class StateTable:
    """Past states, each with some numbers about the row that leaves it (all 0 where there is none).

    Parameters
    ----------
    split : KernelSplit
    n_columns : int
        How many numbers.
    """

    def __init__(self, split: KernelSplit, n_columns: int) -> None:
        self.n_columns = n_columns
        self._table, self._n = np.zeros((64, n_columns + (split.inducing.width or 0))), 0

    def __len__(self) -> int:
        return self._n

    def append(self, state: Array) -> None:
        """Add a state, as yet without a row."""
        if self._n == len(self._table):
            more = np.zeros((max(64, self._n), self._table.shape[1]))
            self._table = np.concatenate([self._table, more])
        self._table[self._n, self.n_columns :] = state
        self._n += 1

    def set_row(self, *columns: float) -> None:
        """Give the last state its row."""
        self._table[self._n - 1, : self.n_columns] = columns

    @property
    def states(self) -> Array:
        """Of shape (n, n_dims)."""
        return self._table[: self._n, self.n_columns :]

    @property
    def columns(self) -> Array:
        """The numbers, of shape (n_columns, n)."""
        return self._table[: self._n, : self.n_columns].T

    @property
    def table(self) -> Array:
        """The numbers and the state of each row, of shape (n, n_columns + n_dims)."""
        return self._table[: self._n]

    @table.setter
    def table(self, rows: Array) -> None:
        rows = as_numbers(rows, (None, self._table.shape[1]), "history")
        self._table, self._n = rows.copy(), len(rows)


class GrowingPosterior:
    """A posterior that takes in one transition at a time, with a dictionary that grows.

    Parameters
    ----------
    kernel : Kernel
    tolerance : float
        ε, the share of the prior variance that the dictionary may leave unexplained.
    max_size : int or None
        Size at which the dictionary stops growing.
    """

    trace_decay: float | None

    def __init__(self, kernel: Kernel, tolerance: float, max_size: int | None) -> None:
        self.tolerance, self.max_size = tolerance, max_size
        self.features = DictionaryFeatures.of(kernel)

    @property
    def inducing_points(self) -> Array:
        """The dictionary, of shape (m, n_dims)."""
        return self.features.inducing_points

    def condition_on(self, data: Trajectories) -> Self:
        """Take in whole segments."""
        for first, last, terminated in zip(data.starts, data.last, data.terminated, strict=True):
            self.start(data.states[first])
            for i in range(first, last):
                self.step(data.rewards[i], data.discounts[i], data.states[i + 1])
            self.stop(terminated, data.rewards[last])
        return self

    def start(self, state: Array) -> None:
        """Begin a segment at its first state."""
        raise NotImplementedError

    def step(self, reward: float, discount: float, next_state: Array) -> None:
        """Go on from the last state of the running segment to the next."""
        raise NotImplementedError

    def stop(self, terminated: bool, reward: float = 0.0) -> None:
        """End the segment."""
        raise NotImplementedError

    def _enter(self, state: Array) -> Array:
        """φ of a state, which first joins the dictionary if that cannot express it, of shape (m',)."""
        (phi,), (residual,) = self.features.with_residuals(state[None])
        prior = float(self.features.split.inducing.diagonal(state[None])[0])
        is_full = self.max_size is not None and len(self.inducing_points) >= self.max_size
        if is_full or residual <= max(self.tolerance, UNPIVOTED_ROUNDING) * prior:
            return np.asarray(phi)
        self.features = self.features.extended(state)
        self._grow()
        return np.append(phi, np.sqrt(residual))

    def _grow(self) -> None:
        """Give all statistics the newest feature."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------- files

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was learnt but the dictionary, as plain data and arrays."""
        raise NotImplementedError

    def restore(
        self, inducing_points: Array, running_state: Array | None, header: dict[str, Any], arrays: Mapping[str, Any]
    ) -> None:
        """Take back what `to_arrays` kept; the running segment, if there is one, stands at `running_state`."""
        for state in inducing_points:
            self.features = self.features.extended(state)
