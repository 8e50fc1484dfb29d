"""Fit V with calibrated intervals, and analyse which inputs matter: everything that is learnt from the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.conformal import Calibrated, Learner
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.evaluation import inputs
from gptd_rl.evaluation.value_models import (
    Clipped,
    Conditioning,
    CriticLike,
    RefittedCritic,
    StackedValue,
    monte_carlo,
)
from gptd_rl.exceptions import RelevanceWarning
from gptd_rl.progress import no_partial_fits
from gptd_rl.report.records import Relevance
from gptd_rl.temporal.means import subtract_mean
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array

N_SELECTED = 2000  # states for model selection
N_INDUCING_POINTS = 400

Tick = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """Value functions that were learnt, and the relevance of inputs.

    Attributes
    ----------
    value : Calibrated
        V, combined from `learners`.
    learners : dict of str to float
        The weight of each learner.
    monte_carlo : Calibrated
        The average return, the same in all states.
    critic : Calibrated or None
        The agent's critic, with intervals from its errors.
    start_values : ndarray of shape (n_segments,)
        Discounted return of each episode, plus V of what was cut off.
    relevance : Relevance
    """

    value: Calibrated
    learners: dict[str, float]
    monte_carlo: Calibrated
    critic: Calibrated | None
    start_values: Array
    relevance: Relevance


def fit(
    data: Trajectories, critic: CriticLike | None, *, is_categorical: bool, analyse_inputs: bool, tick: Tick
) -> Fitted:
    """Learn V from `data`, with the agent's critic as a prior mean if there is one.

    Up to four learners are stacked by their errors at left-out episodes: GPTD; the critic; the critic with a refitted
    last layer; and GPTD with that as prior mean. Their values are clipped to the returns that the data allow.
    """
    part = contiguous_sample(data, N_SELECTED)
    v = select(part, is_categorical)
    tick(1, 5)
    learners = {"GPTD": _conditioning(v, data)} | _critic_learners(critic, part, data, is_categorical)
    tick(2, 5)
    stacked = StackedValue({name: Clipped(learner) for name, learner in learners.items()}, v.relevances_)
    value = Calibrated(stacked).fit(data)
    tick(3, 5)
    own = None if critic is None else Calibrated(StackedValue({"critic": lambda data: critic})).fit(data)
    average = Calibrated(StackedValue({"Monte Carlo": monte_carlo})).fit(data)
    returns, starts = Returns.of(data), data.starts
    start_values = returns.y[starts] + returns.z[starts] * value.cross_val_values_[returns.end[starts]]
    tick(4, 5)
    found = inputs.analyse(v, part, value.predict, leave_out=analyse_inputs and not is_categorical)
    tick(5, 5)
    weights = dict(zip(learners, value.estimator_.weights_.tolist(), strict=True))
    return Fitted(value, weights, average, own, start_values, found)


def _conditioning(v: GPTD, data: Trajectories, mean: Learner | None = None) -> Conditioning:
    """GPTD with the θ of `v` and inducing points from all of the data."""
    return Conditioning(v.condition(data, inducing_points=N_INDUCING_POINTS), mean)


def _critic_learners(
    critic: CriticLike | None, part: Trajectories, data: Trajectories, is_categorical: bool
) -> dict[str, Learner]:
    if critic is None:
        return {}
    refitted = RefittedCritic(critic)
    v = select(subtract_mean(part, refitted(part)), is_categorical)
    return {
        "critic": lambda data: critic,
        "critic, refitted": refitted,
        "critic, refitted, and GPTD": _conditioning(v, data, refitted),
    }


def contiguous_sample(data: Trajectories, n_states: int) -> Trajectories:
    """Whole episodes at random, or pieces of long ones, until there are about `n_states` states."""
    if len(data) <= n_states:
        return data
    longest = max(2, n_states // 8)
    pieces = data.cut(longest) if len(data) / data.n_segments > longest else data
    order = np.random.default_rng(0).permutation(pieces.n_segments)
    n_kept = int(np.searchsorted(np.cumsum(pieces.lengths[order]), n_states)) + 1
    return pieces[np.sort(order[:n_kept])]


def select(part: Trajectories, is_categorical: bool, **options: Any) -> GPTD:
    """Select kernel, noise and thinning."""
    kernel = options.pop("kernel", "isotropic" if is_categorical or part.n_dims > 60 else "ard")
    with model_selection():
        return GPTD(kernel, n_restarts=0, **options).fit(part)


@contextmanager
def model_selection() -> Iterator[None]:
    """Within this, an interrupt ends the evaluation, and warnings about relevances are silent."""
    with no_partial_fits():
        warnings.simplefilter("ignore", RelevanceWarning)  # V is cross-validated anyway
        yield
