"""Binary classification with a Gaussian-process prior: the mode of the posterior under a logistic likelihood.

With whitened features φ(x) = L⁻¹k_m(x) and w ~ N(0, v₀I), labels y ∈ {0, 1} and p = 1/(1 + exp(−φᵀw)), Newton's method
finds the mode (Rasmussen & Williams 2006, Alg. 3.1, in weight space):

    gradient Φᵀ(p − y) + w/v₀        Hessian Φᵀ diag(p(1 − p)) Φ + I/v₀
"""

from __future__ import annotations

import numpy as np

from gptd_rl import linalg
from gptd_rl.types import Array, BoolArray

MAX_STEPS = 30
TOLERANCE = 1e-4  # nats
SMALLEST_WEIGHT = 1e-9  # of p(1 − p), so that saturated rows keep the Hessian positive definite


def logistic_mode(features: Array, labels: BoolArray, prior_variance: float) -> Array:
    """Weights at the mode of the posterior, of shape (m,), for features of shape (n, m) and labels of shape (n,)."""
    w = np.zeros(features.shape[1])
    value = _minus_log_posterior(features, labels, w, prior_variance)
    for _ in range(MAX_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(features @ w, -30.0, 30.0)))
        gradient = features.T @ (p - labels) + w / prior_variance
        weights = np.maximum(p * (1.0 - p), SMALLEST_WEIGHT)
        hessian = (features.T * weights) @ features
        hessian.flat[:: len(w) + 1] += 1.0 / prior_variance
        step = linalg.solve(linalg.cholesky(hessian.copy), gradient)
        before, length = value, 1.0
        while (value := _minus_log_posterior(features, labels, w - length * step, prior_variance)) > before:
            length *= 0.5
            if length < TOLERANCE:
                return w
        w = w - length * step
        if before - value < TOLERANCE:
            break
    return w


def _minus_log_posterior(features: Array, labels: BoolArray, w: Array, prior_variance: float) -> float:
    f = features @ w
    likelihood = np.logaddexp(0.0, -np.where(labels, f, -f)).sum()
    return float(likelihood + 0.5 * (w @ w) / prior_variance)
