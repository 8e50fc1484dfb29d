"""Top of the page of an evaluation: title, verdict, four cards and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from gptd_rl.report import inputs
from gptd_rl.report.numbers import MISSING, bounds, count, number, percent
from gptd_rl.report.records import Check, EvaluationResults, Score
from gptd_rl.report.verdict import observed_quantity, verdict


def title(evaluation: EvaluationResults) -> str:
    """Policy, environment and data in a line."""
    config = evaluation.config
    if evaluation.off_policy:
        return f"{evaluation.off_policy.target} on {config.env}, from data of {config.agent}"
    return f"{config.agent} on {config.env}"


def overview(evaluation: EvaluationResults) -> list[str]:
    """Title, verdict, cards and warnings, as HTML."""
    config = evaluation.config
    mark, sentence = verdict(evaluation.check)
    facts = [
        f"γ = {config.gamma:g}",
        count(config.n_transitions, "transition"),
        f"{count(config.n_episodes, 'episode')}, {config.n_terminated} of them terminated",
        "most likely actions" if config.deterministic else "actions sampled from the policy",
        f"seed {config.seed}",
    ]
    return [
        f"<h1>{escape(title(evaluation))}</h1>",
        f'<p class="facts faint">{escape(" · ".join(facts))}</p>',
        f'<p class="verdict {mark}">{escape(" ".join([sentence, _comparison(evaluation.check.scores)]))}</p>',
        '<div class="cards">',
        _value_card(evaluation),
        _return_card(evaluation),
        _calibration_card(evaluation.check),
        _importance_card(evaluation),
        "</div>",
        *_warnings(evaluation.warnings),
    ]


def _comparison(scores: Sequence[Score]) -> str:
    """Errors of the model and of the other value functions."""
    known = [s for s in scores if np.isfinite(s.rmse)]
    if not known or known[0] is not scores[0]:
        return ""
    others = [f"{s.name} {number(s.rmse)}" for s in known[1:]]
    best = min(known, key=lambda s: s.rmse)
    text = f"RMSE: {known[0].name} {number(known[0].rmse)}" + (f", {' and '.join(others)}" if others else "")
    return text + ("." if best is known[0] else f"; {best.name} is closer.")


def _card(heading: str, big: str, *text: str, is_phrase: bool = False) -> str:
    """A card; `big` and `text` are HTML."""
    paragraphs = "".join(f"<p>{t}</p>" for t in text if t)
    kind = "big phrase" if is_phrase else "big"
    return f'<section class="card"><h2>{escape(heading)}</h2><p class="{kind}">{big}</p>{paragraphs}</section>'


def _value_card(evaluation: EvaluationResults) -> str:
    value = evaluation.start.value
    return _card(
        "Value of the start states",
        f"{number(value.estimate, value.half_width)} <small>95 % interval {bounds(value)}</small>",
        f"Expected discounted return (γ = {evaluation.config.gamma:g}), averaged over start states.",
    )


def _return_card(evaluation: EvaluationResults) -> str:
    start, mean = evaluation.start, evaluation.start.returns
    heading = f"Return of an episode{' of the target policy' if evaluation.off_policy else ''}"
    if mean is None:
        known = f"the only complete episode has return {number(start.mean)}" if start.n_episodes else "there is none"
        return _card(heading, MISSING, f"An interval needs at least two complete episodes; {known}.")
    return _card(
        heading,
        f"{number(mean.estimate, mean.half_width)} <small>95 % interval {bounds(mean)}</small>",
        f"Undiscounted, mean of {count(start.n_episodes, 'complete episode')}. Stable-Baselines3’s "
        f"<code>evaluate_policy</code> reports {number(start.mean, start.std)} ± {number(start.std, start.std)} for "
        "the same episodes: its ± is the standard deviation of single episodes, while the interval is about their "
        "mean, and shrinks with more episodes.",
    )


def _calibration_card(check: Check) -> str:
    heading = "Coverage of the intervals"
    if not check.scores:
        return _card(heading, MISSING, "There were no held-out episodes.")
    errors = ", ".join(f"{escape(s.name)} {number(s.rmse)}" for s in check.scores)
    coverage = percent(check.scores[0].coverage[-1])
    return _card(
        heading,
        f"{coverage} <small>of fresh {observed_quantity(check)} inside the 95 % intervals</small>",
        f"{count(len(check.observed), 'state')} of {count(check.n_episodes, 'episode')} not used for fitting.",
        f"RMSE: {errors}.",
    )


def _importance_card(evaluation: EvaluationResults) -> str:
    heading, names, found = "Observations that matter", evaluation.config.inputs, evaluation.relevance
    if evaluation.config.is_categorical:
        return _card(heading, f"all {len(names)} categories", "The observation is a category.", is_phrase=True)
    explained = " ".join(
        ["Share of the value’s variance that is lost without the input.", *inputs.remarks(found, names)]
    )
    return _card(heading, escape(inputs.headline(found, names)) or MISSING, escape(explained), is_phrase=True)


def _warnings(warnings: Sequence[str]) -> list[str]:
    if not warnings:
        return []
    items = "".join(f"<li>{escape(w)}</li>" for w in warnings)
    return [f'<section class="warnings"><h2>Limits of this evaluation</h2><ul>{items}</ul></section>']
