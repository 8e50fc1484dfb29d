"""Score predictions against the ground truth of fresh rollouts, at states that no model has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import ndtri

from gptd_rl.evaluation.ground_truth import GroundTruth
from gptd_rl.report.records import LEVELS, Check, Disagreement, Score, ValueFunction
from gptd_rl.types import Array

SHARES = np.round(np.arange(0.05, 1.0, 0.05), 2)
MAX_DISAGREEMENTS = 8


def check(
    truth: GroundTruth, value_functions: Mapping[str, ValueFunction], critic: Callable[[Array], Array] | None
) -> Check:
    """Score all value functions, the model first."""
    states, values, errors = truth.states, truth.values, truth.errors
    model = next(iter(value_functions.values()))
    lower, upper = model.confidence_interval(states)
    reliability = {
        name: np.array([_coverage(v, states, values, errors, share) for share in SHARES])
        for name, v in value_functions.items()
    }
    return Check(
        kind="rollouts" if truth.n_rollouts else "returns",
        states=states,
        observed=values,
        errors=errors,
        episodes=truth.episodes,
        predicted=model.predict(states),
        lower=lower,
        upper=upper,
        critic=None if critic is None else critic(states),
        shares=SHARES,
        reliability=reliability,
        scores=tuple(score(name, v, states, values, errors) for name, v in value_functions.items()),
        n_rollouts=truth.n_rollouts,
    )


def score(name: str, v: ValueFunction, states: Array, values: Array, errors: Array) -> Score:
    """Score one value function against values that are known up to standard errors.

    Parameters
    ----------
    name : str
    v : ValueFunction
    states : ndarray of shape (m, n_dims)
    values, errors : ndarray of shape (m,)
    """
    predicted = v.predict(states)
    lower, upper = v.confidence_interval(states)
    half = 0.5 * (upper - lower)
    # The normal distribution with this 95 % interval; the lower limit is for exact predictions.
    std = np.maximum(half / ndtri(0.975), 1e-9 * max(float(np.abs(values).max(initial=0.0)), 1.0))
    # −log N(values; predicted, std²)
    nlpd = 0.5 * np.log(2.0 * np.pi) + np.log(std) + 0.5 * ((values - predicted) / std) ** 2
    return Score(
        name=name,
        rmse=float(np.sqrt(np.mean((predicted - values) ** 2))),
        bias=float(np.mean(predicted - values)),
        nlpd=float(nlpd.mean()),
        coverage=tuple(_coverage(v, states, values, errors, level) for level in LEVELS),
        half_width=float(half.mean()),
    )


def disagreements(check: Check) -> tuple[Disagreement, ...]:
    """States at which the critic lies outside the model's interval, the farthest first, one for each episode."""
    if check.critic is None:
        return ()
    outside = np.maximum(check.lower - check.critic, check.critic - check.upper)
    found: list[Disagreement] = []
    seen: set[int] = set()
    for i in np.argsort(-outside):
        if outside[i] <= 0 or len(found) == MAX_DISAGREEMENTS:
            break
        if int(check.episodes[i]) in seen:  # neighbouring states are alike
            continue
        seen.add(int(check.episodes[i]))
        numbers = (check.critic[i], check.predicted[i], check.lower[i], check.upper[i], check.observed[i])
        found.append(Disagreement(tuple(check.states[i].tolist()), *(float(n) for n in numbers)))
    return tuple(found)


def _coverage(v: ValueFunction, states: Array, values: Array, errors: Array, level: float) -> float:
    """Share of values inside the intervals, which are widened by the standard errors of the values."""
    lower, upper = v.confidence_interval(states, level)
    if np.isnan(lower).any():
        return np.nan
    half = np.hypot(0.5 * (upper - lower), ndtri(0.5 + 0.5 * level) * errors)
    slack = 1e-9 * np.maximum(np.abs(values), 1.0)  # for rounding
    return float(np.mean(np.abs(values - 0.5 * (lower + upper)) <= half + slack))
