"""The operators F of ``y = FᵀV + ε``: how targets depend on values.

F maps u values to q targets. Products are taken without ever building F: by scaling, by reflections, by differences of
neighbours, or by one small dense matrix over distinct states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy import linalg as dense

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.linalg import reflect_in_place, symmetrise_in_place
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.types import Array, IntArray

# Up to so many segments, all reflections together are two matrix products; more are applied one by one.
MANY_SEGMENTS = 64


class Operator(Protocol):
    """F, of shape (u, q): the expected targets are FᵀV."""

    @property
    def n_targets(self) -> int:
        """Number q of targets."""
        ...

    def rmatvec(self, values: Array) -> Array:
        """Fᵀ·values, of shape (q, …)."""
        ...

    def matvec(self, weights: Array) -> Array:
        """F·weights, of shape (u, …)."""
        ...

    def project_covariance(self, K: Array) -> Array:
        """FᵀKF from the lower triangle of K, which may be overwritten."""
        ...

    def pull_back(self, A: Array) -> Array:
        """FAFᵀ from the lower triangle of A, which may be overwritten."""
        ...


@dataclass(frozen=True, eq=False)
class Scaling:
    """F = diag(√c): each distinct state has one target of weight √c, for its c visits."""

    weights: Array  # [u]

    @property
    def n_targets(self) -> int:
        """One target per distinct state."""
        return len(self.weights)

    def rmatvec(self, values: Array) -> Array:
        """Fᵀ·values."""
        return (values.T * self.weights).T

    matvec = rmatvec  # F is symmetric

    def pinv_rmatvec(self, weights: Array) -> Array:
        """F⁻ᵀ·weights."""
        return (weights.T / self.weights).T

    def project_covariance(self, K: Array) -> Array:
        """FᵀKF, in place."""
        if (self.weights != 1.0).any():
            with np.errstate(all="ignore"):  # entries above the diagonal have no meaning
                K *= self.weights[:, None]
                K *= self.weights
        return K

    pull_back = project_covariance


@dataclass(frozen=True, eq=False)
class Reflection:
    """F = I − 2vvᵀ per truncated segment, its last column dropped: an orthonormal basis of H's row space.

    The reflection turns the segment's null vector z into the axis of its last state; dropping that axis projects the
    unknown tail out. The place of the dropped target is kept, with a zero in it.
    """

    v: Array  # [n], unit length within each truncated segment, 0 in terminated ones
    dropped: IntArray  # last state of each truncated segment
    segments: tuple[slice, ...]  # its states

    @classmethod
    def of(cls, data: Trajectories, H: TemporalDifference) -> Reflection:
        """Build it from the null vectors of H."""
        z = H.null_vectors().copy()
        dropped = data.last[~data.terminated]
        segments = []
        for first, last in zip(data.starts[~data.terminated], dropped, strict=True):
            s = slice(int(first), int(last) + 1)
            z[s] /= np.linalg.norm(z[s])
            z[last] += 1.0  # z is positive there: adding avoids cancellation
            z[s] /= np.linalg.norm(z[s])
            segments.append(s)
        return cls(z, dropped, tuple(segments))

    @property
    def n_targets(self) -> int:
        """One place per state, dropped ones included."""
        return len(self.v)

    def rmatvec(self, values: Array) -> Array:
        """Fᵀ·values, zero in the dropped places."""
        out = self._reflect(np.array(values))
        out[self.dropped] = 0.0
        return out

    def matvec(self, weights: Array) -> Array:
        """F·weights."""
        out = np.array(weights)
        out[self.dropped] = 0.0
        return self._reflect(out)

    def project_covariance(self, K: Array) -> Array:
        """FᵀKF, in place."""
        return self._drop(self._reflect_both(K))

    def pull_back(self, A: Array) -> Array:
        """FAFᵀ, in place."""
        return self._reflect_both(self._drop(A))

    def _reflect_both(self, S: Array) -> Array:
        """Reflect rows and columns of a symmetric matrix, of which the lower triangle is read."""
        if self.axes is not None:
            return reflect_in_place(S, self.axes)
        self._reflect(self._reflect(symmetrise_in_place(S)).T)
        return S

    @cached_property
    def axes(self) -> Array | None:
        """The v of each segment as a column; None if there are too many of them for products with this to pay."""
        if len(self.segments) > MANY_SEGMENTS:
            return None
        columns = np.zeros((len(self.v), len(self.segments)), order="F")
        for i, s in enumerate(self.segments):
            columns[s, i] = self.v[s]
        return columns

    def _reflect(self, rows: Array) -> Array:
        for s in self.segments:
            v = self.v[s]
            rows[s] -= np.multiply.outer(2.0 * v, v @ rows[s])
        return rows

    def _drop(self, S: Array) -> Array:
        S[self.dropped] = 0.0
        S[:, self.dropped] = 0.0
        return S


@dataclass(frozen=True, eq=False)
class Differences:
    """F = Hᵀ: the rewards as they are, each a difference of two values."""

    H: TemporalDifference

    @property
    def n_targets(self) -> int:
        """One place per state; those without a row hold a zero."""
        return self.H.shape[1]

    def rmatvec(self, values: Array) -> Array:
        """H·values."""
        return self.H.apply(values)

    def matvec(self, weights: Array) -> Array:
        """Hᵀ·weights."""
        return self.H.apply_transposed(weights)

    def project_covariance(self, K: Array) -> Array:
        """HKHᵀ."""
        half = self.H.apply(symmetrise_in_place(K))
        return self.H.apply(half.T)

    def pull_back(self, A: Array) -> Array:
        """HᵀAH."""
        half = self.H.apply_transposed(symmetrise_in_place(A))
        return self.H.apply_transposed(half.T)


@dataclass(frozen=True, eq=False)
class Compressed:
    """Another F without the places that hold no target: a smaller S where many segments were truncated."""

    inner: Reflection | Differences
    places: IntArray  # that hold a target  [q]

    @property
    def n_targets(self) -> int:
        """One target per row of H."""
        return len(self.places)

    def rmatvec(self, values: Array) -> Array:
        """Fᵀ·values."""
        return self.inner.rmatvec(values)[self.places]

    def matvec(self, weights: Array) -> Array:
        """F·weights."""
        return self.inner.matvec(self.unpack(weights))

    def unpack(self, weights: Array) -> Array:
        """Weights with a zero in each place that holds no target."""
        out = np.zeros((self.inner.n_targets, *weights.shape[1:]))
        out[self.places] = weights
        return out

    def project_covariance(self, K: Array) -> Array:
        """FᵀKF."""
        return self.inner.project_covariance(K)[np.ix_(self.places, self.places)]

    def pull_back(self, A: Array) -> Array:
        """FAFᵀ."""
        whole = np.zeros((self.inner.n_targets, self.inner.n_targets))
        whole[np.ix_(self.places, self.places)] = A
        return self.inner.pull_back(whole)


@dataclass(frozen=True, eq=False)
class DistinctStates:
    """F = R with RRᵀ = G, the weights of the distinct states in all targets together.

    The general form of `Scaling`: differences and truncations tie the distinct states together, so G is not diagonal.
    """

    R: Array  # [u, q]
    inverse: Array  # R⁺ᵀ  [u, q]

    @classmethod
    def of(cls, G: Array) -> DistinctStates:
        """Factor G without its null space."""
        eigenvalues, vectors = dense.eigh(G)
        seen = eigenvalues > 1e-12 * eigenvalues[-1]
        root = np.sqrt(eigenvalues[seen])
        return cls(vectors[:, seen] * root, vectors[:, seen] / root)

    @property
    def n_targets(self) -> int:
        """Rank of G."""
        return int(self.R.shape[1])

    def rmatvec(self, values: Array) -> Array:
        """Rᵀ·values."""
        return self.R.T @ values

    def matvec(self, weights: Array) -> Array:
        """R·weights."""
        return self.R @ weights

    def pinv_rmatvec(self, weights: Array) -> Array:
        """R⁺ᵀ·weights."""
        return self.inverse @ weights

    def project_covariance(self, K: Array) -> Array:
        """RᵀKR."""
        return self.R.T @ symmetrise_in_place(K) @ self.R

    def pull_back(self, A: Array) -> Array:
        """RARᵀ."""
        return self.R @ symmetrise_in_place(A) @ self.R.T
