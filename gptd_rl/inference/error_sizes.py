"""How large errors are in units of their scale, where the true values are themselves known only up to noise.

A prediction v̂_i of a value is compared with an estimate of it whose standard error is e_i. In units of a scale s_i that
says where predictions are worse, errors are taken for Student's t with an unknown size c and unknown degrees ν:

    d_i = v̂_i − estimate_i = c s_i t_i + e_i z_i        t_i ~ t_ν,  z_i ~ N(0, 1)

Student's t is a scale mixture of normals, so the density of d_i is one of normals, Σ_k w_k N(0, c² s_i² λ_k + e_i²): the
noise of the estimates is taken out exactly, and no difference of variances can become negative. c and ν are averaged
over their posterior on a grid: few comparisons give wide intervals, and none has the width 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import gammaincinv, stdtr

from gptd_rl.types import Array, IntArray

DEGREES = (2.0, 4.0, 8.0, 30.0)
SIZES = np.geomspace(1e-4, 1e2, 97)  # of c, around the largest it can be
N_MIXED = 12  # normals for a Student's t


@dataclass(frozen=True, eq=False)
class ErrorSizes:
    """Posterior of the size c and the degrees of freedom ν of errors in units of their scale.

    Attributes
    ----------
    sizes, degrees, weights : ndarray of shape (k,)
        A grid of (c, ν), and the probability of each.
    log_evidence : float
        Log probability of the errors, averaged over the grid: of two scales the one with more predicts them better.
    """

    sizes: Array
    degrees: Array
    weights: Array
    log_evidence: float

    @classmethod
    def of(cls, errors: Array, scales: Array, noise: Array, groups: IntArray) -> ErrorSizes:
        """Infer them.

        Parameters
        ----------
        errors, scales, noise : ndarray of shape (n,)
            d, s and e above.
        groups : ndarray of shape (n,)
            Comparisons of one group, such as an episode, are alike: each group counts as one.
        """
        names, of_group = np.unique(groups, return_inverse=True)
        share = 1.0 / np.bincount(of_group)[of_group]  # [n]
        largest = float(np.abs(errors / scales).max(initial=0.0)) or 1.0
        c = SIZES * largest
        log_likelihood = np.array([_log_densities(errors, scales, noise, c, degrees) @ share for degrees in DEGREES])
        peak = float(log_likelihood.max())
        # A flat prior on c, whose grid is logarithmic, and on ν: what is not known to be small may be large.
        weights = (np.exp(log_likelihood - peak) * SIZES / SIZES.sum()).ravel()
        total = float(weights.sum())
        degrees = np.repeat(DEGREES, len(c))
        return cls(np.tile(c, len(DEGREES)), degrees, weights / total, peak + float(np.log(total / len(DEGREES))))

    def quantile(self, level: float) -> float:
        """Half the width of an interval that holds an error of scale 1 with probability `level`."""
        low, high = 0.0, 1.0
        while self.probability(high) < level:
            low, high = high, 4.0 * high
        for _ in range(60):  # bisection
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.probability(middle) < level else (low, middle)
        return high

    def probability(self, q: float) -> float:
        """P(|error| ≤ q) of an error of scale 1."""
        return float(self.weights @ (2.0 * stdtr(self.degrees, q / self.sizes) - 1.0))


def _log_densities(errors: Array, scales: Array, noise: Array, c: Array, degrees: float) -> Array:
    """Log density of each error for each size, of shape (n_sizes, n)."""
    mixed = _mixing_variances(degrees)
    tiny = np.finfo(np.float64).tiny
    # c² s² λ + e²  [n_sizes, n, N_MIXED]
    variance = np.maximum((c[:, None] * scales)[:, :, None] ** 2 * mixed + (noise**2)[:, None], tiny)
    log_normal = -0.5 * (np.log(2.0 * np.pi * variance) + (errors**2)[:, None] / variance)
    peak = log_normal.max(axis=2)
    return np.asarray(peak + np.log(np.exp(log_normal - peak[:, :, None]).mean(axis=2)))


@cache
def _mixing_variances(degrees: float) -> Array:
    """Variances λ of normals of equal weight that mix to a Student's t: quantiles of ν/χ²_ν, of shape (N_MIXED,)."""
    p = (np.arange(N_MIXED) + 0.5) / N_MIXED
    return np.asarray(degrees / (2.0 * gammaincinv(0.5 * degrees, p)))
