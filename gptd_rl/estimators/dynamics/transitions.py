"""The transitions that a dynamics model is fitted to, read from trajectories and checked."""

from __future__ import annotations

from typing import Any

from gptd_rl.checks import as_count
from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.actions import DiscreteActions, as_int_actions
from gptd_rl.data.state_space import check_bounds
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.greedy import label_actions


def read_transitions(data: Trajectories, n_actions: int | None, bounds: Any) -> tuple[ActionTransitions, int]:
    """Transitions of the data, and the number of actions: as many as the data show if it is None."""
    if not isinstance(data, Trajectories):
        raise TypeError(f"expected Trajectories; got {type(data).__name__}.")
    if data.actions is None:
        raise ValueError("the data have no actions: a model of the dynamics needs to know what was done.")
    if data.n_transitions == 0:
        raise ValueError("the data have no transition: a model of the dynamics needs some.")
    if data.actions.dtype.kind not in "iub":
        raise ValueError(f"a model of the dynamics needs numbered actions; got {data.actions.dtype}. Number them.")
    taken = as_int_actions(data.actions[data.has_transition])
    n = int(taken.max(initial=0)) + 1 if n_actions is None else as_count(n_actions, "n_actions")
    check_bounds(bounds, data.n_dims)
    return ActionTransitions.of(label_actions(data, DiscreteActions(n))), n
