"""One output of a dynamics model, such as the change of one state variable: a linear mean and a Gaussian process.

    y = β_a + βᵀc(x) + f(x, a) + ε        f ~ GP(0, v₀k(x, x')·(ρ + (1−ρ)δ(a, a')))

c(x) are the coordinates of x, angles as cosine and sine. k has one relevance per coordinate; the evidence selects it
with ρ, v₀ and the noise. ρ says how much of f the actions share: near 1 one action teaches what the others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gptd_rl import linalg
from gptd_rl.data.state_space import StateSpace
from gptd_rl.inference.by_action import ActionPosterior, ActionPrior, ActionRegression, StateFeatures
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.kernels import ARD, Angles, Kernel, SquaredExponential
from gptd_rl.selection.regression import KernelSelection, RegressionTargets, select_regression_kernel
from gptd_rl.types import Array, BoolArray, IntArray

# Ridge of the linear mean, in units of one row.
RIDGE = 1e-6
# What the linear mean leaves is nothing if it is smaller than this share of the output's standard deviation, or if it
# is rounding: this share of the largest output.
NOTHING, ROUNDING = 1e-5, 1e-12
# Kernel selection: targets and steps at most, bounds of the noise, correlations of actions to choose from.
MAX_TARGETS = 400
MAX_STEPS = 40
NOISE_SHARES = 1e-9, 1.0
CORRELATIONS = (0.9, 0.5, 0.99, 0.999)
# Starts of the selection: relevance of one standard deviation of each coordinate, and noise.
STARTS = ((0.1, 1e-6), (0.5, 1e-2))
# Inducing states are chosen from this many at most, until no residual variance exceeds the tolerance.
MAX_CANDIDATES = 1000
TOLERANCE = 1e-9
# Conditioning again with the noise of the residuals: how often at most, and from which factor on.
MAX_CONDITIONING, ENOUGH_NOISE = 3, 2.0
# A row at a bound is left out if its error is larger than this many times the 90 % quantile of the others' errors, and
# than this share of the output's standard deviation.
OUTLYING, MATTERS = 10.0, 1e-2
# A fit without groups needs at least this many rows, and this share of all.
MIN_ROWS, MIN_SHARE = 30, 0.1


@dataclass(frozen=True, eq=False)
class LinearMean:
    """β_a + βᵀc(x), fitted by ridge regression.

    Attributes
    ----------
    centre, scale : ndarray of shape (n_coordinates,)
        Mean and standard deviation of the coordinates.
    coefficients : ndarray of shape (n_coordinates + n_actions,)
    """

    centre: Array
    scale: Array
    coefficients: Array

    @classmethod
    def fit(cls, coordinates: Array, actions: IntArray, y: Array, n_actions: int) -> LinearMean:
        """Least squares with a tiny ridge, which leaves the mean of `y` alone."""
        centre, scale = coordinates.mean(axis=0), coordinates.std(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        design = np.column_stack([(coordinates - centre) / scale, np.eye(n_actions)[actions]])
        gram = design.T @ design + RIDGE * np.eye(design.shape[1])
        level = float(y.mean())
        coefficients = np.linalg.solve(gram, design.T @ (y - level))
        coefficients[coordinates.shape[1] :] += level
        return cls(centre, scale, coefficients)

    def __call__(self, coordinates: Array) -> Array:
        """The mean of every action, of shape (n, n_actions)."""
        k = len(self.centre)
        slope = ((coordinates - self.centre) / self.scale) @ self.coefficients[:k]
        return np.asarray(slope[:, None] + self.coefficients[k:])


@dataclass(frozen=True, eq=False)
class OutputModel:
    """The distribution of one output given states and actions.

    Attributes
    ----------
    space : StateSpace
    linear : LinearMean
    posterior : ActionPosterior or None
        Of f; None if the linear mean leaves nothing.
    selection : KernelSelection or None
        The kernel of f.
    rows : ndarray of shape (k,)
        Numbers of the transitions it was fitted to.
    noise_std : float
        Standard deviation of ε.
    """

    space: StateSpace
    linear: LinearMean
    posterior: ActionPosterior | None
    selection: KernelSelection | None
    rows: IntArray
    noise_std: float

    def mean(self, states: Array) -> Array:
        """Expected output of every action, of shape (n, n_actions)."""
        linear = self.linear(self.space.coordinates(states))
        return linear if self.posterior is None else linear + self.posterior.q_values(states)

    def std(self, states: Array, actions: IntArray) -> Array:
        """Standard deviation of the output, noise included, of shape (n,)."""
        return np.sqrt(self.noise_std**2 + self.epistemic_std(states, actions) ** 2)

    def epistemic_std(self, states: Array, actions: IntArray) -> Array:
        """Standard deviation of f alone: how little is known of the expected output, of shape (n,)."""
        if self.posterior is None:
            return np.zeros(len(states))
        # v₀(k(x, x) − φᵀφ) + σ²φᵀ[P⁻¹]_aa φ: products of matrices, and no small difference of large numbers
        features = self.posterior.features
        phi = features(states)
        variance = self.posterior.signal_variance * features.residual_variance(states, phi)
        for action, covariance in enumerate(self._weight_covariances):
            mine = np.flatnonzero(actions == action)
            if len(mine):
                variance[mine] += np.einsum("nm,nm->n", phi[mine] @ covariance, phi[mine])
        return np.sqrt(variance)

    @cached_property
    def _weight_covariances(self) -> list[Array]:
        """σ²[P⁻¹]_aa of every action, each of shape (m, m)."""
        posterior = self.posterior
        assert posterior is not None
        regression, matrices = posterior.regression, []
        for factor in regression.factors:
            inverse = linalg.solve(factor, np.eye(len(factor)))  # A_a⁻¹
            if regression.coupling is not None:
                inverse = inverse + inverse @ linalg.solve(regression.coupling, inverse)  # [P⁻¹]_aa
            matrices.append(posterior.noise_variance * inverse)
        return matrices

    def errors(self, states: Array, actions: IntArray, y: Array) -> Array:
        """Output less its expectation, of shape (n,)."""
        return np.asarray(y - self.mean(states)[np.arange(len(y)), actions])


@dataclass(frozen=True, eq=False)
class OutputData:
    """What an output is fitted to.

    Attributes
    ----------
    space : StateSpace
    states : ndarray of shape (n, n_dims)
    actions : ndarray of shape (n,)
    y : ndarray of shape (n,)
    n_actions : int
    n_inducing : int
        Largest number of inducing states.
    """

    space: StateSpace
    states: Array
    actions: IntArray
    y: Array
    n_actions: int
    n_inducing: int

    def fit_robustly(
        self,
        rows: IntArray,
        groups: Sequence[BoolArray],
        before: KernelSelection | None,
        select: bool,
        rng: np.random.Generator,
    ) -> OutputModel:
        """Fit to `rows`, less those of the `groups` that behave differently.

        Groups are rows that ended at a bound of a state variable. What is stopped there does not follow the dynamics of
        all other rows: a car that runs into a wall. They are predicted by a fit to the rows of no group, and join it
        unless they are far off.
        """
        inner = rows[~np.any([group[rows] for group in groups], axis=0)] if groups else rows
        if len(inner) == len(rows) or len(inner) < max(MIN_ROWS, MIN_SHARE * len(rows)):
            return self.fit(rows, before, select, rng)
        model = self.fit(inner, before, select, rng)
        errors = np.abs(model.errors(self.states, self.actions, self.y))
        limit = max(OUTLYING * float(np.quantile(errors[inner], 0.9)), MATTERS * float(self.y.std()))
        kept = rows[np.isin(rows, inner) | (errors[rows] <= limit)]
        if len(kept) == len(inner):
            return model
        return self.fit(kept, model.selection, model.selection is None, rng)

    def fit(
        self, rows: IntArray, before: KernelSelection | None, select: bool, rng: np.random.Generator
    ) -> OutputModel:
        """Fit to `rows`; select a kernel if demanded or if there was none before."""
        x, a, y = self.states[rows], self.actions[rows], self.y[rows]
        coordinates = self.space.coordinates(x)
        linear = LinearMean.fit(coordinates, a, y, self.n_actions)
        remainder = y - linear(coordinates)[np.arange(len(a)), a]
        left = float(remainder.std())
        if left <= max(NOTHING * float(self.y.std()), ROUNDING * float(np.abs(self.y).max())):
            return OutputModel(self.space, linear, None, before, rows, left)
        targets = RegressionTargets(x, a, remainder, self.n_actions)
        if select or before is None:
            before = self._select(targets.sample(MAX_TARGETS, rng), before)
        points = inducing_states(before.kernel, x, self.n_inducing, rng)
        posterior = condition(targets, before, points)
        noise = float(np.sqrt(np.mean((posterior.mean(np.column_stack([x, a])) - remainder) ** 2)))
        return OutputModel(self.space, linear, posterior, before, rows, noise)

    def _select(self, targets: RegressionTargets, before: KernelSelection | None) -> KernelSelection:
        unit = unit_relevances(self.space, targets.states)
        starts = [(state_kernel(self.space, relevance * unit), noise) for relevance, noise in STARTS]
        if before is not None:
            starts = [*starts[1:], (before.kernel, before.noise_share)]
        return select_regression_kernel(
            targets, starts, correlations=CORRELATIONS, noise_shares=NOISE_SHARES, max_steps=MAX_STEPS
        )


def condition(targets: RegressionTargets, selection: KernelSelection, inducing_points: Array) -> ActionPosterior:
    """Posterior of f given the targets.

    Their residuals may be larger than the noise of the few targets that the kernel was selected by. Then they are the
    noise: with too little of it f would swing far between the states.
    """
    features = StateFeatures(selection.kernel, inducing_points)
    rows = features(targets.states)
    correlation = selection.correlation if targets.n_actions > 1 else 0.0
    posterior, share = None, max(selection.noise_share, NOISE_SHARES[0])
    for _ in range(MAX_CONDITIONING):
        regression = ActionRegression.of(rows, targets.actions, ActionPrior(targets.n_actions, share, correlation))
        posterior = ActionPosterior.condition(features, regression, targets.values, 0.0)
        found = posterior.noise_variance / selection.signal_variance
        if found <= ENOUGH_NOISE * share:
            break
        share = found
    assert posterior is not None
    noise = share * selection.signal_variance
    return replace(posterior, noise_variance=max(noise, np.finfo(np.float64).tiny))


def inducing_states(kernel: Kernel, states: Array, n_inducing: int, rng: np.random.Generator) -> Array:
    """At most `n_inducing` of the states, of shape (m, n_dims)."""
    if len(states) > MAX_CANDIDATES:
        states = states[np.sort(rng.choice(len(states), MAX_CANDIDATES, replace=False))]
    return states[incomplete_cholesky(kernel, states, n_inducing, TOLERANCE).indices]


def unit_relevances(space: StateSpace, states: Array) -> Array:
    """Relevances for which one standard deviation of each coordinate is a distance of one, (n_coordinates,)."""
    coordinates = space.coordinates(states)
    deviation = coordinates.std(axis=0)
    is_constant = np.ptp(coordinates, axis=0) <= 1e-12 * np.abs(coordinates).max(axis=0)
    return np.asarray(np.where(is_constant, 1.0, deviation) ** -2.0)


def state_kernel(space: StateSpace, relevances: Array, kind: type = SquaredExponential) -> Kernel:
    """A kernel of states with one relevance per coordinate."""
    kernel: Kernel = kind(ARD(relevances))
    return Angles(kernel, space.angles) if space.angles else kernel
