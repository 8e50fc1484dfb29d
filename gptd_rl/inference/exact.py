"""Exact GPTD: the posterior over values and the evidence of the rewards.

With the observations ``y = FᵀV + ε`` everything follows from one matrix, ``S = FᵀKF + σ²I``. It is built, factored,
and inverted in one buffer; its inverse, less an outer product, is the gradient of the evidence with respect to S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from gptd_rl import linalg
from gptd_rl.inference.model import NOISE, Model, pack_gradient
from gptd_rl.temporal.targets import Targets
from gptd_rl.types import Array

# States predicted at a time: bounds the memory of a prediction to CHUNK·n.
CHUNK = 512


@dataclass(frozen=True)
class Evidence:
    """The log marginal likelihood log p(r | states, θ) of the rewards, and its two opposing parts (paper eq. 3.1)."""

    complexity: float  # ½ log det Q
    data_fit: float  # ½ rᵀQ⁻¹r
    n_rows: float  # number of rewards, the mean of it over several parts

    @property
    def log_likelihood(self) -> float:
        """−(complexity + data fit + ½·rows·log 2π)."""
        return -(self.complexity + self.data_fit + 0.5 * self.n_rows * np.log(2.0 * np.pi))

    @classmethod
    def mean(cls, each: Sequence[Evidence]) -> Evidence:
        """Average over several parts of the data."""
        complexity, fit, n_rows = np.mean([(e.complexity, e.data_fit, e.n_rows) for e in each], axis=0)
        return cls(float(complexity), float(fit), float(n_rows))

    def __add__(self, other: Evidence) -> Evidence:
        """Of independent data."""
        return Evidence(self.complexity + other.complexity, self.data_fit + other.data_fit, self.n_rows + other.n_rows)


def covariance(model: Model, seen: Targets, scratch: Array | None = None) -> Array:
    """Lower triangle of S = FᵀKF + σ²I, of shape (q, q); in `scratch`, of shape (u, u), where that can be."""
    S = seen.operator.project_covariance(model.kernel.lower(seen.states, scratch))
    S = np.ascontiguousarray(S)
    S.flat[:: len(S) + 1] += model.noise_variance
    return S


def factorise(model: Model, seen: Targets, scratch: Array | None = None) -> Array:
    """Cholesky factor of S, of shape (q, q)."""
    parts = seen.parts(model.kernel)
    if len(parts) == 1:
        return linalg.cholesky(lambda: covariance(model, seen, scratch))
    L = np.zeros((len(seen.targets), len(seen.targets)))
    for rows, part in parts:
        L[np.ix_(rows, rows)] = factorise(model, part)
    return L


def evidence(model: Model, seen: Targets, scratch: Array | None = None) -> Evidence:
    """Log marginal likelihood of the rewards."""
    return reduce(add, (_solve(model, part, _room(scratch, part))[0] for _, part in seen.parts(model.kernel)))


def evidence_and_gradient(model: Model, seen: Targets, scratch: Array | None = None) -> tuple[Evidence, Array]:
    """Log marginal likelihood, and the gradient of *minus* it with respect to θ."""
    values, gradients = [], []
    for _, part in seen.parts(model.kernel):
        value, L, w = _solve(model, part, _room(scratch, part))
        # ∂(−log p)/∂S = ½(S⁻¹ − wwᵀ)
        A = linalg.add_outer_in_place(linalg.inverse_in_place(L), -1.0, w)
        # The within_visit_ss and the left-over rows see the noise only.
        left_over = part.n_merged_rows - part.within_visit_ss / model.noise_variance
        values.append(value)
        gradients.append(0.5 * gradient(model, part, A, left_over))
    return reduce(add, values), np.sum(gradients, axis=0)


def _solve(model: Model, seen: Targets, scratch: Array | None) -> tuple[Evidence, Array, Array]:
    """Evidence, the factor of S and w = S⁻¹y, of shape (q,)."""
    L = factorise(model, seen, scratch)
    w = linalg.solve(L, seen.targets)
    return _evidence(model, seen, L, w), L, w


def _room(scratch: Array | None, part: Targets) -> Array | None:
    """As much of `scratch` as a part needs."""
    u = len(part.states)
    return scratch if scratch is None or len(scratch) == u else scratch.reshape(-1)[: u * u].reshape(u, u)


def gradient(model: Model, seen: Targets, A: Array, beside: float = 0.0) -> Array:
    """∂L/∂θ from A = ∂L/∂S (lower triangle, overwritten); `beside` is what ∂L/∂log σ² gets apart from S."""
    noise = model.noise_variance * float(np.trace(A)) + beside
    by_value = seen.operator.pull_back(A)  # ∂L/∂K = F A Fᵀ  [u, u]
    return pack_gradient(model.kernel.contract_lower(by_value, seen.states), noise)


def fisher_information(model: Model, seen: Targets, step: float = 1e-4) -> Array:
    """Expected curvature of −log p(r) at θ, of shape (P, P): ½ tr(S⁻¹ ∂S/∂θ_i S⁻¹ ∂S/∂θ_j).

    One ∂S/∂θ_i at a time, by central differences; contracting it gives a whole row. Meant for small samples: it
    steers an optimiser, so its own error does not matter.
    """
    inverse = linalg.symmetrise_in_place(linalg.inverse_in_place(factorise(model, seen)))
    rows = []
    for i, value in enumerate(model.theta):
        if not np.isfinite(value):
            rows.append(np.zeros(len(model.theta)))
            continue
        ahead, behind = (_moved(model, i, sign * step) for sign in (1.0, -1.0))
        derivative = (covariance(ahead, seen) - covariance(behind, seen)) / (2.0 * step)
        derivative = linalg.symmetrise_in_place(derivative)
        rows.append(gradient(model, seen, 0.5 * (inverse @ derivative @ inverse)))
    information = np.array(rows)
    information[NOISE, NOISE] += 0.5 * seen.n_merged_rows
    return 0.5 * (information + information.T)


def _moved(model: Model, i: int, step: float) -> Model:
    theta = model.theta
    theta[i] += step
    return model.with_theta(theta)


def _evidence(model: Model, seen: Targets, L: Array, w: Array) -> Evidence:
    noise = model.noise_variance
    log_det = linalg.log_det(L) + seen.n_merged_rows * np.log(noise)
    fit = float(seen.targets @ w) + seen.within_visit_ss / noise
    return Evidence(0.5 * log_det + seen.log_jacobian, 0.5 * fit, seen.n_rows)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the rewards say about values: paper eqs. (9) and (10), and an interval with the noise as it really is."""

    model: Model
    seen: Targets
    L: Array  # factor of S  [q, q]
    weights: Array  # α = F S⁻¹ y  [u]
    squared_errors: Array  # δ_t², squared TD errors of the posterior mean  [n]

    @classmethod
    def condition(cls, model: Model, seen: Targets) -> Posterior:
        """Condition the prior `model` on the rewards `seen`."""
        L = factorise(model, seen)
        weights = seen.operator.matvec(linalg.solve(L, seen.targets))
        mean = _mean(model, seen, weights, seen.states)
        at_visits = mean if seen.visits is None else mean[seen.visits]
        # δ = r − H V̂
        errors = np.where(seen.H.has_row, seen.data.rewards, 0.0) - seen.H.apply(at_visits)
        return cls(model, seen, L, weights, errors**2)

    subset = None  # every state stands for itself

    def evidence(self, model: Model) -> Evidence:
        """Log marginal likelihood of the rewards under `model`, which is the one conditioned on up to its noise."""
        if model.noise_variance != self.model.noise_variance:
            return evidence(model, self.seen)
        return _evidence(model, self.seen, self.L, linalg.solve(self.L, self.seen.targets))

    def mean(self, states: Array) -> Array:
        """Posterior mean of V, of shape (m,)."""
        return _mean(self.model, self.seen, self.weights, states)

    def variance(self, states: Array) -> Array:
        """Posterior variance of V under the noise model as it stands, of shape (m,)."""
        return in_chunks(lambda x: self._variance(x)[0], states)

    def covariance(self, states: Array) -> Array:
        """Posterior covariance of V between all pairs of states, of shape (m, m)."""
        K = self.model.kernel(states)
        half = linalg.half_solve(self.L, self.seen.operator.rmatvec(self.model.kernel(self.seen.states, states)))
        # paper eq. (10) for pairs: k(x, x') − k(x)ᵀF S⁻¹ Fᵀk(x')
        covariance = K - half.T @ half
        # What the subtraction leaves uncertain, as in `_variance`.
        resolution = K.diagonal() * np.finfo(np.float64).eps * max(len(self.L), len(K))
        covariance.flat[:: len(K) + 1] += resolution
        return covariance

    def martingale_variance(self, states: Array) -> Array:
        """Variance of the error of the posterior mean when the noise is what it is in a Markov chain, of shape (m,).

        The returns' residuals share their future noise; the TD errors δ_t do not. With u the weight of each reward in
        the mean, the sampling noise is Σ_t δ_t² u_t². It takes the place of σ²‖g‖², what independent residuals would
        add.
        """
        return in_chunks(self._martingale_variance, states)

    def _variance(self, states: Array) -> tuple[Array, Array]:
        prior = self.model.kernel.diagonal(states)
        f = self.seen.operator.rmatvec(self.model.kernel(self.seen.states, states))  # Fᵀk*  [q, m]
        half = linalg.half_solve(self.L, f)
        # paper eq. (10): k** − k*ᵀF S⁻¹ Fᵀk*
        variance = prior - np.einsum("qm,qm->m", half, half)
        # Below this the subtraction is rounding, and claims of more certainty would be made up.
        resolution = prior * np.finfo(np.float64).eps * len(self.L)
        return np.maximum(variance, resolution), half

    def _martingale_variance(self, states: Array) -> Array:
        variance, half = self._variance(states)
        g = linalg.half_solve_transposed(self.L, half)  # S⁻¹Fᵀk*  [q, m]
        u = self.seen.reward_weights(g)  # [n, m]
        prior_left_open = variance - self.model.noise_variance * np.einsum("qm,qm->m", g, g)
        return np.maximum(prior_left_open, 0.0) + self.squared_errors @ (u * u)


def _mean(model: Model, seen: Targets, weights: Array, states: Array) -> Array:
    # paper eq. (9): k*ᵀα
    return in_chunks(lambda x: model.kernel(x, seen.states) @ weights, states)


def in_chunks(function: Callable[[Array], Array], states: Array) -> Array:
    """`function` of each state, a chunk of states at a time, of shape (m,)."""
    parts = [function(states[i : i + CHUNK]) for i in range(0, len(states), CHUNK)]
    return np.concatenate([np.zeros(0), *parts])
