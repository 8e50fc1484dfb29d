"""Fit V with calibrated intervals, and analyse which inputs matter: everything that is learnt from the data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.conformal import Calibrated, Learner
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.estimators.importances import Importances, importances
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
N_COMPARED = 500  # states for the comparison of kernels
MAX_COMPARED_INPUTS = 12
NEGLIGIBLE = 1e-3  # scaled relevance below which an input may be pruned
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
    effects = importances(value.predict, part.states, part.segment_of)
    found = relevance(v, part, effects, analyse_inputs and not is_categorical)
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


def relevance(v: GPTD, part: Trajectories, effects: Importances, analyse_inputs: bool) -> Relevance:
    """Importances and scaled relevances; if asked, the evidence of smaller models, and of factor analysis."""
    spread = part.states.std(axis=0)
    scaled, n = v.relevances_ * spread**2, part.n_transitions
    kept, removed, pruned = np.arange(part.n_dims), np.zeros(0, dtype=int), np.nan
    if not analyse_inputs or part.n_dims == 1 or v.kernel == "isotropic":
        kernel: Literal["isotropic", "ard"] = "isotropic" if v.kernel == "isotropic" else "ard"
        return Relevance(kernel, scaled, None, None, tuple(kept.tolist()), (), np.nan, np.nan, n, effects)
    if (scaled < NEGLIGIBLE).any():
        with model_selection():
            pruning = v.prune(NEGLIGIBLE).pruning_
        kept, removed = pruning.kept, pruning.removed
        pruned = pruning.after.log_likelihood if len(removed) else np.nan
    directions, of_directions = _directions(v, part, spread)
    return Relevance(
        "ard" if directions is None else "factor",
        scaled,
        directions,
        of_directions,
        tuple(kept.tolist()),
        tuple(removed.tolist()),
        v.log_marginal_likelihood_,
        pruned,
        n,
        effects,
    )


def _directions(v: GPTD, part: Trajectories, spread: Array) -> tuple[Array | None, Array | None]:
    """Relevant directions in units of the inputs' standard deviations, if factor analysis has the best evidence."""
    if part.n_dims > MAX_COMPARED_INPUTS:
        return None, None
    few = contiguous_sample(part, N_COMPARED)
    every = min(v.thinning_, max(1, int(few.lengths.max() - 1) // 2))  # pieces may be shorter than those of `part`
    compared = select(few, False, kernel="auto", max_rank=min(2, part.n_dims - 1), objective="thinned", thinning=every)
    best = compared.comparison_.best
    if best.variant != "factor":
        return None, None
    values, vectors = np.linalg.eigh(compared.kernel_.metric.matrix * np.outer(spread, spread))
    rows = vectors.T[::-1][: best.rank]
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
    return rows * np.sign(largest), values[::-1][: best.rank]
