"""The page of a comparison: one HTML file with its plots inside, which needs no network and no script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from gptd_rl.report import charts, html, styles
from gptd_rl.report import comparison_plots as plots
from gptd_rl.report import comparison_texts as texts
from gptd_rl.report.comparison_records import ComparisonResults, Difference
from gptd_rl.report.numbers import MISSING, bounds, count, number, percent
from gptd_rl.report.output import complete_or_nothing
from gptd_rl.report.records import Interval
from gptd_rl.report.slices import Slice
from gptd_rl.report.svg import page_style, to_svg
from gptd_rl.version import __version__

MAX_EXAMPLES = 4  # states at which each of two agents is better
MAX_COLUMNS = 4  # inputs in the table of states
MAX_INPUTS = 12
NARROWER = 0.95  # times the unpaired width: what is worth a sentence
N_MAP, N_LINE = 40, 160  # points along an axis


def write(comparison: ComparisonResults, numbers: Mapping[str, Any], folder: Path, command: str = "") -> Path:
    """Write ``index.html`` and ``comparison.json`` into `folder`, and return the page's path.

    The files appear only once both are complete.

    Parameters
    ----------
    comparison : ComparisonResults
    numbers : mapping
        Contents of the JSON file.
    folder : Path
        Created if missing.
    command : str
        Command line to show on the page.
    """
    with complete_or_nothing(folder) as unfinished:
        text = json.dumps(numbers, ensure_ascii=False, indent=1, allow_nan=False)
        (unfinished / "comparison.json").write_text(text + "\n", encoding="utf-8")
        (unfinished / "index.html").write_text(render(comparison, command), encoding="utf-8")
    return folder / "index.html"


def render(comparison: ComparisonResults, command: str = "") -> str:
    """The page as HTML."""
    with page_style():
        body = [
            *_overview(comparison),
            *_agents(comparison),
            *_states(comparison),
            *_importances(comparison),
            *_method(comparison, command),
        ]
    return html.document(_title(comparison), ["<main>", *body, "</main>"], styles.EVALUATION)


# ------------------------------------------------------------------------------------ top


def _title(comparison: ComparisonResults) -> str:
    names = [agent.name for agent in comparison.agents]
    who = f"{names[0]} and {names[1]}" if len(names) == 2 else f"{len(names)} agents"
    return f"{who} on {comparison.config.env}"


def _overview(comparison: ComparisonResults) -> list[str]:
    """Title, verdict, cards and warnings."""
    config = comparison.config
    is_credible, sentence = texts.verdict(comparison)
    facts = [
        f"γ = {config.gamma:g}",
        count(config.n_starts, "common start state"),
        f"{count(config.n_transitions, 'transition')} of each agent",
        "most likely actions" if config.deterministic else "actions sampled from the policies",
        f"seed {config.seed}",
    ]
    i, reference = texts.closest(comparison)
    difference = next(d for d in comparison.differences if d.agent == comparison.agents[i].name)
    warnings = "".join(f"<li>{escape(text)}</li>" for text in comparison.warnings)
    return [
        f"<h1>{escape(_title(comparison))}</h1>",
        f'<p class="facts faint">{escape(" · ".join(facts))}</p>',
        f'<p class="verdict {"calibrated" if is_credible else "unknown"}">{escape(sentence)}</p>',
        '<div class="cards">',
        *_difference_cards(difference, config.n_starts),
        _states_card(comparison, i, reference),
        _importance_card(comparison, (i, reference)),
        "</div>",
        f'<section class="warnings"><h2>Limits of this comparison</h2><ul>{warnings}</ul></section>'
        if warnings
        else "",
    ]


def _card(heading: str, big: str, *paragraphs: str, is_phrase: bool = False) -> str:
    """A card of plain texts; `big` is HTML."""
    text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in paragraphs if paragraph)
    kind = "big phrase" if is_phrase else "big"
    return f'<section class="card"><h2>{escape(heading)}</h2><p class="{kind}">{big}</p>{text}</section>'


def _big(interval: Interval) -> str:
    estimate = number(interval.estimate, interval.half_width)
    return f"{escape(estimate)} <small>95 % interval {escape(bounds(interval))}</small>"


def _difference_cards(d: Difference, n_starts: int) -> list[str]:
    names, half = f"{d.agent} − {d.reference}", d.value.half_width
    paired = (
        f"With other start states for each agent it would be ± {number(d.unpaired_half_width, half)} instead of "
        f"± {number(half, half)}."
        if half < NARROWER * d.unpaired_half_width
        else ""
    )
    starts = (
        f"{d.agent} is ahead from {percent(d.higher)} of {count(n_starts, 'start state')}, {d.reference} from "
        f"{percent(d.lower)}."
    )
    value = _card("Difference in value", _big(d.value), f"{names}, discounted. {starts}", paired)
    if d.returns is None:
        return [value, _card("Difference in return", MISSING, "Some episodes did not end.")]
    return [value, _card("Difference in return", _big(d.returns), f"{names}, undiscounted, of whole episodes.")]


def _states_card(comparison: ComparisonResults, i: int, reference: int) -> str:
    heading, found = "States where one is better", comparison.at_states
    if found is None:
        return _card(heading, MISSING, "The comparison was interrupted before.")
    n_a, n_b = int(found.better[i].sum()), int(found.worse[i].sum())
    sentence = texts.states_sentence(comparison, i, reference)
    return _card(heading, f"{n_a} : {n_b} <small>of {count(len(found.states), 'state')}</small>", sentence)


def _importance_card(comparison: ComparisonResults, rows: Sequence[int]) -> str:
    heading, names = "What they rely on", [comparison.agents[row].name for row in rows]
    if comparison.config.is_categorical:
        return _card(heading, "all categories", "The observation is a category.", is_phrase=True)
    relied = [f"{name}: {texts.relies_on(comparison, row, 2)}." for name, row in zip(names, rows, strict=True)]
    order = [texts.importance_order(comparison, [row])[0] for row in rows]
    inputs = comparison.config.inputs
    same = order[0] == order[1]
    big = f"both most on {inputs[order[0]]}" if same else f"{inputs[order[0]]} against {inputs[order[1]]}"
    return _card(heading, escape(big), *relied, is_phrase=True)


# ------------------------------------------------------------------------------------ sections


def _heading(name: str, text: str) -> str:
    return f'<h2 id="{name}">{escape(text)}</h2>'


def _agents(comparison: ComparisonResults) -> list[str]:
    """Values and returns from the same starts, and differences."""
    agents, reference = comparison.agents, comparison.config.reference
    values = plots.plot_intervals([a.name for a in agents], [a.value for a in agents], "value from the starts")
    others = [d.agent for d in comparison.differences]
    rows = plots.plot_intervals(others, [d.value for d in comparison.differences], f"value − {reference}", zero=True)
    shown = [
        html.figure(to_svg(values, "agents", "Value of each agent with its interval"), texts.CAPTIONS["agents"]),
        html.figure(
            to_svg(rows, "differences", "Difference of each agent to the reference, with its interval"),
            texts.CAPTIONS["differences"].format(reference=reference),
        ),
    ]
    return [_heading("agents", "Who is better from the start?"), *html.columns(shown), _agent_table(comparison)]


def _agent_table(comparison: ComparisonResults) -> str:
    by_name, found = {d.agent: d for d in comparison.differences}, comparison.at_states
    several = len({agent.algorithm for agent in comparison.agents}) > 1
    rows = []
    for i, agent in enumerate(comparison.agents):
        d = by_name.get(agent.name)
        states = MISSING
        if found is not None and d is not None:
            states = f"{int(found.better[i].sum())} / {int(found.worse[i].sum())}"
        rows.append(
            [
                agent.name,
                *([agent.algorithm] if several else []),
                *_cells(agent.value),
                *_cells(agent.returns),
                *_cells(d.value if d else None),
                *_cells(d.returns if d else None),
                states,
            ]
        )
    reference = comparison.config.reference
    kind = ["kind"] if several else []
    means = [name for what in ("value", "return") for name in (what, "95 %")]
    differences = [name for what in ("value", "return") for name in (f"{what} − {reference}", "95 %")]
    n_states = "" if found is None else f" at {count(len(found.states), 'state')}"
    return html.table(
        ["", *kind, *means, *differences, "better / worse"],
        rows,
        caption=f"All agents. Better and worse: credibly{n_states}, compared with {reference}.",
        kind="numbers named",
        named_rows=True,
    )


def _cells(interval: Interval | None) -> list[str]:
    """An estimate, and its interval."""
    if interval is None:
        return [MISSING, MISSING]
    return [number(interval.estimate, interval.half_width), bounds(interval)]


def _states(comparison: ComparisonResults) -> list[str]:
    """Where one of two agents is better: states, a map, examples."""
    found = comparison.at_states
    if found is None:
        return []
    i, reference = texts.closest(comparison)
    a, b = (comparison.agents[row].name for row in (i, reference))
    scatter = plots.plot_pairs(found.values[reference], found.values[i], found.better[i], found.worse[i], (a, b))
    caption = texts.CAPTIONS["scatter"].format(agent=a, reference=b, n=count(len(found.states), "state"))
    shown = [html.figure(to_svg(scatter, "pairs", "Values of two agents at the same states"), caption)]
    if not comparison.config.is_categorical:
        shown.append(_map(comparison, i, reference))
    sentences = [texts.states_sentence(comparison, i, reference)]
    split = found.splits[i]
    if split is not None and not comparison.config.is_categorical:
        spread = float(found.states[:, split.input].std())
        sentences.append(texts.split_sentence(split, a, b, comparison.config.inputs, spread))
    sentences.append(texts.ground_truth(found.n_rollouts))
    return [
        _heading("states", f"Where is {a} better, and where {b}?"),
        *(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        *html.columns(shown),
        *_examples(comparison, i, reference),
    ]


def _map(comparison: ComparisonResults, i: int, reference: int) -> str:
    """The difference along the one or two most important inputs: a map by the value functions, or states alone.

    States alone, with the differences of the rollouts, where the value functions are less exact than these are large.
    """
    a, b = (comparison.agents[row].name for row in (i, reference))
    inputs, found = comparison.config.inputs, comparison.at_states
    order = texts.importance_order(comparison, (i, reference))[:2]
    if len(order) == 1:
        return _line(comparison, a, b, i)
    names = (charts.short(inputs[order[0]], 40), charts.short(inputs[order[1]], 40))
    label = f"{charts.short(a, 14)} − {charts.short(b, 14)}"
    error, size = _map_error(comparison, i)
    if found is not None and error > size:
        dots = plots.plot_dots(found.states[:, order], found.differences[i], label, names)
        caption = texts.CAPTIONS["dots"].format(agent=a, reference=b, error=number(error), size=number(size))
        return html.figure(to_svg(dots, "map", "Differences at single states"), caption)
    plane = Slice.of(comparison.visited, np.eye(len(inputs))[order])
    grid = plane.states(N_MAP)
    gap = comparison.values[a].predict(grid) - comparison.values[b].predict(grid)
    limit = float(np.nanquantile(np.abs(gap), 0.98)) or 1.0
    ax = charts.plot_heatmap(
        gap.reshape(N_MAP, N_MAP),
        plane.extent(),
        label=label,
        states=plane.dots(),
        names=names,
        cmap="RdBu_r",
        limits=(-limit, limit),
        smooth=True,
    )
    caption = texts.CAPTIONS["map"].format(agent=a, reference=b, check=_map_check(comparison, i))
    return html.figure(to_svg(ax, "map", "Map of the difference of the values"), caption)


def _line(comparison: ComparisonResults, a: str, b: str, i: int) -> str:
    """The difference by the value functions along the only input."""
    line = Slice.of(comparison.visited, np.eye(1))
    states = line.states(N_LINE)
    v_a, v_b = comparison.values[a], comparison.values[b]
    (low_a, high_a), (low_b, high_b) = (v.confidence_interval(states, 0.975) for v in (v_a, v_b))
    gap = v_a.predict(states) - v_b.predict(states)
    ends = low_a - high_b, high_a - low_b
    ax = plots.plot_difference(line.ticks(0, N_LINE), gap, *ends, line.dots()[:, 0], comparison.config.inputs[0])
    caption = texts.CAPTIONS["line"].format(agent=a, reference=b, check=_map_check(comparison, i))
    return html.figure(to_svg(ax, "map", "Difference along the input"), caption)


def _map_error(comparison: ComparisonResults, i: int) -> tuple[float, float]:
    """Root mean squares of the mapped difference's error, and of the difference itself; NaN if it was not checked."""
    found = comparison.at_states
    if found is None or found.kind == "models":
        return np.nan, np.nan
    error = np.sqrt(np.mean((found.modelled[i] - found.differences[i]) ** 2))
    return float(error), float(np.sqrt(np.mean(found.differences[i] ** 2)))


