"""Scores of contestants on tasks with known values: how they are measured, stored and laid out as tables."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import astuple, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVELS = (0.5, 0.8, 0.95)
FLOOR = 0.01  # errors below this share of the spread of the truth count as this share in ratios


@dataclass(frozen=True)
class Prediction:
    """Estimates at the states that were asked about."""

    mean: Array  # [n]
    intervals: Sequence[tuple[Array, Array]] | None = None  # lower and upper, for each of LEVELS
    note: str = ""


@dataclass(frozen=True)
class Score:
    """One contestant on one task with one seed."""

    task: str
    contestant: str
    seed: int
    rmse: float
    spread: float  # standard deviation of the truth
    coverage: tuple[float, ...]  # of the intervals, for each of LEVELS; empty without intervals
    seconds: float  # of one processor
    note: str = ""


def measure(task: str, contestant: str, seed: int, truth: Array, predict: Callable[[], Prediction]) -> Score:
    """Time a prediction and compare it with the truth."""
    began = time.process_time()
    found = predict()
    seconds = time.process_time() - began
    rmse = float(np.sqrt(np.mean((found.mean - truth) ** 2)))
    coverage = tuple(float(np.mean((lower <= truth) & (truth <= upper))) for lower, upper in found.intervals or ())
    return Score(task, contestant, seed, rounded(rmse), rounded(truth.std()), coverage, rounded(seconds), found.note)


def rounded(x: float) -> float:
    """Five digits, which is what is stored."""
    return float(f"{x:.5g}")


# ------------------------------------------------------------------------------------------ running


def run_all(jobs: Sequence[tuple[Any, ...]], run: Callable[..., list[Score]], processes: int) -> Iterable[list[Score]]:
    """Yield the scores of ``run(*job)`` as they come, from several processes if asked for."""
    if processes <= 1:
        for job in jobs:
            yield run(*job)
        return
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # read by processes that are spawned
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run, *job) for job in jobs]):
            yield done.result()


def add_arguments(parser: argparse.ArgumentParser, results: Path) -> None:
    """Options of `run_and_store`."""
    parser.add_argument("--json", type=Path, default=results, help="where scores are stored")
    parser.add_argument("--merge", action="store_true", help="keep what is stored of other tasks, contestants, seeds")
    parser.add_argument("--from-json", action="store_true", help="run nothing, print the tables of what is stored")
    parser.add_argument("--processes", type=int, default=1)


def run_and_store(
    jobs: Sequence[tuple[Any, ...]], run: Callable[..., list[Score]], args: argparse.Namespace, command: str
) -> list[Score]:
    """Run the jobs and store their scores one by one; or read what is stored."""
    found: list[Score] = []
    if args.from_json or (args.merge and args.json.exists()):
        found = load(args.json)
        command = f"{json.loads(args.json.read_text(encoding='utf-8'))['command']}; {command}"
    if args.from_json:
        return found
    for new in run_all(jobs, run, args.processes):
        found = merge(found, new)
        save(args.json, found, command)
        done = "  ".join(f"{s.contestant} {s.rmse:.3g} ({s.seconds:.1f} s)" for s in new)
        print(f"- {new[0].task}, seed {new[0].seed}: {done}", file=sys.stderr, flush=True)
    return found


# ------------------------------------------------------------------------------------------ files


def save(path: Path, scores: Iterable[Score], command: str) -> None:
    """Write a JSON file with one score a line."""
    rows = [json.dumps(astuple(s), ensure_ascii=False) for s in sorted(scores, key=astuple)]
    head = json.dumps(
        dict(command=command, levels=LEVELS, columns=list(Score.__dataclass_fields__)), ensure_ascii=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head[:-1] + ', "scores": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


def load(path: Path) -> list[Score]:
    """Read what `save` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))["scores"]
    return [Score(*row[:5], tuple(row[5]), *row[6:]) for row in rows]


def merge(old: Iterable[Score], new: Iterable[Score]) -> list[Score]:
    """All scores; new ones replace old ones of the same task, contestant and seed."""
    return list({(s.task, s.contestant, s.seed): s for s in (*old, *new)}.values())


# ------------------------------------------------------------------------------------------ tables


