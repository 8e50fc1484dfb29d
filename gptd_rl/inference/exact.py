"""Exact GPTD: the posterior over values and the evidence of the rewards.

With the targets ``y = FᵀV + ε`` everything follows from one matrix, ``S = FᵀKF + σ²I``. It is built, factored,
and inverted in one buffer; its inverse, less an outer product, is the gradient of the evidence with respect to S.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from gptd_rl import linalg
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence, in_chunks, sample_gaussian
from gptd_rl.temporal.targets import LinearTargets, Targets, build_targets
from gptd_rl.types import Array


def covariance(model: Model, targets: LinearTargets, scratch: Array | None = None) -> Array:
    """Lower triangle of S = FᵀKF + σ²I, [q, q], in `scratch`, [u, u], if it fits; paper eq. (7) in other terms."""
    S = targets.operator.project_covariance(model.kernel.lower(targets.states, scratch))
    S = np.ascontiguousarray(S)
    S.flat[:: len(S) + 1] += model.noise_variance
    return S


def factorise(model: Model, targets: LinearTargets, scratch: Array | None = None) -> Array:
    """Cholesky factor of S, of shape (q, q)."""
    parts = targets.parts(model.kernel)
    if len(parts) == 1:
        return linalg.cholesky(lambda: covariance(model, targets, scratch))
    L = np.zeros((len(targets.y), len(targets.y)))
    for rows, part in parts:
        L[np.ix_(rows, rows)] = factorise(model, part)
    return L


def evidence(model: Model, targets: LinearTargets, scratch: Array | None = None) -> Evidence:
    """Log marginal likelihood of the rewards."""
    return reduce(add, (_solve(model, part, _fitting(scratch, part))[0] for _, part in targets.parts(model.kernel)))


def evidence_and_gradient(model: Model, targets: LinearTargets, scratch: Array | None = None) -> tuple[Evidence, Array]:
    """Log marginal likelihood, and the gradient of *minus* it with respect to θ."""
    values, gradients = [], []
    for _, part in targets.parts(model.kernel):
        value, L, w = _solve(model, part, _fitting(scratch, part))
        # ∂(−log p)/∂S = ½(S⁻¹ − wwᵀ)
        A = linalg.add_outer_in_place(linalg.inverse_in_place(L), -1.0, w)
        # Merged rows depend on the noise only.
        merged = part.n_merged_rows - part.within_visit_ss / model.noise_variance
        values.append(value)
        gradients.append(0.5 * gradient(model, part, A, merged))
    return reduce(add, values), np.sum(gradients, axis=0)


def _solve(model: Model, targets: LinearTargets, scratch: Array | None) -> tuple[Evidence, Array, Array]:
    """Evidence, the factor of S and w = S⁻¹y, of shape (q,)."""
    L = factorise(model, targets, scratch)
    w = linalg.solve(L, targets.y)
    return _evidence(model, targets, L, w), L, w


def _fitting(scratch: Array | None, part: LinearTargets) -> Array | None:
    """As much of `scratch` as a part needs."""
    u = len(part.states)
    return scratch if scratch is None or len(scratch) == u else scratch.reshape(-1)[: u * u].reshape(u, u)


def gradient(model: Model, targets: LinearTargets, A: Array, extra: float = 0.0) -> Array:
    """∂L/∂θ from A = ∂L/∂S (lower triangle, overwritten): paper eq. (17); `extra` is added to ∂L/∂log σ²."""
    noise = model.noise_variance * float(np.trace(A)) + extra
    by_value = targets.operator.pull_back(A)  # ∂L/∂K = F A Fᵀ  [u, u]
    return model.pack_gradient(model.kernel.contract_lower(by_value, targets.states), noise)


def fisher_information(model: Model, targets: LinearTargets, step: float = 1e-4) -> Array:
    """Expected curvature of −log p(r) at θ, of shape (P, P): ½ tr(S⁻¹ ∂S/∂θ_i S⁻¹ ∂S/∂θ_j).

    Each ∂S/∂θ_i is taken by central differences and whitened: W_i = L⁻¹ ∂S/∂θ_i L⁻ᵀ, so that the result is the Gram
    matrix ½ tr(W_i W_j), positive semidefinite however small σ² is. Meant for small samples: P matrices are kept.
    """
    L = factorise(model, targets)
    n = len(L)
    lower = np.tri(n, dtype=bool)
    halves = np.zeros((len(model.theta), n * (n + 1) // 2))  # lower triangles of W_i, diagonals by √2: ½‖W‖² = ‖half‖²
    for i in np.flatnonzero(np.isfinite(model.theta)):
        ahead, behind = (_moved(model, int(i), sign * step) for sign in (1.0, -1.0))
        derivative = (covariance(ahead, targets) - covariance(behind, targets)) / (2.0 * step)
        half = linalg.half_solve(L, linalg.symmetrise_in_place(derivative))
        W = linalg.half_solve(L, half.T)
        W.flat[:: n + 1] /= np.sqrt(2.0)
        halves[i] = W[lower]
    information = halves @ halves.T
    information[model.noise_index, model.noise_index] += 0.5 * targets.n_merged_rows
    return information


def _moved(model: Model, i: int, step: float) -> Model:
    theta = model.theta
    theta[i] += step
    return model.with_theta(theta)


def _evidence(model: Model, targets: LinearTargets, L: Array, w: Array) -> Evidence:
    noise = model.noise_variance
    log_det = linalg.log_det(L) + targets.n_merged_rows * np.log(noise)
    fit = float(targets.y @ w) + targets.within_visit_ss / noise
    return Evidence(0.5 * log_det + targets.log_jacobian, 0.5 * fit, targets.n_rows)


@dataclass(frozen=True, eq=False)
class ExactPosterior:
    """The posterior of V, paper eqs. (8), (9) and (10), and an interval with the noise as it is in a Markov chain."""

    model: Model
    targets: Targets
    L: Array  # factor of S  [q, q]
    weights: Array  # α = F S⁻¹ y  [u]
    squared_errors: Array  # δ_t², squared TD errors of the posterior mean  [n]

    inducing_points = None  # all states are in use
    trace_decay = None

    @classmethod
    def condition(cls, model: Model, targets: Targets) -> ExactPosterior:
        """Condition the prior `model` on the targets."""
        L = factorise(model, targets)
        weights = targets.operator.matvec(linalg.solve(L, targets.y))
        mean = _mean(model, targets, weights, targets.states)
        at_visits = mean if targets.visits is None else mean[targets.visits]
        # δ = r − H V̂
        errors = np.where(targets.H.has_row, targets.data.rewards, 0.0) - targets.H.apply(at_visits)
        return cls(model, targets, L, weights, errors**2)

    def condition_on(self, data: Trajectories) -> ExactPosterior:
        """The posterior given further segments, θ as it is."""
        return ExactPosterior.condition(self.model, build_targets(self.targets.data + data, self.targets.noise))

    def evidence(self, model: Model) -> Evidence:
        """Log marginal likelihood of the rewards under `model`, which is the one conditioned on up to its noise."""
        if model.noise_variance != self.model.noise_variance:
            return evidence(model, self.targets)
        return _evidence(model, self.targets, self.L, linalg.solve(self.L, self.targets.y))

    def mean(self, states: Array) -> Array:
        """Posterior mean of V, paper eq. (9), of shape (m,)."""
        return _mean(self.model, self.targets, self.weights, states)

    def variance(self, states: Array) -> Array:
        """Posterior variance of V under the noise model, paper eq. (10), of shape (m,)."""
        return in_chunks(lambda x: self._variance(x)[0], states)

    def interval_variance(self, states: Array) -> Array:
        """Variance of the error of the posterior mean with the noise of a Markov chain, of shape (m,).

        The residuals of returns share their future noise; the TD errors δ_t do not. With u the weight of each reward in
        the mean, the sampling noise is Σ_t δ_t² u_t². It takes the place of σ²‖g‖², the noise of independent residuals.
        The result is never below `variance`.
        """
        return in_chunks(self._interval_variance, states)

    def covariance(self, states: Array) -> Array:
        """Posterior covariance of V between all pairs of states, of shape (m, m)."""
        K, half = self.model.kernel(states), self._half(states)
        # paper eq. (10) for pairs: k(x, x') − k(x)ᵀF S⁻¹ Fᵀk(x')
        covariance = K - half.T @ half
        # The rounding error of the subtraction, as in `_variance`.
        resolution = K.diagonal() * np.finfo(np.float64).eps * max(len(self.L), len(K))
        covariance.flat[:: len(K) + 1] += resolution
        return covariance

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint posterior samples, of shape (n, m)."""
        return sample_gaussian(self.mean(states), self.covariance(states), n, rng)

    def _half(self, states: Array) -> Array:
        """L⁻¹Fᵀk*, of shape (q, m); distances are centred on the data, so that no state depends on its batch."""
        return linalg.half_solve(
            self.L, self.targets.operator.rmatvec(self.model.kernel(states, self.targets.states).T.copy())
        )

    def _variance(self, states: Array) -> tuple[Array, Array]:
        prior = self.model.kernel.diagonal(states)
        half = self._half(states)
        # paper eq. (10): k** − k*ᵀF S⁻¹ Fᵀk*
        variance = prior - np.einsum("qm,qm->m", half, half)
        # Below this the subtraction is rounding.
        resolution = prior * np.finfo(np.float64).eps * len(self.L)
        return np.maximum(variance, resolution), half

    def _interval_variance(self, states: Array) -> Array:
        variance, half = self._variance(states)
        g = linalg.half_solve_transposed(self.L, half)  # S⁻¹Fᵀk*  [q, m]
        u = self.targets.reward_weights(g)  # [n, m]
        prior_part = variance - self.model.noise_variance * np.einsum("qm,qm->m", g, g)
        return np.maximum(np.maximum(prior_part, 0.0) + self.squared_errors @ (u * u), variance)


def _mean(model: Model, targets: Targets, weights: Array, states: Array) -> Array:
    # paper eq. (9): k*ᵀα
    return in_chunks(lambda x: model.kernel(x, targets.states) @ weights, states)
