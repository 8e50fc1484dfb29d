"""The sparse engine: data in shards, a sample of them in memory; and the choice between the two engines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gptd_rl.data.actions import NO_ACTIONS, Actions
from gptd_rl.data.resampling import evenly_spaced, sample_segments
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.engines import (
    EXACT_SIZE,
    PASSES,
    ExactEngine,
    check_columns,
    check_values_are_finite,
    small_engine,
)
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.inducing import InducingPointSelector
from gptd_rl.inference.instrumental import (
    InstrumentalPosterior,
    MomentPasses,
    MomentSolution,
    WhiteFeatures,
)
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.inference.sparse import Solution, SparsePosterior, SparseVariance
from gptd_rl.inference.statistics import Statistics, noise_moments, statistics
from gptd_rl.kernels import DataScale
from gptd_rl.memory import available_bytes
from gptd_rl.progress import FitProgress
from gptd_rl.selection import objectives
from gptd_rl.selection.bound import Bound, FixedBound
from gptd_rl.selection.moments import MomentProblem
from gptd_rl.selection.objectives import Prior
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.search import SelectionProblem, coarse_levels
from gptd_rl.sharding.dataset import ShardedDataset, open_dataset
from gptd_rl.sharding.summary import DatasetSummary, concatenate, contiguous_sample, sample, summarize
from gptd_rl.temporal.targets import Noise
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array, DataLike, IntArray

# States that the search sees before it goes to all of them, and the largest sample it treats exactly.
SAMPLE_SIZE = 20_000
LARGEST_EXACT_SAMPLE = 1200

# Candidates from which inducing points are chosen; fewer for each inducing point if θ is known.
N_CANDIDATES = 8000
CANDIDATES_PER_POINT = 5

# States in contiguous pieces, for questions about episodes.
CONTIGUOUS_SIZE = 10_000

# Leave-one-out objectives of large data look at this many states.
LEFT_OUT_SIZE = 1500


@dataclass(frozen=True)
class SparseOptions:
    """Parameters of the sparse method."""

    subset_size: int
    tolerance: float | None
    variance: SparseVariance
    n_candidates: int = N_CANDIDATES


@dataclass(frozen=True, eq=False)
class SparseEngine:
    """Data in shards; a sample of them in memory."""

    dataset: ShardedDataset
    summary: DatasetSummary
    data: Trajectories  # a sample, with all inputs
    pieces: Trajectories  # contiguous ones, with all inputs
    noise: Noise
    inputs: IntArray
    options: SparseOptions
    is_exact: bool  # every distinct state is an inducing point
    actions: Actions = NO_ACTIONS

    @classmethod
    def of(
        cls, dataset: ShardedDataset, summary: DatasetSummary, noise: Noise, options: SparseOptions, actions: Actions
    ) -> SparseEngine:
        """Take samples of the shards."""
        data = sample(dataset, summary, SAMPLE_SIZE)
        pieces = contiguous_sample(dataset, summary, CONTIGUOUS_SIZE)
        inputs = np.arange(summary.n_dims)
        is_exact = summary.n_distinct <= options.subset_size
        return cls(dataset, summary, data, pieces, noise, inputs, options, is_exact, actions)

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return self.data.n_dims

    @cached_property
    def contiguous_sample(self) -> Trajectories:
        """Contiguous pieces, with the inputs in use."""
        return self.pieces.take_inputs(self.inputs)

    @cached_property
    def sample(self) -> Trajectories:
        """A sample, with the inputs in use."""
        return self.data.take_inputs(self.inputs)

    @cached_property
    def scale(self) -> DataScale:
        """Scale of values and inputs, from the sample."""
        return measure_scale(self.sample, self.actions.n_categorical)

    @cached_property
    def selector(self) -> InducingPointSelector:
        """How inducing points are chosen."""
        if self.is_exact:
            assert self.summary.distinct is not None
            states = np.unique(np.concatenate([self.summary.distinct[:, self.inputs], self._points]), axis=0)
            return InducingPointSelector(states, len(states), None, takes_all=True)
        candidates = np.unique(self._points, axis=0)
        picked = evenly_spaced(len(candidates), self.options.n_candidates)
        return InducingPointSelector(candidates[picked], self.options.subset_size, self.options.tolerance)

    @property
    def _points(self) -> Array:
        """States of the sample; off-policy also the pairs that follow, which the logged ones may not represent."""
        return self.sample.states if self.sample.policy_actions is None else Transitions.of(self.sample).points

    def selection_problem(self, name: str, every: int) -> SelectionProblem:
        """The bound, thinned or not; a leave-one-out objective of a contiguous sample."""
        if name != "thinned":
            part = sample_segments(self.contiguous_sample, LEFT_OUT_SIZE)
            return SelectionProblem.of(part, self.noise, name, every, self.scale)
        bound = self.bound if every == 1 else self._thinned(every)
        part = self.sample if every == 1 else sample(self.dataset, self.summary, SAMPLE_SIZE, every)
        levels = coarse_levels(part, self.noise, LARGEST_EXACT_SAMPLE)
        intermediate = []
        if 2 * len(part) < self.summary.n_states / every:
            intermediate.append(Bound([open_dataset(part, self.noise)], self.selector, part.n_rows))
        if len(bound.parts) > 1:
            intermediate.append(Bound(bound.parts[:1], self.selector, bound.n_rows))
        prior = Prior(self.scale) if every > 1 else None
        return SelectionProblem(bound, levels, self.scale, prior, intermediate_levels=tuple(intermediate))

    @cached_property
    def bound(self) -> Bound:
        """Bound of all rewards."""
        return Bound([self.dataset], self.selector, self.summary.n_rows)

    def _thinned(self, every: int) -> Bound:
        offsets = objectives.offsets(self.summary.n_states, self.summary.longest, every)
        parts = [self.dataset.changed(every=every, offset=offset) for offset in offsets]
        return Bound(parts, self.selector, round(self.summary.n_rows / every))

    @contextmanager
    def reporting_to(self, progress: FitProgress | None) -> Iterator[None]:
        """Inside this context, `progress` receives the passes over all of the data."""
        if progress is not None:
            self.dataset.backend.on_shard = lambda done, n_shards: progress.passed(done, n_shards, self.summary.n_rows)
        try:
            yield
        finally:
            self.dataset.backend.on_shard = None

    def condition(
        self, model: Model, every: int, trace_decay: float | None = None
    ) -> SparsePosterior | InstrumentalPosterior:
        """Posterior of `model` at noise `every`·σ², or by instruments: one pass for the weights, one for the noise."""
        if trace_decay is not None:
            return self._by_instruments(model, PASSES[trace_decay])
        fixed = self.bound.found(model)
        [known] = fixed.statistics(model)
        return self._posterior(model, every, fixed.features(model, whitened=True), known, self.dataset)

    def with_residual_noise(self, model: Model, every: int) -> Model:
        """A model selected without these inducing points: what they cannot express is noise to them."""
        fixed = self.bound.found(model)
        [known] = fixed.statistics(model)
        residual = Solution.of(model, fixed.features(model, whitened=True), known).residual_variance
        return model.with_noise(model.noise_variance + residual / every)

    @cached_property
    def moments(self) -> MomentProblem:
        """Model selection by instrumented rewards of contiguous pieces."""
        transitions = Transitions.of(self.contiguous_sample)
        return MomentProblem.of(transitions, self.scale, self.actions.n_categorical)

    def _by_instruments(self, model: Model, passes: MomentPasses) -> InstrumentalPosterior:
        inducing_points = self.bound.found(model).states
        features = WhiteFeatures.of(model.kernel, inducing_points)
        solution = MomentSolution.of(self.dataset.sum(passes.statistics, features))
        noise = self.dataset.sum(passes.noise, features, solution)
        return InstrumentalPosterior(features, solution, noise, False, passes)

    def _posterior(
        self,
        model: Model,
        every: int,
        features: InducingFeatures,
        known: Statistics,
        dataset: ShardedDataset,
        before: Array | None = None,
    ) -> SparsePosterior:
        solution = Solution.of(model.with_noise(every * model.noise_variance), features, known)
        moments: Array = dataset.sum(noise_moments, features, solution.weights)
        moments = moments if before is None else before + moments
        return SparsePosterior(solution, moments, self.options.variance, self.noise)

    def evidence(self, model: Model, inducing_points: Array | None) -> Evidence:
        """Bound on the log marginal likelihood of all rewards."""
        assert inducing_points is not None
        return FixedBound([self.dataset], inducing_points, self.summary.n_rows).evidence(model)

    def evidence_and_gradient(self, model: Model, inducing_points: Array | None) -> tuple[Evidence, Array]:
        """The same, and the gradient of minus it."""
        assert inducing_points is not None
        fixed = FixedBound([self.dataset], inducing_points, self.summary.n_rows)
        return fixed.evidence(model), fixed(model)[1]

    def with_inputs(self, inputs: IntArray) -> SparseEngine:
        """The same data restricted to other inputs."""
        return replace(self, dataset=self.dataset.changed(inputs=inputs), inputs=inputs)

    def with_inducing_points(self, model: Model, inducing_points: Array) -> SparseEngine:
        """The same data, with inducing points for `model` that were chosen before."""
        known = self.summary.distinct
        both = None if known is None else np.concatenate([inducing_points, known[:, self.inputs]])
        is_exact = both is not None and len(np.unique(both, axis=0)) == len(inducing_points)
        new = replace(self, is_exact=is_exact)
        new.bound.remember(model, FixedBound([new.dataset], inducing_points, self.summary.n_rows))
        return new

    def with_more(
        self, data: DataLike, gamma: float | None, executor: Any, before: Any, model: Model, every: int
    ) -> tuple[SparseEngine, Any]:
        """The engine with further data, and the posterior `before` conditioned on them; its inducing points stay."""
        more = open_dataset(data, self.noise, gamma, executor)
        summary = self.summary + summarize(more, self.summary.limit, self.n_dims)
        more = more.changed(inputs=self.inputs)
        by_instruments = before.trace_decay is not None
        posterior = self._moments_of_more(more, before) if by_instruments else self._more(more, before, model, every)
        still_exact = self.is_exact and summary.n_distinct == self.summary.n_distinct  # no state is new
        return replace(self, dataset=self.dataset + more, summary=summary, is_exact=still_exact), posterior

    def _more(self, more: ShardedDataset, before: SparsePosterior, model: Model, every: int) -> SparsePosterior:
        features = before.solution.features
        known = before.solution.statistics + more.sum(statistics, features)
        return self._posterior(model, every, features, known, more, before.noise_moments)

    def _moments_of_more(self, more: ShardedDataset, before: InstrumentalPosterior) -> InstrumentalPosterior:
        features = before.features
        solution = MomentSolution.of(before.solution.statistics + more.sum(before.passes.statistics, features))
        noise = before.noise + more.sum(before.passes.noise, features, solution)
        return replace(before, solution=solution, noise=noise)


def make_engine(
    data: DataLike,
    noise: Noise,
    *,
    method: str,
    options: SparseOptions,
    gamma: float | None = None,
    executor: Any = None,
    actions: Actions = NO_ACTIONS,
) -> ExactEngine | SparseEngine:
    """Look at `data` and decide how to hold them.

    Parameters
    ----------
    data : Trajectories, path, Minari dataset, or an iterable of these
    noise : {"stochastic", "deterministic"}
    method : {"auto", "exact", "sparse"}
    options : SparseOptions
    gamma : float, optional
        Discount, for Minari datasets that do not keep it.
    executor : concurrent.futures.Executor, optional
    actions : NoActions, DiscreteActions or ContinuousActions
        How actions are encoded in the last columns of states.
    """
    if (engine := small_engine(data, noise, method, actions)) is not None:
        return engine
    dataset = open_dataset(data, noise, gamma, executor)
    summary = summarize(dataset, limit=max(options.subset_size, EXACT_SIZE))
    check_values_are_finite(summary.n_terminated, summary.largest_loss)
    few = summary.n_distinct <= (options.subset_size if method == "sparse" else EXACT_SIZE)
    if method == "exact" or ((few or (method == "auto" and summary.n_states <= EXACT_SIZE)) and _fits(summary)):
        whole = data if isinstance(data, Trajectories) else concatenate(spec.source.load() for spec in dataset.specs)
        return ExactEngine(whole, noise, np.arange(whole.n_dims), actions)
    return SparseEngine.of(dataset, summary, noise, options, actions)


def remake_engine(
    data: DataLike,
    noise: Noise,
    model: Model,
    *,
    inducing_points: Array | None,
    inputs: IntArray,
    n_dims: int,
    method: str,
    options: SparseOptions,
    gamma: float | None,
    executor: Any,
    actions: Actions,
) -> ExactEngine | SparseEngine:
    """Hold other data for a model that was selected before.

    Parameters
    ----------
    data, noise, method, options, gamma, executor, actions
        As for `make_engine`.
    model : Model
    inducing_points : ndarray of shape (m, n_inputs) or None
        Inducing points to keep.
    inputs : ndarray of shape (n_inputs,)
    n_dims : int
        Width that states must have.
    """
    if inducing_points is None:
        options = replace(options, n_candidates=CANDIDATES_PER_POINT * options.subset_size)
        engine = make_engine(
            data, noise, method=method, options=options, gamma=gamma, executor=executor, actions=actions
        )
        check_columns(engine.n_dims, n_dims)
        return engine.with_inputs(inputs)
    dataset = open_dataset(data, noise, gamma, executor)
    summary = summarize(dataset, limit=max(len(inducing_points), options.subset_size), n_dims=n_dims)
    engine = SparseEngine.of(dataset, summary, noise, options, actions).with_inputs(inputs)
    return engine.with_inducing_points(model, inducing_points)


def _fits(summary: DatasetSummary) -> bool:
    """Whether all data, and a matrix of all pairs of their distinct states, fit into memory."""
    free = available_bytes()
    n = summary.n_states
    size = summary.n_distinct if 2 * summary.n_distinct <= n else n
    return free is None or 8 * (size**2 + n * (summary.n_dims + 8)) < 0.5 * free
