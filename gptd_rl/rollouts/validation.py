"""What can be wrong in a block of steps: actions outside their space, numbers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.spaces import ActionCheck, Numbers
from gptd_rl.rollouts.recorder import Block
from gptd_rl.types import BoolArray, IntArray

# In the order in which they come: a step's action, what it led to, and how the next episode begins.
ACTION, REACHED, NEXT_EPISODE = range(3)


class Fault(NamedTuple):
    """Something wrong; what came first compares as the smallest."""

    step: int  # of the block
    kind: int
    env: int
    message: str


def find_fault(
    block: Block,
    n_chosen: int,
    n_made: int,
    ends: tuple[IntArray, IntArray],
    finals: Numbers,
    live: BoolArray,
    space: ActionCheck | None,
) -> Fault | None:
    """Find the first thing wrong in a block, if any.

    Parameters
    ----------
    block : Block
    n_chosen, n_made : int
        Steps for which there are actions, and steps that were made: all, or all but one.
    ends : tuple of two ndarrays of shape (k,)
        Steps and sub-environments in which episodes ended.
    finals : ndarray of shape (k, n_dims)
        Their last states.
    live : ndarray of shape (n_envs,)
        Where it matters whether numbers are finite.
    space : ActionCheck or None
        To check the actions by; None if there is no need.
    """
    actions, rewards, states = block.actions[:n_chosen], block.rewards[:n_made], block.states[:n_made]
    inside = space is None or not space.outside(actions).any()
    if inside and all(np.isfinite(values).all() for values in (rewards, states, finals)):
        return None
    reached = states.copy()
    reached[ends] = finals
    faults: list[Fault] = []
    if space is not None:
        found = _first(space.outside(actions), actions)
        faults += (Fault(step, ACTION, env, f"the policy's {space.complain(a)}") for step, env, a in found)
    looks = (REACHED, "reward", rewards), (REACHED, "observation", reached), (NEXT_EPISODE, "observation", states)
    for kind, name, values in looks:
        wrong = ~np.isfinite(values) & live.reshape(-1, *[1] * (values.ndim - 2))
        found = _first(wrong, values)
        said = f"the environment returned {name} {{}}: not finite"
        faults += (Fault(step, kind, env, said.format(value)) for step, env, value in found)
    return min(faults, default=None)


def _first(wrong: NDArray[np.bool_], values: NDArray[Any]) -> Iterator[tuple[int, int, Any]]:
    """Yield step, sub-environment and value of the first that is wrong, if any is."""
    rows = wrong.any(axis=tuple(range(2, wrong.ndim)))
    for step, env in np.argwhere(rows)[:1].tolist():
        yield step, env, values[step, env]
