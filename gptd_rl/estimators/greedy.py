"""Q of the greedy policy: fitted Q iteration (Ernst et al. 2005) with Gaussian-process regression.

Each iteration evaluates and improves the policy by one step. It regresses Q on the bootstrapped targets

    y = r + γ max_a' Q(x', a')

with values clipped to [r_min, r_max]/(1−γ). The prior mean of Q is the largest of these values: actions that were
never tried look good, so that the greedy policy explores. The normal equations are factorised once for all iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gptd_rl.estimators.tmp_multiscale import MultiScale
from gptd_rl.estimators.tmp_relevance import select_relevances
from gptd_rl.data.action_types import Discrete
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.by_action import ActionPosterior, ActionPrior, ActionRegression, QFunction, StateFeatures
from gptd_rl.inference.exact import Evidence
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.types import Array, IntArray

MAX_ITERATIONS = 200
# Iterations end when the values of the next states change by less than this share of their spread, on average.
CONVERGED = 1e-3
# Inducing states are chosen from this many states at most, until no residual variance exceeds the tolerance.
MAX_CANDIDATES = 1500
TOLERANCE = 1e-4
# Targets whose standard deviation is a smaller share of the range of values say nothing about the kernel.
MIN_SPREAD = 1e-6


@dataclass(frozen=True, eq=False)
class Transitions:
    """Transitions (x, a, r, x') of state-action pairs.

    Attributes
    ----------
    states, next_states : ndarray of shape (n, n_dims)
    actions : ndarray of shape (n,)
        Indices.
    rewards : ndarray of shape (n,)
    discounts : ndarray of shape (n,)
        γ; 0 where x' is terminal.
    bounds : tuple of 2 floats
        Smallest and largest value that the rewards allow.
    """

    states: Array
    actions: IntArray
    rewards: Array
    next_states: Array
    discounts: Array
    bounds: tuple[float, float]

    @classmethod
    def of(cls, pairs: Trajectories) -> Transitions:
        """Transitions of trajectories whose states are pairs [x, a]."""
        inner = np.ones(len(pairs), dtype=bool)
        inner[pairs.last] = False
        left = np.flatnonzero(inner)
        gamma = float(pairs.discounts[left].max(initial=0.0))
        if gamma >= 1.0:
            raise ValueError(f"policy='greedy' needs a discount below 1; got {gamma:g}.")
        terminal = np.zeros(len(pairs), dtype=bool)
        terminal[pairs.last[pairs.terminated]] = True
        rewards = pairs.rewards[left]
        return cls(
            pairs.states[left, :-1],
            pairs.states[left, -1].astype(np.int64),
            rewards,
            pairs.states[left + 1, :-1],
            pairs.discounts[left] * ~terminal[left + 1],
            value_bounds(rewards, gamma),
        )


@dataclass(frozen=True, eq=False)
class KernelSelection:
    """A kernel and the evidence of regression targets for it.

    Attributes
    ----------
    kernel : kernel of states
        Of unit variance.
    signal_variance, noise_variance : float
        v₀ and σ² at the maximum of the evidence.
    evidence : Evidence
        Of at most MAX_TARGETS targets.
    """

    kernel: Any
    signal_variance: float
    noise_variance: float
    evidence: Evidence


@dataclass(frozen=True, eq=False)
class GreedyFit:
    """Result of fitted Q iteration.

    Attributes
    ----------
    posterior : ActionPosterior
        Given the targets of the last iteration.
    bounds : tuple of 2 floats
        Smallest and largest value that the rewards allow.
    n_iterations : int
    selection : KernelSelection or None
        The kernel and its evidence, if it was selected in this fit.
    """

    posterior: ActionPosterior
    bounds: tuple[float, float]
    n_iterations: int
    selection: KernelSelection | None = None

    @property
    def kernel(self) -> Any:
        """The kernel of states."""
        return self.posterior.features.kernel

    @property
    def residual(self) -> float:
        """Root mean square of the residuals of the targets."""
        return float(np.sqrt(self.posterior.noise_variance))


def value_bounds(rewards: Array, gamma: float) -> tuple[float, float]:
    """Smallest and largest value that these rewards allow; the value of a terminal state, 0, is between them."""
    return min(0.0, float(rewards.min())) / (1.0 - gamma), max(0.0, float(rewards.max())) / (1.0 - gamma)


def default_kernel(states: Array) -> Any:
    """A kernel in which one standard deviation of each input is a distance of one."""
    deviation = states.std(axis=0)
    return MultiScale(np.where(deviation > 0, deviation, 1.0) ** -2.0)


def label_actions(data: Trajectories, actions: Discrete) -> Trajectories:
    """The same trajectories with states [x, a]; a is 0 in the last state of a segment."""
    if data.actions is None:
        raise ValueError("the data have no actions: Q needs to know what was done.")
    indices = np.zeros((len(data), 1))
    inner = np.setdiff1d(np.arange(len(data)), data.last)
    indices[inner] = actions.encode(data.actions[inner])
    return Trajectories._trusted(
        states=np.column_stack([data.states, indices]),
        rewards=data.rewards,
        discounts=data.discounts,
        lengths=data.lengths,
        terminated=data.terminated,
        actions=None,
    )


def starting_kernel(kernel: Any, before: GreedyFit | None, states: Array) -> Any:
    """The kernel to select from: the given one; for "ard" that of the fit before, or a default."""
    if not isinstance(kernel, str):
        return kernel
    if kernel != "ard":
        raise ValueError(f"policy='greedy' takes kernel='ard' or a kernel object; got {kernel!r}.")
    return default_kernel(states) if before is None else before.kernel


def fit_greedy(
    pairs: Trajectories,
    prior: ActionPrior,
    kernel: Any,
    *,
    n_inducing: int,
    start: QFunction | None = None,
    rng: np.random.Generator,
) -> GreedyFit:
    """Iterate Q until its values converge; select the kernel on the targets and iterate again.

    Parameters
    ----------
    pairs : Trajectories
        States are pairs [x, a] with the action's index in the last column.
    prior : ActionPrior
    kernel : kernel of states
        Of unit variance. Its free parameters are selected by the evidence of the targets, from where they are.
    n_inducing : int
        Largest number of inducing states.
    start : QFunction, optional
        Q whose values the iteration starts from. By default every value is the largest possible one.
    rng : Generator
        Subsamples candidates for inducing states, and targets for model selection.
    """
    data = Transitions.of(pairs)
    fit = _iterate(data, prior, kernel, n_inducing, start, rng)
    targets, (low, high) = fit.posterior.targets, data.bounds
    if not kernel.is_free[kernel.n_amplitudes :].any() or float(targets.std()) <= MIN_SPREAD * (high - low):
        return fit
    fit.posterior.sample_function(rng)  # XXX as in the baseline
    old = select_relevances(data.states, data.actions, targets, prior.correlation, rng, kernel)
    selection = KernelSelection(old.kernel, old.signal_variance, old.noise_variance, Evidence(0., 0., old.n_targets))
    again = _iterate(data, prior, selection.kernel, n_inducing, start, rng)
    return GreedyFit(again.posterior, again.bounds, again.n_iterations, selection)


def _iterate(
    data: Transitions, prior: ActionPrior, kernel: Any, n_inducing: int, start: QFunction | None, rng: np.random.Generator
) -> GreedyFit:
    features = StateFeatures(kernel, choose_inducing_points(kernel, data.states, n_inducing, rng))
    next_features = features(data.next_states)
    regression = ActionRegression.of(features(data.states), data.actions, prior)
    low, high = data.bounds
    values = np.full(len(data.rewards), high) if start is None else np.clip(start(data.next_states).max(axis=1), low, high)
    n_iterations, change = 0, np.inf
    while n_iterations < MAX_ITERATIONS and change > CONVERGED * max(float(values.std()), CONVERGED):
        n_iterations += 1
        # y = r + γ max_a' Q(x', a')
        targets = data.rewards + data.discounts * values
        w = regression.solve(targets - high)  # [m, |A|]
        improved = np.clip(high + (next_features @ w).max(axis=1), low, high)
        values, change = improved, float(np.abs(improved - values).mean())
    return GreedyFit(ActionPosterior.condition(features, regression, targets, high), data.bounds, n_iterations)


def choose_inducing_points(kernel: Any, states: Array, n_inducing: int, rng: np.random.Generator) -> Array:
    """At most `n_inducing` of the states, of shape (m, n_dims), by incomplete Cholesky factorisation."""
    if len(states) > MAX_CANDIDATES:
        states = states[np.sort(rng.choice(len(states), MAX_CANDIDATES, replace=False))]
    return states[incomplete_cholesky(kernel, states, n_inducing, TOLERANCE).indices]
