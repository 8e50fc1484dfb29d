"""Observations as rows of numbers and back, for whole batches; and which actions a space holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

Numbers = NDArray[Any]  # integers or floats


def require_flat(space: Space[Any]) -> None:
    """Refuse observation spaces whose elements make no sensible row of numbers."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in _parts(space):
            require_flat(part)
    elif isinstance(space, spaces.Box):
        sides = space.shape
        if space.dtype == np.uint8 and (len(sides) > 2 or (len(sides) == 2 and min(sides) >= 32)):
            raise ValueError(
                f"image observations ({describe(space)}) are not supported: pixels are no state "
                "variables. Wrap the environment so that it returns features, e.g. with "
                "gymnasium.wrappers.TransformObservation."
            )
    elif not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise ValueError(
            f"observations from {describe(space)} are not supported: expected Box, Discrete, "
            "MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
        )


def flattener(space: Space[Any]) -> Callable[[Any], Numbers]:
    """Give the function that flattens batches; nothing is to be done for vectors."""
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return lambda batch: batch
    return partial(flatten, space)


def flatten(space: Space[Any], batch: Any) -> Numbers:
    """Turn a batch of observations into states, row by row what `gymnasium.spaces.flatten` gives.

    Parameters
    ----------
    space : gymnasium.Space
        The space of *one* observation.
    batch : array of shape (n, ...), or dict or tuple of such
        Batched the way vector environments batch.

    Returns
    -------
    states : ndarray of shape (n, n_dims)
        Discrete values one-hot, everything else as it is.
    """
    if isinstance(space, spaces.Dict):
        parts = [flatten(part, batch[key]) for key, part in space.spaces.items()]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [flatten(part, b) for part, b in zip(space.spaces, batch, strict=True)]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Discrete):
        return _one_hot(np.asarray(batch) - space.start, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        digits = (np.asarray(batch) - space.start).reshape(len(batch), -1)
        hot = [_one_hot(d, n) for d, n in zip(digits.T, space.nvec.flat, strict=True)]
        return np.concatenate(hot, axis=1)
    rows = np.asarray(batch)
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))  # also if there are none


def unflatten(space: Space[Any], states: Numbers) -> Any:
    """Turn states of shape (n, n_dims) back into a batch of observations; `flatten` undone."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = _parts(space)
        edges = np.cumsum([spaces.flatdim(part) for part in parts])[:-1]
        columns = np.split(states, edges, axis=1)
        batches = [unflatten(part, c) for part, c in zip(parts, columns, strict=True)]
        if isinstance(space, spaces.Dict):
            return dict(zip(space.spaces, batches, strict=True))
        return tuple(batches)
    if isinstance(space, spaces.Discrete):
        return states.argmax(axis=1).astype(space.dtype) + space.start
    if isinstance(space, spaces.MultiDiscrete):
        hot = np.split(states, np.cumsum(space.nvec.flat)[:-1], axis=1)
        digits = np.stack([h.argmax(axis=1) for h in hot], axis=1).reshape(-1, *space.shape)
        return (digits + space.start).astype(space.dtype)
    return states.reshape(-1, *_shape(space)).astype(space.dtype)


def stack(space: Space[Any], rows: Sequence[Any], like: Any = None) -> Any:
    """Batch single observations, in the dtypes of `like` (another batch) or else of the space."""
    if isinstance(space, spaces.Dict):
        return {
            key: stack(part, [row[key] for row in rows], None if like is None else like[key])
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            stack(part, [row[i] for row in rows], None if like is None else like[i])
            for i, part in enumerate(space.spaces)
        )
    return np.array(rows, dtype=space.dtype if like is None else like.dtype)


def row(space: Space[Any], batch: Any, index: int) -> Any:
    """Return one observation of a batch."""
    if isinstance(space, spaces.Dict):
        return {key: row(part, batch[key], index) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row(part, b, index) for part, b in zip(space.spaces, batch, strict=True))
    return batch[index]


class ActionCheck:
    """Tells whether a batch of actions lies in a space.

    Parameters
    ----------
    space : gymnasium.Space
        The space of one action: Box, Discrete, MultiDiscrete or MultiBinary.
    n_envs : int
        Number of actions in a batch.
    """

    def __init__(self, space: Space[Any], n_envs: int) -> None:
        low: Any
        high: Any
        if isinstance(space, spaces.Box):
            low, high = space.low, space.high
        elif isinstance(space, spaces.Discrete):
            low, high = int(space.start), int(space.start + space.n - 1)
        elif isinstance(space, spaces.MultiDiscrete):
            low, high = space.start, space.start + space.nvec - 1
        elif isinstance(space, spaces.MultiBinary):
            low, high = 0, 1
        else:
            raise ValueError(
                f"actions from {describe(space)} are not supported: expected Box, Discrete, "
                "MultiDiscrete or MultiBinary."
            )
        self.space = space
        self.dtype: np.dtype[Any] = np.dtype(space.dtype)
        self.real = np.issubdtype(self.dtype, np.floating)
        self.low, self.high = low, high
        self.shape = (n_envs, *_shape(space))

    def example(self) -> NDArray[Any]:
        """Give a batch of zeros."""
        return np.zeros(self.shape, dtype=self.dtype)

    def __call__(self, actions: Any) -> NDArray[Any]:
        """Turn actions into an array of the space's dtype; refuse a wrong shape or kind of number.

        Whether they lie in the space is left to `outside`, unless the dtype could not tell any more.
        """
        given = np.asarray(actions)
        if given.dtype == self.dtype and given.shape == self.shape:
            return given
        if given.shape != self.shape or given.dtype.kind not in ("iuf" if self.real else "iu"):
            raise ValueError(
                f"it returned actions of shape {given.shape} and type {given.dtype}; "
                f"expected shape {self.shape} for {describe(self.space)}"
            )
        if not self.real:
            for env in np.argwhere(self.outside(given))[:1, 0].tolist():
                raise OutsideSpace(self.complain(given[env]), env)
        return given.astype(self.dtype)

    def outside(self, actions: NDArray[Any]) -> NDArray[np.bool_]:
        """Which numbers lie outside their bounds, NaN included; as many as there are in `actions`."""
        inside: NDArray[np.bool_] = (actions >= self.low) & (actions <= self.high)
        return ~inside

    def complain(self, action: Any) -> str:
        """Say that an action is not in the space."""
        return f"action {action} is outside {describe(self.space)}"


class OutsideSpace(ValueError):
    """An action is not in its space."""

    def __init__(self, message: str, env: int) -> None:
        super().__init__(message)
        self.env = env


def _one_hot(values: NDArray[Any], n: int) -> Numbers:
    hot = np.zeros((len(values), n))
    hot[np.arange(len(values)), values] = 1.0
    return hot


def describe(space: Space[Any]) -> str:
    """Name a space on one line."""
    return " ".join(str(space).split())


def _parts(space: spaces.Dict | spaces.Tuple[Any]) -> list[Space[Any]]:
    return list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)


def _shape(space: Space[Any]) -> tuple[int, ...]:
    assert space.shape is not None, "only composite spaces have no shape"
    return space.shape
