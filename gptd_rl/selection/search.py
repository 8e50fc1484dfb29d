"""Coarse-to-fine search of θ: explore several guesses on a small sample of the data, finish the best on all of it.

Nothing here knows what is inside a kernel or an objective.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gptd_rl.data.resampling import coarsen
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.kernels import DataScale
from gptd_rl.parallel import in_parallel
from gptd_rl.selection import objectives
from gptd_rl.selection.coordinates import Coordinates
from gptd_rl.selection.objectives import MarginalLikelihood, Objective, Prior
from gptd_rl.selection.optimise import Function, Optimum, lbfgs, quasi_newton
from gptd_rl.temporal.targets import Noise, Targets, build_targets
from gptd_rl.types import Array

# Searches explore on about this many states before they touch more.
COARSE_SIZE = 300

# Improvement, in nats, below which a search stops: on all data, and on samples of them or where there are very many.
FINE_TOLERANCE = 1e-3
SMALL_DATA_TOLERANCE = 1e-7  # costs little, and leaves nothing of the way that rounding errors chose
ROUGH_TOLERANCE = 0.03
ROUGH_SHARE = 1e-6  # of the number of rewards

# Exploration: improvement, in nats, of a step that is too small, and steps from each guess.
EXPLORE_TOLERANCE = 0.01
EXPLORE_STEPS = 15

# States from which the curvature at the start of a search is computed.
CURVATURE_SIZE = 100

# An approximation is chosen anew if the search went further than this from where it was chosen, a few times at most.
REFINE_DISTANCE = 0.5
MAX_REFINEMENTS = 3


class SearchProblem(Protocol):
    """An objective, and a way to minimise it."""

    @property
    def objective(self) -> Any:
        """What the result is judged by."""
        ...

    @property
    def scale(self) -> DataScale:
        """Scale of the data."""
        ...

    def search(
        self,
        guesses: Sequence[Model],
        noise_floor: float,
        report: Callable[[float], None] | None = None,
        start: SearchResult | None = None,
        n_jobs: int | None = None,
    ) -> SearchResult:
        """Minimise the objective from some guesses, or from the result of a similar search."""
        ...


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """An objective on all of the data, and growing samples of the data on the way to it."""

    objective: Objective
    coarse_levels: tuple[Targets, ...]  # about COARSE_SIZE states, then twice as many each time
    scale: DataScale
    prior: Prior | None = None
    merged: Targets | None = None  # all of the data, where repeated states make them small
    intermediate_levels: tuple[Objective, ...] = ()  # further steps from the coarse levels to all data
    tolerance: float = FINE_TOLERANCE  # on all data

    @classmethod
    def of(cls, data: Trajectories, noise: Noise, name: str, every: int, scale: DataScale) -> SelectionProblem:
        """Prepare the objective called `name` (with thinning `every`) for `data`."""
        if name in ("loo", "leave_one_episode_out"):
            whole = build_targets(data, noise, merge=False)
            groups = objectives.visit_groups if name == "loo" else objectives.episode_groups
            return cls(objectives.LeaveOut(whole, groups(whole)), coarse_levels(data, noise), scale)
        return cls.of_parts(objectives.thinned_parts(data, every), noise, Prior(scale) if every > 1 else None, scale)

    @classmethod
    def of_parts(
        cls, parts: Sequence[Trajectories], noise: Noise, prior: Prior | None, scale: DataScale
    ) -> SelectionProblem:
        """Prepare the evidence of `parts`, averaged."""
        targets = tuple(build_targets(part, noise) for part in parts)
        # By rows, not by distinct states: many visits make a steep landscape in which far starts get lost.
        levels = targets[:1] if targets[0].n_rows <= 2 * COARSE_SIZE else coarse_levels(parts[0], noise)
        merged = targets[0] if len(targets) == 1 and targets[0].operator.n_targets <= 2 * COARSE_SIZE else None
        tolerance = SMALL_DATA_TOLERANCE if targets[0].n_rows <= 2 * COARSE_SIZE else FINE_TOLERANCE
        return cls(MarginalLikelihood(*targets), levels, scale, prior, merged, tolerance=tolerance)

    def penalized(self, objective: Objective) -> Callable[[Model], tuple[float, Array]]:
        """`objective` plus minus the log prior, where there is a prior."""
        prior = self.prior
        if prior is None:
            return objective

        def penalized(model: Model) -> tuple[float, Array]:
            (value, gradient), (penalty, slope) = objective(model), prior(model)
            return value + penalty, gradient + slope

        return penalized

    def search(
        self,
        guesses: Sequence[Model],
        noise_floor: float,
        report: Callable[[float], None] | None = None,
        start: SearchResult | None = None,
        n_jobs: int | None = None,
    ) -> SearchResult:
        """Search from coarse to fine."""
        return search(self, guesses, noise_floor, report, start, n_jobs)


def coarse_levels(data: Trajectories, noise: Noise, largest: int | None = None) -> tuple[Targets, ...]:
    """Samples of about COARSE_SIZE states, then of twice as many each time, up to `largest` or half of the data."""
    sizes = [COARSE_SIZE]
    while 3 * sizes[-1] <= len(data) and (largest is None or 2 * sizes[-1] <= largest):
        sizes.append(2 * sizes[-1])
    return tuple(build_targets(coarsen(data, size), noise) for size in sizes)


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The best model of one search."""

    model: Model
    value: float  # of the objective, smaller is better
    n_evaluations: int  # of the objective on all data
    seconds: float
    curvature: Array  # second derivatives in the coordinates of the search, as far as it learnt them
    n_rows: int  # rewards to which the curvature belongs
    interrupted: bool = False


