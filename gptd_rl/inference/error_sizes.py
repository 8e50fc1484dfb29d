"""How large errors are in units of their scale, where the true values are themselves known only up to noise.

A prediction v̂_i of a value is compared with an estimate of it whose standard error is e_i. In units of a scale s_i that
says where predictions are worse, errors are first taken for Student's t with an unknown size c and unknown degrees ν:

    d_i = v̂_i − estimate_i = c s_i t_i + e_i z_i        t_i ~ t_ν,  z_i ~ N(0, 1)

Student's t is a scale mixture of normals, and so is the density of d_i: Σ_k w_k N(0, c² s_i² λ_k + e_i²). The noise of
the estimates is taken out exactly, and no difference of variances can become negative.

Errors need not look like that: a bias, for one, makes all of them equally large. So the average of Student's t over the
posterior of c and ν is only where a few steps of expectation maximisation start. The distribution is one of errors
±a_k s, with a_k on a grid and probabilities p_k:

    p_k ← mean_i p_k N(d_i; ±a_k s_i, e_i²) / Σ_l p_l N(d_i; ±a_l s_i, e_i²)

Where estimates are exact, it becomes that of the errors seen; where noise hides the errors, it stays near the start,
which is never narrow. The next group is one of n + 1: with n groups, 1/(n + 1) of the start is mixed in, so that few
groups give wide intervals.
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
ATOMS = np.geomspace(1e-4, 1e3, 400)  # of |error|, around the same
N_STEPS = 10  # of expectation maximisation


@dataclass(frozen=True, eq=False)
class ErrorSizes:
    """Distribution of |error| in units of its scale.

    Attributes
    ----------
    sizes : ndarray of shape (k,)
        Increasing.
    cumulative : ndarray of shape (k,)
        Probability of an error of this size or less.
    log_evidence : float
        Log probability of the errors as Student's t: of two scales the one with more predicts them better.
    """

    sizes: Array
    cumulative: Array
    log_evidence: float

    @classmethod
    def of(cls, errors: Array, scales: Array, noise: Array, groups: IntArray) -> ErrorSizes:
        """Infer it.

        Parameters
        ----------
        errors, scales, noise : ndarray of shape (n,)
            d, s and e above.
        groups : ndarray of shape (n,)
            Comparisons of one group, such as an episode, are alike: each group counts as one.
        """
        of_group = np.unique(groups, return_inverse=True)[1]
        weights = 1.0 / np.bincount(of_group)[of_group]  # [n]
        largest = float(np.abs(errors / scales).max(initial=0.0)) or 1.0
        c = SIZES * largest
        log_likelihood = np.array([_log_densities(errors, scales, noise, c, degrees) @ weights for degrees in DEGREES])
        peak = float(log_likelihood.max())
        # A flat prior on c, whose grid is logarithmic, and on ν: what is not known to be small may be large.
        posterior = np.exp(log_likelihood - peak) * SIZES / SIZES.sum()  # [n_degrees, n_sizes]
        log_evidence = peak + float(np.log(posterior.sum() / len(DEGREES)))
        atoms = ATOMS * largest
        prior = _student(atoms, c, posterior / posterior.sum())
        likelihood = _likelihoods(errors / scales, noise / scales, atoms)
        average, shares = prior, weights / weights.sum()
        for _ in range(N_STEPS):
            joint = average * likelihood  # [n, k]
            average = shares @ (joint / joint.sum(axis=1, keepdims=True))
        n_groups = int(of_group.max()) + 1
        edges = atoms * np.sqrt(ATOMS[1] / ATOMS[0])  # an atom stands for the sizes up to half-way to the next one
        return cls(edges, np.cumsum((n_groups * average + prior) / (n_groups + 1)), log_evidence)

    def quantile(self, level: float) -> float:
        """Half the width of an interval that holds an error of scale 1 with probability `level`."""
        return float(np.interp(level, self.cumulative, self.sizes))

    def probability(self, q: float) -> float:
        """P(|error| ≤ q) of an error of scale 1."""
        return float(np.interp(q, self.sizes, self.cumulative, left=0.0))


def _student(atoms: Array, c: Array, weights: Array) -> Array:
    """Probabilities of the atoms under a mixture of Student's t of sizes c and all `DEGREES`, of shape (k,)."""
    edges = np.append(np.sqrt(atoms[1:] * atoms[:-1]), np.inf)  # between neighbours
    total = np.zeros(len(atoms))
    for degrees, row in zip(DEGREES, weights, strict=True):
        below = row @ (2.0 * stdtr(degrees, edges / c[:, None]) - 1.0)
        total += np.diff(below, prepend=0.0)
    return np.maximum(total, np.finfo(np.float64).tiny)


def _likelihoods(errors: Array, noise: Array, atoms: Array) -> Array:
    """Density of what was seen for each atom with either sign, up to a factor for each error, of shape (n, k)."""
    # No finer than the grid.
    spread = np.maximum(noise[:, None], atoms * np.log(ATOMS[1] / ATOMS[0]))
    seen = np.abs(errors)[:, None]
    log_density = np.logaddexp(-0.5 * ((seen - atoms) / spread) ** 2, -0.5 * ((seen + atoms) / spread) ** 2)
    log_density -= np.log(spread)
    return np.asarray(np.exp(log_density - log_density.max(axis=1, keepdims=True)))


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
