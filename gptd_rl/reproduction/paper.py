"""The numbers printed in the paper, by section: the only ones that are not computed."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def printed() -> dict[str, Any]:
    """Contents of ``paper.json``."""
    text = files("gptd_rl.reproduction").joinpath("paper.json").read_text(encoding="utf-8")
    return dict(json.loads(text))
