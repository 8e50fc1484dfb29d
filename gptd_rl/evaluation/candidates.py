"""Candidates for V, and the choice between them: the simplest one that predicts left-out episodes as well as the best.

All of them are GPTD with one or another prior mean: a constant, or the critic, its last layer refitted or not; with a
Gaussian process around it, which may bootstrap or look at the nearest states alone, or without. The kernel is Matérn's
of smoothness 3/2: the value function of a trained agent bends sharply where the policy changes its action, and smoother
kernels overshoot there and beyond the visited states.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import as_states
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.estimators.left_out import Learner, SegmentFolds, Values, cross_val_predict
from gptd_rl.exceptions import RelevanceWarning
from gptd_rl.inference.nearest_states import NearestStates
from gptd_rl.kernels import Constant, Kernel, Matern32
from gptd_rl.kernels.metrics import ARD, Isotropic
from gptd_rl.progress import no_partial_fits
from gptd_rl.temporal.means import subtract_values
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array, BoolArray, IntArray

N_SELECTED = 500  # states for model selection by returns, evenly chosen from all episodes
LEAST_SELECTED = 250  # of little data, an eighth, but no fewer
N_AROUND = 300  # the same, for what a prior mean leaves
N_BOOTSTRAPPED = 3000  # states for model selection by single transitions, in whole pieces of episodes
N_INDUCING_POINTS = 400
MAX_SEPARATE_INPUTS = 60  # with more, one relevance for all

N_PASSES = 5  # in which returns that were cut off are completed

# Values may bootstrap if returns of left-out episodes keep more than this share of their variance.
UNEXPLAINED = 0.05


@dataclass(frozen=True, eq=False)
class ValueCandidate:
    """A value function that was learnt.

    Attributes
    ----------
    name : str
    predict : callable
        States of shape (m, n_dims) to values of shape (m,).
    left_out : ndarray of shape (n_states,)
        The value of each state of the data, learnt without its episode; 0 at terminal states.
    scale : callable or None
        States to the standard deviation of the error there, up to a factor; None: not known.
    selected : GPTD or None
        The model whose kernel was selected on a part of the data, conditioned on all of them.
    """

    name: str
    predict: Values
    left_out: Array
    scale: Values | None = None
    selected: GPTD | None = None

    def within(self, low: float, high: float) -> ValueCandidate:
        """With values clipped to the returns that the data allow."""
        values = self.predict
        return replace(
            self, predict=lambda x: np.clip(values(x), low, high), left_out=np.clip(self.left_out, low, high)
        )

    def squared_errors(self, returns: Returns) -> Array:
        """Sums over left-out returns of each episode, of shape (n_episodes,)."""
        errors = (returns.y - returns.difference(self.left_out))[returns.usable]
        of, n_episodes = returns.episode[returns.usable], int(returns.episode[-1]) + 1
        return np.asarray(np.bincount(of, errors**2, minlength=n_episodes), dtype=np.float64)


class Chosen:
    """A candidate as an estimator, for `Calibrated`."""

    def __init__(self, candidate: ValueCandidate, relevances: Array | None = None) -> None:
        self.candidate, self.relevances_ = candidate, relevances
        self.cross_val_values_, self.error_scale_ = candidate.left_out, candidate.scale

    def fit(self, data: Trajectories) -> Self:
        """Nothing is left to do."""
        return self

    def predict(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        return self.candidate.predict(as_states(states, name="states"))


def learnt(name: str, learner: Learner, data: Trajectories) -> ValueCandidate:
    """A candidate without a Gaussian process."""
    return ValueCandidate(name, learner(data), cross_val_predict([learner], data)[:, 0])


def gaussian_process(
    name: str, data: Trajectories, *, is_categorical: bool, bootstrap: bool = False, mean: ValueCandidate | None = None
) -> ValueCandidate:
    """GPTD, with a prior mean or without, whose kernel is selected on a part of the data.

    The process learns what the mean leaves of *left-out* episodes: errors of a mean at episodes that it was fitted to
    would seem smaller than they are anywhere else.
    """
    rest = data if mean is None else subtract_values(data, mean.left_out)
    n_states = N_SELECTED if mean is None else N_AROUND
    v = select(rest, is_categorical, bootstrap, n_states).condition(rest, inducing_points=N_INDUCING_POINTS)
    cut = SegmentFolds.of(rest)
    left_out = v.predict_left_out(cut.pieces, cut.fold)[cut.rows]
    scale: Values = lambda x: np.sqrt(v.posterior_.interval_variance(x))  # noqa: E731
    if mean is None:
        return ValueCandidate(name, v.predict, left_out, scale, v)
    around = mean.predict
    return ValueCandidate(name, lambda x: around(x) + v.predict(x), mean.left_out + left_out, scale, v)


def nearest_neighbours(name: str, plain: ValueCandidate, data: Trajectories) -> ValueCandidate:
    """V from the returns of the nearest states, with the kernel of `plain`.

    Returns that were cut off are completed by V of the state where that happened: by `plain` at first, then by these
    values themselves, each learnt without its episode.
    """
    assert plain.selected is not None
    cut = SegmentFolds.of(data)
    pieces, returns = cut.pieces, Returns.of(cut.pieces)
    fold, inner = cut.fold[pieces.segment_of], pieces.has_transition
    model, ends = plain.selected.model_, np.flatnonzero(~inner & np.repeat(~pieces.terminated, pieces.lengths))
    left_out = np.zeros(len(pieces))
    left_out[ends] = plain.predict(pieces.states[ends])

    def learn(rows: BoolArray) -> NearestStates:
        y = returns.y + returns.z * left_out[returns.end]
        return NearestStates.of(model, pieces.states[inner & rows], y[inner & rows])

    for rows in [ends] * N_PASSES + [np.arange(len(pieces))]:
        values = np.zeros(len(pieces))
        for f in np.unique(fold):
            asked = rows[(fold[rows] == f) & (inner | np.isin(np.arange(len(pieces)), ends))[rows]]
            values[asked] = learn(fold != f)(pieces.states[asked])
        left_out[rows] = values[rows]
    return ValueCandidate(name, learn(np.ones(len(pieces), dtype=bool)), left_out[cut.rows], None, plain.selected)


def choose(candidates: Sequence[ValueCandidate], data: Trajectories) -> ValueCandidate:
    """The first candidate that predicts left-out episodes as well as the best, within the standard error.

    Squared errors decide first. They are those of a few unlike episodes often; candidates that they cannot tell apart,
    within two standard errors, are compared by the logarithms of the errors, to which all episodes contribute alike,
    and within one.

    Parameters
    ----------
    candidates : sequence of ValueCandidate
        The simplest first.
    data : Trajectories
    """
    returns = Returns.of(data)
    squared = np.array([candidate.squared_errors(returns) for candidate in candidates])  # [k, n_episodes]
    squared = squared[:, np.isin(np.arange(squared.shape[1]), returns.episode[returns.usable])]
    kept = _as_good_as_best(squared, 2.0)
    floor = 1e-6 * squared[0].mean() + np.finfo(np.float64).tiny
    return candidates[kept[_as_good_as_best(np.log(squared[kept] + floor), 1.0)[0]]]


def _as_good_as_best(losses: Array, n_errors: float) -> IntArray:
    """Rows of losses [k, n_episodes] whose sum is within some standard errors of the smallest one, paired."""
    difference = losses - losses[losses.sum(axis=1).argmin()]
    tolerated = n_errors * np.sqrt(difference.shape[1]) * difference.std(axis=1)
    return np.flatnonzero(difference.sum(axis=1) <= tolerated).astype(np.int64)


def select(data: Trajectories, is_categorical: bool, bootstrap: bool, n_states: int = N_SELECTED) -> GPTD:
    """Select kernel and noise."""
    metric = Isotropic(1.0, data.n_dims) if is_isotropic(data, is_categorical) else ARD(np.ones(data.n_dims))
    kernel: Kernel = Matern32(metric) + Constant()
    with model_selection():
        if bootstrap:
            return GPTD(kernel, bootstrap=True, n_restarts=0).fit(contiguous_sample(data, N_BOOTSTRAPPED))
        n_states = min(n_states, max(LEAST_SELECTED, len(data) // 8))
        few = data.thin(-(-len(data) // n_states))
        return GPTD(kernel, bootstrap=False, objective="marginal_likelihood", method="exact", n_restarts=0).fit(few)


def is_isotropic(data: Trajectories, is_categorical: bool) -> bool:
    """Whether all inputs have one relevance."""
    return is_categorical or data.n_dims > MAX_SEPARATE_INPUTS


@contextmanager
def model_selection() -> Iterator[None]:
    """Within this, an interrupt ends the evaluation, and warnings about relevances are silent."""
    with no_partial_fits(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RelevanceWarning)  # V is cross-validated anyway
        yield


def contiguous_sample(data: Trajectories, n_states: int) -> Trajectories:
    """Whole episodes at random, or pieces of long ones, until there are about `n_states` states."""
    if len(data) <= n_states:
        return data
    longest = max(2, n_states // 8)
    pieces = data.cut(longest) if len(data) / data.n_segments > longest else data
    order = np.random.default_rng(0).permutation(pieces.n_segments)
    n_kept = int(np.searchsorted(np.cumsum(pieces.lengths[order]), n_states)) + 1
    return pieces[np.sort(order[:n_kept])]
