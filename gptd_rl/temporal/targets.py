"""Rewards as white-noise observations of the value function: ``y = Fᵀ V + ε``, ``ε ~ N(0, σ²I)``.

The paper's model is ``r = H V + η`` with ``η ~ N(0, Σ)``. Both of its noise models, and every mix of terminated and
truncated segments, take this one form, so that the posterior and the objectives are written once:

==============  =============================  =========================================================
noise Σ         targets y                      F
==============  =============================  =========================================================
σ²I             rewards                        Hᵀ (`Differences`)
σ²HHᵀ           discounted returns             identity (`Scaling`) where every segment terminated;
                                               else an orthonormal basis of H's row space (`Reflection`)
==============  =============================  =========================================================

The second line is a change of variables by the Jacobian ½ log det HHᵀ: GPTD with σ²HHᵀ is Gaussian-process regression
on returns, with the unknown tail of each truncated segment projected out.

Repeated states are merged, exactly: c visits of one state are one target with weight √c, plus a scatter among the
visits that no value function explains. So a run over u distinct states costs O(u³) per evaluation, however long it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import linalg as dense
from scipy import sparse

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.linalg import symmetrise_in_place
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.types import Array

Noise = Literal["stochastic", "deterministic"]

# Places without a target, and their share of all, from which it pays to leave them out.
MIN_EMPTY_ROWS = 100
EMPTY_SHARE = 0.1


class Operator(Protocol):
    """F, which says how the targets see the values: it maps u values to q targets."""

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
    """F = diag(√c): each distinct state is seen with weight √c, for its c visits."""

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
            with np.errstate(all="ignore"):  # what stands above the diagonal may be anything
                K *= self.weights[:, None]
                K *= self.weights
        return K

    pull_back = project_covariance


@dataclass(frozen=True, eq=False)
class Reflection:
    """F = I − 2vvᵀ per truncated segment, its last column dropped: an orthonormal basis of what the rewards can tell.

    The reflection turns the segment's null vector z into the axis of its last state; dropping that axis projects the
    unknown tail out. The place of the dropped target is kept, with a zero in it.
    """

    v: Array  # [n], unit length within each truncated segment, 0 in terminated ones
    dropped: NDArray[np.int64]  # last state of each truncated segment
    segments: tuple[slice, ...]  # its states

    @classmethod
    def of(cls, data: Trajectories, H: TemporalDifference) -> Reflection:
        """Build it from the null vectors of H."""
        z = H.null_vectors()
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
        self._reflect(self._reflect(symmetrise_in_place(K)).T)
        return self._drop(K)

    def pull_back(self, A: Array) -> Array:
        """FAFᵀ, in place."""
        self._drop(symmetrise_in_place(A))
        self._reflect(self._reflect(A).T)
        return A

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
    places: NDArray[np.int64]  # that hold a target  [q]

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
    """F = R with RRᵀ = G, the weights with which all visits together see the distinct states.

    The general form of `Scaling`: differences and truncations tie the distinct states together, so G is not diagonal.
    """

    R: Array  # [u, q]
    inverse: Array  # R⁺ᵀ  [u, q]

    @classmethod
    def of(cls, G: Array) -> DistinctStates:
        """Factor G, leaving out the directions in which nothing was seen."""
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


@dataclass(frozen=True, eq=False)
class Targets:
    """All that the posterior and the objectives need to know of the data.

    Attributes
    ----------
    states : ndarray of shape (u, n_dims)
        The states V is seen at; distinct ones where visits were merged.
    targets : ndarray of shape (q,)
        y, zero in places that hold no target.
    operator : Operator
        F, of shape (u, q).
    n_rows : int
        Number of rewards seen, the rows of H.
    within_visit_ss : float
        Sum of squares that visits to the same state leave unexplained, whatever V is.
    log_jacobian : float
        ½ log det HHᵀ for σ²HHᵀ noise, 0 for σ²I.
    visits : ndarray of shape (n,) or None
        Which of `states` each state of the data is, where visits were merged.
    """

    data: Trajectories
    noise: Noise
    H: TemporalDifference
    states: Array
    targets: Array
    operator: Operator
    n_rows: int
    within_visit_ss: float
    log_jacobian: float
    visits: NDArray[np.int64] | None

    @property
    def n_merged_rows(self) -> int:
        """Rows without a target of their own (merged away), less the places that hold no target."""
        return self.n_rows - self.operator.n_targets

    def parts(self, kernel: SquaredExponential) -> list[tuple[NDArray[np.int64], Targets]]:
        """Parts that know nothing of each other, each with its rows among the targets: S is block diagonal over them.

        So it is if the kernel has K block diagonal, and every target sees a single state. The parts have no visits.
        """
        blocks = kernel.blocks(self.states) if isinstance(self.operator, Scaling) else []
        if len(blocks) <= 1:
            return [(np.arange(len(self.states)), self)]
        return [(rows, self._part(rows, self.within_visit_ss / len(blocks))) for rows in blocks]

    def _part(self, rows: NDArray[np.int64], within_visit_ss: float) -> Targets:
        """Some of the targets, with a share of the within_visit_ss: only its sum over the parts has a meaning."""
        assert isinstance(self.operator, Scaling)
        weights = self.operator.weights[rows]
        return replace(
            self,
            states=self.states[rows],
            targets=self.targets[rows],
            operator=Scaling(weights),
            n_rows=round(float((weights**2).sum())),
            within_visit_ss=within_visit_ss,
            visits=None,
        )

    def reward_weights(self, g: Array) -> Array:
        """Turn weights on targets, of shape (q, m), into weights on rewards: ``gᵀy = uᵀr``; of shape (n, m)."""
        if self.visits is not None:
            assert isinstance(self.operator, Scaling | DistinctStates)
            per_visit = self.operator.pinv_rmatvec(g)[self.visits]
            if self.noise == "deterministic":
                return self.H.apply(per_visit)
            per_visit = self.H.project(per_visit)
        elif self.noise == "deterministic":
            return self.operator.unpack(g) if isinstance(self.operator, Compressed) else g
        else:
            per_visit = self.operator.matvec(g)
        # Hᵀu = a: u_t = a_t + γ_{t−1} u_{t−1} along each segment
        return np.where(self.H.has_row[:, None], self.H.solve_transposed(per_visit), 0.0)


def build_targets(data: Trajectories, noise: Noise, *, merge: bool = True) -> Targets:
    """Put `data` into the form ``y = FᵀV + ε``.

    Parameters
    ----------
    data : Trajectories
    noise : {"stochastic", "deterministic"}
        σ²HHᵀ or σ²I.
    merge : bool
        Merge repeated states. Leave-one-out objectives need each visit by itself.
    """
    H = TemporalDifference.of(data)
    if noise == "deterministic":
        rewards = np.where(H.has_row, data.rewards, 0.0)
        whole = Targets(data, noise, H, data.states, rewards, Differences(H), H.shape[0], 0.0, 0.0, None)
        return _merge_tied(whole) if merge else whole
    returns, jacobian = H.returns(data.rewards), 0.5 * H.log_det_gram()
    if data.terminated.all():
        return _merge_visits(data, H, returns, merge)
    mirror = Reflection.of(data, H)
    whole = Targets(data, noise, H, data.states, mirror.rmatvec(returns), mirror, H.shape[0], 0.0, jacobian, None)
    return _merge_tied(whole) if merge else whole


def distinct(states: Array) -> tuple[Array, NDArray[np.int64]]:
    """Distinct states in order of appearance, and for each state which of them it is."""
    _, first, inverse = np.unique(states, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return states[first[order]], rank[inverse.reshape(-1)]


def _merge_visits(data: Trajectories, H: TemporalDifference, returns: Array, merge: bool) -> Targets:
    """Every segment terminated: c visits with returns y are one target √c·mean(y)."""
    states, visits = distinct(data.states) if merge else (data.states, np.arange(len(data)))
    counts = np.bincount(visits).astype(np.float64)
    means = np.bincount(visits, weights=returns) / counts
    within_visit_ss = float(((returns - means[visits]) ** 2).sum()) if len(states) < len(data) else 0.0
    weights = np.sqrt(counts)
    return Targets(
        data, "stochastic", H, states, weights * means, Scaling(weights), len(data), within_visit_ss, 0.0, visits
    )


def _pack(whole: Targets) -> Targets:
    """Leave out the places that hold no target, if there are many."""
    places = np.flatnonzero(whole.H.has_row)
    n_idle = len(whole.targets) - len(places)
    if n_idle < max(MIN_EMPTY_ROWS, EMPTY_SHARE * len(whole.targets)):
        return whole
    assert isinstance(whole.operator, Reflection | Differences)
    return replace(whole, targets=whole.targets[places], operator=Compressed(whole.operator, places))


def _merge_tied(whole: Targets) -> Targets:
    """Merge visits where F is not diagonal, if that makes the problem smaller by half or more; else pack it."""
    data, H = whole.data, whole.H
    states, visits = distinct(data.states)
    n, u = len(data), len(states)
    if 2 * u > n:
        return _pack(whole)
    E = sparse.csr_array((np.ones(n), (np.arange(n), visits)), shape=(n, u))
    if whole.noise == "deterministic":
        rows = H.sparse() @ E
        G = (rows.T @ rows).toarray()  # EᵀHᵀHE
    else:
        z = H.null_vectors()
        norms = np.sqrt(H.segment_sums(z**2))
        z = np.divide(z, norms[H.segment_of], out=np.zeros(n), where=z > 0)
        Z = sparse.csr_array((z, (H.segment_of, visits)), shape=(H.n_segments, u))
        G = np.diag(np.bincount(visits).astype(np.float64)) - (Z.T @ Z).toarray()  # EᵀΠE
    if np.trace(G) <= 1e-12 * n:  # γ = 1 from a state into itself: the rewards say nothing of V
        return _pack(whole)
    operator = DistinctStates.of(G)
    seen: Array = E.T @ whole.operator.matvec(whole.targets)  # EᵀFy
    targets = operator.inverse.T @ seen  # R⁺EᵀFy
    within_visit_ss = max(0.0, float(whole.targets @ whole.targets - targets @ targets))
    return Targets(
        data,
        whole.noise,
        H,
        states,
        targets,
        operator,
        whole.n_rows,
        within_visit_ss,
        whole.log_jacobian,
        visits,
    )
