"""Whether an agent was trained on normalized observations, from what Stable-Baselines3 (SB3) keeps of its training.

A model keeps the last observations of its training as the agent saw them, `_last_obs`, and as they were before any
`VecNormalize`, `_last_original_obs`. On-policy algorithms set the latter only behind a `VecNormalize`. Off-policy
algorithms always do: without one it is the observation a step earlier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

LARGER = 3.0  # times the largest step, or the range of starts, in the data: beyond, it is none of the environment
FEW_STARTS = 5  # to tell their range
TINY = 1e-6
LIKELY_RAW = np.log(20.0)  # log likelihood ratio beyond which observations are taken for raw ones


def expects_normalized(model: Any, data: Trajectories) -> bool:
    """Whether a model seems to be trained on normalized observations.

    Parameters
    ----------
    model : object
        Anything but a Stable-Baselines3 model seems not to be.
    data : Trajectories
        Its transitions in the environment, in raw observations.
    """
    carried = getattr(model, "get_vec_normalize_env", lambda: None)()
    if carried is not None:
        return bool(getattr(carried, "norm_obs", True))
    space: Any = getattr(model, "observation_space", None)
    seen, original = (_rows(getattr(model, name, None), space) for name in ("_last_obs", "_last_original_obs"))
    is_off_policy = hasattr(model, "replay_buffer")
    if original is None or original.shape[1] != data.n_dims:
        return False
    if seen is None or getattr(model, "env", None) is not None:  # not from the VecNormalize: the model left it
        return not is_off_policy
    if _leaves_bounds(seen, space) and not _leaves_bounds(data.states, space):
        return True
    if is_off_policy:
        return seen.shape == original.shape and not _are_steps(original, seen, data)
    # Behind a VecNormalize, but maybe one that normalizes rewards only.
    return _log_ratio_of_raw(seen, data.states) < LIKELY_RAW


def _rows(observations: Any, space: Any) -> Array | None:
    """Observations of shape (n_envs, n_dims); None if they are no vectors of finite numbers."""
    if isinstance(space, spaces.Dict) and isinstance(observations, dict) and observations.keys() == space.keys():
        parts = [_rows(observations[key], part) for key, part in space.items()]
        found = [part for part in parts if part is not None]
        same = len(found) == len(parts) and len({len(part) for part in found}) == 1
        return np.concatenate(found, axis=1) if same else None
    if not isinstance(space, spaces.Box) or not isinstance(observations, np.ndarray):
        return None
    if observations.shape[1:] != space.shape or len(observations) == 0 or not np.isfinite(observations).all():
        return None
    return observations.reshape(len(observations), -1).astype(np.float64)


def _leaves_bounds(rows: Array, space: Any) -> bool:
    """Whether observations of shape (n, n_dims) are outside of their space by more than a rounding error."""
    low, high = (_bounds(space, name) for name in ("low", "high"))
    return bool(((rows < low - 1e-3 * np.abs(low)) | (rows > high + 1e-3 * np.abs(high))).any())


def _bounds(space: Any, name: str) -> Array:
    if isinstance(space, spaces.Dict):
        return np.concatenate([_bounds(part, name) for part in space.values()])
    bounds: Array = getattr(space, name).ravel().astype(np.float64)
    return bounds


def _are_steps(before: Array, after: Array, data: Trajectories) -> bool:
    """Whether pairs of observations could be transitions of the environment, or the last and the first of episodes."""
    x, inner = data.states, np.ones(len(data), dtype=bool)
    inner[data.last] = False
    rows = np.flatnonzero(inner)
    largest = np.abs(x[rows + 1] - x[rows]).max(axis=0)  # [n_dims]
    # Exploration takes larger steps and goes further than the most likely actions do.
    possible = np.maximum(LARGER * largest, 0.5 * np.ptp(np.concatenate([x, before]), axis=0)) + TINY  # [n_dims]
    is_step = (np.abs(after - before) <= possible).all(axis=1)
    starts = x[data.starts]
    middle, width = 0.5 * (starts.min(axis=0) + starts.max(axis=0)), np.ptp(starts, axis=0)
    is_start = (np.abs(after - middle) <= 0.5 * LARGER * width + TINY).all(axis=1)
    return bool((is_step | is_start).all()) or len(starts) < FEW_STARTS


def _log_ratio_of_raw(seen: Array, states: Array) -> float:
    """Log likelihood of observations as raw ones, less that as normalized ones; both normal, inputs independent."""
    mean, std = states.mean(axis=0), np.maximum(states.std(axis=0), 1e-6)
    return float((0.5 * seen**2 - 0.5 * ((seen - mean) / std) ** 2 - np.log(std)).sum())
