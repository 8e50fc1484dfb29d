"""A dynamics model as plain data and arrays for a file.

The file holds the transitions and, for each output, its kernel, inducing states and rows: the posteriors are computed
again on loading.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

import numpy as np

from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.state_space import StateSpace
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
    def from_arrays(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The fitted model again."""
        model: Any = cls(**header["params"])
        names = [f.name for f in fields(ActionTransitions) if f.name != "gamma"]
        t = ActionTransitions(**{name: arrays[f"transitions_{name}"] for name in names}, gamma=header["gamma"])
        kept = {name: arrays[f"space_{name}"] for name in SPACE}
        space = StateSpace(**kept, circles=tuple(header["circles"]))
        model.transitions_, model.space_, model.n_dims_ = t, space, space.n_dims
        model.n_actions_, model._n_selected = int(header["n_actions"]), int(header["n_selected"])
        changes = model._outputs(t)
        model.outputs_ = [
            _output(space, t, y, model.n_actions_, kept, {name: arrays.get(f"output{d}_{name}") for name in ARRAYS})
            for d, (y, kept) in enumerate(zip(changes.T, header["outputs"], strict=True))
        ]
        model.walls_ = [_wall(wall) for wall in header["walls"]]
        model.terminations_ = _terminations(space, header["terminations"], arrays)
        model._set_noise()
        return model


ARRAYS = (*LINEAR, "rows", "inducing_points")


def _output(
    space: StateSpace, t: ActionTransitions, y: Array, n_actions: int, kept: dict[str, Any], arrays: dict[str, Any]
) -> OutputModel:
    linear, rows = LinearMean(*(arrays[name] for name in LINEAR)), arrays["rows"]
    selection = None if kept["selection"] is None else KernelSelection.from_dict(kept["selection"])
    posterior = None
    if arrays["inducing_points"] is not None:
        assert selection is not None
        x, a = t.states[rows], t.actions[rows]
        remainder = y[rows] - linear(space.coordinates(x))[np.arange(len(a)), a]
        posterior = condition(RegressionTargets(x, a, remainder, n_actions), selection, arrays["inducing_points"])
    return OutputModel(space, linear, posterior, selection, rows, float(kept["noise_std"]))


def _wall(kept: dict[str, Any]) -> Wall:
    arrays = dict(
        is_fixed=np.asarray(kept["is_fixed"], dtype=bool), values=np.asarray(kept["values"], dtype=np.float64)
    )
    return Wall(**dict(kept, **arrays))


def _describe(ends: Terminations | None, arrays: dict[str, Any]) -> dict[str, Any] | None:
    """Description of a classifier; its arrays go to `arrays`."""
    if ends is None:
        return None
    arrays |= {f"ends_{name}": getattr(ends, name) for name in ENDS}
    arrays |= dict(ends_inducing_points=ends.logit.inducing_points, ends_weights=ends.logit.weights)
    return dict(selection=ends.selection.to_dict(), n_selected=ends.n_selected)


def _terminations(space: StateSpace, kept: dict[str, Any] | None, arrays: dict[str, Any]) -> Terminations | None:
    if kept is None:
        return None
    selection = KernelSelection.from_dict(kept["selection"])
    logit = QFunction(selection.kernel, arrays["ends_inducing_points"], arrays["ends_weights"], 0.0)
    own = {name: arrays[f"ends_{name}"] for name in ENDS}
    return Terminations(space, logit, selection, int(kept["n_selected"]), **own)
