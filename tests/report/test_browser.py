"""The page of an evaluation in a real browser, on screens of several widths, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import browser
from tests.report.evaluations import rendered


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    path = browser.find()
    if path is None:
        pytest.skip("there is no chromium: run `make browser` to install it")
    with browser.running(path) as opened:
        yield opened


SHOWN = ["plain", "one input", "discrete", "many inputs", "alike", "nasty names", "off policy"]


@pytest.mark.parametrize("name", SHOWN)
def test_browser_shows_the_page(chromium: browser.Browser, name: str, tmp_path: Path):
    path = tmp_path / "index.html"
    path.write_text(rendered(name), encoding="utf-8")
    for width in (360, 390, 1200) if name == "plain" else (360, 1200):
        seen = chromium.open(path, width=width)
        assert seen.errors == [] and seen.requests == []
        assert seen.width == width >= seen.scroll_width, width
        assert seen.outside == [] and seen.clipped == []
        assert all(seen.pictures)
        assert len(seen.drawings) >= 4 and all(w > 0.7 * min(width, 480) and h > 80 for w, h in seen.drawings)


def test_browser_shows_light_and_dark(chromium: browser.Browser, tmp_path: Path):
    path = tmp_path / "index.html"
    path.write_text(rendered("plain"), encoding="utf-8")
    for dark in (False, True):
        seen = chromium.open(path, width=1200, dark=dark)
        assert (luminance(seen.background) < 0.1) == dark
        for colour in [seen.ink, *seen.labels]:
            assert contrast(colour, seen.background) > 4.5


def test_browser_finds_faults(chromium: browser.Browser, tmp_path: Path):
    """A control: the checks above fail on a bad page."""
    path = tmp_path / "bad.html"
    path.write_text(
        '<!doctype html><body style="margin: 0"><p id="far" style="width: 500px">far</p>'
        '<img src="data:image/png;base64,AAAA"><img src="http://127.0.0.1:9/x.png"><svg width="20" height="20">'
        '<text x="15" y="15">clipped</text></svg><script>console.error("oh")</script>'
    )
    seen = chromium.open(path, width=360)
    assert seen.scroll_width == 500 and seen.outside == ["far"] and seen.clipped == ["clipped"]
    assert seen.pictures == [False, False] and seen.requests == ["http://127.0.0.1:9/x.png"]
    assert any("oh" in error for error in seen.errors)


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(…)``, as WCAG defines it."""
    rgb = np.array([int(part) for part in re.findall(r"\d+", colour)][:3]) / 255
    linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)
