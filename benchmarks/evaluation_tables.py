"""Markdown tables of `evaluate.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import stats
from trained_agents import TRAININGS

Row = dict[str, Any]
Case = tuple[str, str]  # agent, kind of actions

PEERS = {
    "GPTD()": "`GPTD()`",
    "GPTD around the critic": "`GPTD(mean=critic)`",
    "critic": "critic",
    "nearest neighbours": "nearest neighbours",
    "scikit-learn GPR": "scikit-learn GPR",
    "neural TD": "neural TD",
    "average return": "average return",
}
LEVELS = (50, 80, 95)
NOISY = 0.2  # share of the 95 % interval's half width beyond which the truth's noise lowers coverage


def tables(ours: list[Row], contestants: list[Row], starts: list[Row]) -> str:
    """Everything that docs/evaluation.md shows."""
    parts = []
    if ours:
        parts += [main_table(ours, contestants), summary(ours, contestants)]
    if contestants:
        parts += ["**RMSE of each** (mean over data sets)", peers_table(ours, contestants)]
    if starts:
        parts += ["**The value from the start**", starts_table(starts)]
    return "\n\n".join(parts)


def cases(rows: Iterable[Row]) -> dict[Case, list[Row]]:
    """Rows by agent and kind of actions, in the order of `TRAININGS`."""
    found: dict[Case, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["agent"], row["mode"]].append(row)
    order = [training.name for training in TRAININGS]
    return {case: found[case] for case in sorted(found, key=lambda case: (order.index(case[0]), case[1]))}


def design(agent: str) -> bool:
    return any(training.name == agent and training.design for training in TRAININGS)


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Mean over data sets, and half the width of its 95 % interval (Student)."""
    n = len(values)
    if n < 2:
        return float(np.mean(values)), np.nan
    return float(np.mean(values)), float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def number(value: float) -> str:
    """Three digits."""
    if not np.isfinite(value):
        return "–"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value))))) if value else 0
    return f"{value:.{min(digits, 4)}f}"


def compared(ours: list[Row], others: list[Row]) -> dict[str, tuple[float, float]]:
    """For each of the others its mean RMSE and ours, over the data sets that both have."""
    found = {}
    for name in PEERS:
        theirs = {row["data_set"]: row["rmse"][name] for row in others if name in row["rmse"]}
        mine = {row["data_set"]: row["rmse"] for row in ours if row["data_set"] in theirs}
        if mine:
            found[name] = float(np.mean([theirs[i] for i in mine])), float(np.mean(list(mine.values())))
    return found


def best_peer(ours: list[Row], others: list[Row]) -> tuple[str, float, float]:
    """The one of the others that does best beside ours, its mean RMSE, and ours as a multiple of it."""
    means = compared(ours, others)
    if not means:
        return "–", np.nan, np.nan
    ratios = {name: mine / max(theirs, 1e-12) for name, (theirs, mine) in means.items()}
    name = max(ratios, key=lambda name: ratios[name])
    return name, means[name][0], ratios[name]


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    rule = "|" + "|".join(["---"] * 2 + ["--:"] * (len(heads) - 2)) + "|"
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])


def main_table(ours: list[Row], contestants: list[Row]) -> str:
    """Error, coverage and cost of `evaluate_agent`, one line per agent and kind of actions."""
    theirs = cases(contestants)
    heads = ["agent", "actions", "sets", "V varies by", "**RMSE**", "best of the others", "ratio"]
    heads += [f"{level} %" for level in LEVELS] + ["± (95 %)", "seconds"]
    lines = []
    for (agent, actions), rows in cases(ours).items():
        rmse, half = mean_and_half([row["rmse"] for row in rows])
        name, best, ratio = best_peer(rows, theirs.get((agent, actions), []))
        coverage = [100 * float(np.mean([row[f"coverage {level}%"] for row in rows])) for level in LEVELS]
        width = float(np.mean([row["half width 95%"] for row in rows]))
        noisy = "*" if float(np.mean([row["truth noise"] for row in rows])) > NOISY * width else ""
        lines.append(
            [
                agent + (" (design)" if design(agent) else ""),
                actions,
                str(len(rows)),
                number(float(np.mean([row["spread"] for row in rows]))),
                f"**{number(rmse)}** ± {number(half)}",
                f"{PEERS.get(name, name)} {number(best)}",
                f"{ratio:.2f}",
                *(f"{share:.0f}{noisy}" for share in coverage),
                number(width),
                f"{np.mean([row['seconds'] for row in rows]):.0f}",
            ]
        )
    return markdown(heads, lines)


