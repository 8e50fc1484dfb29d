"""Observations of any space, one or many, as rows of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from gptd_rl.data.spaces import flatten
from gptd_rl.types import Array


def as_rows(space: Space[Any], observation: Any) -> tuple[Array, bool]:
    """One observation or a batch of them as an array of shape (n, n_dims), and whether it was one."""
    single = _is_single(space, observation)
    batch = _raised(observation) if single else observation
    return np.asarray(flatten(space, batch), dtype=np.float64), single


def _is_single(space: Space[Any], observation: Any) -> bool:
    if isinstance(space, spaces.Dict):
        key, part = next(iter(space.spaces.items()))
        return _is_single(part, observation[key])
    if isinstance(space, spaces.Tuple):
        return _is_single(space.spaces[0], observation[0])
    return np.ndim(observation) == len(space.shape or ())


def _raised(observation: Any) -> Any:
    """A batch of one."""
    if isinstance(observation, dict):
        return {key: _raised(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_raised(part) for part in observation)
    return np.asarray(observation)[np.newaxis]
