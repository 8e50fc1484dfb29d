"""The site: every public name has a place in the reference, equations have code, and bad input is one clear line."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gptd_rl

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"\.\. currentmodule:: (\S+)\n\n\.\. autosummary::\n   :toctree: generated\n\n((?:   \w+\n)+)")
PUBLIC = ("kernels", "envs", "agents", "evaluation", "sb3", "report.plots")


def program(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed() -> dict[str, set[str]]:
    """Module → names that pages of the reference list."""
    found: dict[str, set[str]] = {}
    for path in sorted((DOCS / "reference").glob("*.md")):
        for module, names in BLOCK.findall(path.read_text(encoding="utf-8")):
            found.setdefault(module, set()).update(names.split())
    return found


# The reference


def test_every_public_name_is_in_the_reference():
    objects = {getattr(importlib.import_module(module), name) for module, names in listed().items() for name in names}
    missing = [name for name in gptd_rl.__all__ if getattr(gptd_rl, name) not in objects]
    for folder in PUBLIC:
        module = importlib.import_module(f"gptd_rl.{folder}")
        missing += [f"{folder}.{name}" for name in module.__all__ if getattr(module, name) not in objects]
    exceptions = importlib.import_module("gptd_rl.exceptions")
    of_users = [c for _, c in inspect.getmembers(exceptions, inspect.isclass) if c.__module__ == exceptions.__name__]
    missing += [c.__name__ for c in of_users if c not in objects]
    assert not missing, f"add them to a page in docs/reference: {missing}"


def test_every_listed_name_exists_and_has_a_docstring():
    for module, names in listed().items():
        for name in names:
            assert inspect.getdoc(getattr(importlib.import_module(module), name)), f"{module}.{name}"


def test_every_autosummary_is_found():
    texts = [path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")]
    assert sum(len(BLOCK.findall(text)) for text in texts) == sum(text.count("autosummary::") for text in texts)


def test_every_plot_takes_axes_or_returns_a_figure():
    for name in ("plots", "charts"):
        module = importlib.import_module(f"gptd_rl.report.{name}")
        plots = [f for n, f in inspect.getmembers(module, inspect.isfunction) if n.startswith("plot_")]
        assert all("ax" in inspect.signature(f).parameters or f.__name__ == "plot_history" for f in plots)
        assert {f.__name__ for f in plots if f.__module__ == module.__name__} == listed()[module.__name__]


# What follows the code


def test_every_equation_has_code_and_every_citation_an_equation():
    equations = program(DOCS / "_ext" / "equations.py")
    assert set(equations.citations(ROOT)) == set(equations.EQUATIONS)


def test_a_citation_is_found_where_it_stands(tmp_path: Path):
    (tmp_path / "gptd_rl").mkdir()
    code = (
        'class A:\n    """No."""\n\n    def f(self):\n        """Does it."""\n        pass  # paper eqs. (3) and (7)\n'
    )
    (tmp_path / "gptd_rl" / "m.py").write_text(code)
    found = program(DOCS / "_ext" / "equations.py").citations(tmp_path)
    assert found == {3: [("gptd_rl.m.A.f", "Does it.")], 7: [("gptd_rl.m.A.f", "Does it.")]}


def test_the_command_line_is_complete():
    from gptd_rl.cli.main import COMMANDS

    page = program(DOCS / "_ext" / "command_line.py").page()
    assert [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith("## ")] == [
        command.__name__.rpartition(".")[2] for command in COMMANDS
    ]
    assert "| `--n-transitions N` |" in page


def test_layers_have_a_place_in_the_drawing():
    architecture = program(DOCS / "_ext" / "architecture.py")
    page = architecture.page(ROOT)
    assert [page.index(f"<b>{name}/</b>") for name in architecture.layers(ROOT)[1:]]


# The build


def test_pages_that_load_things_are_noticed(tmp_path: Path):
    build = program(DOCS / "build.py")
    (tmp_path / "good.html").write_text(
        '<a href="https://x.y"><img src="a.png"><link rel="canonical" href="https://x.y">'
    )
    (tmp_path / "good.css").write_text("a { background: url(a.png) }")
    assert build.foreign_loads(tmp_path) == []
    bad = [
        '<script async src="//x.y/z.js">',
        '<link href="https://x.y" rel="stylesheet">',
        "<img src='http://x.y/a.png'>",
    ]
    for tag in bad:
        (tmp_path / "bad.html").write_text(tag)
        assert len(build.foreign_loads(tmp_path)) == 1
    (tmp_path / "bad.html").write_text("")
    (tmp_path / "bad.css").write_text("@import url(https://x.y/a.css)")
    assert build.foreign_loads(tmp_path)


def test_pages_without_their_figure_are_noticed(tmp_path: Path):
    build = program(DOCS / "build.py")
    (tmp_path / "page.md").write_text("```\nplt.show()\n```")
    (tmp_path / "page.html").write_text('<img src="_images/evaluate.png">')
    assert build.without_pictures(tmp_path, tmp_path) == ["page.md"]
    (tmp_path / "page.html").write_text(f'<img src="_images/{"0f" * 32}.png">')
    assert build.without_pictures(tmp_path, tmp_path) == []


def test_missing_packages_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    build = program(DOCS / "build.py")
    monkeypatch.setattr(build, "missing_packages", lambda: ["furo", "sphinx"])
    assert build.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        'the documentation needs furo, sphinx: run `make docs`, or pip install -e ".[docs]"\n'
    )


def test_missing_packages_are_found():
    build = program(DOCS / "build.py")
    assert build.missing_packages(["numpy", "no_such_package"]) == ["no_such_package"]


def test_an_unwritable_folder_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    program_and_options = [sys.executable, str(DOCS / "build.py"), "--out", str(tmp_path / "file" / "pages")]
    done = subprocess.run(program_and_options, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r".*pages cannot be written: Not a directory; choose another folder with --out\n", done.stderr)
