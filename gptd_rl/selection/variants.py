"""Comparing kernels: the paper's variants I, II and III with every rank, or a kernel of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gptd_rl.checks import as_generator
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.kernels import ARD, ActionDelta, DataScale, FactorAnalysis, Guess, Isotropic, Kernel, paper_kernel
from gptd_rl.selection.search import SearchProblem, SearchResult

VARIANTS = ("isotropic", "ard", "factor", "auto")

# First guesses: relevance of an input per variance, and the noise share of the variance of returns.
MEDIUM, SMOOTH_AND_NOISY, SHORT = (1.0, 1e-2), (0.1, 0.3), (5.0, 1e-3)


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

    @classmethod
    def interrupted_at(cls, found: SearchResult) -> Comparison:
        """Nothing but a model that was found on a part of the data before Ctrl-C; its evidence is not known."""
        new = cls([describe_candidate(found, None)])
        new.interrupted = True
        return new

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
class SearchOptions:
    """How to search: everything that is the same for every variant."""

    noise_floor: float
    n_restarts: int
    noise_variance: float | None  # held at this value, if given
    seed: int | None
    max_rank: int | None
    warm: Model | None = None  # a model to start from, beside the guesses
    start: SearchResult | None = None  # of a similar objective: its variant needs no guesses
    report: Callable[[float], None] | None = None  # receives each value of the objective
    actions: ActionDelta | None = None  # multiplies kernels that do not read actions themselves
    n_jobs: int | None = None
    layouts: tuple[tuple[float, float], ...] = (MEDIUM, SMOOTH_AND_NOISY, SHORT)  # first guesses

    def over_actions(self, kernel: Kernel) -> Kernel:
        """The kernel over state-action pairs, if there are actions."""
        return kernel if self.actions is None or kernel.n_categorical else kernel * self.actions

    def guesses(self, kernel: Kernel, scale: DataScale) -> list[Model]:
        """Where to start a variant: three guesses laid out by hand, the others at random."""
        rng = as_generator(self.seed)
        layouts = list(self.layouts)
        layouts += [(10.0 ** rng.uniform(-1.5, 1.5), 10.0 ** rng.uniform(-4.0, -0.3)) for _ in range(self.n_restarts)]
        variance, level = scale.return_variance, scale.return_variance + scale.mean_return**2
        kernel = self.over_actions(kernel)
        models = [
            Model(kernel.initial(scale, Guess(relevance, variance, level), rng), share * variance)
            for relevance, share in layouts
        ]
        if self.warm is not None and self.warm.parameter_names == models[0].parameter_names:
            models.append(self.warm)
        if self.noise_variance is not None:
            models = [replace(m, noise_variance=self.noise_variance, noise_is_fixed=True) for m in models]
        return models

    def search(self, problem: SearchProblem, guesses: Sequence[Model]) -> SearchResult:
        """Search one variant."""
        same = self.start is not None and self.start.model.parameter_names == guesses[0].parameter_names
        start = self.start if same else None
        return problem.search(guesses, self.noise_floor, self.report, start, self.n_jobs)

    def run(self, problem: SearchProblem, guesses: Sequence[Model]) -> Candidate:
        """Search one variant, and describe what was found."""
        found = self.search(problem, guesses)
        try:
            evidence = problem.objective.evidence(found.model)
        except KeyboardInterrupt:  # the model is found
            return describe_candidate(replace(found, interrupted=True), None)
        return describe_candidate(found, evidence)


def describe_candidate(found: SearchResult, evidence: Evidence | None) -> Candidate:
    """The variant of a search, with its evidence if that is known."""
    kernel, e = found.model.kernel, evidence or Evidence(np.nan, np.nan, 0)
    return Candidate(
        kernel.label,
        _rank(kernel),
        found.model,
        found.value,
        e.log_likelihood,
        e.complexity,
        e.data_fit,
        int(found.model.is_free.sum()),
        found.seconds,
        found.interrupted,
    )


def compare(kernel: str | Kernel, problem: SearchProblem, options: SearchOptions) -> Comparison:
    """Search every variant that `kernel` stands for: a name, "auto" for all of them, or a kernel of the user's own.

    Interrupted (Ctrl-C), it returns the variants that were tried.
    """
    tried: list[Candidate] = []
    go_on = True
    variants = _variants(kernel, problem.scale, options, tried)
    while go_on:
        try:
            guesses = next(variants, None)
            if guesses is None:
                break
            tried.append(options.run(problem, guesses))
            go_on = not tried[-1].interrupted
        except KeyboardInterrupt:
            if not tried:
                raise
            go_on = False
    comparison = Comparison(tried)
    comparison.interrupted = not go_on
    return comparison


def first_guesses(kernel: str | Kernel, scale: DataScale, options: SearchOptions) -> list[Model]:
    """Where to start the first variant that `kernel` stands for."""
    return next(_variants(kernel, scale, options, ()))


def _variants(
    kernel: str | Kernel, scale: DataScale, options: SearchOptions, tried: Sequence[Candidate]
) -> Iterator[list[Model]]:
    """Guesses for one variant after the other; what was `tried` before helps the next."""
    if isinstance(kernel, Kernel):
        yield _own(kernel, scale, options)
        return
    D = len(scale.input_std)
    if kernel in ("isotropic", "auto"):
        yield options.guesses(paper_kernel(Isotropic(1.0, D)), scale)
    if kernel in ("ard", "auto") or (D == 1 and kernel == "factor"):  # one input has no direction to find
        yield options.guesses(paper_kernel(ARD(np.ones(D))), scale)
    if kernel in ("factor", "auto"):
        rng = as_generator(options.seed)
        for rank in range(1, min(D - 1, options.max_rank or D) + 1):
            guesses = options.guesses(paper_kernel(FactorAnalysis(np.ones(D), np.ones((D, rank)))), scale)
            if tried:
                guesses.append(_grow_rank(tried[-1].model, scale, rng, options))
            yield guesses


def _own(kernel: Kernel, scale: DataScale, options: SearchOptions) -> list[Model]:
    """Guesses for a kernel that the user made: itself first; what it holds fixed stays."""
    guesses = options.guesses(kernel, scale)
    own = replace(guesses[0], kernel=options.over_actions(kernel))
    held = ~own.is_free
    return [own, *(own.with_theta(np.where(held, own.theta, guess.theta)) for guess in guesses)]


def _grow_rank(model: Model, scale: DataScale, rng: np.random.Generator, options: SearchOptions) -> Model:
    """A model of the paper with a further, small, random direction."""
    kernel: Any = model.kernel
    metric = kernel.metric
    size = np.sqrt(np.median(metric.eigenvalues * np.median(scale.input_std) ** 2))
    column = 0.3 * size * rng.normal(size=len(scale.input_std)) / scale.input_std
    grown = paper_kernel(metric.grow(column), kernel.signal_variance, kernel.bias)
    return replace(model, kernel=options.over_actions(grown))


def _rank(kernel: Kernel) -> int:
    metric = getattr(kernel, "metric", None)
    return 0 if metric is None else int(metric.rank)
