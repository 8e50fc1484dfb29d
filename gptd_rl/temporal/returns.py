"""Discounted returns of sampled segments, terminated or truncated, as regression targets for V."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.types import Array, BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class Returns:
    """Discounted returns up to the end of each segment: ``y = V(x) − z V(x_end) + noise``.

    A truncated segment lacks the rewards after its last state x_end; z is the discount of x_end, and 0 in terminated
    segments. So y is compared with a difference of values instead of a bootstrapped target.

    Attributes
    ----------
    y, z : ndarray of shape (n_states,)
    end : ndarray of shape (n_states,)
        Row of x_end.
    usable : ndarray of shape (k,)
        Rows with a transition and a small z.
    episode : ndarray of shape (n_states,)
        Segment of each state.
    """

    y: Array
    z: Array
    end: IntArray
    usable: IntArray
    episode: IntArray

    @classmethod
    def of(cls, data: Trajectories) -> Returns:
        """Returns of `data`.

        Rows with z ≤ 0.5 are usable. If these are less than a tenth, rows up to the median of z are.
        """
        H = TemporalDifference.of(data)
        z = H.null_vectors()
        inner = np.ones(len(data), dtype=bool)
        inner[data.last] = False
        largest = 0.5 if (z[inner] <= 0.5).mean() >= 0.1 else float(np.median(z[inner]))
        usable = np.flatnonzero(inner & (z <= largest)).astype(np.int64)
        return cls(H.returns(data.rewards), z, np.repeat(data.last, data.lengths), usable, data.segment_of)

    def difference(self, values: Array) -> Array:
        """V(x) − z V(x_end), of shape (n_states, ...), for values of shape (n_states, ...)."""
        z = self.z.reshape(-1, *[1] * (values.ndim - 1))
        return values - z * values[self.end]


def value_bounds(rewards: Array, gamma: float, terminated: BoolArray | None = None) -> tuple[float, float]:
    """Smallest and largest value that these rewards allow: the worst or the best of them, for ever.

    The value of a terminal state, 0, is between them. With γ = 1 a bound is 0, infinite, or a reward on ending.

    Parameters
    ----------
    rewards : ndarray of shape (n,)
    gamma : float
    terminated : ndarray of shape (n,), optional
        Whether a transition ended in a terminal state: such a reward is received once.
    """
    once = np.zeros(0) if terminated is None else rewards[terminated]
    again = rewards if terminated is None else rewards[~terminated]
    worst, best = float(again.min(initial=0.0)), float(again.max(initial=0.0))
    if gamma >= 1.0:
        low, high = worst and -np.inf, best and np.inf
    else:
        low, high = worst / (1.0 - gamma), best / (1.0 - gamma)
    return float(once.min(initial=low)), float(once.max(initial=high))
