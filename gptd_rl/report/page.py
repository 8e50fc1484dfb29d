"""The page of an evaluation: one HTML file with its plots inside, which needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gptd_rl.report import html, scripts, styles
from gptd_rl.report.cards import overview, title
from gptd_rl.report.maps import disagreements, maps
from gptd_rl.report.output import complete_or_nothing
from gptd_rl.report.plain import as_plain
from gptd_rl.report.player import player
from gptd_rl.report.provenance import Provenance
from gptd_rl.report.records import EvaluationResults
from gptd_rl.report.sections import calibration, method, off_policy, policy, relevance
from gptd_rl.report.svg import page_style


def write(evaluation: EvaluationResults, numbers: dict[str, Any], folder: Path, command: str = "") -> Path:
    """Write ``index.html`` and ``evaluation.json`` into `folder`, and return the page's path.

    The files appear only once both are complete.

    Parameters
    ----------
    evaluation : EvaluationResults
    numbers : dict
        Contents of the JSON file.
    folder : Path
        Created if missing.
    command : str
        Command line to show on the page; by default the call of `evaluate_agent`.
    """
    made = Provenance.now(command or evaluation.config.call)
    with complete_or_nothing(folder) as unfinished:
        text = json.dumps(numbers | {"made": as_plain(made)}, ensure_ascii=False, indent=1, allow_nan=False)
        (unfinished / "evaluation.json").write_text(text + "\n", encoding="utf-8")
        (unfinished / "index.html").write_text(render(evaluation, made), encoding="utf-8")
    return folder / "index.html"


def render(evaluation: EvaluationResults, made: Provenance | None = None) -> str:
    """The page as HTML; `made` says when and how."""
    with page_style():
        body = [
            *overview(evaluation),
            *player(evaluation),
            *policy(evaluation),
            *relevance(evaluation),
            *calibration(evaluation.check),
            *maps(evaluation),
            *disagreements(evaluation),
            *(off_policy(evaluation.off_policy, evaluation.config.agent) if evaluation.off_policy else []),
            *method(evaluation, made),
        ]
    content = ["<main>", *body, "</main>", scripts.element()]
    return html.document(title(evaluation), content, styles.EVALUATION, scripts.policy())
