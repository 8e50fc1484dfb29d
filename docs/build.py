"""Build the documentation: `make docs`, or `python docs/build.py` where the extra is installed.

Warnings are errors. The pages load nothing from elsewhere, which is checked in the end.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ("sphinx", "myst_nb", "furo", "numpydoc", "sphinx_copybutton", "stable_baselines3", "minari", "distributed")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["'](?:https?:)?//[^"']+"""
    r"""|<link\b(?=[^>]*\brel=["'](?:stylesheet|preload|preconnect|icon|modulepreload))[^>]*\bhref=["'](?:https?:)?//[^"']+"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//[^"')]+"""
    r"""|\burl\(\s*["']?(?:https?:)?//[^"')]+""",
    re.IGNORECASE,
)


def missing_packages(packages: Iterable[str] = PACKAGES) -> list[str]:
    """Names of packages that cannot be imported."""
    return [name for name in packages if find_spec(name) is None]


def foreign_loads(folder: Path) -> list[str]:
    """What pages or style sheets would load from elsewhere: "file: tag", in order."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".html", ".css"} and path.is_file():
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(folder)}: {match.group()}" for match in LOADED.finditer(text)]
    return found


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written into `folder`, or None; it is created if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def without_pictures(sources: Path, pages: Path) -> list[str]:
    """Pages whose programs show a figure, and that have none of their own."""
    found = []
    for path in sorted(sources.rglob("*.md")):
        page = pages / path.relative_to(sources).with_suffix(".html")
        shows = any(line in path.read_text(encoding="utf-8") for line in ("\nplt.show()\n", "\nagent.plot_history()\n"))
        if (
            shows
            and page.exists()
            and not re.search(r'<img[^>]*src="[^"]*_images/[0-9a-f]{32,}', page.read_text("utf-8"))
        ):
            found.append(str(path.relative_to(sources)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, build, check; one line for what is wrong."""
    parser = argparse.ArgumentParser(prog="docs/build.py", description="Build the documentation.")
    parser.add_argument("--out", type=Path, default=HERE / "_build", help="folder of the pages, docs/_build by default")
    parser.add_argument("sphinx", nargs="*", help="options of sphinx-build, behind --")
    options = parser.parse_args(arguments)
    if reason := unwritable(options.out):
        return fail(f"{options.out} cannot be written: {reason}; choose another folder with --out")
    if missing := missing_packages():
        return fail(f'the documentation needs {", ".join(missing)}: run `make docs`, or pip install -e ".[docs]"')
    pages = options.out.resolve() / "html"  # beside it myst-nb leaves its notebooks
    shutil.rmtree(HERE / "reference" / "generated", ignore_errors=True)  # pages of names that are gone
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html", *options.sphinx]
    done = subprocess.run([*command, str(HERE), str(pages)], env=os.environ | {"NO_COLOR": "1"}, check=False)
    if done.returncode:
        return fail("the documentation was not built: sphinx says above why")
    if loads := foreign_loads(pages):
        return fail(f"pages would load {len(loads)} things from elsewhere, the first in {loads[0]}")
    if "nb_execution_mode=off" not in options.sphinx and (bare := without_pictures(HERE, pages)):
        return fail(f"programs show figures that pages do not have: {', '.join(bare)}")
    print(f"documentation: {pages / 'index.html'}")
    return 0


def fail(message: str) -> int:
    """Print one line, and return the exit code."""
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
