"""What there is to fit, held in one of two ways: exactly, with all pairs of states, or sparsely, in shards.

The estimator asks a problem for the objective to search and for the posterior of the model found; it does not know
which of the two it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.actions import NO_ACTIONS, Actions
from gptd_rl.data.resampling import evenly_spaced, sample_segments
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact, sparse
from gptd_rl.inference.exact import Evidence
from gptd_rl.inference.model import Model
from gptd_rl.progress import Watch
from gptd_rl.selection import objectives
from gptd_rl.selection.bound import Bound, Choice, FixedBound
from gptd_rl.selection.objectives import Prior
from gptd_rl.selection.scales import Scales
from gptd_rl.selection.search import Task, ladder
from gptd_rl.sharding.dataset import ShardedDataset, ShardSpec, available_bytes, make_backend
from gptd_rl.sharding.sources import Sources
from gptd_rl.sharding.summary import DatasetSummary, concatenate, contiguous_sample, sample, summarize
from gptd_rl.temporal.targets import Noise, Targets, build_targets
from gptd_rl.types import Array

# "auto" is exact up to this many distinct states.
EXACT_SIZE = 4000

# States that the search sees before it goes to all of them, and the largest sample it treats exactly.
SAMPLE_SIZE = 20_000
LARGEST_EXACT_SAMPLE = 1200

# Candidates from which basis states are chosen.
N_CANDIDATES = 8000

# States in unbroken pieces, for questions about episodes.
EXCERPT_SIZE = 10_000

# Leave-one-out objectives of large data look at this many states.
LEFT_OUT_SIZE = 1500


class Problem(Protocol):
    """Data and noise model, seen through some of the inputs."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing is approximated."""
        ...

    @property
    def inputs(self) -> NDArray[np.int64]:
        """The state variables in use."""
        ...

    @property
    def actions(self) -> Actions:
        """What the last columns of a state say about an action: nothing, unless states are pairs."""
        ...

    @property
    def n_dims(self) -> int:
        """Width of a state, unused inputs included."""
        ...

    @property
    def data(self) -> Trajectories:
        """All of the data, or a sample of them; all inputs."""
        ...

    @property
    def scales(self) -> Scales:
        """Sizes of values and of the inputs in use."""
        ...

    @property
    def contiguous_sample(self) -> Trajectories:
        """Unbroken pieces of the data, with the inputs in use."""
        ...

    def task(self, name: str, every: int) -> Task:
        """The objective called `name`, with thinning `every`."""
        ...

    def reporting_to(self, watch: Watch | None) -> AbstractContextManager[None]:
        """While this lasts, `watch` is told of passes over the data."""
        ...

    def condition(self, model: Model, every: int) -> Any:
        """Posterior of `model` given all of the data, at noise `every`·σ²."""
        ...

    def evidence(self, model: Model, subset: Array | None) -> Evidence:
        """Log marginal likelihood of all rewards, or the bound on it with this subset."""
        ...

    def evidence_and_gradient(self, model: Model, subset: Array | None) -> tuple[Evidence, Array]:
        """The same, and the gradient of minus it."""
        ...

    def with_inputs(self, inputs: NDArray[np.int64]) -> Problem:
        """The same data seen through other inputs."""
        ...

    def with_more(self, data: Any, gamma: float | None, executor: Any, before: Any, every: int) -> tuple[Problem, Any]:
        """The problem with further data, and the posterior `before` conditioned on them too."""
        ...


