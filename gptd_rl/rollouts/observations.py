"""States checked against the space of their observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from gptd_rl.checks import LARGEST, LARGEST_COUNT, one_line
from gptd_rl.data.spaces import Numbers, describe, flat_bounds, whole_columns
from gptd_rl.types import BoolArray


class ObservationCheck:
    """Checks batches of states, which are flattened observations, against a space.

    State variables that are whole numbers must lie within its bounds. Real ones need not: many environments exceed
    theirs a little, which does no harm. `flatten` checked shapes and discrete values before.

    Parameters
    ----------
    space : gymnasium.Space
        The space of one observation.
    """

    def __init__(self, space: Space[Any]) -> None:
        self.space = space
        self.columns = np.flatnonzero(whole_columns(space))
        low, high = flat_bounds(space)
        # States are floats, which hold no larger integers exactly.
        self.low, self.high = (np.clip(b[self.columns], -LARGEST_COUNT, LARGEST_COUNT) for b in (low, high))

    def outside(self, states: Numbers) -> BoolArray:
        """Which state variables are invalid, of the shape (..., n_dims) of `states`."""
        outside = ~is_usable(states)
        if self.columns.size:
            whole = states[..., self.columns]
            outside[..., self.columns] |= (whole < self.low) | (whole > self.high) | (whole != np.rint(whole))
        return outside

    def describe_violation(self, state: Numbers) -> str:
        """Message for an invalid state, of shape (n_dims,)."""
        if not is_usable(state).all():
            return describe_unusable("observation", state)
        is_big = (np.abs(state[self.columns]) > LARGEST_COUNT).any()
        where = "beyond ±2^53, up to which floats hold all integers of" if is_big else "outside"
        return f"the environment's observation {one_line(state)} is {where} {describe(self.space)}"


def is_usable(values: Numbers) -> BoolArray:
    """Which numbers are finite and not too large to compute with."""
    usable: BoolArray = np.abs(values) <= np.float64(LARGEST)
    return usable


def describe_unusable(name: str, value: Any) -> str:
    """Message for a reward or observation that is not usable."""
    reason = f"beyond ±{LARGEST:g}" if np.isfinite(value).all() else "not finite"
    return f"the environment returned {name} {one_line(value)}: {reason}"
