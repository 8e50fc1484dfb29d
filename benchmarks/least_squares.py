"""Linear values from transitions, as the field estimates them: LSTD(λ), and fitted evaluation by repeated regression.

Everything that has to be chosen, the ridge and λ, is chosen on left-out segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, lapack, solve_triangular

from gptd_rl import Trajectories
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.kernels import Kernel

Array = NDArray[np.float64]
Features = Callable[[Array], Array]

N_FOLDS = 5
RIDGES = tuple(10.0**k for k in range(-6, 2))  # shares of the mean squared feature
LAMBDAS = (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 1.0)


def kernel_features(kernel: Kernel, states: Array, max_size: int = 300, tolerance: float = 1e-6) -> Features:
    """ψ(x) = L⁻¹k(Z, x) with K_ZZ = LLᵀ, Z by pivoted Cholesky until all but a share `tolerance` is represented."""
    candidates = np.unique(states, axis=0)
    scale = float(kernel.diagonal(candidates).max())
    if len(candidates) > 5000:
        candidates = np.random.default_rng(0).choice(candidates, 5000, replace=False)
    Z = candidates[incomplete_cholesky(kernel, candidates, max_size, tolerance * scale).indices]
    K = kernel(Z, Z)
    K.flat[:: len(K) + 1] += 1e-9 * scale
    L = np.linalg.cholesky(K)
    return lambda x: solve_triangular(L, kernel(Z, x), lower=True).T


def radial_features(states: Array, n_centres: int = 50) -> Features:
    """Radial basis functions around a subset of the states, standardised, with the median distance as width, and 1."""
    scale = states.std(axis=0) + 1e-12
    x, rng = states / scale, np.random.default_rng(0)
    centres = np.unique(x[rng.choice(len(x), min(n_centres, len(x)), replace=False)], axis=0)
    d = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(axis=2))
    width = np.median(d[d > 0])

    def features(at: Array) -> Array:
        d2 = ((at[:, None] / scale - centres[None]) ** 2).sum(axis=2)
        return np.column_stack([np.exp(-0.5 * d2 / width**2), np.ones(len(at))])

    return features


@dataclass(frozen=True)
class Rows:
    """Transitions in features: r = (ψ − γψ')ᵀw on average, where γ is 0 into terminal states."""

    now: Array  # ψ  [n, m]
    following: Array  # ψ'  [n, m]
    discounts: Array  # γ  [n]
    rewards: Array  # [n]
    segment: NDArray[np.int64]  # [n], ascending

    @classmethod
    def of(cls, data: Trajectories, features: Features) -> Rows:
        """A row for each transition of states."""
        psi, i = features(data.states), np.flatnonzero(data.has_transition)
        return cls(psi[i], psi[i + 1], discounts_of(data), data.rewards[i], data.segment_of[i])

    @cached_property
    def continues(self) -> NDArray[np.bool_]:
        """Whether the row before is of the same segment."""
        return np.r_[False, self.segment[1:] == self.segment[:-1]]

    @cached_property
    def differences(self) -> Array:
        """ψ − γψ'."""
        return self.now - self.discounts[:, None] * self.following

    def part(self, mask: NDArray[np.bool_]) -> Rows:
        """Some of the rows, whole segments."""
        arrays = (self.now, self.following, self.discounts, self.rewards, self.segment)
        return Rows(*(a[mask] for a in arrays))

    def folds(self, n: int = N_FOLDS) -> list[Rows]:
        """Segments dealt out to folds; if there are too few, blocks of rows."""
        number = self.segment
        if len(np.unique(number)) < 2 * n:
            number = np.arange(len(number)) * 2 * n // len(number)
            number = number + self.segment * 4 * n
        _, number = np.unique(number, return_inverse=True)
        fold = np.random.default_rng(0).permutation(int(number.max()) + 1)[number] % n
        numbered = replace(self, segment=number)
        return [numbered.part(fold == k) for k in range(n)]

    def traces(self, lam: float) -> Array:
        """z_t = ψ_t + λγ_{t−1}z_{t−1} within a segment."""
        if lam == 0:
            return self.now
        band = np.zeros((2, len(self.now)), order="F")
        band[0], band[1, :-1] = 1.0, -lam * np.where(self.continues[1:], self.discounts[:-1], 0.0)
        z, info = lapack.dtbtrs(band, np.asfortranarray(self.now), uplo="L", diag="U")
        assert info == 0
        return np.ascontiguousarray(z)


def discounts_of(data: Trajectories) -> Array:
    """γ of each transition, 0 into terminal states."""
    into_terminal = np.zeros(len(data), dtype=bool)
    into_terminal[data.last[data.terminated] - 1] = True
    return np.where(into_terminal, 0.0, data.discounts)[data.has_transition]


@dataclass(frozen=True)
class Moments:
    """A = Σz(ψ − γψ')ᵀ, b = Σzr and Σ‖ψ‖²/m of some rows, with traces z of λ."""

    A: Array
    b: Array
    scale: float

    @classmethod
    def of(cls, rows: Rows, lam: float) -> Moments:
        """Sums over the rows."""
        z = rows.traces(lam)
        return cls(z.T @ rows.differences, z.T @ rows.rewards, float(np.square(rows.now).sum()) / rows.now.shape[1])

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.A + other.A, self.b + other.b, self.scale + other.scale)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.A - other.A, self.b - other.b, self.scale - other.scale)

    def solve(self, ridge: float) -> Array:
        """w = (A + ρI)⁻¹b, ρ being `ridge` mean squared features."""
        return np.linalg.solve(self.A + ridge * self.scale * np.eye(len(self.b)), self.b)


