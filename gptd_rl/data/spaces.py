"""Observations of a Gymnasium space as rows of numbers and back, in batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.ma import MaskedArray
from numpy.typing import NDArray

from gptd_rl.checks import one_line
from gptd_rl.data.casting import cast
from gptd_rl.types import Array, BoolArray

Numbers = NDArray[Any]  # integers or floats


class OutsideSpaceError(ValueError):
    """An observation or action is outside its space.

    Attributes
    ----------
    row : int
        Its place in the batch.
    is_first : bool
        Whether it is the first observation of an episode, after a reset that had to wait for the next step.
    """

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message)
        self.row, self.is_first = row, False


def require_flat(space: Space[Any]) -> None:
    """Refuse observation spaces that cannot be flattened into state variables, such as images."""
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
    """The function that flattens batches of observations; the identity for vectors."""
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
        Batched as by vector environments.

    Returns
    -------
    states : ndarray of shape (n, n_dims)
        Discrete values are one-hot, others unchanged.

    Raises
    ------
    OutsideSpaceError
        If a discrete value or a shape is not of the space. Bounds of a Box are not checked.
    """
    if isinstance(space, spaces.Dict):
        parts = [flatten(part, batch[key]) for key, part in space.spaces.items()]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [flatten(part, b) for part, b in zip(space.spaces, batch, strict=True)]
        return np.concatenate(parts, axis=1)
    rows = np.asarray(batch)
    if rows.shape[1:] != space.shape:
        raise _wrong_shape(space, batch)
    if isinstance(space, spaces.Discrete):
        return _one_hot(rows, space, rows, space.start, space.n)
    if isinstance(space, spaces.MultiDiscrete):
        digits = rows.reshape(len(rows), -1)
        columns = zip(digits.T, space.start.flat, space.nvec.flat, strict=True)
        return np.concatenate([_one_hot(rows, space, *column) for column in columns], axis=1)
    return _as_matrix(rows)


def has_one_hot(space: Space[Any]) -> bool:
    """Whether some of the state variables are a category, one-hot."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return any(has_one_hot(part) for part in _parts(space))
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))


def flat_bounds(space: Space[Any]) -> tuple[Array, Array]:
    """Lower and upper bounds of states, each of shape (n_dims,), in the order of `flatten`."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = [flat_bounds(part) for part in _parts(space)]
        return np.concatenate([low for low, _ in parts]), np.concatenate([high for _, high in parts])
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    n = spaces.flatdim(space)  # one-hot, or bits
    return np.zeros(n), np.ones(n)


def whole_columns(space: Space[Any]) -> BoolArray:
    """Which state variables are whole numbers, of shape (n_dims,): all but those of a Box of floats."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return np.concatenate([whole_columns(part) for part in _parts(space)])
    return np.full(spaces.flatdim(space), np.dtype(space.dtype).kind != "f")


def unflatten(space: Space[Any], states: Numbers) -> Any:
    """Turn states of shape (n, n_dims) back into a batch of observations: the inverse of `flatten`."""
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
    """Batch single observations, with the dtypes of `like` (another batch) or else of the space.

    Raises
    ------
    OutsideSpaceError
        If an observation has another shape, or numbers that the dtype does not hold.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        _check_parts(space, rows)
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
    try:
        batch = np.array(rows)
    except ValueError:  # of different shapes
        raise _wrong_shape(space, rows) from None
    if batch.shape[1:] != space.shape:
        raise _wrong_shape(space, rows)
    for one in rows:
        if isinstance(one, MaskedArray):
            raise OutsideSpaceError(f"observation {one_line(one)} is a masked array: expected {describe(space)}", 0)
    dtype = space.dtype if like is None else like.dtype
    return batch if batch.dtype == dtype else _convert(space, batch, np.dtype(dtype))


