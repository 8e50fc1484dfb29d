"""Regression of Q on inducing states that all actions share: m×m matrices instead of one of size m·|A|.

With features ``φ(x) = L⁻¹k_m(x)`` of m inducing states, ``K_mm = LLᵀ``, and weights W of shape [m, |A|],

    Q(x, a) = μ + φ(x)ᵀw_a + e(x, a)        Cov(w_a, w_b) = v₀R_ab I        R = (1−ρ)I + ρ11ᵀ

where e is the part of the prior that the features do not explain. This is `sparse` on the product of inducing states
and actions. The weights of all actions have the posterior precision P/σ², with λ = σ²/v₀ and R⁻¹ = αI − β11ᵀ:

    P = blockdiag(G_a + λαI) − λβ(11ᵀ ⊗ I)        G_a = Φ_aᵀΦ_a
    α = 1/(1−ρ)        β = ρ/((1−ρ)(1−ρ+|A|ρ))

P is block diagonal for ρ = 0. Otherwise Woodbury's identity with A_a = G_a + λαI needs one more m×m matrix:

    [P⁻¹]_ab = δ_ab A_a⁻¹ + A_a⁻¹C⁻¹A_b⁻¹        C = I/(λβ) − Σ_a A_a⁻¹
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gptd_rl import linalg
from gptd_rl.checks import as_numbers, as_points, check_number
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence, in_chunks, sample_gaussian
from gptd_rl.kernels import Kernel
from gptd_rl.types import Array, IntArray


@dataclass(frozen=True, eq=False)
class StateFeatures:
    """φ(x) = L⁻¹k_m(x), the whitened features of m inducing states.

    Attributes
    ----------
    kernel : Kernel
        Of states, with unit variance.
    inducing_points : ndarray of shape (m, n_dims)
    """

    kernel: Kernel
    inducing_points: Array

    @cached_property
    def L(self) -> Array:
        """Cholesky factor of K_mm, of shape (m, m)."""
        return linalg.cholesky(lambda: self.kernel(self.inducing_points, self.inducing_points))

    def __call__(self, states: Array) -> Array:
        """Φ, of shape (n, m)."""
        return linalg.half_solve(self.L, self.kernel(states, self.inducing_points).T).T

    def residual_variance(self, states: Array, features: Array) -> Array:
        """k(x, x) − φ(x)ᵀφ(x), the prior variance that the features do not explain, of shape (n,)."""
        return np.maximum(self.kernel.diagonal(states) - np.einsum("nm,nm->n", features, features), 0.0)


@dataclass(frozen=True, eq=False)
class QFunction:
    """A function of states and actions in the span of the inducing states: Q(x, a) = μ + k_m(x)ᵀβ_a.

    Attributes
    ----------
    kernel : Kernel
        Of states.
    inducing_points : ndarray of shape (m, n_dims)
    weights : ndarray of shape (m, n_actions)
        β = L⁻ᵀW.
    prior_mean : float
        μ.
    """

    kernel: Kernel
    inducing_points: Array
    weights: Array
    prior_mean: float

    @classmethod
    def checked(
        cls, kernel: Kernel, inducing_points: Array, weights: Array, prior_mean: float, n_actions: int | None = None
    ) -> QFunction:
        """A Q-function of a file."""
        points = as_points(inducing_points, kernel.n_dims)
        check_number("prior_mean", prior_mean)
        return cls(kernel, points, as_numbers(weights, (len(points), n_actions), "weights"), float(prior_mean))

    def __call__(self, states: Array) -> Array:
        """Q of every action, of shape (n, n_actions)."""
        return np.asarray(self.prior_mean + self.kernel(states, self.inducing_points) @ self.weights)

    def greedy(self, states: Array) -> IntArray:
        """Index of the best action in each state, the first of several, of shape (n,)."""
        return self(states).argmax(axis=1)


@dataclass(frozen=True)
class ActionPrior:
    """Prior covariance of the weights relative to the noise.

    Attributes
    ----------
    n_actions : int
    noise_share : float
        λ = σ²/v₀, noise variance of the targets over prior variance of Q.
    correlation : float
        ρ, from 0 to below 1, the prior correlation of Q between two actions.
    """

    n_actions: int
    noise_share: float
    correlation: float = 0.0

    def __post_init__(self) -> None:
        if not self.noise_share > 0.0:
            raise ValueError(f"noise_share must be positive; got {self.noise_share}.")
        if not 0.0 <= self.correlation < 1.0:
            raise ValueError(f"action_correlation must lie in [0, 1); got {self.correlation}.")

    @property
    def inverse(self) -> tuple[float, float]:
        """α and β of R⁻¹ = αI − β11ᵀ."""
        rho = self.correlation
        return 1.0 / (1.0 - rho), rho / ((1.0 - rho) * (1.0 - rho + self.n_actions * rho))

    def between(self, actions: IntArray, others: IntArray) -> Array:
        """R between two sets of actions, of shape (n, n_others)."""
        return np.where(actions[:, None] == others, 1.0, self.correlation)

    def sample(self, m: int, rng: np.random.Generator) -> Array:
        """Weights from N(0, R ⊗ I), of shape (m, n_actions)."""
        rho = self.correlation
        shared, own = rng.standard_normal((m, 1)), rng.standard_normal((m, self.n_actions))
        return np.sqrt(rho) * shared + np.sqrt(1.0 - rho) * own


@dataclass(frozen=True, eq=False)
class ActionRegression:
    """The normal equations Pw = Φᵀy, factorised once for any number of targets."""

    prior: ActionPrior
    features: list[Array]  # Φ_a  [n_a, m]
    rows: list[IntArray]  # targets of each action
    factors: list[Array]  # of A_a = G_a + λαI  [m, m]
    coupling: Array | None  # factor of C  [m, m]; None if ρ = 0

    @classmethod
    def of(cls, features: Array, actions: IntArray, prior: ActionPrior) -> ActionRegression:
        """Factorise for `features` of shape (n, m) and the index of each action, of shape (n,)."""
        alpha, beta = prior.inverse
        rows = [np.flatnonzero(actions == a) for a in range(prior.n_actions)]
        parts = [features[i] for i in rows]
        ridge = prior.noise_share * alpha * np.eye(features.shape[1])
        grams = [phi.T @ phi + ridge for phi in parts]
        factors = [linalg.cholesky(gram.copy) for gram in grams]
        if prior.correlation == 0.0:
            return cls(prior, parts, rows, factors, None)
        inverses = sum(linalg.symmetrise_in_place(linalg.inverse_in_place(L.copy())) for L in factors)
        coupling = np.eye(len(ridge)) / (prior.noise_share * beta) - inverses
        return cls(prior, parts, rows, factors, linalg.cholesky(coupling.copy))

    @classmethod
    def complete(cls, features: Array, prior: ActionPrior) -> ActionRegression:
        """Factorise for rows that have a target for every action: one factor for all, without correlation.

        Targets are those of the first action, then those of the second, … : n of each for `features` of shape (n, m).
        All weights come from one smoother: ``Q_a − Q_b = S(y_a − y_b)``.
        """
        assert prior.correlation == 0.0
        n, m = features.shape
        gram = features.T @ features + prior.noise_share * np.eye(m)
        rows = [a * n + np.arange(n) for a in range(prior.n_actions)]
        return cls(prior, [features] * len(rows), rows, [linalg.cholesky(gram.copy)] * len(rows), None)

    def solve(self, targets: Array) -> Array:
        """Weights P⁻¹Φᵀy, of shape (m, n_actions), for targets of shape (n,)."""
        right = [phi.T @ targets[i] for phi, i in zip(self.features, self.rows, strict=True)]
        w = np.stack([linalg.solve(L, b) for L, b in zip(self.factors, right, strict=True)], axis=1)
        if self.coupling is not None:
            shared = linalg.solve(self.coupling, w.sum(axis=1))
            w += np.stack([linalg.solve(L, shared) for L in self.factors], axis=1)
        return w

    def fitted(self, w: Array) -> Array:
        """φ(x_i)ᵀw_{a_i} of each row, of shape (n,)."""
        values = np.empty(sum(len(i) for i in self.rows))
        for phi, i, weights in zip(self.features, self.rows, w.T, strict=True):
            values[i] = phi @ weights
        return values

    def sample(self, targets: Array, noise_std: float, rng: np.random.Generator) -> Array:
        """Weights from the posterior for σ = `noise_std`, of shape (m, n_actions).

        A sample of the prior, conditioned on noisy targets (Matheron's rule), so that nothing else is factorised.
        """
        m = self.factors[0].shape[0]
        # w⁰ ~ N(0, v₀ R ⊗ I) with v₀ = σ²/λ
        prior = noise_std / np.sqrt(self.prior.noise_share) * self.prior.sample(m, rng)
        # w = w⁰ + P⁻¹Φᵀ(y + ε − Φw⁰)
        noisy = targets + noise_std * rng.standard_normal(len(targets))
        return prior + self.solve(noisy - self.fitted(prior))

    def all_rows(self) -> tuple[Array, IntArray]:
        """Features Φ, of shape (n, m), and actions, of shape (n,), in the order of the targets."""
        n = sum(len(i) for i in self.rows)
        features, actions = np.empty((n, self.features[0].shape[1])), np.empty(n, dtype=np.int64)
        for a, (phi, i) in enumerate(zip(self.features, self.rows, strict=True)):
            features[i], actions[i] = phi, a
        return features, actions

    def by_action(self, function: Callable[[Array, Array], Array], features: Array, actions: IntArray) -> Array:
        """`function(L_a, φᵀ)` of each row with the factor of its action, of shape (m, n)."""
        out = np.empty(features.T.shape)
        for a, L in enumerate(self.factors):
            if (mine := np.flatnonzero(actions == a)).size:
                out[:, mine] = function(L, features[mine].T)
        return out


@dataclass(frozen=True, eq=False)
class ActionPosterior:
    """Posterior of Q given regression targets; states are pairs [x, a] with the action's index in the last column.

    Attributes
    ----------
    features : StateFeatures
    regression : ActionRegression
    targets : ndarray of shape (n,)
        y.
    mean_function : QFunction
        Posterior mean.
    noise_variance : float
        σ²; v₀ = σ²/λ.
    """

    features: StateFeatures
    regression: ActionRegression
    targets: Array
    mean_function: QFunction
    noise_variance: float

    @classmethod
    def condition(
        cls,
        features: StateFeatures,
        regression: ActionRegression,
        targets: Array,
        prior_mean: float,
        noise_variance: float | None = None,
    ) -> ActionPosterior:
        """Condition on `targets`; without a noise variance it is the mean square of the residuals."""
        w = regression.solve(targets - prior_mean)
        if noise_variance is None:
            squares = (prior_mean + regression.fitted(w) - targets) ** 2
            noise_variance = max(float(np.mean(squares)), np.finfo(np.float64).tiny)
        return cls(features, regression, targets, _q_function(features, w, prior_mean), noise_variance)

    def condition_on(self, data: Trajectories) -> ActionPosterior:
        """The posterior given further regression targets, as `Trajectories.from_values` makes them of pairs."""
        x, a = _split(data.states)
        features, actions = self.regression.all_rows()
        features, actions = np.vstack([features, self.features(x)]), np.concatenate([actions, a])
        regression = ActionRegression.of(features, actions, self.regression.prior)
        targets, mu = np.concatenate([self.targets, data.rewards]), self.mean_function.prior_mean
        return ActionPosterior.condition(self.features, regression, targets, mu, self.noise_variance)

    def evidence(self, model: Model) -> Evidence:
        """Log marginal likelihood of the targets under N(μ, ΦCov(w)Φᵀ + σ²I); `model` is the one conditioned on."""
        prior, factors, coupling = self.regression.prior, self.regression.factors, self.regression.coupling
        n, m, rho = len(self.targets), len(self.features.L), prior.correlation
        # det(I + ΦCov(w)Φᵀ/σ²) = det P / det(λR⁻¹)ᵐ
        log_det_P = sum(linalg.log_det(L) for L in factors)
        if coupling is not None:
            log_det_P += linalg.log_det(coupling) + m * np.log(prior.noise_share * prior.inverse[1])
        log_det_R = (prior.n_actions - 1) * np.log1p(-rho) + np.log1p((prior.n_actions - 1) * rho)
        log_det = log_det_P - m * (prior.n_actions * np.log(prior.noise_share) - log_det_R)
        y = self.targets - self.mean_function.prior_mean
        fit = float(y @ (y - self.regression.fitted(self._whitened_weights))) / self.noise_variance
        return Evidence(0.5 * float(log_det + n * np.log(self.noise_variance)), 0.5 * fit, n)

    trace_decay = None  # targets are given

    @property
    def inducing_points(self) -> Array:
        """The inducing states, of shape (m, n_dims)."""
        return self.features.inducing_points

    @property
    def signal_variance(self) -> float:
        """v₀, the prior variance of Q."""
        return self.noise_variance / self.regression.prior.noise_share

    def q_values(self, states: Array) -> Array:
        """Posterior mean of every action at states, of shape (n, n_actions)."""
        return self.mean_function(states)

    def mean(self, states: Array) -> Array:
        """Posterior mean, of shape (n,)."""
        x, a = _split(states)
        return np.asarray(self.q_values(x)[np.arange(len(a)), a])

    def variance(self, states: Array) -> Array:
        """Posterior variance, of shape (n,)."""
        return in_chunks(self._variance, states)

    def covariance(self, states: Array) -> Array:
        """Posterior covariance between all pairs, of shape (n, n), whose diagonal is `variance`."""
        x, a = _split(states)
        phi = self.features(x)
        own, shared = self._half_solves(phi, a)
        weights = np.where(a[:, None] == a, own.T @ own, 0.0) + shared.T @ shared
        return self.noise_variance * weights + self._residual_covariance(x, a, phi)

    def interval_variance(self, states: Array) -> Array:
        """Variance of the error of the mean if residuals differ in size, and at least `variance`, of shape (n,)."""
        return np.maximum(in_chunks(self._sandwich_variance, states), self.variance(states))

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint posterior samples, of shape (n, n_states): of the weights, and of the unexplained part."""
        x, a = _split(states)
        residual = self._residual_covariance(x, a, self.features(x))
        samples = sample_gaussian(np.zeros(len(a)), residual, n, rng)
        for i in range(n):
            samples[i] += self.sample_function(rng)(x)[np.arange(len(a)), a]
        return samples

    def sample_function(self, rng: np.random.Generator) -> QFunction:
        """A posterior sample of Q on the inducing states, for Thompson sampling."""
        mu = self.mean_function.prior_mean
        w = self.regression.sample(self.targets - mu, np.sqrt(self.noise_variance), rng)
        return _q_function(self.features, w, mu)

    def _half_solves(self, phi: Array, actions: IntArray) -> tuple[Array, Array]:
        """L_a⁻¹φ and L_C⁻¹A_a⁻¹φ, each of shape (m, n)."""
        own = self.regression.by_action(linalg.half_solve, phi, actions)
        if self.regression.coupling is None:
            return own, np.zeros_like(own)
        through = self.regression.by_action(linalg.half_solve_transposed, own.T, actions)
        return own, linalg.half_solve(self.regression.coupling, through)

    def _residual_covariance(self, x: Array, a: IntArray, phi: Array) -> Array:
        """v₀R_aa'(k(x, x') − φ(x)ᵀφ(x')) between all pairs, of shape (n, n)."""
        residual = self.regression.prior.between(a, a) * (self.features.kernel(x, x) - phi @ phi.T)
        # The rounding error of the subtraction.
        residual.flat[:: len(a) + 1] += np.finfo(np.float64).eps * max(phi.shape[1], len(a))
        return self.signal_variance * residual

    def _variance(self, states: Array) -> Array:
        x, a = _split(states)
        phi = self.features(x)
        own, shared = self._half_solves(phi, a)
        # σ²φᵀ[P⁻¹]_aa φ + v₀(k(x, x) − φᵀφ)
        weights = np.einsum("mn,mn->n", own, own) + np.einsum("mn,mn->n", shared, shared)
        residual = self.features.residual_variance(x, phi)
        return np.asarray(self.noise_variance * weights + self.signal_variance * residual)

    def _sandwich_variance(self, states: Array) -> Array:
        """φᵀP⁻¹WP⁻¹φ with W = Σ_i ε_i²φ_iφ_iᵀ, and the parts of the prior that the data leave open."""
        (x, a), regression = _split(states), self.regression
        alpha, beta = regression.prior.inverse
        phi = self.features(x)
        direct = regression.by_action(linalg.solve, phi, a)  # A_a⁻¹φ
        shared = None if regression.coupling is None else linalg.solve(regression.coupling, direct)
        variance, total, squares = np.zeros(len(a)), np.zeros(direct.shape), np.zeros(len(a))
        for b, L in enumerate(regression.factors):
            v = np.where(a == b, direct, 0.0)  # [P⁻¹]_ba φ
            v = v if shared is None else v + linalg.solve(L, shared)
            variance += np.einsum("mn,mn->n", v, self._noise_moments[b] @ v)
            total += v
            squares += np.einsum("mn,mn->n", v, v)
        # σ⁴vᵀ(v₀R)⁻¹v
        prior = alpha * squares - beta * np.einsum("mn,mn->n", total, total)
        variance += self.noise_variance * regression.prior.noise_share * prior
        return variance + self.signal_variance * self.features.residual_variance(x, phi)

    @property
    def _whitened_weights(self) -> Array:
        """W = Lᵀβ, of shape (m, n_actions)."""
        return np.asarray(np.tril(self.features.L).T @ self.mean_function.weights)

    @cached_property
    def _noise_moments(self) -> list[Array]:
        """W_a = Σ_i ε_i²φ_iφ_iᵀ over the rows of each action, of shape (m, m)."""
        errors = self.targets - self.mean_function.prior_mean - self.regression.fitted(self._whitened_weights)
        scaled = [phi * errors[i, None] for phi, i in zip(self.regression.features, self.regression.rows, strict=True)]
        return [phi.T @ phi for phi in scaled]


def _q_function(features: StateFeatures, w: Array, prior_mean: float) -> QFunction:
    weights = linalg.half_solve_transposed(features.L, w)
    return QFunction(features.kernel, features.inducing_points, weights, prior_mean)


def _split(pairs: Array) -> tuple[Array, IntArray]:
    """States and actions of pairs [x, a]."""
    return pairs[:, :-1], pairs[:, -1].astype(np.int64)
