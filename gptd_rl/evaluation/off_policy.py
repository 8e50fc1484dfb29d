"""Off-policy evaluation: the value of a target policy, from the data of another policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import ArrayLike

from gptd_rl.checks import as_states
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.estimators.importances import importances
from gptd_rl.evaluation.candidates import contiguous_sample, model_selection
from gptd_rl.report.records import OffPolicy, Relevance
from gptd_rl.rollouts.policies import StatePolicy
from gptd_rl.temporal.returns import value_bounds
from gptd_rl.types import Array

N_FITTED = 3000  # states, at most
N_COMPARED = 2000  # states, at most
DIFFERENT = 0.1  # difference of continuous actions that counts, as a share of the range
NEGLIGIBLE = 0.02  # share of different actions without a warning


class TargetValue:
    """V(x) = Q(x, π(x)) with the intervals of Q, clipped to the smallest and the largest reward, for ever."""

    def __init__(self, q: GPTDQ, target: StatePolicy, data: Trajectories) -> None:
        self.q, self.target = q, target
        self.low, self.high = value_bounds(data.rewards, float(data.discounts.max(initial=0.0)))

    def predict(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        x = as_states(states, name="states")
        return np.clip(self.q.predict(x, self.target(x)), self.low, self.high)

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval of Q: wide where the data do not tell what the target does."""
        x = as_states(states, name="states")
        lower, upper = self.q.confidence_interval(x, self.target(x), level)
        # The model is wrong where its interval lies outside the bounds: then the bounds are the interval.
        impossible = (lower > self.high) | (upper < self.low)
        lower = np.where(impossible, self.low, np.clip(lower, self.low, self.high))
        return lower, np.where(impossible, self.high, np.clip(upper, self.low, self.high))


def fit_target(data: Trajectories, target: StatePolicy) -> tuple[TargetValue, Relevance]:
    """Learn the value of the target policy from the data of another policy."""
    part = contiguous_sample(data, N_FITTED)
    with model_selection():
        q = GPTDQ(n_restarts=0).fit(part, policy=target)
    scaled = q.relevances_ * part.states.var(axis=0)
    value = TargetValue(q, target, data)
    effects = importances(value.predict, part.states, part.segment_of)
    return value, Relevance("ard", scaled, effects, part.n_transitions)


def compare_policies(data: Trajectories, target: StatePolicy, space: Space[Any], name: str) -> OffPolicy:
    """How far the actions of the target policy are from those in the data."""
    inner = np.ones(len(data), dtype=bool)
    inner[data.last] = False
    rows = np.flatnonzero(inner)
    rows = rows[np.linspace(0, len(rows) - 1, min(N_COMPARED, len(rows))).round().astype(int)]
    assert data.actions is not None
    taken, chosen = data.actions[rows], target(data.states[rows])
    if isinstance(space, spaces.Box):
        width = np.where(np.isfinite(space.high - space.low), space.high - space.low, 2.0 * np.abs(taken).max())
        difference = np.abs(chosen.reshape(taken.shape) - taken) / np.maximum(width, 1e-12)
        difference = difference.reshape(len(rows), -1).max(axis=1)
        differ = difference > DIFFERENT
    else:
        differ = (chosen.reshape(taken.shape) != taken).reshape(len(rows), -1).any(axis=1)
        difference = differ.astype(np.float64)
    share = float(differ.mean())
    text = ""
    if share > NEGLIGIBLE:
        text = (
            f"{name} takes another action in {100 * share:.0f} % of the states: the data hold little about the "
            "consequences. The interval is wide where its actions were never tried; the check by fresh rollouts says "
            "how far off the estimate is."
        )
    return OffPolicy(name, len(rows), share, float(difference.mean()), text)
