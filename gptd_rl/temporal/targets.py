"""Rewards as white-noise measurements of the value function: ``y = Fᵀ V + ε``, ``ε ~ N(0, σ²I)``.

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
from typing import Literal, Self

import numpy as np
from scipy import sparse

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.kernels import Kernel
from gptd_rl.temporal.differences import TemporalDifference, discounted_returns
from gptd_rl.temporal.memo import once
from gptd_rl.temporal.operators import Compressed, Differences, DistinctStates, Operator, Reflection, Scaling
from gptd_rl.types import Array, IntArray

Noise = Literal["stochastic", "deterministic"]

# Places without a target, and their share of all, from which it pays to leave them out.
MIN_EMPTY_ROWS = 100
EMPTY_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class LinearTargets:
    """All that the evidence needs to know of the data: ``y = FᵀV + ε``.

    Attributes
    ----------
    states : ndarray of shape (u, n_dims)
        The states whose values the targets depend on; distinct ones where visits were merged.
    y : ndarray of shape (q,)
        The targets; zero in places that hold none.
    operator : Operator
        F, of shape (u, q).
    n_rows : int
        Number of rewards, the rows of H; or of moments, where there are fewer.
    within_visit_ss : float
        Sum of squares among visits to the same state, which no value function explains.
    log_jacobian : float
        ½ log det HHᵀ for σ²HHᵀ noise, 0 for σ²I.
    """

    states: Array
    y: Array
    operator: Operator
    n_rows: int
    within_visit_ss: float
    log_jacobian: float

    @property
    def n_merged_rows(self) -> int:
        """Rows without a target of their own (merged away), less the places that hold no target."""
        return self.n_rows - self.operator.n_targets

    def parts(self, kernel: Kernel) -> list[tuple[IntArray, Self]]:
        """Independent parts, each with its rows among the targets: S is block diagonal over them.

        There are several if K is block diagonal and every target depends on a single state. Parts have no visits.
        """
        blocks = kernel.blocks(self.states) if isinstance(self.operator, Scaling) else []
        if len(blocks) <= 1:
            return [(np.arange(len(self.states)), self)]
        return [(rows, self._part(rows, self.within_visit_ss / len(blocks))) for rows in blocks]

    def _part(self, rows: IntArray, within_visit_ss: float) -> Self:
        """Some of the targets, with a share of `within_visit_ss`: only its sum over the parts has a meaning."""
        assert isinstance(self.operator, Scaling)
        weights = self.operator.weights[rows]
        return replace(
            self,
            states=self.states[rows],
            y=self.y[rows],
            operator=Scaling(weights),
            n_rows=round(float((weights**2).sum())),
            within_visit_ss=within_visit_ss,
        )


@dataclass(frozen=True, eq=False)
class Targets(LinearTargets):
    """Targets of trajectories, from which a posterior follows.

    Attributes
    ----------
    visits : ndarray of shape (n,) or None
        Which of `states` each state of the data is, where visits were merged.
    """

    data: Trajectories
    noise: Noise
    H: TemporalDifference
    visits: IntArray | None

    def _part(self, rows: IntArray, within_visit_ss: float) -> Self:
        return replace(super()._part(rows, within_visit_ss), visits=None)

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
        whole = Targets(data.states, rewards, Differences(H), H.shape[0], 0.0, 0.0, data, noise, H, None)
        return _merge_tied(whole) if merge else whole
    returns, jacobian = discounted_returns(data), 0.5 * H.log_det_gram()
    if data.terminated.all():
        return _merge_visits(data, H, returns, merge)
    mirror = Reflection.of(data, H)
    whole = Targets(data.states, mirror.rmatvec(returns), mirror, H.shape[0], 0.0, jacobian, data, noise, H, None)
    return _merge_tied(whole) if merge else whole


@once
def distinct(data: Trajectories) -> tuple[Array, IntArray]:
    """Distinct states in order of appearance, and for each state which of them it is."""
    states = data.states
    _, first, inverse = np.unique(states, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return states[first[order]], rank[inverse.reshape(-1)]


def _merge_visits(data: Trajectories, H: TemporalDifference, returns: Array, merge: bool) -> Targets:
    """Every segment terminated: c visits with returns y are one target √c·mean(y)."""
    states, visits = distinct(data) if merge else (data.states, np.arange(len(data)))
    counts = np.bincount(visits).astype(np.float64)
    means = np.bincount(visits, weights=returns) / counts
    within_visit_ss = float(((returns - means[visits]) ** 2).sum()) if len(states) < len(data) else 0.0
    weights = np.sqrt(counts)
    return Targets(
        states, weights * means, Scaling(weights), len(data), within_visit_ss, 0.0, data, "stochastic", H, visits
    )


def _pack(whole: Targets) -> Targets:
    """Leave out the places that hold no target, if there are many."""
    places = np.flatnonzero(whole.H.has_row)
    n_idle = len(whole.y) - len(places)
    if n_idle < max(MIN_EMPTY_ROWS, EMPTY_SHARE * len(whole.y)):
        return whole
    assert isinstance(whole.operator, Reflection | Differences)
    return replace(whole, y=whole.y[places], operator=Compressed(whole.operator, places))


def _merge_tied(whole: Targets) -> Targets:
    """Merge visits where F is not diagonal, if that makes the problem smaller by half or more; else pack it."""
    data, H = whole.data, whole.H
    states, visits = distinct(data)
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
    if np.trace(G) <= 1e-12 * n:  # γ = 1 from a state into itself: the rewards do not depend on V
        return _pack(whole)
    operator = DistinctStates.of(G)
    moment: Array = E.T @ whole.operator.matvec(whole.y)  # EᵀFy
    y = operator.inverse.T @ moment  # R⁺EᵀFy
    within_visit_ss = max(0.0, float(whole.y @ whole.y - y @ y))
    return Targets(states, y, operator, whole.n_rows, within_visit_ss, whole.log_jacobian, data, whole.noise, H, visits)