def _map_check(comparison: ComparisonResults, i: int) -> str:
    """How far the mapped difference is from that of the rollouts."""
    error, size = _map_error(comparison, i)
    if np.isnan(error):
        return ""
    return (
        f" At the states of the rollouts the difference is {number(size)} (root mean square), and the error of the "
        f"value functions’ difference is {number(error)}."
    )


def _examples(comparison: ComparisonResults, i: int, reference: int) -> list[str]:
    """Table of states with the largest credible differences."""
    found, config = comparison.at_states, comparison.config
    assert found is not None, "only pages with states have examples"
    agents = (comparison.agents[i].name, comparison.agents[reference].name)
    shown = [] if config.is_categorical else texts.importance_order(comparison, (i, reference))[:MAX_COLUMNS].tolist()
    spreads, rows = found.states.std(axis=0), []
    for is_better, best in ((found.better[i], agents[0]), (found.worse[i], agents[1])):
        for m in _one_per_episode(is_better, np.abs(found.differences[i]), found.episodes):
            interval = Interval(*(float(row[i, m]) for row in (found.differences, found.lower, found.upper)))
            # States that are all alike in an input have no spread there.
            state = [number(found.states[m, d], 0.1 * spreads[d] or None) for d in shown]
            if config.is_categorical:
                state = [config.inputs[int(found.states[m].argmax())]]
            width = max(interval.half_width, 0.01 * abs(interval.estimate))
            values = [number(found.values[row, m], width) for row in (i, reference)]
            rows.append([*state, *values, number(interval.estimate, width), bounds(interval), best])
    if not rows:
        return ["<p>At none of these states is the difference credible.</p>"]
    columns = ["state"] if config.is_categorical else [charts.short(config.inputs[d]) for d in shown]
    n = len(config.inputs)
    hidden = f" The {len(shown)} most important of {n} inputs are shown." if 0 < len(shown) < n else ""
    return [
        html.table(
            [*columns, *(f"V of {name}" for name in agents), "difference", "interval", "better"],
            rows,
            caption=texts.CAPTIONS["examples"] + hidden,
            kind="numbers",
        )
    ]


