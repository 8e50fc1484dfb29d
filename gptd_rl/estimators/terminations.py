"""Which states are terminal: Gaussian-process classification of the states that transitions reached.

Relevances come from the evidence of a regression on the labels, the boundary from the logistic likelihood. Where no
reward is positive, an end is the best that can happen, and a planner seeks every state that is wrongly called terminal.
There a state counts as terminal only if the nearest state that was reached was terminal, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy  # its submodules are imported at first use

from gptd_rl import linalg
from gptd_rl.data.state_space import StateSpace
from gptd_rl.estimators.dynamics_output import inducing_states, state_kernel, unit_relevances
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
# Where ends are sought, a state is terminal if its logit is larger than this.
SOUGHT_LOGIT = 1.0


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
    continued : ndarray of shape (l, n_dims) or None
        Other states that were reached, if the nearest one must be terminal.
    """

    space: StateSpace
    logit: QFunction
    selection: KernelSelection
    n_selected: int
    ended: Array
    rewards: Array
    continued: Array | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ended", scipy.spatial.cKDTree(self._distances(self.ended)))
        near = None if self.continued is None else scipy.spatial.cKDTree(self._distances(self.continued))
        object.__setattr__(self, "_continued", near)

    def __call__(self, states: Array) -> BoolArray:
        """Whether each state is terminal, of shape (n,)."""
        is_terminal = np.asarray(self.logit(states)[:, 0] > (0.0 if self.continued is None else SOUGHT_LOGIT))
        if self._continued is not None and is_terminal.any():  # type: ignore[attr-defined]
            x = self._distances(states[is_terminal])
            nearest = [tree.query(x)[0] for tree in (self._ended, self._continued)]  # type: ignore[attr-defined]
            is_terminal[is_terminal] = nearest[0] < nearest[1]
        return is_terminal

    def rewards_at(self, states: Array) -> Array:
        """Reward on entering terminal states: that of the nearest one known, of shape (n,)."""
        return np.asarray(self.rewards[self._ended.query(self._distances(states))[1]])  # type: ignore[attr-defined]

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
    n_inducing: int,
    before: Terminations | None,
    rng: np.random.Generator,
) -> Terminations | None:
    """Fit a classifier to the states that transitions reached, of shape (n, n_dims); None if none was terminal."""
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
    continued = reached[~terminated] if float(rewards.max()) <= 0.0 else None
    return Terminations(space, logit, selection, n_selected, reached[ended], rewards[ended], continued)


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
