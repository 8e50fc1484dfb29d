"""What pages share: the shell of an HTML file that needs no network, its style, tables, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

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
td:not(:last-child) { white-space: nowrap; }
thead th { border-bottom-width: 2px; }
figure { margin: 1.5rem 0; }
figcaption, .faint { color: var(--faint); font-size: .9rem; } a { color: inherit; }
"""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MISSING = "—"


def document(title: str, body: Sequence[str], style: str = "") -> str:
    """A whole page: `title` is text, `body` is HTML, `style` comes after `STYLE`."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body>",
            *body,
            "</body></html>",
            "",
        ]
    )


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    kind: str = "",
    marks: Sequence[str] = (),
    named_rows: bool = False,
) -> str:
    """A table of plain texts, which scrolls inside its own box where the page is narrow.

    Parameters
    ----------
    columns : sequence of str
    rows : sequence of sequences of str
    caption : str
    kind : str
        Class of the table.
    marks : sequence of str
        Class of each row.
    named_rows : bool
        Whether the first cell of a row is its name.
    """
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in columns)
    classes = [f' class="{mark}"' for mark in marks] or [""] * len(rows)
    body = "".join(f"<tr{mark}>{_cells(row, named_rows)}</tr>" for mark, row in zip(classes, rows, strict=True))
    title = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    label = f' role="region" tabindex="0" aria-label="{escape(caption)}"' if caption else ""
    return (
        f'<div class="wide"{label}><table class="{kind}">{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(row: Sequence[str], named: bool) -> str:
    cells = [f"<td>{escape(cell)}</td>" for cell in row]
    return "".join([f'<th scope="row">{escape(row[0])}</th>', *cells[1:]] if named else cells)


def number(value: float, width: float | None = None) -> str:
    """A number with two digits of what is uncertain, a true minus sign, and thin spaces between thousands.

    Parameters
    ----------
    value : float
    width : float, optional
        How uncertain it is; the number itself, with three digits, by default.

    Examples
    --------
    >>> number(-1234.5678, width=0.31), number(0.000123456), number(float("nan"))
    ('−1\u202f234.57', '1.23 × 10⁻⁴', '—')
    """
    if not math.isfinite(value):
        return MISSING
    known = width is not None and math.isfinite(width) and width > 0
    size = abs(float(width)) / 10 if known and width is not None else abs(value) / 100
    if value and not 1e-3 <= abs(value) < 1e7 and not (known and 10 * size > abs(value)):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace("-", "−")
    places = min(max(-math.floor(math.log10(size)), 0), 6) if size > 0 else 0
    text = f"{value:,.{places}f}".replace(",", "\u202f")
    return text.lstrip("-") if not float(f"{value:.{places}f}") else text.replace("-", "−")


def percent(share: float) -> str:
    """A share as percentage: whole, and with a decimal only between 99 and 100 or 0 and 1, where it matters.

    Examples
    --------
    >>> percent(0.947), percent(0.996), percent(1.0)
    ('95\u202f%', '99.6\u202f%', '100\u202f%')
    """
    if not math.isfinite(share):
        return MISSING
    places = 1 if 0 < share < 0.01 or 0.99 < share < 1 else 0
    return f"{100 * share:.{places}f}\u202f%"
