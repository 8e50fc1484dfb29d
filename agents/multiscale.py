"""A kernel of many lengthscales at once, for value functions that nobody has seen yet.

While an agent learns, the value function it learns changes its shape: flat at first, steep once a goal was found. One
lengthscale that fits today misleads tomorrow: a long one forgets that the unknown may be good, a short one generalises
nothing. The sum of five has both, and leaves to the evidence only what it can tell from few data: which state
variables matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.types import Array

SCALES = np.array([8.0, 4.0, 2.0, 1.0, 0.5])  # each half the one before
WEIGHTS = SCALES / SCALES.sum()  # functions vary more over long ways than over short ones


@dataclass(frozen=True, eq=False)
class MultiScale:
    """k(x, x') = Σ_j w_j exp(−d²/2ℓ_j²) with d² = Σ_i ω_i (x_i − x'_i)².

    Parameters
    ----------
    relevances : ndarray of shape (n_dims,)
        ω: 1 over the squared distance along each input that counts as one.
    """

    relevances: Array

    def __call__(self, states: Array, others: Array) -> Array:
        """K between two sets of states, of shape (n_states, n_others)."""
        return self._sums(states, others, WEIGHTS[np.newaxis])[0]

    def with_slope(self, states: Array, others: Array) -> tuple[Array, Array]:
        """K and −∂K/∂(½d²), each of shape (n_states, n_others)."""
        K, slope = self._sums(states, others, np.stack([WEIGHTS, WEIGHTS / SCALES**2]))
        return K, slope

    def diagonal(self, states: Array) -> Array:
        """k(x, x) for each state, of shape (n_states,)."""
        return np.ones(len(states))

    def _sums(self, states: Array, others: Array, weights: Array) -> list[Array]:
        """Σ_j weights[·, j] exp(−d²/2ℓ_j²) for each row of `weights`."""
        to_longest = np.sqrt(self.relevances) / SCALES[0]
        w, w2 = states * to_longest, others * to_longest
        # −½d² = wᵀw' − ½‖w‖² − ½‖w'‖²
        exponent = w @ w2.T
        exponent -= 0.5 * (w * w).sum(axis=1)[:, np.newaxis]
        exponent -= 0.5 * (w2 * w2).sum(axis=1)
        np.minimum(exponent, 0.0, out=exponent)
        C = np.exp(exponent, out=exponent)
        sums = [weight * C for weight in weights[:, 0]]
        for column in weights.T[1:]:
            # half the lengthscale is the fourth power, which spares an exp
            np.multiply(C, C, out=C)
            np.multiply(C, C, out=C)
            for total, weight in zip(sums, column, strict=True):
                total += weight * C
        return sums
