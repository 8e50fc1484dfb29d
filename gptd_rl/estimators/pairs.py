"""Pairs of a state and an action, the rows of `GPTDQ`: which actions there are, and data as trajectories of pairs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.data.actions import ContinuousActions, DiscreteActions, as_int_actions
from gptd_rl.data.state_actions import to_state_actions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.sharding.sources import Sources
from gptd_rl.types import Array, DataLike


def find_actions(
    data: Trajectories | Sources, n_actions: int | None, candidates: ArrayLike | None, correlation: float
) -> DiscreteActions | ContinuousActions:
    """The actions in the data: discrete, and how many, or continuous, and of which shape.

    Parameters
    ----------
    data : Trajectories or Sources
    n_actions, candidates, correlation
        As `n_actions`, `candidates` and `action_correlation` of `GPTDQ`.
    """
    if n_actions is not None:
        return DiscreteActions(n_actions, correlation)
    largest = -1
    for part in [data] if isinstance(data, Trajectories) else (source.load() for source in data):
        actions = _recorded(part)
        if candidates is not None or actions.dtype.kind not in "iub":
            if correlation:
                raise ValueError("action_correlation is for discrete actions, and these are continuous.")
            return ContinuousActions(actions.shape[1:])
        largest = max(largest, int(as_int_actions(actions).max(initial=-1)))
    return DiscreteActions(largest + 1, correlation)


def _recorded(data: Trajectories) -> NDArray[Any]:
    """Actions that were taken, without the zeros behind each segment."""
    if data.actions is None:
        return np.zeros(0, dtype=np.int64)
    return np.asarray(data.actions)[data.has_transition]


def to_pairs(
    data: DataLike, actions: DiscreteActions | ContinuousActions, policy: Any, gamma: float | None
) -> Trajectories | Sources:
    """Trajectories of pairs; made once, because a stochastic policy would answer differently next time."""
    change = partial(to_state_actions, actions=actions, policy=policy)
    found: Trajectories | Sources | None
    found = change(data) if isinstance(data, Trajectories) else Sources.of(data, gamma).map(change)
    if found is None:
        raise ValueError(
            "no transition is left: a truncated segment needs two of them, since the action in its last state was not "
            "logged. fit(data, policy=…) says what it would be."
        )
    return found


def choices(actions: DiscreteActions | ContinuousActions, candidates: ArrayLike | None) -> Array:
    """The actions to choose from, of shape (n_actions, n_columns)."""
    if isinstance(actions, DiscreteActions):
        return np.arange(float(actions.n))[:, None]
    if candidates is None:
        raise ValueError(
            "actions are continuous: GPTDQ(candidates=[…]) or set_params(candidates=[…]) says which to choose from."
        )
    return actions.encode(candidates)


def combine(states: Array, choices: Array) -> Array:
    """Each state with every action, of shape (n_states · n_actions, n_dims + n_columns)."""
    return np.column_stack([np.repeat(states, len(choices), axis=0), np.tile(choices, (len(states), 1))])
