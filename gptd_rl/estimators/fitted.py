"""A fitted model as one record, and as plain data and arrays for a file.

A file holds the data and θ of an exact model: its posterior is computed again on loading, which costs one factorisation
and keeps the file small. Of a sparse model it holds the statistics, and a sample of the data for plots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gptd_rl.checks import as_correlation, as_count, as_indices, as_numbers, check_number
from gptd_rl.data.actions import NO_ACTIONS, Actions, ContinuousActions, DiscreteActions, NoActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.checks import check_kernel_width
from gptd_rl.estimators.engines import PASSES, ExactEngine
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.instrumental import InstrumentalPosterior, MomentSolution, MomentStatistics, WhiteFeatures
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.inference.sparse import Solution, SparsePosterior, SparseVariance
from gptd_rl.inference.statistics import Statistics
from gptd_rl.kernels import registry
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import Array, IntArray

SCALARS = ("prior_trace", "n_rows", "log_jacobian")
MOMENT_SCALARS = ("squared_rewards", "n_rows", "total_loss", "smallest_loss")
MOMENT_ARRAYS = ("gram", "cross", "moment", "difference_gram", "difference_moment", "present_cross")
ARRAYS = ("states", "rewards", "discounts", "lengths", "terminated", "actions", "policy_actions")


@dataclass(frozen=True, eq=False)
class FittedModel:
    """All that an estimator learnt."""

    posterior: Any
    data: Trajectories  # or a sample of them; all inputs
    inputs: IntArray  # columns of the data in use
    model: Model
    thinning: int
    is_exact: bool
    actions: Actions
    evidence: Evidence


def arrays_of(fitted: FittedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """A fitted model as a header of plain data, and arrays by name."""
    data = fitted.data
    arrays = {name: getattr(data, name) for name in ARRAYS if getattr(data, name) is not None}
    arrays |= dict(theta=fitted.model.theta, inputs=fitted.inputs)
    header: dict[str, Any] = dict(
        actions=describe_actions(fitted.actions),
        kernel=registry.describe(fitted.model.kernel),
        noise_is_fixed=fitted.model.noise_is_fixed,
        thinning=fitted.thinning,
        exact=fitted.is_exact,
        trace_decay=fitted.posterior.trace_decay,
        evidence=asdict(fitted.evidence),
    )
    if isinstance(fitted.posterior, InstrumentalPosterior) and not fitted.posterior.is_exact:
        moments = fitted.posterior.solution.statistics
        arrays |= dict(inducing_points=fitted.posterior.inducing_points, moment_noise=fitted.posterior.noise)
        arrays |= {name: getattr(moments, name) for name in MOMENT_ARRAYS if getattr(moments, name) is not None}
        header["moments"] = {name: getattr(moments, name) for name in MOMENT_SCALARS}
    if isinstance(fitted.posterior, SparsePosterior):
        known = fitted.posterior.solution.statistics
        arrays |= dict(
            inducing_points=fitted.posterior.inducing_points,
            gram=known.gram,
            nullspace_gram=known.nullspace_gram,
            noise_moments=fitted.posterior.noise_moments,
        )
        header["statistics"] = {name: getattr(known, name) for name in SCALARS}
    return header, arrays


def fitted_from(
    header: dict[str, Any], arrays: Mapping[str, Any], noise: Noise, variance: SparseVariance
) -> tuple[FittedModel, ExactEngine | None]:
    """The fitted model again, and an engine if its data are all there; what a file holds is checked."""
    actions = build_actions(header["actions"])
    data = data_from(arrays)
    inputs, every = as_indices(arrays["inputs"], data.n_dims, "inputs"), as_count(header["thinning"], "thinning")
    kernel = registry.build(header["kernel"])
    check_kernel_width(kernel, len(inputs) - actions.n_categorical, actions)
    model = model_from(kernel, bool(header["noise_is_fixed"]), arrays["theta"])
    if header.get("trace_decay") not in (None, *PASSES):
        raise ValueError(f"its trace_decay is {header['trace_decay']!r}")
    engine = None
    posterior: Any
    if "moments" in header:
        posterior = _bootstrapped(model, header, arrays)
    elif "statistics" in header:
        posterior = _sparse(model, every, noise, variance, header, arrays)
    else:
        engine = ExactEngine(data, noise, inputs, actions)
        posterior = engine.condition(model, every, header.get("trace_decay"))
    # Files of release 0.1 hold neither, and models that learnt from returns.
    evidence = Evidence.from_dict(header["evidence"]) if "evidence" in header else posterior.evidence(model)
    return FittedModel(posterior, data, inputs, model, every, bool(header["exact"]), actions, evidence), engine


def model_from(kernel: Any, noise_is_fixed: bool, theta: Any) -> Model:
    """The model of a kernel and θ; logarithms of θ may be −inf, those of parameters that are 0."""
    template = Model(kernel, 1.0, noise_is_fixed)
    if np.shape(theta) != template.theta.shape or np.isnan(theta).any() or np.isposinf(theta).any():
        raise ValueError(
            f"theta must be {len(template.theta)} numbers; got {np.shape(theta)} of them, or NaN or infinity."
        )
    model = template.with_theta(theta)
    check_number("the noise variance", model.noise_variance, above=0.0)
    return model


def _sparse(
    model: Model, every: int, noise: Noise, variance: SparseVariance, header: dict[str, Any], arrays: Mapping[str, Any]
) -> SparsePosterior:
    """The sparse posterior from its statistics."""
    features = InducingFeatures(model.kernel, _inducing_points(arrays), whitened=True)
    m = len(features)
    gram = as_numbers(arrays["gram"], (m + 1, m + 1), "gram")
    nullspace_gram = as_numbers(arrays["nullspace_gram"], (m, m), "nullspace_gram")
    known = Statistics(gram, nullspace_gram, **_numbers(header["statistics"], SCALARS))
    solution = Solution.of(model.with_noise(every * model.noise_variance), features, known)
    return SparsePosterior(solution, as_numbers(arrays["noise_moments"], (m, m), "noise_moments"), variance, noise)


def _bootstrapped(model: Model, header: dict[str, Any], arrays: Mapping[str, Any]) -> InstrumentalPosterior:
    """Values by instruments from their statistics."""
    features = WhiteFeatures(InducingFeatures(model.kernel, _inducing_points(arrays), whitened=True))
    m = len(features)
    kept: dict[str, Any] = {
        name: as_numbers(arrays[name], (m,) if name.endswith("moment") else (m, m), name)
        for name in MOMENT_ARRAYS
        if name in arrays
    }
    known = MomentStatistics(**kept, **_numbers(header["moments"], MOMENT_SCALARS))
    noise = as_numbers(arrays["moment_noise"], (m, m), "moment_noise")
    return InstrumentalPosterior(features, MomentSolution.of(known), noise, False, PASSES[header["trace_decay"]])


def _inducing_points(arrays: Mapping[str, Any]) -> Array:
    return as_numbers(arrays["inducing_points"], (None, len(arrays["inputs"])), "inducing_points")


def _numbers(kept: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Finite numbers by name, and no others."""
    for name, value in kept.items():
        check_number(name, value)
    return {name: kept[name] for name in names}


def data_from(arrays: Mapping[str, Any]) -> Trajectories:
    """The data of a fitted model."""
    kept: dict[str, Any] = {name: arrays.get(name) for name in ARRAYS}
    return Trajectories(**kept)


def describe_actions(actions: Actions) -> dict[str, Any]:
    """How actions are encoded, as plain data."""
    return {} if isinstance(actions, NoActions) else {type(actions).__name__: asdict(actions)}  # type: ignore[call-overload]


def build_actions(description: dict[str, Any]) -> Actions:
    """What `describe_actions` described."""
    if "DiscreteActions" in description:
        kept = description["DiscreteActions"]
        return DiscreteActions(as_count(kept["n"], "the number of actions"), as_correlation(kept["correlation"]))
    if "ContinuousActions" in description:
        return ContinuousActions(tuple(as_count(n, "actions") for n in description["ContinuousActions"]["shape"]))
    return NO_ACTIONS
