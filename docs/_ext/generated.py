"""Pages that follow the code: written into docs/_generated before Sphinx reads its sources, and included there.

The command line comes from its parser, the equations' functions from docstrings and comments, the layers from the test
that checks them, the tables of benchmarks from their result files.
"""

from __future__ import annotations

from pathlib import Path

import architecture
import benchmark_tables
import command_line
import equations
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]


def write(folder: Path) -> None:
    """Write all generated parts, each only if it changed."""
    folder.mkdir(exist_ok=True)
    pages = {
        "cli": command_line.page(),
        "equations": equations.page(ROOT),
        "layers": architecture.page(ROOT),
        **benchmark_tables.pages(ROOT / "benchmarks" / "results"),
    }
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write before sources are read."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "_generated"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
