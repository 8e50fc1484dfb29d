"""An episode under way: who acts, what it earned so far, and whether that is what was promised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.agents.policy_pool import Trial
from gptd_rl.types import Array


@dataclass(eq=False)
class Run:
    """An episode under way.

    Attributes
    ----------
    trial : Trial or None
        Who acts; None acts at random.
    start : ndarray of shape (n_dims,)
        The first state.
    total, discounted : float
        The return so far, and the same discounted to the start.
    discount : float
        Discount of what comes next.
    whole : bool
        Whether the same policy acted all the time.
    restarting : bool
        Whether the next step only resets the environment.
    """

    trial: Trial | None
    start: Array
    total: float = 0.0
    discounted: float = 0.0
    discount: float = 1.0
    whole: bool = True
    restarting: bool = False

    def book(self, reward: float, gamma: float) -> None:
        """One more reward; γ is 0 if nothing can follow."""
        self.total += reward
        self.discounted += self.discount * reward
        self.discount *= gamma

    def shortfall(self, state: Array) -> float:
        """By how much the way to `state` fell short of what the policy's own Q-function had promised at the start."""
        if self.trial is None or self.trial.q is None:
            return np.inf
        promised, left = self.trial.q.values(np.stack([self.start, state])).max(axis=1)
        # V(x₀) − (r₀ + γr₁ + … + γᵗV(x_t))
        return float(promised - (self.discounted + self.discount * left))
