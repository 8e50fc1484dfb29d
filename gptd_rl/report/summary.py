"""An evaluation in a few lines, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from gptd_rl.evaluation.results import Check, Evaluation, Relevance, Setting, StartReturn

MOST_INPUTS = 6


def summary(evaluation: Evaluation) -> RenderableType:
    """How good, what matters, and whether to believe it.

    Parameters
    ----------
    evaluation : Evaluation

    Returns
    -------
    RenderableType
        For ``rich.print`` or ``Console.print``.
    """
    facts = Table.grid(padding=(0, 2))
    for name, text in _facts(evaluation):
        facts.add_row(Text(name, style="dim"), Text(text))
    said = [Text(f"warning: {text}", style="yellow") for text in _warnings(evaluation)]
    return Group(Text(_headline(evaluation.setting), style="bold"), facts, scores(evaluation.check), *said)


def scores(check: Check) -> Table:
    """How well each way of predicting values did."""
    kinds = {0: "returns of fresh episodes", 1: "one fresh rollout each"}
    kind = kinds.get(check.n_rollouts, f"the mean of {check.n_rollouts} fresh rollouts")
    n_states = f"{len(check.states)} held-out states"
    table = Table("", title=f"Beside {kind} at {n_states}", title_justify="left")
    for name in ("RMSE", "95 % coverage", "half-width", "NLPD"):
        table.add_column(name, justify="right")
    for score in check.scores:
        table.add_row(
            Text(score.name),
            number(score.rmse),
            "–" if np.isnan(score.coverage[-1]) else f"{100 * score.coverage[-1]:.1f} %",
            number(score.half_width),
            number(score.nlpd),
        )
    return table


def strongest(names: Sequence[str], strengths: Sequence[float]) -> str:
    """Names with their strengths, the strongest first."""
    order = sorted(range(len(names)), key=lambda i: -strengths[i])
    shown = [f"{names[i]} {strengths[i]:.2g}" for i in order[:MOST_INPUTS]]
    left = len(order) - len(shown)
    return ", ".join([*shown, f"{left} weaker ones"] if left else shown)


def number(x: float) -> str:
    """Three digits, or all those before the point; a dash if there is no number."""
    if x != x:
        return "–"
    return f"{x:.0f}" if 1000 <= abs(x) < 1e7 else f"{x:.3g}"


def episodes(n: int) -> str:
    """How many episodes, as people say it."""
    return "1 episode" if n == 1 else f"{n} episodes"


def _headline(setting: Setting) -> str:
    how = "most likely actions" if setting.deterministic else "drawn actions"
    return (
        f"{setting.agent} on {setting.env}: {setting.n_transitions} transitions in {episodes(setting.n_episodes)}, "
        f"{setting.n_terminated} of which terminated; γ = {setting.gamma:g}, {how}, seed {setting.seed}"
    )


def _facts(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    start, relevance = evaluation.start, evaluation.relevance
    if evaluation.off_policy is not None:
        yield "evaluated", f"{evaluation.off_policy.target}, on the data of {evaluation.setting.agent}"
    low, high = number(start.value.lower), number(start.value.upper)
    yield "value from the start", f"{number(start.value.estimate)}, 95 % interval {low} to {high}"
    yield "mean return", _mean_return(start)
    yield "what matters", _what_matters(relevance, evaluation.setting.inputs)
    if relevance.removed:
        weak = ", ".join(evaluation.setting.inputs[i] for i in relevance.removed)
        if relevance.can_be_pruned:
            yield "can be left out", weak
        else:
            yield "weak, but needed", f"{weak}: without, the evidence falls by {number(relevance.cost)}"


def _mean_return(start: StartReturn) -> str:
    if start.returns is None:
        return f"not known: {episodes(start.n_episodes)} complete"
    half_width = (start.returns.upper - start.returns.lower) / 2.0
    return (
        f"{number(start.returns.estimate)} ± {number(half_width)} (95 %) over {episodes(start.n_episodes)}; "
        f"Stable-Baselines3 reports {number(start.mean)} ± {number(start.std)}, the spread of episodes"
    )


def _what_matters(relevance: Relevance, inputs: Sequence[str]) -> str:
    if relevance.kernel == "isotropic":
        return "all observations alike"
    return strongest(inputs, relevance.strengths.tolist())


def _warnings(evaluation: Evaluation) -> list[str]:
    off_policy = evaluation.off_policy
    ours = [off_policy.warning] if off_policy is not None and off_policy.warning else []
    return ours + [text for text in evaluation.warnings if text not in ours]