def _check_parts(space: spaces.Dict | spaces.Tuple[Any], rows: Sequence[Any]) -> None:
    """Refuse observations with other parts than the space has."""
    for i, one in enumerate(rows):
        if isinstance(space, spaces.Dict):
            fits = isinstance(one, Mapping) and one.keys() == space.spaces.keys()
        else:
            fits = isinstance(one, tuple | list) and len(one) == len(space.spaces)
        if not fits:
            raise OutsideSpaceError(f"observation {one_line(one)} has other parts: expected {describe(space)}", i)


def _convert(space: Space[Any], batch: NDArray[Any], dtype: np.dtype[Any]) -> Numbers:
    """A batch of observations in another dtype, unless that changes them."""
    if batch.dtype.kind not in "biuf":
        raise OutsideSpaceError(f"observation {one_line(batch[0])} is no number: expected {describe(space)}", 0)
    converted, changed = cast(batch, dtype)
    if changed is not None:
        i = int(np.argwhere(changed)[0, 0])
        raise OutsideSpaceError(f"observation {one_line(batch[i])} is no {dtype}: expected {describe(space)}", i)
    return converted


def row(space: Space[Any], batch: Any, index: int) -> Any:
    """One observation of a batch."""
    if isinstance(space, spaces.Dict):
        return {key: row(part, batch[key], index) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row(part, b, index) for part, b in zip(space.spaces, batch, strict=True))
    return batch[index]


def as_rows(space: Space[Any], observation: Any) -> tuple[Array, bool]:
    """One observation, or a batch of them, as states.

    Parameters
    ----------
    space : gymnasium.Space
        The space of one observation.
    observation : observation or batch of observations

    Returns
    -------
    states : ndarray of shape (n, n_dims)
    is_single : bool
        Whether it was one observation.
    """
    is_single = _is_single(space, observation)
    batch = _as_batch(observation) if is_single else observation
    # Callers know how wide states are, and say so.
    states = _as_matrix(np.asarray(batch)) if isinstance(space, spaces.Box) else flatten(space, batch)
    return np.asarray(states, dtype=np.float64), is_single


def _is_single(space: Space[Any], observation: Any) -> bool:
    if isinstance(space, spaces.Dict):
        key, part = next(iter(space.spaces.items()))
        return _is_single(part, observation[key])
    if isinstance(space, spaces.Tuple):
        return _is_single(space.spaces[0], observation[0])
    return np.ndim(observation) == len(space.shape or ())


def _as_batch(observation: Any) -> Any:
    """A batch of one observation."""
    if isinstance(observation, dict):
        return {key: _as_batch(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_as_batch(part) for part in observation)
    return np.asarray(observation)[np.newaxis]


def _as_matrix(rows: Numbers) -> Numbers:
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))  # also without rows


def _one_hot(rows: Numbers, space: Space[Any], values: Numbers, start: int, n: int) -> Numbers:
    """One-hot `values` from `start` to `start + n - 1`, which are a part of the observations `rows` of a space."""
    hot = values[:, np.newaxis] == np.arange(start, start + n)
    if np.count_nonzero(hot) < len(values):
        i = int(np.argmin(hot.any(axis=1)))
        raise OutsideSpaceError(f"observation {one_line(rows[i])} is outside {describe(space)}", i)
    return hot.astype(np.float64)


def _wrong_shape(space: Space[Any], batch: Sequence[Any] | Numbers) -> OutsideSpaceError:
    """The error for the first observation of another shape than those of the space."""
    shapes = [_shape_of(one) for one in batch]
    i = next((i for i, shape in enumerate(shapes) if shape != space.shape), 0)
    has = "is ragged" if shapes[i] is None else f"has shape {shapes[i]}"
    return OutsideSpaceError(f"observation {one_line(batch[i])} {has}: expected {describe(space)}", i)


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of an array or of nested lists; None if these are ragged."""
    try:
        return np.shape(value)
    except ValueError:
        return None


def describe(space: Space[Any]) -> str:
    """Name a space on one line."""
    return " ".join(str(space).split())


def _parts(space: spaces.Dict | spaces.Tuple[Any]) -> list[Space[Any]]:
    return list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)


def _shape(space: Space[Any]) -> tuple[int, ...]:
    assert space.shape is not None, "only composite spaces have no shape"
    return space.shape
