"""The page that puts everything together: one HTML file with its pictures inside, which needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gptd_rl.experiments.claims import Claim
from gptd_rl.experiments.tables import Table, claims_table

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #fff; --line: #d4d4d4; --soft: #f4f4f4; --faint: #5c5c5c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181b; --line: #41454b; --soft: #212429; --faint: #a8adb5; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
h3 { margin: 2rem 0 .6rem; font-size: 1.05rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td:not(:last-child) { white-space: nowrap; } .claims td:nth-child(2) { white-space: normal; }
th { border-bottom-width: 2px; } tr.held td:nth-child(3)::before { content: "✓ "; }
tr.not td:nth-child(3)::before { content: "✗ "; } tr.not { background: var(--soft); font-weight: 600; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; background: #fff; padding: 6px; border-radius: 6px;
  box-sizing: border-box; border: 1px solid var(--line); }
figcaption, .faint { color: var(--faint); font-size: .9rem; } a { color: inherit; }
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
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>gptd-rl reproduces Jung &amp; Stone</title><style>{STYLE}</style></head><body>",
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
            "</body></html>",
        ]
    )


def _claims(claims: Sequence[Claim]) -> str:
    table = claims_table(claims)
    marks = ["held" if all(claim.held) else "not" for claim in claims]
    return _table(table, "claims", marks)


def _chapter(chapter: Chapter) -> list[str]:
    parts = [f"<h2>{escape(chapter.title)}</h2>", f"<p>{escape(chapter.text)}</p>"]
    for table in chapter.tables:
        links = f'<a href="{table.name}.md">Markdown</a>, <a href="{table.name}.json">JSON</a>'
        parts += [f'<h3>{escape(table.title)} <span class="faint">({links})</span></h3>', _table(table)]
    for picture in chapter.pictures:
        source = "data:image/png;base64," + base64.b64encode(picture.png).decode("ascii")
        links = f'<a href="{picture.name}.png">PNG</a>, <a href="{picture.name}.pdf">PDF</a>'
        parts.append(
            f'<figure><img src="{source}" alt="{escape(picture.caption)}">'
            f"<figcaption>{escape(picture.caption)} ({links})</figcaption></figure>"
        )
    return parts


def _table(table: Table, kind: str = "", marks: Sequence[str] = ()) -> str:
    head = "".join(f"<th>{escape(c)}</th>" for c in table.columns)
    classes = [f' class="{mark}"' for mark in marks] or [""] * len(table.rows)
    rows = [
        f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for mark, row in zip(classes, table.shown_rows, strict=True)
    ]
    return f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{"".join(rows)}</table></div>'
