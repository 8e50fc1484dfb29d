"""The operator H, with expected rewards ``(H V)_i = V(x_i) − γ_i V(x_{i+1})`` (paper eqs. (3), (4) and (5)).

H is never built densely. It has one row per state, except the last state of a truncated segment, about whose future
nothing is known. Adding a unit row there makes it the square unit upper-bidiagonal matrix Ĥ, and everything else is
one banded solve with Ĥ: discounted returns, the null vectors of H, and the recursion along each segment that error
bars need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.memo import once
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class TemporalDifference:
    """H for one set of trajectories.

    Arrays over rows are kept at full length, one entry per state, with a zero at the states that have no row: the
    rows of H then line up with the states, and shifted subtraction is all there is to a product.
    """

    discounts: Array  # [n]
    has_row: NDArray[np.bool_]  # [n]
    segment_of: NDArray[np.int64]  # [n]
    n_segments: int

    @classmethod
    def of(cls, data: Trajectories) -> TemporalDifference:
        """H of `data`, built once."""
        return _temporal_difference(data)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of states."""
        return int(self.has_row.sum()), len(self.discounts)

    # ---------------------------------------------------------------------------------- products

    def apply(self, values: Array) -> Array:
        """H·values, of shape (n_states, ...): zero where there is no row."""
        out = np.array(values, dtype=np.float64)
        out[:-1] -= _column(self.discounts[:-1], values) * values[1:]
        out[~self.has_row] = 0.0
        return out

    def apply_transposed(self, rows: Array) -> Array:
        """Hᵀ·rows, of shape (n_states, ...), for `rows` of one entry per state (ignored where there is no row)."""
        out = np.where(_column(self.has_row, rows), rows, 0.0)
        out[1:] -= _column(self.discounts[:-1], rows) * out[:-1].copy()
        return out

    def matmul(self, values: Array) -> Array:
        """H·values without the padding, of shape (n_rows, ...)."""
        return self.apply(values)[self.has_row]

    def sparse(self) -> sparse.csr_array:
        """H as a sparse matrix of shape (n_rows, n_states)."""
        n = len(self.discounts)
        full = sparse.diags_array([np.ones(n), -self.discounts[:-1]], offsets=[0, 1], format="csr")
        return full[self.has_row]

    # ---------------------------------------------------------------------------------- solves with Ĥ

    def solve(self, rows: Array) -> Array:
        """Ĥ⁻¹·rows: the backward recursion ``y_i = rows_i + γ_i y_{i+1}``."""
        return self._solve_banded(rows, "N")

    def solve_transposed(self, values: Array) -> Array:
        """Ĥ⁻ᵀ·values: the forward recursion ``u_i = values_i + γ_{i−1} u_{i−1}``."""
        return self._solve_banded(values, "T")

    def returns(self, rewards: Array) -> Array:
        """Discounted returns y of each state with 0 as the bootstrap at a truncation, so that ``H y = r``."""
        return self.solve(np.where(self.has_row, rewards, 0.0))

    def null_vectors(self) -> Array:
        """Null vectors of H, one per truncated segment, laid side by side in one vector of shape (n_states,).

        1 at the last state of a truncated segment and ``z_i = γ_i z_{i+1}`` before it; 0 in terminated segments. Their
        supports do not overlap, so one vector holds them all.
        """
        return self._null_vectors

    def segment_sums(self, values: Array) -> Array:
        """Sum over the states of each segment, of shape (n_segments, ...)."""
        member = sparse.csr_array(
            (np.ones(len(self.segment_of)), (self.segment_of, np.arange(len(self.segment_of)))),
            shape=(self.n_segments, len(self.segment_of)),
        )
        return np.asarray(member @ values)

    @cached_property
    def _null_vectors(self) -> Array:
        z = self.solve((~self.has_row).astype(np.float64))
        z.flags.writeable = False
        return z

    @cached_property
    def squared_norms(self) -> Array:
        """‖z_s‖² of each segment, 0 for terminated ones, of shape (n_segments,)."""
        return self.segment_sums(self._null_vectors**2)

    def log_det_gram(self) -> float:
        """Log det HHᵀ = Σ_s log‖z_s‖² over the truncated segments."""
        squared = self.squared_norms
        return float(np.log(squared[squared > 0]).sum())

    def project(self, values: Array) -> Array:
        """Π·values with Π = Hᵀ(HHᵀ)⁻¹H = I − Σ_s z_s z_sᵀ/‖z_s‖²: what the rewards can tell about values."""
        z, squared = self._null_vectors, self.squared_norms
        along = self.segment_sums(_column(z, values) * values)
        along /= _column(np.where(squared > 0, squared, 1.0), along)
        return values - _column(z, values) * along[self.segment_of]

    def _solve_banded(self, right: Array, trans: str) -> Array:
        band = np.ones((2, len(self.discounts)), order="F")
        band[0, 0], band[0, 1:] = 0.0, -self.discounts[:-1]
        flat = np.array(right.reshape(len(right), -1), dtype=np.float64, order="F")
        if flat.size == 0:  # LAPACK does not take it
            return flat.reshape(right.shape)
        solution, info = lapack.dtbtrs(band, flat, uplo="U", trans=trans, diag="U", overwrite_b=1)
        assert info == 0
        return np.ascontiguousarray(solution).reshape(right.shape)


def _column(vector: NDArray[Any], like: Array) -> NDArray[Any]:
    """Give `vector` the trailing axes of `like`, to scale its rows."""
    return vector.reshape(-1, *([1] * (like.ndim - 1)))


@once
def _temporal_difference(data: Trajectories) -> TemporalDifference:
    """H of `data`, built once."""
    return TemporalDifference(data.discounts, data.has_row, data.segment_of, data.n_segments)


@once
def discounted_returns(data: Trajectories) -> Array:
    """Returns y of each state, 0 as the bootstrap at a truncation, of shape (n_states,), computed once."""
    returns = TemporalDifference.of(data).returns(data.rewards)
    returns.flags.writeable = False
    return returns
