"""Do intervals hold the truth as often as they say? Tests by data set: values within one share their noise.

`standard_errors` measures (truth − mean)/std at some states for many data sets. The share of states inside an interval
is one number for each data set, whose mean a two-sided t-test compares with the level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from gptd_rl import GPTD
from gptd_rl.types import Array
from tests.mdps import MDP, Drifting, Garnet, Ring, Saddle, Walk

LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Setting:
    """A system with known V, the size of a data set, and states to ask for."""

    mdp: MDP
    n: int
    states: Callable[[np.random.Generator], Array]


def normal(n_dims: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.normal(size=(30, n_dims))


def around(rng: np.random.Generator) -> Array:
    angles = rng.uniform(-np.pi, np.pi, 30)
    return np.column_stack([np.cos(angles), np.sin(angles)])


WALK, UPHILL, RUIN = Walk(n_cells=9, gamma=0.9), Walk(n_cells=9, p_right=0.6), Walk(n_cells=9, gamma=1.0, prize=0.0)
GARNET = Garnet(n_points=30, seed=1)
SETTINGS = {
    "walk": Setting(WALK, 300, lambda rng: WALK.cells),
    "uphill walk": Setting(UPHILL, 300, lambda rng: UPHILL.cells),
    "ruin": Setting(RUIN, 400, lambda rng: RUIN.cells),
    "garnet": Setting(GARNET, 400, lambda rng: GARNET.points[2:]),
    "line": Setting(Drifting(gamma=0.9, time_limit=25, drift=0.0), 400, normal(1)),
    "drift": Setting(Drifting(gamma=0.9, time_limit=25), 600, normal(2)),
    "ring": Setting(Ring(), 400, around),
    "saddle": Setting(Saddle(), 600, normal(2)),
}


def standard_errors(setting: Setting, estimator: Callable[[], GPTD], n_sets: int, seed: int = 0) -> Array:
    """(truth − mean)/std of each data set at each state, of shape (n_sets, n_states)."""
    out = []
    for i in range(n_sets):
        rng = np.random.default_rng([seed, i])
        v = estimator().fit(setting.mdp.sample(setting.n, rng))
        x = setting.states(rng)
        lower, upper = v.confidence_interval(x, 0.5)
        std = (upper - lower) / (2.0 * stats.norm.ppf(0.75))
        out.append((setting.mdp.value(x) - 0.5 * (lower + upper)) / std)
    return np.array(out)


def coverages(errors: Array, level: float, width: float = 1.0, shift: float = 0.0) -> Array:
    """Share of states inside intervals, `width` times as wide and shifted by `shift` stds, for each data set."""
    return np.mean(np.abs(errors - shift) <= width * stats.norm.ppf(0.5 + 0.5 * level), axis=1)


def p_value(shares: Array, level: float) -> float:
    """Two-sided t-test of the mean over data sets against the level."""
    if np.ptp(shares) == 0.0:
        return float(shares[0] == level)
    return float(stats.ttest_1samp(shares, level).pvalue)
