"""Every error and warning of the library that a program may want to catch."""

from __future__ import annotations

from typing import Any


class NotFittedError(ValueError, AttributeError):
    """An estimator was used before it was fitted."""


class CollectionError(ValueError):
    """Collecting could not begin or go on.

    Episodes are counted from 0 in each sub-environment. Steps are counted by the state they lead to: the observation
    after a reset is step 0 of its episode.

    Attributes
    ----------
    trajectories : Trajectories or None
        What was collected before, unfinished episodes as truncated segments; None if nothing was.
    """

    def __init__(self, message: str, trajectories: Any = None) -> None:
        super().__init__(message)
        self.trajectories = trajectories


class AgentError(ValueError):
    """A saved agent cannot be read, or does not fit the environment; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class LearningError(ValueError):
    """Learning had to stop; what was learnt until then is kept."""


class ExecutorError(RuntimeError):
    """An executor died, was shut down, or lost a shard again and again; the estimator is as it was before."""


class InterruptedFitWarning(UserWarning):
    """Model selection was interrupted; the model is the best one found until then."""


class RelevanceWarning(UserWarning):
    """The plain evidence and the prediction of left-out episodes disagree on which input matters most."""


class EvaluationWarning(UserWarning):
    """An evaluation during training failed and was skipped."""


class ActionCoverageWarning(UserWarning):
    """The data hold little about what the evaluated policy does."""


def brief(error: BaseException) -> str:
    """The message of an error in one line, shortened."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"it has no {text}"
    return text if len(text) <= 160 else f"{text[:160]}…"