def _one_per_episode(allowed: Any, sizes: Any, episodes: Any) -> list[int]:
    """Rows of the largest sizes among those allowed, one for each episode."""
    rows = [int(m) for m in np.argsort(-sizes, kind="stable") if allowed[m]]
    first = {int(episodes[m]): m for m in reversed(rows)}  # the largest of each
    return sorted(first.values(), key=lambda m: -sizes[m])[:MAX_EXAMPLES]


def _importances(comparison: ComparisonResults) -> list[str]:
    """What each agent relies on, side by side."""
    if comparison.config.is_categorical:
        return []
    agents, inputs = comparison.agents, comparison.config.inputs
    pair = texts.closest(comparison)
    order = texts.importance_order(comparison, range(len(agents)))[:MAX_INPUTS]
    names = [inputs[d] for d in order]
    bars = plots.plot_importances_beside(
        names, [agents[i].name for i in pair], [agents[i].importances.take(order) for i in pair]
    )
    figure = html.figure(
        to_svg(bars, "importances", "Bars of the importance of each input for two agents"),
        texts.CAPTIONS["importances"],
    )
    rest = len(inputs) - len(order)
    table = html.table(
        ["", *(agent.name for agent in agents)],
        [
            [name, *(percent(float(agent.importances.total_effects[d])) for agent in agents)]
            for name, d in zip(names, order, strict=True)
        ],
        caption="Variance of the value that is lost without the input."
        + (f" The {rest} least important inputs are not shown." if rest else ""),
        kind="numbers named",
        named_rows=True,
    )
    return [_heading("importances", "What does each rely on?"), *html.columns([figure, f"<div>{table}</div>"])]


def _method(comparison: ComparisonResults, command: str) -> list[str]:
    """How the comparison works, and how long it took."""
    config = comparison.config
    best = texts.BEST if config.is_best else ""
    return [
        _heading("method", "How this page was made"),
        texts.METHOD.format(best=best, transitions=count(config.n_transitions, "transition")),
        f"<p>Made by <code>{escape(command)}</code>.</p>" if command else "",
        f'<p class="faint">{escape(f"{number(comparison.seconds, 1.0)} s · gptd-rl {__version__}")}</p>',
    ]
