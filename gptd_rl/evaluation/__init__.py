"""Evaluate a trained agent: collect transitions, fit V, check it on fresh rollouts, and write a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gptd_rl.evaluation.evaluate import evaluate_agent
from gptd_rl.evaluation.results import Evaluation

if TYPE_CHECKING:
    from gptd_rl.evaluation.callback import GPTDEvalCallback

__all__ = ["Evaluation", "GPTDEvalCallback", "evaluate_agent"]


def __getattr__(name: str) -> Any:
    """Import the callback on first use: it needs Stable-Baselines3, and nothing else here does."""
    if name != "GPTDEvalCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gptd_rl.evaluation.callback import GPTDEvalCallback

    return GPTDEvalCallback
