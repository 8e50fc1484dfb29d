"""Selecting θ by the evidence of instrumented rewards (`temporal.instruments`), for values that bootstrap.

The k moments y = Qᵀr are few, so S = FᵀKF + σ²I is small; what costs is FᵀKF. Inducing points Z, chosen anew as θ
moves, represent K to rounding where it is smooth:

    S = BBᵀ + FᵀΦCΦᵀF + σ²I        B = FᵀK_nm L⁻ᵀ        K_mm = LLᵀ

An evaluation takes O(n·m) kernel values: of up to MAX_ROWS transitions, evenly spaced over the data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from gptd_rl import linalg
from gptd_rl.data.resampling import evenly_spaced
from gptd_rl.inference.features import InducingFeatures, KernelSplit
from gptd_rl.inference.inducing import REDUNDANT, InducingPointSelector, incomplete_cholesky, independent
from gptd_rl.inference.instrumental import MomentSolution, WhiteFeatures, summarize_moments
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.kernels import DataScale, Guess
from gptd_rl.parallel import in_parallel
from gptd_rl.selection.coordinates import Coordinates
from gptd_rl.selection.optimise import Optimum, lbfgs
from gptd_rl.selection.search import MAX_REFINEMENTS, REFINE_DISTANCE, SearchResult
from gptd_rl.temporal.instruments import Moments, instrumented_targets
from gptd_rl.temporal.targets import LinearTargets
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array

# Inducing points while guesses are explored, and at most.
N_EXPLORING, N_INDUCING = 60, 300

# States from which they are chosen.
N_CANDIDATES = 1500

# Transitions, at most.
MAX_ROWS = 5000

# Steps from each guess, and from the best of where they end.
EXPLORING_STEPS, STEPS = 15, 60

# Noise share of the variance of returns, with its spread in log; and that of the noise once it is known.
NOISE_SHARE, NOISE_SPREAD = 0.3, 2.0
KNOWN_NOISE_SPREAD = 0.3

NO_CURVATURE = np.empty((0, 0))

# A value function so rough that inducing points chosen for it are spread out.
ROUGH = Guess(relevance=5.0, signal_variance=1.0, level_variance=1.0)


@dataclass(frozen=True, eq=False)
class MomentPrior:
    """Minus the log of a weak prior on how rough the value function is, and of what is known of the TD errors."""

    scale: DataScale
    noise_variance: float
    noise_spread: float  # of its logarithm

    ROUGHNESS = 1.5  # E[d²/2] for states one standard deviation apart

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient."""
        roughness, gradient = model.kernel.roughness(self.scale)
        deviation = np.log(model.noise_variance / self.noise_variance) / self.noise_spread
        value = roughness / self.ROUGHNESS + 0.5 * deviation**2
        return value, model.pack_gradient(gradient / self.ROUGHNESS, deviation / self.noise_spread)


