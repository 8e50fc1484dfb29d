"""Evaluate a trained agent: collect, fit, check against fresh rollouts, and write a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gptd_rl.evaluation.callback import GPTDEvalCallback
    from gptd_rl.evaluation.results import Evaluation

__all__ = ["Evaluation", "GPTDEvalCallback"]


def __getattr__(name: str) -> Any:
    """Import on first use: the callback needs Stable-Baselines3, and nothing else here does."""
    if name == "Evaluation":
        from gptd_rl.evaluation.results import Evaluation

        return Evaluation
    if name == "GPTDEvalCallback":
        from gptd_rl.evaluation.callback import GPTDEvalCallback

        return GPTDEvalCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
