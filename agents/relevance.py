"""Which state variables matter to Q: the paper's model selection, on the targets of a fitted Q-function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from gptd_rl import linalg
from gptd_rl.agents.multiscale import MultiScale
from gptd_rl.types import Array

# Lengthscales to consider, in standard deviations of each input: `MultiScale` spans a factor of 16 by itself.
SHORTEST, LONGEST = 0.5, 8.0
SIGNAL = 1e-2, 1e4  # v₀ and σ² to consider, in variances of the targets
NOISE = 1e-5, 1.0
MAX_TARGETS = 400
MAX_STEPS = 25


@dataclass(frozen=True)
class Selection:
    """A kernel and the evidence for it.

    Attributes
    ----------
    kernel : MultiScale
    signal_variance, noise_variance : float
        v₀ and σ², in squared units of the targets.
    log_evidence : float
        Of `n_targets` targets, drawn from all.
    """

    kernel: MultiScale
    signal_variance: float
    noise_variance: float
    log_evidence: float
    n_targets: int


def spread(states: Array) -> Array:
    """Standard deviation of each input, of shape (n_dims,); 1 where it never varied."""
    deviation = states.std(axis=0)
    return np.where(deviation > 0, deviation, 1.0)


def select_relevances(
    states: Array,
    actions: NDArray[np.int64],
    targets: Array,
    action_correlation: float,
    rng: np.random.Generator,
    start: MultiScale | None = None,
) -> Selection:
    """Climb the evidence p(targets | ω, v₀, σ²) from `start`.

    Parameters
    ----------
    states : ndarray of shape (n, n_dims)
    actions : ndarray of shape (n,)
    targets : ndarray of shape (n,)
        Must vary.
    action_correlation : float
        ρ.
    rng : Generator
        Draws MAX_TARGETS of the targets if there are more.
    start : MultiScale, optional
        By default every input counts alike, one standard deviation as one.
    """
    scale, centre, size = spread(states), targets.mean(), targets.std()
    relevances = np.ones(states.shape[1]) if start is None else start.relevances * scale**2
    if len(states) > MAX_TARGETS:
        drawn = np.sort(rng.choice(len(states), MAX_TARGETS, replace=False))
        states, actions, targets = states[drawn], actions[drawn], targets[drawn]
    x, y = states / scale, (targets - centre) / size
    alike = np.where(actions[:, np.newaxis] == actions, 1.0, action_correlation)
    bounds = [(LONGEST**-2.0, SHORTEST**-2.0)] * x.shape[1] + [SIGNAL, NOISE]
    limits = np.log(bounds)
    theta = np.clip(np.log([*relevances, 1.0, 1e-2]), *limits.T)
    climbed = minimize(
        _minus_log_evidence,
        theta,
        (x, y, alike),
        jac=True,
        method="L-BFGS-B",
        bounds=limits,
        options=dict(maxiter=MAX_STEPS),
    )
    *relevances, v0, noise = np.exp(climbed.x)
    log_evidence = -float(climbed.fun) - len(y) * np.log(size)
    # One standard deviation of the most relevant input counts as one: the evidence says which inputs matter more than
    # others; how fine Q is, it judges from targets that are themselves no finer than the last Q was.
    kernel = MultiScale(np.array(relevances) / max(relevances) / scale**2)
    return Selection(kernel, float(v0 * size**2), float(noise * size**2), log_evidence, len(y))


def _minus_log_evidence(theta: Array, x: Array, y: Array, alike: Array) -> tuple[float, Array]:
    """−log N(y; 0, S) with S = v₀ K∘R + σ²I, and its gradient with respect to θ = log [ω, v₀, σ²].

    Parameters
    ----------
    theta : ndarray of shape (n_dims + 2,)
    x : ndarray of shape (n, n_dims)
    y : ndarray of shape (n,)
    alike : ndarray of shape (n, n)
        R: 1 where actions are equal, ρ elsewhere.
    """
    relevances, (v0, noise) = np.exp(theta[:-2]), np.exp(theta[-2:])
    K, slope = MultiScale(relevances).with_slope(x, x)
    K *= v0 * alike
    slope *= v0 * alike
    L = linalg.cholesky(lambda: K + noise * np.eye(len(K)))
    w = linalg.solve(L, y)
    value = 0.5 * float(y @ w) + 0.5 * linalg.log_det(L) + 0.5 * len(y) * np.log(2.0 * np.pi)
    # A = ∂/∂S = ½(S⁻¹ − wwᵀ)
    A = 0.5 * (linalg.symmetrise_in_place(linalg.inverse_in_place(L)) - np.multiply.outer(w, w))
    # ∂K_ij/∂ω_d = −½ slope_ij (x_id − x_jd)²
    B = A * slope
    by_relevance = -relevances * (B.sum(axis=1) @ x**2 - np.einsum("nd,nd->d", x, B @ x))
    return value, np.array([*by_relevance, float((A * K).sum()), noise * float(np.trace(A))])
