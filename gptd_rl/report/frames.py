"""The check of an evaluation as a table of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gptd_rl.data.frames import import_pandas
from gptd_rl.report.records import Check


def check_frame(check: Check, inputs: Sequence[str]) -> Any:
    """One row for each held-out state; see `Evaluation.to_pandas`."""
    pd = import_pandas()
    table: dict[str, Any] = dict(episode=check.episodes)
    table |= {name: check.states[:, i] for i, name in enumerate(inputs)}
    table |= dict(observed=check.observed, error=check.errors)
    table |= dict(predicted=check.predicted, lower=check.lower, upper=check.upper)
    table["covered"] = (check.lower <= check.observed) & (check.observed <= check.upper)
    if check.critic is not None:
        table["critic"] = check.critic
    return pd.DataFrame(table)
