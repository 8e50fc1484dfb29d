"""A fitted model in one file: arrays and a JSON header, no code in it, nothing unpickled on the way back.

The file is a NumPy archive. Each estimator says what to keep (`to_arrays`) and how to come back (`from_arrays`). Only
registered classes can be saved: a subclass that the library does not know would come back as another model.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from gptd_rl.data import files

FORMAT = "gptd-rl model"
VERSION = 3  # 3: kernels by registry


class Storable(Protocol):
    """What can be saved."""

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """A header of plain data, and arrays by name."""
        ...

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The fitted estimator again."""
        ...


_CLASSES: dict[str, type[Storable]] = {}

StorableClass = TypeVar("StorableClass", bound=type[Storable])


def storable(estimator_class: StorableClass) -> StorableClass:
    """Class decorator: let fitted estimators of this class be saved and loaded."""
    _CLASSES[estimator_class.__name__] = estimator_class
    return estimator_class


def save(estimator: Storable, path: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator to `path`, atomically: the file is whole or as it was before."""
    name = type(estimator).__name__
    if _CLASSES.get(name) is not type(estimator):
        raise TypeError(f"class {name} is not registered, so it cannot be saved: save one of {', '.join(_CLASSES)}.")
    header, arrays = estimator.to_arrays()
    header = dict(header, format=FORMAT, version=VERSION, estimator=name)
    text = json.dumps(header, default=lambda array: array.tolist())  # NumPy's numbers are numbers
    return files.write(Path(path), dict(arrays, header=np.array(text)))


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `save` of an estimator wrote.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    GPTD, GPTDQ, OnlineGPTD or DynamicsModel
        Fitted: it predicts what the saved one did. `comparison_` and `thinning_trials_` are not kept.
    """
    path = Path(path)
    try:
        arrays = files.read(path)
        header = json.loads(str(arrays.pop("header")))
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        if header["version"] <= VERSION:
            if header["version"] < VERSION:
                raise ValueError(f"its format version is {header['version']}, of an unreleased gptd-rl")
            return _CLASSES[header["estimator"]].from_arrays(header, arrays)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}.") from None
    except files.UNREADABLE as error:
        raise ValueError(f"{path} is not a gptd-rl model, or was cut off while it was copied ({error}).") from None
    raise ValueError(
        f"{path} has format version {header['version']}, this release reads up to {VERSION}: upgrade gptd-rl."
    )


class SaveAndLoad:
    """The methods `save` and `load` of an estimator."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted model to `path`: arrays and JSON, no code; read it back by `gptd_rl.load`."""
        fitted: Any = self
        fitted._check_fitted()
        return save(fitted, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; it must be of this class."""
        model = load(path)
        if not isinstance(model, cls):
            raise ValueError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}: gptd_rl.load reads all.")
        return model
