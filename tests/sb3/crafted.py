"""Pickles as an attacker writes them: any class by name, with any arguments and state."""

from __future__ import annotations

import pickle
from typing import Any


class Global:
    """A class or function by name; it need not exist."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Made:
    """A call of `function`, whose result is then given `state`."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.function, self.arguments, self.state = function, arguments, state


class Changed:
    """Something that is given a state without having been made: a class or a function."""

    def __init__(self, target: Any, state: Any) -> None:
        self.target, self.state = target, state


def dumps(thing: Any) -> bytes:
    """A pickle of `thing`."""
    return b"\x80\x04" + _write(thing) + b"."


def _write(thing: Any) -> bytes:
    if isinstance(thing, Global):
        return _write(thing.module) + _write(thing.name) + b"\x93"
    if isinstance(thing, Made):
        built = b"" if thing.state is None else _write(thing.state) + b"b"
        return _write(thing.function) + _write(thing.arguments) + b"R" + built
    if isinstance(thing, Changed):
        return _write(thing.target) + _write(thing.state) + b"b"
    if isinstance(thing, tuple):
        return b"(" + b"".join(map(_write, thing)) + b"t"
    if isinstance(thing, list):
        return b"](" + b"".join(map(_write, thing)) + b"e"
    if isinstance(thing, dict):
        return b"}(" + b"".join(_write(key) + _write(value) for key, value in thing.items()) + b"u"
    return pickle.dumps(thing, protocol=3)[2:-1]
