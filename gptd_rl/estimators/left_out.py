"""Values of states learnt without their segments: folds of whole segments, and learners that are cross-validated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gptd_rl.checks import as_generator
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.parallel import in_parallel
from gptd_rl.temporal.means import values_at
from gptd_rl.types import Array, IntArray

Values = Callable[[Array], Array]  # states of shape (m, n_dims) to values of shape (m,)
Learner = Callable[[Trajectories], Values]

N_FOLDS = 5


def cross_val_predict(
    learners: Sequence[Learner],
    data: Trajectories,
    *,
    n_folds: int = N_FOLDS,
    seed: int = 0,
    n_jobs: int | None = None,
) -> Array:
    """Values of each state by learners trained without its episode.

    Parameters
    ----------
    learners : sequence of callable
        Each a function from trajectories to a function of states.
    data : Trajectories
        A single segment is cut into pieces, which are left out instead.
    n_folds : int
    seed : int
    n_jobs : int, optional
        Folds at the same time, through joblib.

    Returns
    -------
    values : ndarray of shape (n_states, n_learners)
        0 at terminal states.
    """
    cut = SegmentFolds.of(data, n_folds, seed)
    names = np.unique(cut.fold)

    def predict(f: int) -> list[Array]:
        train, test = (cut.pieces[np.flatnonzero(rows)] for rows in (cut.fold != f, cut.fold == f))
        return [values_at(learner(train), test) for learner in learners]

    values = np.zeros((len(cut.pieces), len(learners)))
    for f, columns in zip(names, in_parallel(predict, names.tolist(), n_jobs), strict=True):
        values[np.isin(cut.pieces.segment_of, np.flatnonzero(cut.fold == f))] = np.column_stack(columns)
    return values[cut.rows]


@dataclass(frozen=True, eq=False)
class SegmentFolds:
    """Segments to leave out, in folds.

    Attributes
    ----------
    pieces : Trajectories
        The data; a single segment is cut into pieces, which are left out instead.
    fold : ndarray of shape (n_pieces,)
    rows : ndarray of shape (n_states,)
        Where the states of the data stand in `pieces`.
    """

    pieces: Trajectories
    fold: IntArray
    rows: IntArray

    @classmethod
    def of(cls, data: Trajectories, n_folds: int = N_FOLDS, seed: int = 0) -> SegmentFolds:
        """Divide whole segments into folds at random."""
        pieces, rows = data, np.arange(len(data))
        if data.n_segments == 1:
            pieces = data.cut(max(2, -(-data.n_transitions // (2 * n_folds))))
            if pieces.n_segments == 1:
                raise ValueError(
                    f"{data.n_transitions} transitions are too few to leave any out: collect more transitions."
                )
            rows = np.delete(np.arange(len(pieces)), pieces.last[:-1])  # the first state of the next piece
        return cls(pieces, folds(np.arange(pieces.n_segments, dtype=np.int64), n_folds, seed), rows)


def folds(groups: IntArray, n_folds: int = N_FOLDS, seed: int = 0) -> IntArray:
    """A random fold 0 … n_folds − 1 for each row, the same for all rows of a group."""
    names, row = np.unique(groups, return_inverse=True)
    order = as_generator(seed).permutation(len(names))
    return np.asarray((order % n_folds)[row], dtype=np.int64)
