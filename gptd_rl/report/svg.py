"""Matplotlib figures as SVG elements that take their colours and font from the page around them.

Plots use the colours of the light page; `to_svg` replaces each by the CSS variable of the same name, so that one
drawing serves the light and the dark page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes

from gptd_rl.report.charts import COLOURS, WIDTH, figure_of
from gptd_rl.report.hover import Points, circles

SETTINGS = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.edgecolor": COLOURS["faint"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "figure.figsize": (WIDTH, 3.3),
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.labelcolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "text.parse_math": False,  # names may hold dollar signs
    "xtick.color": COLOURS["faint"],
    "ytick.color": COLOURS["faint"],
    "xtick.labelcolor": COLOURS["ink"],
    "ytick.labelcolor": COLOURS["ink"],
    "svg.fonttype": "none",
    "svg.hashsalt": "gptd-rl",  # ids are reproducible
}


@contextmanager
def page_style() -> Iterator[None]:
    """Matplotlib settings of the page, instead of the user's own."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the browser chooses the font
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, SETTINGS))
        yield


def to_svg(ax: Axes, name: str, alt: str, points: Points | None = None) -> str:
    """The figure of `ax` as an SVG element.

    Parameters
    ----------
    ax : Axes
    name : str
        Prefix of the ids in the drawing, unique on the page.
    alt : str
        Description for screen readers.
    points : Points, optional
        Points that say what they are.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure = figure_of(ax)
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine("none")  # or saving would draw everything once more for its sake
    figure.savefig(buffer, format="svg", metadata=nothing, dpi=144)
    text = buffer.getvalue()
    box = re.search(r'viewBox="[^"]*"', text)
    assert box, "Matplotlib writes a view box"
    text = text[text.index(">", box.end()) + 1 :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--font)", text)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\1{name}-", text)
    for colour, code in COLOURS.items():
        text = text.replace(code, f"var(--{colour})")
    text = re.sub(r"\s*\n\s*", "\n", text)
    text = text.strip()
    if points is None:
        return f'<svg {box[0]} role="img" aria-label="{escape(alt)}">{text}\n'
    drawing = text.removesuffix("</svg>")
    return f'<svg {box[0]} role="group" aria-label="{escape(alt)}">{drawing}{circles(ax, points)}</svg>\n'