def lstd(rows: Rows, lambdas: Iterable[float] = (0.0,), ridges: Iterable[float] = RIDGES) -> Array:
    """Weights of LSTD(λ) with the ridge, and the λ if there are several, of the least projected Bellman error.

    On left-out segments that is Σ_{s≠t} δ_sδ_t ψ_sᵀG⁻¹ψ_t with G = Σψψᵀ, which is without bias. The mean squared TD
    error would prefer values that hardly vary, because it holds the variance of γV(x'); so would gᵀG⁻¹g with g = Σδψ,
    which holds the terms s = t. Errors of returns mislead where runs are cut short. Measured on seeds 0 and 1 of the
    stochastic tasks, on which it was chosen, RMSE over that of the best ridge, geometric mean: 1.1; 4.5 by TD errors,
    1.5 by returns, 1.2 by gᵀG⁻¹g or by the best fixed ridge.
    """
    folds = [LeftOut.of(fold) for fold in rows.folds()]
    best, chosen = np.inf, (0.0, 0.0)
    for lam in lambdas:
        parts = [Moments.of(fold.rows, lam) for fold in folds]
        total = reduce(Moments.__add__, parts)
        for ridge in ridges:
            error = sum(f.bellman_error((total - part).solve(ridge)) for f, part in zip(folds, parts, strict=True))
            if error < best:
                best, chosen = error, (lam, ridge)
    return Moments.of(rows, chosen[0]).solve(chosen[1])


@dataclass(frozen=True)
class LeftOut:
    """Rows that weights are judged by."""

    rows: Rows
    factor: tuple[Array, bool]  # of G, slightly regularised
    leverages: Array  # ψᵀG⁻¹ψ  [n]

    @classmethod
    def of(cls, rows: Rows) -> LeftOut:
        """Factorise G."""
        G = rows.now.T @ rows.now
        factor = cho_factor(G + 1e-3 * np.trace(G) / len(G) * np.eye(len(G)))
        return cls(rows, factor, np.einsum("ni,in->n", rows.now, cho_solve(factor, rows.now.T)))

    def bellman_error(self, w: Array) -> float:
        """Σ_{s≠t} δ_sδ_t ψ_sᵀG⁻¹ψ_t."""
        errors = self.rows.rewards - self.rows.differences @ w
        g = self.rows.now.T @ errors
        return float(g @ cho_solve(self.factor, g) - self.leverages @ errors**2)


def fitted_evaluation(rows: Rows) -> Array:
    """Weights after ridge regressions of r + γψ'ᵀw on ψ, again and again: linear fitted (Q) evaluation.

    Generalised cross-validation chooses the ridge of the regressions of two effective horizons, then it is held. If
    that diverges, as bootstrapping may, it starts again with larger ridges only.
    """
    regressions = Regressions.of(rows)
    found = (regressions.repeated(smallest) for smallest in range(len(RIDGES)))
    return next((w for w in found if w is not None), np.zeros(rows.now.shape[1]))


@dataclass(frozen=True)
class Regressions:
    """Ridge regressions of r + γψ'ᵀw on ψ for any w, by the moments of the rows."""

    rows: Rows
    e: Array  # ΨᵀΨ = U diag(e) Uᵀ
    U: Array
    b: Array  # Ψᵀr
    C: Array  # ΨᵀΓΨ'
    D: Array  # Ψ'ᵀΓ²Ψ'
    d: Array  # Ψ'ᵀΓr

    @classmethod
    def of(cls, rows: Rows) -> Regressions:
        """Sums over the rows."""
        e, U = np.linalg.eigh(rows.now.T @ rows.now)
        ahead = rows.discounts[:, None] * rows.following
        b, C = rows.now.T @ rows.rewards, rows.now.T @ ahead
        return cls(rows, np.maximum(e, 0.0), U, b, C, ahead.T @ ahead, ahead.T @ rows.rewards)

    def repeated(self, smallest: int) -> Array | None:
        """Weights after convergence, with ridges from the one numbered `smallest` on; None if they diverge."""
        shrink = 1 / (self.e + np.array(RIDGES[smallest:])[:, None] * self.e.mean())  # [ridges, m]
        w = np.zeros(len(self.e))
        horizon = 1 / (1 - min(self.rows.discounts.max(), 0.999))
        largest = np.abs(self.rows.rewards).max() * horizon  # |V| at most
        for t in range(2000):
            c = self.U.T @ (self.b + self.C @ w)
            if t < 2 * horizon:
                ridge = int(np.argmin(self._cross_validation(w, c, shrink)))
            following = self.U @ (c * shrink[ridge])
            change = np.abs(self.rows.now[:200] @ (following - w)).max()
            w = following
            if not change < 3 * largest:
                return None
            if change < 1e-4 * largest and t > 2 * horizon:
                break
        return w

    def _cross_validation(self, w: Array, c: Array, shrink: Array) -> Array:
        """Generalised cross-validation of each ridge: the squared residuals over (n − degrees of freedom)²."""
        n, rr = len(self.rows.rewards), float(self.rows.rewards @ self.rows.rewards)
        squared = rr + 2 * self.d @ w + w @ self.D @ w - (c**2 * shrink * (2 - self.e * shrink)).sum(axis=1)
        freedom = (self.e * shrink).sum(axis=1)
        return squared / np.maximum(n - freedom, 1e-3 * n) ** 2
