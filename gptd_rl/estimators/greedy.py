"""Q of the greedy policy: fitted Q iteration (Ernst et al. 2005) with Gaussian-process regression.

Each iteration evaluates and improves the policy by one step. It regresses Q on the bootstrapped targets

    y = r + γ max_a' Q(x', a')

with values clipped to those that the rewards allow: [r_min, r_max]/(1−γ), or a reward on ending, which comes once. The
prior mean of Q is the largest of these values: actions that were never tried look good, so that the greedy policy
explores. The normal equations are factorised once for all iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gptd_rl.checks import as_count, as_indices, as_numbers, check_number
from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.actions import DiscreteActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.fitted import FittedModel
from gptd_rl.inference.by_action import ActionPosterior, ActionPrior, ActionRegression, QFunction, StateFeatures
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.inference.model import Model
from gptd_rl.kernels import ARD, ActionDelta, Angles, Kernel, MultiScale, registry
from gptd_rl.selection.regression import KernelSelection, RegressionTargets, rescale, select_regression_kernel
from gptd_rl.temporal.returns import value_bounds
from gptd_rl.types import Array, BoolArray, IntArray

MAX_ITERATIONS = 200
# Iterations end when the values of the next states change by less than this share of their spread, on average.
CONVERGED = 1e-3
# Inducing states are chosen from this many states at most, until no residual variance exceeds the tolerance.
MAX_CANDIDATES = 1500
TOLERANCE = 1e-4
# Model selection uses this many targets and steps at most; σ² lies between these shares of the targets' variance.
MAX_TARGETS = 400
MAX_STEPS = 25
NOISE_SHARES = 1e-5, 1.0
NOISE_START = 1e-2
# Targets whose standard deviation is a smaller share of the range of values carry no information on the kernel.
MIN_SPREAD = 1e-6


@dataclass(frozen=True, eq=False)
class GreedyFit:
    """Result of fitted Q iteration.

    Attributes
    ----------
    posterior : ActionPosterior
        Given the targets of the last iteration.
    n_iterations : int
    selection : KernelSelection or None
        The kernel and its evidence, if it was selected in this fit.
    """

    posterior: ActionPosterior
    n_iterations: int
    selection: KernelSelection | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel of states, of unit variance."""
        return self.posterior.features.kernel

    @property
    def residual(self) -> float:
        """Root mean square of the residuals of the targets."""
        return float(np.sqrt(self.posterior.noise_variance))

    def fitted_model(self, pairs: Trajectories, actions: DiscreteActions) -> FittedModel:
        """What an estimator learns from it: k(x, x')·v₀ between equal actions, and the noise of the targets."""
        posterior = self.posterior
        kernel = rescale(self.kernel, amplitude=posterior.signal_variance)
        model = Model(kernel * ActionDelta(actions.n, actions.correlation), posterior.noise_variance)
        inputs = np.arange(pairs.n_dims)
        return FittedModel(posterior, pairs, inputs, model, 1, False, actions, posterior.evidence(model))

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """A description for JSON, and arrays; with the data, `from_arrays` builds the fit again."""
        posterior, mean = self.posterior, self.posterior.mean_function
        description = dict(
            kernel=registry.describe(self.kernel),
            prior=asdict(posterior.regression.prior),
            prior_mean=mean.prior_mean,
            noise_variance=posterior.noise_variance,
            n_iterations=self.n_iterations,
            selection=None if self.selection is None else self.selection.to_dict(),
        )
        return description, dict(inducing_points=mean.inducing_points, weights=mean.weights, targets=posterior.targets)

    @classmethod
    def from_arrays(cls, description: Mapping[str, Any], arrays: Mapping[str, Array], pairs: Trajectories) -> GreedyFit:
        """Build what `to_arrays` took apart, with the state-action pairs that were fitted."""
        data, kernel, prior = ActionTransitions.of(pairs), registry.build(description["kernel"]), prior_of(description)
        mean = q_function_of(description, arrays, kernel)
        if (data.actions != pairs.states[pairs.has_transition, -1]).any():
            raise ValueError("its actions are no whole numbers")
        features = StateFeatures(kernel, mean.inducing_points)
        as_indices(data.actions, prior.n_actions, "actions")
        regression = ActionRegression.of(features(data.states), data.actions, prior)
        targets = as_numbers(arrays["targets"], (len(data),), "targets")
        posterior = ActionPosterior(features, regression, targets, mean, description["noise_variance"])
        return cls(posterior, description["n_iterations"], selection_of(description))


