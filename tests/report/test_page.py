"""The page of an evaluation: its texts, completeness and files."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gptd_rl
from gptd_rl.estimators.exclusions import Cost
from gptd_rl.estimators.importances import Importances
from gptd_rl.report import page, scripts
from gptd_rl.report.numbers import percent
from gptd_rl.report.provenance import Provenance
from gptd_rl.report.records import Disagreement
from gptd_rl.report.summary import as_text, summary
from tests.report.evaluations import INPUTS, VARIANTS, Tags, make, one_input, recorded, rendered, without_numbers


@pytest.mark.parametrize("name", VARIANTS)
def test_render_is_complete_and_needs_no_network(name: str):
    tags = Tags(rendered(name))
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    for reference in tags.references:
        inside = reference.startswith("#") and reference[1:] in tags.ids
        data = reference.startswith(("data:image/png;base64,", "data:image/webp;base64,"))
        assert inside or data or reference == "evaluation.json", reference
    assert "http" not in rendered(name).replace("http-equiv", "")
    assert not {"link", "iframe", "object"} & {tag for tag, _ in tags.tags}
    own = [attributes for tag, attributes in tags.tags if tag == "script"]
    recordings = [{"type": "application/json", "id": "episodes"}] if name in ("recorded", "without frames") else []
    assert own == [*recordings, {}] and f"<script>{scripts.EVALUATION}</script>" in rendered(name)
    assert len(rendered(name)) < 2_500_000
    assert "nan" not in tags.text.replace("nant", "").split()
    assert "mathdefault" not in rendered(name)


@pytest.mark.parametrize("name", VARIANTS)
def test_render_is_accessible(name: str):
    tags = Tags(rendered(name))
    assert ("html", {"lang": "en"}) in tags.tags
    assert all(attributes.get("aria-label") for tag, attributes in tags.tags if tag == "svg")
    assert all(attributes.get("scope") for tag, attributes in tags.tags if tag == "th")
    assert all(attributes.get("aria-label") for _, attributes in tags.tags if attributes.get("role") == "region")
    kinds = [tag for tag, _ in tags.tags]
    assert kinds.count("svg") == kinds.count("figcaption") >= 3
    assert kinds.count("table") == kinds.count("caption")
    assert kinds.count("h1") == kinds.count("main") == kinds.count("title") == 1


def test_render_starts_with_the_summary():
    text = Tags(rendered("plain")).text
    assert text.startswith(" A2C on CartPole-v1 γ = 0.98 · 700 transitions · 11 episodes, 10 of them terminated")
    summary = text[: text.index("How good is the policy")]
    for words in (
        "most likely actions · seed 7",
        "31.42 95 % interval 30.87 to 31.97",
        "60 95 % interval 48 to 71",
        "mean of 22 complete episodes",
        "reports 60 ± 27 for the same episodes",
        "The intervals are calibrated: 95 % intervals contain 94 % of 120 fresh values (85 % to 100 % are within",
        "RMSE: GPTD 1.23, A2C's critic 3.70 and Monte Carlo 11.1.",
        "94 % of fresh values inside the 95 % intervals",
        "120 states of 20 episodes",
        "Observations that matterpole angle 32 %Share of the value’s variance that is lost without the input.",
        "1 of 4 inputs irrelevant.",
    ):
        assert words in summary, words
    for words in (
        "Irrelevant: pole angular velocity. Less than 1 % of the value’s variance depends on it. Without it the",
        "evidence (log marginal likelihood of 600 transitions) changes from −2 345.60 to −2 344.90, and left-out",
        "fitting 11.8 s",
    ):
        assert words in text, words


def test_render_shows_each_variant():
    text = {name: Tags(rendered(name)).text for name in VARIANTS}
    for name, phrases in {
        "warned": ["Limits of this evaluationOnly 9 episodes were complete.The kernel is <smooth> & V may jump."],
        "plain": ["where is the critic wrong"],
        "off policy": [
            "PPO on CartPole-v1, from data of A2C",
            "the two policies chose different actions at 34 %. The mean difference of their actions is 12 % of",
            "Return of an episode of the target policy",
            "The two policies differ at 34 % of the states: intervals may be too narrow.",
        ],
        "alike": [
            "cart velocity 20 %, cart position 10 % Share".replace("% Share", "%Share"),
            "pole angle and pole angular velocity carry the same information: either can be left out, not both.",
            "No input is irrelevant.",
        ],
        "discrete": ["all 12 categories", "Value of each visited state"],
        "many inputs": [
            "and 18 more",
            "The 10 least important inputs are not shown",
            "The 6 most important of 30 inputs are shown.",
        ],
        "unchecked": [
            "no verdict on the intervals from 0 held-out episodes",
            "Nothing was checked",
            "the only complete episode has return 59.7",
            "8 episodes, 0 of them terminated",
        ],
        "without numbers": ["Value of the start states—", "there is none"],
    }.items():
        for phrase in phrases:
            assert phrase in text[name], (name, phrase)
    assert text["off policy"].startswith(" PPO on CartPole-v1")
    assert "Limits of this evaluation" not in text["plain"] and "Off-policy" not in text["plain"]
    assert "the critic" not in text["no critic"].split("How this page")[0]
    assert "closer to fresh rollouts at 0 of 0" not in text["without numbers"]


@pytest.mark.parametrize(
    ("upper", "cost", "sentence"),
    [
        (
            0.4,
            Cost(455.2, 0.0, 0.1),
            "The value is nearly linear in pole angular velocity, so the relevance is small, but",
        ),
        (
            0.001,
            Cost(455.2, 0.0, 0.1),
            "Less than 1 % of the value’s variance is lost without pole angular velocity, but",
        ),
        (0.001, Cost(0.0, 0.3, 0.01), "without it the squared error at left-out episodes grows, by 30 % of the"),
    ],
    ids=["linear", "small effect", "left-out episodes"],
)
def test_an_input_that_is_wanted_is_said_to_be(upper, cost, sentence):
    plain = make()
    found = plain.relevance
    effects = found.importances.total_effects.copy()
    effects[3] = upper
    importances, costs = Importances(effects, effects, effects), (*found.costs[:3], cost)
    relevance = replace(found, importances=importances, costs=costs, irrelevant=(), irrelevant_cost=None)
    text = Tags(page.render(replace(plain, relevance=relevance))).text
    assert sentence in text and "No input is irrelevant." in text and "inputs irrelevant." not in text
    assert ("without it the evidence decreases by 455 nats" in text) == (cost.evidence > 0)


def test_cards_bars_table_and_terminal_have_the_same_numbers():
    evaluation = make()
    found, names = evaluation.relevance, evaluation.config.inputs
    text, terminal = Tags(page.render(evaluation)).text, as_text(summary(evaluation), 200)
    for i in range(4):
        share = percent(float(found.importances.total_effects[i])).replace("\u202f", " ")
        assert f"{names[i]} {share}" in terminal.replace("\u202f", " ")
        assert f"{names[i]}{share}" in text
    assert "+0.7" in text  # evidence without the irrelevant one, in the table


def test_render_escapes_names():
    content = rendered("nasty names")
    assert content.count("<script") == 1 and "<img" not in content and "<b>" not in content
    text = Tags(content).text
    assert "<b>A&B</b> on <img src=x>" in text
    drawings = Tags("<p>" + "".join(re.findall("<svg.*?</svg>", content, flags=re.DOTALL)) + "</p>").text
    for name in ("<script>x</script>", "a & b", "quo\"te's $x^2$", "速度 ☃"):
        assert name in text and name in drawings, name


def test_render_shows_the_command():
    command = "gptd-rl evaluate --agent 'a<b.zip'"
    made = Provenance("2026-02-01 13:05 UTC", command, {"gptd-rl": "0.2.0", "Python": "<3.11>"})
    text = Tags(page.render(one_input(), made)).text
    assert f"Made on 2026-02-01 13:05 UTC by {command}. gptd-rl 0.2.0 · Python <3.11>" in text
    assert "Made on" not in Tags(rendered("one input")).text


def test_render_lists_disagreements():
    states = [Disagreement((float(i),), 9.0, 5.0, 4.0, 6.0, seen) for i, seen in enumerate((5.5, 8.5, float("nan")))]
    text = Tags(page.render(replace(one_input(), disagreements=tuple(states)))).text
    assert "The table below lists the largest differences, one per episode." in text
    for row in ("9.05.04.0 to 6.05.5GPTD", "9.05.04.0 to 6.08.5critic", "9.05.04.0 to 6.0——"):
        assert row in text, row


def test_render_counts_disagreements_over_all_states():
    plain = make()
    check = plain.check
    assert check.critic is not None
    outside = (check.critic < check.lower) | (check.critic > check.upper)
    closer = np.abs(check.predicted - check.observed) <= np.abs(check.critic - check.observed)
    n, n_closer = int(outside.sum()), int((outside & closer).sum())
    assert n > len(plain.disagreements) == 6  # more than the table lists
    assert (check.n_disagreements, check.closer_model()) == (n, (n_closer, n))
    assert plain.as_json()["n_disagreements"] == n
    sentence = f"At {n} of 120 states checked the critic is outside the model’s 95 % interval; the model is closer to "
    assert f"{sentence}fresh rollouts at {n_closer} of these {n}. The table" in Tags(rendered("plain")).text
    inside = replace(check, critic=check.predicted)
    assert inside.n_disagreements == 0
    text = Tags(page.render(replace(plain, check=inside, disagreements=()))).text
    assert "At all 120 states checked, the critic is inside" in text
    assert replace(check, critic=None).n_disagreements == 0


def test_render_shows_recordings():
    content = rendered("recorded")
    tags = Tags(content)
    assert "Highest return of 10 fresh episodes: " in tags.text and "pictures" not in tags.text
    (found,) = re.findall('<script type="application/json" id="episodes">(.*?)</script>', content)
    data = json.loads(found)
    recordings = recorded().recordings
    for episode, recording in zip(data["episodes"], recordings.episodes, strict=True):
        k = len(recording.steps)
        assert len(episode["x"]) == len(episode["values"]) == len(episode["frame"]) == k
        assert episode["x"] == sorted(episode["x"]) and episode["frame"] == [i // 2 for i in range(k)]
        assert [base64.b64decode(one) for one in episode["frames"]] == [f.data for f in recording.frames]
        assert episode["values"][0][0] == "0" and episode["values"][-1][2] == "—"  # V of a terminal state is not shown
        assert {len(row) for row in episode["values"]} == {6 + len(INPUTS)}
    without = rendered("without frames")
    assert "The episodes have no pictures: there is <no> pygame." in Tags(without).text
    assert "<img" not in without and 'id="player"' in without
    assert 'id="player"' not in rendered("plain")


def test_as_json_has_recordings_without_frames():
    content = recorded().as_json()
    json.dumps(content, allow_nan=False)
    episodes = content["recordings"]["episodes"]
    assert [e["name"] for e in episodes] == ["best", "typical", "worst"]
    assert "frames" not in episodes[0] and episodes[0]["predicted"][-1] is None


@pytest.mark.parametrize("name", ["plain", "one input", "discrete", "many inputs"])
def test_points_say_their_state(name: str):
    evaluation = VARIANTS[name]()
    drawings = re.findall("<svg.*?</svg>", rendered(name), flags=re.DOTALL)
    said = {}
    for drawing in drawings:
        tags = Tags(drawing)
        label = tags.tags[0][1]["aria-label"]
        said[label] = [attributes["aria-label"] for tag, attributes in tags.tags if tag == "circle"]
    predictions = said["Predicted against observed values"]
    assert len(predictions) == len(evaluation.check.states)
    inputs = evaluation.config.inputs
    shown = {"discrete": r"state \d+", "many inputs": r"joint_.* and 24 more"}.get(name, f"{inputs[0]} .*")
    pattern = rf"{shown}\nV \S+, 95 % interval \S+ to \S+\ncritic \S+\nmeans of 200 rollouts \S+"
    assert all(re.fullmatch(pattern, text or "") for text in predictions)
    where = {"one input": "Value along one input with its interval as a band",
             "discrete": "Value of each visited state with its interval"}.get(name, "Map of the value")  # fmt: skip
    assert len(said[where]) > 5 and all("95 % interval" in (text or "") for text in said[where])


def test_render_names_the_smallest_error():
    plain = one_input()
    scores = tuple(replace(s, rmse=r) for s, r in zip(plain.check.scores, (2.0, 1.0, 3.0), strict=True))
    text = Tags(page.render(replace(plain, check=replace(plain.check, scores=scores)))).text
    assert "RMSE: GPTD 2.00, A2C's critic 1.00 and Monte Carlo 3.00; A2C's critic is closer." in text


def test_write_leaves_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    evaluation = without_numbers()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    path = evaluation.write(tmp_path / "new" / "folder", "gptd-rl")
    assert path == tmp_path / "new" / "folder" / "index.html"
    assert sorted(p.name for p in path.parent.iterdir()) == ["evaluation.json", "index.html"]
    made = Provenance.now("gptd-rl")
    assert made.time == "2001-09-09 01:46 UTC"
    assert path.read_text(encoding="utf-8") == page.render(evaluation, made)  # the same again

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads((path.parent / "evaluation.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["start"]["value"]["estimate"] is None and content["check"]["scores"][0]["rmse"] is None
    assert content["config"]["inputs"] == list(INPUTS)
    assert content["made"]["command"] == "gptd-rl" and content["made"]["versions"]["gptd-rl"] == gptd_rl.__version__
    assert "−" not in (path.parent / "evaluation.json").read_text(encoding="utf-8")


def test_write_replaces_an_older_page(tmp_path: Path):
    (tmp_path / "index.html").write_text("old")
    one_input().write(tmp_path)
    assert (tmp_path / "index.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_write_leaves_nothing_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(page, "render", fail)
    (tmp_path / "index.html").write_text("old")
    with pytest.raises(OSError, match="disk is full"):
        one_input().write(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "old"


def test_write_to_an_unwritable_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        one_input().write(tmp_path / "file" / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_render_ignores_and_keeps_rcparams():
    import matplotlib as mpl

    plain = rendered("one input")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert page.render(one_input()) == plain
        assert mpl.rcParams["font.size"] == 30


def test_evaluation_results_import_no_matplotlib():
    code = "import sys, gptd_rl, gptd_rl.evaluation.results; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_render_says_whether_the_observations_tell_all():
    plain = make()
    assert "Nothing speaks against the observations telling all that matters" in Tags(page.render(plain)).text
    hidden = replace(plain, markov=replace(plain.markov, pvalue=1e-9))
    assert "the latest change of pole angle predicts rewards or next states better" in Tags(page.render(hidden)).text
