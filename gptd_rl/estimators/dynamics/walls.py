"""Bounds at which state variables stop, and what happens to the others there.

A speed that is clipped, or a car that runs into a wall: the state variable stays at the bound, and others may take a
fixed value there, as the car's speed does, which is 0 then. Both are learnt from the rows that were stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.state_space import CLOSE, MIN_AT_BOUND, StateSpace
from gptd_rl.types import Array, BoolArray

# A state variable has a fixed value at a wall if it varies by less than this share of its standard deviation there. In
# fewer than MIN_AT_BOUND rows nothing varies: then it must also differ by more than that from what the model expects,
# and by this many times the 90 % quantile of the errors in all other rows.
FIXED, OUTLYING = 1e-3, 10.0


@dataclass(frozen=True, eq=False)
class Wall:
    """A bound of one state variable.

    Attributes
    ----------
    input : int
        The state variable that stops.
    is_upper : bool
        Whether it is stopped from above.
    edge : float
        Where.
    slack : float
        Rounding of the edge.
    is_fixed : ndarray of shape (n_dims,)
        State variables with fixed values there.
    values : ndarray of shape (n_dims,)
        These values.
    """

    input: int
    is_upper: bool
    edge: float
    slack: float
    is_fixed: BoolArray
    values: Array

    def stop(self, unbounded: Array, reached: Array) -> None:
        """Set the fixed values in `reached` where `unbounded`, of the same shape, lies behind the wall."""
        behind = self._is_behind(unbounded[..., self.input])
        reached[behind] = np.where(self.is_fixed, self.values, reached[behind])

    def was_hit(self, reached: Array) -> BoolArray:
        """Whether states of shape (n, n_dims) are at the wall."""
        return np.asarray(np.abs(reached[:, self.input] - self.edge) <= self.slack)

    def _is_behind(self, values: Array) -> BoolArray:
        return values > self.edge + self.slack if self.is_upper else values < self.edge - self.slack


def stopped_rows(space: StateSpace, reached: Array) -> list[BoolArray]:
    """For each bound of a state variable that was reached: the rows that reached it, each of shape (n,)."""
    return [at for _, _, _, at in _bounds(space, reached)]


def find_walls(space: StateSpace, t: ActionTransitions, changes: Array) -> list[Wall]:
    """Walls, where the model's `changes`, of shape (n, n_actions, n_dims + 1), would have gone on behind a bound."""
    taken = changes[np.arange(len(t)), t.actions, :-1]
    unbounded, walls = t.states + taken, []
    deviation = t.next_states.std(axis=0)
    for d, is_upper, edge, at in _bounds(space, t.next_states):
        slack = CLOSE * float(space.span[d])
        wall = Wall(d, is_upper, edge, slack, np.zeros(space.n_dims, dtype=bool), t.next_states[0])
        hit = at & wall._is_behind(unbounded[:, d])
        if not hit.any():
            continue
        stopped = t.next_states[hit]
        is_fixed = (stopped.std(axis=0) <= FIXED * deviation) & ~space.is_angle
        if len(stopped) < MIN_AT_BOUND:
            errors = np.abs(space.difference(t.next_states, unbounded))
            usual = np.quantile(errors[~at], 0.9, axis=0) if not at.all() else np.zeros(space.n_dims)
            is_off = (errors[hit] > np.maximum(FIXED * deviation, OUTLYING * usual)).any(axis=0)
            is_fixed &= is_off | (np.arange(space.n_dims) == d)
        if is_fixed[d]:
            walls.append(Wall(d, is_upper, edge, slack, is_fixed, stopped.mean(axis=0)))
    return walls


def _bounds(space: StateSpace, reached: Array) -> list[tuple[int, bool, float, BoolArray]]:
    """State variable, side, place and rows of each bound that was reached."""
    found = []
    for d in range(space.n_dims):
        for is_upper, stops, ends in ((False, space.stops_low, space.lowest), (True, space.stops_high, space.highest)):
            at = np.abs(reached[:, d] - ends[d]) <= CLOSE * space.span[d]
            if stops[d] and at.any():
                found.append((d, is_upper, float(ends[d]), at))
    return found
