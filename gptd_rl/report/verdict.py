"""Whether the intervals of an evaluation are calibrated."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import bdtr

from gptd_rl.report.numbers import count, percent
from gptd_rl.report.records import LEVELS, Check
from gptd_rl.types import Array

MIN_EPISODES = 5  # held out; with fewer there is no verdict

Mark = Literal["calibrated", "narrow", "wide", "unknown"]

SENTENCES: dict[Mark, str] = {
    "calibrated": "The intervals are calibrated: {coverage}.",
    "narrow": "The intervals are too narrow: {coverage}. Treat their widths as a lower bound on the uncertainty.",
    "wide": "The intervals are wider than necessary: {coverage}. The values are more certain than they suggest.",
}


def verdict(check: Check) -> tuple[Mark, str]:
    """Whether the intervals are calibrated, and a sentence that says so.

    States of one episode are correlated. Coverage therefore counts as wrong only outside the sampling error of as many
    independent draws as there are held-out *episodes*.
    """
    n, coverage = check.n_episodes, check.scores[0].coverage if check.scores else ()
    if n < MIN_EPISODES or len(coverage) != len(LEVELS) or not np.isfinite(coverage).all():
        return "unknown", f"There is no verdict on the intervals from {count(n, 'held-out episode')}."
    low, high = sampling_error(np.array(LEVELS), n)
    wide, narrow = coverage - high, low - coverage
    mark: Mark = "narrow" if narrow.max() > 0 else "wide" if wide.max() > 0 else "calibrated"
    i = {"narrow": int(narrow.argmax()), "wide": int(wide.argmax())}.get(mark, len(LEVELS) - 1)
    text = (
        f"{percent(LEVELS[i])} intervals contain {percent(coverage[i])} of {len(check.observed)} fresh "
        f"{observed_quantity(check)} ({percent(low[i])} to {percent(high[i])} are within sampling error with {n} "
        "episodes)"
    )
    return mark, SENTENCES[mark].format(coverage=text)


def sampling_error(shares: Array, n: int) -> tuple[Array, Array]:
    """Lower and upper 2.5 % quantiles of binomial shares among `n` draws, each of shape (k,), for true `shares`."""
    # P(at most k of n) for each share; scipy.stats has it too, and takes a third of a second to import.
    cumulative = bdtr(np.arange(n), n, shares[:, np.newaxis])  # [k, n]
    return (cumulative < 0.025).sum(axis=1) / n, (cumulative < 0.975).sum(axis=1) / n


def observed_quantity(check: Check) -> str:
    """What was observed at the held-out states."""
    return "values" if check.kind == "rollouts" else "returns"