def summary(ours: list[Row], contestants: list[Row]) -> str:
    """What the tables come to, in sentences."""
    theirs = cases(contestants)
    ratios, coverage, other_data = [], [], False
    for case, rows in cases(ours).items():
        peers = theirs.get(case, [])
        ratios.append(best_peer(rows, peers)[2])
        coverage.append([100 * np.mean([row[f"coverage {level}%"] for row in rows]) for level in LEVELS])
        hashes = {row["data_set"]: row["data_hash"] for row in peers}
        other_data |= any(hashes.get(row["data_set"], row["data_hash"]) != row["data_hash"] for row in rows)
    known = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    of_level = np.array(coverage)
    good = (
        ((of_level[:, 0] >= 40) & (of_level[:, 0] <= 62)).sum(),
        ((of_level[:, 2] >= 91) & (of_level[:, 2] <= 98)).sum(),
    )
    lowest, highest = of_level.min(axis=0), of_level.max(axis=0)
    rmse = (
        f"RMSE is at most 1.05 × that of the best other in {(known <= 1.05).sum()} of {len(known)} cases, and lower in "
        f"{(known < 1.0).sum()}; the largest ratio is {known.max(initial=0.0):.2f}."
    )
    held = (
        f"95 % intervals hold within 91–98 % in {good[1]} of {len(of_level)} cases ({lowest[2]:.0f}–{highest[2]:.0f} "
        f"%), 50 % intervals within 40–62 % in {good[0]} ({lowest[0]:.0f}–{highest[0]:.0f} %)."
    )
    noise = (
        "\\* The noise of the truth is more than a fifth of the 95 % interval's half width and lowers this coverage."
    )
    sentences = [rmse, held, noise]
    if other_data:
        sentences.append("The others learnt from other data sets of the same agents and sizes.")
    return "\n".join(sentences)


def peers_table(ours: list[Row], contestants: list[Row]) -> str:
    """RMSE of every method."""
    mine = cases(ours)
    heads = ["agent", "actions", "sets", "`evaluate_agent`", *PEERS.values()]
    lines = []
    for case, rows in cases(contestants).items():
        of_each = [[row["rmse"][name] for row in rows if name in row["rmse"]] for name in PEERS]
        of_each.insert(0, [row["rmse"] for row in mine.get(case, [])])
        means = [float(np.mean(values)) if values else np.nan for values in of_each]
        cells = [f"**{number(mean)}**" if mean == np.nanmin(means) else number(mean) for mean in means]
        lines.append([*case, str(len(rows)), *cells])
    seconds = [[row["seconds"][name] for row in contestants if name in row["seconds"]] for name in PEERS]
    seconds.insert(0, [row["seconds"] for row in ours])
    totals = [number(float(np.mean(values))) if values else "–" for values in seconds]
    return markdown(heads, [*lines, ["processor seconds", "", "", *totals]])


def starts_table(starts: list[Row]) -> str:
    """Coverage of the value from the start, and its width beside that of an average of returns."""
    lines = []
    for (agent, actions), rows in cases(starts).items():
        held = [row["lower"] <= row["truth"] <= row["upper"] for row in rows]
        plain = [abs(row["mean return"] - row["truth"]) <= row["return half width"] for row in rows]
        width = np.array([(row["upper"] - row["lower"]) / 2 for row in rows])
        ratio = np.median(width / np.array([row["return half width"] for row in rows]))
        errors = [
            np.sqrt(np.mean([(row[name] - row["truth"]) ** 2 for row in rows])) for name in ("mean", "mean return")
        ]
        low, high = stats.binomtest(sum(held), len(held)).proportion_ci(method="wilson")
        lines.append(
            [
                agent,
                actions,
                str(len(rows)),
                number(rows[0]["truth"]),
                f"{100 * np.mean(held):.0f} ({100 * low:.0f}–{100 * high:.0f})",
                f"{100 * np.mean(plain):.0f}",
                number(float(errors[0])),
                number(float(errors[1])),
                number(float(np.mean(width))),
                f"{ratio:.2f}",
            ]
        )
    heads = ["agent", "actions", "repeats", "V of the start", "**95 % holds**", "returns' 95 % holds", "RMSE"]
    return markdown([*heads, "RMSE of mean returns", "±", "± / that of returns"], lines)
