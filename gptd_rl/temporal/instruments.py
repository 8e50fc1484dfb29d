"""Instruments: functions of the present state with which rewards tell about V without bias, whatever the noise.

Regressing r on V(x) − γV(x') is biased in a stochastic system: the TD error δ contains the noise of V(x'), and so does
the regressor. But δ is a martingale difference, uncorrelated with every function of the *present* state. Projected on a
few such functions, with an orthonormal basis Q [n, k] of their values,

    y = Qᵀr = Qᵀ(E − N)V + Qᵀδ,        Cov Qᵀδ ≈ σ²I

which has the form y = FᵀV + ε of `targets`, with F = (E − N)ᵀQ. For k ≪ n hardly any noise of V(x') is left in F. Its
evidence selects kernels: unlike that of returns it is not fooled by noise that neighbouring returns share, it has no
unknown tails, and any transitions will do, consecutive or not.

The instruments do not depend on θ: a constant, principal components of linear and of quadratic terms, and the leading
ones of radial basis functions. Where transitions are too few for all of them, the last ones go; components, unlike the
terms themselves, leave no single input unseen then, and do not depend on the order of the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.linalg import symmetrise_in_place
from gptd_rl.temporal.targets import LinearTargets
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array

# At most one instrument for so many transitions: what of the noise of V(x') is left in F grows with their ratio.
ROWS_PER_INSTRUMENT = 12

# Principal components among the instruments, and the centres of the radial basis functions that they come from.
N_COMPONENTS = 12
N_CENTRES = 200

# Products of inputs are instruments for so many inputs at most.
MAX_PRODUCT_INPUTS = 8

# An input that spreads by less than this share of its size is constant.
CONSTANT = 1e-12

# Singular values below this share of the largest are rounding errors.
RANK_TOLERANCE = 1e-6

# Components of radial basis functions below this share of the leading one are left out.
RADIAL_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Moments:
    """F = (E − N)ᵀQ as a dense matrix: each target is a sum over all transitions."""

    F: Array  # [u, k]

    @property
    def n_targets(self) -> int:
        """Number k of instruments."""
        return int(self.F.shape[1])

    def rmatvec(self, values: Array) -> Array:
        """Fᵀ·values."""
        return self.F.T @ values

    def matvec(self, weights: Array) -> Array:
        """F·weights."""
        return self.F @ weights

    def project_covariance(self, K: Array) -> Array:
        """FᵀKF."""
        return self.F.T @ (symmetrise_in_place(K) @ self.F)

    def pull_back(self, A: Array) -> Array:
        """FAFᵀ."""
        return (self.F @ symmetrise_in_place(A)) @ self.F.T


def instrumented_targets(transitions: Transitions, n_categorical: int = 0) -> LinearTargets:
    """The targets y = Qᵀr of some transitions, whose last `n_categorical` columns are labels.

    Parameters
    ----------
    transitions : Transitions
    n_categorical : int

    Returns
    -------
    LinearTargets
        Over the distinct points.
    """
    Q = instruments(transitions.states, n_categorical)
    F = transitions.difference_transposed(Q)  # [p, k]
    states, place = np.unique(transitions.points, axis=0, return_inverse=True)
    merged = np.zeros((len(states), F.shape[1]))
    np.add.at(merged, place.reshape(-1), F)
    used = np.abs(merged).max(axis=1) > 0.0  # not terminal states
    return LinearTargets(states[used], Q.T @ transitions.rewards, Moments(merged[used]), Q.shape[1], 0.0, 0.0)


def instruments(states: Array, n_categorical: int = 0) -> Array:
    """Q: orthonormal values of instruments at the states that transitions leave, of shape (n, k)."""
    n, n_inputs = len(states), states.shape[1] - n_categorical
    inputs = states[:, :n_inputs]
    spread = inputs.std(axis=0)
    x = (inputs - inputs.mean(axis=0)) / np.where(spread > CONSTANT * np.abs(inputs).max(axis=0), spread, np.inf)
    blocks = [np.ones((n, 1)), _principal(x, RANK_TOLERANCE)]
    if n_inputs <= MAX_PRODUCT_INPUTS:
        products = np.column_stack([x[:, i] * x[:, j] for i in range(n_inputs) for j in range(i + 1)])
        blocks.append(_principal(products, RANK_TOLERANCE))
    labels = np.unique(states[:, n_inputs:], axis=0)  # one set of instruments for each; a single one without labels
    size = max(1, n // (ROWS_PER_INSTRUMENT * len(labels)))
    Z = np.column_stack([*blocks, _radial(x)[:, :N_COMPONENTS]])[:, :size]
    Z = np.column_stack([Z * (states[:, n_inputs:] == label).all(axis=1)[:, None] for label in labels])
    U, singular, _ = np.linalg.svd(Z, full_matrices=False)
    return np.asarray(U[:, singular > RANK_TOLERANCE * singular[0]])


def _radial(x: Array) -> Array:
    """Principal components of radial basis functions with standardised inputs."""
    centres = x[np.linspace(0, len(x) - 1, min(N_CENTRES, len(x))).round().astype(np.int64)]
    squared = (x**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2.0 * x @ centres.T
    # one standard deviation wide, more where there are many inputs
    return _principal(np.exp(-squared / max(x.shape[1], 2)), RADIAL_TOLERANCE)


def _principal(columns: Array, smallest: float) -> Array:
    """Principal components, of variance 1 each, the leading one first; those below a share of it are left out."""
    U, singular, _ = np.linalg.svd(columns - columns.mean(axis=0), full_matrices=False)
    floor = max(smallest * singular[0], RANK_TOLERANCE * float(np.linalg.norm(columns)))  # not of constants less theirs
    return np.asarray(U[:, singular > floor]) * np.sqrt(len(columns))