class MomentEvidence:
    """−log p(y) of instrumented rewards and its gradient, with inducing points chosen for θ."""

    def __init__(self, targets: LinearTargets) -> None:
        assert isinstance(targets.operator, Moments)
        self.targets, self.n_rows = targets, targets.n_rows
        step = -(-len(targets.states) // N_CANDIDATES)
        self.selector = InducingPointSelector(targets.states[::step], N_INDUCING, None)

    def refine(self, model: Model, like: object = None) -> FixedMomentEvidence:
        """With inducing points chosen for `model`."""
        return FixedMomentEvidence(self.targets, self.selector.select(model, len(self.targets.states)))

    def remember(self, model: Model, refined: object) -> None:
        """There is nothing to keep."""

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient."""
        return self.refine(model)(model)

    def evidence(self, model: Model) -> Evidence:
        """Evidence of the moments."""
        return self.refine(model).evidence(model)


class FixedMomentEvidence:
    """The evidence with inducing points that stay, smooth in θ."""

    def __init__(self, targets: LinearTargets, states: Array) -> None:
        self.targets, self.states = targets, states

    def __call__(self, model: Model) -> tuple[float, Array]:
        """−log p(y) and its gradient with respect to θ."""
        features, G, B = self._project(model)
        F, m = self._F, features.n_inducing
        L, w, found = self._solve(model, features, B)
        # ∂(−log p)/∂S = ½(S⁻¹ − wwᵀ)
        A = 0.5 * linalg.symmetrise_in_place(linalg.add_outer_in_place(linalg.inverse_in_place(L), -1.0, w))
        half = A @ B  # [k, m']
        kernel, Z = features.split.inducing, features.states
        by_covariances = features.pull_back_in_place(np.ascontiguousarray(F @ (2.0 * half[:, :m])))
        total = kernel.contract(by_covariances, self.targets.states, Z, G)
        total -= kernel.contract(features.to_raw(B[:, :m].T @ half[:, :m]), Z, Z)
        by_weights = B[:, m:].T @ half[:, m:]
        noise = model.noise_variance * float(np.trace(A))
        return -found.log_likelihood, model.pack_gradient(features.split.gradient(total, by_weights), noise)

    def evidence(self, model: Model) -> Evidence:
        """Evidence of the moments."""
        features, _, B = self._project(model)
        return self._solve(model, features, B)[2]

    @property
    def _F(self) -> Array:
        assert isinstance(self.targets.operator, Moments)
        return self.targets.operator.F

    def _project(self, model: Model) -> tuple[InducingFeatures, Array, Array]:
        """Features at `model`, covariances g(x, Z) [u, m], and B = FᵀΨ [k, m']."""
        split = KernelSplit.of(model.kernel)
        kept, _ = independent(split.inducing, self.states, REDUNDANT)
        features = InducingFeatures(model.kernel, self.states[kept], whitened=True)
        rows = np.empty((len(self.targets.states), len(features)))
        features.fill(self.targets.states, rows)
        G = rows[:, : features.n_inducing].copy()
        features.whiten_in_place(rows)
        return features, G, self._F.T @ rows

    def _solve(self, model: Model, features: InducingFeatures, B: Array) -> tuple[Array, Array, Evidence]:
        """Factor of S, w = S⁻¹y, and the evidence."""
        m, y = features.n_inducing, self.targets.y
        S = B[:, :m] @ B[:, :m].T + B[:, m:] @ features.split.weight_covariance @ B[:, m:].T
        S.flat[:: len(S) + 1] += model.noise_variance
        L = linalg.cholesky(S.copy)
        w = linalg.solve(L, y)
        return L, w, Evidence(0.5 * linalg.log_det(L), 0.5 * float(y @ w), len(y))


@dataclass(frozen=True, eq=False)
class MomentProblem:
    """Model selection by the evidence of instrumented rewards."""

    transitions: Transitions
    objective: MomentEvidence
    scale: DataScale

    @classmethod
    def of(cls, transitions: Transitions, scale: DataScale, n_categorical: int = 0) -> MomentProblem:
        """Prepare the objective; the last `n_categorical` columns of points are labels."""
        if len(transitions) > MAX_ROWS:
            transitions = transitions.select(evenly_spaced(len(transitions), MAX_ROWS))
        return cls(transitions, MomentEvidence(instrumented_targets(transitions, n_categorical)), scale)

    def search(
        self,
        guesses: Sequence[Model],
        noise_floor: float,
        report: Callable[[float], None] | None = None,
        start: SearchResult | None = None,
        n_jobs: int | None = None,
    ) -> SearchResult:
        """Minimise the objective twice, the second time with the noise that the TD errors of the first result have.

        The moments are few and leave open how much of them is noise; the TD errors are many. Interrupted (Ctrl-C), it
        returns the best end of a descent so far.
        """
        began = time.perf_counter()
        space = Coordinates.of(guesses[0], self.scale, noise_floor)
        descent = _Descent(self, space, report, n_jobs)
        n_evaluations, interrupted = 0, False
        try:
            found = descent.run(guesses, self._prior())
            n_evaluations = found.n_evaluations
            noise = max(self._error_variance(found.model), noise_floor * self.scale.return_variance)
            second = descent.run([found.model, *guesses], MomentPrior(self.scale, noise, KNOWN_NOISE_SPREAD))
            found, n_evaluations = second, n_evaluations + second.n_evaluations
        except KeyboardInterrupt:
            if not n_evaluations and not descent.ends:
                raise
            found, interrupted = found if n_evaluations else descent.best, True
        seconds, n_rows = time.perf_counter() - began, self.objective.n_rows
        return SearchResult(found.model, found.value, n_evaluations, seconds, NO_CURVATURE, n_rows, interrupted)

    def _prior(self) -> MomentPrior:
        """Before any value is known: a discounted sum of TD errors is a share of what makes returns differ."""
        discount = float(self.transitions.discounts.mean())
        expected = NOISE_SHARE * self.scale.return_variance * max(1.0 - discount**2, 1e-3)
        return MomentPrior(self.scale, expected, NOISE_SPREAD)

    def _error_variance(self, model: Model) -> float:
        """Variance of the TD errors under the values that `model` leads to."""
        points = self.objective.selector.select(model, len(self.transitions))
        features = WhiteFeatures.of(model.kernel, points)
        return MomentSolution.of(summarize_moments(self.transitions, features)).error_variance


@dataclass(frozen=True, eq=False)
class _Minimum:
    model: Model
    value: float
    n_evaluations: int


@dataclass(frozen=True, eq=False)
class _Descent:
    """A few steps from every guess with few inducing points, then on from the best with inducing points for it."""

    problem: MomentProblem
    space: Coordinates
    report: Callable[[float], None] | None
    n_jobs: int | None
    ends: list[_Minimum] = field(default_factory=list)  # of descents with the same inducing points, for an interrupt

    @property
    def best(self) -> _Minimum:
        """The best end of a descent so far."""
        return min(self.ends, key=lambda end: end.value)

    def run(self, guesses: Sequence[Model], prior: MomentPrior) -> _Minimum:
        """The minimum of the objective with `prior`."""
        space, objective = self.space, self.problem.objective

        # Nats of the unit of rewards. Without them a relative tolerance is the same in every unit.
        unit = 0.5 * objective.n_rows * np.log(self.problem.scale.return_variance)

        def descend(x: Array, objective: FixedMomentEvidence, steps: int) -> Optimum:
            f = space.function(lambda model: _penalized(objective, prior, model), self.report)
            found = lbfgs(lambda x: _plus(f(x), -unit), x, space.lower, space.upper, steps)
            found = replace(found, value=found.value + unit)
            self.ends.append(_Minimum(space.unpack(found.x), found.value, found.n_evaluations))
            return found

        explore = partial(descend, objective=self._coarse, steps=EXPLORING_STEPS)
        ends = in_parallel(explore, [space.pack(guess) for guess in guesses], self.n_jobs)
        best, n_evaluations = min(ends, key=lambda t: t.value), sum(t.n_evaluations for t in ends)
        for _ in range(MAX_REFINEMENTS):
            fine = objective.refine(space.unpack(best.x))
            before, best = best, descend(best.x, fine, STEPS)
            del self.ends[:-1]  # values with other inducing points do not compare
            n_evaluations += best.n_evaluations
            if np.abs(best.x - before.x).max(initial=0.0) < REFINE_DISTANCE:
                break
        return _Minimum(space.unpack(best.x), best.value, n_evaluations)

    @cached_property
    def _coarse(self) -> FixedMomentEvidence:
        """With few inducing points, spread as for a rough value function."""
        targets = self.problem.objective.targets
        candidates = self.problem.objective.selector.candidates
        rough = self.space.template.kernel.initial(self.problem.scale, ROUGH, np.random.default_rng(0))
        kernel = KernelSplit.of(rough).inducing
        subset = incomplete_cholesky(kernel, candidates, N_EXPLORING)
        return FixedMomentEvidence(targets, candidates[subset.indices])


def _penalized(objective: FixedMomentEvidence, prior: MomentPrior, model: Model) -> tuple[float, Array]:
    (value, gradient), (penalty, slope) = objective(model), prior(model)
    return value + penalty, gradient + slope


def _plus(found: tuple[float, Array], constant: float) -> tuple[float, Array]:
    value, gradient = found
    return value + constant, gradient
