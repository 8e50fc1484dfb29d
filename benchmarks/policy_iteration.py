"""Policy iteration beside DQN and PPO: how many environment steps until a task is solved?

    python benchmarks/policy_iteration.py --seeds 10                 everything; what DQN and PPO did is cached
    python benchmarks/policy_iteration.py --seeds 10 --resume        go on where an interrupted run stopped
    python benchmarks/policy_iteration.py --seeds 0 --resume         tables and figure of what has been run
    python benchmarks/policy_iteration.py --rerun-peers              train DQN and PPO again as well
    python benchmarks/policy_iteration.py --seeds 1 --tasks CartPole-v1 --budget-scale 0.1 --output smoke

Our agent has one configuration for all tasks, and γ = 0.99. It is evaluated every 250 steps by 20 fresh episodes. A
task is solved at the first of three evaluations in a row that attain its level; see `control_tasks` for the levels and
`control_peers` for the settings of DQN and PPO. Our agent takes all the steps of its budget, the others stop once they
hold the level, so that their final return is that of a policy that has just succeeded, or of one that never did.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from control_peers import ALGORITHMS, EVERY, PACKAGES, RESULTS, LearningCurve, load, summary, train_all, versions, write
from control_tasks import TASKS, ControlTask, Run
from exact import fix_threads, table
from scipy.stats import t as student

GAMMA = 0.99
OURS = "ours"
STYLE = {
    OURS: dict(color="#d55e00", label="policy iteration (ours)"),
    "dqn": dict(color="#0072b2", label="DQN"),
    "ppo": dict(color="#777777", label="PPO"),
}
FRACTION, RATIO = 0.9, 5.0  # what is aimed at: seeds that solve a task, DQN's steps over ours

Runs = dict[str, dict[str, list[Run]]]  # of an algorithm, on a task


# -------------------------------------------------------------------------------------- our agent


def train_ours(name: str, seed: int, budget: int, every: int, stop_when_held: bool) -> Run:
    """One training of our agent."""
    from gptd_rl.agents import PolicyIteration

    task, run = TASKS[name], Run(seed, budget)
    env = task.make()
    curve = LearningCurve(task, run, every, stop_when_held=stop_when_held)
    PolicyIteration(env, gamma=GAMMA, seed=seed).learn(budget, callback=curve)
    env.close()
    return run


def one_thread() -> None:
    """Keep torch to one thread; BLAS has been told by the environment."""
    import torch

    torch.set_num_threads(1)


@dataclass
class Archive:
    """Our trainings in a JSON file, written after each of them: task → command, versions, runs."""

    path: Path
    content: dict[str, Any]

    @classmethod
    def open(cls, path: Path, forget: Sequence[str] = ()) -> Archive:
        """What the file holds, if there is one, but for the tasks to forget."""
        content = json.loads(path.read_text()) if path.exists() else {}
        return cls(path, {name: entry for name, entry in content.items() if name not in forget})

    def runs(self, name: str) -> list[Run]:
        """Trainings on a task, by seed."""
        return [Run.from_json(run) for run in self.content.get(name, {"runs": []})["runs"]]

    def add(self, name: str, run: Run) -> None:
        """Keep a training, in the place of an older one with the same seed."""
        others = [other for other in self.runs(name) if other.seed != run.seed]
        runs = sorted([*others, run], key=lambda run: run.seed)
        command = f"python benchmarks/policy_iteration.py {shlex.join(sys.argv[1:])}".strip()
        entry = dict(command=command, versions=versions((*PACKAGES, "scipy", "gptd-rl")))
        self.content[name] = entry | dict(runs=[run.to_json() for run in runs])
        write(self.path, self.content)


def train_seeds(archive: Archive, budgets: dict[str, int], args: argparse.Namespace) -> list[str]:
    """Train our agent where the archive lacks a run with that seed and budget; returns what failed."""
    failures = []
    jobs = [
        (name, seed, budget, args.eval_every, args.stop_when_held)
        for name, budget in budgets.items()
        for seed in range(args.seeds)
        if not any(run.seed == seed and run.budget == budget for run in archive.runs(name))
    ]
    spawn = multiprocessing.get_context("spawn")  # so that BLAS reads its environment again
    with ProcessPoolExecutor(args.processes, spawn, one_thread) as pool:
        futures = {pool.submit(train_ours, *job): job for job in jobs}
        for future in as_completed(futures):
            name, seed, *_ = futures[future]
            if error := future.exception():
                failures.append(f"{name} seed {seed}: {error!r}")
                print(failures[-1], flush=True)
                continue
            archive.add(name, future.result())
            print(f"{name} seed {seed}: {summary(future.result())}", flush=True)
    return failures


# -------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Steps:
    """Median number of steps to hold the level.

    Attributes
    ----------
    median : float
        With a run that never held the level counted at its budget.
    censored : bool
        Whether the median is such a run, and the truth therefore more.
    """

    median: float
    censored: bool

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Steps:
        """Of at least one run."""
        counted = [run.budget if run.held is None else run.held for run in runs]
        uncounted = [np.inf if run.held is None else run.held for run in runs]
        return cls(float(np.median(counted)), bool(np.isinf(np.median(uncounted))))

    def __str__(self) -> str:
        return ("≥ " if self.censored else "") + f"{self.median:,.0f}"


@dataclass(frozen=True)
class Ratio:
    """How many times our steps another needs.

    Attributes
    ----------
    value : float
    at_least, at_most : bool
        Whether it is a bound, the other's or our median being a run that never held the level.
    """

    value: float
    at_least: bool
    at_most: bool

    @classmethod
    def of(cls, theirs: Sequence[Run], ours: Sequence[Run]) -> Ratio:
        """Ratio of the medians."""
        a, b = Steps.of(theirs), Steps.of(ours)
        return cls(a.median / b.median, a.censored, b.censored)

    @classmethod
    def geometric_mean(cls, ratios: Sequence[Ratio]) -> Ratio:
        """Of at least one; it bounds what one of them bounds."""
        mean = float(np.exp(np.mean([np.log(ratio.value) for ratio in ratios])))
        return cls(mean, any(ratio.at_least for ratio in ratios), any(ratio.at_most for ratio in ratios))

    def __str__(self) -> str:
        sign = {(True, False): "≥ ", (False, True): "≤ ", (True, True): "? ", (False, False): ""}
        return f"{sign[self.at_least, self.at_most]}{self.value:.1f}"


def solved(runs: Sequence[Run]) -> float:
    """Fraction of runs that held the level."""
    return float(np.mean([run.held is not None for run in runs]))


def interval(values: Sequence[float]) -> str:
    """Mean and half of its 95 % interval, by Student's t."""
    if len(values) < 2:
        return f"{values[0]:.4g}"
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.4g} ± {half:.2g}"