def prior_of(description: Mapping[str, Any]) -> ActionPrior:
    """The prior of a fit in a file."""
    check_number("noise_variance", description["noise_variance"], above=0.0)
    as_count(description["n_iterations"], "n_iterations", 0)
    prior = description["prior"]
    check_number("noise_share", prior["noise_share"], above=0.0)
    return ActionPrior(as_count(prior["n_actions"], "n_actions"), prior["noise_share"], prior["correlation"])


def q_function_of(description: Mapping[str, Any], arrays: Mapping[str, Array], kernel: Kernel) -> QFunction:
    """The mean of a fit in a file."""
    n_actions, level = description["prior"]["n_actions"], description["prior_mean"]
    return QFunction.checked(kernel, arrays["inducing_points"], arrays["weights"], level, n_actions)


def selection_of(description: Mapping[str, Any]) -> KernelSelection | None:
    """The selection of the kernel of a fit in a file."""
    kept = description["selection"]
    return None if kept is None else KernelSelection.from_dict(kept)


def default_kernel(states: Array) -> MultiScale:
    """A kernel in which one standard deviation of each input is a distance of one."""
    return MultiScale(ARD(input_deviation(states) ** -2.0))


def input_deviation(states: Array) -> Array:
    """Standard deviation of each input, 1 if it is constant, of shape (n_dims,)."""
    is_constant = np.ptp(states, axis=0) <= 1e-12 * np.abs(states).max(axis=0)
    return np.where(is_constant, 1.0, states.std(axis=0))


def starting_kernel(kernel: str | Kernel, before: GreedyFit | None, states: Array) -> Kernel:
    """The kernel that selection starts from: the given one; for "ard" that of the fit before, or a default."""
    if not isinstance(kernel, str):
        if kernel.n_dims not in (None, states.shape[1]):
            raise ValueError(f"the kernel has {kernel.n_dims} dimensions; got states of width {states.shape[1]}.")
        if kernel.n_categorical:
            raise ValueError("policy='greedy' takes a kernel of states and multiplies it by δ(a, a').")
        return kernel
    if kernel != "ard":
        raise ValueError(f"policy='greedy' takes kernel='ard' or a kernel object; got {kernel!r}.")
    return default_kernel(states) if before is None else before.kernel


def label_actions(data: Trajectories, actions: DiscreteActions) -> Trajectories:
    """The same trajectories with states [x, a]; a is 0 in the last state of a segment."""
    if data.actions is None:
        raise ValueError("the data have no actions: Q needs to know what was done.")
    indices = np.zeros((len(data), 1))
    indices[data.has_transition] = actions.encode(data.actions[data.has_transition])
    pairs = np.column_stack([data.states, indices])
    return Trajectories(pairs, data.rewards, data.discounts, data.lengths, data.terminated)


def fit_greedy(
    pairs: Trajectories,
    prior: ActionPrior,
    kernel: Kernel,
    *,
    n_inducing: int,
    prior_mean: float | None = None,
    start: GreedyFit | None = None,
    rng: np.random.Generator,
) -> GreedyFit:
    """Iterate Q until its values converge; select the kernel on the targets and iterate again.

    Parameters
    ----------
    pairs : Trajectories
        States are pairs [x, a] with the action's index in the last column.
    prior : ActionPrior
    kernel : Kernel
        Of states, with unit variance. Its free parameters, apart from v₀, are selected by the evidence of the targets.
    n_inducing : int
        Largest number of inducing states.
    prior_mean : float, optional
        The largest value that the rewards allow by default. Values are clipped to a larger one instead.
    start : GreedyFit, optional
        The fit whose values the iteration starts from. By default every value is the largest possible one.
    rng : Generator
        Subsamples candidates for inducing states, and targets for model selection.
    """
    data = ActionTransitions.of(pairs)
    low, high = value_range(data.rewards, data.gamma, data.terminated)
    mu = high if prior_mean is None else float(prior_mean)
    high = max(high, mu)
    values = np.full(len(data.rewards), high)
    if start is not None:
        values = np.clip(start.posterior.q_values(data.next_states).max(axis=1), low, high)
    fit = _iterate(data, prior, kernel, n_inducing, mu, values, rng)
    targets = fit.posterior.targets
    is_free = kernel.is_free[kernel.n_amplitudes :].any()
    if not is_free or float(targets.std()) <= MIN_SPREAD * (high - low):
        return fit
    selection = select_kernel(kernel, data.states, data.actions, targets, prior, rng)
    return replace(_iterate(data, prior, selection.kernel, n_inducing, mu, values, rng), selection=selection)


