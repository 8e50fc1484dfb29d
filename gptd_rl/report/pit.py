"""Calibration by probability integral transforms: uniform, if the intervals of all levels hold what they promise."""

from __future__ import annotations

import numpy as np
import scipy  # its submodules are imported at first use

from gptd_rl.report.records import ValueFunction
from gptd_rl.types import Array

SIMULATIONS = 2_000


def pit_values(value: ValueFunction, states: Array, observed: Array, n_levels: int = 40) -> Array:
    """Where in its predictive distribution each observation lies, from 0 to 1.

    The distribution is that of the intervals: an observation at the upper end of the 80 % interval is at 0.9.

    Parameters
    ----------
    value : ValueFunction
    states : ndarray of shape (m, n_dims)
    observed : ndarray of shape (m,)
    n_levels : int
        Levels of intervals between which is interpolated.

    Returns
    -------
    pit : ndarray of shape (m,)
    """
    levels = np.linspace(0.0, 1.0, n_levels + 2)[1:-1]
    ends = [value.confidence_interval(states, float(level)) for level in levels]
    lower, upper = np.array([end[0] for end in ends]), np.array([end[1] for end in ends])  # [levels, m]
    quantiles = np.concatenate([lower[::-1], value.predict(states)[None], upper])
    quantiles = np.maximum.accumulate(quantiles, axis=0)
    shares = np.concatenate([(1 - levels[::-1]) / 2, [0.5], (1 + levels) / 2])
    found = [
        np.interp(y, q, shares, left=shares[0] / 2, right=1 - shares[0] / 2)
        for y, q in zip(observed, quantiles.T, strict=True)
    ]
    return np.array(found)


def simultaneous_band(
    n: int, points: Array, level: float = 0.95, seed: int | np.random.Generator = 0
) -> tuple[Array, Array]:
    """Band that holds the whole empirical distribution function of `n` uniform draws with probability `level`.

    At each point the function is binomial. The pointwise level is adjusted by simulation so that the band holds at all
    points at once (Säilynoja, Bürkner and Vehtari 2022).

    Parameters
    ----------
    n : int
    points : ndarray of shape (k,)
        Between 0 and 1.
    level : float
    seed : int or Generator

    Returns
    -------
    lower, upper : ndarray of shape (k,)
    """
    binom = scipy.stats.binom
    draws = np.random.default_rng(seed).uniform(size=(SIMULATIONS, n))
    counts = (draws[:, :, None] <= points).sum(axis=1)  # [simulations, k]
    tails = np.minimum(binom.cdf(counts, n, points), binom.sf(counts - 1, n, points))
    share = np.quantile(2.0 * tails.min(axis=1), 1.0 - level)
    return binom.ppf(share / 2, n, points) / n, binom.ppf(1.0 - share / 2, n, points) / n
