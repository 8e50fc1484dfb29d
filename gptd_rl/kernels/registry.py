"""Kernel classes by name: only registered ones can be saved, so that a file never builds another class."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from gptd_rl.kernels.base import BaseKernel

_CLASSES: dict[str, type[BaseKernel]] = {}

KernelClass = TypeVar("KernelClass", bound=type[BaseKernel])


def register(kernel_class: KernelClass) -> KernelClass:
    """Class decorator: let models with this kernel be saved and loaded, under the name of the class."""
    known = _CLASSES.setdefault(kernel_class.__name__, kernel_class)
    if (known.__module__, known.__qualname__) != (kernel_class.__module__, kernel_class.__qualname__):
        raise ValueError(f"{known} is registered under this name already: give the new class another one.")
    _CLASSES[kernel_class.__name__] = kernel_class  # the same class again, as in a notebook
    return kernel_class


def describe(kernel: BaseKernel) -> dict[str, Any]:
    """`kernel` as plain numbers, strings and lists, with the name of its class."""
    name = type(kernel).__name__
    if _CLASSES.get(name) is not type(kernel):
        raise TypeError(
            f"kernel class {name} is not registered, so a model with it cannot be saved: "
            "decorate the class with gptd_rl.kernels.register."
        )
    description = dict(kernel.to_dict(), type=name)
    _check_complete(kernel, description)
    return description


def _check_complete(kernel: BaseKernel, description: dict[str, Any]) -> None:
    """Refuse a kernel that its description does not build again, such as one with a field that `to_dict` leaves out."""
    name = type(kernel).__name__
    try:
        again = build(description)
        lost = [field for field, value in _attributes(kernel).items() if not _is_same(value, vars(again)[field])]
    except (TypeError, ValueError, KeyError) as error:
        raise TypeError(
            f"a model with kernel class {name} cannot be saved, because from_dict does not take what to_dict "
            f"describes: {error}"
        ) from None
    if lost:
        raise TypeError(
            f"a model with kernel class {name} cannot be saved, because to_dict and from_dict lose its {lost[0]}: "
            "override them."
        )


def _attributes(kernel: BaseKernel) -> dict[str, Any]:
    """What a kernel was built from: its attributes but those that are computed from others."""
    return {
        name: value
        for name, value in vars(kernel).items()
        if not isinstance(getattr(type(kernel), name, None), cached_property)
    }


def _is_same(value: Any, again: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) == len(again) and all(map(_is_same, value, again))
    if hasattr(value, "theta"):  # of kernels and metrics
        return type(value) is type(again) and np.array_equal(value.theta, again.theta)
    return np.array_equal(value, again)


def build(description: dict[str, Any]) -> Any:
    """The kernel that `describe` described."""
    arguments = dict(description)
    name = arguments.pop("type", None)
    if name not in _CLASSES:
        raise ValueError(f"kernel class {name!r} is not registered: import the module that defines it first.")
    return _CLASSES[name].from_dict(arguments)
