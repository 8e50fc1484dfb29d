"""Calibrated intervals around any estimator of V, from its errors at left-out episodes.

The intervals of a Gaussian process hold as long as V is as smooth as its kernel. The value function of a trained agent
often is not: it jumps where the policy changes its action. So each episode is predicted by copies of the estimator that
are conditioned on the other episodes, and the errors, divided by the usual error nearby, give the widths: conformal
prediction with a local scale (Lei et al., *Distribution-free predictive inference for regression*, 2018). Here it is
cross-validated, with whole episodes left out, so its guarantee holds only approximately.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import as_floats, as_generator, as_states, as_vector, check_finite, is_count, is_within, one_line
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.checks import check_n_jobs
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.estimators.left_out import N_FOLDS, Learner, SegmentFolds, Values, cross_val_predict
from gptd_rl.estimators.params import Parameters
from gptd_rl.exceptions import NotFittedError
from gptd_rl.inference.error_sizes import ErrorSizes
from gptd_rl.sharding.sources import Sources
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array, DataLike, IntArray

N_NEIGHBOURS = 20  # errors in a local mean
N_CANDIDATES = 200  # neighbours among which those of other episodes are looked for
MAX_ERRORS = 4000  # errors kept
FLOOR = 1e-2  # smallest squared scale, as a share of the mean squared error
LEAST = 1e-9  # smallest scale of errors of known values, as a share of the largest value
TINY = np.finfo(np.float64).tiny


class ValueEstimator(Protocol):
    """What `Calibrated` needs of an estimator.

    `fit(data)` is followed by `condition(data)`, which returns a copy for other data, as `GPTD.condition` does. An
    estimator that cross-validates itself in `fit` may set `cross_val_values_` of shape (n_states,) instead. Distances
    between states weigh inputs by `relevances_`; without it the scale is the same everywhere. A function of states
    `error_scale_` may say where errors are large.
    """

    def fit(self, data: Trajectories) -> Any:
        """Learn V from `data`."""
        ...

    def predict(self, states: Array) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        ...


class Calibrated(Parameters):
    """An estimator of V whose intervals are calibrated on left-out episodes: ``value ± q(level)·scale(x)``.

    scale(x) is the root mean square of the left-out errors near x, and q(level) the conformal quantile of left-out
    errors in units of their scale. Errors are those against the returns of single episodes: where returns are random,
    intervals hold the return, and V the more so. `recalibrate` turns them into intervals of V, if estimates of V are
    known at some states.

    Parameters
    ----------
    estimator : GPTD
        Any estimator of V with `fit`, `predict` and `condition`. It is copied, not changed.
    n_folds : int
        Folds of the cross-validation, of whole episodes. A single run is cut into pieces.
    random_state : int
        Seed of the folds.
    n_jobs : int, optional
        Folds that are computed at the same time, through joblib; −1 for all cores.

    Attributes
    ----------
    estimator_ : GPTD
        The estimator, fitted to all data.
    cross_val_values_ : ndarray of shape (n_states,)
        The value of each state, predicted without its episode; 0 at terminal states.
    scale_ : callable
        From states of shape (m, n_dims) to the usual error there, of shape (m,).
    errors_ : ErrorQuantiles
        Left-out errors in units of their scale.
    sizes_ : ErrorSizes or None
        Behind `recalibrate`: sizes of the errors against estimates of V, in units of `scale_`.

    Examples
    --------
    >>> import numpy as np
    >>> from gptd_rl import GPTD, Trajectories
    >>> rng = np.random.default_rng(0)  # corridors whose end is terminal; a step costs 1, give or take 0.1
    >>> episodes = []
    >>> for length in rng.integers(2, 8, size=30):
    ...     x, costs = np.arange(8.0)[-length - 1 :, None], 1.0 + rng.normal(0.0, 0.1, length)
    ...     episodes.append(dict(observations=x, rewards=-costs, terminated=True))
    >>> v = Calibrated(GPTD()).fit(Trajectories.from_episodes(episodes, gamma=1.0))
    >>> v.predict([[4.0]]).round(1)
    array([-3.])
    >>> lower, upper = v.confidence_interval([[4.0]], level=0.95)
    >>> bool(lower < -3.0 < upper)
    True
    """

    estimator_: Any
    cross_val_values_: Array
    scale_: Values
    errors_: ErrorQuantiles
    sizes_: ErrorSizes | None

    def __init__(
        self, estimator: ValueEstimator, *, n_folds: int = N_FOLDS, random_state: int = 0, n_jobs: int | None = None
    ) -> None:
        self.estimator = estimator
        self.n_folds = n_folds
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, data: DataLike, *, gamma: float | None = None) -> Self:
        """Fit the estimator, and calibrate it on left-out episodes.

        Parameters
        ----------
        data : Trajectories, path, Minari dataset, or an iterable of these
            As for `GPTD.fit`; held in memory.
        gamma : float, optional
            Discount, for Minari datasets that do not keep it.
        """
        self._check_parameters()
        whole = _load(data, gamma)
        estimator: Any = copy.copy(self.estimator)
        estimator.fit(whole)
        values = getattr(estimator, "cross_val_values_", None)
        if values is None:
            values = self._cross_val_values(estimator, whole)
        new = copy.copy(self)
        new.estimator_, new.cross_val_values_ = estimator, values
        relevances = getattr(estimator, "relevances_", None)
        weights = None if relevances is None else np.sqrt(relevances + 1e-9 * relevances.max())
        new.scale_, new.errors_ = calibrate(values, whole, weights, seed=self.random_state)
        new.sizes_ = None
        return self._become(new)

    def _cross_val_values(self, estimator: Any, data: Trajectories) -> Array:
        """The value of each state without its segment, of shape (n_states,)."""
        options: dict[str, Any] = dict(n_folds=self.n_folds, seed=self.random_state)
        if hasattr(estimator, "predict_left_out"):
            cut = SegmentFolds.of(data, **options)
            return np.asarray(estimator.predict_left_out(cut.pieces, cut.fold, n_jobs=self.n_jobs)[cut.rows])
        learner: Learner = lambda train: estimator.condition(train).predict  # noqa: E731
        return cross_val_predict([learner], data, n_jobs=self.n_jobs, **options)[:, 0]

    def predict(self, states: ArrayLike) -> Array:
        """Values by the estimator that was fitted to all data.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)

        Returns
        -------
        values : ndarray of shape (m,)
        """
        self._check_fitted()
        return np.asarray(self.estimator_.predict(as_states(states, name="states")))

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval that holds the return, and V, with probability `level`.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        level : float

        Returns
        -------
        lower, upper : ndarray of shape (m,)
        """
        if not is_within(level, 0.0, 1.0):
            raise ValueError(f"level must lie between 0 and 1; got {one_line(level)}.")
        x = as_states(states, name="states")
        middle = self.predict(x)
        # value ± q(level)·scale(x)
        half = self.quantile(level) * self.scale_(x)
        return middle - half, middle + half

    def quantile(self, level: float) -> float:
        """q(level): half the width of an interval, in units of the scale."""
        self._check_fitted()
        return (self.errors_ if self.sizes_ is None else self.sizes_).quantile(level)

    def recalibrate(
        self, states: ArrayLike, values: ArrayLike, errors: ArrayLike = 0.0, groups: ArrayLike | None = None
    ) -> Self:
        """Return a copy with intervals for V instead of returns, from estimates of V at some states.

        Left-out errors are those against single returns, their noise included. Estimates of V at other states, from
        many rollouts each, show how much of it is noise. Their own standard errors are taken out (`ErrorSizes`). Of the
        scales known, that of the left-out errors nearby, that of the estimator itself and a constant one, the one that
        describes the errors best is used.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        values : array-like of shape (m,)
            Estimates of V at these states, which the estimator does not know.
        errors : array-like of shape (m,)
            Standard errors of `values`.
        groups : array-like of shape (m,), optional
            The episode of each state: states of one are alike.

        Returns
        -------
        Calibrated
        """
        x = as_states(states, name="states")
        v, given = as_vector(values, len(x), "values"), as_floats(errors, "errors")
        if given.shape not in ((), v.shape):
            raise ValueError(f"errors must be one number or have shape {v.shape}; got {given.shape}.")
        check_finite(given, "errors")
        of = np.arange(len(x)) if groups is None else np.asarray(groups)
        if of.shape != v.shape:
            raise ValueError(f"groups must have shape {v.shape}; got {of.shape}.")
        difference, noise = self.predict(x) - v, np.broadcast_to(np.abs(given), v.shape)
        own = getattr(self.estimator_, "error_scale_", None)
        least = LEAST * max(float(np.abs(difference).max(initial=0.0)), float(np.abs(v).max(initial=0.0)), LEAST)
        scales = [_at_least(least, scale) for scale in (_one, self.scale_, own) if scale is not None]
        found = [ErrorSizes.of(difference, scale(x), noise, of) for scale in scales]
        best = int(np.argmax([sizes.log_evidence for sizes in found]))
        new = copy.copy(self)
        new.scale_, new.sizes_ = scales[best], found[best]
        return new

    def save(self, path: object) -> None:
        """Not supported: save the estimator, and calibrate it again."""
        raise TypeError(
            "a Calibrated estimator cannot be saved: save its estimator_, or fit it again where it is needed."
        )

    def _describe_fit(self) -> str:
        return f"fitted: {self.n_folds} folds" if hasattr(self, "estimator_") else ""

    def _check_parameters(self) -> None:
        complete = all(hasattr(self.estimator, name) for name in ("fit", "predict"))
        if isinstance(self.estimator, type | GPTDQ) or not complete:
            raise TypeError(
                f"estimator must be an estimator of V, such as GPTD(); got {one_line(repr(self.estimator))}."
            )
        if not is_count(self.n_folds) or self.n_folds < 2:
            raise ValueError(f"n_folds must be a whole number of 2 or more; got {one_line(repr(self.n_folds))}.")
        check_n_jobs(self.n_jobs)

    def _check_fitted(self) -> None:
        if not hasattr(self, "estimator_"):
            raise NotFittedError("this Calibrated has not been fitted yet: call fit(data) first.")


