"""Masks: which actions an environment allows now, as its method `action_masks` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

Masks = Callable[[], NDArray[np.bool_]]  # allowed actions, of shape (n_envs, n_actions)


def action_masks_of(envs: Sequence[gym.Env[Any, Any]]) -> Masks | None:
    """The function that says which actions are allowed in environments; None if they have no `action_masks`."""
    try:
        methods = [env.get_wrapper_attr("action_masks") for env in envs]
    except AttributeError:
        return None
    return as_masks(lambda: [method() for method in methods])


def as_masks(allowed: Callable[[], Sequence[Any]]) -> Masks:
    """Masks of several environments, as one array."""
    return lambda: np.array([np.ravel(mask) for mask in allowed()], dtype=np.bool_)


def sample_action(env: gym.Env[Any, Any], space: Space[Any]) -> Any:
    """A random action of a space, one that the environment allows."""
    masks = action_masks_of([env])
    if masks is None or not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return space.sample()
    (allowed,) = masks().astype(np.int8)
    if isinstance(space, spaces.Discrete):
        return space.sample(mask=allowed)
    return space.sample(mask=tuple(np.split(allowed, np.cumsum(space.nvec)[:-1])))
