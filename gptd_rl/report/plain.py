"""Records as JSON holds them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def as_plain(value: Any) -> Any:
    """Records, arrays and tuples as dicts, lists and numbers, for JSON: NaN becomes None."""
    if is_dataclass(value):
        shown = [field.name for field in fields(value) if field.metadata.get("json", True)]
        return {name: as_plain(getattr(value, name)) for name in shown}
    if isinstance(value, np.ndarray):
        return as_plain(value.tolist())
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
