"""YAML files as plain data: tags that name classes or functions of Python call nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptd_rl.exceptions import AgentError, brief

MAX_BYTES_OF_YAML = 2**20  # settings of a training run take kilobytes
MAX_ITEMS = 10_000  # of one setting, counted as often as aliases repeat them
_PYTHON = "tag:yaml.org,2002:python/"


@dataclass(frozen=True)
class Unread:
    """What a tag of Python would make."""

    tag: str


def read_mapping(path: Path) -> dict[str, Any]:
    """The content of a YAML file that holds a mapping, or an OrderedDict as PyYAML writes it.

    Values are plain data, with `Unread` in place of other objects: see `plain`.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise AgentError(f'reading {path.name} needs PyYAML: pip install "gptd-rl[contrib]".') from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        """With constructors of its own."""

    Loader.add_multi_constructor(_PYTHON, _unread)
    Loader.add_constructor(f"{_PYTHON}tuple", lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))
    Loader.add_constructor(f"{_PYTHON}object/apply:collections.OrderedDict", _ordered_dict)
    try:
        if path.stat().st_size > MAX_BYTES_OF_YAML:
            raise ValueError(f"it has more than {MAX_BYTES_OF_YAML} bytes")
        content = yaml.load(path.read_text(encoding="utf-8"), Loader)
        if not (isinstance(content, dict) and all(isinstance(key, str) for key in content)):
            raise ValueError("it holds no mapping of names")
    except (yaml.YAMLError, ValueError, TypeError, OSError, RecursionError) as error:
        raise AgentError(f"{path.name} cannot be read ({brief(error)}): expected what rl-zoo writes.") from error
    return content


def plain(value: Any, name: str) -> Any:
    """The value, if it and all of its parts are numbers, strings, lists, tuples and mappings of strings."""
    left = MAX_ITEMS
    parts = [value]
    while parts:
        part = parts.pop()
        left -= 1
        if left < 0:
            raise AgentError(f"{name} has more than {MAX_ITEMS} parts.")
        if isinstance(part, dict) and all(isinstance(key, str) for key in part):
            parts.extend(part.values())
        elif isinstance(part, list | tuple):
            parts.extend(part)
        elif part is not None and not isinstance(part, bool | int | float | str):
            what = part.tag if isinstance(part, Unread) else f"a {type(part).__name__}"
            raise AgentError(f"{name} holds {what}: expected numbers, strings, lists and mappings.")
    return value


def _unread(loader: Any, suffix: str, node: Any) -> Unread:
    return Unread(f"!!python/{suffix}")


def _ordered_dict(loader: Any, node: Any) -> dict[Any, Any]:
    arguments = loader.construct_sequence(node, deep=True)  # refuses a node of another kind
    if len(arguments) > 1:
        raise ValueError("it has an OrderedDict of another form")
    return dict(arguments[0]) if arguments else {}
