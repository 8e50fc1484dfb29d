"""Kernel classes by name: only registered ones can be saved, so that a file never builds another class."""

from __future__ import annotations

from typing import Any, TypeVar

from gptd_rl.kernels.base import BaseKernel

_CLASSES: dict[str, type[BaseKernel]] = {}

KernelClass = TypeVar("KernelClass", bound=type[BaseKernel])


def register(kernel_class: KernelClass) -> KernelClass:
    """Class decorator: let models with this kernel be saved and loaded, under the name of the class."""
    _CLASSES[kernel_class.__name__] = kernel_class
    return kernel_class


def describe(kernel: BaseKernel) -> dict[str, Any]:
    """`kernel` as plain numbers, strings and lists, with the name of its class."""
    name = type(kernel).__name__
    if _CLASSES.get(name) is not type(kernel):
        raise TypeError(
            f"kernel class {name} is not registered, so a model with it cannot be saved: "
            "decorate the class with gptd_rl.kernels.register."
        )
    return dict(kernel.to_dict(), type=name)


def build(description: dict[str, Any]) -> Any:
    """The kernel that `describe` described."""
    arguments = dict(description)
    name = arguments.pop("type", None)
    if name not in _CLASSES:
        raise ValueError(f"kernel class {name!r} is not registered: import the module that defines it first.")
    return _CLASSES[name].from_dict(arguments)
