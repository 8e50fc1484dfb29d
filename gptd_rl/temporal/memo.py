"""Quantities of a frozen record that are computed once, and forgotten with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from gptd_rl.data.trajectories import Trajectories

T = TypeVar("T")


def once(function: Callable[[Trajectories], T]) -> Callable[[Trajectories], T]:
    """Let a function of trajectories remember its result for as long as they live."""
    known: WeakKeyDictionary[Trajectories, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(data: Trajectories) -> T:
        if data not in known:
            known[data] = function(data)
        return known[data]

    return remembered
