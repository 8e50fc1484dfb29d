"""What is said about the inputs of an evaluation: on the card, beside the bars and in the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gptd_rl.estimators.exclusions import Cost
from gptd_rl.report import texts
from gptd_rl.report.charts import short
from gptd_rl.report.numbers import MISSING, count, number, percent
from gptd_rl.report.records import Relevance

IMPORTANT = 0.1  # inputs on the card, as a share of the value's variance
MAX_ON_CARD = 3
MAX_NAMES = 8  # in a sentence

# Sums of shares from which inputs act together, and below which they tell each other.
TOGETHER, TOLD = 1.25, 0.5


def headline(found: Relevance, names: Sequence[str]) -> str:
    """The most important inputs with their shares; the largest group of inputs alike if there are none."""
    effects = np.nan_to_num(found.importances.total_effects)
    first = [f"{short(names[i], 40)} {percent(float(effects[i]))}" for i in found.order if effects[i] >= IMPORTANT]
    if not first and found.alike:
        return " or ".join(short(names[i], 40) for i in max(found.alike, key=len)[:MAX_ON_CARD])
    if not first and effects.max() >= found.NEGLIGIBLE:
        return f"{short(names[found.order[0]], 40)} {percent(float(effects[found.order[0]]))}"
    more = f" and {len(first) - MAX_ON_CARD} more" if len(first) > MAX_ON_CARD else ""
    return ", ".join(first[:MAX_ON_CARD]) + more


def remarks(found: Relevance, names: Sequence[str]) -> Iterator[str]:
    """What to know of the shares, a sentence each."""
    yield from _alike(found, names)
    total = float(np.nansum(found.importances.total_effects))
    if total > TOGETHER:
        yield f"Inputs act together: the shares add up to {percent(total)}."
    if found.NEGLIGIBLE < total < TOLD and not found.alike:
        yield f"Inputs tell each other, so hardly one is missed: the shares add up to {percent(total)} only."
    if found.irrelevant:
        yield f"{len(found.irrelevant)} of {count(len(names), 'input')} irrelevant."


def sentences(found: Relevance, names: Sequence[str]) -> list[str]:
    """The kernel; inputs that tell the same, that do not matter, and that matter although they seem not to."""
    said = [f"{texts.KERNELS[found.kernel]} It was selected on states of {count(found.n_transitions, 'transition')}."]
    said += _alike(found, names)
    if found.irrelevant and found.irrelevant_cost is not None:
        before, after = found.evidence, found.evidence - found.irrelevant_cost.evidence
        each = "it" if len(found.irrelevant) == 1 else "each of them"
        out = "it" if len(found.irrelevant) == 1 else "them"
        said.append(
            f"Irrelevant: {listed(names, found.irrelevant)}. Less than 1 % of the value’s variance depends on {each}. "
            f"Without {out} the evidence (log marginal likelihood of {count(found.n_compared, 'transition')}) changes "
            f"from {number(before, 0.1)} to {number(after, 0.1)}{_left_out(found.irrelevant_cost)}."
        )
    straight = [i for i in found.underrated if found.importances.upper[i] >= found.NEGLIGIBLE]
    small = [i for i in found.underrated if i not in straight]
    if straight:
        reason = "The value is nearly linear in {}, so the relevance is small, but {} wanted"
        said.append(
            f"{reason.format(listed(names, straight), _is(straight))}: {_loss([found.costs[i] for i in straight])}."
        )
    if small:
        reason = "Less than 1 % of the value’s variance is lost without {}, but {} wanted"
        said.append(f"{reason.format(listed(names, small), _is(small))}: {_loss([found.costs[i] for i in small])}.")
    if found.costs and not found.irrelevant:
        said.append("No input is irrelevant.")
    return said


def cost_cells(cost: Cost) -> tuple[str, str]:
    """Change of the evidence, and of the error at left-out episodes."""
    change = _signed(-cost.evidence)
    if not np.isfinite(cost.error):
        return change, MISSING
    return change, f"{_signed(100 * cost.error)} ± {number(200 * cost.standard_error, digits=2)} %"


def listed(names: Sequence[str], inputs: Sequence[int]) -> str:
    """Names of some inputs, not too many."""
    more = len(inputs) - MAX_NAMES
    return ", ".join(names[i] for i in inputs[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _alike(found: Relevance, names: Sequence[str]) -> Iterator[str]:
    for group in found.alike:
        *first, last = (names[i] for i in group)
        left_out = "either can be left out, not both" if len(group) == 2 else "each can be left out, not all of them"
        yield f"{', '.join(first)} and {last} carry the same information: {left_out}."


def _loss(costs: Sequence[Cost]) -> str:
    """What leaving out each of some inputs costs."""
    without = "without it" if len(costs) == 1 else "without any one of them"
    if all(cost.evidence >= cost.TOLERATED for cost in costs):
        return f"{without} the evidence decreases by {_span([number(cost.evidence, 10.0) for cost in costs])} nats"
    errors = [percent(cost.error) for cost in costs if cost.error > 0.0]
    return f"{without} the squared error at left-out episodes grows, by {_span(errors)} of the variance of returns"


def _is(inputs: Sequence[int]) -> str:
    return "it is" if len(inputs) == 1 else "each is"


def _span(numbers: Sequence[str]) -> str:
    """Some numbers in order, not too many."""
    shown = list(numbers[:MAX_NAMES]) + ([MISSING] if len(numbers) > MAX_NAMES else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _left_out(cost: Cost) -> str:
    return "" if np.isnan(cost.error) else ", and left-out episodes are predicted no worse"


def _signed(value: float) -> str:
    text = number(value, 10.0 if abs(value) >= 10.0 else 1.0)
    return text if text.startswith("−") or float(value) <= 0.0 else f"+{text}"
