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

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import blas

from gptd_rl import linalg
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.features import KernelSplit
from gptd_rl.inference.inducing import UNPIVOTED_ROUNDING, Dictionary
from gptd_rl.inference.posterior import in_chunks, sample_gaussian
from gptd_rl.kernels import Kernel
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.temporal.shards import BLOCK
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


class OnlinePosterior:
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

    bootstraps = False

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
        self.noise_variance, self.noise, self.tolerance = noise_variance, noise, tolerance
        self.max_size, self.forgetting = max_size, forgetting
        self.split = KernelSplit.of(kernel)
        C = self.split.weight_covariance
        self._explicit_factor = np.tril(linalg.cholesky(C.copy)) if len(C) else C  # D
        self.dictionary = Dictionary.empty(self.split.inducing)
        self.weights = Weights(self.split.n_explicit, noise_variance, forgetting)
        self.moments = np.zeros((self.split.n_explicit, self.split.n_explicit))  # W, lower triangle
        self.history = History(self.split) if keep_history else None
        self.running: RunningSegment | None = None

    @property
    def inducing_points(self) -> Array:
        """The dictionary, of shape (m, n_dims)."""
        return self.dictionary.states

    # ---------------------------------------------------------------------------------- learning

    def condition_on(self, data: Trajectories) -> OnlinePosterior:
        """Take in whole segments."""
        for first, last, terminated in zip(data.starts, data.last, data.terminated, strict=True):
            self.start(data.states[first])
            for i in range(first, last):
                self.step(data.rewards[i], data.discounts[i], data.states[i + 1])
            self.stop(terminated, data.rewards[last])
        return self

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

    def _enter(self, state: Array) -> Array:
        """φ of a state, which first joins the dictionary if that cannot express it, of shape (m',)."""
        (phi,), (residual,) = self._features(state[None])
        prior = float(self.split.inducing.diagonal(state[None])[0])
        is_full = self.max_size is not None and len(self.dictionary.states) >= self.max_size
        if is_full or residual <= max(self.tolerance, UNPIVOTED_ROUNDING) * prior:
            return np.asarray(phi)
        self.dictionary = self.dictionary.extended(state)
        # Without a history: g(x, z) ≈ g(x, Z)g(Z, Z)⁻¹g(Z, z), so that the new feature is 0 at past states.
        column, moment, new_in_f = np.zeros(len(phi) + 1), 0.0, 0.0
        if self.history:
            column, moment, new_in_f = self.history.column(self.dictionary, self._explicit_factor, self.forgetting)
        self.weights.grow(column, moment)
        self.moments = np.pad(self.moments, (0, 1))
        if self.running is not None:
            run = self.running
            self.running = replace(
                run, f=np.append(run.f, new_in_f), u=np.append(run.u, 0.0), phi=np.append(run.phi, 0.0)
            )
        return np.append(phi, np.sqrt(residual))

    # ---------------------------------------------------------------------------------- predicting

    def _features(self, states: Array) -> tuple[Array, Array]:
        """φ, of shape (n, m'), and the residual variance, of shape (n,)."""
        residual, half = self.dictionary.residuals(states)
        return np.column_stack([self.split.basis(states) @ self._explicit_factor, half.T]), residual

    def mean(self, states: Array) -> Array:
        """Posterior mean of V, of shape (n,)."""
        # φᵀA⁻¹s
        weights = self.weights.mean()
        return in_chunks(lambda x: self._features(x)[0] @ weights, states)

    def variance(self, states: Array) -> Array:
        """Posterior variance of V under the noise model, of shape (n,)."""
        return in_chunks(self._variance, states)

    def interval_variance(self, states: Array) -> Array:
        """Variance of the error of the mean with the noise of a Markov chain, never below `variance`, of shape (n,)."""
        return in_chunks(self._interval_variance, states)

    def covariance(self, states: Array) -> Array:
        """Posterior covariance of V between all pairs of states, of shape (n, n)."""
        phi, _ = self._features(states)
        half = phi @ self.weights.root()
        _, explained = self.dictionary.residuals(states)
        residual = self.split.inducing(states, states) - explained.T @ explained
        covariance = self.noise_variance * (half @ half.T) + residual
        # The rounding error of the subtraction.
        prior = self.split.inducing.diagonal(states)
        covariance.flat[:: len(covariance) + 1] += prior * np.finfo(np.float64).eps * max(phi.shape)
        return np.asarray(covariance)

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint posterior samples, of shape (n, m)."""
        return sample_gaussian(self.mean(states), self.covariance(states), n, rng)

    def _variance(self, states: Array) -> Array:
        phi, residual = self._features(states)
        half = phi @ self.weights.root()
        # σ²φᵀA⁻¹φ + residual
        return np.asarray(self.noise_variance * np.einsum("nm,nm->n", half, half) + residual)

    def _interval_variance(self, states: Array) -> Array:
        phi, residual = self._features(states)
        R = self.weights.root()
        half = phi @ R
        v = half @ R.T  # A⁻¹φ  [n, m']
        W = linalg.symmetrise_in_place(self.moments.copy())
        prior_part = self.noise_variance**2 * np.einsum("nm,nm->n", v, v)
        variance = self.noise_variance * np.einsum("nm,nm->n", half, half)
        return np.asarray(residual + np.maximum(prior_part + np.einsum("nm,nm->n", v @ W, v), variance))


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


class History:
    """Past states and how each row is made of them: ``g = αf − βφ(x')`` with ``f' = κf + φ(x')``."""

    def __init__(self, split: KernelSplit) -> None:
        self._split = split
        width = split.inducing.width or 0
        self._table, self._n = np.zeros((64, 4 + width)), 0  # α, β, κ, t (0 where there is no row) and the state

    def __len__(self) -> int:
        return self._n

    def append(self, state: Array) -> None:
        """Add a state, as yet without a row."""
        if self._n == len(self._table):
            more = np.zeros((max(64, self._n), self._table.shape[1]))
            self._table = np.concatenate([self._table, more])
        self._table[self._n, 4:] = state
        self._n += 1

    def set_row(self, alpha: float, beta: float, carry: float, target: float) -> None:
        """Give the last state its row."""
        self._table[self._n - 1, :4] = alpha, beta, carry, target

    def column(self, dictionary: Dictionary, explicit_factor: Array, forgetting: float) -> tuple[Array, float, float]:
        """Last column of S, of shape (m',), last entry of s and last entry of f, in O(n·m) time."""
        states, (alpha, beta, carry, target) = self._table[: self._n, 4:], self._table[: self._n, :4].T
        kernel, Z, L = dictionary.kernel, dictionary.states, dictionary.L
        chain = TemporalDifference(carry, alpha > 0, np.zeros(self._n, dtype=np.int64), 1)
        blocks = [slice(i, i + BLOCK) for i in range(0, self._n, BLOCK)]
        # The last feature of each state, g(X, Z)L⁻ᵀe_m
        newest = np.zeros(len(Z))
        newest[-1] = 1.0
        onto_newest = linalg.half_solve_transposed(L, newest)
        p = np.concatenate([kernel(states[rows], Z) @ onto_newest for rows in blocks])  # [n]
        # … and of each row, g_m = αf − βp'
        f = chain.solve_transposed(p)
        g = alpha * f
        g[:-1] -= beta[:-1] * p[1:]
        # Σ λ^age g_m g = Φᵀa: the same steps transposed
        age = np.cumsum((alpha > 0)[::-1])[::-1] - 1
        weighted = g * forgetting**age
        a = chain.solve(alpha * weighted)
        a[1:] -= (beta * weighted)[:-1]
        Ga = sum((a[rows] @ kernel(states[rows], Z) for rows in blocks), np.zeros(len(Z)))
        explicit = self._split.basis(states).T @ a
        column = np.concatenate([explicit_factor.T @ explicit, linalg.half_solve(L, Ga)])
        return column, float(weighted @ target), float(f[-1])

    @property
    def table(self) -> Array:
        """α, β, κ, t and the state of each row, of shape (n, 4 + n_dims)."""
        return self._table[: self._n]

    @table.setter
    def table(self, rows: Array) -> None:
        self._table, self._n = rows.copy(), len(rows)
