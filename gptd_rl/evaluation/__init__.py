"""Evaluate a trained agent: collect, fit, check against fresh rollouts, and show it on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptd_rl.evaluation.callback import GPTDEvalCallback

__all__ = ["GPTDEvalCallback"]


def __getattr__(name: str) -> Any:
    """Import the callback when it is asked for: it needs Stable-Baselines3, and nothing else here does."""
    if name != "GPTDEvalCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gptd_rl.evaluation.callback import GPTDEvalCallback

    return GPTDEvalCallback
