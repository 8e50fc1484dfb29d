"""The result of `evaluate_agent`: the value function, the data, and the records of `gptd_rl.report.records`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.markov import MarkovTest
from gptd_rl.report.plain import as_plain
from gptd_rl.report.recorded import Recordings
from gptd_rl.report.records import (
    LEVELS,
    Check,
    Disagreement,
    EvaluationConfig,
    OffPolicy,
    Relevance,
    StartReturn,
    Timing,
    ValueFunction,
)
from gptd_rl.types import Array

NO_RECORDINGS = Recordings()
RECORDS = (
    *("config", "start", "relevance", "markov", "check", "disagreements", "off_policy", "recordings", "warnings"),
    "timing",
)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Result of `gptd_rl.evaluate_agent`; ``print(evaluation)`` shows a summary.

    Attributes
    ----------
    config : EvaluationConfig
    start : StartReturn
    relevance : Relevance
    markov : MarkovTest
        Whether the observations tell all that matters for what comes next.
    check : Check
    disagreements : tuple of Disagreement
        The largest first; empty if the agent has no critic, or none differs.
    off_policy : OffPolicy or None
        Set if the evaluated policy did not generate the data.
    value : ValueFunction
        V with intervals.
    critic : callable or None
        The agent's own critic: states of shape (m, n_dims) to values of shape (m,).
    data : Trajectories
        The collected transitions.
    warnings : tuple of str
        Limits of the evaluation, a sentence each.
    timing : Timing
    recordings : Recordings
        Episodes to watch: the best, a typical and the worst of some fresh ones.
    """

    config: EvaluationConfig
    start: StartReturn
    relevance: Relevance
    markov: MarkovTest
    check: Check
    disagreements: tuple[Disagreement, ...]
    off_policy: OffPolicy | None
    value: ValueFunction
    critic: Callable[[Array], Array] | None
    data: Trajectories
    warnings: tuple[str, ...]
    timing: Timing
    recordings: Recordings = NO_RECORDINGS

    def summary(self, width: int = 110) -> str:
        """Value, return, relevances and scores in a few lines of plain text.

        Parameters
        ----------
        width : int
            Longest line, in characters.
        """
        from gptd_rl.report.summary import as_text, summary

        return as_text(summary(self), width)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        config = self.config
        return f"Evaluation({config.agent} on {config.env}, {config.n_transitions} transitions)"

    def as_json(self) -> dict[str, Any]:
        """All records as JSON holds them: NaN becomes null, and frames are left out."""
        counts = {"levels": list(LEVELS), "n_disagreements": self.check.n_disagreements}
        return counts | {name: as_plain(getattr(self, name)) for name in RECORDS}

    def to_pandas(self) -> Any:
        """A table of the held-out states: what was predicted, and what was observed; it needs pandas.

        Returns
        -------
        table : pandas.DataFrame
            Columns episode, one for each observation, observed, error (the standard error of what was observed),
            predicted, lower, upper (the 95 % interval), covered, and critic if the agent has one.
        """
        from gptd_rl.report.frames import check_frame

        return check_frame(self.check, self.config.inputs)

    def write_card(
        self,
        path: str | os.PathLike[str] = "README.md",
        *,
        model_name: str | None = None,
        library_name: str | None = None,
        license: str | None = None,
    ) -> Path:
        """Write a Hugging Face model card, with the return *and its interval* in its metadata; nothing is uploaded.

        It needs huggingface_hub.

        Parameters
        ----------
        path : path
            The file, or a folder in which it is called README.md.
        model_name : str, optional
            The agent's name by default.
        library_name : str, optional
            "stable-baselines3" or "sb3-contrib" for their algorithms by default, else "gptd-rl".
        license : str, optional
            Identifier of the model's licence.

        Returns
        -------
        path : Path
        """
        from gptd_rl.report.model_card import write_card

        return write_card(self, Path(path), model_name=model_name, library_name=library_name, license=license)

    def write(self, folder: str | os.PathLike[str], command: str = "") -> Path:
        """Write the page ``index.html`` and ``evaluation.json`` into `folder`, and return the page's path.

        The files appear only once both are complete.

        Parameters
        ----------
        folder : path
            Created if missing.
        command : str
            Command line to show on the page.
        """
        from gptd_rl.report.page import write

        return write(self, self.as_json(), Path(folder), command)