def search(
    problem: SelectionProblem,
    guesses: Sequence[Model],
    noise_floor: float,
    report: Callable[[float], None] | None = None,
    start: SearchResult | None = None,
    n_jobs: int | None = None,
) -> SearchResult:
    """Minimise the objective of `problem`: explore from every guess on the smallest sample, then go through the levels.

    `start` is the result of a search of a similar objective, if there is one: then this search goes on from there, on
    all of the data at once, with the curvature that the other learnt.
    Interrupted (Ctrl-C), it returns the best model so far.
    """
    began = time.perf_counter()
    space = Coordinates.of(guesses[0], problem.scale, noise_floor)
    run = CoarseToFineSearch(problem, space, report, n_jobs)
    try:
        if start is None:
            run.explore([space.pack(guess) for guess in guesses])
            run.finish([*(MarginalLikelihood(level) for level in problem.coarse_levels[1:])])
        else:
            run.start(space.pack(start.model), start)
        run.finish([*problem.intermediate_levels, problem.objective])
        interrupted = False
    except KeyboardInterrupt:
        if run.best is None:
            raise
        interrupted = True
    assert run.best is not None
    x, value = run.best
    if not run.on_all_data:  # nats of a sample cannot be compared with nats of all data
        value = np.inf
    model = space.unpack(x)
    if not interrupted:
        problem.objective.remember(model, run.refined)
    seconds = time.perf_counter() - began
    return SearchResult(model, value, run.n_evaluations, seconds, run.curvature, run.n_rows, interrupted)


