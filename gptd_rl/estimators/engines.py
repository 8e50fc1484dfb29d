"""Exact or sparse: how an estimator holds its data, prepares model selection and conditions a model on them.

The estimator asks an engine for the selection problem and for the posterior of the model found; it does not know which
engine it has. Plain trajectories of moderate size go straight to the exact engine.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from gptd_rl.data.actions import NO_ACTIONS, Actions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.exact import ExactPosterior
from gptd_rl.inference.inducing import InducingPointSelector
from gptd_rl.inference.instrumental import (
    PRESENT_STATES,
    InstrumentalPosterior,
    MomentPasses,
    MomentSolution,
    WhiteFeatures,
)
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.inference.traces import WHOLE_RETURNS
from gptd_rl.kernels import DataScale
from gptd_rl.memory import available_bytes
from gptd_rl.progress import FitProgress
from gptd_rl.selection.moments import MomentProblem
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.search import SelectionProblem
from gptd_rl.sharding.sources import Sources
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import Noise, Targets, build_targets, distinct
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array, DataLike, IntArray

# "auto" is exact up to this many distinct states.
EXACT_SIZE = 4000

# Features of values by instruments, at most; smooth kernels need far fewer to express all states to rounding.
MAX_FEATURES = 1000

# Instruments by their trace decay λ.
PASSES = {passes.trace_decay: passes for passes in (PRESENT_STATES, WHOLE_RETURNS)}


class Engine(Protocol):
    """Data and noise model, restricted to some of the inputs."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing is approximated."""
        ...

    @property
    def inputs(self) -> IntArray:
        """The state variables in use."""
        ...

    @property
    def actions(self) -> Actions:
        """How actions are encoded in the last columns of a state; NO_ACTIONS unless states are pairs."""
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
    def scale(self) -> DataScale:
        """Scale of values and of the inputs in use."""
        ...

    @property
    def contiguous_sample(self) -> Trajectories:
        """Contiguous pieces of the data, with the inputs in use."""
        ...

    def selection_problem(self, name: str, every: int) -> SelectionProblem:
        """The objective called `name`, with thinning `every`."""
        ...

    def reporting_to(self, progress: FitProgress | None) -> AbstractContextManager[None]:
        """Inside this context, `progress` receives the passes over the data."""
        ...

    @property
    def moments(self) -> MomentProblem:
        """Model selection by instrumented rewards."""
        ...

    def condition(self, model: Model, every: int, trace_decay: float | None = None) -> Any:
        """Posterior of `model` given all of the data: at noise `every`·σ², or by instruments with a trace decay λ."""
        ...

    def with_residual_noise(self, model: Model, every: int) -> Model:
        """The model, to whose noise is added what the inducing points cannot express."""
        ...

    def evidence(self, model: Model, inducing_points: Array | None) -> Evidence:
        """Log marginal likelihood of all rewards, or the bound on it with these inducing points."""
        ...

    def evidence_and_gradient(self, model: Model, inducing_points: Array | None) -> tuple[Evidence, Array]:
        """The same, and the gradient of minus it."""
        ...

    def with_inputs(self, inputs: IntArray) -> Engine:
        """The same data restricted to other inputs."""
        ...

    def with_more(
        self, data: DataLike, gamma: float | None, executor: Any, before: Any, model: Model, every: int
    ) -> tuple[Engine, Any]:
        """The engine with further data, and the posterior `before` conditioned on them too."""
        ...


