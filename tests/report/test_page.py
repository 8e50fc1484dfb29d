"""The page of an evaluation: what it says, that it is whole, and how a real browser shows it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptd_rl
from gptd_rl import GPTD, Trajectories
from gptd_rl.evaluation.results import (
    Check,
    Disagreement,
    Evaluation,
    Interval,
    OffPolicy,
    Relevance,
    Score,
    Setting,
    StartReturn,
    Timing,
)
from gptd_rl.report import figures, page
from gptd_rl.report.html import number
from gptd_rl.report.slices import Slice
from tests import browser

GAMMA = 0.98
INPUTS = ("cart position", "cart velocity", "pole angle", "pole angular velocity")
SHARES = np.linspace(0.05, 0.95, 19)


# Made-up evaluations


@functools.cache
def cartpole() -> tuple[GPTD, Trajectories, Trajectories]:
    """A small model of a simple policy, its data, and episodes it has not seen."""
    rng = np.random.default_rng(0)

    def balance(obs):
        return int(obs[2] + 0.4 * obs[3] > 0) if rng.random() < 0.3 else int(rng.integers(2))

    data = gptd_rl.collect("CartPole-v1", balance, n_transitions=700, gamma=GAMMA, seed=0)
    fresh = gptd_rl.collect("CartPole-v1", balance, n_episodes=20, gamma=GAMMA, seed=100)
    return GPTD(kernel="ard", objective="thinned", thinning=8, random_state=0).fit(data), data, fresh


def critic(states: np.ndarray) -> np.ndarray:
    return 30 - 20 * np.abs(states[:, min(2, states.shape[1] - 1)])


def check_of(value: Any, data: Trajectories, n: int = 120, with_critic: bool = True) -> Check:
    """Predictions beside observations, which are made up around them."""
    rng = np.random.default_rng(1)
    some = np.linspace(0, len(data) - 1, n).astype(int)
    states = data.states[some]
    predicted = value.predict(states)
    lower, upper = value.confidence_interval(states)
    observed = predicted + 0.5 * (upper - lower) / 1.96 * rng.normal(size=n)
    theirs = critic(states) if with_critic else None
    names = ["GPTD", "Monte Carlo"] if theirs is None else ["GPTD", "A2C's critic", "Monte Carlo"]
    scores = [
        Score(name, 1.234 * 3**i, -0.321 * i, 1.5 + i, (0.51, 0.79, 0.942 - 0.2 * i), 2.5)
        for i, name in enumerate(names)
    ]
    reliability = {name: SHARES ** (1.05 + i) for i, name in enumerate(names)}
    episodes = data.segment_of[some]
    errors = np.full(n, 0.05)
    return Check(
        "rollouts", states, observed, errors, episodes, predicted, lower, upper, theirs, SHARES, reliability,
        tuple(scores), 200,
    )  # fmt: skip


def make(value: Any = None, data: Trajectories | None = None, inputs=INPUTS, with_critic=True, **changes) -> Evaluation:
    """An evaluation; `changes` are to its fields."""
    v, cart, fresh = cartpole()
    value, seen, held_out = (v, cart, fresh) if value is None else (value, data, data)
    assert seen is not None and held_out is not None
    d = seen.n_dims
    strengths = np.array([10.0 ** (1 - 1.5 * i) for i in (2, 1, 0, 3)] if d == 4 else 10.0 ** -np.arange(d) + 1e-9)
    removed = tuple(int(i) for i in np.flatnonzero(strengths < 1e-3))
    kept = tuple(i for i in range(d) if i not in removed)
    relevance = Relevance("ard", strengths, None, None, kept, removed, -2345.6, -2344.9, 2000)
    check = check_of(value, held_out, min(120, len(held_out)), with_critic)
    found = [
        Disagreement(tuple(float(x) for x in s), float(p + 9), float(p), float(p - 2), float(p + 2), float(o))
        for s, p, o in zip(check.states[:6], check.predicted[:6], check.observed[:6], strict=True)
    ]
    evaluation = Evaluation(
        setting=Setting("A2C", "CartPole-v1", GAMMA, True, seen.n_transitions, seen.n_segments,
                        int(seen.terminated.sum()), inputs, inputs[0] == "state 0", 7, {"GPTD": 1.0}),
        start=StartReturn(Interval(31.42, 30.87, 31.97), Interval(59.7, 48.2, 71.2), 59.7, 27.1, 22),
        relevance=relevance,
        check=check,
        disagreements=tuple(found) if with_critic else (),
        off_policy=None,
        value=value,
        critic=critic if with_critic else None,
        data=seen,
        warnings=(),
        timing=Timing(3.2, 11.8, 7.4),
    )  # fmt: skip
    return replace(evaluation, **changes)


@functools.cache
def small(d: int, one_hot: bool = False, terminated: bool = True) -> tuple[GPTD, Trajectories]:
    """A random walk in d dimensions, or over d discrete states."""
    rng = np.random.default_rng(d)

    def episode() -> dict[str, Any]:
        states = np.cumsum(rng.normal(size=(12, d)), axis=0)
        states = np.eye(d)[rng.integers(d - 2, size=12)] if one_hot else states
        return dict(observations=states, rewards=-np.abs(states[1:, 0]) - 1, terminated=terminated)

    data = Trajectories.from_episodes([episode() for _ in range(8)], gamma=0.9)
    return GPTD(kernel="isotropic", random_state=0).fit(data), data


def isotropic(d: int) -> Relevance:
    return Relevance("isotropic", np.full(d, 0.7), None, None, tuple(range(d)), (), -99.0, -99.0, 88)


def one_input() -> Evaluation:
    return make(*small(1), inputs=("position",))


def discrete() -> Evaluation:
    return make(*small(12, True), inputs=tuple(f"state {i}" for i in range(12)), relevance=isotropic(12))


def many_inputs() -> Evaluation:
    names = tuple(f"joint_{i}_of_the_left_front_leg_angular_velocity_in_the_world_frame" for i in range(30))
    return make(*small(30), inputs=names)


def factor() -> Evaluation:
    u = np.array([[0.1, 0.2, 0.8, 0.55], [0.0, -0.95, 0.3, 0.0]])
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    relevance = replace(make().relevance, kernel="factor", directions=u, direction_strengths=np.array([8.0, 0.4]))
    return make(relevance=relevance)


def without_numbers() -> Evaluation:
    """All that can be missing is."""
    nan = float("nan")
    plain = make()
    scores = tuple(Score(s.name, nan, nan, nan, (nan, nan, nan), nan) for s in plain.check.scores)
    unseen = np.full(len(plain.check.observed), nan)
    relevance = replace(plain.relevance, strengths=np.array([nan, 1.0, 0.0, nan]), evidence=nan, pruned_evidence=nan)
    return replace(
        plain,
        start=StartReturn(Interval(nan, nan, nan), None, nan, nan, 0),
        check=replace(plain.check, scores=scores, observed=unseen, critic=unseen),
        relevance=relevance,
        disagreements=tuple(replace(d, observed=nan) for d in plain.disagreements),
        timing=Timing(nan, nan, nan),
    )


def unchecked() -> Evaluation:
    """Nothing was held out, and no episode terminated."""
    value, data = small(3, terminated=False)
    plain = make(value, data, inputs=("a", "b", "c"))
    none = np.zeros(0)
    check = Check(
        "returns", np.zeros((0, 3)), none, none, np.zeros(0, np.int64), none, none, none, None, SHARES, {}, (), 0
    )
    return replace(plain, check=check, disagreements=(), start=replace(plain.start, returns=None, n_episodes=1))


def off_policy() -> Evaluation:
    warning = "The two policies differ at 34 % of the states: intervals may be too narrow."
    return make(off_policy=OffPolicy("PPO", 500, 0.34, 0.12, warning))


def warned() -> Evaluation:
    return make(warnings=("Only 9 episodes were complete.", "The kernel is <smooth> & V may jump."))


def nasty_names() -> Evaluation:
    names = ("<script>x</script>", "a & b", "quo\"te's $x^2$", "速度 ☃")
    plain = make(inputs=names)
    return replace(plain, setting=replace(plain.setting, agent="<b>A&B</b>", env="<img src=x>"))


VARIANTS = {
    "plain": make,
    "no critic": lambda: make(with_critic=False),
    "one input": one_input,
    "discrete": discrete,
    "many inputs": many_inputs,
    "factor": factor,
    "without numbers": without_numbers,
    "unchecked": unchecked,
    "off policy": off_policy,
    "warned": warned,
    "nasty names": nasty_names,
}


# The page as text


@functools.cache
def rendered(name: str) -> str:
    return page.render(VARIANTS[name]())


class Tags(HTMLParser):
    """What a page refers to, its ids, and whether each tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.references += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset") and v]
        self.references += [u for _, v in attrs for u in re.findall(r"url\(([^)]*)\)", v or "")]
        self.ids += [v for k, v in attrs if k == "id" and v]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, with plain spaces."""
        return re.sub(r"\s+", " ", "".join(self.texts))


@pytest.mark.parametrize("name", VARIANTS)
def test_page_is_whole_and_needs_nothing_from_elsewhere(name: str):
    tags = Tags(rendered(name))
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    for reference in tags.references:
        inside = reference.startswith("#") and reference[1:] in tags.ids
        assert inside or reference.startswith("data:image/png;base64,") or reference == "evaluation.json", reference
    assert "http" not in rendered(name)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in tags.tags}
    assert len(rendered(name)) < 2_500_000
    assert "nan" not in tags.text.replace("nant", "").split()
    assert "mathdefault" not in rendered(name)


@pytest.mark.parametrize("name", VARIANTS)
def test_page_is_accessible(name: str):
    tags = Tags(rendered(name))
    assert ("html", {"lang": "en"}) in tags.tags
    assert all(attributes.get("aria-label") for tag, attributes in tags.tags if tag == "svg")
    assert all(attributes.get("scope") for tag, attributes in tags.tags if tag == "th")
    assert all(attributes.get("aria-label") for _, attributes in tags.tags if attributes.get("role") == "region")
    kinds = [tag for tag, _ in tags.tags]
    assert kinds.count("svg") == kinds.count("figcaption") >= 3
    assert kinds.count("table") == kinds.count("caption")
    assert kinds.count("h1") == kinds.count("main") == kinds.count("title") == 1


def test_summary_says_the_numbers():
    text = Tags(rendered("plain")).text
    assert text.startswith(" A2C on CartPole-v1 γ = 0.98 · 700 transitions · 11 episodes, 10 of them")
    summary = text[: text.index("How good is the policy")]
    for words in (
        "the most likely action · seed 7",
        "31.42 95 % interval 30.87 to 31.97",
        "60 95 % interval 48 to 71",
        "the mean of 22 complete episodes",
        "says 60 ± 27 of the same episodes",
        "The intervals are honest here: 95 % intervals held 94 % of 120 fresh values (85 % to 100 % can be chance",
        "GPTD misses by 1.23 (RMSE), A2C's critic by 3.70 and Monte Carlo by 11.1.",
        "94 % of fresh values inside the 95 % intervals",
        "120 states of 20 episodes",
        "What matterspole anglePruning keeps 3 of 4 inputs.",
    ):
        assert words in summary, words
    for words in (
        "goes from −2 346 to −2 345: the simpler model",
        "leaves out pole angular velocity.",
        "fitting 11.8 s",
    ):
        assert words in text, words


def test_what_a_variant_changes():
    text = {name: Tags(rendered(name)).text for name in VARIANTS}
    assert "Before you believe it" not in text["plain"] and "Another policy" not in text["plain"]
    assert "Before you believe itOnly 9 episodes were complete.The kernel is <smooth> & V may jump." in text["warned"]
    assert "where is the critic wrong" in text["plain"] and "the critic" not in text["no critic"].split("How this")[0]
    assert text["off policy"].startswith(" PPO on CartPole-v1, from data of A2C")
    assert "the two chose different actions at 34 %. On average their actions are 12 % of" in text["off policy"]
    assert "Return of an episode of the target" in text["off policy"]
    assert "The two policies differ at 34 % of the states: intervals may be too narrow." in text["off policy"]
    assert "0.80 pole angle + 0.55 pole angular velocity + 0.20 cart velocity" in text["factor"]
    assert "all 12 inputs alike" in text["discrete"] and "Value of each state that was visited" in text["discrete"]
    assert "and 18 more" in text["many inputs"] and "The 10 least relevant are not shown" in text["many inputs"]
    assert "Of 30 inputs the 6 most relevant are shown." in text["many inputs"]
    assert "cannot be said from 0 held-out episodes" in text["unchecked"] and "Nothing was checked" in text["unchecked"]
    assert "the only complete episode brought 59.7" in text["unchecked"]
    assert "8 episodes, 0 of them to a terminal state" in text["unchecked"]
    assert "Value from the start—" in text["without numbers"] and "none was complete" in text["without numbers"]
    assert "closer to the model at 0 of 0" not in text["without numbers"]


def test_names_are_escaped():
    content = rendered("nasty names")
    assert "<script" not in content and "<img" not in content and "<b>" not in content
    text = Tags(content).text
    assert "<b>A&B</b> on <img src=x>" in text
    drawings = Tags("<p>" + "".join(re.findall("<svg.*?</svg>", content, flags=re.DOTALL)) + "</p>").text
    for name in ("<script>x</script>", "a & b", "quo\"te's $x^2$", "速度 ☃"):
        assert name in text and name in drawings, name


def test_command_and_state_names_are_shown():
    command = "gptd-rl evaluate --agent 'a<b.zip'"
    assert f"Made by {command}." in Tags(page.render(one_input(), command)).text
    assert "Made by" not in Tags(rendered("one input")).text


def test_table_says_whom_rollouts_proved_right():
    states = [Disagreement((float(i),), 9.0, 5.0, 4.0, 6.0, seen) for i, seen in enumerate((5.5, 8.5, float("nan")))]
    text = Tags(page.render(replace(one_input(), disagreements=tuple(states)))).text
    assert "At 3 states critic and model differ" in text and "closer to the model at 1 of 2." in text
    for row in ("9.05.04.0 to 6.05.5GPTD", "9.05.04.0 to 6.08.5critic", "9.05.04.0 to 6.0——"):
        assert row in text, row


# What is drawn


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[Any, ...]]]:
    """Arguments of each function that draws."""
    calls: dict[str, list[tuple[Any, ...]]] = {}

    def watch(name: str) -> None:
        draw = getattr(figures, name)

        def recorded(*args, **options):
            calls.setdefault(name, []).append(args)
            return draw(*args, **options)

        monkeypatch.setattr(figures, name, recorded)

    for name in ("plot_map", "plot_histogram", "plot_section", "plot_states"):
        watch(name)
    return calls


def test_maps_show_value_doubt_and_gap(drawn: dict[str, list[tuple[Any, ...]]]):
    evaluation = make()
    page.render(evaluation)
    (value, extent, dots, names), (doubt, *_), (gap, *_) = drawn["plot_map"]
    assert names == ("pole angle", "cart velocity")
    states = Slice.of(evaluation.data.states, np.eye(4)[[2, 1]]).states(len(value))
    np.testing.assert_allclose(value.ravel(), evaluation.value.predict(states))
    lower, upper = evaluation.value.confidence_interval(states)
    np.testing.assert_allclose(doubt.ravel(), (upper - lower) / 2)
    np.testing.assert_allclose(gap.ravel(), critic(states) - value.ravel())
    left, right, bottom, top = extent
    assert (dots >= [left - 1e-9, bottom - 1e-9]).all() and (dots <= [right + 1e-9, top + 1e-9]).all()
    ((values, starts),) = drawn["plot_histogram"]
    data = evaluation.data
    np.testing.assert_allclose(values, evaluation.value.predict(np.delete(data.states, data.last, axis=0)))
    np.testing.assert_allclose(starts, evaluation.value.predict(data.states[data.starts]))


def test_section_and_states(drawn: dict[str, list[tuple[Any, ...]]]):
    evaluation = one_input()
    page.render(evaluation)
    ((x, mean, lower, upper, visited, name),) = drawn["plot_section"]
    np.testing.assert_allclose(mean, evaluation.value.predict(x[:, None]))
    np.testing.assert_allclose([lower, upper], evaluation.value.confidence_interval(x[:, None]))
    np.testing.assert_allclose(visited, evaluation.data.states[:, 0])
    assert name == "position"
    evaluation = discrete()
    page.render(evaluation)
    ((names, mean, _, _),) = drawn["plot_states"]
    assert names == [f"state {i}" for i in range(10)]  # two were never visited
    np.testing.assert_allclose(mean, evaluation.value.predict(np.eye(12)[:10]))


def test_a_wild_critic_does_not_squash_the_model():
    x = np.linspace(0.0, 1.0, 9)
    plain = figures.plot_predictions(x, x, x - 1, x + 1, None).get_ylim()
    ax = figures.plot_predictions(x, x, x - 1, x + 1, 1e6 * (x - 0.5))
    assert ax.get_ylim() == plain
    marks = np.concatenate([line.get_ydata() for line in ax.get_lines() if line.get_label() == "critic"])
    assert marks.min() == plain[0] and marks.max() == plain[1]


def test_long_names_lose_their_middle():
    assert figures.short("a" * 22) == "a" * 22
    assert figures.short("abcdefghij" * 3) == "abcdefghija…abcdefghij"


@pytest.mark.parametrize(
    ("value", "width", "shown"),
    [
        (-0.0004, 1.0, "0.0"),
        (-1234.5, 100.0, "−1\u202f234"),
        (12.3456, 0.5, "12.35"),
        (12.3456, float("nan"), "12.3"),
        (0.0, None, "0"),
        (1e-9, 2.0, "0.0"),
        (-2.5e8, None, "−2.50 × 10⁸"),
    ],
)
def test_numbers(value: float, width: float | None, shown: str):
    assert number(value, width) == shown


# Whether intervals are honest


def verdict(coverage: tuple[float, float, float], n_episodes: int) -> tuple[str, str]:
    check = make().check
    first = replace(check.scores[0], coverage=coverage)
    episodes = np.arange(len(check.observed)) % n_episodes
    return page.verdict(replace(check, scores=(first, *check.scores[1:]), episodes=episodes))


@pytest.mark.parametrize(
    ("coverage", "n_episodes", "mark"),
    [
        ((0.50, 0.80, 0.95), 20, "honest"),
        ((0.50, 0.80, 0.87), 20, "honest"),  # 17 of 20 episodes are no surprise
        ((0.50, 0.80, 0.87), 100, "narrow"),  # 87 of 100 are
        ((0.20, 0.80, 0.95), 20, "narrow"),
        ((0.50, 0.80, 1.00), 20, "honest"),
        ((0.50, 0.80, 1.00), 100, "wide"),
        ((0.95, 1.00, 1.00), 20, "wide"),
        ((0.95, 1.00, 0.50), 20, "narrow"),  # the worse of two faults
        ((0.50, 0.80, 0.95), 4, "unknown"),
        ((0.50, 0.80, float("nan")), 20, "unknown"),
    ],
)
def test_verdict(coverage: tuple[float, float, float], n_episodes: int, mark: str):
    said, sentence = verdict(coverage, n_episodes)
    assert said == mark
    words = dict(honest="honest here", narrow="too narrow", wide="wider than", unknown="cannot be said")
    assert words[mark] in sentence


def test_verdict_names_the_level_that_fails():
    assert "50\u202f% intervals held 95\u202f%" in verdict((0.95, 1.0, 1.0), 20)[1]
    assert "95\u202f% intervals held 70\u202f%" in verdict((0.5, 0.8, 0.7), 20)[1]


def test_chance_holds_what_it_promises():
    held = np.random.default_rng(0).binomial(30, 0.8, size=20_000) / 30
    (low,), (high,) = page.chance(np.array([0.8]), 30)
    assert 0.95 <= ((held >= low) & (held <= high)).mean() < 0.98
    assert (held < low).mean() <= 0.025 and (held > high).mean() <= 0.025


def test_comparison_says_who_is_closer():
    plain = one_input()
    scores = tuple(replace(s, rmse=r) for s, r in zip(plain.check.scores, (2.0, 1.0, 3.0), strict=True))
    text = Tags(page.render(replace(plain, check=replace(plain.check, scores=scores)))).text
    assert "GPTD misses by 2.00 (RMSE), A2C's critic by 1.00 and Monte Carlo by 3.00: A2C's critic is closer" in text


# Slices


def test_slice_lies_on_its_axes_and_near_the_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    states = np.stack([5 + 10 * x, -2 * x + 0.01 * rng.normal(size=300), rng.normal(size=300)], axis=1)
    sliced = Slice.of(states, np.eye(3)[[0, 2]])
    grid = sliced.states(8)
    left, right, bottom, top = sliced.extent()
    np.testing.assert_allclose([left, right], [states[:, 0].min(), states[:, 0].max()])
    np.testing.assert_allclose(grid[:8, 0], np.linspace(left, right, 8))  # the first axis runs fastest
    np.testing.assert_allclose(grid[:8, 2], bottom)
    np.testing.assert_allclose(grid[::8, 2], np.linspace(bottom, top, 8))
    near = -0.2 * (grid[:, 0] - 5)  # what the second input is where the first is that
    assert np.abs(grid[:, 1] - near).mean() < 0.5 * np.abs(near).mean()
    dots = sliced.dots()
    np.testing.assert_allclose(dots, states[:, [0, 2]])
    np.testing.assert_allclose(sliced.ticks(1, 5), np.linspace(bottom, top, 5))


def test_slice_along_directions():
    states = np.random.default_rng(0).normal(size=(50, 3)) * [1.0, 5.0, 0.1] + 3
    axes = np.array([[0.6, 0.8, 0.0], [0.0, 0.6, -0.8]])  # not at right angles
    sliced = Slice.of(states, axes)
    along = (sliced.states(4) - np.median(states, axis=0)) / states.std(axis=0) @ axes.T
    left, right, bottom, top = sliced.extent()
    np.testing.assert_allclose(along[:4, 0], np.linspace(left, right, 4))
    np.testing.assert_allclose(along[::4, 1], np.linspace(bottom, top, 4))


def test_slice_of_a_constant_input():
    states = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(Slice.of(states, np.eye(2)).extent(), [0.5, 1.5, 0.0, 2.0], atol=1e-12)


# Writing


def test_write_leaves_two_files(tmp_path: Path):
    evaluation = without_numbers()
    path = evaluation.write(tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "index.html"
    assert sorted(p.name for p in path.parent.iterdir()) == ["evaluation.json", "index.html"]
    assert path.read_text(encoding="utf-8") == rendered("without numbers")  # the same again

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads((path.parent / "evaluation.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["start"]["value"]["estimate"] is None and content["check"]["scores"][0]["rmse"] is None
    assert content["setting"]["inputs"] == list(INPUTS)
    assert "−" not in (path.parent / "evaluation.json").read_text(encoding="utf-8")


def test_write_over_an_older_page(tmp_path: Path):
    (tmp_path / "index.html").write_text("old")
    one_input().write(tmp_path)
    assert (tmp_path / "index.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(page, "render", fail)
    (tmp_path / "index.html").write_text("old")
    with pytest.raises(OSError, match="disk is full"):
        one_input().write(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "old"


def test_unwritable_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        one_input().write(tmp_path / "file" / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_settings_of_the_user_stay_as_they_are():
    import matplotlib as mpl

    plain = rendered("one input")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert page.render(one_input()) == plain
        assert mpl.rcParams["font.size"] == 30


def test_import_draws_nothing():
    code = "import sys, gptd_rl, gptd_rl.evaluation.results; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# In a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    path = browser.find_or_install()
    if path is None:
        pytest.skip("no chromium here, and it could not be installed (that takes root, Debian and a network)")
    with browser.running(path) as opened:
        yield opened


SHOWN = ["plain", "one input", "discrete", "many inputs", "factor", "nasty names", "off policy"]


@pytest.mark.parametrize("name", SHOWN)
def test_browser_shows_it(chromium: browser.Browser, name: str, tmp_path: Path):
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


def test_browser_would_notice(chromium: browser.Browser, tmp_path: Path):
    """The other tests could pass because nothing was looked at."""
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
