"""Summary of a comparison for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gptd_rl.report import comparison_texts as texts
from gptd_rl.report.comparison_records import AgentValues, ComparisonResults
from gptd_rl.report.numbers import MISSING, bounds, count, number
from gptd_rl.report.records import Interval
from gptd_rl.report.summary import printable

MAX_INPUTS = 3


def summary(comparison: ComparisonResults) -> RenderableType:
    """Verdict, a table of the agents, states where one is better, and what each relies on.

    Parameters
    ----------
    comparison : ComparisonResults

    Returns
    -------
    RenderableType
        For ``rich.print`` or ``Console.print``; `gptd_rl.report.summary.as_text` makes a string of it.
    """
    config = comparison.config
    actions = "most likely actions" if config.deterministic else "sampled actions"
    head = (
        f"{count(len(comparison.agents), 'agent')} on {config.env}: γ = {config.gamma:g}, "
        f"{count(config.n_starts, 'common start')}, {actions}, seed {config.seed}"
    )
    lines = [Text(printable(line)) for line in _sentences(comparison)]
    warnings = [Text(f"warning: {printable(text)}", style="yellow") for text in comparison.warnings]
    return Group(Text(printable(head), style="bold"), agent_table(comparison), *lines, *warnings)


def agent_table(comparison: ComparisonResults) -> Table:
    """Value, return and difference of each agent."""
    reference = comparison.config.reference
    by_name = {d.agent: d for d in comparison.differences}
    table = Table("")
    for name in ("value", "return", f"value − {reference}", "95 % interval"):
        table.add_column(Text(printable(name)), justify="right")
    for agent in comparison.agents:
        d = by_name.get(agent.name)
        style = {"better": "green", "worse": "red"}.get(d.credible or "", "") if d is not None else ""
        cells = [
            Text(printable(agent.name)),
            Text(plus_minus(agent.value)),
            Text(_returns(agent)),
            Text(MISSING if d is None else number(d.value.estimate, d.value.half_width), style=style),
            Text(MISSING if d is None else bounds(d.value)),
        ]
        table.add_row(*cells)
    return table


def plus_minus(interval: Interval) -> str:
    """An estimate with the half-width of its interval."""
    half = interval.half_width
    return f"{number(interval.estimate, half)} ± {number(half, half)}"


def _returns(agent: AgentValues) -> str:
    return MISSING if agent.returns is None else plus_minus(agent.returns)


def _sentences(comparison: ComparisonResults) -> Iterator[str]:
    yield texts.verdict(comparison)[1]
    if not comparison.config.is_categorical:
        for i, agent in enumerate(comparison.agents):
            yield f"{agent.name}: variance lost without {texts.relies_on(comparison, i, MAX_INPUTS)}"
    if comparison.at_states is None:
        return
    i, reference = texts.closest(comparison)
    yield texts.states_sentence(comparison, i, reference)
    split = comparison.at_states.splits[i]
    if split is not None and not comparison.config.is_categorical:
        a, b = (comparison.agents[row].name for row in (i, reference))
        spread = float(comparison.at_states.states[:, split.input].std())
        yield texts.split_sentence(split, a, b, comparison.config.inputs, spread)
