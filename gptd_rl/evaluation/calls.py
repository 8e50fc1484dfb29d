"""A call as text, to show on a page; names of agents and environments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gptd_rl.sb3.policies import NormalizedPolicy
from gptd_rl.types import Policy

LONGEST = 200  # characters of an argument
HIDDEN = ("progress",)


def agent_name(policy: Policy) -> str:
    """Name of an agent: that of its class, or of a function."""
    if policy is None:
        return "random actions"
    inner = policy.model if isinstance(policy, NormalizedPolicy) else policy
    return str(getattr(inner, "__name__", type(inner).__name__))


def call_text(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """A call with the arguments that differ from their defaults.

    Parameters
    ----------
    function : callable
    arguments : mapping
        Values by name; others than the function's parameters are left out.

    Examples
    --------
    >>> def fit(data, gamma=0.9, seed=0): ...
    >>> call_text(fit, dict(data="file.npz", gamma=0.9, seed=3))
    "fit('file.npz', seed=3)"
    """
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        value = arguments[name]
        is_default = parameter.default is not parameter.empty and value is parameter.default
        if name in HIDDEN or is_default or (_is_plain(value) and value == parameter.default):
            continue
        text = _argument(value)
        shown.append(text if parameter.default is parameter.empty or name == "env" else f"{name}={text}")
    return f"{function.__name__}({', '.join(shown)})"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _argument(value: Any) -> str:
    """Plain values as Python writes them, others by a name."""
    if _is_plain(value) or (isinstance(value, Sequence) and all(map(_is_plain, value))):
        text = repr(value)
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    spec = getattr(value, "spec", None)
    return str(getattr(spec, "id", None) or agent_name(value))
