"""The README is run: its code must work, and print what it says it prints.

Its Python blocks run in their order, in one namespace and an empty folder. A block that names what only a reader has,
such as an agent of his own, stands behind a line ``<!-- not run -->``. A text block right behind a Python block is what
that prints.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
INSIDE = r"((?:(?!```).)*)"
BLOCK = re.compile(rf"(<!-- not run -->\s*)?```python\n{INSIDE}```(?:\n\n```text\n{INSIDE}```)?", re.DOTALL)


def assert_same_text(ours: str, page: str) -> None:
    """The same words, and nearly the same numbers."""
    for our_line, page_line in zip(ours.strip().splitlines(), page.strip().splitlines(), strict=True):
        assert NUMBER.sub("#", our_line).split() == NUMBER.sub("#", page_line).split()
        for a, b in zip(NUMBER.findall(our_line), NUMBER.findall(page_line), strict=True):
            assert abs(float(a) - float(b)) <= max(0.011, 0.02 * abs(float(b))), (our_line, page_line)


def test_python_blocks_run_and_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = [(program, printed) for marked, program, printed in BLOCK.findall(README) if not marked]
    assert any(printed for _, printed in blocks)  # at least one program shows what it prints
    namespace: dict[str, Any] = {}
    for program, printed in blocks:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program, "README.md", "exec"), namespace)
        if printed:
            assert_same_text(output.getvalue(), printed)


def test_blocks_are_found_with_their_marks_and_outputs():
    page = "<!-- not run -->\n```python\na\n```\n\n```python\nb\n```\n\n```text\nc\n```\n\n```python\nd\n```\n"
    found = [(bool(marked), program, printed) for marked, program, printed in BLOCK.findall(page)]
    assert found == [(True, "a\n", ""), (False, "b\n", "c\n"), (False, "d\n", "")]
    assert len(BLOCK.findall(README)) == README.count("```python")


@pytest.mark.parametrize("page", ["V = 1.2", "V = 1.0\nmore", "W = 1.0"])
def test_another_output_is_noticed(page: str):
    assert_same_text("V = 1.0\n", "V = 1.005\n")
    with pytest.raises((AssertionError, ValueError)):
        assert_same_text("V = 1.0\n", page)


def test_no_placeholder_is_left():
    assert not re.search(r"@|TODO|[A-Z]+_[A-Z]+", re.sub(r"`[^`]*`", "", README))
