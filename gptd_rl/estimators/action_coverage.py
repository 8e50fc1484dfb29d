"""Whether the data tell what the evaluated policy does: how often its action was never tried nearby."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gptd_rl.data.resampling import evenly_spaced
from gptd_rl.estimators.engines import Engine
from gptd_rl.exceptions import ActionCoverageWarning
from gptd_rl.inference.features import KernelSplit
from gptd_rl.kernels import Kernel
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array

# A pair is near another if Q there is correlated a priori by at least this.
NEARBY = 0.5

# Share of transitions without a logged pair nearby that is worth a warning.
WORTH_A_WARNING = 0.05

# Transitions looked at, and logged pairs to compare with.
N_ASKED, N_LOGGED = 500, 4000


def uncovered_share(kernel: Kernel, transitions: Transitions) -> float:
    """Share of transitions after which the policy's action was never tried nearby, weighted by its probabilities."""
    g = KernelSplit.of(kernel).inducing
    goes_on = np.flatnonzero(transitions.discounts > 0.0)
    if not goes_on.size:
        return 0.0
    asked = transitions.select(goes_on[evenly_spaced(len(goes_on), N_ASKED)])
    logged = transitions.states[evenly_spaced(len(transitions), N_LOGGED)]
    nearest = _largest_correlations(g, asked.points, logged)  # of each point
    uncovered = np.asarray(asked.successors @ (nearest < NEARBY).astype(np.float64))
    return float(np.mean(uncovered / asked.discounts))


def _largest_correlations(kernel: Kernel, points: Array, logged: Array) -> Array:
    """Largest prior correlation of each point with a logged one, of shape (n_points,)."""
    scale = np.sqrt(np.maximum(kernel.diagonal(logged), 1e-300))
    largest = (kernel(points, logged) / scale).max(axis=1)
    return np.asarray(largest / np.sqrt(np.maximum(kernel.diagonal(points), 1e-300)))


def warn_of_uncovered_actions(kernel: Kernel, engine: Engine, policy: Any) -> None:
    """Warn if the data hold little about what the policy does."""
    if policy is None:
        return
    share = uncovered_share(kernel, Transitions.of(engine.contiguous_sample))
    if share > WORTH_A_WARNING:
        warnings.warn(
            f"after {100 * share:.0f} % of the transitions the policy takes an action that was never tried nearby: Q "
            "there is a guess, and the intervals of all values that lead there are wide.",
            ActionCoverageWarning,
            stacklevel=4,
        )
