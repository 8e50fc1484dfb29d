"""A fitted model as one record, and as plain data and arrays for a file.

A file holds the data and θ of an exact model: its posterior is computed again on loading, which costs one factorisation
and keeps the file small. Of a sparse model it holds the statistics, and a sample of the data for plots.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gptd_rl.data.actions import NO_ACTIONS, Actions, ContinuousActions, DiscreteActions, NoActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.engines import PASSES, ExactEngine
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.instrumental import InstrumentalPosterior, MomentSolution, MomentStatistics, WhiteFeatures
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.inference.sparse import Solution, SparsePosterior, SparseVariance
from gptd_rl.inference.statistics import Statistics
from gptd_rl.kernels import registry
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import IntArray

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
    header: dict[str, Any], arrays: dict[str, Any], noise: Noise, variance: SparseVariance
) -> tuple[FittedModel, ExactEngine | None]:
    """The fitted model again, and an engine if its data are all there."""
    actions = build_actions(header["actions"])
    data = data_from(arrays)
    template = Model(registry.build(header["kernel"]), 1.0, header["noise_is_fixed"])
    model, inputs, every = template.with_theta(arrays["theta"]), arrays["inputs"], header["thinning"]
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
    evidence = Evidence(**header["evidence"]) if "evidence" in header else posterior.evidence(model)
    return FittedModel(posterior, data, inputs, model, every, header["exact"], actions, evidence), engine


def _sparse(
    model: Model, every: int, noise: Noise, variance: SparseVariance, header: dict[str, Any], arrays: dict[str, Any]
) -> SparsePosterior:
    """The sparse posterior from its statistics."""
    known = Statistics(arrays["gram"], arrays["nullspace_gram"], **header["statistics"])
    features = InducingFeatures(model.kernel, arrays["inducing_points"], whitened=True)
    solution = Solution.of(model.with_noise(every * model.noise_variance), features, known)
    return SparsePosterior(solution, arrays["noise_moments"], variance, noise)


def _bootstrapped(model: Model, header: dict[str, Any], arrays: dict[str, Any]) -> InstrumentalPosterior:
    """Values by instruments from their statistics."""
    kept: dict[str, Any] = {name: arrays.get(name) for name in MOMENT_ARRAYS}
    known = MomentStatistics(**kept, **header["moments"])
    features = WhiteFeatures(InducingFeatures(model.kernel, arrays["inducing_points"], whitened=True))
    passes = PASSES[header["trace_decay"]]
    return InstrumentalPosterior(features, MomentSolution.of(known), arrays["moment_noise"], False, passes)


def data_from(arrays: dict[str, Any]) -> Trajectories:
    """The data of a fitted model."""
    return Trajectories._trusted(**{name: arrays.get(name) for name in ARRAYS})


def describe_actions(actions: Actions) -> dict[str, Any]:
    """How actions are encoded, as plain data."""
    return {} if isinstance(actions, NoActions) else {type(actions).__name__: asdict(actions)}  # type: ignore[call-overload]


def build_actions(description: dict[str, Any]) -> Actions:
    """What `describe_actions` described."""
    if "DiscreteActions" in description:
        return DiscreteActions(**description["DiscreteActions"])
    if "ContinuousActions" in description:
        return ContinuousActions(tuple(description["ContinuousActions"]["shape"]))
    return NO_ACTIONS