@dataclass(frozen=True, eq=False)
class Exact:
    """Everything in memory, all pairs of distinct states in one matrix."""

    data: Trajectories
    noise: Noise
    inputs: NDArray[np.int64]
    actions: Actions = NO_ACTIONS

    @property
    def is_exact(self) -> bool:
        """Always."""
        return True

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return self.data.n_dims

    @cached_property
    def contiguous_sample(self) -> Trajectories:
        """All of the data, with the inputs in use."""
        return self.data.take_inputs(self.inputs)

    @cached_property
    def scales(self) -> Scales:
        """Sizes of values and inputs."""
        return Scales.of(self.contiguous_sample, self.actions.n_categorical)

    @cached_property
    def seen(self) -> Targets:
        """The data as y = FᵀV + ε."""
        return build_targets(self.contiguous_sample, self.noise)

    def task(self, name: str, every: int) -> Task:
        """The objective called `name`, with thinning `every`."""
        check_memory(self.contiguous_sample, self.noise, copies=5 if name != "thinned" else 1)
        return Task.of(self.contiguous_sample, self.noise, name, every, self.scales)

    def reporting_to(self, watch: Watch | None) -> AbstractContextManager[None]:
        """There are no passes to tell of."""
        return nullcontext()

    def condition(self, model: Model, every: int) -> exact.Posterior:
        """Posterior of `model` at noise `every`·σ²."""
        return exact.Posterior.condition(model.with_noise(every * model.noise_variance), self.seen)

    def evidence(self, model: Model, subset: Array | None) -> Evidence:
        """Log marginal likelihood of all rewards."""
        return exact.evidence(model, self.seen)

    def evidence_and_gradient(self, model: Model, subset: Array | None) -> tuple[Evidence, Array]:
        """The same, and the gradient of minus it."""
        return exact.evidence_and_gradient(model, self.seen)

    def with_inputs(self, inputs: NDArray[np.int64]) -> Exact:
        """The same data seen through other inputs."""
        return replace(self, inputs=inputs)

    def with_more(
        self, data: Any, gamma: float | None, executor: Any, before: exact.Posterior, every: int
    ) -> tuple[Exact, exact.Posterior]:
        """The problem with further data, and the posterior of the same model given all of them."""
        more = open_dataset(data, self.noise, gamma, executor)
        summarize(more, 0, self.n_dims)
        both = replace(self, data=concatenate([self.data, *(spec.source.load() for spec in more.specs)]))
        model = before.model.with_noise(before.model.noise_variance / every)
        return both, both.condition(model, every)


