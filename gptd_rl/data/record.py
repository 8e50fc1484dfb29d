"""The arrays of sampled data and the rules they obey; `Trajectories` is the class that holds them.

Functions of this folder that read or resample data take anything with these arrays, and return the arrays of a new
record by name.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import (
    LARGEST_COUNT,
    as_array,
    as_discounts,
    as_floats,
    as_states,
    as_vector,
    check_finite,
    one_line,
)
from gptd_rl.types import Array, BoolArray, IntArray


class SegmentedData(Protocol):
    """States, rewards and discounts in segments; see `gptd_rl.data.trajectories.Trajectories`."""

    @property
    def states(self) -> Array:
        """All states, of shape (n_states, n_dims)."""
        ...

    @property
    def rewards(self) -> Array:
        """Reward received on leaving each state, of shape (n_states,)."""
        ...

    @property
    def discounts(self) -> Array:
        """Discount of the step that leaves each state, of shape (n_states,)."""
        ...

    @property
    def lengths(self) -> IntArray:
        """Number of states in each segment, of shape (n_segments,)."""
        ...

    @property
    def terminated(self) -> BoolArray:
        """Whether the last state of each segment is terminal, of shape (n_segments,)."""
        ...

    @property
    def actions(self) -> NDArray[Any] | None:
        """Action taken in each state, of shape (n_states, ...), if known."""
        ...

    @property
    def policy_actions(self) -> Array | None:
        """Weights and actions of the evaluated policy in each state, if it is not the one that acted."""
        ...

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        ...

    @property
    def starts(self) -> IntArray:
        """Index of the first state of each segment, of shape (n_segments,)."""
        ...

    @property
    def last(self) -> IntArray:
        """Index of the last state of each segment, of shape (n_segments,)."""
        ...

    @property
    def segment_of(self) -> IntArray:
        """Segment of each state, of shape (n_states,)."""
        ...

    def __len__(self) -> int:
        """Number of states."""
        ...

    def __getitem__(self, segments: int | slice | ArrayLike, /) -> Self:
        """Select segments."""
        ...

    def thin(self, every: int, offset: int = 0) -> Self:
        """Keep every `every`-th state of each segment."""
        ...

    def cut(self, max_transitions: int) -> Self:
        """Cut segments into pieces."""
        ...


def check_record(
    states: ArrayLike,
    rewards: ArrayLike,
    discounts: ArrayLike,
    lengths: ArrayLike,
    terminated: ArrayLike,
    actions: ArrayLike | None = None,
    policy_actions: ArrayLike | None = None,
) -> dict[str, Any]:
    """Check the arrays of a record and return copies of them by name.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong shape, or the arrays contradict each other; the message is one line.
    """
    x = as_states(states)
    n = len(x)
    if n == 0:
        raise ValueError("empty data: expected at least one transition, got no states.")
    r, gamma = as_vector(rewards, n, "rewards"), as_discounts(discounts, n)
    sizes, flags = _check_segments(lengths, terminated, n)
    _check_ends(r, gamma, sizes, flags)
    a = None if actions is None else as_array(actions, "actions")
    if a is not None and a.shape[:1] != (n,):
        raise ValueError(f"actions must have one entry per state ({n}); got {len(a) if a.ndim else one_line(a)}.")
    chosen = None if policy_actions is None else as_floats(policy_actions, "policy_actions")
    if chosen is not None and (chosen.ndim != 3 or len(chosen) != n):
        raise ValueError(f"policy_actions must have shape ({n}, n_choices, 1 + n_columns); got {chosen.shape}.")
    if chosen is not None:
        check_finite(chosen, "policy_actions")
    return dict(states=x, rewards=r, discounts=gamma, lengths=sizes, terminated=flags, actions=a, policy_actions=chosen)


def _check_segments(lengths: ArrayLike, terminated: ArrayLike, n: int) -> tuple[IntArray, BoolArray]:
    """Check that segments fill n states; only terminal states may form a segment by themselves."""
    sizes, flags = _as_whole(lengths, "lengths"), _as_whole(terminated, "terminated", 1).astype(bool)
    if len(sizes) != len(flags):
        raise ValueError(
            f"lengths and terminated must have one entry per segment; got {len(sizes)} lengths and {len(flags)} flags."
        )
    if (short := np.flatnonzero(sizes < np.where(flags, 1, 2))).size:
        raise ValueError(
            f"segment {short[0]} has {sizes[short[0]]} state(s), but a transition needs two: "
            "the state left and the state reached. Leave the segment out."
        )
    if sizes.max(initial=0) > n or sizes.sum() != n:  # a sum of larger ones could overflow
        raise ValueError(f"lengths add up to {sizes.sum()} states, but {n} were given.")
    return sizes, flags


def _as_whole(values: ArrayLike, name: str, largest: int = LARGEST_COUNT) -> IntArray:
    """Check and copy whole numbers of shape (k,), up to `largest`."""
    numbers = as_array(values, name, "whole numbers").reshape(-1)
    if numbers.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be whole numbers; got {numbers.dtype}.")
    if (bad := np.flatnonzero(~(np.abs(numbers.astype(np.float64)) <= largest) | (numbers != np.round(numbers)))).size:
        limit = "" if largest == LARGEST_COUNT else f" up to {largest}"
        raise ValueError(f"{name} must be whole numbers{limit}; {name}[{bad[0]}] is {numbers[bad[0]]:g}.")
    return numbers.astype(np.int64)


def _check_ends(rewards: Array, discounts: Array, lengths: IntArray, terminated: BoolArray) -> None:
    """Check that no discount follows a last state, and no reward a truncated one."""
    last = np.cumsum(lengths) - 1
    if (loose := np.flatnonzero(discounts[last] != 0)).size:
        raise ValueError(
            f"nothing follows the last state of segment {loose[0]}, so its discount must be 0, "
            f"not {discounts[last[loose[0]]]:g}."
        )
    truncated = last[~terminated]
    if (paid := np.flatnonzero(rewards[truncated] != 0)).size:
        i = truncated[paid[0]]
        raise ValueError(
            f"state {i} is the last of a truncated segment: no reward follows it, yet rewards[{i}] is {rewards[i]:g}."
        )
