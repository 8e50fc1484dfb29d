"""Sections of the page of an evaluation, as lists of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from matplotlib.axes import Axes

from gptd_rl.report import charts, html, inputs, texts
from gptd_rl.report.hover import Points, describe_states, describe_values
from gptd_rl.report.numbers import MISSING, count, number, percent
from gptd_rl.report.provenance import Provenance
from gptd_rl.report.records import LEVELS, Check, EvaluationResults, OffPolicy, Relevance, Score
from gptd_rl.report.slices import subsample
from gptd_rl.report.svg import to_svg
from gptd_rl.report.verdict import sampling_error
from gptd_rl.types import IntArray

MAX_BARS = 20
N_VISITED = 2000
N_STARTS = 200


def heading(name: str, key: str = "") -> str:
    """Heading of a section; `name` is its id, `key` that of its text."""
    return f'<h2 id="{name}">{escape(texts.HEADINGS[key or name])}</h2>'


def figure(ax: Axes, name: str, points: Points | None = None, **fields: object) -> str:
    """A plot with its caption; `points` say what they are."""
    return html.figure(to_svg(ax, name, texts.ALTERNATIVES[name], points), texts.CAPTIONS[name].format(**fields))


def policy(evaluation: EvaluationResults) -> list[str]:
    """Values of the visited states, and predictions against observations."""
    data, check = evaluation.data, evaluation.check
    with_transition = np.delete(np.arange(len(data)), data.last)
    values = evaluation.value.predict(data.states[subsample(with_transition, N_VISITED)])
    start_states = data.states[subsample(data.starts, N_STARTS)]
    starts = evaluation.value.predict(start_states)
    ax = charts.plot_histogram(values, starts)
    at_ticks = np.full(len(starts), 0.04 * ax.get_ylim()[1])
    of_starts = zip(describe_states(evaluation, start_states), starts.tolist(), strict=True)
    shown = [figure(ax, "values", Points(starts, at_ticks, [f"{state}\nV {number(v)}" for state, v in of_starts]))]
    known = np.isfinite(check.observed) & np.isfinite(check.predicted)
    if known.any():
        critic = None if check.critic is None else check.critic[known]
        predicted, lower, upper = (array[known] for array in (check.predicted, check.lower, check.upper))
        observed = {0: "single returns", 1: "one rollout each"}.get(
            check.n_rollouts, f"means of {check.n_rollouts} rollouts"
        )
        clipped = "" if critic is None else texts.CLIPPED_CRITIC
        truth = check.observed[known]
        ax = charts.plot_predictions(truth, predicted, lower, upper, critic)
        said = describe_values(evaluation, check.states[known], predicted, lower, upper, critic, truth, observed)
        shown.append(figure(ax, "predictions", Points(truth, predicted, said), observed=observed, critic=clipped))
    return [heading("policy"), *html.columns(shown)]


def relevance(evaluation: EvaluationResults) -> list[str]:
    """Importances of the inputs, and what leaving them out costs."""
    found, names = evaluation.relevance, evaluation.config.inputs
    if evaluation.config.is_categorical:
        sentences = [texts.KERNELS[found.kernel], "The observation is a category: every one of them counts."]
        return [heading("relevance"), _paragraphs([*sentences, evaluation.markov.summary(names)])]
    shown = found.order[:MAX_BARS]
    irrelevant = [place for place, i in enumerate(shown) if i in found.irrelevant]
    n_hidden = len(names) - len(shown)
    rest = f" The {n_hidden} least important inputs are not shown." if n_hidden else ""
    bars = charts.plot_importances([names[i] for i in shown], found.importances.take(shown), irrelevant)
    text = _paragraphs([*inputs.sentences(found, names), evaluation.markov.summary(names)])
    return [
        heading("relevance"),
        *html.columns([figure(bars, "importances", rest=rest), text]),
        _cost_table(found, names, shown),
    ]


def _paragraphs(sentences: Sequence[str]) -> str:
    return "<div>" + "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences) + "</div>"


def _cost_table(found: Relevance, names: Sequence[str], shown: IntArray) -> str:
    """The numbers that sentences and bars come from."""
    rows = [
        [
            charts.short(names[i], 40),
            percent(float(found.importances.total_effects[i])),
            f"{percent(float(found.importances.lower[i]))} to {percent(float(found.importances.upper[i]))}",
            number(float(found.scaled_relevances[i]), digits=2),
            *(inputs.cost_cells(found.costs[i]) if found.costs else ()),
        ]
        for i in shown
    ]
    costs = ["evidence without it", "left-out error without it"] if found.costs else []
    return html.table(
        ["", "variance lost", "95 % interval", "relevance", *costs],
        rows,
        caption=texts.COSTS if found.costs else texts.EFFECTS,
        kind="numbers named",
        named_rows=True,
    )


def calibration(check: Check) -> list[str]:
    """Reliability diagram and scores at held-out states."""
    n = check.n_episodes
    if not check.scores or not n:
        return [heading("calibration"), "<p>Nothing was checked: there were no held-out episodes.</p>"]
    ax = charts.plot_reliability(check.shares, check.reliability, sampling_error(check.shares, n))
    points = Points(
        np.concatenate([100 * check.shares for _ in check.reliability]),
        np.concatenate([100 * coverage for coverage in check.reliability.values()]),
        [
            f"{name}\n{percent(share)} intervals contain {percent(covered)}"
            for name, coverage in check.reliability.items()
            for share, covered in zip(check.shares.tolist(), coverage.tolist(), strict=True)
        ],
    )
    ground_truth = texts.GROUND_TRUTH.get(check.n_rollouts, texts.REPEATED_ROLLOUTS)
    ground_truth = ground_truth.format(n=len(check.observed), n_rollouts=check.n_rollouts)
    held_out = texts.HELD_OUT.format(episodes=count(n, "episode"), ground_truth=ground_truth)
    explained = f"<div><p>{escape(held_out)}</p><p>{escape(texts.SCORES)}</p></div>"
    return [
        heading("calibration"),
        *html.columns([figure(ax, "reliability", points, n=n), explained]),
        _score_table(check.scores),
    ]


def _score_table(scores: Sequence[Score]) -> str:
    rows = [
        [
            s.name,
            number(s.rmse),
            f"{number(s.rmse_interval[0])} to {number(s.rmse_interval[1])}",
            number(s.bias, 0.1 * s.rmse),
            number(s.nlpd, 0.1),
            *(percent(share) for share in s.coverage),
            f"± {number(s.half_width)}" if np.isfinite(s.half_width) else MISSING,
        ]
        for s in scores
    ]
    return html.table(
        [
            "",
            "RMSE",
            "95 % interval",
            "bias",
            "NLPD",
            *(f"in {percent(level)}" for level in LEVELS),
            "mean 95 % interval",
        ],
        rows,
        caption="Scores at held-out states. “In 95 %”: coverage of the 95 % intervals.",
        kind="numbers named",
        named_rows=True,
    )


def off_policy(found: OffPolicy, agent: str) -> list[str]:
    """Difference between the evaluated policy and the one that generated the data."""
    is_continuous = found.mean_difference != found.disagreement and np.isfinite(found.mean_difference)
    mean = f" The mean difference of their actions is {percent(found.mean_difference)} of the action’s range."
    text = texts.OFF_POLICY.format(
        target=escape(found.target),
        agent=escape(agent),
        states=count(found.n_asked, "state"),
        disagreement=percent(found.disagreement),
        mean=mean if is_continuous else "",
    )
    warning = f'<section class="warnings"><p>{escape(found.warning)}</p></section>' if found.warning else ""
    return [heading("off-policy", "off_policy"), text, warning]


def method(evaluation: EvaluationResults, made: Provenance | None) -> list[str]:
    """How the evaluation works, a glossary, durations; when and how the page was made."""
    config = evaluation.config
    candidates = ", ".join(f"{escape(name)} {number(error, error)}" for name, error in config.candidates.items())
    glossary = "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in texts.GLOSSARY.items())
    timing = evaluation.timing
    stages = (
        ("collecting", timing.collect),
        ("fitting", timing.fit),
        ("checking", timing.check),
        ("recording", timing.record),
    )
    durations = " · ".join(f"{name} {number(seconds, 1.0)} s" for name, seconds in stages)
    return [
        heading("method"),
        texts.METHOD.format(chosen=escape(config.chosen), candidates=candidates or "none"),
        *(_made(made) if made else []),
        f'<p class="faint">{escape(durations)}</p>',
        f"<dl>{glossary}</dl>",
    ]


def _made(made: Provenance) -> list[str]:
    versions = " · ".join(f"{name} {version}" for name, version in made.versions.items())
    command = f" by <code>{escape(made.command)}</code>" if made.command else ""
    return [f"<p>Made on {escape(made.time)}{command}.</p>", f'<p class="faint">{escape(versions)}</p>']
