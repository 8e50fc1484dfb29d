"""The page that puts everything together: one HTML file with its pictures inside, which needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gptd_rl.report import html
from gptd_rl.reproduction.claims import Claim
from gptd_rl.reproduction.tables import Table, claims_table

STYLE = """
.claims td:nth-child(2) { white-space: normal; }
tr.held td:nth-child(3)::before { content: "✓ "; } tr.not td:nth-child(3)::before { content: "✗ "; }
tr.not { background: var(--soft); font-weight: 600; }
figure img { max-width: 100%; background: #fff; padding: 6px; border-radius: 6px; box-sizing: border-box;
  border: 1px solid var(--line); }
"""


@dataclass(frozen=True)
class Picture:
    """A figure that was drawn: its name, its PNG and what it shows."""

    name: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class Chapter:
    """One experiment."""

    title: str
    text: str
    claims: Sequence[Claim]
    tables: Sequence[Table]
    pictures: Sequence[Picture]


def render(chapters: Sequence[Chapter], command: str, facts: Mapping[str, str]) -> str:
    """The page as HTML."""
    claims = [claim for chapter in chapters for claim in chapter.claims]
    facts_text = " · ".join(f"{escape(k)} {escape(v)}" for k, v in facts.items())
    return html.document(
        "gptd-rl reproduces Jung & Stone",
        [
            "<h1>Feature Selection for Value Function Approximation Using Bayesian Model Selection, reproduced</h1>",
            "<p>The experiments of Section 6 of Jung and Stone's paper on this project's environments. Covariances: "
            "(I) isotropic, every state variable counts alike; (II) ARD, each has a relevance of its own; (III) factor "
            "analysis, relevant <em>directions</em>. Numbers are means ± standard deviations over the seeds; pictures "
            "show the first seed. Everything is computed by <code>" + escape(command) + "</code>, except the "
            "column “paper”.</p>",
            f'<p class="faint">{facts_text}</p>',
            "<h2>Claims</h2>",
            "<p>“Held” means in every seed. The paper gives no thresholds; those in brackets are ours.</p>",
            _claims(claims),
            *(part for chapter in chapters for part in _chapter(chapter)),
        ],
        STYLE,
    )


def _claims(claims: Sequence[Claim]) -> str:
    table = claims_table(claims)
    marks = ["held" if all(claim.held) else "not" for claim in claims]
    return html.table(table.columns, table.shown_rows, kind="claims", marks=marks)


def _chapter(chapter: Chapter) -> list[str]:
    parts = [f"<h2>{escape(chapter.title)}</h2>", f"<p>{escape(chapter.text)}</p>"]
    for table in chapter.tables:
        links = f'<a href="{table.name}.md">Markdown</a>, <a href="{table.name}.json">JSON</a>'
        parts.append(f'<h3>{escape(table.title)} <span class="faint">({links})</span></h3>')
        parts.append(html.table(table.columns, table.shown_rows))
    for picture in chapter.pictures:
        source = "data:image/png;base64," + base64.b64encode(picture.png).decode("ascii")
        links = f'<a href="{picture.name}.png">PNG</a>, <a href="{picture.name}.pdf">PDF</a>'
        parts.append(
            f'<figure><img src="{source}" alt="{escape(picture.caption)}">'
            f"<figcaption>{escape(picture.caption)} ({links})</figcaption></figure>"
        )
    return parts
