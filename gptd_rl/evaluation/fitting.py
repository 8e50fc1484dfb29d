"""From transitions to V with intervals, and to what matters: everything that is learnt before anything is checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.evaluation.calibration import Calibrated, calibrate, left_out, stack
from gptd_rl.evaluation.value_models import (
    Bounded,
    Conditioned,
    Critic,
    Learner,
    RefittedCritic,
    Returns,
    Values,
    along,
    monte_carlo,
    relative_to,
)
from gptd_rl.exceptions import InterruptedFitWarning, RelevanceWarning
from gptd_rl.report.records import Relevance
from gptd_rl.types import Array

N_SELECTED = 2000  # states that choose the kernel
N_COMPARED = 500  # states that choose between kinds of kernels
MAX_COMPARED_INPUTS = 12
NEGLIGIBLE = 1e-3  # strength of an input that may go
SUBSET_SIZE = 400

Tick = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was learnt.

    Attributes
    ----------
    value : Calibrated
        V, put together from those of `learners`.
    learners : dict of str to float
        What V was put together from, and the share of each.
    monte_carlo : Calibrated
        One number for all states.
    critic : Calibrated or None
        The agent's critic, with intervals as wide as its errors.
    start_values : ndarray of shape (n_segments,)
        Discounted return of each episode; V takes the place of what was cut off.
    relevance : Relevance
    """

    value: Calibrated
    learners: dict[str, float]
    monte_carlo: Calibrated
    critic: Calibrated | None
    start_values: Array
    relevance: Relevance


def fit(data: Trajectories, critic: Critic | None, *, is_categorical: bool, thorough: bool, tick: Tick) -> Fitted:
    """Learn V from `data`, with the agent's critic as a first guess if there is one.

    Several are combined, each counting as much as it helps to predict left-out episodes: GPTD alone; the critic; the
    critic with its last layer fitted again; and that with GPTD for what it leaves. None goes beyond the returns seen.
    """
    part = excerpt(data, N_SELECTED)
    v = select(part, is_categorical)
    tick(1, 5)
    learners: dict[str, Learner] = {"GPTD": Conditioned.on(v, data, SUBSET_SIZE)}
    if critic is not None:
        refitted = RefittedCritic(critic)
        mean = refitted(part)
        w = select(relative_to(part, along(mean, part)), is_categorical)
        learners["critic"] = lambda data: critic
        learners["critic, refitted"] = refitted
        learners["critic, refitted, and GPTD"] = Conditioned.on(w, data, SUBSET_SIZE, refitted)
    tick(2, 5)
    learners = {name: Bounded(learner) for name, learner in learners.items()}
    guesses = left_out(list(learners.values()), data)
    returns = Returns.of(data)
    shares = stack(guesses, returns)
    tick(3, 5)
    value = calibrate(
        _mixed([learner(data) for learner in learners.values()], shares), guesses @ shares, data, _weights(v)
    )
    constant = left_out([monte_carlo], data)[:, 0]
    own = None if critic is None else calibrate(critic, along(critic, data), data, None)
    starts = data.starts
    start_values = returns.y[starts] + returns.z[starts] * (guesses @ shares)[returns.end[starts]]
    tick(4, 5)
    found = relevance(v, part, thorough and not is_categorical)
    tick(5, 5)
    named = dict(zip(learners, shares.tolist(), strict=True))
    return Fitted(value, named, calibrate(monte_carlo(data), constant, data, None), own, start_values, found)


def _mixed(parts: list[Values], shares: Array) -> Values:
    used = [(part, share) for part, share in zip(parts, shares, strict=True) if share > 0]
    return lambda states: np.sum([share * part(states) for part, share in used], axis=0)


def _weights(v: GPTD) -> Array:
    """How much inputs count for what is near: by relevance, none not at all."""
    return np.sqrt(v.relevances_ + 1e-9 * v.relevances_.max())


def excerpt(data: Trajectories, n_states: int) -> Trajectories:
    """Whole episodes at random, or pieces of long ones, until there are about `n_states` states."""
    if len(data) <= n_states:
        return data
    longest = max(2, n_states // 8)
    pieces = data.cut(longest) if len(data) / data.n_segments > longest else data
    order = np.random.default_rng(0).permutation(pieces.n_segments)
    n_kept = int(np.searchsorted(np.cumsum(pieces.lengths[order]), n_states)) + 1
    return pieces[np.sort(order[:n_kept])]


def select(part: Trajectories, is_categorical: bool, **options: Any) -> GPTD:
    """Choose kernel, noise and thinning."""
    kernel = options.pop("kernel", "isotropic" if is_categorical or part.n_dims > 60 else "ard")
    with uninterrupted():
        return GPTD(kernel, n_restarts=0, **options).fit(part)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A fit that Ctrl-C cut short, which would keep the best model so far, ends it all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RelevanceWarning)  # V is judged by left-out episodes anyway
        warnings.simplefilter("error", InterruptedFitWarning)
        try:
            yield
        except InterruptedFitWarning:
            raise KeyboardInterrupt from None


def relevance(v: GPTD, part: Trajectories, thorough: bool) -> Relevance:
    """Which inputs matter to `v`, what leaving out the others costs, and whether combinations of inputs matter more."""
    spread = part.states.std(axis=0)
    names = tuple(range(part.n_dims))
    if not thorough or part.n_dims == 1 or v.kernel == "isotropic":
        kernel: Literal["isotropic", "ard"] = "isotropic" if v.kernel == "isotropic" else "ard"
        strengths = v.relevances_ * spread**2
        return Relevance(kernel, strengths, None, None, names, (), np.nan, np.nan, part.n_transitions)
    strengths = v.relevances_ * spread**2
    kept, removed, pruned = np.arange(part.n_dims), np.zeros(0, dtype=int), np.nan
    if (strengths < NEGLIGIBLE).any():
        with uninterrupted():
            pruning = v.prune(NEGLIGIBLE).pruning_
        kept, removed = pruning.kept, pruning.removed
        pruned = pruning.after.log_likelihood if len(removed) else np.nan
    directions, along_them = _directions(v, part, spread)
    return Relevance(
        "ard" if directions is None else "factor",
        strengths,
        directions,
        along_them,
        tuple(kept.tolist()),
        tuple(removed.tolist()),
        v.log_marginal_likelihood_,
        pruned,
        part.n_transitions,
    )


def _directions(v: GPTD, part: Trajectories, spread: Array) -> tuple[Array | None, Array | None]:
    """Directions that matter, in units of the inputs' spreads, if factor analysis has the best evidence."""
    if part.n_dims > MAX_COMPARED_INPUTS:
        return None, None
    few = excerpt(part, N_COMPARED)
    every = min(v.thinning_, max(1, int(few.lengths.max() - 1) // 2))  # pieces may be shorter than those of `part`
    compared = select(few, False, kernel="auto", max_rank=min(2, part.n_dims - 1), objective="thinned", thinning=every)
    best = compared.comparison_.best
    if best.variant != "factor":
        return None, None
    values, vectors = np.linalg.eigh(compared.kernel_.metric.matrix * np.outer(spread, spread))
    rows = vectors.T[::-1][: best.rank]
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
    return rows * np.sign(largest), values[::-1][: best.rank]
