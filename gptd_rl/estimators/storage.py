"""A fitted model in one file: arrays and a JSON header, no code in it, nothing unpickled on the way back.

The file is a NumPy archive. Each estimator says what to keep (`to_arrays`) and how to come back (`from_arrays`). Only
registered classes can be saved: a subclass that the library does not know would come back as another model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from gptd_rl.checks import one_line
from gptd_rl.data import files
from gptd_rl.exceptions import brief

FORMAT = "gptd-rl model"
VERSION = 3  # 3: kernels by registry


class Storable(Protocol):
    """What can be saved."""

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """A header of plain data, and arrays by name."""
        ...

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The fitted estimator again."""
        ...


_CLASSES: dict[str, type[Storable]] = {}

StorableClass = TypeVar("StorableClass", bound=type[Storable])


def storable(estimator_class: StorableClass) -> StorableClass:
    """Class decorator: let fitted estimators of this class be saved and loaded."""
    known = _CLASSES.setdefault(estimator_class.__name__, estimator_class)
    if known is not estimator_class:
        raise ValueError(f"{known} can be saved under this name already: give the new class another one.")
    return estimator_class


def check_storable(estimator: object) -> None:
    """Refuse an estimator of a class that is not registered, such as a subclass: it would come back as another one."""
    name = type(estimator).__name__
    if _CLASSES.get(name) is not type(estimator):
        raise TypeError(f"class {name} is not registered, so it cannot be saved: save one of {', '.join(_CLASSES)}.")


def save(estimator: Storable, path: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator to `path`, atomically: the file is whole or as it was before."""
    check_storable(estimator)
    header, arrays = estimator.to_arrays()
    header = dict(header, format=FORMAT, version=VERSION, estimator=type(estimator).__name__)
    return files.write(Path(path), dict(arrays, header=files.encode_header(header)))


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
        header = files.decode_header(arrays)
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        if header["version"] <= VERSION:
            if header["version"] < VERSION:
                raise ValueError(f"its format version is {header['version']}, of an unreleased gptd-rl")
            with files.strict_arithmetic():
                model = _CLASSES[header["estimator"]].from_arrays(header, arrays)
            arrays.check_all_read()
            return model
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {one_line(path)}.") from None
    except files.UNREADABLE as error:
        raise ValueError(
            f"{one_line(path)} is not a gptd-rl model, or was cut off while it was copied ({brief(error)})."
        ) from None
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
