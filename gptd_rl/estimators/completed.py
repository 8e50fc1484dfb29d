"""Q of the greedy policy from completed transitions: states with the outcome of every action.

All actions share one matrix, so with the strict δ kernel and S = Φ(ΦᵀΦ + λI)⁻¹Φᵀ

    Q_a = μ + S(y_a − μ)        Q_a − Q_b = S(y_a − y_b)        y_a = r_a + γ V(x'_a)

The error of smoothing V cancels from the differences between actions, by which a policy chooses. The backup is a little
soft, V = (1−ε) max_a Q_a + ε mean_a Q_a, so that a state where only one action is good is worth less than one where all
are: policies then keep away from edges. Values are clipped to [r_min, r_max]/(1−γ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gptd_rl import linalg
from gptd_rl.data.action_transitions import CompletedTransitions
from gptd_rl.estimators.greedy import CONVERGED, GreedyFit, value_range
from gptd_rl.inference.by_action import ActionPosterior, ActionPrior, ActionRegression, StateFeatures
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.kernels import Kernel
from gptd_rl.types import Array

MAX_SWEEPS = 300
# Inducing states are chosen from this many states at most, until no residual variance exceeds the tolerance.
MAX_CANDIDATES = 1200
TOLERANCE = 1e-5

PriorMean = Literal["smallest", "largest"]


@dataclass(frozen=True, eq=False)
class CompletedProblem:
    """Completed transitions in features: prepared once, solved for any number of settings.

    Attributes
    ----------
    data : CompletedTransitions
    features : StateFeatures
    rows : ndarray of shape (n + k, m)
        Φ of the states, then of the k terminal ones, whose targets are 0.
    next_rows : ndarray of float32 of shape (n · n_actions, m)
        Φ of the next states; half the memory is twice the speed, and the last solution is in double precision.
    gram : ndarray of shape (m, m)
        ΦᵀΦ.
    """

    data: CompletedTransitions
    features: StateFeatures
    rows: Array
    next_rows: NDArray[np.float32]
    gram: Array

    @classmethod
    def of(
        cls, data: CompletedTransitions, kernel: Kernel, n_inducing: int, rng: np.random.Generator
    ) -> CompletedProblem:
        """Features of inducing states chosen from the data, for a kernel of states with unit variance."""
        candidates = data.states
        if len(candidates) > MAX_CANDIDATES:
            candidates = candidates[np.sort(rng.choice(len(candidates), MAX_CANDIDATES, replace=False))]
        points = candidates[incomplete_cholesky(kernel, candidates, n_inducing, TOLERANCE).indices]
        features = StateFeatures(kernel, points)
        rows = features(np.concatenate([data.states, data.terminal_states]))
        following = data.next_states.reshape(-1, data.states.shape[1])
        return cls(data, features, rows, features(following).astype(np.float32), rows.T @ rows)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value that the rewards allow."""
        return value_range(self.data.rewards, self.data.gamma)

    def solve(
        self, *, softness: float, noise_share: float, prior_mean: float | PriorMean, values: Array | None = None
    ) -> CompletedFit:
        """Fitted Q iteration.

        Parameters
        ----------
        softness : float
            ε.
        noise_share : float
            λ = σ²/v₀.
        prior_mean : float, "smallest" or "largest"
            μ: a number, the smallest target, or the largest value possible. With the smallest, states that nothing is
            known of look bad, as a policy that is served should see them; with the largest they attract.
        values : ndarray of shape (n, n_actions), optional
            V of the next states to start from; the largest possible ones by default.
        """
        data, (low, high) = self.data, self.bounds
        n, n_actions = data.rewards.shape
        factor = linalg.cholesky(lambda: self.gram + noise_share * np.eye(len(self.gram)))
        rows32, terminal = self.rows[:n].astype(np.float32), self.rows[n:].sum(axis=0)
        is_alive = data.discounts > 0.0
        values = np.where(is_alive, high if values is None else np.clip(values, low, high), 0.0)
        n_sweeps, change = 0, np.inf
        while n_sweeps < MAX_SWEEPS and change > CONVERGED * max(float(values.std()), CONVERGED):
            n_sweeps += 1
            # y_a = r_a + γ V(x'_a)
            targets = data.rewards + data.discounts * values
            mu = _number(prior_mean, targets, high)
            # w_a = (ΦᵀΦ + λI)⁻¹ (Φᵀ(y_a − μ) + Φ_Tᵀ(0 − μ))
            right = (rows32.T @ (targets - mu).astype(np.float32)).astype(np.float64) - mu * terminal[:, None]
            w = linalg.solve(factor, right).astype(np.float32)  # [m, |A|]
            improved = soften(mu + self.next_rows @ w, softness).reshape(n, n_actions)
            improved = np.where(is_alive, np.clip(improved, low, high), 0.0)
            change, values = float(np.abs(improved - values).mean()), improved.astype(np.float64)
        targets = data.rewards + data.discounts * values
        return CompletedFit(self._condition(targets, mu, noise_share), n_sweeps, None, values)

    def _condition(self, targets: Array, mu: float, noise_share: float) -> ActionPosterior:
        regression = ActionRegression.complete(self.rows, ActionPrior(targets.shape[1], noise_share))
        pinned = np.zeros((len(self.rows) - len(targets), targets.shape[1]))
        flat = np.concatenate([targets, pinned]).T.reshape(-1)  # action by action
        return ActionPosterior.condition(self.features, regression, flat, mu)


@dataclass(frozen=True, eq=False)
class CompletedFit(GreedyFit):
    """Result of fitted Q iteration on completed transitions.

    Attributes
    ----------
    values : ndarray of shape (n, n_actions)
        V of the next states.
    """

    values: Array | None = None


def soften(q: Array, softness: float) -> Array:
    """V = (1−ε) max_a Q_a + ε mean_a Q_a, of shape (n,), for Q of shape (n, n_actions)."""
    return np.asarray((1.0 - softness) * q.max(axis=1) + softness * q.mean(axis=1))


def _number(prior_mean: float | PriorMean, targets: Array, largest: float) -> float:
    if prior_mean == "smallest":
        return float(targets.min())
    return largest if prior_mean == "largest" else float(prior_mean)
