"""Sentences about a comparison of agents, the same on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptd_rl.report.comparison_records import ComparisonResults, Difference, Split
from gptd_rl.report.numbers import bounds, count, number, percent
from gptd_rl.types import IntArray

MAX_NAMES = 6
ROLLOUTS = {
    0: "Values by the agents’ value functions; each interval alone holds with 95 %.",
    1: "One rollout of each agent from copies of the environment; environment and agents are deterministic, so its "
    "return is the value. What remains unknown is the value after the rollout’s end.",
}
REPEATED = (
    "Means of {} rollouts of each agent from copies of the environment, with the same random numbers for all. All "
    "intervals hold together with 95 %."
)

CAPTIONS = {
    "agents": "Values and returns from the same start states. Each agent’s own interval says how well its mean is "
    "known; differences are known better than they suggest, because all agents meet the same starts.",
    "differences": "Differences to {reference} from the same start states, with 95 % intervals that hold together. "
    "Intervals that do not reach 0 are credible differences.",
    "scatter": "Value of {agent} against the value of {reference} at the same {n}. Above the diagonal {agent} is "
    "better. Grey: not credible.",
    "map": "Value of {agent} minus value of {reference}, by their value functions. Red: {agent} is better; blue: "
    "{reference}. Dots are visited states; far from them the map is an extrapolation.{check}",
    "dots": "Value of {agent} minus value of {reference} at the states of the rollouts. Red: {agent} is better; blue: "
    "{reference}. There is no map: the difference of the value functions has an error of {error} (root mean square), "
    "while the difference is {size}.",
    "line": "Value of {agent} minus value of {reference} along the only input, by their value functions; the band is "
    "their joint interval, ticks are visited states.{check}",
    "importances": "How much of the value’s variance over the states that an agent visits is lost when one input is "
    "unknown and the others are known, with 95 % intervals.",
    "examples": "States with the largest credible differences, one for each episode.",
}

METHOD = (
    "<p>Every agent starts in the same states, with the same random numbers of the environment, and is followed past "
    "the time limit until the discount is negligible; its own value function stands for what comes after. Intervals of "
    "differences are Student’s over start states (with several agents of the largest |t|: they hold together{best}). "
    "Differences at single states are from rollouts of all agents from copies of the environment at states of fresh "
    "episodes of each agent. Value functions, for the map and for what agents rely on, are fitted to {transitions} of "
    'each agent. All numbers are in <a href="comparison.json">comparison.json</a>.</p>'
)
BEST = ", for all pairs, because the best agent is chosen by the same rollouts"


def verdict(comparison: ComparisonResults) -> tuple[bool, str]:
    """Whether there is a credible difference, and a sentence on which agent is better."""
    config, differences = comparison.config, comparison.differences
    starts = f"from the same {count(config.n_starts, 'start state')}"
    if len(differences) == 1:
        (d,) = differences
        if d.credible is None:
            text = f"Neither is credibly better: {d.agent} − {d.reference} = {estimate(d)}, {starts}."
            return False, text
        better, other = (d.agent, d.reference) if d.credible == "better" else (d.reference, d.agent)
        return True, f"{better} is better than {other}: {d.agent} − {d.reference} = {estimate(d)}, {starts}."
    groups = {kind: [d.agent for d in differences if d.credible == kind] for kind in ("better", "worse", None)}
    parts = [
        f"{words} {listed(groups[kind])}"
        for kind, words in (
            ("worse", "credibly better than"),
            ("better", "credibly worse than"),
            (None, "not credibly different from"),
        )
        if groups[kind]
    ]
    head = f"{config.reference} has the highest value" if config.is_best else f"The reference is {config.reference}"
    return bool(groups["better"] or groups["worse"]), f"{head}, {starts}. It is {', '.join(parts)}."


def estimate(d: Difference) -> str:
    """The difference of values with its interval."""
    return f"{number(d.value.estimate, d.value.half_width)} (95 % interval {bounds(d.value)})"


def closest(comparison: ComparisonResults) -> tuple[int, int]:
    """Rows of the two agents shown in detail: the strongest of the others, and the reference."""
    names = [agent.name for agent in comparison.agents]
    reference = names.index(comparison.config.reference)
    others = [i for i in range(len(names)) if i != reference]
    return max(others, key=lambda i: comparison.agents[i].value.estimate), reference


def split_sentence(split: Split, agent: str, reference: str, inputs: Sequence[str], spread: float) -> str:
    """Where the difference is large, in terms of one input."""
    threshold = number(split.threshold, 0.1 * spread)
    width = 0.1 * abs(split.below - split.above)
    return (
        f"Where {inputs[split.input]} is above {threshold}, {agent} − {reference} is {number(split.above, width)} on "
        f"average, and {number(split.below, width)} elsewhere; this alone explains {percent(split.share)} of how the "
        "difference varies."
    )


def states_sentence(comparison: ComparisonResults, i: int, reference: int) -> str:
    """At how many states one of two agents is credibly better."""
    found = comparison.at_states
    if found is None:
        return ""
    a, b = (comparison.agents[row].name for row in (i, reference))
    n_a, n_b, n = int(found.better[i].sum()), int(found.worse[i].sum()), len(found.states)
    return f"Of {count(n, 'state')}, {a} is credibly better at {n_a}, {b} at {n_b}; {n - n_a - n_b} are undecided."


def ground_truth(n_rollouts: int) -> str:
    """How values of single states were found."""
    return ROLLOUTS.get(n_rollouts, REPEATED.format(n_rollouts))


def importance_order(comparison: ComparisonResults, rows: Sequence[int]) -> IntArray:
    """Inputs by their largest total effect among some agents, the largest first."""
    effects = [np.nan_to_num(comparison.agents[i].importances.total_effects) for i in rows]
    return np.argsort(-np.max(effects, axis=0), kind="stable")


def relies_on(comparison: ComparisonResults, i: int, most: int) -> str:
    """The most important inputs of an agent, with their total effects."""
    effects, names = comparison.agents[i].importances.total_effects, comparison.config.inputs
    return ", ".join(f"{names[d]} {percent(float(effects[d]))}" for d in importance_order(comparison, [i])[:most])


def listed(names: Sequence[str]) -> str:
    """Names, the first few if there are many."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
