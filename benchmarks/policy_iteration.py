"""Policy iteration beside DQN, PPO and QR-DQN: how many environment steps until a task is solved?

    python benchmarks/policy_iteration.py --seeds 10                 everything; what the others did is cached
    python benchmarks/policy_iteration.py --seeds 10 --resume        go on where an interrupted run stopped
    python benchmarks/policy_iteration.py --from-json                tables of what has been run; --figure draws it, too
    python benchmarks/policy_iteration.py --model none               without the model of the dynamics (ours-none.json)
    python benchmarks/policy_iteration.py --rerun-peers              train the others again as well
    python benchmarks/policy_iteration.py --seeds 1 --tasks CartPole-v1 --budget-scale 0.1 --output smoke

Our agent has one configuration for all tasks, γ = 0.99, and seeds from 130 on; its design used seeds below 130, and the
first seven of the eleven tasks. Nothing stops it early. `learn` returns after 1 000, 2 000 and 5 000 steps (the
pendulum's swing-up also 10 000, the gridworld with ten irrelevant inputs also 1 500), its policy is judged by 100 fresh
episodes, and the same agent goes on. In between it is evaluated every 250 steps by 20 fresh episodes. A task is held at
the first of three evaluations in a row that attain its level; see `control_tasks` for the levels and `control_peers`
for the settings of the others. These stop once they hold the level.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from control_peers import ALGORITHMS, load, train_all
from control_runs import EVERY, RESULTS, Archive, Job, one_thread, train_ours
from control_tables import LABELS, OURS, Runs, Steps, tables
from control_tasks import TASKS, ControlTask, Run
from exact import fix_threads

FIRST_SEED = 130  # the design used those below
MODELS: dict[str, dict[str, Any]] = {"default": {}, "gp": {"model": "gp"}, "none": {"model": None}}
COLORS = {OURS: "#d55e00", "dqn": "#0072b2", "ppo": "#777777", "qrdqn": "#009e73"}
STYLE = {name: dict(color=COLORS[name], label=label) for name, label in LABELS.items()}


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
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--tasks", nargs="*", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--model", default="default", choices=[*MODELS], help="PolicyIteration's model")
    parser.add_argument("--budget-scale", type=float, default=1.0, help="share of the tasks' steps, for a smoke test")
    parser.add_argument("--eval-every", type=int, default=EVERY, help="steps between evaluations of our agent")
    parser.add_argument("--resume", action="store_true", help="keep the trainings of our agent that the output has")
    parser.add_argument("--from-json", action="store_true", help="train nothing, print the tables of what is stored")
    parser.add_argument("--figure", action="store_true", help="with --from-json: draw the learning curves, too")
    parser.add_argument("--rerun-peers", action="store_true", help="train the others again instead of reading results")
    parser.add_argument("--peers-seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="trainings of our agent at a time")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of ours.json and learning_curves.png")
    return parser.parse_args()


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """The trainings that are asked for, one seed on all tasks after the other."""
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name in args.tasks:
            stops = tuple(round(args.budget_scale * stop) for stop in TASKS[name].stops)
            yield Job(name, name, seed, stops, args.eval_every, MODELS[args.model])


def train_missing(archive: Archive, args: argparse.Namespace) -> list[str]:
    """Train what is not there; returns what failed."""
    if args.rerun_peers:
        for algorithm in ALGORITHMS:
            for name in args.tasks:
                train_all(algorithm, TASKS[name], args.peers_seeds, rerun=True)
    return train_ours(archive, jobs(args), args.processes)


def main() -> None:
    """Train, print the tables, draw the curves."""
    args = arguments()
    fix_threads(1)
    one_thread()
    file = args.output / ("ours.json" if args.model == "default" else f"ours-{args.model}.json")
    archive = Archive.open(file, forget=() if args.resume or args.from_json else args.tasks)
    failures = [] if args.from_json else train_missing(archive, args)
    runs: Runs = {OURS: {name: archive.runs(name) for name in args.tasks}}
    for algorithm in ALGORITHMS:
        runs[algorithm] = {name: load(algorithm, name)[: args.peers_seeds] for name in args.tasks}
    tasks = [TASKS[name] for name in args.tasks]
    print(tables(runs, tasks))
    if args.figure or not args.from_json:
        figure(runs, tasks, args.output / "learning_curves.png")
    if failures:
        sys.exit("failed: " + "; ".join(failures))


if __name__ == "__main__":
    main()
