"""Names of array types, and of what users may hand over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
IntArray: TypeAlias = NDArray[np.int64]


class Predictor(Protocol):
    """A policy with the method of Stable-Baselines3's models; recurrent ones also take `state` and `episode_start`."""

    def predict(self, observation: Any, /, *, deterministic: bool = False) -> tuple[Any, Any]:
        """Actions for a batch of observations, and the next hidden state."""
        ...


# Anything that acts: an object with `predict`, a callable from an observation to an action, or None for random actions.
Policy: TypeAlias = Predictor | Callable[[Any], Any] | None

# Anything to act in: an id, a function that returns an environment, an environment, a vector environment, or a
# Stable-Baselines3 VecEnv.
EnvLike: TypeAlias = str | Any

# Anything `fit` takes: Trajectories, paths of files that `Trajectories.save` wrote, Minari datasets or their ids, or an
# iterable of these.
DataLike: TypeAlias = "str | os.PathLike[str] | Iterable[Any] | Any"
