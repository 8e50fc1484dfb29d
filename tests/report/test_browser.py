"""The page of an evaluation in a real browser, on screens of several widths, light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from tests import browser
from tests.report.evaluations import rendered


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    path = browser.find()
    if path is None:
        pytest.skip("there is no chromium: run `make browser` to install it")
    with browser.running(path) as opened:
        yield opened


SHOWN = [
    "plain",
    "recorded",
    "without frames",
    "one input",
    "discrete",
    "many inputs",
    "alike",
    "nasty names",
    "off policy",
]


@pytest.mark.parametrize("name", SHOWN)
def test_browser_shows_the_page(chromium: browser.Browser, name: str, tmp_path: Path):
    path = tmp_path / "index.html"
    path.write_text(rendered(name), encoding="utf-8")
    for width in (360, 390, 1200) if name in ("plain", "recorded") else (360, 1200):
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


@pytest.fixture
def watched(chromium: browser.Browser, tmp_path: Path) -> browser.Browser:
    """The page with recordings, opened."""
    path = tmp_path / "index.html"
    path.write_text(rendered("recorded"), encoding="utf-8")
    chromium.open(path, width=1200)
    return chromium


STATE = """(() => {
  const find = selector => document.querySelector('#player ' + selector);
  return {
    moment: +find('input').value,
    text: find('input').getAttribute('aria-valuetext'),
    picture: find('img').src,
    cursor: +find('figure:not([hidden]) .cursor').getAttribute('x1'),
    numbers: [...document.querySelectorAll('#player dd')].map(e => e.textContent),
    play: find('.play').getAttribute('aria-label'),
    pressed: [...document.querySelectorAll('.tabs button')].map(b => b.getAttribute('aria-pressed')),
    hidden: [...document.querySelectorAll('#player figure')].map(f => f.hidden),
  };
})()"""


def test_player_by_keyboard(watched: browser.Browser):
    episodes = json.loads(watched.run("document.getElementById('episodes').textContent"))["episodes"]
    start = watched.run(STATE)
    assert start["moment"] == 0 and start["hidden"] == [False, True, True]
    watched.run("document.querySelector('.play').focus()")
    watched.press("Tab")
    assert watched.run("document.activeElement.type") == "range"
    assert watched.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # focus is visible
    for _ in range(3):
        watched.press("ArrowRight")
    later = watched.run(STATE)
    assert later["moment"] == 3 and later["text"] == "step 3 of the best episode"
    assert later["picture"] != start["picture"] and later["picture"].endswith(episodes[0]["frames"][1])
    assert later["cursor"] == episodes[0]["x"][3] > start["cursor"] == episodes[0]["x"][0]
    assert later["numbers"] == episodes[0]["values"][3] != start["numbers"]
    watched.press("ArrowLeft")
    assert watched.run(STATE)["moment"] == 2
    watched.press("End")
    assert watched.run(STATE)["numbers"] == episodes[0]["values"][-1]
    watched.run("document.querySelectorAll('.tabs button')[2].focus()")
    watched.press("Enter")
    worst = watched.run(STATE)
    assert worst["pressed"] == ["false", "false", "true"] and worst["hidden"] == [True, True, False]
    assert worst["moment"] == 0 and worst["numbers"] == episodes[2]["values"][0]
    watched.press("ArrowRight")  # wherever the focus is in the player
    assert watched.run(STATE)["moment"] == 1
    assert watched.said() == ([], [])


def test_player_plays_and_pauses(watched: browser.Browser):
    watched.run("document.querySelector('#player input').focus()")
    watched.press(" ")
    assert watched.run(STATE)["play"] == "Pause"
    reached = (
        "new Promise(done => { const look = () => +document.querySelector('#player input').value >= %d ? done(true) : "
        "setTimeout(look, 5); look(); })"
    )
    assert watched.run(reached % 3)
    watched.press(" ")
    paused = watched.run(STATE)
    assert paused["play"] == "Play" and paused["moment"] >= 3
    watched.press(" ")
    last = watched.run("+document.querySelector('#player input').max")
    assert watched.run(reached % last) and watched.run(STATE)["play"] == "Play"  # it stops at the end
    assert watched.said() == ([], [])


def test_player_follows_the_pointer(watched: browser.Browser):
    box = watched.run(
        "(() => { const s = document.querySelector('#player svg'); s.scrollIntoView(); const b = "
        "s.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
    )
    watched.click(box[0] + 0.6 * box[2], box[1] + 0.5 * box[3])
    moment, cursor = (watched.run(STATE)[key] for key in ("moment", "cursor"))
    assert moment > 1 and cursor == pytest.approx(0.6 * 324, abs=12)


def test_points_under_the_pointer_and_by_keyboard(watched: browser.Browser):
    place = watched.run(
        "(() => { const c = document.querySelector('[aria-label^=\"Predicted\"] .points circle'); c.scrollIntoView("
        "{block: 'center'}); const b = c.getBoundingClientRect(); return [b.left + 4, b.top + 4]; })()"
    )
    tip = "(() => { const t = document.querySelector('.tip'); return t.hidden ? '' : t.textContent; })()"
    assert watched.run(tip) == ""
    watched.move(*place)
    words = watched.run(tip).split("\n")
    assert words[0].startswith("cart position ") and "pole angular velocity" in words[0]
    assert words[1].startswith("V ") and "95 % interval" in words[1]
    assert words[2].startswith("critic ") and words[3].startswith("means of 200 rollouts ")
    assert watched.run("document.querySelectorAll('.points .on').length") == 1
    watched.move(1, 1)
    assert watched.run(tip) == ""
    group = "document.querySelector('[aria-label^=\"Predicted\"] .points')"
    watched.press("Tab")  # the browser now takes the keyboard for what the reader uses
    watched.run(f"{group}.focus()")
    first = watched.run(tip)
    watched.press("ArrowRight")
    second = watched.run(tip)
    assert first and second and first != second
    box = watched.run("(() => { const b = document.querySelector('.tip').getBoundingClientRect(); return [b.left, "
                      "b.right]; })()")  # fmt: skip
    assert box[0] >= 0 and box[1] <= 1200
    watched.press("Escape")
    assert watched.run(tip) == ""


def test_figures_can_be_saved(watched: browser.Browser, tmp_path: Path):
    folder = tmp_path / "saved"
    folder.mkdir()
    watched.save_downloads(folder)
    n_figures = watched.run("document.querySelectorAll('figure > svg').length")
    assert watched.run("document.querySelectorAll('.save button').length") == 2 * n_figures
    for i in range(2):
        watched.run(
            f"document.querySelector('[aria-label=\"Map of the value\"] + .save button:nth-child({i + 1})').click()"
        )
        watched.wait_for_download()
    drawing = (folder / "map-of-the-value.svg").read_text(encoding="utf-8")
    root = ET.fromstring(drawing)
    assert root.tag.endswith("svg") and "var(" not in drawing and "aria-label=" in drawing and "circle" not in drawing
    assert drawing.count("data:image/png;base64,") >= 1 and "value V" in drawing
    with Image.open(folder / "map-of-the-value.png") as picture:
        assert picture.size[0] == 4 * 324
        colours = picture.convert("RGB").getcolors(1 << 24) or []
        assert len(colours) > 50 and max(colours)[1] == (255, 255, 255)  # the map, on white paper
    assert watched.said() == ([], [])


def test_tables_that_scroll_have_a_shadow(chromium: browser.Browser, tmp_path: Path):
    path = tmp_path / "index.html"
    path.write_text(rendered("plain"), encoding="utf-8")

    def darkest_at_the_edge(width: int) -> tuple[int, bool]:
        chromium.open(path, width=width)
        top, right, scrolls = chromium.run(
            "(() => { const t = [...document.querySelectorAll('.wide')].at(-1), b = t.getBoundingClientRect(); return "
            "[b.top + scrollY, b.right, t.scrollWidth > t.clientWidth]; })()"
        )
        chromium.screenshot(tmp_path / "shot.png", 12, width, int(top) + 14)
        with Image.open(tmp_path / "shot.png") as shot:
            edge = shot.convert("L").crop((int(right) - 3, 0, int(right) - 1, 12))
            return int(np.asarray(edge).min()), scrolls

    at_390, scrolls = darkest_at_the_edge(390)
    assert scrolls and at_390 < 235
    at_1200, scrolls = darkest_at_the_edge(1200)
    assert not scrolls and at_1200 == 255


def test_foreign_scripts_do_not_run(chromium: browser.Browser, tmp_path: Path):
    """A control for escaping: even a script inside the page does not run, and nothing can be sent."""
    path = tmp_path / "index.html"
    hostile = '<script>document.title = "owned"; fetch("http://127.0.0.1:9/")</script><img src="http://127.0.0.1:9/x">'
    path.write_text(rendered("one input").replace("<main>", f"<main>{hostile}"), encoding="utf-8")
    seen = chromium.open(path, width=800)
    assert chromium.run("document.title") == "A2C on CartPole-v1"
    assert len(seen.errors) >= 2 and all("Content Security Policy" in error for error in seen.errors)
    assert chromium.run("document.querySelectorAll('.save').length") > 0  # our own does


def luminance(colour: str) -> float:
    """Relative luminance of ``rgb(…)``, as WCAG defines it."""
    rgb = np.array([int(part) for part in re.findall(r"\d+", colour)][:3]) / 255
    linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    high, low = sorted([luminance(one), luminance(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)
