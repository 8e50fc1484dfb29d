"""Model selection: searching θ, comparing kernels, and choosing how far to thin.

Nothing here knows what is inside a kernel or an objective. A search starts from several guesses scaled to the data,
explores them on a small sample of it, and finishes the best on all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.resampling import coarsen
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.model import NOISE, Model
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.progress import Watch
from gptd_rl.selection import objectives
from gptd_rl.selection.objectives import MarginalLikelihood, Objective, Prior
from gptd_rl.selection.optimise import Function, Optimum, lbfgs, quasi_newton
from gptd_rl.selection.scales import Scales
from gptd_rl.temporal.targets import Noise, Targets, build_targets
from gptd_rl.types import Array

# Searches explore on about this many states before they touch more.
COARSE_SIZE = 300

# A relevance below this, per squared spread of its input, bends the value function so little that its effect is linear.
KNEE = 1e-2

# Improvement, in nats, below which a search stops: on all data, and on samples of them or where there are very many.
FINE = 1e-3
ROUGH = 0.03
ROUGH_SHARE = 1e-6  # of the number of rewards

# An approximation is chosen anew if the search went further than this from where it was chosen, a few times at most.
FAR = 0.5
MAX_BASES = 3


# -------------------------------------------------------------------------------------- where to start


def first_guesses(kind: str, scales: Scales, rank: int, rng: np.random.Generator, n: int) -> list[Model]:
    """Models to start from: three laid out by hand (medium, smooth and noisy, short), the others at random."""
    layouts = [(1.0, 1e-2), (0.1, 0.3), (5.0, 1e-3)]  # (squared inverse lengthscale per spread², noise share)
    while len(layouts) < 3 + n:
        layouts.append((10.0 ** rng.uniform(-1.5, 1.5), 10.0 ** rng.uniform(-4.0, -0.3)))
    D = len(scales.spread)
    guesses = []
    for relevance, noise in layouts:
        a = np.where(scales.constant, 1e-8, relevance / D) / scales.spread**2
        if kind == "isotropic":
            metric: Isotropic | ARD | FactorAnalysis = Isotropic(float(np.exp(np.log(a).mean())), D)
        elif kind == "ard":
            metric = ARD(a)
        else:
            directions = np.linalg.qr(rng.normal(size=(D, rank)))[0]
            metric = FactorAnalysis(0.1 * a, directions * np.sqrt(relevance) / scales.spread[:, None])
        kernel = SquaredExponential(metric, scales.variance, scales.variance + scales.level**2)
        guesses.append(Model(kernel, noise * scales.variance))
    return guesses


def grow_rank(model: Model, scales: Scales, rng: np.random.Generator) -> Model:
    """Turn an ARD or factor model into one with a further, small, random direction."""
    metric = model.kernel.metric
    size = np.sqrt(np.median(metric.eigenvalues * np.median(scales.spread) ** 2))
    column = 0.3 * size * rng.normal(size=len(scales.spread)) / scales.spread
    before = metric.loadings if isinstance(metric, FactorAnalysis) else np.zeros((len(column), 0))
    a = metric.a if isinstance(metric, ARD | FactorAnalysis) else metric.relevances
    grown = FactorAnalysis(a, np.column_stack([before, column]))
    return replace(model, kernel=replace(model.kernel, metric=grown))


# -------------------------------------------------------------------------------------- one search


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The free parameters of a model as an optimiser should see them.

    Positive parameters move as logarithms, factor loadings in units of 1/spread. The relevances a_ν of single inputs
    are logarithmic when large but *linear when small* (an asinh): an input that does not matter reaches its bound in
    one step, where log a would creep down for ever.
    """

    template: Model
    free: NDArray[np.bool_]  # [P]
    unit: Array  # step of a plain parameter, 1 or 1/spread  [n_free]
    knee: Array  # where a relevance turns from linear to logarithmic, log(KNEE/spread²); nan for others  [n_free]
    lower: Array  # [n_free]
    upper: Array  # [n_free]

    @classmethod
    def of(cls, template: Model, scales: Scales, noise_floor: float) -> Coordinates:
        """Free parameters of `template`, with the bounds that `scales` suggest."""
        lower, upper = scales.bounds(template, noise_floor)
        free = template.is_free & (lower < upper)
        template = template.with_theta(np.where(free, template.theta, np.clip(template.theta, lower, upper)))
        unit, knee = np.ones(len(free)), np.full(len(free), np.nan)
        raw, D = ~template.is_log, len(scales.spread)
        unit[raw] = np.tile(1.0 / scales.spread, raw.sum() // D)
        if not isinstance(template.kernel.metric, Isotropic):
            knee[NOISE + 1 : NOISE + 1 + D] = np.log(KNEE / scales.spread**2)
        blank = cls(template, free, unit[free], knee[free], lower[free], upper[free])
        return replace(blank, lower=blank._x(lower[free]), upper=blank._x(upper[free]))

    def pack(self, model: Model) -> Array:
        """Free parameters of `model`."""
        return np.clip(self._x(model.theta[self.free]), self.lower, self.upper)

    def unpack(self, x: Array) -> Model:
        """Build the model at `x`."""
        theta = self.template.theta
        linear = np.isnan(self.knee)
        theta[self.free] = np.where(linear, x * self.unit, self.knee + np.log(np.sinh(np.where(linear, 1.0, x))))
        return self.template.with_theta(theta)

    def function(self, objective: Objective, report: Watch | None) -> Function:
        """Give `objective` as a function of the free parameters."""

        def f(x: Array) -> tuple[float, Array]:
            value, gradient = objective(self.unpack(x))
            if report is not None:
                report.evaluated(value)
            return value, gradient[self.free] * self._slope(x)

        return f

    def curvature(self, x: Array, seen: Targets) -> Array:
        """Fisher information of `seen` at `x`, with a ridge of a tenth of a nat."""
        information = exact.fisher_information(self.unpack(x), seen)[np.ix_(self.free, self.free)]
        slope = self._slope(x)
        return information * np.multiply.outer(slope, slope) + 0.1 * np.eye(len(x))

    def _x(self, theta: Array) -> Array:
        plain = np.isnan(self.knee)
        return np.where(plain, theta / self.unit, np.arcsinh(np.exp(np.where(plain, 0.0, theta - self.knee))))

    def _slope(self, x: Array) -> Array:
        """∂θ/∂x."""
        return np.where(np.isnan(self.knee), self.unit, 1.0 / np.tanh(np.where(np.isnan(self.knee), 1.0, x)))


@dataclass(frozen=True, eq=False)
class Task:
    """An objective on all of the data, and growing samples of the data on the way to it."""

    objective: Objective
    evidence: Callable[[Model], exact.Evidence]  # of the data as the objective sees them
    n_rows: int  # rewards that the objective weighs
    ladder: tuple[Targets, ...]  # about COARSE_SIZE states, then twice as many each time
    prior: Prior | None = None
    merged: Targets | None = None  # all of the data, where repeated states make them small
    between: tuple[tuple[Objective, int], ...] = ()  # further steps from the ladder to all data, with their rows

    @classmethod
    def of(cls, data: Trajectories, noise: Noise, name: str, every: int, scales: Scales) -> Task:
        """Prepare the objective called `name` (with thinning `every`) for `data`."""
        if name in ("loo", "leave_one_episode_out"):
            whole = build_targets(data, noise, merge=False)
            groups = objectives.visit_groups if name == "loo" else objectives.episode_groups
            objective = objectives.leave_out(whole, groups(whole))
            return cls(objective, partial(exact.evidence, seen=whole), data.n_rows, ladder(data, noise))
        parts = objectives.thinned_parts(data, every)
        seen = tuple(build_targets(part, noise) for part in parts)
        objective = MarginalLikelihood(*seen)
        n_rows = round(np.mean([s.n_rows for s in seen]))
        # By rows, not by distinct states: many visits make a steep landscape in which far starts get lost.
        steps = seen[:1] if seen[0].n_rows <= 2 * COARSE_SIZE else ladder(parts[0], noise)
        merged = seen[0] if len(seen) == 1 and seen[0].operator.n_targets <= 2 * COARSE_SIZE else None
        prior = Prior(scales.variance, scales.spread) if every > 1 else None
        return cls(objective, objective.evidence, n_rows, steps, prior, merged)

    def judge(self, objective: Objective) -> Objective:
        """`objective` with the prior, where there is one."""
        return objective if self.prior is None else self.prior.added_to(objective)


def ladder(data: Trajectories, noise: Noise, largest: int | None = None) -> tuple[Targets, ...]:
    """Samples of about COARSE_SIZE states, then of twice as many each time, up to `largest` or half of the data."""
    sizes = [COARSE_SIZE]
    while 4 * sizes[-1] <= len(data) and (largest is None or 2 * sizes[-1] <= largest):
        sizes.append(2 * sizes[-1])
    return tuple(build_targets(coarsen(data, size), noise) for size in sizes)


@dataclass(frozen=True, eq=False)
class Found:
    """The best model of one search."""

    model: Model
    value: float  # of the objective, smaller is better
    n_evaluations: int  # of the objective on all data
    seconds: float
    interrupted: bool = False


def search(
    task: Task,
    guesses: Sequence[Model],
    scales: Scales,
    noise_floor: float,
    report: Watch | None = None,
    near: Model | None = None,
) -> Found:
    """Minimise the objective of `task`: explore from every guess on the smallest sample, then climb the ladder.

    `near` is a model known to be near the optimum, if there is one: then it starts on all of the data at once.
    Interrupted (Ctrl-C), it returns the best model so far.
    """
    began = time.perf_counter()
    space = Coordinates.of(guesses[0], scales, noise_floor)
    climb = _Climb(task, space, report)
    try:
        if near is None:
            climb.explore([space.pack(g) for g in guesses])
            climb.finish([*((MarginalLikelihood(seen), seen.n_rows) for seen in task.ladder[1:]), *task.between])
        else:
            climb.start(space.pack(near))
            climb.finish(task.between)
        climb.finish([(task.objective, task.n_rows)])
        interrupted = False
    except KeyboardInterrupt:
        if climb.best is None:
            raise
        interrupted = True
    assert climb.best is not None
    x, value = climb.best
    if not climb.on_all_data:  # nats of a sample cannot be compared with nats of all data
        value = np.inf
    if not interrupted and climb.anchored is not task.objective:
        task.objective.keep(space.unpack(x), climb.anchored)  # type: ignore[attr-defined]
    return Found(space.unpack(x), value, climb.n_evaluations, time.perf_counter() - began, interrupted)


class _Climb:
    """A search under way: from a small sample of the data to all of it."""

    def __init__(self, task: Task, space: Coordinates, report: Watch | None) -> None:
        self.task, self.space, self.report = task, space, report
        self.best: tuple[Array, float] | None = None  # the best point of the present step, and its value
        self.anchored: Objective = task.objective  # as it was chosen near the best point
        self.on_all_data = False  # whether the present step is the last one
        self.n_evaluations = 0  # in the present step
        self._curvature: Array | None = None
        self._rows = task.ladder[0].n_rows

    def start(self, x: Array) -> None:
        """Start at `x`, with the curvature that the smallest sample has there."""
        self.best, self._curvature = (x, np.inf), self.space.curvature(x, self.task.ladder[0])

    def explore(self, starts: Sequence[Array]) -> None:
        """Start at the best hill that the smallest sample has."""
        space, first = self.space, self.task.ladder[0]
        explore = self._function(MarginalLikelihood(first))

        def descend(x: Array, max_iterations: int) -> Optimum:
            return lbfgs(explore, x, space.lower, space.upper, max_iterations, scale=first.n_rows / COARSE_SIZE)

        heats = sorted((descend(x, 15) for x in starts), key=lambda t: t.value)
        finals = [descend(heat.x, 200) for heat in heats[:2]]
        alike = np.abs(finals[0].x - finals[-1].x).max(initial=0.0) < 0.1
        # Of two different hills, more data say which is higher.
        judge = self.task.between[0][0] if self.task.between else self.task.objective
        all_data = self._function(_anchored(judge, space.unpack(finals[0].x)))
        self.start(min(finals, key=lambda t: t.value if alike else all_data(t.x)[0]).x)

    def finish(self, steps: Sequence[tuple[Objective, int]]) -> None:
        """Go on with more and more data; each step begins with the curvature that the one before it learnt."""
        for objective, n_rows in steps:
            self._step(objective, n_rows)

    def _step(self, objective: Objective, n_rows: int) -> None:
        assert self.best is not None and self._curvature is not None
        space, (x, _) = self.space, self.best
        self.on_all_data = objective is self.task.objective
        if objective is self.task.objective and self.task.merged is not None:
            # Visits beyond the first tell less and less: no sample knows this curvature, but it is cheap to have.
            self._curvature, self._rows = space.curvature(x, self.task.merged), n_rows
        curvature = self._curvature * (n_rows / self._rows)
        # In nats. On the way a rough optimum is enough, and where evaluations are dear a fair one has to do.
        is_dear = len(self.task.between) > 0 and n_rows > 10_000
        tolerance = FINE if self.on_all_data and not is_dear else max(ROUGH, ROUGH_SHARE * n_rows)
        self.n_evaluations = 0
        self.best, self.anchored = (x, np.inf), _anchored(objective, space.unpack(x), self.anchored)
        for _ in range(MAX_BASES):
            begun = x
            found = quasi_newton(self._watched(self.anchored), x, space.lower, space.upper, curvature, tolerance)
            x, curvature = found.x, found.curvature
            if self.anchored is objective or np.abs(x - begun).max(initial=0.0) < FAR:
                break
            # What was chosen for one θ, such as the states of a sparse model, may not suit one that is far from it.
            another = _anchored(objective, space.unpack(x))
            if not self._watched(another)(x)[0] < found.value - tolerance:
                break
            self.anchored = another
        self._curvature, self._rows = curvature, n_rows

    def _watched(self, objective: Objective) -> Function:
        """Remember the best point on the way, for those who cannot wait."""
        f = self._function(objective)

        def watched(x: Array) -> tuple[float, Array]:
            value, gradient = f(x)
            self.n_evaluations += 1
            assert self.best is not None
            if value < self.best[1]:
                self.best = (x.copy(), value)
            return value, gradient

        return watched

    def _function(self, objective: Objective) -> Function:
        return self.space.function(self.task.judge(objective), self.report)


def _anchored(objective: Objective, model: Model, like: Objective | None = None) -> Objective:
    """The objective as it is to be near `model`: one that approximates chooses there what to approximate with.

    It takes that from `like`, if that has it.
    """
    at = getattr(objective, "at", None)
    return objective if at is None else at(model, like)


# -------------------------------------------------------------------------------------- comparing variants


@dataclass(frozen=True, eq=False)
class Candidate:
    """One kernel variant after its search; with thinning, its evidence is the average over the thinned parts."""

    variant: str
    rank: int  # of the factor-analysis directions, 0 for the others
    model: Model
    objective: float  # smaller is better
    evidence: float
    complexity: float
    data_fit: float
    n_parameters: int
    seconds: float
    interrupted: bool = False  # by Ctrl-C: the best model so far


class Comparison(tuple[Candidate, ...]):
    """The variants that were tried, as a table."""

    interrupted = False  # by Ctrl-C, before all were tried

    @property
    def best(self) -> Candidate:
        """The variant with the smallest objective."""
        return min(self, key=lambda c: c.objective)

    def __str__(self) -> str:
        head = (
            f"{'variant':<10} {'rank':>4} {'evidence':>12} {'complexity':>12} {'data fit':>10} "
            f"{'parameters':>10} {'seconds':>8}"
        )
        rows = [
            f"{c.variant:<10} {c.rank:>4} {c.evidence:>12.2f} {c.complexity:>12.2f} {c.data_fit:>10.2f} "
            f"{c.n_parameters:>10} {c.seconds:>8.2f}" + ("  *" if c is self.best else "")
            for c in self
        ]
        return "\n".join([head, *rows])


@dataclass(frozen=True, eq=False)
class Plan:
    """How to search: everything that is the same for every variant."""

    noise_floor: float
    n_restarts: int
    noise_variance: float | None  # held at this value, if given
    seed: int | None
    max_rank: int | None
    warm: Model | None = None  # a model to start from, beside the guesses
    near: Model | None = None  # a model near the optimum of its variant, which needs no guesses
    report: Watch | None = None
    n_categorical: int = 0  # columns of a state that are category numbers, the last ones
    wrap_kernel: Callable[[SquaredExponential], SquaredExponential] = lambda kernel: kernel  # to one over all columns

    def guesses(self, kind: str, rank: int, scales: Scales) -> list[Model]:
        """Where to start a variant."""
        rng = np.random.default_rng(self.seed)
        models = first_guesses(kind, scales, rank, rng, self.n_restarts)
        models = [replace(m, kernel=self.wrap_kernel(m.kernel)) for m in models]
        if self.warm is not None and len(self.warm.theta) == len(models[0].theta):
            models.append(self.warm)
        if self.noise_variance is not None:
            models = [replace(m, noise_variance=self.noise_variance, noise_is_fixed=True) for m in models]
        return models

    def run(self, task: Task, kind: str, rank: int, guesses: Sequence[Model], scales: Scales) -> Candidate:
        """Search one variant."""
        near = self.near if self.near is not None and len(self.near.theta) == len(guesses[0].theta) else None
        found = search(task, guesses, scales, self.noise_floor, self.report, near)
        e = task.evidence(found.model)
        n_free = int(found.model.is_free.sum())
        return Candidate(
            kind,
            rank,
            found.model,
            found.value,
            e.log_likelihood,
            e.complexity,
            e.data_fit,
            n_free,
            found.seconds,
            found.interrupted,
        )


def compare(kernel: str | SquaredExponential, task: Task, scales: Scales, plan: Plan) -> Comparison:
    """Search every variant that `kernel` stands for: a name, "auto" for all of them, or a kernel of the user's own."""
    if isinstance(kernel, SquaredExponential):
        own = plan.run(task, *_own(kernel, scales, plan), scales)
        comparison = Comparison([own])
        comparison.interrupted = own.interrupted
        return comparison
    tried: list[Candidate] = []

    def run(kind: str, rank: int, guesses: list[Model]) -> bool:
        """Search one more variant; whether to go on."""
        try:
            tried.append(plan.run(task, kind, rank, guesses, scales))
        except KeyboardInterrupt:
            if not tried:
                raise
            return False
        return not tried[-1].interrupted

    D = len(scales.spread)
    go_on = kernel not in ("isotropic", "auto") or run("isotropic", 0, plan.guesses("isotropic", 0, scales))
    if go_on and (kernel in ("ard", "auto") or D == 1):  # one input has no direction to find
        go_on = run("ard", 0, plan.guesses("ard", 0, scales))
    if kernel in ("factor", "auto"):
        rng = np.random.default_rng(plan.seed)
        start = tried[-1].model if tried else None
        for rank in range(1, min(D - 1, plan.max_rank or D) + 1):
            guesses = plan.guesses("factor", rank, scales)
            if start is not None:
                guesses.append(grow_rank(start, scales, rng))
            go_on = go_on and run("factor", rank, guesses)
            if not go_on:
                break
            start = tried[-1].model
    comparison = Comparison(tried)
    comparison.interrupted = not go_on
    return comparison


def _own(kernel: SquaredExponential, scales: Scales, plan: Plan) -> tuple[str, int, list[Model]]:
    """Variant, rank and guesses for a kernel that the user made: it comes first, and what it holds fixed stays."""
    metric = kernel.metric
    rank = metric.rank if isinstance(metric, FactorAnalysis) else 0
    kind = "isotropic" if isinstance(metric, Isotropic) else "ard" if isinstance(metric, ARD) else "factor"
    guesses = plan.guesses(kind, rank, scales)
    own = replace(guesses[0], kernel=plan.wrap_kernel(kernel))
    held = ~own.is_free
    others = [own.with_theta(np.where(held, own.theta, g.theta)) for g in guesses]
    return kind, rank, [own, *others]
