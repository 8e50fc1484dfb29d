"""The result of `compare_agents`: the records of `gptd_rl.report.comparison_records`, and the value functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gptd_rl.report.comparison_records import AgentValues, ComparisonConfig, Difference, StateComparison
from gptd_rl.report.plain import as_plain
from gptd_rl.report.records import ValueFunction
from gptd_rl.types import Array

RECORDS = ("config", "agents", "differences", "at_states", "warnings", "seconds")


@dataclass(frozen=True, eq=False, repr=False)
class AgentComparison:
    """Result of `gptd_rl.compare_agents`; ``print(comparison)`` shows a summary.

    Attributes
    ----------
    config : ComparisonConfig
    agents : tuple of AgentValues
        In the order given.
    differences : tuple of Difference
        Each other agent less the reference, ``config.reference``.
    at_states : StateComparison or None
        Differences state by state; None if the comparison was interrupted before.
    values : mapping of str to ValueFunction
        V of each agent, with intervals.
    visited : ndarray of shape (m, n_dims)
        States that the agents visited.
    warnings : tuple of str
        Limits of the comparison, a sentence each.
    seconds : float
        Duration.
    is_complete : bool
        False if it was interrupted: then it holds the agents that were finished.
    """

    config: ComparisonConfig
    agents: tuple[AgentValues, ...]
    differences: tuple[Difference, ...]
    at_states: StateComparison | None
    values: Mapping[str, ValueFunction]
    visited: Array
    warnings: tuple[str, ...]
    seconds: float
    is_complete: bool = True

    def summary(self, width: int = 110) -> str:
        """Values, differences and what each agent relies on, in a few lines of plain text.

        Parameters
        ----------
        width : int
            Longest line, in characters.
        """
        from gptd_rl.report.comparison_summary import summary
        from gptd_rl.report.summary import as_text

        return as_text(summary(self), width)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"AgentComparison({', '.join(agent.name for agent in self.agents)} on {self.config.env})"

    def as_json(self) -> dict[str, Any]:
        """All records as JSON holds them: NaN becomes null."""
        return {name: as_plain(getattr(self, name)) for name in RECORDS} | {"is_complete": self.is_complete}

    def write(self, folder: str | os.PathLike[str], command: str = "") -> Path:
        """Write the page ``index.html`` and ``comparison.json`` into `folder`, and return the page's path.

        The files appear only once both are complete.

        Parameters
        ----------
        folder : path
            Created if missing.
        command : str
            Command line to show on the page.
        """
        from gptd_rl.report.comparison_page import write

        return write(self, self.as_json(), Path(folder), command)
