"""The sparse posterior kept up to date while the policy runs: O(m²) for each transition, however many came before.

A dictionary Z of m inducing points grows by each state at which it leaves more than a share ε of the prior variance.
The posterior is that of `sparse`, in coordinates in which the prior of the weights is white: with the kernel
g + ΦCΦᵀ, ``g(Z, Z) = LLᵀ``, ``C = DDᵀ`` and V(x) = φ(x)ᵀw,

    φ(x) = [DᵀΦ(x), L⁻¹g(Z, x)]        w ~ N(0, I)        A = S + σ²I        S = Σ ggᵀ        s = Σ g·t
    mean(x) = φᵀA⁻¹s                   var(x) = σ²φᵀA⁻¹φ + g(x, x) − ‖L⁻¹g(Z, x)‖²

So no eigenvalue of A falls below σ², and a new inducing point adds a feature but leaves the others as they are.

Each reward r on the way from x to x' gives one row g with target t. Rewards with the noise σ²HHᵀ are correlated along a
segment; the rows are made independent by three sums over the segment so far: f of features, q of squared weights and h
of returns, in which each state counts κ times what the next one does:

    g = (f/√q − γ√q·φ(x'))/√q'       t = (h + rq)/√(qq')       q' = κ²q + 1       f' = κf + φ(x')       h' = κ(h + rq)

with κ = γ, and f = φ(x), q = 1, h = 0 at the first state. For the noise σ²I κ = 0: there is nothing to undo, and g is
φ(x) − γφ(x'). A terminal state has the row of a step with γ = 0; where a segment is cut off nothing is added.

The variance for intervals takes the noise as it is in a Markov chain: W = Σ_t δ_t² u_t u_tᵀ with the TD error δ_t at
the time of its update and the trace u_t = φ(x_t) + γ_{t−1}u_{t−1} (for σ²I: φ(x_t) − γ_tφ(x_{t+1})).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import blas

from gptd_rl import linalg
from gptd_rl.checks import as_numbers, check_number
from gptd_rl.inference.features import KernelSplit
from gptd_rl.inference.growing import DictionaryFeatures, GrowingPosterior, StateTable
from gptd_rl.inference.posterior import in_chunks, sample_gaussian
from gptd_rl.kernels import Kernel
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class RunningSegment:
    """The segment under way: its last state, and the sums over it that its next row needs."""

    state: Array
    f: Array  # Φᵀz, where z is the null vector of the segment so far: 1 at its last state, z_i = κ_i z_{i+1}  [m']
    q: float  # zᵀz
    h: float  # zᵀy, with y the returns so far
    u: Array  # trace of features  [m']
    phi: Array  # φ of the last state  [m']


class OnlinePosterior(GrowingPosterior):
    """A sparse posterior that takes in one transition at a time.

    Parameters
    ----------
    kernel : Kernel
    noise_variance : float
        σ².
    noise : {"stochastic", "deterministic"}
    tolerance : float
        ε, the share of the prior variance that the dictionary may leave unexplained.
    max_size : int or None
        Size at which the dictionary stops growing.
    keep_history : bool
        Whether past states are kept, so that a new inducing point is compared with all of them.
    forgetting : float
        λ, the weight of the past at each new row.
    """

    trace_decay = None

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        noise: Noise,
        tolerance: float,
        max_size: int | None,
        keep_history: bool,
        forgetting: float,
    ) -> None:
        super().__init__(kernel, tolerance, max_size)
        self.noise_variance, self.noise, self.forgetting = noise_variance, noise, forgetting
        n_explicit = len(self.features)
        self.weights = Weights(n_explicit, noise_variance, forgetting)
        self.moments = np.zeros((n_explicit, n_explicit))  # W, lower triangle
        self.history = History(self.features.split) if keep_history else None
        self.running: RunningSegment | None = None

    # ---------------------------------------------------------------------------------- learning

    def start(self, state: Array) -> None:
        """Begin a segment at its first state."""
        phi = self._enter(state)
        self.running = RunningSegment(state, f=phi, q=1.0, h=0.0, u=phi, phi=phi)
        self._keep(state)

    def step(self, reward: float, discount: float, next_state: Array) -> None:
        """Add the row V(x) − γV(x') = r, where x is the last state of the running segment."""
        phi = self._enter(next_state)
        self._add_row(reward, discount, next_state, phi)
        self._keep(next_state)

    def stop(self, terminated: bool, reward: float = 0.0) -> None:
        """End the segment; a terminal state has the row V(x) = r, that of a step with γ = 0, no matter where to."""
        assert self.running is not None
        if terminated:
            self._add_row(reward, 0.0, self.running.state, np.zeros_like(self.running.f))
        self.running = None

    def _add_row(self, reward: float, discount: float, next_state: Array, phi: Array) -> None:
        assert self.running is not None
        run = self.running
        self._add_sampling_noise(run, reward, discount, phi)
        carry = discount if self.noise == "stochastic" else 0.0  # κ
        # q' = κ²q + 1
        q_next = carry**2 * run.q + 1.0
        # g = αf − βφ(x')        t = α(h + rq)
        alpha, beta = 1.0 / np.sqrt(run.q * q_next), discount * np.sqrt(run.q / q_next)
        summed = run.h + reward * run.q
        self.weights.add(alpha * run.f - beta * phi, alpha * summed)
        if self.history is not None:
            self.history.set_row(alpha, beta, carry, alpha * summed)
        # f' = κf + φ(x')        h' = κ(h + rq)        u' = γu + φ(x')
        self.running = RunningSegment(
            next_state, carry * run.f + phi, q_next, carry * summed, discount * run.u + phi, phi
        )

    def _add_sampling_noise(self, run: RunningSegment, reward: float, discount: float, phi: Array) -> None:
        """W ← λW + δ²uuᵀ, with δ = r + γV(x') − V(x)."""
        w = self.weights.mean()
        delta = reward + discount * float(phi @ w) - float(run.phi @ w)
        u = run.u if self.noise == "stochastic" else run.phi - discount * phi
        if self.forgetting < 1.0:
            self.moments *= self.forgetting
        linalg.add_outer_in_place(self.moments, delta**2, np.ascontiguousarray(u))

    def _keep(self, state: Array) -> None:
        if self.history is not None:
            self.history.append(state)

    def _grow(self) -> None:
        # Without a history: g(x, z) ≈ g(x, Z)g(Z, Z)⁻¹g(Z, z), so that the new feature is 0 at past states.
        column, moment, new_in_f = np.zeros(len(self.features)), 0.0, 0.0
        if self.history:
            column, moment, new_in_f = self.history.column(self.features, self.forgetting)
        self.weights.grow(column, moment)
        self.moments = np.pad(self.moments, (0, 1))
        if self.running is not None:
            run = self.running
            self.running = replace(
                run, f=np.append(run.f, new_in_f), u=np.append(run.u, 0.0), phi=np.append(run.phi, 0.0)
            )

    # ---------------------------------------------------------------------------------- predicting

    def mean(self, states: Array) -> Array:
        """Posterior mean of V, of shape (n,)."""
        # φᵀA⁻¹s
        weights = self.weights.mean()
        return in_chunks(lambda x: self.features(x) @ weights, states)

    def variance(self, states: Array) -> Array:
        """Posterior variance of V under the noise model, of shape (n,)."""
        return in_chunks(self._variance, states)

    def interval_variance(self, states: Array) -> Array:
        """Variance of the error of the mean with the noise of a Markov chain, never below `variance`, of shape (n,)."""
        return in_chunks(self._interval_variance, states)

    def covariance(self, states: Array) -> Array:
        """Posterior covariance of V between all pairs of states, of shape (n, n)."""
        phi = self.features(states)
        half = phi @ self.weights.root()
        covariance = self.noise_variance * (half @ half.T) + self.features.residual_covariance(states)
        # The rounding error of the subtraction.
        prior = self.features.split.inducing.diagonal(states)
        covariance.flat[:: len(covariance) + 1] += prior * np.finfo(np.float64).eps * max(phi.shape)
        return np.asarray(covariance)

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint posterior samples, of shape (n, m)."""
        return sample_gaussian(self.mean(states), self.covariance(states), n, rng)

    def _variance(self, states: Array) -> Array:
        phi, residual = self.features.with_residuals(states)
        half = phi @ self.weights.root()
        # σ²φᵀA⁻¹φ + residual
        return np.asarray(self.noise_variance * np.einsum("nm,nm->n", half, half) + residual)

    def _interval_variance(self, states: Array) -> Array:
        phi, residual = self.features.with_residuals(states)
        R = self.weights.root()
        half = phi @ R
        v = half @ R.T  # A⁻¹φ  [n, m']
        W = linalg.symmetrise_in_place(self.moments.copy())
        prior_part = self.noise_variance**2 * np.einsum("nm,nm->n", v, v)
        variance = self.noise_variance * np.einsum("nm,nm->n", half, half)
        return np.asarray(residual + np.maximum(prior_part + np.einsum("nm,nm->n", v @ W, v), variance))

    # ---------------------------------------------------------------------------------- files

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was learnt but the dictionary, as plain data and arrays."""
        arrays: dict[str, Any] = dict(gram=self.weights.gram, moment=self.weights.moment, moments=self.moments)
        if self.history is not None:
            arrays["history"] = self.history.table
        if self.running is None:
            return {}, arrays
        run = self.running
        return dict(running=dict(q=run.q, h=run.h)), arrays | dict(f=run.f, u=run.u, phi=run.phi)

    def restore(
        self, inducing_points: Array, running_state: Array | None, header: dict[str, Any], arrays: Mapping[str, Any]
    ) -> None:
        """Take back what `to_arrays` kept; the running segment, if there is one, stands at `running_state`."""
        super().restore(inducing_points, running_state, header, arrays)
        m = len(self.features)
        self.weights.gram = as_numbers(arrays["gram"], (m, m), "gram")
        self.weights.moment = as_numbers(arrays["moment"], (m,), "moment")
        self.moments = as_numbers(arrays["moments"], (m, m), "moments")
        self.weights.root()  # raises an error unless A is positive definite
        if self.history is not None:
            self.history.table = arrays["history"]
        if running_state is not None:
            f, u, phi = (as_numbers(arrays[name], (m,), name) for name in ("f", "u", "phi"))
            q, h = header["running"]["q"], header["running"]["h"]
            check_number("q", q, above=0.0)
            check_number("h", h)
            self.running = RunningSegment(running_state, f, q, h, u, phi)


class Weights:
    """Posterior of w ~ N(0, I) from rows ``t = gᵀw + ε``, ε ~ N(0, σ²).

    A root R of the inverse, ``RRᵀ = A⁻¹``, is updated from row to row. It is better conditioned than A⁻¹, and RRᵀ
    cannot become indefinite. After some rows it is computed anew from S, so that rounding errors do not add up.
    """

    def __init__(self, size: int, noise_variance: float, forgetting: float) -> None:
        self.noise_variance, self.forgetting = noise_variance, forgetting
        self.gram, self.moment = np.zeros((size, size)), np.zeros(size)  # S, its lower triangle, and s
        self._root: Array | None = None
        self._age = 0

    def add(self, g: Array, t: float) -> None:
        """Take in one row: S ← λS + ggᵀ, s ← λs + g·t."""
        if self.forgetting < 1.0:
            self.gram *= self.forgetting
            self.moment *= self.forgetting
        linalg.add_outer_in_place(self.gram, 1.0, g)
        self.moment += t * g
        self._age += 1
        if self.forgetting < 1.0 or self._age > max(len(g), 50):
            self._root = None
        if self._root is not None:
            # (A + ggᵀ)⁻¹ = R(I − uuᵀ/d²)Rᵀ = R(I − uuᵀ/(d² + d))²Rᵀ with u = Rᵀg, d² = 1 + uᵀu
            u = g @ self._root
            d = np.sqrt(1.0 + u @ u)
            blas.dger(-1.0 / (d * d + d), u, self._root @ u, a=self._root.T, overwrite_a=1)

    def grow(self, column: Array, moment: float) -> None:
        """Give each row one feature more, where `column` is the new last column of S."""
        m = len(self.gram)
        self.gram = np.pad(self.gram, (0, 1))
        self.gram[m], self.moment = column, np.append(self.moment, moment)
        if self._root is not None:
            # A⁻¹ bordered, where no Schur complement is smaller than σ²
            u = column[:m] @ self._root
            schur = max(column[m] + self.noise_variance - u @ u, self.noise_variance)
            new = np.append(-self._root @ u, 1.0) / np.sqrt(schur)
            self._root = np.pad(self._root, (0, 1))
            self._root[:, m] = new

    def mean(self) -> Array:
        """A⁻¹s, of shape (m',)."""
        R = self.root()
        return R @ (self.moment @ R)

    def root(self) -> Array:
        """R, of shape (m', m')."""
        if self._root is None:
            I = np.eye(len(self.gram))
            L = linalg.cholesky(lambda: self.gram + self.noise_variance * I)
            self._root, self._age = np.ascontiguousarray(linalg.half_solve_transposed(L, I)), 0
        return self._root


class History(StateTable):
    """Past states and how each row is made of them: ``g = αf − βφ(x')`` with ``f' = κf + φ(x')``; α, β, κ and t."""

    def __init__(self, split: KernelSplit) -> None:
        super().__init__(split, n_columns=4)

    def column(self, features: DictionaryFeatures, forgetting: float) -> tuple[Array, float, float]:
        """Last column of S, of shape (m',), last entry of s and last entry of f, in O(n·m) time."""
        alpha, beta, carry, target = self.columns
        chain = TemporalDifference(carry, alpha > 0, np.zeros(len(self), dtype=np.int64), 1)
        # The last feature of each state, and of each row: g_m = αf − βp'
        p = features.newest(self.states)
        f = chain.solve_transposed(p)
        g = alpha * f
        g[:-1] -= beta[:-1] * p[1:]
        # Σ λ^age g_m g = Φᵀa: the same steps transposed
        age = np.cumsum((alpha > 0)[::-1])[::-1] - 1
        weighted = g * forgetting**age
        a = chain.solve(alpha * weighted)
        a[1:] -= (beta * weighted)[:-1]
        return features.transposed(self.states, a[:, None])[:, 0], float(weighted @ target), float(f[-1])
