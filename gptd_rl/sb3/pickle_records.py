"""Pickles as inert records: the opcodes are decoded, nothing that they name is looked up, called or changed.

A pickle is a program for a stack machine. This one knows plain data (numbers, strings, bytes, lists, tuples, dicts),
names of classes and functions, and calls of them; the last two become records. `plain_objects` builds objects from
records of known meaning. All other opcodes are refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_OPCODES = 200_000  # some thousands in the largest of plain files

_Stack = list[Any]


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function by name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Call:
    """A call of a class or function, and what the pickle would do to its result."""

    function: Name
    arguments: tuple[Any, ...]
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class External:
    """What is kept outside of the pickle: a storage of PyTorch."""

    key: Any


class _Mark:
    """Beginning of a group on the stack."""


_MARK = _Mark()


def decode(content: bytes) -> Any:
    """The object of a pickle, with `Name`, `Call` and `External` in place of everything that is not plain data.

    Raises
    ------
    ValueError, IndexError, KeyError
        If the pickle is cut off, too long, or does what plain files do not do.
    """
    stack: _Stack = []
    memo: dict[Any, Any] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count >= MAX_OPCODES:
            raise ValueError(f"it has more than {MAX_OPCODES} opcodes")
        name = opcode.name
        if name == "STOP":
            (result,) = stack
            return result
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _GETS:
            stack.append(memo[argument])
        elif name in _PUTS:
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in _CONTAINERS:
            stack.append(_CONTAINERS[name]())
        elif name in _OPERATIONS:
            _OPERATIONS[name](stack, argument)
        elif name not in _FRAMING:
            raise ValueError(f"it uses the opcode {name}")
    raise ValueError("it has no end")


_FRAMING = {"PROTO", "FRAME"}
_CONSTANTS = dict(NONE=None, NEWTRUE=True, NEWFALSE=False, EMPTY_TUPLE=(), MARK=_MARK)
_CONTAINERS: dict[str, Callable[[], Any]] = dict(EMPTY_LIST=list, EMPTY_DICT=dict)
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_LITERALS = {"INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_LITERALS |= {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_LITERALS |= {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}


def _group(stack: _Stack) -> list[Any]:
    """Take what lies above the last mark."""
    group: list[Any] = []
    while (item := stack.pop()) is not _MARK:
        group.append(item)
    return group[::-1]


def _global(stack: _Stack, argument: str) -> None:
    module, _, name = argument.partition(" ")
    stack.append(Name(module, name))


def _stack_global(stack: _Stack, _: Any) -> None:
    name, module = stack.pop(), stack.pop()
    if not (isinstance(module, str) and isinstance(name, str)):
        raise ValueError("it names something that is no name")
    stack.append(Name(module, name))


def _call(stack: _Stack, _: Any) -> None:
    arguments, function = stack.pop(), stack.pop()
    if not (isinstance(function, Name) and isinstance(arguments, tuple)):
        raise ValueError("it calls what is no class or function")
    stack.append(Call(function, arguments))


def _build(stack: _Stack, _: Any) -> None:
    state = stack.pop()
    made = stack[-1]
    if not isinstance(made, Call) or made.state is not None:
        raise ValueError("it changes what it did not make")  # such as a class, or a function
    made.state = state


def _append(stack: _Stack, _: Any) -> None:
    item = stack.pop()
    _extend(stack[-1], [item])


def _appends(stack: _Stack, _: Any) -> None:
    group = _group(stack)
    _extend(stack[-1], group)


def _extend(target: Any, items: list[Any]) -> None:
    if not isinstance(target, list):
        raise ValueError("it appends to what is no list")
    target.extend(items)


def _set_item(stack: _Stack, _: Any) -> None:
    value, key = stack.pop(), stack.pop()
    _update(stack[-1], [key, value])


def _set_items(stack: _Stack, _: Any) -> None:
    group = _group(stack)
    _update(stack[-1], group)


def _update(target: Any, group: list[Any]) -> None:
    items = target.items if isinstance(target, Call) else target
    if not isinstance(items, dict):
        raise ValueError("it sets items of what is no dict")
    for key, value in zip(group[::2], group[1::2], strict=True):
        if not isinstance(key, str | int):  # to hash a deeply nested tuple would overflow the stack
            raise ValueError("it has a key that is neither a string nor a whole number")
        items[key] = value


def _dict(stack: _Stack, _: Any) -> None:
    group = _group(stack)
    new: dict[Any, Any] = {}
    _update(new, group)
    stack.append(new)


def _tuple(n: int) -> Callable[[_Stack, Any], None]:
    def take(stack: _Stack, _: Any) -> None:
        items = tuple(stack[-n:])
        if len(items) < n:
            raise ValueError("it takes more than there is")
        stack[-n:] = [items]

    return take


_OPERATIONS: dict[str, Callable[[_Stack, Any], Any]] = dict(
    POP=lambda stack, _: stack.pop(),
    POP_MARK=lambda stack, _: _group(stack),
    LIST=lambda stack, _: stack.append(_group(stack)),
    TUPLE=lambda stack, _: stack.append(tuple(_group(stack))),
    TUPLE1=_tuple(1),
    TUPLE2=_tuple(2),
    TUPLE3=_tuple(3),
    DICT=_dict,
    APPEND=_append,
    APPENDS=_appends,
    SETITEM=_set_item,
    SETITEMS=_set_items,
    GLOBAL=_global,
    STACK_GLOBAL=_stack_global,
    REDUCE=_call,
    NEWOBJ=_call,
    BUILD=_build,
    BINPERSID=lambda stack, _: stack.append(External(stack.pop())),
)
