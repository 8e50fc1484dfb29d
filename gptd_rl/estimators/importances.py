"""Which inputs matter: how much of V is unknown without one of them.

The total effect of an input d (Homma & Saltelli 1996) is the share of the variance of V over the visited states that is
left when all the others are known. With x' the state x but for x_d, which is drawn again given the other inputs,

    S_d = E[Var(V(x) | x_−d)] / Var V(x) = ½ E[(V(x) − V(x'))²] / Var V(x)           (Jansen 1999)

x'_d is that of a visited state whose other inputs are near, in another segment: within one, slow inputs hardly differ.
So S_d is 0 for an input that V does not depend on, and also for one that the others tell. A relevance a_d is not such a
share: it says how fast V bends along an input, and is small where V is linear in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # its submodules are imported at first use

from gptd_rl.checks import as_generator
from gptd_rl.types import Array, IntArray

N_STATES = 500  # states that are compared, at most
N_NEIGHBOURS = 5  # values of an input that are drawn for each state, at most
MAX_DRAWS = 60  # neighbours × inputs: with many inputs fewer are drawn
N_RESAMPLES = 400  # of segments, for the interval
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Importances:
    """Total effects of the inputs on V.

    Attributes
    ----------
    total_effects : ndarray of shape (n_dims,)
        Share of the variance of V over visited states that is lost when an input is unknown and the others are known.
        With interactions they add up to more than 1.
    lower, upper : ndarray of shape (n_dims,)
        Their 95 % intervals, from resampled segments. They do not tell what is unknown of V itself.
    """

    total_effects: Array
    lower: Array
    upper: Array

    def take(self, inputs: IntArray) -> Importances:
        """Those of some of the inputs."""
        return Importances(self.total_effects[inputs], self.lower[inputs], self.upper[inputs])

    def __str__(self) -> str:
        rows = zip(self.total_effects, self.lower, self.upper, strict=True)
        return "\n".join(
            [f"{'input':>5} {'total effect':>12}   95 % interval"]
            + [f"{d:>5} {effect:>12.3f}   {low:.3f} to {high:.3f}" for d, (effect, low, high) in enumerate(rows)]
        )


def importances(
    value: Callable[[Array], Array], states: Array, segments: IntArray, seed: int | None = 0
) -> Importances:
    """Total effects of the inputs of a function over states.

    Parameters
    ----------
    value : callable
        V of states of shape (m, n_dims), of shape (m,).
    states : ndarray of shape (n, n_dims)
        Visited ones.
    segments : ndarray of shape (n,)
        The segment of each.
    seed : int or None
        Of the choice of states, and of resampling.
    """
    rng, n_dims = as_generator(seed), states.shape[1]
    rows = rng.permutation(len(states))[:N_STATES]
    x, groups = states[rows], np.unique(segments[rows], return_inverse=True)[1]
    v = value(x)
    squares = _squared_changes(value, x, v, _is_other(groups))
    # Every segment counts as often as it is drawn: [N_RESAMPLES + 1, n_groups], the first time once.
    n_groups = int(groups.max()) + 1
    drawn = rng.multinomial(n_groups, np.full(n_groups, 1.0 / n_groups), size=N_RESAMPLES)
    weights = np.concatenate([np.ones((1, n_groups)), drawn])[:, groups]
    weights = weights / weights.sum(axis=1, keepdims=True)
    mean = weights @ v
    variance = np.maximum(weights @ v**2 - mean**2, 0.0)
    effects = np.divide(
        0.5 * weights @ squares, variance[:, None], out=np.zeros((len(weights), n_dims)), where=variance[:, None] > 0.0
    )
    lower, upper = np.quantile(effects[1:], [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
    return Importances(effects[0], np.minimum(lower, effects[0]), np.maximum(upper, effects[0]))


def _squared_changes(value: Callable[[Array], Array], x: Array, v: Array, is_other: Array) -> Array:
    """Mean of (V(x) − V(x'))² over the values that are drawn for each input, of shape (n, n_dims)."""
    n, n_dims = x.shape
    k = int(np.clip(MAX_DRAWS // n_dims, 1, min(N_NEIGHBOURS, is_other.sum(axis=1).min())))
    spread = x.std(axis=0)
    scaled = x / np.where(spread > 0.0, spread, 1.0)
    distances = scipy.spatial.distance.cdist(scaled, scaled, "sqeuclidean")
    squares = np.zeros((n, n_dims))
    for d in np.flatnonzero(spread > 0.0):
        others = distances - (scaled[:, None, d] - scaled[:, d]) ** 2
        near = np.argpartition(np.where(is_other, others, np.inf), k - 1, axis=1)[:, :k]
        moved = np.repeat(x[:, None], k, axis=1)  # [n, k, n_dims]
        moved[:, :, d] = x[near, d]
        squares[:, d] = ((value(moved.reshape(-1, n_dims)).reshape(n, k) - v[:, None]) ** 2).mean(axis=1)
    return squares


def _is_other(groups: IntArray) -> Array:
    """Whether states may take an input from one another, of shape (n, n): those of other segments, if there are any."""
    is_other = groups[:, None] != groups
    if not is_other.any():
        is_other = ~np.eye(len(groups), dtype=bool)
    return is_other
