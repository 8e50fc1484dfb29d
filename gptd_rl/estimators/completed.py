"""Q of the greedy policy from completed transitions: states with the outcome of every action.

All actions share one matrix, so with the strict δ kernel and S = Φ(ΦᵀΦ + λI)⁻¹Φᵀ

    Q_a = μ + S(y_a − μ)        Q_a − Q_b = S(y_a − y_b)        y_a = r_a + γ V(x'_a)

The error of smoothing V cancels from the differences between actions, by which a policy chooses. The backup is a little
soft, V = (1−ε) max_a Q_a + ε mean_a Q_a, so that a state where only one action is good is worth less than one where all
are: policies then keep away from edges. Values are clipped to [r_min, r_max]/(1−γ).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gptd_rl import linalg
from gptd_rl.checks import as_numbers, check_finite
from gptd_rl.data.action_transitions import CompletedTransitions
from gptd_rl.estimators.greedy import (
    CONVERGED,
    MIN_SPREAD,
    GreedyFit,
    prior_of,
    q_function_of,
    select_kernel,
    selection_of,
    value_range,
)
from gptd_rl.inference.by_action import ActionPosterior, ActionPrior, ActionRegression, StateFeatures
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.kernels import Kernel, registry
from gptd_rl.selection.regression import KernelSelection
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
        # Terminal states, too: where no feature can tell them apart, their value 0 spoils that of their neighbours.
        candidates = np.concatenate([data.states, data.terminal_states])
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
        self,
        *,
        softness: float,
        noise_share: float,
        prior_mean: float | PriorMean,
        values: Array | None = None,
        caution: float = 0.0,
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
        caution : float
            Rewards are taken to be so many standard deviations smaller than expected, where they are not known. If it
            is negative, they are taken to be larger, and possible ends to be ends.
        """
        data, rewards, discounts = self.data, self.data.cautious_rewards(caution), self.data.cautious_discounts(caution)
        low, high = value_range(rewards, data.gamma)
        n, n_actions = data.rewards.shape
        factor = linalg.cholesky(lambda: self.gram + noise_share * np.eye(len(self.gram)))
        rows32, terminal = self.rows[:n].astype(np.float32), self.rows[n:].sum(axis=0)
        is_alive = discounts > 0.0
        values = np.where(is_alive, high if values is None else np.clip(values, low, high), 0.0)
        n_sweeps, change = 0, np.inf
        while n_sweeps < MAX_SWEEPS and change > CONVERGED * max(float(values.std()), CONVERGED):
            n_sweeps += 1
            # y_a = r_a + γ V(x'_a)
            targets = rewards + discounts * values
            mu = _number(prior_mean, targets, high)
            # w_a = (ΦᵀΦ + λI)⁻¹ (Φᵀ(y_a − μ) + Φ_Tᵀ(0 − μ))
            right = (rows32.T @ (targets - mu).astype(np.float32)).astype(np.float64) - mu * terminal[:, None]
            w = linalg.solve(factor, right).astype(np.float32)  # [m, |A|]
            q = (w.T @ self.next_rows.T).astype(np.float64)  # [|A|, n·|A|]: an action a row is fast to reduce
            improved = soften(mu + q, softness, axis=0).reshape(n, n_actions)
            improved = np.where(is_alive, np.clip(improved, low, high), 0.0)
            change, values = float(np.abs(improved - values).mean()), improved
        targets = rewards + discounts * values
        states = np.concatenate([data.states, data.terminal_states])
        return CompletedFit(self._condition(targets, mu, noise_share), n_sweeps, None, values, states)

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
    values : ndarray of shape (n, n_actions) or None
        V of the next states; None after loading.
    states : ndarray of shape (n + k, n_dims)
        States that have a target for every action, terminal ones last.
    """

    values: Array | None = None
    states: Array | None = None

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """A description for JSON, and arrays."""
        description, arrays = super().to_arrays()
        assert self.states is not None
        return dict(description, is_completed=True), dict(arrays, completed_states=self.states)

    @classmethod
    def from_completed(cls, description: Mapping[str, Any], arrays: Mapping[str, Array]) -> CompletedFit:
        """Build what `to_arrays` took apart."""
        kernel, prior = registry.build(description["kernel"]), prior_of(description)
        mean = q_function_of(description, arrays, kernel)
        features = StateFeatures(kernel, mean.inducing_points)
        states = as_numbers(arrays["completed_states"], (None, kernel.n_dims), "completed_states")
        regression = ActionRegression.complete(features(states), prior)
        check_finite(arrays["targets"], "targets")
        posterior = ActionPosterior(features, regression, arrays["targets"], mean, description["noise_variance"])
        return cls(posterior, description["n_iterations"], selection_of(description), None, states)


def solve_completed(
    data: CompletedTransitions,
    kernel: Kernel,
    n_inducing: int,
    softness: float,
    noise_share: float,
    prior_mean: float | PriorMean,
    rng: np.random.Generator,
) -> tuple[CompletedFit, KernelSelection | None]:
    """Fitted Q iteration; select the kernel by the evidence of V and iterate again, if its parameters are free."""
    settings: Any = dict(softness=softness, noise_share=noise_share, prior_mean=prior_mean)
    problem = CompletedProblem.of(data, kernel, n_inducing, rng)
    fit = problem.solve(**settings)
    selection = select_by_values(problem, fit, rng)
    if selection is None:
        return fit, None
    fit = CompletedProblem.of(data, selection.kernel, n_inducing, rng).solve(**settings, values=fit.values)
    return replace(fit, selection=selection), selection


def select_by_values(problem: CompletedProblem, fit: CompletedFit, rng: np.random.Generator) -> KernelSelection | None:
    """Select the kernel by the evidence of V in visited states; None if nothing is free, or V does not vary.

    States that were only thought of would confirm what the last kernel made of them.
    """
    data, kernel, (low, high) = problem.data, problem.features.kernel, problem.bounds
    assert fit.values is not None
    v = (data.rewards + data.discounts * fit.values).max(axis=1)[: data.n_real]
    if not kernel.is_free[kernel.n_amplitudes :].any() or float(v.std()) <= MIN_SPREAD * (high - low):
        return None
    one_action, prior = np.zeros(len(v), dtype=np.int64), ActionPrior(1, fit.posterior.regression.prior.noise_share)
    return select_kernel(kernel, data.states[: data.n_real], one_action, v, prior, rng)


def soften(q: Array, softness: float, axis: int = 1) -> Array:
    """V = (1−ε) max_a Q_a + ε mean_a Q_a, of shape (n,), for Q of shape (n, n_actions), or its transpose (axis 0)."""
    return np.asarray((1.0 - softness) * q.max(axis=axis) + softness * q.mean(axis=axis))


def _number(prior_mean: float | PriorMean, targets: Array, largest: float) -> float:
    if prior_mean == "smallest":
        return float(targets.min())
    return largest if prior_mean == "largest" else float(prior_mean)
