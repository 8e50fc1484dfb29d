"""Means of groups that differ little, estimated from few numbers each (empirical Bayes).

The mean of a group is θ ~ N(0, τ²); the mean of its n numbers is d̄ = θ + noise of variance s²/n. Then θ has

    mean w·d̄        variance τ²(1 − w)        w = τ²/(τ² + s²/n)
"""

from __future__ import annotations

from typing import Any

import numpy as np


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
