"""The page and the summary of a comparison: what they say, and what a browser shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gptd_rl.report.comparison_page import render
from tests import browser
from tests.report.comparisons import made_up

NASTY = ["<b>a</b> $x$", "a name that is much longer than any column of a table or legend of a plot"]
CASES: dict[str, dict[str, Any]] = {
    "two": dict(names=["old", "new"]),
    "seven": dict(names=[f"{n} steps" for n in range(1000, 8000, 1000)]),
    "one input": dict(names=["old", "new"], inputs=["x"]),
    "many inputs": dict(names=NASTY, inputs=[f"joint {i} of the <left> leg" for i in range(30)]),
    "discrete": dict(names=["old", "new"], inputs=[f"state {i}" for i in range(6)], is_categorical=True),
    "without copies": dict(names=["old", "new"], kind="models"),
    "equal": dict(names=["old", "new"], gap=0.0),
    "interrupted": dict(names=["old", "new"], with_states=False),
    "rough": dict(names=["old", "new"], rough=True),
}


def rendered(name: str) -> str:
    return render(made_up(**CASES[name]), "gptd-rl compare old.zip new.zip")


@pytest.mark.parametrize("name", CASES)
def test_page_shows_every_comparison(name: str):
    page = rendered(name)
    assert "A limit of &lt;this&gt; comparison." in page and "<b>a</b>" not in page
    assert "gptd-rl compare old.zip new.zip" in page
    assert ('id="states"' in page) == (name != "interrupted")
    assert ('id="importances"' in page) == (name != "discrete")
    assert ("There is no map" in page) == (name in ("rough", "equal"))


def test_page_says_who_is_better():
    page = rendered("two")
    assert "new is better than old: old − new = −" in page and "from the same 30 start states" in page
    equal = rendered("equal")
    assert "Neither is credibly better" in equal and "At none of these states is the difference credible" in equal
    seven = rendered("seven")
    assert "7000 steps has the highest value, from the same 30 start states. It is credibly better than" in seven
    assert "for all pairs, because the best agent is chosen by the same rollouts" in seven


def test_summary_says_the_same():
    text = made_up(**CASES["two"]).summary()
    assert "new is better than old: old − new = −" in text and "old: variance lost without angle 60" in text
    assert "Of 40 states, old is credibly better at" in text and "warning: A limit of <this> comparison." in text
    assert "variance lost" not in made_up(**CASES["discrete"]).summary()


def test_write_is_complete(tmp_path: Path):
    found = made_up(["old", "new"])
    page = found.write(tmp_path / "new", "gptd-rl compare")
    numbers = json.loads((page.parent / "comparison.json").read_text())
    assert numbers["differences"][0]["value"]["estimate"] == found.differences[0].value.estimate
    assert [agent["name"] for agent in numbers["agents"]] == ["old", "new"]


def test_browser_shows_the_comparison(tmp_path: Path):
    chromium = browser.find()
    if chromium is None:
        pytest.skip("there is no chromium: run `make browser` to install it")
    with browser.running(chromium) as opened:
        for name in ("seven", "many inputs", "one input"):
            path = tmp_path / "index.html"
            path.write_text(rendered(name), encoding="utf-8")
            for width in (390, 1280):
                seen = opened.open(path, width=width)
                assert seen.errors == [] and seen.requests == []
                assert seen.width == width >= seen.scroll_width, (name, width)
                assert seen.outside == [] and seen.clipped == [], (name, width)
