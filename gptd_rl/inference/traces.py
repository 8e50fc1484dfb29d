"""Values from whole returns by instruments: for observations that do not tell all that matters.

Where states are not Markov, TD errors depend on the past, and a function of the present state is no valid instrument.
Returns still average to the value of what is seen: V(x) = E[return | x]. With traces as instruments (λ = 1),

    z_t = ψ_t + γ_{t−1}z_{t−1}        A = Σz_tx_tᵀ        b = Σz_tr_t

the equations b = Aw regress returns on features, and bootstrap only where a segment was cut off, from the value of the
state where that happened. A is nearly G, and the noise of b is that of returns: R = κs² V diag(1/q_j²) Vᵀ.

Neither TD errors nor their products with traces are uncorrelated here: the noise is that of whole pieces of segments,

    W = Σ_pieces (Σ_t z_tδ_t/(1 − h_t))(Σ_t z_tδ_t/(1 − h_t))ᵀ,  h_t = x_tᵀM⁻¹z_t
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptd_rl.inference.instrumental import (
    MAX_LEVERAGE,
    MomentPasses,
    MomentSolution,
    MomentStatistics,
    ValueFeatures,
    feature_blocks,
)
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array, IntArray

# Length of a piece in effective horizons 1/(1 − γ), and in transitions at most.
HORIZONS, LONGEST = 10.0, 1000


def trace_statistics(shard: Shard, features: ValueFeatures) -> MomentStatistics:
    """One pass over a shard."""
    m = len(features)
    square, vector = np.zeros((m, m)), np.zeros(m)
    total = MomentStatistics(square, square, vector, square, vector, 0.0, 0, 0.0, 1.0, square)
    for part, P, X, Z in _trace_blocks(Transitions.of(shard.data), features):
        r, loss = part.rewards, 1.0 - part.discounts
        losses = float(loss.sum()), float(loss.min(initial=1.0))
        rows = P.T @ P, Z.T @ X, r @ Z, X.T @ X, r @ X, float(r @ r), len(r)
        total = total + MomentStatistics(*rows, *losses, P.T @ X)
    return total


def trace_noise(shard: Shard, features: ValueFeatures, solution: MomentSolution) -> Array:
    """W, of shape (m', m'), in another pass."""
    transitions = Transitions.of(shard.data)
    piece = _pieces(transitions, solution.statistics.smallest_loss)
    scores, first = np.zeros((int(piece.max(initial=-1)) + 1, len(features))), 0
    for part, _, X, Z in _trace_blocks(transitions, features):
        errors = part.rewards - X @ solution.weights
        leverage = np.einsum("nm,nm->n", X, solution.solve(Z.T).T)
        Z *= (errors / (1.0 - np.clip(leverage, -1.0, MAX_LEVERAGE)))[:, None]
        np.add.at(scores, piece[first : first + len(part)], Z)
        first += len(part)
    return np.asarray(scores.T @ scores)


WHOLE_RETURNS = MomentPasses(1.0, trace_statistics, trace_noise)


def _trace_blocks(
    transitions: Transitions, features: ValueFeatures
) -> Iterator[tuple[Transitions, Array, Array, Array]]:
    """Transitions in blocks, with ψ, x = ψ − Σ w ψ' and the trace z, each of shape (c, m')."""
    before, discount = np.zeros(len(features)), 0.0
    for part, P, X in feature_blocks(transitions, features):
        carried = P.copy()
        if not part.is_first[0]:
            carried[0] += discount * before
        goes_on = np.append(~part.is_first[1:], False)
        H = TemporalDifference(np.where(goes_on, part.discounts, 0.0), goes_on, np.zeros(len(part), dtype=np.int64), 1)
        Z = H.solve_transposed(carried)  # z_t = ψ_t + γ_{t−1}z_{t−1}
        before, discount = Z[-1].copy(), float(part.discounts[-1])
        yield part, P, X, Z


def _pieces(transitions: Transitions, smallest_loss: float) -> IntArray:
    """Number of the piece of each transition, of shape (n,): segments, cut where they are long."""
    length = int(np.clip(HORIZONS / max(smallest_loss, 1e-12), 1.0, LONGEST))
    starts = np.flatnonzero(transitions.is_first)
    within = np.arange(len(transitions)) - starts[np.cumsum(transitions.is_first) - 1]
    return np.cumsum(within % length == 0) - 1