def _iterate(
    data: ActionTransitions,
    prior: ActionPrior,
    kernel: Kernel,
    n_inducing: int,
    prior_mean: float,
    values: Array,
    rng: np.random.Generator,
) -> GreedyFit:
    """Fitted Q iteration from `values` of the next states, of shape (n,)."""
    low, high = value_range(data.rewards, data.gamma, data.terminated)
    features = StateFeatures(kernel, choose_inducing_points(kernel, data.states, n_inducing, rng))
    next_features = features(data.next_states)
    regression = ActionRegression.of(features(data.states), data.actions, prior)
    n_iterations, change = 0, np.inf
    while n_iterations < MAX_ITERATIONS and change > CONVERGED * max(float(values.std()), CONVERGED):
        n_iterations += 1
        # y = r + γ max_a' Q(x', a')
        targets = data.rewards + data.discounts * values
        w = regression.solve(targets - prior_mean)  # [m, |A|]
        improved = np.clip(prior_mean + (next_features @ w).max(axis=1), low, max(high, prior_mean))
        values, change = improved, float(np.abs(improved - values).mean())
    return GreedyFit(ActionPosterior.condition(features, regression, targets, prior_mean), n_iterations)


def value_range(rewards: Array, gamma: float, terminated: BoolArray | None = None) -> tuple[float, float]:
    """Smallest and largest value that the rewards allow (`value_bounds`); refuses γ = 1."""
    if gamma >= 1.0:
        raise ValueError(f"policy='greedy' needs a discount below 1; got {gamma:g}.")
    return value_bounds(rewards, gamma, terminated)


def choose_inducing_points(kernel: Kernel, states: Array, n_inducing: int, rng: np.random.Generator) -> Array:
    """At most `n_inducing` of the states, of shape (m, n_dims), by incomplete Cholesky factorisation."""
    if len(states) > MAX_CANDIDATES:
        states = states[np.sort(rng.choice(len(states), MAX_CANDIDATES, replace=False))]
    return states[incomplete_cholesky(kernel, states, n_inducing, TOLERANCE).indices]


def select_kernel(
    kernel: Kernel, states: Array, actions: IntArray, targets: Array, prior: ActionPrior, rng: np.random.Generator
) -> KernelSelection:
    """Maximise the evidence p(targets | θ) from the parameters of `kernel`, by L-BFGS.

    Parameters
    ----------
    kernel : Kernel
        Of states, with unit variance.
    states : ndarray of shape (n, n_dims)
    actions : ndarray of shape (n,)
        Indices.
    targets : ndarray of shape (n,)
        Not all equal.
    prior : ActionPrior
        Number of actions and their correlation.
    rng : Generator
        Subsamples MAX_TARGETS of the targets if there are more.
    """
    centred = RegressionTargets(states, actions, targets - targets.mean(), prior.n_actions)
    found = select_regression_kernel(
        centred.sample(MAX_TARGETS, rng),
        [(kernel, NOISE_START)],
        correlations=(prior.correlation,),
        noise_shares=NOISE_SHARES,
        max_steps=MAX_STEPS,
    )
    return replace(found, kernel=rescale(found.kernel, relevance=_normalisation(found.kernel, states)))


def _normalisation(kernel: Kernel, states: Array) -> float:
    """The factor with which one standard deviation of the most relevant input is a distance of one.

    The evidence says which inputs matter more than others. The smoothness of Q it judges from targets that are no finer
    than the last Q was. Relevances that are fixed stay as they are.
    """
    held = ~kernel.is_free & np.isfinite(kernel.theta)
    if held[kernel.n_amplitudes :].any():
        return 1.0
    relevances = kernel.relevances
    if isinstance(kernel, Angles):  # in its coordinates: the cosine varies less than the angle
        relevances, states = kernel.kernel.relevances, kernel.encode(states)
    return 1.0 / float((relevances * input_deviation(states) ** 2).max())
