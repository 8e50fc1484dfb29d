"""The README is run: its code must work, and print what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def test_the_first_program_prints_what_the_page_says():
    program, printed = re.search(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", README, re.DOTALL).groups()  # type: ignore[union-attr]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, "README.md", "exec"), {})
    ours, page = output.getvalue().strip().splitlines(), printed.strip().splitlines()
    assert [NUMBER.sub("#", line).split() for line in ours] == [NUMBER.sub("#", line).split() for line in page]
    for ours_line, page_line in zip(ours, page, strict=True):
        for a, b in zip(NUMBER.findall(ours_line), NUMBER.findall(page_line), strict=True):
            assert abs(float(a) - float(b)) <= max(0.011, 0.02 * abs(float(b))), (ours_line, page_line)


def test_no_placeholder_is_left():
    assert not re.search(r"@|TODO|[A-Z]+_[A-Z]+", re.sub(r"`[^`]*`", "", README))
