"""Page injection: hostile names of agents, environments and inputs stay text, on the page and in the terminal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gptd_rl.report import html, page, scripts
from gptd_rl.report.provenance import Provenance
from gptd_rl.report.records import OffPolicy
from gptd_rl.report.summary import as_text, summary
from tests.adversarial.harness import Attack, Category, pick
from tests.report.evaluations import Tags, in_gridworld, one_input, recorded

PIECES = [
    *("<script>alert(1)</script>", "</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "<!--"),
    *("</style>", "</title>", "</main></body>", "]]>", "<![CDATA[", "&lt;", "&#60;script&#62;", "&", "'", '"', "<"),
    *("javascript:alert(1)", "http://example.org", "url(//x)", "{{7*7}}", "${x}", "$\\frac{1}{2}$", "$x^2", "$", "\\"),
    *("\x00", "\x1b[31m", "\n", "\r", "\t", "\u202e", "\ufeff", "[red]", "[/]", "[link=x]", "速度 ☃"),
]  # fmt: skip


def hostile(rng: np.random.Generator) -> str:
    return "".join(pick(rng, PIECES) for _ in range(rng.integers(1, 4)))


def names(tags: Tags) -> list[str]:
    """The tags but for lines of text in plots: a name may have several."""
    return [tag for tag, _ in tags.tags if tag != "text"]


def kinds(tags: Tags) -> set[tuple[str, frozenset[str]]]:
    """Tags with the names of their attributes; lines of text in plots have a place of their own."""
    place = {"style", "transform", "x", "y"}
    return {(tag, frozenset(names) - (place if tag == "text" else set())) for tag, names in tags.tags} | {
        ("text", frozenset())
    }


def complaint_about(text: str, plain: Tags) -> str | None:
    """What a page has that it would not have with plain names."""
    try:
        tags = Tags(text)
    except (AssertionError, IndexError):
        return "a name closes a tag"
    if tags.open:
        return f"a name opens a tag: {tags.open}"
    if names(tags) != names(plain):
        return "a name makes tags"
    if re.findall(r"<script>.*?</script>", text, flags=re.DOTALL) not in ([], [scripts.element()]):
        return "a name changes the script"
    if any(name.startswith("on") for _, attributes in tags.tags for name in attributes):
        return "a name makes an attribute that runs"
    if kinds(tags) != kinds(plain):
        return f"a name makes attributes: {kinds(tags) ^ kinds(plain)}"
    spoken = {v for _, attributes in tags.tags for k, v in attributes.items() if k == "aria-label"}
    used = [r for r in tags.references if not any(f"url({r})" in (text or "") for text in spoken)]
    inside = ("#", "data:image/png;base64,", "data:image/webp;base64,", "evaluation.json")
    outside = [r for r in used if not r.startswith(inside)]
    return f"a name makes a reference {outside[0]!r}" if outside else None


def whole_page(evaluation: Any, plain: Tags, rng: np.random.Generator) -> str | None:
    config = replace(evaluation.config, agent=hostile(rng), env=hostile(rng), inputs=(hostile(rng),))
    other = OffPolicy(hostile(rng), 500, 0.34, 0.12, hostile(rng))
    recordings = replace(evaluation.recordings, note=hostile(rng))
    made = replace(evaluation, config=config, warnings=(hostile(rng),), off_policy=other, recordings=recordings)
    provenance = Provenance(hostile(rng), hostile(rng), {hostile(rng): hostile(rng)})
    return complaint_about(page.render(made, provenance), plain)


def blocks(rng: np.random.Generator) -> str | None:
    """Parts of pages."""

    def made(name: str) -> str:
        cells = html.table([name, name], [[name, name]], caption=name, named_rows=True)
        return html.document(name, [cells, html.figure("<svg></svg>", name)])

    return complaint_about(made(hostile(rng)), Tags(made("plain")))


def data_of_script(rng: np.random.Generator) -> str | None:
    """Data for the script of the page end where they should, and come back as they were."""
    content = {hostile(rng): [hostile(rng), 1.5]}
    element = scripts.data("data", content)
    if len(Tags(element).tags) != 1 or element.lower().count("</script") != 1 or "<!--" in element:
        return "a text ends the data of the script"
    found = json.loads(element[element.index(">") + 1 : element.rindex("<")])
    return None if found == content else "the data of the script change a text"


def in_terminal(rng: np.random.Generator) -> str | None:
    """The summary in a terminal has no escape sequence, and no markup of rich is taken for one."""
    evaluation = in_gridworld()
    names = tuple(hostile(rng) for _ in range(8))
    config = replace(evaluation.config, agent=hostile(rng), env=hostile(rng), inputs=names)
    text = as_text(summary(replace(evaluation, config=config, warnings=(hostile(rng),))), 100)
    return "an escape sequence reaches the terminal" if "\x1b" in text else None


def prepare(folder: Path) -> Attack:
    evaluation = recorded(value=one_input().value, data=one_input().data, inputs=("position",))
    plain_off = OffPolicy("PPO", 500, 0.34, 0.12, "few data")
    recordings = replace(evaluation.recordings, note="no pictures")
    filled = replace(evaluation, warnings=("few data",), off_policy=plain_off, recordings=recordings)
    plain = Tags(page.render(filled, Provenance("today", "gptd-rl", {"gptd-rl": "0"})))

    def attack(rng: np.random.Generator) -> str | None:
        kind = rng.random()
        if kind < 0.1:
            return whole_page(evaluation, plain, rng)
        if kind < 0.5:
            return blocks(rng)
        return data_of_script(rng) if kind < 0.7 else in_terminal(rng)

    return attack


CATEGORY = Category("page injection", prepare, 0.02)
