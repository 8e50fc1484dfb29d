"""A dynamics model as plain data and arrays for a file.

The file holds the transitions and, for each output, its kernel, inducing states and rows: the posteriors are computed
again on loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Self

import numpy as np

from gptd_rl.checks import (
    as_count,
    as_discount,
    as_discounts,
    as_flags,
    as_indices,
    as_numbers,
    as_points,
    as_states,
    check_number,
    one_line,
)
from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.state_space import StateSpace, check_bounds
from gptd_rl.estimators.dynamics.output import LinearMean, OutputModel, condition
from gptd_rl.estimators.dynamics.terminations import Terminations
from gptd_rl.estimators.dynamics.walls import Wall
from gptd_rl.estimators.storage import SaveAndLoad
from gptd_rl.inference.by_action import QFunction
from gptd_rl.selection.regression import KernelSelection, RegressionTargets
from gptd_rl.types import Array

SPACE = ("low", "high", "lowest", "highest", "stops_low", "stops_high", "is_angle", "is_discrete")
LINEAR = ("centre", "scale", "coefficients")
ENDS = ("ended", "rewards", "is_sought", "low", "high")
WALL = ("input", "is_upper", "edge", "slack", "is_fixed", "values")


class DynamicsFiles(SaveAndLoad):
    """The methods `save`, `load`, `to_arrays` and `from_arrays` of `DynamicsModel`."""

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as plain data and arrays, for `storage`."""
        model: Any = self
        t: ActionTransitions = model.transitions_
        arrays = {f"transitions_{f.name}": getattr(t, f.name) for f in fields(t) if f.name != "gamma"}
        arrays |= {f"space_{name}": getattr(model.space_, name) for name in SPACE}
        outputs = []
        for d, output in enumerate(model.outputs_):
            arrays |= {f"output{d}_{name}": getattr(output.linear, name) for name in LINEAR}
            arrays[f"output{d}_rows"] = output.rows
            if output.posterior is not None:
                arrays[f"output{d}_inducing_points"] = output.posterior.inducing_points
            selection = None if output.selection is None else output.selection.to_dict()
            outputs.append(dict(selection=selection, noise_std=output.noise_std))
        bounds = None if model.bounds is None else [np.asarray(bound, dtype=np.float64) for bound in model.bounds]
        header = dict(
            params=dict(model.get_params(deep=False), bounds=bounds),
            gamma=t.gamma,
            n_actions=model.n_actions_,
            n_selected=model._n_selected,
            circles=model.space_.circles,
            outputs=outputs,
            walls=[{name: getattr(wall, name) for name in WALL} for wall in model.walls_],
            terminations=_describe(model.terminations_, arrays),
        )
        return header, arrays

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The fitted model again; what a file holds is checked."""
        model: Any = cls(**header["params"])
        for name in ("subset_size", "max_rows"):
            as_count(getattr(model, name), name)
        model.n_actions_ = as_count(header["n_actions"], "n_actions")
        model._n_selected = as_count(header["n_selected"], "n_selected", 0)
        t = _transitions(header["gamma"], arrays, model.n_actions_)
        space = _space(header["circles"], arrays, t.states.shape[1])
        model.transitions_, model.space_, model.n_dims_ = t, space, space.n_dims
        changes = model._outputs(t)
        model.outputs_ = [
            _output(space, t, y, model.n_actions_, kept, {name: arrays.get(f"output{d}_{name}") for name in ARRAYS})
            for d, (y, kept) in enumerate(zip(changes.T, header["outputs"], strict=True))
        ]
        model.walls_ = [_wall(wall, space.n_dims) for wall in header["walls"]]
        model.terminations_ = _terminations(space, header["terminations"], arrays)
        model._set_noise()
        return model


ARRAYS = (*LINEAR, "rows", "inducing_points")


def _transitions(gamma: Any, arrays: Mapping[str, Any], n_actions: int) -> ActionTransitions:
    kept = {f.name: arrays[f"transitions_{f.name}"] for f in fields(ActionTransitions) if f.name != "gamma"}
    n, n_dims = as_states(kept["states"]).shape
    return ActionTransitions(
        states=as_numbers(kept["states"], (n, n_dims), "states"),
        actions=as_indices(kept["actions"], n_actions, "actions"),
        rewards=as_numbers(kept["rewards"], (n,), "rewards"),
        next_states=as_numbers(kept["next_states"], (n, n_dims), "next_states"),
        terminated=as_flags(kept["terminated"], (n,), "terminated"),
        gamma=as_discount(gamma),
        discounts=as_discounts(kept["discounts"], n),
    )


def _space(circles: Any, arrays: Mapping[str, Any], n_dims: int) -> StateSpace:
    kept = {name: arrays[f"space_{name}"] for name in SPACE}
    low, high = check_bounds((kept["low"], kept["high"]), n_dims)
    lowest, highest = (as_numbers(kept[name], (n_dims,), name) for name in ("lowest", "highest"))
    stops_low, stops_high, is_angle, is_discrete = (as_flags(kept[name], (n_dims,), name) for name in SPACE[4:])
    pairs = as_indices(np.array(circles, dtype=np.int64), n_dims - 1, "circles")
    return StateSpace(low, high, lowest, highest, stops_low, stops_high, is_angle, is_discrete, tuple(pairs.tolist()))


def _output(
    space: StateSpace, t: ActionTransitions, y: Array, n_actions: int, kept: dict[str, Any], arrays: dict[str, Any]
) -> OutputModel:
    k = space.n_dims + len(space.angles)  # coordinates
    centre, scale, coefficients = (
        as_numbers(arrays[name], (size,), name) for name, size in zip(LINEAR, (k, k, k + n_actions), strict=True)
    )
    if not (scale > 0.0).all():
        raise ValueError(f"scale must be positive; got {one_line(scale)}")
    linear, rows = LinearMean(centre, scale, coefficients), as_indices(arrays["rows"], len(t), "rows")
    check_number("noise_std", kept["noise_std"], minimum=0.0)
    selection = None if kept["selection"] is None else KernelSelection.from_dict(kept["selection"])
    posterior = None
    if arrays["inducing_points"] is not None:
        if selection is None:
            raise ValueError("it has inducing points without a kernel")
        if not rows.size:
            raise ValueError("it has inducing points without rows")
        points = as_points(arrays["inducing_points"], space.n_dims)
        x, a = t.states[rows], t.actions[rows]
        remainder = y[rows] - linear(space.coordinates(x))[np.arange(len(a)), a]
        posterior = condition(RegressionTargets(x, a, remainder, n_actions), selection, points)
    return OutputModel(space, linear, posterior, selection, rows, float(kept["noise_std"]))


def _wall(kept: dict[str, Any], n_dims: int) -> Wall:
    as_indices([kept["input"]], n_dims, "input")
    check_number("edge", kept["edge"])
    check_number("slack", kept["slack"], minimum=0.0)
    is_fixed = as_flags(kept["is_fixed"], (n_dims,), "is_fixed")
    return Wall(**dict(kept, is_fixed=is_fixed, values=as_numbers(kept["values"], (n_dims,), "values")))


def _describe(ends: Terminations | None, arrays: dict[str, Any]) -> dict[str, Any] | None:
    """Description of a classifier; its arrays go to `arrays`."""
    if ends is None:
        return None
    arrays |= {f"ends_{name}": getattr(ends, name) for name in ENDS}
    arrays |= dict(ends_inducing_points=ends.logit.inducing_points, ends_weights=ends.logit.weights)
    return dict(selection=ends.selection.to_dict(), n_selected=ends.n_selected)


def _terminations(space: StateSpace, kept: dict[str, Any] | None, arrays: Mapping[str, Any]) -> Terminations | None:
    if kept is None:
        return None
    selection = KernelSelection.from_dict(kept["selection"])
    logit = QFunction.checked(selection.kernel, arrays["ends_inducing_points"], arrays["ends_weights"], 0.0, 1)
    ended = as_numbers(arrays["ends_ended"], (None, space.n_dims), "ended")
    n, k = len(ended), space.n_dims + len(space.angles)
    own = dict(rewards=as_numbers(arrays["ends_rewards"], (n,), "rewards"))
    # Where no end is sought, their range is empty: from infinity to minus infinity.
    for name, end in dict(low=np.inf, high=-np.inf).items():
        edges = np.asarray(arrays[f"ends_{name}"])
        own[name] = np.full(k, end) if (edges == end).all() else as_numbers(edges, (k,), name)
    is_sought = as_flags(arrays["ends_is_sought"], (n,), "is_sought")
    n_selected = as_count(kept["n_selected"], "n_selected", 0)
    return Terminations(space, logit, selection, n_selected, ended=ended, is_sought=is_sought, **own)