@dataclass(frozen=True, eq=False)
class ErrorQuantiles:
    """Sizes of errors in units of their scale.

    Attributes
    ----------
    ratios : ndarray of shape (k,)
        Sorted.
    n_groups : int
        Episodes, or other independent groups, that they come from.
    """

    ratios: Array
    n_groups: int

    def quantile(self, level: float) -> float:
        """Conformal quantile: that of the share level·(n+1)/n of n groups, as the next group is one of n + 1 alike."""
        share = min(level * (1.0 + 1.0 / self.n_groups), 1.0)
        return float(np.quantile(self.ratios, share, method="higher"))


class LocalErrorScale:
    """The usual error near a state: root mean square of the errors at its nearest neighbours.

    Parameters
    ----------
    states : ndarray of shape (n, n_dims)
    errors : ndarray of shape (n,)
    episodes : ndarray of shape (n,)
    weights : ndarray of shape (n_dims,)
        Weight of each input in a distance.
    """

    def __init__(self, states: Array, errors: Array, episodes: IntArray, weights: Array) -> None:
        from scipy.spatial import KDTree  # slow to import

        self.weights, self.squared, self.episodes = weights, errors**2, episodes
        self.tree = KDTree(states * weights)
        self.floor = FLOOR * float(self.squared.mean())

    def __call__(self, states: Array, episodes: IntArray | None = None) -> Array:
        """Scale at states of shape (m, n_dims), of shape (m,); without neighbours of their own `episodes` if given."""
        n_candidates = min(N_NEIGHBOURS if episodes is None else N_CANDIDATES, len(self.squared))
        _, near = self.tree.query(states * self.weights, k=np.arange(1, n_candidates + 1))
        used = np.ones(near.shape, dtype=bool) if episodes is None else self.episodes[near] != episodes[:, None]
        used &= np.cumsum(used, axis=1) <= N_NEIGHBOURS
        count = used.sum(axis=1)
        mean = np.where(used, self.squared[near], 0.0).sum(axis=1) / np.maximum(count, 1)
        return np.sqrt(np.where(count > 0, mean, self.squared.mean()) + self.floor)


