"""Transitions as a table of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gptd_rl.data.record import SegmentedData

RESERVED = ("segment", "step", "reward", "discount", "terminated", "truncated")


def import_pandas() -> Any:
    """Import pandas, or say how to install it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError('to_pandas needs pandas: pip install "gptd-rl[pandas]"') from error
    return pd


def trajectories_frame(data: SegmentedData, names: Sequence[str] | None = None) -> Any:
    """One row for each state; see `Trajectories.to_pandas`."""
    pd = import_pandas()
    inputs = input_names(names, data.states.shape[1])
    segment = data.segment_of
    is_last = np.zeros(len(data), dtype=bool)
    is_last[data.last] = True
    ended = data.terminated[segment]
    table: dict[str, Any] = dict(segment=segment, step=np.arange(len(data)) - data.starts[segment])
    table |= dict(zip(inputs, data.states.T, strict=True))
    if data.actions is not None:
        columns = data.actions.reshape(len(data), -1).T
        labels = ["action"] if data.actions.ndim == 1 else [f"action {i}" for i in range(len(columns))]
        for label, column in zip(labels, columns, strict=True):
            values = pd.array(column, dtype="Int64" if column.dtype.kind in "iub" else "float64")
            values[is_last] = pd.NA if column.dtype.kind in "iub" else np.nan
            table[label] = values
    # Nothing is known of what follows a truncation.
    cut = is_last & ~ended
    table["reward"], table["discount"] = np.where(cut, np.nan, data.rewards), np.where(cut, np.nan, data.discounts)
    table["terminated"], table["truncated"] = is_last & ended, cut
    return pd.DataFrame(table)


def input_names(names: Sequence[str] | None, n_dims: int) -> list[str]:
    """Names of the columns of states: those given, or "input 0", "input 1", …."""
    found = [f"input {i}" for i in range(n_dims)] if names is None else list(names)
    if len(found) != n_dims or len(set(found)) != n_dims or not all(isinstance(name, str) for name in found):
        raise ValueError(f"names must be {n_dims} different texts, one for each input; got {names!r}.")
    if taken := [name for name in found if name in RESERVED or name.startswith("action")]:
        raise ValueError(f"names must not be those of other columns; {taken[0]!r} is one: choose another.")
    return found
