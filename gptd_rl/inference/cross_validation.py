"""The value of each state without its own segment, with θ and inducing points as they are: one pass over the data.

All that a sparse posterior knows of the data are sums over segments. So the sums of each fold are taken once, the
weights without a fold follow from the sums of the others, and predict the fold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Protocol

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.posterior import Posterior
from gptd_rl.parallel import in_parallel
from gptd_rl.types import Array, IntArray


class SumsOverSegments(Posterior, Protocol):
    """A posterior whose knowledge of the data is a sum over segments."""

    def statistics_of(self, data: Trajectories) -> Any:
        """The sums of these segments: they can be added."""
        ...

    def mean_given(self, statistics: Any) -> Callable[[Array], Array]:
        """The posterior mean, a function of states, if these were the sums of all data."""
        ...


def left_out_values(
    posterior: SumsOverSegments, data: Trajectories, fold: IntArray, n_jobs: int | None = None
) -> Array:
    """Values of all states, each predicted without the fold of its segment.

    Parameters
    ----------
    posterior : SumsOverSegments
    data : Trajectories
    fold : ndarray of shape (n_segments,)
        At least two folds.
    n_jobs : int, optional
        Folds at the same time, through joblib.

    Returns
    -------
    values : ndarray of shape (n_states,)
    """
    names = np.unique(fold).tolist()
    parts = [data[np.flatnonzero(fold == name)] for name in names]
    sums = in_parallel(posterior.statistics_of, parts, n_jobs)

    def predict(k: int) -> Array:
        others = reduce(operator.add, (s for j, s in enumerate(sums) if j != k))
        return posterior.mean_given(others)(parts[k].states)

    values = np.empty(len(data))
    for name, found in zip(names, in_parallel(predict, list(range(len(parts))), n_jobs), strict=True):
        values[np.isin(data.segment_of, np.flatnonzero(fold == name))] = found
    return values
