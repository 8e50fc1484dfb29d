"""Overidentifying restrictions (Sargan, Hansen): TD errors depend on the past through the current state only.

If states are Markov, then for *any* function V the TD error ``δ_t = r_t + γ_tV(x_{t+1}) − V(x_t)`` has, given all that
happened before, an expectation that depends on x_t alone. So it is uncorrelated with what is left of a *witness* u_t,
something that happened before, once all that x_t says about it is taken away. The witnesses are the change of each
input since the last step, and the change times the input. The test sums products of two residuals (a generalised
covariance measure, Shah & Peters 2020):

    ũ_t = u_t − E[u_t | x_t]      δ̃_t = δ_t − E[δ_t | x_t]      g = Σ ũ_t(δ̃_t − δ̃_ν(t))      J = gᵀS⁻¹g

Both expectations are ridge regressions on many features ψ of the state, with penalties by generalised
cross-validation. A wrong V, and a regression that is wrong in one of the two places, do no harm. Where both are wrong,
as where V jumps, their product looks like a correlation; four things keep it out:

- δ̃_ν(t) is the mean over the nearest neighbours of x_t that lie on other stretches of the data: they have nearly the
  same error of fit, and no part in u_t.
- A witness that the state explains almost wholly (`SMALLEST_SHARE`) says nothing new, so it is left out.
- A few steps may carry most of the sum: an F distribution with the *effective* number of steps replaces χ².
- Many steps do not make a small correlation significant (`MOST_STEPS`).

All that the regressions need is one Gram matrix, ``[ψ, ψ−γψ', u, r]ᵀ[ψ, ψ−γψ', u, r]``. It and g and S are sums over
steps. What cannot be a sum, the scale of inputs, the features and the neighbours, comes from a sample of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.witnesses import Instruments, Steps, positive
from gptd_rl.types import Array, BoolArray, IntArray

# Neighbours of a step, and how many steps apart they are at least if they lie on the same stretch.
N_NEIGHBOURS = 2
LAG = 20

# Penalties of the regressions, and of V, as shares of the mean eigenvalue of Σψψᵀ.
PENALTIES = np.geomspace(1e-8, 10.0, 19)
VALUE_PENALTY = 1e-2

# The level of V is penalised by this share of that: shrunk, it would leave an error in all TD errors.
LEVEL_PENALTY = 1e-6

# A regression leaves at least this share of the degrees of freedom; where none does, there is no regression.
SMALLEST_FREEDOM = 0.5

# A witness counts if the state leaves so much of its variance unexplained.
SMALLEST_SHARE = 0.2

# TD errors below this share of the squares of rewards and values are rounding errors.
RESOLUTION = 1e-10

# More steps than these estimate the correlations better, but count as these: what errors of fit leave, a correlation of
# about 0.05, must not become significant because there are many.
MOST_STEPS = 2000

# TD errors below this share of the variance of V are mostly errors of fit, as in a deterministic system: no regression
# on a few hundred features follows a V with edges more closely. They leave a larger correlation, of up to 0.15.
FIT_RESOLUTION, MOST_STEPS_OF_FIT = 3e-4, 250

# Combinations of witnesses with less than this share of the largest variance are combinations of the others.
DEPENDENT = 1e-6


# -------------------------------------------------------------------------------------- regressions


@dataclass(frozen=True, eq=False)
class InstrumentStatistics:
    """All that the regressions need of the data. They add up over steps."""

    gram: Array  # EᵀE of rows E = [ψ, ψ − γψ', u, r]  [2m' + k + 1, 2m' + k + 1]
    n_features: int  # m'
    constant: int  # which of the features is 1
    n_steps: int

    def __add__(self, other: InstrumentStatistics) -> InstrumentStatistics:
        """Of both data."""
        return replace(self, gram=self.gram + other.gram, n_steps=self.n_steps + other.n_steps)


def instrument_statistics(data: Trajectories, instruments: Instruments) -> InstrumentStatistics:
    """One pass: a Gram matrix of features, their temporal differences, witnesses and rewards."""
    m, k = instruments.n_features, 2 * len(instruments.centre)
    gram = np.zeros((2 * m + k + 1, 2 * m + k + 1))
    steps = Steps.of(data)
    for block in steps.blocks():
        psi = instruments.features(block.states)  # [c, m']
        x = psi - block.discounts[:, None] * instruments.features(block.next_states)  # [c, m']
        E = np.column_stack([psi, x, instruments.witnesses(block), block.rewards])
        gram += E.T @ E
    return InstrumentStatistics(gram, m, len(instruments.points), len(steps))


@dataclass(frozen=True, eq=False)
class Regressions:
    """Weights of V, and of the expectations of witnesses and TD errors given the state."""

    value_weights: Array  # w, V = ψᵀw  [m']
    witness_weights: Array  # [m', k]
    error_weights: Array  # [m']
    shares: Array  # mean squares of ũ on new data, over those of u: what the state leaves unexplained  [k]
    error_share: float  # mean square of δ̃ on new data, over that of rewards and values
    variance_share: float  # the same over the variance of V

    @classmethod
    def of(cls, known: InstrumentStatistics) -> Regressions:
        """V by instruments (LSTD), then ridge regressions of witnesses and TD errors on ψ."""
        n, m, gram = known.n_steps, known.n_features, known.gram
        G, A, X = gram[:m, :m], gram[:m, m : 2 * m], gram[m : 2 * m, m : 2 * m]
        b, c, squares = gram[:m, -1], gram[m : 2 * m, -1], np.diagonal(gram)[2 * m :].copy()
        # w = (Σψxᵀ + diag ρ)⁻¹Σψr
        penalties = np.full(m, VALUE_PENALTY * np.trace(G) / m)
        penalties[known.constant] *= LEVEL_PENALTY
        w = np.asarray(np.linalg.solve(A + np.diag(penalties), b), dtype=np.float64)
        scale = float(squares[-1] + w @ G @ w)
        # δ = r − xᵀw:  Σδ² = Σr² − 2wᵀΣxr + wᵀΣxxᵀw,  Σψδ = Σψr − Σψxᵀw
        squares[-1] = max(squares[-1] - 2 * w @ c + w @ X @ w, 0.0)
        onto = np.column_stack([gram[:m, 2 * m : -1], b - A @ w])  # [m', k + 1]
        weights, left = _cross_validated_ridge(G, onto, squares, n)
        shares = left / positive(squares)
        # the constant is among the features, and Σψ its column of G
        variance = float(w @ G @ w) - float(w @ G[:, known.constant]) ** 2 / n
        of_squares, of_variance = (left[-1] / total if total > 0.0 else 0.0 for total in (scale, variance))
        return cls(w, weights[:, :-1], weights[:, -1], shares[:-1], of_squares, of_variance)

    @property
    def has_errors(self) -> bool:
        """Whether there are TD errors that are not rounding errors."""
        return self.error_share > RESOLUTION

    @property
    def most_steps(self) -> int:
        """As how many steps they count at most."""
        return MOST_STEPS if self.variance_share > FIT_RESOLUTION else MOST_STEPS_OF_FIT

    @property
    def counted(self) -> BoolArray:
        """Which witnesses say something that the state does not, of shape (k,)."""
        return self.shares > SMALLEST_SHARE

    def residuals(self, steps: Steps, instruments: Instruments) -> tuple[Array, Array]:
        """ũ of shape (n, k) and δ̃ of shape (n,)."""
        psi = instruments.features(steps.states)
        x = psi - steps.discounts[:, None] * instruments.features(steps.next_states)
        errors = steps.rewards - x @ self.value_weights - psi @ self.error_weights
        return instruments.witnesses(steps) - psi @ self.witness_weights, errors


def _cross_validated_ridge(G: Array, onto: Array, squares: Array, n: int) -> tuple[Array, Array]:
    """Regressions of some targets on ψ, each with the penalty of the lowest generalised cross-validation error.

    Parameters
    ----------
    G : ndarray of shape (m', m')
        Σψψᵀ.
    onto : ndarray of shape (m', k)
        Σψyᵀ of the targets y.
    squares : ndarray of shape (k,)
        Σy².
    n : int
        Number of rows.

    Returns
    -------
    weights : ndarray of shape (m', k)
    errors : ndarray of shape (k,)
        Sums of squared errors, as they would be on new data.
    """
    e, Q = np.linalg.eigh(G)
    e = np.maximum(e, 0.0)[:, None]  # [m', 1]
    c = Q.T @ onto  # [m', k]
    best, coefficients = np.full(len(squares), np.inf), np.zeros_like(c)
    for penalty in PENALTIES * max(e.mean(), np.finfo(float).tiny):
        # a = (G + ρI)⁻¹Σψy,  Σ(y − ψᵀa)² = Σy² − 2aᵀΣψy + aᵀGa,  GCV: divided by (1 − tr(G(G + ρI)⁻¹)/n)²
        a = c / (e + penalty)
        errors = np.maximum(squares - 2 * (a * c).sum(axis=0) + (a * e * a).sum(axis=0), 0.0)
        freedom = 1.0 - float((e / (e + penalty)).sum()) / n
        better = errors / freedom**2 < best if freedom > SMALLEST_FREEDOM else np.zeros(len(best), dtype=bool)
        best[better], coefficients[:, better] = errors[better] / freedom**2, a[:, better]
    return Q @ coefficients, np.minimum(best, squares)


# -------------------------------------------------------------------------------------- neighbours


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Steps of a sample with their residuals δ̃, to be subtracted from those of steps nearby."""

    places: Array  # states along the principal axes  [n, D]
    errors: Array  # δ̃  [n]
    stretch: NDArray[np.uint64]  # [n]
    number: IntArray  # [n]

    @classmethod
    def of(cls, steps: Steps, instruments: Instruments, regressions: Regressions) -> Neighbours:
        """Residuals of a sample."""
        errors = np.concatenate([regressions.residuals(block, instruments)[1] for block in steps.blocks()])
        return cls(instruments.along_axes(steps.states), errors, steps.stretch, steps.number)

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import KDTree

        return KDTree(self.places)

    def errors_near(self, steps: Steps, instruments: Instruments) -> Array:
        """Mean δ̃ of each step's nearest neighbours, of shape (n,); 0 where there is none.

        A step's own recent past does not count: δ_{t−1} and the witness u_t share the noise of x_t.
        """
        nearest = min(len(self.errors), 2 * LAG + 1 + N_NEIGHBOURS)  # so many that enough are allowed
        _, near = self._tree.query(instruments.along_axes(steps.states), nearest)
        near = near.reshape(len(steps), nearest)
        apart = np.abs(self.number[near] - steps.number[:, None]) > LAG
        allowed = apart | (self.stretch[near] != steps.stretch[:, None])  # [n, nearest]
        allowed &= allowed.cumsum(axis=1) <= N_NEIGHBOURS
        return (self.errors[near] * allowed).sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)


# -------------------------------------------------------------------------------------- the restrictions


def products(steps: Steps, instruments: Instruments, regressions: Regressions, neighbours: Neighbours) -> Array:
    """a_t = ũ_t(δ̃_t − δ̃_ν(t)), of shape (n, k): their expectations are zero if states are Markov."""
    witnesses, errors = regressions.residuals(steps, instruments)
    return witnesses * (errors - neighbours.errors_near(steps, instruments))[:, None]


@dataclass(frozen=True, eq=False)
class Restrictions:
    """Sums of the products over steps. They add up."""

    g: Array  # Σa  [k]
    S: Array  # Σaaᵀ  [k, k]
    n_past: int  # steps with a step before

    @classmethod
    def of(cls, a: Array, steps: Steps) -> Restrictions:
        """Sum the products `a` of some steps."""
        return cls(a.sum(axis=0), a.T @ a, int(steps.has_past.sum()))

    def __add__(self, other: Restrictions) -> Restrictions:
        """Of both data."""
        return Restrictions(self.g + other.g, self.S + other.S, self.n_past + other.n_past)


def restrictions(
    data: Trajectories, instruments: Instruments, regressions: Regressions, neighbours: Neighbours
) -> Restrictions:
    """One pass: products of residuals, summed."""
    k = len(regressions.shares)
    total = Restrictions(np.zeros(k), np.zeros((k, k)), 0)
    for block in Steps.of(data).blocks():
        total = total + Restrictions.of(products(block, instruments, regressions, neighbours), block)
    return total


@dataclass(frozen=True)
class OveridentificationTest:
    """J, its degrees of freedom, its p-value, and the effective number of steps; (0, 0, 1, 0) without a witness."""

    statistic: float = 0.0
    dof: int = 0
    pvalue: float = 1.0
    n_effective: float = 0.0

    @classmethod
    def of(
        cls, known: Restrictions, witnesses: IntArray, sample: Array, most_steps: int = MOST_STEPS
    ) -> OveridentificationTest:
        """Test the restrictions of some witnesses.

        Parameters
        ----------
        known : Restrictions
            Of all data.
        witnesses : ndarray of shape (w,)
            Numbers of the witnesses.
        sample : ndarray of shape (n, k)
            Products of a sample, or of all data: they tell how evenly steps carry the sums.
        most_steps : int
            As how many steps they count at most.
        """
        witnesses = witnesses[np.diagonal(known.S)[witnesses] > 0]
        if not len(witnesses):
            return cls()
        scale = np.sqrt(np.diagonal(known.S)[witnesses])
        e, Q = np.linalg.eigh(known.S[np.ix_(witnesses, witnesses)] / np.outer(scale, scale))
        own = e > DEPENDENT * e[-1]
        half = Q[:, own] / np.sqrt(e[own]) / scale[:, None]  # S⁻¹ = half·halfᵀ  [w, k]
        # J = gᵀS⁻¹g, of `most_steps` steps if there are more
        k, counted = half.shape[1], min(1.0, most_steps / known.n_past)
        statistic = counted * float(((known.g[witnesses] @ half) ** 2).sum())
        # h_t = a_tᵀS⁻¹a_t, the share of a step;  n = Σh/Σh², as many steps if all carried alike: in all data, Σh = k
        h = ((sample[:, witnesses] @ half) ** 2).sum(axis=1)
        n = counted * k * float(h.sum()) / float(h @ h) if h.any() else 0.0
        # Hotelling's T² of n steps
        pvalue = float(special.fdtrc(k, n - k, statistic * (n - k) / (n * k))) if n > k + 1 else 1.0
        return cls(statistic, k, pvalue, n)
