"""Q of the greedy policy from all transitions ever seen: Gaussian-process regression, evaluate and improve in turns.

This is fitted Q iteration (Ernst et al. 2005). Each sweep evaluates and improves the policy by one step: it regresses
Q on ``r + γ max_a' Q(x', a')``, for a Gaussian process whose prior mean is the largest value there can be. So what was
never tried looks good, and the greedy policy explores. The process is k(x, x')·ρ between two actions and
k(x, x') for one: ρ = 0 is the δ kernel of the paper.

With features ``φ(x) = L⁻¹k_m(x)`` of m states that stand for all, ``Q(x, a) = μ + φ(x)ᵀw_a``. The normal equations
of all actions together have size m·|A|, but their blocks are coupled only through the sum of the w_a:

    [ blockdiag(G_a + λα I) − λβ (11ᵀ ⊗ I) ] w = Φᵀ(y − μ)        G_a = Φ_aᵀΦ_a

with α = 1/(1−ρ), β = ρ/((1−ρ)(1−ρ+|A|ρ)), the parts of R⁻¹ = αI − β11ᵀ (as in
`ActionKernel.level_precision`), so that Woodbury's identity needs only m×m matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gptd_rl import linalg
from gptd_rl.agents.multiscale import MultiScale
from gptd_rl.agents.replay import Transitions
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.types import Array

MAX_SWEEPS = 200
# Sweeps end when the values of the states reached change by less than this share of their spread, on average.
SETTLED = 1e-3
# The subset is chosen from this many states at most, until each is explained but for this share of its variance.
MAX_CANDIDATES = 1500
UNEXPLAINED = 1e-4


@dataclass(frozen=True)
class Critic:
    """How smooth Q is taken to be.

    Attributes
    ----------
    noise_share : float
        λ = σ²/v₀, noise of the targets over variance of Q.
    action_correlation : float
        ρ, from 0 to below 1: how alike different actions are before they were tried.
    """

    noise_share: float
    action_correlation: float

    def __post_init__(self) -> None:
        if not self.noise_share > 0.0:
            raise ValueError(f"noise_share must be positive; got {self.noise_share}.")
        if not 0.0 <= self.action_correlation < 1.0:
            raise ValueError(f"action_correlation must lie in [0, 1); got {self.action_correlation}.")


@dataclass(frozen=True, eq=False)
class QFunction:
    """What each action is worth in each state.

    Attributes
    ----------
    kernel : MultiScale
    subset : ndarray of shape (m, n_dims)
        States that stand for all.
    weights : ndarray of shape (m, n_actions)
        K_mm⁻¹ times Q on the subset, less the prior mean.
    prior_mean : float
        μ, what the unknown is worth.
    """

    kernel: MultiScale
    subset: Array
    weights: Array
    prior_mean: float

    def values(self, states: Array) -> Array:
        """Q, of shape (n_states, n_actions)."""
        return self.prior_mean + self.kernel(states, self.subset) @ self.weights

    def greedy(self, states: Array) -> NDArray[np.int64]:
        """Number of the best action in each state, of shape (n_states,)."""
        return self.values(states).argmax(axis=1)


@dataclass(frozen=True, eq=False)
class Fit:
    """A Q-function and how it was come by.

    Attributes
    ----------
    q : QFunction
        The posterior mean.
    draw : QFunction
        A draw from the posterior (Thompson sampling).
    targets : ndarray of shape (n,)
        ``r + γ max_a' Q(x', a')`` of every transition, in the last sweep.
    bounds : tuple of 2 floats
        Smallest and largest value that the rewards seen allow.
    n_sweeps : int
    residual : float
        Root mean square of what Q leaves of the targets.
    """

    q: QFunction
    draw: QFunction
    targets: Array
    bounds: tuple[float, float]
    n_sweeps: int
    residual: float


def value_bounds(rewards: Array, gamma: float) -> tuple[float, float]:
    """Smallest and largest value that rewards like these allow; that of a terminal state, 0, is between them."""
    return min(0.0, float(rewards.min())) / (1.0 - gamma), max(0.0, float(rewards.max())) / (1.0 - gamma)


@dataclass(frozen=True, eq=False)
class Design:
    """Transitions in terms of the states that stand for all: what the regression of Q needs.

    Attributes
    ----------
    data : Transitions
    n_actions : int
    gamma : float
        Discount, below 1.
    kernel : MultiScale
    subset : ndarray of shape (m, n_dims)
        States that stand for all.
    L : ndarray of shape (m, m)
        Factor of their covariance.
    features, ahead : ndarray of shape (n, m)
        φ of the states left and of the states reached.
    """

    data: Transitions
    n_actions: int
    gamma: float
    kernel: MultiScale
    subset: Array
    L: Array
    features: Array
    ahead: Array

    @classmethod
    def of(
        cls,
        data: Transitions,
        n_actions: int,
        gamma: float,
        kernel: MultiScale,
        subset_size: int,
        rng: np.random.Generator,
    ) -> Design:
        """Choose at most `subset_size` states to stand for all, from candidates drawn by `rng` if there are many."""
        candidates = data.states
        if len(candidates) > MAX_CANDIDATES:
            candidates = candidates[np.sort(rng.choice(len(candidates), MAX_CANDIDATES, replace=False))]
        subset = candidates[incomplete_cholesky(kernel, candidates, subset_size, UNEXPLAINED).indices]
        L = linalg.cholesky(lambda: kernel(subset, subset))
        features, ahead = (linalg.half_solve(L, kernel(subset, x)).T for x in (data.states, data.reached))
        return cls(data, n_actions, gamma, kernel, subset, L, features, ahead)

    def q_function(self, w: Array, prior_mean: float) -> QFunction:
        """Q from weights on the features, of shape (m, n_actions)."""
        return QFunction(self.kernel, self.subset, linalg.half_solve_transposed(self.L, w), prior_mean)


def fit_q(design: Design, critic: Critic, rng: np.random.Generator, start: QFunction | None = None) -> Fit:
    """Sweep until the values settle.

    Parameters
    ----------
    design : Design
    critic : Critic
        How smooth Q is taken to be.
    rng : Generator
        For the draw.
    start : QFunction, optional
        Where the values start from, instead of the largest.
    """
    data, features, ahead = design.data, design.features, design.ahead
    low, high = value_bounds(data.rewards, design.gamma)
    regression = _Regression.of(features, data.actions, design.n_actions, critic)
    values = np.full(len(data), high) if start is None else np.clip(start.values(data.reached).max(axis=1), low, high)
    discounts = design.gamma * ~data.terminated
    n_sweeps, change = 0, np.inf
    while n_sweeps < MAX_SWEEPS and change > SETTLED * max(float(values.std()), SETTLED):
        n_sweeps += 1
        targets = data.rewards + discounts * values
        w = regression.solve(targets - high)  # [m, |A|]
        improved = np.clip(high + (ahead @ w).max(axis=1), low, high)
        values, change = improved, float(np.abs(improved - values).mean())
    residual = float(np.sqrt(np.mean((high + _at(features, w, data.actions) - targets) ** 2)))
    drawn = _draw(regression, features, data.actions, targets - high, residual, critic, rng)
    mean, draw = (design.q_function(weights, high) for weights in (w, drawn))
    return Fit(mean, draw, targets, (low, high), n_sweeps, residual)


def _at(features: Array, w: Array, actions: NDArray[np.int64]) -> Array:
    """φ(x_i)ᵀw_{a_i}, of shape (n,)."""
    return np.asarray((features @ w)[np.arange(len(actions)), actions])


def _draw(
    regression: _Regression,
    features: Array,
    actions: NDArray[np.int64],
    targets: Array,
    deviation: float,
    critic: Critic,
    rng: np.random.Generator,
) -> Array:
    """Weights drawn from the posterior with σ = `deviation`, of shape (m, n_actions).

    A draw from the prior, conditioned on noisy targets (Matheron's rule), so that nothing else is to be factorised.
    """
    m, n_actions, rho = features.shape[1], len(regression.factors), critic.action_correlation
    # w⁰ ~ N(0, v₀ R ⊗ I) with R = (1−ρ)I + ρ11ᵀ and v₀ = σ²/λ
    prior = np.sqrt(rho) * rng.standard_normal((m, 1)) + np.sqrt(1.0 - rho) * rng.standard_normal((m, n_actions))
    prior *= deviation / np.sqrt(critic.noise_share)
    # w = w⁰ + P⁻¹Φᵀ(y + ε − Φw⁰)
    noisy = targets + deviation * rng.standard_normal(len(targets))
    return prior + regression.solve(noisy - _at(features, prior, actions))


@dataclass(frozen=True, eq=False)
class _Regression:
    """The normal equations, factorised."""

    features: list[Array]  # Φ_a  [n_a, m]
    rows: list[NDArray[np.int64]]  # which of the targets they belong to
    factors: list[Array]  # of G_a + λα I
    coupling: Array | None  # factor of I/λβ − Σ_a (G_a + λα I)⁻¹; None if ρ = 0

    @classmethod
    def of(cls, features: Array, actions: NDArray[np.int64], n_actions: int, critic: Critic) -> _Regression:
        """Factorise them."""
        noise, rho = critic.noise_share, critic.action_correlation
        alpha = 1.0 / (1.0 - rho)
        beta = rho / ((1.0 - rho) * (1.0 - rho + n_actions * rho))
        rows = [np.flatnonzero(actions == a) for a in range(n_actions)]
        parts = [features[i] for i in rows]
        ridge = noise * alpha * np.eye(features.shape[1])
        grams = [phi.T @ phi + ridge for phi in parts]
        factors = [linalg.cholesky(gram.copy) for gram in grams]
        if rho == 0.0:
            return cls(parts, rows, factors, None)
        inverses = sum(linalg.symmetrise_in_place(linalg.inverse_in_place(L.copy())) for L in factors)
        coupling = np.eye(len(ridge)) / (noise * beta) - inverses
        return cls(parts, rows, factors, linalg.cholesky(coupling.copy))

    def solve(self, targets: Array) -> Array:
        """Weights w, of shape (m, n_actions), for targets of shape (n,)."""
        right = [phi.T @ targets[i] for phi, i in zip(self.features, self.rows, strict=True)]
        w = np.stack([linalg.solve(L, b) for L, b in zip(self.factors, right, strict=True)], axis=1)
        if self.coupling is not None:
            shared = linalg.solve(self.coupling, w.sum(axis=1))
            w += np.stack([linalg.solve(L, shared) for L in self.factors], axis=1)
        return w