def calibrate(
    cross_val_values: Array, data: Trajectories, weights: Array | None, *, seed: int = 0
) -> tuple[Values, ErrorQuantiles]:
    """Scale and quantiles of the errors of left-out values.

    Parameters
    ----------
    cross_val_values : ndarray of shape (n_states,)
        The value of each state, predicted without its episode.
    data : Trajectories
    weights : ndarray of shape (n_dims,) or None
        Weight of each input in a distance; None: the scale is 1 everywhere.
    seed : int
        Of the choice of errors to keep, where there are more than `MAX_ERRORS`.

    Returns
    -------
    scale : callable
    quantiles : ErrorQuantiles
    """
    returns = Returns.of(data)
    # y − (V(x) − z V(x_end))
    errors = returns.y - returns.difference(cross_val_values)
    rows = returns.usable
    if len(rows) > MAX_ERRORS:
        rows = as_generator(seed).choice(rows, MAX_ERRORS, replace=False)
    episodes = data.segment_of[rows]
    n_episodes = len(np.unique(episodes))
    if weights is None:
        return _one, ErrorQuantiles(np.sort(np.abs(errors[rows])), n_episodes)
    scale = LocalErrorScale(data.states[rows], errors[rows], episodes, weights)
    ratios = np.abs(errors[rows]) / np.maximum(scale(data.states[rows], episodes), TINY)
    return scale, ErrorQuantiles(np.sort(ratios), n_episodes)


def _load(data: DataLike, gamma: float | None) -> Trajectories:
    if isinstance(data, Trajectories):
        return data
    return Trajectories.concatenate([source.load() for source in Sources.of(data, gamma)])


def _at_least(least: float, scale: Values) -> Values:
    """A scale that is nowhere 0."""
    return lambda states: np.maximum(scale(states), least)


def _one(states: Array) -> Array:
    return np.ones(len(states))