def cells(runs: Sequence[Run]) -> list[str]:
    """Steps, seeds that solved it, final return, and wall time of some trainings."""
    if not runs:
        return ["–"] * 4
    n_solved = sum(run.held is not None for run in runs)
    seconds = np.median([run.seconds for run in runs])
    return [
        str(Steps.of(runs)),
        f"{n_solved}/{len(runs)}",
        interval([run.returns[-1] for run in runs]),
        f"{seconds:.0f} s",
    ]


def tables(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """Markdown: one table an algorithm, then the steps of all side by side."""
    parts = []
    for algorithm, style in STYLE.items():
        head = [
            "task",
            "level",
            "steps to hold it (median)",
            "solved",
            "final return, mean ± 95 %",
            "training (median)",
        ]
        rows = [[task.name, f"{task.level:g}", *cells(runs[algorithm][task.name])] for task in tasks]
        parts += [f"**{style['label']}**", table(head, rows)]
    return "\n\n".join(
        [*parts, "**Steps to hold the level, side by side**", comparison(runs, tasks), reach(runs, tasks)]
    )


def comparison(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """Markdown: steps of all, and how many times ours the others need."""
    factors = {algorithm: ratios(runs, tasks, algorithm) for algorithm in ALGORITHMS}
    rows = []
    for task in tasks:
        steps = [str(Steps.of(runs[a][task.name])) if runs[a][task.name] else "–" for a in STYLE]
        rows.append([task.name, *steps, *(str(factors[a].get(task.name, "–")) for a in ALGORITHMS)])
    means = [str(Ratio.geometric_mean([*factors[a].values()])) if factors[a] else "–" for a in ALGORITHMS]
    rows.append(["geometric mean", *[""] * len(STYLE), *means])
    return table(["task", *STYLE, *(f"{a} / {OURS}" for a in ALGORITHMS)], rows)


def ratios(runs: Runs, tasks: Sequence[ControlTask], algorithm: str) -> dict[str, Ratio]:
    """How many times our steps an algorithm needs, on the tasks that both have been trained on."""
    pairs = {task.name: (runs[algorithm][task.name], runs[OURS][task.name]) for task in tasks}
    return {name: Ratio.of(theirs, ours) for name, (theirs, ours) in pairs.items() if theirs and ours}


def reach(runs: Runs, tasks: Sequence[ControlTask]) -> str:
    """Whether what is aimed at is reached."""
    missed = [task.name for task in tasks if not runs[OURS][task.name] or solved(runs[OURS][task.name]) < FRACTION]
    lines = [f"- every task solved by {FRACTION:.0%} of the seeds within the budget: "]
    lines[0] += f"**no**, not {', '.join(missed)}" if missed else "yes"
    if factors := ratios(runs, tasks, "dqn"):
        mean = Ratio.geometric_mean([*factors.values()])
        verdict = "**no**" if mean.value < RATIO else "not shown" if mean.at_most else "yes"
        lines.append(f"- at least {RATIO:g} times fewer steps than DQN on the geometric mean: {verdict}, {mean}")
    lines.append(
        "- A run that never held the level counts at its budget; ≥, ≤ and ? mark medians and ratios it decides."
    )
    return "\n".join(lines)


# -------------------------------------------------------------------------------------- figure


def band(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Steps [k], and the 10, 50 and 90 % quantiles of the return over seeds [3, k].

    Neighbouring evaluations are averaged where they are too close for a logarithmic axis. The last one of a training
    that stopped at its goal stands to the end.
    """
    steps, last = [max(run.steps[0] for run in runs)], max(run.steps[-1] for run in runs)
    for step in np.unique(np.concatenate([run.steps for run in runs])):
        if step >= 1.06 * steps[-1] or steps[-1] < step == last:
            steps.append(step)
    returns = [smoothed(run, steps) for run in runs]  # [n_runs, k]
    return np.array(steps), np.quantile(returns, [0.1, 0.5, 0.9], axis=0)


def smoothed(run: Run, steps: Sequence[int]) -> list[float]:
    """Means of the evaluations since the last of `steps`, or the last evaluation where there is none."""
    ends = np.searchsorted(run.steps, steps, side="right")
    starts = np.minimum(np.r_[0, ends[:-1]], ends - 1)
    return [float(np.mean(run.returns[i:j])) for i, j in zip(starts, ends, strict=True)]


def figure(runs: Runs, tasks: Sequence[ControlTask], path: Path) -> None:
    """Learning curves: a panel for each task."""
    from matplotlib.figure import Figure

    n_columns = min(4, len(tasks) + 1)
    n_rows = -(-(len(tasks) + 1) // n_columns)
    fig = Figure(figsize=(3.6 * n_columns, 2.9 * n_rows), layout="constrained")
    axes = fig.subplots(n_rows, n_columns, squeeze=False)
    panels: Iterator[Any] = iter(axes.flat)
    for task in tasks:
        panel(next(panels), task, {algorithm: runs[algorithm][task.name] for algorithm in STYLE})
    legend = next(panels)
    for style in STYLE.values():
        legend.plot([], [], lw=2, **style)
    legend.plot([], [], "k--", lw=1, label="level")
    legend.plot([], [], "ko", ms=7, label="held from here on (median)")
    legend.legend(loc="center", frameon=False, title="median, and 10 to 90 % of the seeds")
    for unused in (legend, *panels):
        unused.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=150, facecolor="white")


def panel(ax: Any, task: ControlTask, runs: dict[str, list[Run]]) -> None:
    """Return over steps on one task."""
    ax.axhline(task.level, color="black", ls="--", lw=1, zorder=1)
    for algorithm, curves in reversed(runs.items()):  # ours on top
        if not curves:
            continue
        color = STYLE[algorithm]["color"]
        steps, (low, median, high) = band(curves)
        ax.fill_between(steps, low, high, color=color, alpha=0.18, lw=0)
        ax.plot(steps, median, color=color, lw=1.8)
        held = Steps.of(curves)
        if not held.censored:
            ax.plot(held.median, task.level, "o", color=color, ms=7, mec="white", zorder=5)
    ax.set(xscale="log", title=task.name, xlabel="environment steps", ylabel="return")
    ax.xaxis.set_minor_formatter("")
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


# -------------------------------------------------------------------------------------- the command


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="trainings of our agent on each task")
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--budget-scale", type=float, default=1.0, help="share of the tasks' budgets, for a smoke test")
    parser.add_argument("--eval-every", type=int, default=EVERY, help="steps between evaluations of our agent")
    parser.add_argument("--stop-when-held", action="store_true", help="stop our agent, too, once it holds the level")
    parser.add_argument("--resume", action="store_true", help="keep the trainings of our agent that the output has")
    parser.add_argument("--rerun-peers", action="store_true", help="train DQN and PPO again instead of reading results")
    parser.add_argument("--peers-seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="trainings of our agent at a time")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of ours.json and learning_curves.png")
    return parser.parse_args()


def main() -> None:
    """Train, print the tables, draw the curves."""
    args = arguments()
    fix_threads(1)
    one_thread()
    tasks = [TASKS[name] for name in args.tasks]
    if args.rerun_peers:
        for algorithm in ALGORITHMS:
            for task in tasks:
                train_all(algorithm, task, args.peers_seeds, rerun=True)
    archive = Archive.open(args.output / "ours.json", forget=() if args.resume else args.tasks)
    budgets = {task.name: round(args.budget_scale * task.budget) for task in tasks}
    failures = train_seeds(archive, budgets, args)
    runs: Runs = {OURS: {task.name: archive.runs(task.name) for task in tasks}}
    for algorithm in ALGORITHMS:
        runs[algorithm] = {task.name: load(algorithm, task.name)[: args.peers_seeds] for task in tasks}
    print("\n" + tables(runs, tasks))
    figure(runs, tasks, args.output / "learning_curves.png")
    if failures:
        sys.exit("failed: " + "; ".join(failures))


if __name__ == "__main__":
    main()