class CoarseToFineSearch:
    """A search under way: from a small sample of the data to all of it."""

    def __init__(
        self,
        problem: SelectionProblem,
        space: Coordinates,
        report: Callable[[float], None] | None,
        n_jobs: int | None = None,
    ) -> None:
        self.problem, self.space, self.report, self.n_jobs = problem, space, report, n_jobs
        self.best: tuple[Array, float] | None = None  # the best point of the present level, and its value
        self.refined: Objective = problem.objective  # with approximations chosen near the best point
        self.on_all_data = False  # whether the present level is the last one
        self.n_evaluations = 0  # in the present level
        self.curvature: Array = np.empty((0, 0))
        self.n_rows = problem.coarse_levels[0].n_rows  # to which the curvature belongs

    def start(self, x: Array, before: SearchResult | None = None) -> None:
        """Start at `x`, with the curvature that the search `before` learnt, or that the smallest sample has there."""
        self.best = (x, np.inf)
        if before is not None and len(before.curvature) == len(x):
            self.curvature, self.n_rows = before.curvature, before.n_rows
        else:
            self.curvature = self.space.curvature(x, self.problem.coarse_levels[0])

    def explore(self, starts: Sequence[Array]) -> None:
        """Start at the best mode of the smallest sample."""
        space, first = self.space, self.problem.coarse_levels[0]
        few = _sample(first)

        # Each run has a buffer of its own, so that runs may go side by side.
        def descend(x: Array) -> Optimum:
            objective, scale = self._function(MarginalLikelihood(first)), first.n_rows / COARSE_SIZE
            return self._noted(lbfgs(objective, x, space.lower, space.upper, EXPLORE_STEPS, scale, EXPLORE_TOLERANCE))

        def converge(x: Array) -> Optimum:
            objective = self._function(MarginalLikelihood(first))
            curvature = space.curvature(x, few) * (first.n_rows / few.n_rows)
            return self._noted(quasi_newton(objective, x, space.lower, space.upper, curvature, EXPLORE_TOLERANCE))

        ends = sorted(in_parallel(descend, starts, self.n_jobs), key=lambda t: t.value)
        if space.n_irrelevant(ends[0].x) > 0:  # inputs that do not matter spoil every guess of those that do
            again = converge(space.prune(max(starts, key=space.total_relevance), ends[0].x))
            ends = sorted([*ends, again], key=lambda t: t.value)
        best, *others = [t.x for t in ends]
        modes = in_parallel(converge, [best, *(x for x in others[:1] if not _alike(x, best))], self.n_jobs)
        found = min(modes, key=lambda t: t.value)
        if not _alike(modes[0].x, modes[-1].x):  # of two different modes, more data say which is better
            levels = self.problem.intermediate_levels
            judge = levels[0] if levels else self.problem.objective
            all_data = self._function(judge.refine(space.unpack(modes[0].x)))
            found = min(modes, key=lambda t: all_data(t.x)[0])
        self.best, self.curvature = (found.x, np.inf), found.curvature

    def _noted(self, end: Optimum) -> Optimum:
        """Note where a run ended, so that an interrupt can return the best end."""
        if self.best is None or end.value < self.best[1]:
            self.best = (end.x, end.value)
        return end

    def finish(self, levels: Sequence[Objective]) -> None:
        """Go on with more and more data; each level begins with the curvature that the one before it learnt."""
        for objective in levels:
            self._run_level(objective)

    def _run_level(self, objective: Objective) -> None:
        assert self.best is not None
        space, (x, _), n_rows = self.space, self.best, objective.n_rows
        self.on_all_data = objective is self.problem.objective
        if self.on_all_data and self.problem.merged is not None:
            # Visits beyond the first tell less and less: no sample knows this curvature, but it is cheap to compute.
            self.curvature, self.n_rows = space.curvature(x, self.problem.merged), n_rows
        curvature = self.curvature * (n_rows / self.n_rows)
        # In nats. On the way a rough optimum is enough, and where evaluations are expensive at the end, too.
        is_expensive = len(self.problem.intermediate_levels) > 0 and n_rows > 10_000
        fine = self.on_all_data and not is_expensive
        tolerance = self.problem.tolerance if fine else max(ROUGH_TOLERANCE, ROUGH_SHARE * n_rows)
        self.n_evaluations = 0
        self.best, self.refined = (x, np.inf), objective.refine(space.unpack(x), self.refined)
        for _ in range(MAX_REFINEMENTS):
            begun = x
            found = quasi_newton(self._recorded(self.refined), x, space.lower, space.upper, curvature, tolerance)
            x, curvature = found.x, found.curvature
            if self.refined is objective or np.abs(x - begun).max(initial=0.0) < REFINE_DISTANCE:
                break
            # What was chosen for one θ, such as inducing points, may not suit one that is far from it.
            another = objective.refine(space.unpack(x))
            if not self._recorded(another)(x)[0] < found.value - tolerance:
                break
            self.refined = another
        self.curvature, self.n_rows = curvature, n_rows

    def _recorded(self, objective: Objective) -> Function:
        """Record the best point on the way, so that an interrupt can return it."""
        f = self._function(objective)

        def recorded(x: Array) -> tuple[float, Array]:
            value, gradient = f(x)
            self.n_evaluations += 1
            assert self.best is not None
            if value < self.best[1]:
                self.best = (x.copy(), value)
            return value, gradient

        return recorded

    def _function(self, objective: Objective) -> Function:
        return self.space.function(self.problem.penalized(objective), self.report)


def _sample(targets: Targets) -> Targets:
    """Some of the targets, enough for their curvature: it takes as many matrices as there are parameters."""
    if targets.operator.n_targets <= 2 * CURVATURE_SIZE:
        return targets
    return build_targets(coarsen(targets.data, CURVATURE_SIZE), targets.noise)


def _alike(x: Array, y: Array) -> bool:
    """Whether two points are in the same mode."""
    return bool(np.abs(x - y).max(initial=0.0) < 0.1)
