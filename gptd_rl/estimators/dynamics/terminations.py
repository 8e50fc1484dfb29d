"""Which states are terminal: Gaussian-process classification of the states that transitions reached.

Relevances come from the evidence of a regression on the labels, the boundary from the logistic likelihood.

An end is sought if it is worth more than going on, as the goal of a shortest path is. A planner finds every state that
is wrongly called terminal there, so a sought end must be certain: within the range of the terminal states that were
reached. Others are possible ends: who explores takes them for ends, and so finds out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy  # its submodules are imported at first use

from gptd_rl import linalg
from gptd_rl.data.state_space import StateSpace
from gptd_rl.estimators.dynamics.output import inducing_states, state_kernel, unit_relevances
from gptd_rl.inference.by_action import QFunction, StateFeatures
from gptd_rl.inference.classification import logistic_mode
from gptd_rl.kernels import Kernel, MultiScale
from gptd_rl.selection.regression import KernelSelection, RegressionTargets, select_regression_kernel
from gptd_rl.types import Array, BoolArray, IntArray

# States that the classifier learns from: terminal ones, others nearest to these, and others from all over.
MAX_TERMINAL, MAX_NEAR, MAX_OTHER = 300, 300, 200
MAX_TARGETS = 400
MAX_STEPS = 40
NOISE_SHARES = 3e-3, 1.0
STARTS = ((0.1, 1e-2), (0.5, 1e-1))
PRIOR_VARIANCE = 1e4  # of the logit: the boundary may be sharp
# The kernel is selected again once there are this many times as many terminal states.
GROWTH = 1.5
# The range of n terminal states is extended on both sides by this share of it, or by 3/(n − 1) if that is more: for
# uniform ones e⁻³ is the probability that the next exceeds that. And by this share of the standard deviation of all
# states, because next states are predicted with errors.
EXTENSION, SLACK = 0.5, 0.1


@dataclass(frozen=True, eq=False)
class Terminations:
    """A classifier of states, and the rewards on entering terminal ones.

    Attributes
    ----------
    space : StateSpace
    logit : QFunction
        Positive where states are terminal.
    selection : KernelSelection
        The kernel, and for how many terminal states it was selected.
    n_selected : int
    ended, rewards : ndarray of shape (k, n_dims) and (k,)
        Terminal states that were reached, and the rewards on the way there.
    is_sought : ndarray of shape (k,)
        Which of them are worth more than going on.
    low, high : ndarray of shape (n_coordinates,)
        Range of certain ends.
    """

    space: StateSpace
    logit: QFunction
    selection: KernelSelection
    n_selected: int
    ended: Array
    rewards: Array
    is_sought: BoolArray
    low: Array
    high: Array

    @cached_property
    def _tree(self) -> Any:
        return scipy.spatial.cKDTree(self._distances(self.ended))

    def __call__(self, states: Array) -> BoolArray:
        """Whether each state is terminal, of shape (n,); sought ends if they are certain."""
        return self.both(states)[0]

    def both(self, states: Array) -> tuple[BoolArray, BoolArray]:
        """Whether each state is certainly, and possibly, terminal, each of shape (n,); ends not sought are both."""
        is_possible = np.asarray(self.logit(states)[:, 0] > 0.0)
        is_certain = is_possible.copy()
        if is_possible.any() and self.is_sought.any():
            x = states[is_possible]
            coordinates = self.space.coordinates(x)
            within = ((coordinates >= self.low) & (coordinates <= self.high)).all(axis=1)
            is_certain[is_possible] = within | ~self.is_sought[self._nearest(x)]
        return is_certain, is_possible

    def rewards_at(self, states: Array) -> Array:
        """Reward on entering terminal states: that of the nearest one known, of shape (n,)."""
        return np.asarray(self.rewards[self._nearest(states)])

    def _nearest(self, states: Array) -> IntArray:
        """Number of the nearest terminal state that was reached, of shape (n,)."""
        return np.asarray(self._tree.query(self._distances(states))[1])

    def _distances(self, states: Array) -> Array:
        """Coordinates in which the ordinary distance is that of the kernel."""
        kernel = self.selection.kernel
        inner: Kernel = getattr(kernel, "kernel", kernel)
        return self.space.coordinates(states) * np.sqrt(inner.relevances)


def fit_terminations(
    space: StateSpace,
    reached: Array,
    terminated: BoolArray,
    rewards: Array,
    gamma: float,
    n_inducing: int,
    before: Terminations | None,
    rng: np.random.Generator,
) -> Terminations | None:
    """Fit a classifier to the states that transitions reached, of shape (n, n_dims); None if none was terminal.

    An end is sought if its reward exceeds what going on is worth with the mean reward: r > r̄/(1−γ).
    """
    if not terminated.any():
        return None
    ended = np.flatnonzero(terminated)
    ended = ended[np.sort(rng.permutation(len(ended))[:MAX_TERMINAL])]
    rows = _informative_rows(space, reached, terminated, ended, rng)
    if before is not None and len(ended) <= GROWTH * before.n_selected:
        selection, n_selected = before.selection, before.n_selected
    else:
        selection, n_selected = _select(space, reached, terminated, rows, rng), len(ended)
    features = StateFeatures(selection.kernel, inducing_states(selection.kernel, reached[rows], n_inducing, rng))
    w = logistic_mode(features(reached[rows]), terminated[rows], PRIOR_VARIANCE)
    weights = linalg.half_solve_transposed(features.L, w[:, None])
    logit = QFunction(selection.kernel, features.inducing_points, weights, 0.0)
    is_sought = (1.0 - gamma) * rewards[ended] > rewards[~terminated].mean() if not terminated.all() else ended < 0
    low, high = _range(space, reached, ended[is_sought])
    return Terminations(
        space,
        logit,
        selection,
        n_selected,
        reached[ended],
        rewards[ended],
        is_sought,
        low,
        high,
    )


def _range(space: StateSpace, reached: Array, ended: IntArray) -> tuple[Array, Array]:
    """Range of the coordinates of certain ends, each of shape (n_coordinates,)."""
    coordinates, n = space.coordinates(reached), len(ended)
    if n == 0:
        return np.full(coordinates.shape[1], np.inf), np.full(coordinates.shape[1], -np.inf)
    low, high = coordinates[ended].min(axis=0), coordinates[ended].max(axis=0)
    extension = max(EXTENSION, 3.0 / max(1, n - 1)) * (high - low) + SLACK * coordinates.std(axis=0)
    return low - extension, high + extension


def _informative_rows(
    space: StateSpace, reached: Array, terminated: BoolArray, ended: IntArray, rng: np.random.Generator
) -> IntArray:
    """Terminal states, the others nearest to them, and some from all over."""
    x = space.coordinates(reached) * np.sqrt(unit_relevances(space, reached))
    others = np.flatnonzero(~terminated)
    near = others[np.argsort(scipy.spatial.cKDTree(x[ended]).query(x[others])[0], kind="stable")[:MAX_NEAR]]
    return np.unique(np.concatenate([ended, near, rng.permutation(others)[:MAX_OTHER]]))


def _select(
    space: StateSpace, reached: Array, terminated: BoolArray, rows: IntArray, rng: np.random.Generator
) -> KernelSelection:
    """Relevances by the evidence of the labels 0 and 2, so that the prior mean 0 is "not terminal"."""
    some = np.concatenate([rows[terminated[rows]][: MAX_TARGETS // 2], rng.permutation(rows[~terminated[rows]])])
    some = np.sort(some[:MAX_TARGETS])
    labels = np.where(terminated[some], 2.0, 0.0)
    unit = unit_relevances(space, reached[some])
    return select_regression_kernel(
        RegressionTargets(reached[some], np.zeros(len(some), dtype=np.int64), labels, 1),
        [(state_kernel(space, relevance * unit, MultiScale), noise) for relevance, noise in STARTS],
        noise_shares=NOISE_SHARES,
        max_steps=MAX_STEPS,
    )
