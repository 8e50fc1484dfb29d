"""Checks of a buffer of steps: actions and observations inside their spaces, finite rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.spaces import Numbers
from gptd_rl.rollouts.actions import ActionCheck
from gptd_rl.rollouts.observations import ObservationCheck, describe_unusable, is_usable
from gptd_rl.rollouts.recorder import StepBuffer
from gptd_rl.types import BoolArray, IntArray

# In order of time: the action of a step, the state it reached, and the first state of the next episode.
ACTION, REACHED, NEXT_EPISODE = range(3)


class Violation(NamedTuple):
    """An invalid value in a buffer; the earliest compares as the smallest."""

    step: int  # of the buffer
    kind: int
    env: int
    message: str


def find_violation(
    buffer: StepBuffer,
    n_actions: int,
    n_steps: int,
    ends: tuple[IntArray, IntArray],
    final_states: Numbers,
    live: BoolArray,
    space: ActionCheck | None,
    observations: ObservationCheck,
) -> Violation | None:
    """Find the first invalid value in a buffer, if any.

    Parameters
    ----------
    buffer : StepBuffer
    n_actions, n_steps : int
        Number of steps with actions, and of completed steps: the same, or one less.
    ends : tuple of two ndarrays of shape (k,)
        Steps and sub-environments in which episodes ended.
    final_states : ndarray of shape (k, n_dims)
        Final states of these episodes.
    live : ndarray of shape (n_envs,)
        Sub-environments that are recorded: only there rewards and observations must be valid.
    space : ActionCheck or None
        Check of the actions; None if they are known to be valid.
    observations : ObservationCheck
        Check of the observations.
    """
    actions, rewards, states = buffer.actions[:n_actions], buffer.rewards[:n_steps], buffer.states[:n_steps]
    inside = space is None or not space.outside(actions).any()
    if inside and is_usable(rewards).all() and not any(observations.outside(x).any() for x in (states, final_states)):
        return None
    reached = states.copy()
    reached[ends] = final_states
    violations: list[Violation] = []
    if space is not None:
        for step, env, action in _first(space.outside(actions), actions):
            message = f"the policy's {space.describe_violation(action)}"
            violations.append(Violation(step, ACTION, env, message))
    checks: tuple[tuple[int, Any, Any, Callable[[Any], str]], ...] = (
        (REACHED, rewards, ~is_usable(rewards), partial(describe_unusable, "reward")),
        (REACHED, reached, observations.outside(reached), observations.describe_violation),
        (NEXT_EPISODE, states, observations.outside(states), observations.describe_violation),
    )
    for kind, values, wrong, message_of in checks:
        for step, env, value in _first(wrong & live.reshape(-1, *[1] * (values.ndim - 2)), values):
            violations.append(Violation(step, kind, env, message_of(value)))
    return min(violations, default=None)


def _first(wrong: NDArray[np.bool_], values: NDArray[Any]) -> Iterator[tuple[int, int, Any]]:
    """Yield step, sub-environment and value of the first invalid value, if there is one."""
    rows = wrong.any(axis=tuple(range(2, wrong.ndim)))
    for step, env in np.argwhere(rows)[:1].tolist():
        yield step, env, values[step, env]
