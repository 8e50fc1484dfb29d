"""The README is run: its code must work, and print what it says it prints; its numbers are those of result files.

Its Python blocks run in their order, in one namespace and an empty folder. A text block right behind a Python block is
what that prints. The numbers in "Three numbers" are compared, one by one, with what `figures` computes.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
INSIDE = r"((?:(?!```).)*)"
BLOCK = re.compile(rf"```python\n{INSIDE}```(?:\n\n```text\n{INSIDE}```)?", re.DOTALL)


# Programs


def assert_same_text(ours: str, page: str) -> None:
    """The same words, and nearly the same numbers."""
    for our_line, page_line in zip(ours.strip().splitlines(), page.strip().splitlines(), strict=True):
        assert NUMBER.sub("#", our_line).split() == NUMBER.sub("#", page_line).split()
        for a, b in zip(NUMBER.findall(our_line), NUMBER.findall(page_line), strict=True):
            assert abs(float(a) - float(b)) <= max(0.011, 0.02 * abs(float(b))), (our_line, page_line)


def test_python_blocks_run_and_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(README)
    assert any(printed for _, printed in blocks)  # at least one program shows what it prints
    namespace: dict[str, Any] = {}
    for program, printed in blocks:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program, "README.md", "exec"), namespace)
        if printed:
            assert_same_text(output.getvalue(), printed)
    torch.set_num_threads(threads)
    assert {path.name for path in tmp_path.iterdir()} == {"page", "agent.gptd"}


def test_blocks_are_found_with_their_outputs():
    page = "```python\na\n```\n\n```python\nb\n```\n\n```text\nc\n```\n\n```python\nd\n```\n"
    assert BLOCK.findall(page) == [("a\n", ""), ("b\n", "c\n"), ("d\n", "")]
    assert len(BLOCK.findall(README)) == README.count("```python")


@pytest.mark.parametrize("page", ["V = 1.2", "V = 1.0\nmore", "W = 1.0"])
def test_another_output_is_noticed(page: str):
    assert_same_text("V = 1.0\n", "V = 1.005\n")
    with pytest.raises((AssertionError, ValueError)):
        assert_same_text("V = 1.0\n", page)


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_no_placeholder_is_left():
    assert not re.search(r"@|TODO|[A-Z]+_[A-Z]+", re.sub(r"`[^`]*`", "", README))


# Numbers


def stored(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def error_ratios(rival: str) -> list[float]:
    """RMSE of GPTD over that of a rival, means over seeds, one for each task.

    As in the benchmark, an error below a hundredth of the spread of V counts as that much: nobody needs less.
    """
    found = stored("selection.json")
    errors: dict[tuple[str, str], list[float]] = {}
    for row in found["scores"]:
        score = dict(zip(found["columns"], row, strict=True))
        errors.setdefault((score["task"], score["contestant"]), []).append(max(score["rmse"], 0.01 * score["spread"]))
    tasks = dict.fromkeys(task for task, _ in errors)
    return [float(np.mean(errors[task, "GPTD"]) / np.mean(errors[task, rival])) for task in tasks]


def figures() -> Iterator[float]:
    """The numbers of the section, in its order."""
    for rival in ("LSTD", "sklearn GPR"):
        ratios = error_ratios(rival)
        if rival == "LSTD":
            yield len(ratios)
        yield float(np.exp(np.mean(np.log(ratios))))
    coverage = stored("coverage.json")
    yield 100 * coverage["levels"][-1]
    for system in ("walk", "ring", "garnet"):
        yield 100 * coverage["instruments"][system]["coverage"][-1]
    learning, steps = stored("policy_iteration/ours.json"), "1000"
    yield float(steps)
    for task in ("CartPole-v1", "Acrobot-v1", "CartPoleSwingUp"):
        served = [run["served"][steps] for run in learning[task]["runs"]]
        yield sum(one["attained"] for one in served)
        yield len(served)
        if task == "CartPole-v1":
            yield float(np.mean([one["mean"] for one in served]))
            yield 500.0  # the longest episode


def printed_numbers(page: str) -> list[str]:
    """Numbers of the section, as they are printed: "1 000" is one."""
    (section,) = re.findall(r"## Three numbers\n(.*?)\n## ", page, re.DOTALL)
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)|`[^`]*`", "", section, flags=re.DOTALL)
    return NUMBER.findall(re.sub(r"(?<=\d) (?=\d{3}\b)", "", text))


def assert_numbers(page: str) -> None:
    for number, value in zip(printed_numbers(page), figures(), strict=True):
        assert number == f"{value:.{len(number.partition('.')[2])}f}"


def test_numbers_are_those_of_the_result_files():
    assert_numbers(README)


@pytest.mark.parametrize(("right", "wrong"), [("0.75 ×", "0.74 ×"), ("8 of 10", "9 of 10"), ("(mean", "(now 3; mean")])
def test_another_number_is_noticed(right: str, wrong: str):
    assert right in README
    with pytest.raises((AssertionError, ValueError)):
        assert_numbers(README.replace(right, wrong))


# Links


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "GLOSSARY.md"])
def test_links_lead_to_files(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in link]
    assert not [link for link in links if not (ROOT / link).exists()]
