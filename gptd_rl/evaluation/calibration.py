"""Intervals as wide as errors at left-out episodes say they must be.

A Gaussian process is honest as long as V is as smooth as its kernel. The value function of a trained agent often is
not: it jumps where the policy changes its mind. So each episode is predicted by models that have not seen it, and the
errors, in units of what is usual nearby, give the widths: conformal prediction with a local scale (Lei et al.,
*Distribution-free predictive inference for regression*, 2018), but by cross-validation, with whole episodes left out,
so that its guarantee holds only roughly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls
from scipy.spatial import KDTree

from gptd_rl.checks import as_states
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.evaluation.value_models import N_FOLDS, Learner, Returns, Rows, Values, along, folds
from gptd_rl.types import Array

N_NEIGHBOURS = 20  # whose errors say what is usual in a place
N_ASKED = 200  # neighbours to look through for those of other episodes
MAX_JUDGED = 4000  # states whose errors are kept
FLOOR = 1e-2  # least squared scale, as a share of the mean squared error


def left_out(learners: Sequence[Learner], data: Trajectories) -> Array:
    """Values of each state by learners that have not seen its episode, of shape (n, n_learners).

    A single run is left out piece by piece, for want of anything better.
    """
    if data.n_segments == 1:
        pieces = data.cut(max(2, -(-data.n_transitions // (2 * N_FOLDS))))
        if pieces.n_segments == 1:
            raise ValueError(
                f"{data.n_transitions} transitions are too few to leave any out: collect more transitions."
            )
        inner = np.ones(len(pieces), dtype=bool)
        inner[pieces.last[:-1]] = False  # where the next piece begins
        return left_out(learners, pieces)[inner]
    fold = folds(np.arange(data.n_segments, dtype=np.int64))
    values = np.zeros((len(data), len(learners)))
    for f in np.unique(fold):
        train, test = data[np.flatnonzero(fold != f)], data[np.flatnonzero(fold == f)]
        rows = np.isin(data.segment_of, np.flatnonzero(fold == f))
        for j, learner in enumerate(learners):
            values[rows, j] = along(learner(train), test)
    return values


def stack(values: Array, returns: Returns) -> Array:
    """Shares of the learners that together predict left-out returns best: none negative, their sum 1.

    Stacked regressions (Breiman, 1996).

    Parameters
    ----------
    values : ndarray of shape (n, k)
        From `left_out`.
    returns : Returns

    Returns
    -------
    weights : ndarray of shape (k,)
    """
    A, y = returns.difference(values)[returns.usable], returns.y[returns.usable]
    scale = max(np.abs(A).max(), np.abs(y).max()) or 1.0
    # The last row, a heavy one, makes the sum 1.
    heavy = 1e3 * np.sqrt(len(A))
    weights, _ = nnls(np.vstack([A / scale, np.full(A.shape[1], heavy)]), np.append(y / scale, heavy))
    return weights / weights.sum()


class Scale:
    """What errors are usual near a state: root mean square of those at its neighbours, of other episodes if asked.

    Parameters
    ----------
    states : ndarray of shape (n, n_dims)
    errors : ndarray of shape (n,)
    episodes : ndarray of shape (n,)
    weights : ndarray of shape (n_dims,)
        How much each input counts in a distance.
    """

    def __init__(self, states: Array, errors: Array, episodes: Rows, weights: Array) -> None:
        self.weights, self.squared, self.episodes = weights, errors**2, episodes
        self.tree = KDTree(states * weights)
        self.floor = FLOOR * float(self.squared.mean())

    def __call__(self, states: Array, episodes: Rows | None = None) -> Array:
        """Scale at states of shape (m, n_dims), of shape (m,); without neighbours of their own `episodes` if given."""
        asked = min(N_NEIGHBOURS if episodes is None else N_ASKED, len(self.squared))
        _, near = self.tree.query(states * self.weights, k=np.arange(1, asked + 1))
        takes = np.ones(near.shape, dtype=bool) if episodes is None else self.episodes[near] != episodes[:, None]
        takes &= np.cumsum(takes, axis=1) <= N_NEIGHBOURS
        count = takes.sum(axis=1)
        mean = np.where(takes, self.squared[near], 0.0).sum(axis=1) / np.maximum(count, 1)
        return np.sqrt(np.where(count > 0, mean, self.squared.mean()) + self.floor)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Values with intervals ``value ± q(level)·scale``.

    Attributes
    ----------
    values : callable
    scale : callable
        From states to what errors are usual there, each of shape (m,).
    ratios : ndarray of shape (k,)
        Sizes of left-out errors by their scale, sorted.
    n_episodes : int
        Episodes that they come from.
    narrower : Calibrated or None
        Intervals take its quantiles where these are smaller.
    """

    values: Values
    scale: Values
    ratios: Array
    n_episodes: int
    narrower: Calibrated | None = None

    def predict(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        return self.values(as_states(states, name="states"))

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval that holds the value with probability `level`: lower and upper, each of shape (m,)."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1; got {level}.")
        x = as_states(states, name="states")
        middle, half = self.values(x), self.quantile(level) * self.scale(x)
        return middle - half, middle + half

    def quantile(self, level: float) -> float:
        """Size of an error, in units of the scale, that a share `level` of them stays below.

        With n episodes the share is level·(n+1)/n: of n + 1 episodes alike, any may be the one asked about.
        """
        share = min(level * (1.0 + 1.0 / self.n_episodes), 1.0)
        quantile = float(np.quantile(self.ratios, share, method="higher"))
        return quantile if self.narrower is None else min(quantile, self.narrower.quantile(level))

    def knowing(self, states: Array, truth: Array, errors: Array) -> Calibrated:
        """The same with intervals for V instead of returns, from values that are known up to standard errors.

        Left-out errors are those against single returns, luck included. Where the values of some other states are
        known, they say how much narrower intervals may be.

        Parameters
        ----------
        states : ndarray of shape (m, n_dims)
        truth, errors : ndarray of shape (m,)
        """
        squared = np.maximum((self.values(states) - truth) ** 2 - errors**2, 0.0)
        ratios = np.sqrt(squared) / np.maximum(self.scale(states), np.finfo(np.float64).tiny)
        return replace(self, narrower=Calibrated(self.values, self.scale, np.sort(ratios), len(states)))


def calibrate(values: Values, left_out_values: Array, data: Trajectories, weights: Array | None) -> Calibrated:
    """Give `values` the intervals that their errors at left-out episodes ask for.

    Parameters
    ----------
    values : callable
        Learnt from all of `data`.
    left_out_values : ndarray of shape (n,)
        The same at each state, learnt without its episode.
    data : Trajectories
    weights : ndarray of shape (n_dims,) or None
        How much each input counts for what is near; None: the scale is the same everywhere.
    """
    returns = Returns.of(data)
    errors = returns.y - returns.difference(left_out_values)
    rows = returns.usable
    if len(rows) > MAX_JUDGED:
        rows = np.random.default_rng(0).choice(rows, MAX_JUDGED, replace=False)
    episodes = data.segment_of[rows]
    n_episodes = len(np.unique(episodes))
    if weights is None:
        ratios, scale = np.abs(errors[rows]), _one
    else:
        scale = Scale(data.states[rows], errors[rows], episodes, weights)
        ratios = np.abs(errors[rows]) / np.maximum(scale(data.states[rows], episodes), np.finfo(np.float64).tiny)
    return Calibrated(values, scale, np.sort(ratios), n_episodes)


def _one(states: Array) -> Array:
    return np.ones(len(states))
