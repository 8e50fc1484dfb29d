"""Tables of benchmark results as Markdown, from benchmarks/results/*.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def pages(results: Path) -> dict[str, str]:
    """Name of a part → its text."""
    made: dict[str, Callable[[Any], str]] = {
        "coverage": _coverage,
        "fits": _fits,
        "markov": _markov,
        "markov_12000": _markov,
        "imports": _imports,
        "threads": _threads,
    }
    tables = {name: write(json.loads((results / f"{name}.json").read_text())) for name, write in made.items()}
    return tables | {"evaluate": _evaluate(results)}


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    names = list(heads)
    lines = [_row(names), _row("---" for _ in names), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _machine(found: dict[str, Any]) -> str:
    """Versions and cores that a result file names."""
    versions = ", ".join(f"{name} {number}" for name, number in found.get("versions", {}).items())
    command = f"Command: `{found['command'].strip()}`. " if "command" in found else ""
    return f"\n{command}Measured with {versions}, on {found['cores']} shared cores.\n"


def _coverage(found: dict[str, Any]) -> str:
    rows = []
    for estimator, systems in found.items():
        if estimator == "levels":
            continue
        for system, scores in systems.items():
            shares = (
                f"{100 * c:.1f} ± {100 * e:.1f}"
                for c, e in zip(scores["coverage"], scores["standard_error"], strict=True)
            )
            smallest = min(scores["p_value"])
            rows.append([estimator, system, scores["sets"], *shares, f"{smallest:.2g}"])
    levels = [f"{100 * level:.0f} %" for level in found["levels"]]
    return table(["estimator", "system", "data sets", *levels, "smallest p-value"], rows)


def _fits(found: dict[str, Any]) -> str:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in found["fits"]:
        groups.setdefault((row["task"], row["n"]), []).append(row)
    rows = []
    for (task, n), same in groups.items():
        ours, peer = (sum(row[key] for row in same) / len(same) for key in ("seconds", "scikit_learn_seconds"))
        rows.append([task, f"{n:,}".replace(",", " "), f"{ours:.2f}", f"{peer:.2f}", f"{peer / ours:.1f}"])
    heads = ["task", "transitions", "`GPTD()`, s", "scikit-learn, s", "ratio"]
    irrelevant = [[n, hits] for n, hits in found["irrelevant"].items()]
    units = [[what, n] for what, n in found["units"].items()]
    return "\n".join(
        [
            table(heads, rows),
            "The relevance of x among irrelevant inputs, in 20 gridworlds each:\n",
            table(["irrelevant inputs", "found in"], irrelevant),
            "Other units of rewards or inputs: in how many of 200 problems V changes by more than a thousandth:\n",
            table(["units", "problems"], units),
            _machine(found),
        ]
    )


def _markov(found: list[dict[str, Any]]) -> str:
    rows = [
        [
            row["group"],
            row["system"],
            row["n_datasets"],
            f"{row['at_5_percent']:.2f}",
            f"{row['at_1_percent']:.2f}",
            f"{row['median_pvalue']:.1g}",
            f"{row['seconds']:.2f} s",
        ]
        for row in found
    ]
    return table(["", "system", "data sets", "rejected at 5 %", "at 1 %", "median p", "time"], rows)


def _imports(found: dict[str, Any]) -> str:
    rows = [[f"`import {name}`", f"{seconds:.2f} s"] for name, seconds in found["seconds"].items()]
    return table(["", "processor time"], rows) + _machine(found)


def _threads(found: dict[str, Any]) -> str:
    settings = list(found["fits"][0]["times"])
    rows = [
        [fit["case"], fit["n_busy"], *(f"{fit['times'][name]['wall']:.2f} s" for name in settings)]
        for fit in found["fits"]
    ]
    return table(["fit", "busy processes", *settings], rows) + _machine(found)


EARLIER = """Four agents, results of an earlier version; those of the present one are written by `make tables`.

10 000 transitions each; truth is V^π from 200 fresh rollouts (one where nothing is random) at each of 400 states of
fresh episodes. The columns: how much V varies, RMSE of V, of the agent's critic, of scikit-learn's Gaussian-process
regression on returns and of Monte Carlo; the share of true values inside the 50, 80 and 95 % intervals, and the mean
half-width of the 95 % ones. One row for each data set.

"""


def _evaluate(results: Path) -> str:
    """What `make tables` wrote, or the stored results of the earlier benchmark."""
    written = results.parents[1] / "docs" / "evaluation.md"
    if written.exists():
        return written.read_text(encoding="utf-8").partition("\n")[2]  # without its title
    earlier = results / "evaluate" / "results.json"
    if not earlier.exists():
        return "Not measured yet: `python benchmarks/evaluate.py`, then `make tables`.\n"
    heads = ["agent", "actions", "V varies by", "**RMSE**", "critic", "sklearn GPR", "Monte Carlo"]
    rows = []
    for row in json.loads(earlier.read_text())["rows"]:
        errors = (f"{row[key]:.2f}" for key in ("spread", "rmse", "critic", "sklearn", "monte carlo"))
        shares = (f"{100 * row[f'coverage {level}%']:.0f}" for level in (50, 80, 95))
        actions = "most likely" if row["deterministic"] else "sampled"
        rows.append([row["agent"], actions, *errors, *shares, f"{row['half width']:.2f}"])
    return EARLIER + table([*heads, "50 %", "80 %", "**95 %**", "±"], rows)