@dataclass(frozen=True)
class Field:
    """Scores by task and contestant.

    Attributes
    ----------
    reference : str
        The contestant that the others are compared with.
    own : str
        Contestants whose names start so are variants of the reference, not rivals.
    groups : mapping from task to the name of its group
    """

    scores: Sequence[Score]
    reference: str
    own: str
    groups: Mapping[str, str]

    @property
    def tasks(self) -> list[str]:
        present = {s.task for s in self.scores}
        return [name for name in self.groups if name in present]

    @property
    def contestants(self) -> list[str]:
        return list(dict.fromkeys(s.contestant for s in self.scores))

    @property
    def rivals(self) -> list[str]:
        return [name for name in self.contestants if not name.startswith(self.own)]

    def mean(self, task: str, contestant: str, what: Callable[[Score], float]) -> float:
        """Mean over seeds; nan if the contestant did not run."""
        values = [what(s) for s in self.scores if s.task == task and s.contestant == contestant]
        return float(np.mean(values)) if values else np.nan

    def rmse(self, task: str, contestant: str) -> float:
        return self.mean(task, contestant, lambda s: s.rmse)

    def floored(self, task: str, contestant: str) -> float:
        """RMSE, at least `FLOOR` times the spread of the truth."""
        return self.mean(task, contestant, lambda s: max(s.rmse, FLOOR * s.spread))

    def ratio(self, task: str, contestant: str) -> float:
        """RMSE of the reference over that of the contestant."""
        return self.floored(task, self.reference) / self.floored(task, contestant)

    def best_rival(self, task: str) -> str | None:
        """The rival with the least error."""
        ran = [name for name in self.rivals if not np.isnan(self.rmse(task, name))]
        return min(ran, key=lambda name: self.rmse(task, name), default=None)

    def tables(self) -> str:
        """All tables as Markdown."""
        parts = [self.rmse_table(), self.summary(), self.coverage_table(), self.seconds_table()]
        return "\n\n".join(part for part in parts if part)

    def rmse_table(self) -> str:
        """RMSE of every contestant on every task, and the reference's over that of the best rival."""
        judged = self.reference in self.contestants and bool(self.rivals)
        heads = ["task", *self.contestants, *(["best rival", "ratio"] if judged else [])]
        rows = []
        for task in self.tasks:
            row = [task, *(shown(self.rmse(task, name)) for name in self.contestants)]
            if judged and (best := self.best_rival(task)):
                ratio = self.ratio(task, best)
                row += [best, f"{ratio:.2f}" if ratio <= 1 else f"**{ratio:.2f}**"]
            rows.append(row)
        return markdown("RMSE, mean over seeds", heads, rows)

    def summary(self) -> str:
        """The reference's RMSE over that of each contestant: geometric means over groups of tasks, and the worst."""
        if self.reference not in self.contestants:
            return ""
        groups = list(dict.fromkeys(self.groups[task] for task in self.tasks))
        rows = []
        for name in [c for c in self.contestants if c != self.reference]:
            ratios = {task: self.ratio(task, name) for task in self.tasks}
            ratios = {task: ratio for task, ratio in ratios.items() if not np.isnan(ratio)}
            rows.append([name, *self._means_and_worst(ratios, groups)])
        best = {task: self.ratio(task, rival) for task in self.tasks if (rival := self.best_rival(task))}
        if best:
            rows.append(["best rival of each task", *self._means_and_worst(best, groups)])
        heads = [f"RMSE of {self.reference} over", "all tasks", *groups, "lower on", "worst"]
        return markdown(f"RMSE of {self.reference} over that of others, geometric means over tasks", heads, rows)

    def _means_and_worst(self, ratios: Mapping[str, float], groups: Sequence[str]) -> list[str]:
        if not ratios:
            return ["–"] * (len(groups) + 3)
        means = [geometric_mean([r for task, r in ratios.items() if self.groups[task] == group]) for group in groups]
        worst = max(ratios, key=lambda task: ratios[task])
        n_lower = sum(ratio < 1 for ratio in ratios.values())
        cells = [shown(geometric_mean(ratios.values())), *(shown(mean) for mean in means)]
        return [*cells, f"{n_lower} of {len(ratios)}", f"{ratios[worst]:.2f} ({worst})"]

    def coverage_table(self) -> str:
        """Share of true values inside the intervals at each level."""
        names = [n for n in self.contestants if any(s.coverage for s in self.scores if s.contestant == n)]
        if not names:
            return ""

        def cells(task: str, name: str) -> str:
            found = [self.mean(task, name, lambda s, i=i: s.coverage[i]) for i in range(len(LEVELS))]
            return "–" if np.isnan(found).any() else " / ".join(f"{100 * c:.0f}" for c in found)

        rows = [[task, *(cells(task, name) for name in names)] for task in self.tasks]
        last = len(LEVELS) - 1
        at_top = {n: [self.mean(t, n, lambda s: s.coverage[last]) for t in self.tasks] for n in names}
        rows.append([f"**mean at {LEVELS[-1]:.0%}**", *(f"{100 * np.nanmean(at_top[n]):.0f}" for n in names)])
        rows.append([f"**least at {LEVELS[-1]:.0%}**", *(f"{100 * np.nanmin(at_top[n]):.0f}" for n in names)])
        levels = " / ".join(f"{100 * level:.0f}" for level in LEVELS)
        return markdown(f"Coverage of {levels} % intervals, in %", ["task", *names], rows)

    def seconds_table(self) -> str:
        """Processor seconds of a fit and its predictions."""
        names = self.contestants
        rows = [[task, *(shown(self.mean(task, name, lambda s: s.seconds)) for name in names)] for task in self.tasks]
        return markdown("Processor seconds", ["task", *names], rows)


def geometric_mean(ratios: Iterable[float]) -> float:
    """exp of the mean logarithm; nan of nothing."""
    values = list(ratios)
    return float(np.exp(np.mean(np.log(values)))) if values else np.nan


def shown(x: float) -> str:
    """Three digits; a dash for nan."""
    return "–" if np.isnan(x) else f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"


def markdown(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table under its title."""
    lines = [f"**{title}**", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
