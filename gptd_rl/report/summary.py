"""Summary of an evaluation for the terminal."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gptd_rl.report.numbers import MISSING, bounds, count, number, percent
from gptd_rl.report.records import Check, EvaluationConfig, EvaluationResults, Relevance, StartReturn

MAX_INPUTS = 6


def summary(evaluation: EvaluationResults) -> RenderableType:
    """Value, return, relevances and scores.

    Parameters
    ----------
    evaluation : EvaluationResults

    Returns
    -------
    RenderableType
        For ``rich.print`` or ``Console.print``; `as_text` makes a string of it.
    """
    facts = Table.grid(padding=(0, 2))
    for name, text in _facts(evaluation):
        facts.add_row(Text(name, style="dim"), Text(printable(text)))
    warnings = [Text(f"warning: {printable(text)}", style="yellow") for text in _warnings(evaluation)]
    scores = Text(_ground_truth(evaluation.check), style="italic"), score_table(evaluation.check)
    return Group(Text(printable(_headline(evaluation.config)), style="bold"), facts, *scores, *warnings)


def as_text(renderable: RenderableType, width: int) -> str:
    """Plain text, without colours, at most `width` characters wide."""
    console = Console(width=width, file=io.StringIO(), force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(renderable, highlight=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def printable(text: str) -> str:
    """A text without control characters: a terminal would obey the escape sequences in a name."""
    return "".join("�" if unicodedata.category(c) == "Cc" and c != "\n" else c for c in text)


def score_table(check: Check) -> Table:
    """Scores of the value functions at held-out states."""
    table = Table("")
    for name in ("RMSE", "95 % coverage", "half-width", "NLPD"):
        table.add_column(name, justify="right")
    for score in check.scores:
        coverage = score.coverage[-1]
        table.add_row(
            Text(printable(score.name)),
            number(score.rmse),
            MISSING if np.isnan(coverage) else f"{100 * coverage:.1f} %",
            number(score.half_width),
            number(score.nlpd, 0.1),
        )
    return table


def most_relevant(names: Sequence[str], scaled_relevances: Sequence[float]) -> str:
    """Inputs with their scaled relevances, in decreasing order."""
    order = sorted(range(len(names)), key=lambda i: -scaled_relevances[i])
    shown = [f"{names[i]} {number(scaled_relevances[i], digits=2)}" for i in order[:MAX_INPUTS]]
    n_hidden = len(order) - len(shown)
    return ", ".join([*shown, f"{n_hidden} less relevant"] if n_hidden else shown)


def _ground_truth(check: Check) -> str:
    truth = {0: "returns of fresh episodes", 1: "one fresh rollout each"}.get(
        check.n_rollouts, f"the mean of {check.n_rollouts} fresh rollouts"
    )
    return f"Scores against {truth} at {count(len(check.states), 'held-out state')}:"


def _headline(config: EvaluationConfig) -> str:
    actions = "most likely actions" if config.deterministic else "sampled actions"
    return (
        f"{config.agent} on {config.env}: {count(config.n_transitions, 'transition')} in "
        f"{count(config.n_episodes, 'episode')}, {config.n_terminated} of them terminated; γ = {config.gamma:g}, "
        f"{actions}, seed {config.seed}"
    )


def _facts(evaluation: EvaluationResults) -> Iterator[tuple[str, str]]:
    value, relevance = evaluation.start.value, evaluation.relevance
    if evaluation.off_policy is not None:
        yield "target policy", f"{evaluation.off_policy.target}, on data of {evaluation.config.agent}"
    yield "value of the start states", f"{number(value.estimate, value.half_width)}, 95 % interval {bounds(value)}"
    yield "mean return", _mean_return(evaluation.start)
    if not evaluation.config.is_categorical:
        yield "variance lost without", _importances(relevance, evaluation.config.inputs)
    markov = evaluation.markov
    found = "the observations do not tell all" if markov.is_rejected else "nothing speaks against it"
    yield "Markov property", f"{found}; p = {markov.pvalue:.2g}"
    if relevance.irrelevant:
        yield "irrelevant", ", ".join(evaluation.config.inputs[i] for i in relevance.irrelevant)
    for group in relevance.alike:
        yield "the same information", ", ".join(evaluation.config.inputs[i] for i in group)


def _mean_return(start: StartReturn) -> str:
    mean = start.returns
    if mean is None:
        return f"unknown: {count(start.n_episodes, 'complete episode')}"
    return (
        f"{number(mean.estimate, mean.half_width)} ± {number(mean.half_width, mean.half_width)} (95 %) over "
        f"{count(start.n_episodes, 'episode')}; Stable-Baselines3 reports {number(start.mean, start.std)} ± "
        f"{number(start.std, start.std)}, the standard deviation of episodes"
    )


def _importances(relevance: Relevance, inputs: Sequence[str]) -> str:
    """Inputs with their total effects, in decreasing order."""
    shown = relevance.order[:MAX_INPUTS]
    found = [f"{inputs[i]} {percent(float(relevance.importances.total_effects[i]))}" for i in shown]
    n_hidden = len(inputs) - len(shown)
    return ", ".join([*found, f"{n_hidden} less important"] if n_hidden else found)


def _warnings(evaluation: EvaluationResults) -> list[str]:
    off_policy = evaluation.off_policy
    own = [off_policy.warning] if off_policy is not None and off_policy.warning else []
    note = evaluation.recordings.note
    return own + [text for text in evaluation.warnings if text not in own] + ([note] if note else [])
