"""The page of an evaluation: one HTML file with its pictures inside, which needs no network and no script."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gptd_rl.evaluation.results import LEVELS, Check, Disagreement, Evaluation, Interval, OffPolicy, Relevance, Score
from gptd_rl.report import figures, html
from gptd_rl.report.html import MISSING, number, percent
from gptd_rl.report.slices import Slice, some
from gptd_rl.types import Array

STYLE = """
:root { --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; --model: #0b5fa5;
  --critic: #b4530a; --other: #4d7c2a; --shade: #dfe9f3; --card: #f7f8fa; --good: #1d6f42; --bad: #a8320e;
  --alert: #fdf3e7; }
@media (prefers-color-scheme: dark) { :root { --model: #78b7f2; --critic: #f0a45c; --other: #a3cf7a; --shade: #26394d;
  --card: #1e2126; --good: #7fd1a0; --bad: #f79a76; --alert: #33281b; } }
body { font-family: var(--font); padding: 3rem 1.25rem 5rem; max-width: 62rem; }
p, li, dd, figcaption { max-width: 44rem; text-wrap: pretty; overflow-wrap: anywhere; }
.facts { max-width: none; margin: 0; }
h1 { font-size: clamp(1.7rem, 5vw, 2.5rem); letter-spacing: -.02em; margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { margin: 4.5rem 0 1rem; padding-bottom: .4rem; font-size: 1.35rem; letter-spacing: -.01em; line-height: 1.3; }
h3 { font-size: 1rem; }
.verdict { font-size: 1.15rem; margin: 1.8rem 0; padding-left: 1rem; border-left: 4px solid var(--faint); }
.verdict.honest { border-color: var(--good); } .verdict.narrow, .verdict.wide { border-color: var(--bad); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
.card { background: var(--card); border-radius: 12px; padding: 1.25rem 1.4rem; overflow-wrap: anywhere; }
.card h2 { margin: 0; padding: 0; border: 0; font-size: .82rem; font-weight: 600; color: var(--faint);
  letter-spacing: .02em; }
.card p { margin: .35rem 0 0; font-size: .92rem; } .card .big { font-size: 2.3rem; line-height: 1.2; font-weight: 650;
  letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.card .big small { font-size: 1rem; font-weight: 400; letter-spacing: 0; color: var(--faint);
  display: inline-block; line-height: 1.4; }
.card:first-child .big { font-size: 3rem; color: var(--model); } .card .words { font-size: 1.5rem; line-height: 1.35; }
.warnings { background: var(--alert); border-radius: 12px; padding: 1rem 1.4rem; margin: 1rem 0 0; }
.warnings h2 { margin: 0; padding: 0; border: 0; font-size: 1rem; color: var(--bad); }
.warnings p { margin: 0; } .warnings ul { margin: .4rem 0 0; padding-left: 1.2rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1.5rem 2.5rem;
  align-items: start; margin: 1.5rem 0; } .pair > * { min-width: 0; margin: 0; }
.pair > div > :first-child { margin-top: 0; }
figure svg { display: block; width: 100%; height: auto; max-width: 34rem; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
figcaption { margin-top: .6rem; line-height: 1.5; }
caption { text-align: left; color: var(--faint); padding-bottom: .5rem; }
caption span { display: inline-block; position: sticky; left: 0; max-width: min(44rem, 100vw - 2.5rem); }
table { width: 100%; } tbody th { font-weight: 600; } td, tbody th { white-space: nowrap; }
thead th { vertical-align: bottom; }
td, th { padding-right: 1.1rem; } .numbers td, .numbers thead th { text-align: right; }
td:last-child, th:last-child { padding-right: 0; } .named thead th:first-child { text-align: left; }
.wide { margin: 1.5rem 0; } .wide:focus-visible { outline: 2px solid var(--model); outline-offset: 4px; }
dt { font-weight: 600; } dd { margin: 0 0 .8rem; } code { overflow-wrap: anywhere; font-size: .9em;
  background: var(--card); padding: .1em .35em; border-radius: 4px; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } h2 { margin-top: 2rem; break-after: avoid; }
  figure, .card, .warnings, tr { break-inside: avoid; } .card, .warnings { border: 1px solid var(--line); }
  .pair, .cards { grid-template-columns: 1fr 1fr; } .wide { overflow: visible; } }
"""
FEWEST_EPISODES = 5  # held out; with fewer nothing can be said of intervals
MOST_BARS = 20
MOST_NAMES = 8  # in a sentence
MOST_STATES = 40  # of a discrete environment
MOST_COLUMNS = 6  # inputs in the table of states
N_MAP, N_SECTION = 40, 160  # points along an axis
N_VISITED = 2000

Mark = Literal["honest", "narrow", "wide", "unknown"]


def write(evaluation: Evaluation, folder: Path, command: str = "") -> Path:
    """Write ``index.html`` and ``evaluation.json`` into `folder`, and return the page's path.

    Nothing appears there before both are complete.

    Parameters
    ----------
    evaluation : Evaluation
    folder : Path
        Made if it is not there.
    command : str
        The command line that made it, to be shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as unfinished:
        numbers = json.dumps(evaluation.as_json(), ensure_ascii=False, indent=1, allow_nan=False)
        Path(unfinished, "evaluation.json").write_text(numbers + "\n", encoding="utf-8")
        Path(unfinished, "index.html").write_text(render(evaluation, command), encoding="utf-8")
        for name in ("evaluation.json", "index.html"):
            os.replace(Path(unfinished, name), folder / name)
    return folder / "index.html"


def render(evaluation: Evaluation, command: str = "") -> str:
    """The page as HTML."""
    with figures.page_style():
        body = [
            *_summary(evaluation),
            *_policy(evaluation),
            *_relevance(evaluation),
            *_belief(evaluation.check),
            *_maps(evaluation),
            *_disagreements(evaluation),
            *(_off_policy(evaluation.off_policy, evaluation.setting.agent) if evaluation.off_policy else []),
            *_making(evaluation, command),
        ]
    return html.document(_title(evaluation), ["<main>", *body, "</main>"], STYLE)


# -------------------------------------------------------------------------------------- summary


def verdict(check: Check) -> tuple[Mark, str]:
    """Whether the intervals can be believed, and a sentence that says so.

    States of one episode resemble each other. So coverage counts as unexpected only where it would be so if each
    held-out *episode* had been a single draw.
    """
    what, coverage = _observed(check), check.scores[0].coverage if check.scores else ()
    n = _n_episodes(check)
    if n < FEWEST_EPISODES or len(coverage) != len(LEVELS) or not np.isfinite(coverage).all():
        return "unknown", f"Whether the intervals are honest cannot be said from {_count(n, 'held-out episode')}."
    low, high = chance(np.array(LEVELS), n)
    wide, narrow = coverage - high, low - coverage
    mark: Mark = "narrow" if narrow.max() > 0 else "wide" if wide.max() > 0 else "honest"
    i = {"narrow": int(narrow.argmax()), "wide": int(wide.argmax()), "honest": len(LEVELS) - 1}[mark]
    held = f"{percent(LEVELS[i])} intervals held {percent(coverage[i])} of {len(check.observed)} fresh {what}"
    among = f"{percent(low[i])} to {percent(high[i])} can be chance with {n} episodes"
    return mark, {
        "honest": f"The intervals are honest here: {held} ({among}).",
        "narrow": f"The intervals are too narrow here: {held} ({among}). Take them for a lower bound of the doubt.",
        "wide": f"The intervals are wider than they had to be: {held} ({among}). Values are surer than they say.",
    }[mark]


def chance(shares: Array, n: int) -> tuple[Array, Array]:
    """Between which shares 95 % of counts among `n` fall by chance, if `shares` are the true ones."""
    return stats.binom.ppf(0.025, n, shares) / n, stats.binom.ppf(0.975, n, shares) / n


def _summary(evaluation: Evaluation) -> list[str]:
    setting = evaluation.setting
    mark, sentence = verdict(evaluation.check)
    facts = [
        f"γ = {setting.gamma:g}",
        _count(setting.n_transitions, "transition"),
        f"{_count(setting.n_episodes, 'episode')}, {setting.n_terminated} of them to a terminal state",
        "the most likely action" if setting.deterministic else "actions drawn at random from the policy",
        f"seed {setting.seed}",
    ]
    return [
        f"<h1>{escape(_title(evaluation))}</h1>",
        f'<p class="facts faint">{escape(" · ".join(facts))}</p>',
        f'<p class="verdict {mark}">{escape(" ".join([sentence, _comparison(evaluation.check.scores)]))}</p>',
        '<div class="cards">',
        _value_card(evaluation),
        _return_card(evaluation),
        _belief_card(evaluation.check),
        _relevance_card(evaluation),
        "</div>",
        *_warnings(evaluation),
    ]


def _title(evaluation: Evaluation) -> str:
    setting = evaluation.setting
    if evaluation.off_policy:
        return f"{evaluation.off_policy.target} on {setting.env}, from data of {setting.agent}"
    return f"{setting.agent} on {setting.env}"


def _comparison(scores: Sequence[Score]) -> str:
    """How far off the model is, beside the others."""
    known = [s for s in scores if np.isfinite(s.rmse)]
    if not known or known[0] is not scores[0]:
        return ""
    others = [f"{s.name} by {number(s.rmse)}" for s in known[1:]]
    best = min(known, key=lambda s: s.rmse)
    text = f"{known[0].name} misses by {number(known[0].rmse)} (RMSE)" + (f", {' and '.join(others)}" if others else "")
    return text + ("." if best is known[0] else f": {best.name} is closer here.")


def _card(title: str, big: str, *text: str, words: bool = False) -> str:
    """A card; `big` and `text` are HTML."""
    paragraphs = "".join(f"<p>{t}</p>" for t in text if t)
    kind = "big words" if words else "big"
    return f'<section class="card"><h2>{escape(title)}</h2><p class="{kind}">{big}</p>{paragraphs}</section>'


def _value_card(evaluation: Evaluation) -> str:
    value = evaluation.start.value
    return _card(
        "Value from the start",
        f"{number(value.estimate, _half(value))} <small>95 % interval {_range(value)}</small>",
        f"The discounted return to expect where episodes start (γ = {evaluation.setting.gamma:g}), averaged over the "
        "starts seen.",
    )


def _return_card(evaluation: Evaluation) -> str:
    start, mean = evaluation.start, evaluation.start.returns
    whose = " of the target" if evaluation.off_policy else ""
    title = f"Return of an episode{whose}"
    theirs = f"{number(start.mean, start.std)} ± {number(start.std, start.std)}"
    if mean is None:
        seen = f"the only complete episode brought {number(start.mean)}" if start.n_episodes else "none was complete"
        return _card(title, MISSING, f"At least two complete episodes are needed for an interval: {seen}.")
    return _card(
        title,
        f"{number(mean.estimate, _half(mean))} <small>95 % interval {_range(mean)}</small>",
        f"Undiscounted, the mean of {_count(start.n_episodes, 'complete episode')}. Stable-Baselines3’s "
        f"<code>evaluate_policy</code> says {theirs} of the same episodes: its ± is how much single episodes differ, "
        "while the interval says how well their mean is known, and shrinks with more of them.",
    )


def _belief_card(check: Check) -> str:
    if not check.scores:
        return _card("Can I believe it?", MISSING, "Nothing was checked.")
    coverage = check.scores[0].coverage
    errors = ", ".join(f"{escape(s.name)} {number(s.rmse)}" for s in check.scores)
    return _card(
        "Can I believe it?",
        f"{percent(coverage[-1])} <small>of fresh {_observed(check)} inside the 95 % intervals</small>",
        f"{_count(len(check.observed), 'state')} of {_count(_n_episodes(check), 'episode')} that no model has seen.",
        f"Typical error (RMSE): {errors}.",
    )


def _relevance_card(evaluation: Evaluation) -> str:
    relevance, names = evaluation.relevance, evaluation.setting.inputs
    n = len(names)
    if relevance.kernel == "isotropic" and n > 1:
        return _card(
            "What matters", f"all {n} inputs alike", "The data gives no reason to tell them apart.", words=True
        )
    if relevance.directions is not None and len(relevance.directions):
        words = escape(_formula(relevance.directions[0], names))
        return _card("What matters", words, "The combination of inputs along which the value changes most.", words=True)
    first = [
        figures.short(names[i], 40)
        for i in _ranked(relevance)
        if relevance.strengths[i] >= 0.1 * np.nanmax(relevance.strengths)
    ]
    kept = f"Pruning keeps {len(relevance.kept)} of {_count(n, 'input')}."
    more = f" and {len(first) - 3} more" if len(first) > 3 else ""
    return _card("What matters", escape(", ".join(first[:3]) + more) or MISSING, kept, words=True)


def _warnings(evaluation: Evaluation) -> list[str]:
    if not evaluation.warnings:
        return []
    items = "".join(f"<li>{escape(w)}</li>" for w in evaluation.warnings)
    return [f'<section class="warnings"><h2>Before you believe it</h2><ul>{items}</ul></section>']


# -------------------------------------------------------------------------------------- 1 the policy


_CROSSES = " Crosses at the edge are values of the critic that lie beyond it."


def _policy(evaluation: Evaluation) -> list[str]:
    data, check = evaluation.data, evaluation.check
    ongoing = np.delete(np.arange(len(data)), data.last)
    values = evaluation.value.predict(data.states[some(ongoing, N_VISITED)])
    starts = evaluation.value.predict(data.states[some(data.starts, 200)])
    shown = [
        _figure(
            figures.svg(figures.plot_histogram(values, starts), "values", "Histogram of the values of visited states"),
            "How good it is where the policy goes. Each bar is a share of the visited states, by the value the model "
            "gives them; orange ticks are states where episodes started. A hump far below the ticks means that the "
            "policy often gets into trouble from which it does not recover.",
        )
    ]
    seen = np.isfinite(check.observed) & np.isfinite(check.predicted)
    if seen.any():
        fresh = {0: "one return", 1: "one fresh run from the state"}.get(
            check.n_rollouts, f"the mean of {check.n_rollouts} fresh runs from the state"
        )
        critic = None if check.critic is None else check.critic[seen]
        observed, predicted, lower, upper = (
            a[seen] for a in (check.observed, check.predicted, check.lower, check.upper)
        )
        picture = figures.plot_predictions(observed, predicted, lower, upper, critic)
        shown.append(
            _figure(
                figures.svg(picture, "predictions", "Predicted against observed values"),
                f"Prediction against what happened ({fresh}), at states of held-out episodes. Bars are 95 % intervals: "
                "about 19 of 20 should reach the dashed diagonal. Many bars that do not reach it are a bad sign."
                f"{_CROSSES if critic is not None else ''}",
            )
        )
    return ['<h2 id="policy">How good is the policy from here?</h2>', *_pair(shown)]


# -------------------------------------------------------------------------------------- 2 what matters


def _relevance(evaluation: Evaluation) -> list[str]:
    relevance, names = evaluation.relevance, evaluation.setting.inputs
    order = _ranked(relevance)
    shown = order[:MOST_BARS]
    removed = [i for i, j in enumerate(shown) if j in relevance.removed]
    rest = f" The {len(order) - len(shown)} least relevant are not shown." if len(order) > len(shown) else ""
    bars = figures.plot_strengths([names[i] for i in shown], relevance.strengths[shown], removed)
    parts = [
        _figure(
            figures.svg(bars, "strengths", "Bars of the relevance of each input"),
            "How much the value depends on each input, within the range the policy sees; each step is a factor. "
            "Right of the dashed line (1) the value changes a lot across that range; below 0.001 it hardly notices the "
            f"input. Grey bars can be left out. It would be a bad sign if an input that must matter were grey.{rest}",
        )
    ]
    if relevance.directions is not None and len(relevance.directions):
        loadings = figures.plot_loadings([names[i] for i in shown], relevance.directions[:, shown])
        parts.append(
            _figure(
                figures.svg(loadings, "directions", "Bars of what each input adds to the relevant directions"),
                "Here combinations of inputs explain the rewards better than single ones. Bars show what each input, "
                "in units of its spread, adds to a combination; bars on opposite sides work against each other. The "
                f"value changes most along direction 1: {_formula(relevance.directions[0], names)}.",
            )
        )
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in _pruning(relevance, names))
    parts.append(f"<div>{text}</div>")
    return ['<h2 id="relevance">Which observations matter?</h2>', *_pair(parts)]


def _pruning(relevance: Relevance, names: Sequence[str]) -> list[str]:
    """What was selected, and what leaving inputs out costs."""
    kernel = {
        "isotropic": "The model that explains the rewards best treats all inputs alike.",
        "ard": "The model that explains the rewards best gives each input a relevance of its own.",
        "factor": "The model that explains the rewards best looks at combinations of inputs.",
    }[relevance.kernel]
    said = [f"{kernel} {_count(relevance.n_transitions, 'transition')} were compared."]
    if not relevance.removed:
        return [*said, "No input could be left out."]
    gone = ", ".join(names[i] for i in relevance.removed[:MOST_NAMES])
    more = len(relevance.removed) - MOST_NAMES
    said.append(f"Pruning leaves out {gone}{f' and {more} more' if more > 0 else ''}.")
    if np.isfinite(relevance.cost):
        says = (
            "the simpler model explains the rewards as well or better"
            if relevance.can_be_pruned
            else "a real loss, so it had better stay"
        )
        change = f"from {number(relevance.evidence, 10)} to {number(relevance.pruned_evidence, 10)}"
        said.append(f"The evidence (log marginal likelihood, higher is better) goes {change}: {says}.")
    return said


# -------------------------------------------------------------------------------------- 3 can I believe it


def _belief(check: Check) -> list[str]:
    parts = ['<h2 id="belief">Can I believe it?</h2>']
    n = _n_episodes(check)
    if not check.scores or not n:
        return [*parts, "<p>Nothing was checked: there were no held-out episodes.</p>"]
    diagram = figures.plot_reliability(check.shares, check.reliability, chance(check.shares, n))
    states = f"From each of {len(check.observed)} states the environment was run on"
    fresh = (
        f"{states} {check.n_rollouts} times; the mean return is what the intervals are held against. (As many states "
        "of other fresh episodes had a say in how wide they are, since returns are random here.)"
        if check.n_rollouts > 1
        else f"{states}; nothing is random here, so its return is the value."
        if check.n_rollouts == 1
        else "The environment cannot be continued from a state, so intervals are held against single returns, and "
        "include their noise."
    )
    held_out = f"All states here are of {_count(n, 'episode')} that were not used for learning. {fresh}"
    scores = (
        "RMSE is the typical error, bias its lopsided part (positive: too optimistic). NLPD scores value and interval "
        "together: lower is better, and a confident mistake costs most."
    )
    return [
        *parts,
        *_pair(
            [
                _figure(
                    figures.svg(diagram, "reliability", "Reliability diagram: share of values held at each level"),
                    "Promise and performance: intervals that promise to hold 80 % of values should hold 80 %. Honest "
                    f"lines run along the diagonal, within the band that chance allows with {n} episodes. Below it "
                    "intervals are too narrow, a bad sign; above it they are wider than they had to be.",
                ),
                f"<div><p>{escape(held_out)}</p><p>{escape(scores)}</p></div>",
            ]
        ),
        _score_table(check.scores),
    ]


def _score_table(scores: Sequence[Score]) -> str:
    levels = [f"in {percent(level)}" for level in LEVELS]
    rows = [
        [
            s.name,
            number(s.rmse),
            number(s.bias, 0.1 * s.rmse),
            number(s.nlpd, 0.1),
            *(percent(share) for share in s.coverage),
            f"± {number(s.half_width)}" if np.isfinite(s.half_width) else MISSING,
        ]
        for s in scores
    ]
    return html.table(
        ["", "RMSE", "bias", "NLPD", *levels, "mean 95 % interval"],
        rows,
        caption="Scores at held-out states. “In 95 %”: how many values the 95 % intervals held.",
        kind="numbers named",
        named_rows=True,
    )


# -------------------------------------------------------------------------------------- 4 where


def _maps(evaluation: Evaluation) -> list[str]:
    head = '<h2 id="maps">Where is it unsure, and where is the critic wrong?</h2>'
    if evaluation.critic is None:
        head = '<h2 id="maps">Where is it unsure?</h2>'
    states, names = evaluation.data.states, evaluation.setting.inputs
    if evaluation.setting.is_categorical:
        return [head, *_discrete(evaluation)]
    axes, labels = _axes_of(evaluation.relevance, names)
    sliced = Slice.of(states[some(np.arange(len(states)), N_VISITED)], axes)
    return [head, *(_section(evaluation, sliced, labels[0]) if len(axes) == 1 else _planes(evaluation, sliced, labels))]


def _discrete(evaluation: Evaluation) -> list[str]:
    counts = evaluation.data.states.sum(axis=0)
    shown = np.sort(np.argsort(-counts, kind="stable")[: min(MOST_STATES, int((counts > 0).sum()))])
    at = np.eye(len(counts))[shown]
    picture = figures.plot_states(
        [evaluation.setting.inputs[i] for i in shown],
        evaluation.value.predict(at),
        *evaluation.value.confidence_interval(at),
    )
    rest = f" The {len(shown)} most visited are shown." if len(shown) < (counts > 0).sum() else ""
    return _beside_critic(
        evaluation,
        _figure(
            figures.svg(picture, "states", "Value of each visited state with its interval"),
            "Value of each state that was visited, with its 95 % interval. Long bars are states of which the data says "
            f"little: seldom visited, or followed by very different returns.{rest}",
        ),
    )


def _section(evaluation: Evaluation, sliced: Slice, label: str) -> list[str]:
    states = sliced.states(N_SECTION)
    picture = figures.plot_section(
        sliced.ticks(0, N_SECTION),
        evaluation.value.predict(states),
        *evaluation.value.confidence_interval(states),
        sliced.dots()[:, 0],
        label,
    )
    return _beside_critic(
        evaluation,
        _figure(
            figures.svg(picture, "section", "Value along one input with its interval as a band"),
            "Value along what matters, with its 95 % interval as a band and visited states as ticks below. The band "
            "should widen where there are no ticks; a narrow band far from all data would be a bad sign."
            f"{_others(evaluation)}",
        ),
    )


def _planes(evaluation: Evaluation, sliced: Slice, labels: Sequence[str]) -> list[str]:
    grid = sliced.states(N_MAP)
    square = (N_MAP, N_MAP)
    mean = evaluation.value.predict(grid)
    lower, upper = evaluation.value.confidence_interval(grid)
    around = (sliced.extent(), sliced.dots(), (labels[0], labels[1]))
    maps = [
        _figure(
            figures.svg(figures.plot_map(mean.reshape(square), *around, label="value V"), "value", "Map of the value"),
            "Value along the two things that matter most; yellow is good, blue is bad, dots are visited states."
            f"{_others(evaluation)} Away from all dots the map is a guess.",
        ),
        _figure(
            figures.svg(
                figures.plot_map(((upper - lower) / 2).reshape(square), *around, label="± (95 %)", cmap="magma"),
                "doubt",
                "Map of the half-width of the interval",
            ),
            "How unsure the model is of it: half the width of the 95 % interval. It should be dark where the dots are "
            "and brighten away from them; bright places among many dots are states whose returns vary a lot.",
        ),
    ]
    if evaluation.critic is None:
        return _beside_critic(evaluation, *maps)
    gap = (np.asarray(evaluation.critic(grid), dtype=float).reshape(-1) - mean).reshape(square)
    limit = float(np.nanquantile(np.abs(gap), 0.95)) or 1.0  # far from all data critics can say anything
    picture = figures.plot_map(gap, *around, label="critic − V", cmap="RdBu_r", limit=limit)
    maps.append(
        _figure(
            figures.svg(picture, "gap", "Map of the critic's value minus the model's"),
            "The agent’s own critic minus the model. Red: the critic promises more than the model; blue: less; white: "
            "they agree. Strong colours among the dots deserve a look; far from them both only guess.",
        )
    )
    return _beside_critic(evaluation, *maps)


def _beside_critic(evaluation: Evaluation, *pictures: str) -> list[str]:
    """Pictures, and where the agent has a critic a word on it."""
    words = [] if evaluation.critic is None else [f"<div>{_sides(evaluation.disagreements)}</div>"]
    return _pair([*pictures, *words])


def _sides(disagreements: Sequence[Disagreement]) -> str:
    """Who was right where critic and model differ."""
    if not disagreements:
        return "<p>Critic and model nowhere differ by more than the model’s 95 % interval at the states checked.</p>"
    known = [d for d in disagreements if np.isfinite(d.observed)]
    wins = sum(_winner(d) == "GPTD" for d in known)
    right = f"; fresh rollouts came closer to the model at {wins} of {len(known)}" if known else ""
    return (
        f"<p>At {_count(len(disagreements), 'state')} critic and model differ by more than the model’s 95 % interval "
        f"allows{right}. They are listed below, the largest difference first.</p>"
    )


def _disagreements(evaluation: Evaluation) -> list[str]:
    found, names = evaluation.disagreements, evaluation.setting.inputs
    if not found:
        return []
    one_hot = evaluation.setting.is_categorical
    shown = [] if one_hot else [int(i) for i in _ranked(evaluation.relevance)[:MOST_COLUMNS]]
    spreads = evaluation.data.states.std(axis=0)
    rows = []
    for d in found:
        half = (d.upper - d.lower) / 2
        state = [names[int(np.argmax(d.state))]] if one_hot else [number(d.state[i], 0.1 * spreads[i]) for i in shown]
        interval = f"{number(d.lower, half)} to {number(d.upper, half)}"
        rows.append([*state, number(d.critic, half), number(d.value, half), interval, number(d.observed, half)])
        rows[-1].append(_winner(d))
    some = f" Of {len(names)} inputs the {len(shown)} most relevant are shown." if len(shown) < len(names) else ""
    columns = ["state"] if one_hot else [figures.short(names[i]) for i in shown]
    return [
        html.table(
            [*columns, "critic", "V", "95 % interval", "fresh rollouts", "closer"],
            rows,
            caption=f"Where critic and model differ most.{'' if one_hot else some}",
            kind="numbers named" if one_hot else "numbers",
            named_rows=one_hot,
        )
    ]


def _winner(d: Disagreement) -> str:
    if not np.isfinite(d.observed):
        return MISSING
    return "GPTD" if abs(d.value - d.observed) <= abs(d.critic - d.observed) else "critic"


def _others(evaluation: Evaluation) -> str:
    n = len(evaluation.setting.inputs)
    return " All else is as in visited states nearby." if n > 1 else ""


# -------------------------------------------------------------------------------------- 5, 6


def _off_policy(other: OffPolicy, agent: str) -> list[str]:
    warning = f'<section class="warnings"><p>{escape(other.warning)}</p></section>' if other.warning else ""
    mean = (
        f" On average their actions are {percent(other.mean_difference)} of the action’s range apart."
        if other.mean_difference != other.disagreement and np.isfinite(other.mean_difference)
        else ""
    )
    chose = f"{_count(other.n_asked, 'state')}, the two chose different actions at {percent(other.disagreement)}"
    text = (
        f"<p>The values are those of <strong>{escape(other.target)}</strong>, while {escape(agent)} made the data. "
        f"Asked at {chose}.{mean} The more they differ, the less the data says of where the other policy would go, and "
        "the less the intervals can be trusted.</p>"
    )
    return ['<h2 id="off-policy">Another policy on the same data</h2>', text, warning]


GLOSSARY = {
    "value V": "The discounted return to expect from a state if the policy goes on from there.",
    "95 % interval": "A range that should hold the true value in 95 of 100 cases. It is about the value, not about "
    "single returns, which vary more.",
    "coverage": "The share of fresh values that the intervals really held.",
    "relevance": "How fast the value changes along an input: 1 / (length scale)², here times the squared spread of the "
    "input, so that units do not matter. It is found by maximising the evidence.",
    "evidence": "How probable the rewards seen are under the model, all value functions considered; it rewards fit and "
    "punishes needless complexity.",
    "RMSE": "Root of the mean squared error: the typical error, in units of the return.",
    "NLPD": "Mean negative log density of what was observed: small if the prediction is close and its interval as wide "
    "as the error.",
    "Monte Carlo": "The plain average of returns of the same transitions, which a model should beat.",
}


def _making(evaluation: Evaluation, command: str) -> list[str]:
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in GLOSSARY.items())
    timing = evaluation.timing
    took = " · ".join(
        f"{name} {number(seconds, 1.0)} s"
        for name, seconds in (("collecting", timing.collect), ("fitting", timing.fit), ("checking", timing.check))
    )
    made = f"<p>Made by <code>{escape(command)}</code>.</p>" if command else ""
    shares = ", ".join(
        f"{percent(share)} {escape(name)}" for name, share in evaluation.setting.learners.items() if share
    )
    how = (
        "<p>Transitions of the policy were collected, and a Gaussian process was fitted to their rewards "
        "(Gaussian-process temporal differences, GPTD). Its relevances were chosen by the evidence. An agent's own "
        "critic serves as a first guess as far as it helps to predict episodes that were left out: V is "
        f"{shares}. The errors at left-out episodes, compared with those nearby, say how wide intervals must be; those "
        "of the critic and of Monte Carlo are as wide as their own errors, the same everywhere. All was then held "
        'against fresh episodes. All numbers are in <a href="evaluation.json">evaluation.json</a>.</p>'
    )
    return [
        '<h2 id="making">How this was made</h2>',
        how,
        made,
        f"<dl>{words}</dl>",
        f'<p class="faint">{escape(took)}<br>{escape(_versions())}</p>',
    ]


def _versions() -> str:
    from gptd_rl import __version__

    packages = {"NumPy": "numpy", "SciPy": "scipy", "Gymnasium": "gymnasium"}
    if "stable_baselines3" in sys.modules:
        packages["Stable-Baselines3"] = "stable_baselines3"
    found = [f"gptd-rl {__version__}", f"Python {platform.python_version()}"]
    return " · ".join(found + [f"{name} {version(package)}" for name, package in packages.items()])


# -------------------------------------------------------------------------------------- what matters most


def _axes_of(relevance: Relevance, names: Sequence[str]) -> tuple[Array, list[str]]:
    """The one or two axes that matter most, and their names."""
    if relevance.directions is not None and len(relevance.directions):
        axes = relevance.directions[:2]
        return axes, [f"direction {i + 1}" for i in range(len(axes))]
    ranked = [i for i in _ranked(relevance) if i in relevance.kept] or list(_ranked(relevance))
    return np.eye(len(names))[ranked[:2]], [figures.short(names[i], 40) for i in ranked[:2]]


def _formula(direction: Array, names: Sequence[str], most: int = 3) -> str:
    """A direction as a sum of its largest parts."""
    order = [i for i in np.argsort(-np.abs(direction))[:most] if abs(direction[i]) >= 0.05]
    parts = [f"{'−' if direction[i] < 0 else '+'} {abs(direction[i]):.2f} {names[i]}" for i in order]
    return " ".join(parts).removeprefix("+ ").replace("− ", "−", 1 if parts and parts[0].startswith("−") else 0)


def _ranked(relevance: Relevance) -> NDArray[np.int64]:
    """Inputs, the most relevant first."""
    return np.argsort(-np.nan_to_num(relevance.strengths), kind="stable")


# -------------------------------------------------------------------------------------- words


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _pair(parts: Sequence[str]) -> list[str]:
    """Side by side where there is room."""
    return ['<div class="pair">', *parts, "</div>"]


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}".replace(",", "\u202f")


def _half(interval: Interval) -> float:
    return (interval.upper - interval.lower) / 2


def _range(interval: Interval) -> str:
    return f"{number(interval.lower, _half(interval))} to {number(interval.upper, _half(interval))}"


def _n_episodes(check: Check) -> int:
    return len(np.unique(check.episodes))


def _observed(check: Check) -> str:
    return "values" if check.kind == "rollouts" else "returns"