@dataclass(frozen=True, eq=False)
class ExactEngine:
    """Everything in memory, all pairs of distinct states in one matrix."""

    data: Trajectories
    noise: Noise
    inputs: IntArray
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
        everything = np.array_equal(self.inputs, np.arange(self.data.n_dims))
        return self.data if everything else self.data.take_inputs(self.inputs)

    @cached_property
    def scale(self) -> DataScale:
        """Scale of values and inputs."""
        return measure_scale(self.contiguous_sample, self.actions.n_categorical)

    @cached_property
    def targets(self) -> Targets:
        """The data as y = FᵀV + ε."""
        return build_targets(self.contiguous_sample, self.noise)

    def selection_problem(self, name: str, every: int) -> SelectionProblem:
        """The objective called `name`, with thinning `every`."""
        check_memory(self.contiguous_sample, self.noise, copies=5 if name != "thinned" else 1)
        return SelectionProblem.of(self.contiguous_sample, self.noise, name, every, self.scale)

    def reporting_to(self, progress: FitProgress | None) -> AbstractContextManager[None]:
        """There are no passes to report."""
        return nullcontext()

    def condition(
        self, model: Model, every: int, trace_decay: float | None = None
    ) -> ExactPosterior | InstrumentalPosterior:
        """Posterior of `model` at noise `every`·σ², or by instruments."""
        if trace_decay is not None:
            return self._by_instruments(model, PASSES[trace_decay])
        return ExactPosterior.condition(model.with_noise(every * model.noise_variance), self.targets)

    def with_residual_noise(self, model: Model, every: int) -> Model:
        """Everything is expressed."""
        return model

    @cached_property
    def transitions(self) -> Transitions:
        """The data as single transitions."""
        return Transitions.of(self.contiguous_sample)

    @cached_property
    def moments(self) -> MomentProblem:
        """Model selection by instrumented rewards."""
        return MomentProblem.of(self.transitions, self.scale, self.actions.n_categorical)

    def _by_instruments(self, model: Model, passes: MomentPasses) -> InstrumentalPosterior:
        """Values by instruments, with features that express the data to rounding."""
        candidates = np.unique(self.transitions.points, axis=0)
        selector = InducingPointSelector(candidates, MAX_FEATURES, None)
        features = WhiteFeatures.of(model.kernel, selector.select(model, len(self.transitions)))
        shard = Shard.of(self.contiguous_sample, "stochastic")
        solution = MomentSolution.of(passes.statistics(shard, features))
        return InstrumentalPosterior(features, solution, passes.noise(shard, features, solution), True, passes)

    def evidence(self, model: Model, inducing_points: Array | None) -> Evidence:
        """Log marginal likelihood of all rewards."""
        return exact.evidence(model, self.targets)

    def evidence_and_gradient(self, model: Model, inducing_points: Array | None) -> tuple[Evidence, Array]:
        """The same, and the gradient of minus it."""
        return exact.evidence_and_gradient(model, self.targets)

    def with_inputs(self, inputs: IntArray) -> ExactEngine:
        """The same data restricted to other inputs."""
        return replace(self, inputs=inputs)

    def with_more(
        self, data: DataLike, gamma: float | None, executor: Any, before: Any, model: Model, every: int
    ) -> tuple[ExactEngine, Any]:
        """The engine with further data, and the posterior of the same model given all of them."""
        parts = []
        for source in Sources.of(data, gamma):
            parts.append(source.load())
            if (n := parts[-1].n_dims) != self.n_dims:
                raise ValueError(f"{source.name}: states have {n} dimensions; expected {self.n_dims}.")
        both = replace(self, data=Trajectories.concatenate([self.data, *parts]))
        return both, both.condition(model, every, before.trace_decay)


def check_columns(n_dims: int, expected: int) -> None:
    """Refuse states of another width than those of `fit`."""
    if n_dims != expected:
        raise ValueError(f"states must have {expected} columns, as in fit; got {n_dims}.")


def check_values_are_finite(n_terminated: int, largest_loss: float) -> None:
    """Refuse γ = 1 without a terminal state: nothing says what the value is."""
    if n_terminated == 0 and largest_loss == 0.0:
        raise ValueError(
            "gamma is 1 and no episode terminates: the value is a sum without end. "
            "Use gamma < 1, or data with a terminal state."
        )


def small_engine(data: DataLike, noise: Noise, method: str, actions: Actions) -> ExactEngine | None:
    """The exact engine for trajectories of moderate size in memory, without a look at sharding; None for others."""
    if not isinstance(data, Trajectories) or method == "sparse" or (method == "auto" and len(data) > EXACT_SIZE):
        return None
    n, free = len(data), available_bytes()
    if method == "auto" and free is not None and 8 * (n**2 + n * (data.n_dims + 8)) >= 0.5 * free:
        return None
    losses = (1.0 - data.discounts)[data.has_transition]
    check_values_are_finite(int(data.terminated.sum()), float(losses.max(initial=0.0)))
    return ExactEngine(data, noise, np.arange(data.n_dims), actions)


def check_memory(data: Trajectories, noise: Noise, copies: int) -> None:
    """Refuse before the machine does: exact GPTD holds a matrix of all pairs of distinct states."""
    n = len(data)
    free = available_bytes()
    if free is None or 8 * copies * n**2 < free:
        return
    u = len(distinct(data)[0])
    tied = noise == "deterministic" or not data.terminated.all()
    if copies == 1 and (not tied or 2 * u <= n):  # repeated states are merged
        n = u
    needed = 8 * copies * n**2
    if needed >= free:
        raise ValueError(
            f"exact GPTD over {n} distinct states needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free. "
            "Use method='sparse' (or 'auto', which chooses it)."
        )
