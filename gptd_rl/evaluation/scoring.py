"""Score predictions against the ground truth of fresh rollouts, at states that no model has seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtrit

from gptd_rl.estimators.conformal import Calibrated
from gptd_rl.evaluation.ground_truth import GroundTruth
from gptd_rl.inference.error_sizes import ErrorSizes
from gptd_rl.report.records import LEVELS, Check, Disagreement, Score, ValueFunction
from gptd_rl.types import Array, IntArray

SHARES = np.round(np.arange(0.05, 1.0, 0.05), 2)
MAX_DISAGREEMENTS = 8


def check(
    truth: GroundTruth, value_functions: Mapping[str, ValueFunction], critic: Callable[[Array], Array] | None
) -> Check:
    """Score all value functions, the model first."""
    states, values, errors = truth.states, truth.values, truth.errors
    model = next(iter(value_functions.values()))
    lower, upper = model.confidence_interval(states)
    coverage = {name: Coverage(v, truth) for name, v in value_functions.items()}
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
        reliability={name: np.array([of(share) for share in SHARES]) for name, of in coverage.items()},
        scores=tuple(score(name, v, truth, coverage[name]) for name, v in value_functions.items()),
        n_rollouts=truth.n_rollouts,
    )


def score(name: str, v: ValueFunction, truth: GroundTruth, coverage: Callable[[float], float]) -> Score:
    """Score one value function against values that are known up to standard errors."""
    states, values = truth.states, truth.values
    predicted = v.predict(states)
    lower, upper = v.confidence_interval(states)
    half = 0.5 * (upper - lower)
    # The normal distribution with this 95 % interval; the lower limit is for exact predictions.
    std = np.maximum(half / ndtri(0.975), 1e-9 * max(float(np.abs(values).max(initial=0.0)), 1.0))
    # −log N(values; predicted, std²)
    nlpd = 0.5 * np.log(2.0 * np.pi) + np.log(std) + 0.5 * ((values - predicted) / std) ** 2
    rmse, interval = root_mean_squared_error(predicted - values, truth.errors, truth.episodes)
    return Score(
        name=name,
        rmse=rmse,
        rmse_interval=interval,
        bias=float(np.mean(predicted - values)),
        nlpd=float(nlpd.mean()),
        coverage=tuple(coverage(level) for level in LEVELS),
        half_width=float(half.mean()),
    )


def root_mean_squared_error(differences: Array, errors: Array, episodes: IntArray) -> tuple[float, tuple[float, float]]:
    """RMSE of predictions, and its 95 % interval.

    Parameters
    ----------
    differences : ndarray of shape (m,)
        Predictions less estimates of the truth.
    errors : ndarray of shape (m,)
        Standard errors of these estimates, which make differences larger than the errors of the predictions are.
    episodes : ndarray of shape (m,)
        The sampling units.
    """
    # E[d²] = MSE + e²
    squared = differences**2 - errors**2
    mean = float(squared.mean())
    names, of = np.unique(episodes, return_inverse=True)
    n = len(names)
    sums = np.bincount(of, squared - mean)
    half = float(stdtrit(n - 1, 0.975) * np.sqrt(n / (n - 1) * (sums**2).sum()) / len(squared)) if n > 1 else np.inf
    low, middle, high = (float(np.sqrt(max(x, 0.0))) for x in (mean - half, mean, mean + half))
    return middle, (low, high)


class CrossFitted:
    """A value function recalibrated on half of the episodes of a check, and judged on the other half, both ways.

    Its intervals are those of the states of the check: no state has a part in its own.
    """

    def __init__(self, v: Calibrated, truth: GroundTruth) -> None:
        first, second = truth.halves()
        self.predict = v.predict
        self.is_second = truth.in_second_half
        self.by_first, self.by_second = recalibrated(v, first), recalibrated(v, second)

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Intervals at all states of the check, two arrays of shape (m,)."""
        by_first, by_second = (v.confidence_interval(states, level) for v in (self.by_first, self.by_second))
        lower, upper = (np.where(self.is_second, *ends) for ends in zip(by_first, by_second, strict=True))
        return lower, upper


def recalibrated(v: Calibrated, truth: GroundTruth) -> Calibrated:
    """With intervals from the errors at the states of a check."""
    return v.recalibrate(truth.states, truth.values, truth.errors, truth.episodes)


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


class Coverage:
    """Share of true values inside the intervals of a value function.

    Values that are known exactly are counted. The noise of others is taken out: by the distribution of the errors in
    units of the interval (`ErrorSizes`), since noise would make a share too small, and intervals widened by it would
    make it too large.
    """

    def __init__(self, v: ValueFunction, truth: GroundTruth) -> None:
        self.v, self.truth = v, truth
        self.errors = truth.values - v.predict(truth.states)
        self.slack = 1e-9 * np.maximum(np.abs(truth.values), 1.0)  # for rounding
        self.half = self._half(0.95)  # [m]
        self.sizes = None
        if truth.errors.any() and not np.isnan(self.half).any():
            self.sizes = ErrorSizes.of(self.errors, self.half, truth.errors, truth.episodes)

    def __call__(self, level: float) -> float:
        """The share at a level; NaN without intervals."""
        half = self._half(level)
        if np.isnan(half).any():
            return np.nan
        if self.sizes is None:
            return float(np.mean(np.abs(self.errors) <= half))
        widths, count = np.unique(np.round(half / self.half, 9), return_counts=True)
        return float(np.average([self.sizes.probability(w) for w in widths], weights=count))

    def _half(self, level: float) -> Array:
        lower, upper = self.v.confidence_interval(self.truth.states, level)
        return 0.5 * (upper - lower) + self.slack
