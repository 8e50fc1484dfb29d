"""Stable-Baselines3's callbacks and logger for other agents; it is imported only when they are used."""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol


class Callback(Protocol):
    """A callback of Stable-Baselines3, as `learn` calls it."""

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Learning begins."""
        ...

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """Receive the local variables of a step."""
        ...

    def on_step(self) -> bool:
        """A step ends; False ends learning."""
        ...

    def on_rollout_start(self) -> None:
        """Collecting begins."""
        ...

    def on_rollout_end(self) -> None:
        """Collecting ends."""
        ...

    def on_training_end(self) -> None:
        """Learning ends."""
        ...


class NoCallback:
    """A callback that does nothing."""

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """See `Callback`."""

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """See `Callback`."""

    def on_step(self) -> bool:
        """See `Callback`."""
        return True

    def on_rollout_start(self) -> None:
        """See `Callback`."""

    def on_rollout_end(self) -> None:
        """See `Callback`."""

    def on_training_end(self) -> None:
        """See `Callback`."""


def as_callback(callback: Any, agent: Any) -> Callback:
    """One callback from None, a function, a callback, or a list of callbacks."""
    if callback is None:
        return NoCallback()
    require_sb3("callbacks")
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback

    if isinstance(callback, list):
        callback = CallbackList(callback)
    made: Any = callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)
    made.init_callback(agent)
    return made


def make_logger(verbose: int, tensorboard_log: str | None, name: str, restart: bool) -> Any:
    """A Stable-Baselines3 logger."""
    require_sb3("logging")
    from stable_baselines3.common.utils import configure_logger

    return configure_logger(verbose, tensorboard_log, name, restart)


def require_sb3(purpose: str) -> None:
    """Raise an ImportError that names the missing extra."""
    if importlib.util.find_spec("stable_baselines3") is None:
        raise ImportError(f"{purpose} need Stable-Baselines3: install gptd-rl with the extra 'sb3'.")