@dataclass(frozen=True, eq=False)
class Sparse:
    """Data in shards that are passed over; a sample of them in memory."""

    dataset: ShardedDataset
    summary: DatasetSummary
    data: Trajectories  # a sample, with all inputs
    pieces: Trajectories  # unbroken ones, with all inputs
    noise: Noise
    inputs: NDArray[np.int64]
    subset_size: int
    tolerance: float | None
    variance: sparse.Variance
    is_exact: bool  # every distinct state is in the basis
    actions: Actions = NO_ACTIONS

    @classmethod
    def of(
        cls,
        dataset: ShardedDataset,
        summary: DatasetSummary,
        noise: Noise,
        subset_size: int,
        tolerance: float | None,
        variance: sparse.Variance,
        actions: Actions = NO_ACTIONS,
    ) -> Sparse:
        """Take samples of the shards."""
        data = sample(dataset, summary, SAMPLE_SIZE)
        pieces = contiguous_sample(dataset, summary, EXCERPT_SIZE)
        inputs = np.arange(summary.n_dims)
        is_exact = summary.n_distinct <= subset_size
        return cls(dataset, summary, data, pieces, noise, inputs, subset_size, tolerance, variance, is_exact, actions)

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        return self.data.n_dims

    @cached_property
    def contiguous_sample(self) -> Trajectories:
        """Unbroken pieces, with the inputs in use."""
        return self.pieces.take_inputs(self.inputs)

    @cached_property
    def sample(self) -> Trajectories:
        """A sample, with the inputs in use."""
        return self.data.take_inputs(self.inputs)

    @cached_property
    def scales(self) -> Scales:
        """Sizes of values and inputs, from the sample."""
        return Scales.of(self.sample, self.actions.n_categorical)

    @cached_property
    def choice(self) -> Choice:
        """How basis states are chosen."""
        if self.is_exact:
            assert self.summary.distinct is not None
            states = np.unique(self.summary.distinct[:, self.inputs], axis=0)
            return Choice(states, len(states), None, is_final=True)
        candidates = np.unique(self.sample.states, axis=0)
        picked = evenly_spaced(len(candidates), N_CANDIDATES)
        return Choice(candidates[picked], self.subset_size, self.tolerance)

    def task(self, name: str, every: int) -> Task:
        """The bound, thinned or not; a leave-one-out objective of an contiguous_sample."""
        if name != "thinned":
            part = sample_segments(self.contiguous_sample, LEFT_OUT_SIZE)
            return Task.of(part, self.noise, name, every, self.scales)
        bound = self.bound if every == 1 else self._thinned(every)
        part = self.sample if every == 1 else sample(self.dataset, self.summary, SAMPLE_SIZE, every)
        steps = ladder(part, self.noise, LARGEST_EXACT_SAMPLE)
        between = []
        if 2 * len(part) < self.summary.n_states / every:
            between.append(Bound([open_dataset(part, self.noise)], self.choice, part.n_rows))
        if len(bound.parts) > 1:
            between.append(Bound(bound.parts[:1], self.choice, bound.n_rows))
        prior = Prior(self.scales.variance, self.scales.spread) if every > 1 else None
        on_the_way = tuple((step, step.n_rows) for step in between)
        return Task(bound, bound.evidence, bound.n_rows, steps, prior, between=on_the_way)

    @cached_property
    def bound(self) -> Bound:
        """Bound of all rewards."""
        return Bound([self.dataset], self.choice, self.summary.n_rows)

    def _thinned(self, every: int) -> Bound:
        offsets = objectives.offsets(self.summary.n_states, self.summary.longest, every)
        parts = [self.dataset.changed(every=every, offset=offset) for offset in offsets]
        return Bound(parts, self.choice, round(self.summary.n_rows / every))

    @contextmanager
    def reporting_to(self, watch: Watch | None) -> Iterator[None]:
        """While this lasts, `watch` is told of passes over all of the data."""
        if watch is not None:
            self.dataset.backend.on_shard = lambda done, n_shards: watch.passed(done, n_shards, self.summary.n_rows)
        try:
            yield
        finally:
            self.dataset.backend.on_shard = None

    def condition(self, model: Model, every: int) -> sparse.Posterior:
        """Posterior of `model` at noise `every`·σ²: one pass for the weights, one for the noise."""
        fixed = self.bound.kept(model)
        [seen] = fixed.statistics(model)
        return self._posterior(model, every, fixed.basis(model, whitened=True), seen, self.dataset)

    def _posterior(
        self,
        model: Model,
        every: int,
        basis: sparse.Basis,
        seen: sparse.Statistics,
        dataset: ShardedDataset,
        before: Array | None = None,
    ) -> sparse.Posterior:
        solution = sparse.Solution.of(model.with_noise(every * model.noise_variance), basis, seen)
        moments: Array = dataset.sum(sparse.noise_moments, basis, solution.weights)
        moments = moments if before is None else before + moments
        return sparse.Posterior(solution, moments, self.variance)

    def evidence(self, model: Model, subset: Array | None) -> Evidence:
        """Bound on the log marginal likelihood of all rewards."""
        assert subset is not None
        return FixedBound([self.dataset], subset, self.summary.n_rows).evidence(model)

    def evidence_and_gradient(self, model: Model, subset: Array | None) -> tuple[Evidence, Array]:
        """The same, and the gradient of minus it."""
        assert subset is not None
        fixed = FixedBound([self.dataset], subset, self.summary.n_rows)
        return fixed.evidence(model), fixed(model)[1]

    def with_inputs(self, inputs: NDArray[np.int64]) -> Sparse:
        """The same data seen through other inputs."""
        return replace(self, dataset=self.dataset.changed(inputs=inputs), inputs=inputs)

    def with_more(
        self, data: Any, gamma: float | None, executor: Any, before: sparse.Posterior, every: int
    ) -> tuple[Sparse, sparse.Posterior]:
        """The problem with further data, and the posterior `before` conditioned on them too; its basis stays."""
        more = open_dataset(data, self.noise, gamma, executor)
        summary = self.summary + summarize(more, self.summary.limit, self.n_dims)
        more = more.changed(inputs=self.inputs)
        model = before.solution.model.with_noise(before.solution.model.noise_variance / every)
        basis = before.solution.basis
        seen = before.solution.statistics + more.sum(sparse.statistics, basis)
        posterior = self._posterior(model, every, basis, seen, more, before.noise_moments)
        still_exact = self.is_exact and summary.n_distinct == self.summary.n_distinct  # no state is new
        return replace(self, dataset=self.dataset + more, summary=summary, is_exact=still_exact), posterior


