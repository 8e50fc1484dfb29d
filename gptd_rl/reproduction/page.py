"""The page of the reproduction: one HTML file with its figures inside, which needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from gptd_rl.report import html, styles
from gptd_rl.reproduction.claims import Claim
from gptd_rl.reproduction.tables import Table, claims_table


@dataclass(frozen=True)
class Picture:
    """A figure as PNG, with the name of its files and a caption."""

    name: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class Chapter:
    """Texts, claims, tables and figures of one experiment."""

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
            "<p>The experiments of Section 6 of Jung and Stone's paper, with the environments of this project. "
            "Covariances: (I) isotropic, one relevance for all state variables; (II) ARD, a relevance for each; (III) "
            "factor analysis, relevant <em>directions</em>. Numbers are means ± standard deviations over the seeds; "
            "figures show the first seed. All numbers are computed by <code>" + escape(command) + "</code>, except "
            "those in the columns “paper”.</p>",
            f'<p class="faint">{facts_text}</p>',
            "<h2>Claims</h2>",
            "<p>“Held”: in every seed. The thresholds in parentheses are ours; the paper gives none.</p>",
            _claims(claims),
            *(part for chapter in chapters for part in _chapter(chapter)),
        ],
        styles.REPRODUCTION,
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
        parts.append(html.table(table.columns, table.shown_rows, kind=table.kind))
    for picture in chapter.pictures:
        source = "data:image/png;base64," + base64.b64encode(picture.png).decode("ascii")
        links = f'<a href="{picture.name}.png">PNG</a>, <a href="{picture.name}.pdf">PDF</a>'
        parts.append(
            f'<figure><img src="{source}" alt="{escape(picture.caption)}">'
            f"<figcaption>{escape(picture.caption)} ({links})</figcaption></figure>"
        )
    return parts
