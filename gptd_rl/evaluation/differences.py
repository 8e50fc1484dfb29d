"""Intervals for differences of means of paired samples, several at once."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.special import stdtrit

from gptd_rl.checks import as_generator
from gptd_rl.report.comparison_records import Split
from gptd_rl.report.records import Interval
from gptd_rl.types import Array

N_DRAWS = 20_000  # of the largest |t|
SMALLEST_SIDE = 0.1  # of a split, as a share of the states
SMALLEST_SHARE = 0.1  # of the variance that a split must explain


def student_quantile(n: int, level: float = 0.95, n_intervals: int = 1) -> float:
    """Student's two-sided quantile for means of `n` numbers, for several intervals together by Bonferroni."""
    return float(stdtrit(n - 1, 1.0 - 0.5 * (1.0 - level) / n_intervals)) if n > 1 else np.inf


def simultaneous_quantile(samples: Array, level: float = 0.95, seed: int = 0) -> float:
    """Quantile of the largest |t| of several means, whose samples may be correlated.

    From draws of the multivariate t distribution with the correlation of the samples (Hothorn, Bretz & Westfall 2008).
    With a single sample it is Student's.

    Parameters
    ----------
    samples : ndarray of shape (n, k)
        Joint observations; constant columns do not count.
    level : float
    seed : int
    """
    n = len(samples)
    spread = samples.std(axis=0)
    varying = samples[:, spread > 0.0]
    if n < 2 or varying.shape[1] < 2:
        return student_quantile(n, level)
    standard = (varying - varying.mean(axis=0)) / varying.std(axis=0)
    rng = as_generator(seed)
    # g'Z/√n has the correlation of the samples if g is standard normal.
    normal = rng.standard_normal((N_DRAWS, n)) @ standard / np.sqrt(n)
    chi = np.sqrt(rng.chisquare(n - 1, N_DRAWS) / (n - 1))
    return float(np.quantile(np.abs(normal).max(axis=1) / chi, level))


def pairwise_differences(values: Array) -> Array:
    """Differences of all pairs of rows of shape (k, n), of shape (n, k (k − 1) / 2)."""
    return np.array([values[a] - values[b] for a, b in combinations(range(len(values)), 2)]).T


def cautious_std(samples: Array) -> Array:
    """Standard deviations, larger where a few differences are large and the others small, of shape (k,).

    As if two more were seen, the largest deviation on either side: rare large differences are seen too rarely in some
    samples, which then look too certain. (Agresti & Coull 1998 add observations to a binomial sample likewise.)

    Parameters
    ----------
    samples : ndarray of shape (n, k)
    """
    largest = np.abs(samples - samples.mean(axis=0)).max(axis=0)
    return np.asarray(np.sqrt(samples.var(axis=0, ddof=1) + 2.0 * largest**2 / len(samples)))


def state_intervals(
    samples: Array, others: Array, errors: Array, level: float, n_intervals: int
) -> tuple[Array, Array]:
    """Mean differences of two agents at several states, and half-widths, from a few paired rollouts each.

    A few equal differences do not prove that the variance is 0. Where that of a state is below the mean variance of all
    states, it is averaged with it; where it is 0, it is at least that of unpaired rollouts.

    Parameters
    ----------
    samples, others : ndarray of shape (n_rollouts, m)
        Returns of the two agents. A single rollout stands for a deterministic environment.
    errors : ndarray of shape (m,)
        Largest systematic errors of the mean differences.
    level : float
        Of all intervals together, by Bonferroni.
    n_intervals : int
    """
    paired = samples - others
    n, mean = len(paired), paired.mean(axis=0)
    if n == 1:
        return mean, errors
    own, unpaired = paired.var(axis=0, ddof=1), samples.var(axis=0, ddof=1) + others.var(axis=0, ddof=1)
    variance = np.maximum(own, 0.5 * (own + own.mean()))
    variance = np.where(own <= 1e-12 * unpaired, np.maximum(variance, unpaired), variance)
    return mean, student_quantile(n, level, n_intervals) * np.sqrt(variance / n) + errors


def paired_interval(differences: Array, quantile: float, error: float = 0.0) -> Interval:
    """Mean difference with its interval, which expects that large differences may be rare."""
    std = float(cautious_std(differences[:, None])[0])
    mean, half = float(differences.mean()), quantile * std / np.sqrt(len(differences)) + error
    return Interval(mean, mean - half, mean + half)


def mean_interval(sample: Array, quantile: float, error: float = 0.0) -> Interval:
    """Mean with its interval, widened by the largest systematic error."""
    mean, half = float(sample.mean()), float(quantile * sample.std(ddof=1) / np.sqrt(len(sample))) + error
    return Interval(mean, mean - half, mean + half)


def best_split(states: Array, differences: Array) -> Split | None:
    """The threshold of one input that separates large differences from small ones best; None if none does.

    Parameters
    ----------
    states : ndarray of shape (m, n_dims)
    differences : ndarray of shape (m,)
    """
    m = len(differences)
    centred, total = differences - differences.mean(), float(np.sum((differences - differences.mean()) ** 2))
    found: Split | None = None
    if m < 4 or total <= 1e-18 * float(np.sum(differences**2)):
        return None
    n_below = np.arange(1, m)
    allowed = np.minimum(n_below, m - n_below) >= SMALLEST_SIDE * m
    for d in range(states.shape[1]):
        order = np.argsort(states[:, d], kind="stable")
        x, sums = states[order, d], np.cumsum(centred[order])[:-1]
        # Sum of squares between the two sides, as a share of all
        share = np.where(allowed & (x[1:] > x[:-1]), sums**2 * m / (n_below * (m - n_below)) / total, 0.0)
        i = int(share.argmax())
        if share[i] >= max(SMALLEST_SHARE, found.share if found else 0.0):
            ordered = differences[order]
            threshold = float(0.5 * (x[i] + x[i + 1]))
            found = Split(d, threshold, float(ordered[: i + 1].mean()), float(ordered[i + 1 :].mean()), float(share[i]))
    return found
