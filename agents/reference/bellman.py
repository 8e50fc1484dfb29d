"""The equation V = r + γ P V, for chains of many states with few successors each."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, bicgstab

from gptd_rl.types import Array

TOLERANCE = 1e-6  # largest error of a solution


def solve(transitions: csr_array, rewards: Array, gamma: float) -> Array:
    """Solution V of V = r + γ P V, each entry within `TOLERANCE`.

    BiCGSTAB is fast. Where it fails to converge, fixed-point iterations do, slowly.

    Parameters
    ----------
    transitions : csr_array of shape (n, n)
        P, with no negative entries and rows that add up to at most 1.
    rewards : ndarray of shape (n,)
    gamma : float

    Returns
    -------
    ndarray of shape (n,)
    """
    n = len(rewards)
    operator = LinearOperator((n, n), matvec=lambda v: v - gamma * (transitions @ v), dtype=float)

    def residual(values: Array) -> Array:
        return rewards - operator.matvec(values)

    values, left = np.zeros(n), rewards
    while error_bound(left, gamma) > TOLERANCE:
        with np.errstate(all="ignore"):  # a breakdown shows in the residual
            correction, _ = bicgstab(operator, left, rtol=1e-3, maxiter=200)
        trial = values + correction
        if not np.abs(residual(trial)).max() < np.abs(left).max() / 2:
            trial = sweep(values, transitions, rewards, gamma, times=200)
        values, left = trial, residual(trial)
    return values


def sweep(values: Array, transitions: csr_array, rewards: Array, gamma: float, *, times: int) -> Array:
    """Values of shape (n,) after putting V ← r + γ P V a number of times."""
    for _ in range(times):
        values = rewards + gamma * (transitions @ values)
    return values


def error_bound(residual: Array, gamma: float) -> float:
    """Bound on every error of values that the next sweep would change by `residual`."""
    return float(np.abs(residual).max()) / (1 - gamma)


def check_gamma(gamma: float) -> None:
    """Refuse a discount for which the equation need not have a solution."""
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma: expected at least 0 and less than 1, got {gamma!r}.")
