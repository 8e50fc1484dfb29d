"""Means of groups that differ little, estimated from few numbers each (empirical Bayes).

The mean of a group is θ ~ N(0, τ²); the mean of its n numbers is d̄ = θ + noise of variance s²/n. Then θ has

    mean w·d̄        variance τ²(1 − w)        w = τ²/(τ² + s²/n)

and s² and τ² are estimated by the method of moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gptd_rl.types import Array


def variance_within(groups: Sequence[Array], expected: float | None = None) -> float:
    """Estimate s², the variance of the numbers of a group around its mean; 0 if no group has two numbers.

    Parameters
    ----------
    groups : sequence of ndarray of shape (n,)
    expected : float, optional
        What s² is expected to be, with the weight of one degree of freedom: few numbers tell little.
    """
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
    freedom = sum(len(group) for group in groups) - len(groups)
    if expected is not None:
        squares, freedom = squares + expected, freedom + 1
    return squares / freedom if freedom > 0 else 0.0


def variance_between(means: Array, noise: Array, centre: float | None = None) -> float:
    """Estimate τ², the variance of the means of groups beyond that of their noise, not negative.

    Parameters
    ----------
    means : ndarray of shape (n_groups,)
        d̄.
    noise : ndarray of shape (n_groups,)
        s²/n.
    centre : float, optional
        The mean of θ; that of d̄ by default.
    """
    centre = float(means.mean()) if centre is None else centre
    return max(0.0, float(((means - centre) ** 2).mean() - noise.mean()))


def shrunken_mean(mean: Any, noise: Any, between: float) -> tuple[Any, Any]:
    """Posterior mean and standard deviation of the means of groups.

    Parameters
    ----------
    mean : float or ndarray of shape (n_groups,)
        d̄.
    noise : float or ndarray of shape (n_groups,)
        s²/n.
    between : float
        τ², not negative.
    """
    total = between + noise
    weight = np.divide(between, total, out=np.zeros_like(np.asarray(total, dtype=np.float64)), where=total > 0.0)
    return weight * mean, np.sqrt(between * (1.0 - weight))