def open_problem(
    data: Any,
    noise: Noise,
    *,
    method: str,
    subset_size: int,
    tolerance: float | None,
    variance: sparse.Variance,
    gamma: float | None = None,
    executor: Any = None,
    actions: Actions = NO_ACTIONS,
) -> Exact | Sparse:
    """Look at `data` and decide how to hold them.

    Parameters
    ----------
    data : Trajectories, path, Minari dataset, or an iterable of these
    noise : {"stochastic", "deterministic"}
    method : {"auto", "exact", "sparse"}
    subset_size, tolerance, variance
        Of the sparse method.
    gamma : float, optional
        Discount, for Minari datasets that do not keep it.
    executor : concurrent.futures.Executor, optional
    actions : NoActions, Discrete or Box
        What the last columns of states say about an action.
    """
    dataset = open_dataset(data, noise, gamma, executor)
    summary = summarize(dataset, limit=max(subset_size, EXACT_SIZE))
    if summary.n_terminated == 0 and summary.largest_loss == 0.0:
        raise ValueError(
            "gamma is 1 and no episode terminates: the value is a sum without end. "
            "Use gamma < 1, or data with a terminal state."
        )
    few = summary.n_distinct <= (subset_size if method == "sparse" else EXACT_SIZE)
    if method == "exact" or ((few or (method == "auto" and summary.n_states <= EXACT_SIZE)) and _fits(summary)):
        whole = data if isinstance(data, Trajectories) else concatenate(spec.source.load() for spec in dataset.specs)
        return Exact(whole, noise, np.arange(whole.n_dims), actions)
    return Sparse.of(dataset, summary, noise, subset_size, tolerance, variance, actions)


def reopen_problem(
    data: Any,
    noise: Noise,
    model: Model,
    *,
    subset: Array | None,
    inputs: NDArray[np.int64],
    n_dims: int,
    **options: Any,
) -> Exact | Sparse:
    """Hold other data for a model that was selected before.

    Parameters
    ----------
    data, noise
        As for `open_problem`.
    model : Model
    subset : ndarray of shape (m, n_inputs) or None
        Inducing points to keep.
    inputs : ndarray of shape (n_inputs,)
    n_dims : int
        Width that states must have.
    **options
        As for `open_problem`.
    """
    if subset is None:
        problem = open_problem(data, noise, **options)
        if problem.n_dims != n_dims:
            raise ValueError(f"states must have {n_dims} columns, as in fit; got {problem.n_dims}.")
        return problem.with_inputs(inputs)
    dataset = open_dataset(data, noise, options.pop("gamma"), options.pop("executor"))
    options.pop("method")
    summary = summarize(dataset, limit=max(len(subset), options["subset_size"]), n_dims=n_dims)
    kept = Sparse.of(dataset, summary, noise, **options).with_inputs(inputs)
    covered = summary.distinct is not None and len(
        np.unique(np.concatenate([subset, summary.distinct[:, inputs]]), axis=0)
    ) == len(subset)
    kept = replace(kept, is_exact=covered)
    kept.bound.keep(model, FixedBound([kept.dataset], subset, summary.n_rows))
    return kept


def open_dataset(data: Any, noise: Noise, gamma: float | None = None, executor: Any = None) -> ShardedDataset:
    """`data` as shards, with backend to pass over them."""
    sources = Sources.of(data, gamma)
    return ShardedDataset([ShardSpec(source, noise) for source in sources], make_backend(executor), (sources,))


def _fits(summary: DatasetSummary) -> bool:
    """Whether all data, and a matrix of all pairs of what will be their distinct states, fit into memory."""
    free = available_bytes()
    n = summary.n_states
    size = summary.n_distinct if 2 * summary.n_distinct <= n else n
    return free is None or 8 * (size**2 + n * (summary.n_dims + 8)) < 0.5 * free


def check_memory(data: Trajectories, noise: Noise, copies: int) -> None:
    """Refuse before the machine does: exact GPTD holds a matrix of all pairs of distinct states."""
    n = len(data)
    free = available_bytes()
    if free is None or 8 * copies * n**2 < free:
        return
    u = len(np.unique(data.states, axis=0))
    tied = noise == "deterministic" or not data.terminated.all()
    if copies == 1 and (not tied or 2 * u <= n):  # repeated states are merged
        n = u
    needed = 8 * copies * n**2
    if needed >= free:
        raise ValueError(
            f"exact GPTD over {n} distinct states needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. "
            "Use method='sparse' (or 'auto', which chooses it)."
        )
