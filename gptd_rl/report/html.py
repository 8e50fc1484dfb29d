"""Building blocks of HTML pages that need no network: the document, tables, figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gptd_rl.report import styles


def document(title: str, body: Sequence[str], style: str = "", head: str = "") -> str:
    """A whole page: `title` is text, `body` and `head` are HTML, `style` is CSS that follows `styles.BASE`."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            *([head] if head else []),
            f"<title>{escape(title)}</title><style>{styles.BASE}{style}</style></head><body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    kind: str = "",
    marks: Sequence[str] = (),
    named_rows: bool = False,
) -> str:
    """A table of plain texts, which scrolls inside its own box on narrow screens.

    Parameters
    ----------
    header : sequence of str
    rows : sequence of sequences of str
    caption : str
    kind : str
        Class of the table.
    marks : sequence of str
        Class of each row.
    named_rows : bool
        Whether the first cell of a row is its name.
    """
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in header)
    classes = [f' class="{mark}"' for mark in marks] or [""] * len(rows)
    body = "".join(f"<tr{mark}>{_cells(row, named_rows)}</tr>" for mark, row in zip(classes, rows, strict=True))
    title = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    label = f' role="region" tabindex="0" aria-label="{escape(caption)}"' if caption else ""
    return (
        f'<div class="wide"{label}><table class="{kind}">{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(picture: str, caption: str) -> str:
    """A figure: `picture` is HTML, `caption` is text."""
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def columns(parts: Sequence[str]) -> list[str]:
    """HTML parts side by side on wide screens."""
    return ['<div class="pair">', *parts, "</div>"]


def _cells(row: Sequence[str], named: bool) -> str:
    cells = [f"<td>{escape(cell)}</td>" for cell in row]
    return "".join([f'<th scope="row">{escape(row[0])}</th>', *cells[1:]] if named else cells)
