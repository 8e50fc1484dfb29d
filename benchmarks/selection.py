"""Which objective should choose the kernel? RMSE, coverage, relevances and time over tasks with known V^π.

    python benchmarks/selection.py --seeds 3

Every contestant sees the same trajectories. This project's objectives stand beside a constant, Monte-Carlo averages
of the nearest states' returns, LSTD on radial basis functions, and scikit-learn's GP regression on the returns (with
0 for what follows a truncation, as returns are commonly computed). The first column is the default of `GPTD`;
"lowest?" says whether it beat every stranger.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.stats import norm
from tasks import Task, all_tasks

from gptd_rl import GPTD, Trajectories
from gptd_rl.temporal.differences import TemporalDifference

Array = np.ndarray
Prediction = tuple[Array, Array | None, str]  # mean, std for intervals, a remark
Contestant = Callable[[Trajectories, Array], Prediction]

LEVELS = (0.5, 0.8, 0.95)


def ours(objective: str) -> Contestant:
    """GPTD with the default kernel and the given objective."""

    def run(data: Trajectories, states: Array) -> Prediction:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            v = GPTD(objective=objective).fit(data)
        mean = v.predict(states)
        half = (v.confidence_interval(states, 0.95)[1] - mean) / norm.ppf(0.975)
        strength = v.relevances_ * data.states.std(axis=0) ** 2
        return mean, half, f"τ={v.thinning_} a·s²=" + "/".join(f"{s:.2g}" for s in strength)

    return run


def constant(data: Trajectories, states: Array) -> Prediction:
    """Mean return, whatever the state."""
    y = returns(data)
    return np.full(len(states), y.mean()), None, ""


def monte_carlo(data: Trajectories, states: Array) -> Prediction:
    """Mean return of the ten nearest states, inputs standardised; error bars from their spread."""
    y, scale = returns(data), data.states.std(axis=0) + 1e-12
    d2 = (((states[:, None] - data.states[None]) / scale) ** 2).sum(axis=2)
    near = y[np.argsort(d2, axis=1)[:, :10]]
    return near.mean(axis=1), near.std(axis=1, ddof=1) / np.sqrt(10), ""


def lstd(data: Trajectories, states: Array, n_centres: int = 50) -> Prediction:
    """LSTD on radial basis functions around a subset of the states, with the median distance as the width."""
    scale = data.states.std(axis=0) + 1e-12
    x, rng = data.states / scale, np.random.default_rng(0)
    centres = np.unique(x[rng.choice(len(x), min(n_centres, len(x)), replace=False)], axis=0)
    d = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(axis=2))
    width = np.median(d[d > 0])

    def features(at: Array) -> Array:
        d2 = ((at[:, None] - centres[None]) ** 2).sum(axis=2)
        return np.column_stack([np.exp(-0.5 * d2 / width**2), np.ones(len(at))])

    phi, H = features(x), TemporalDifference.of(data)
    rows = H.has_row
    A = phi[rows].T @ H.apply(phi)[rows] + 1e-3 * np.eye(phi.shape[1])
    weights = np.linalg.solve(A, phi[rows].T @ data.rewards[rows])
    return features(states / scale) @ weights, None, ""


def sklearn_gpr(data: Trajectories, states: Array) -> Prediction:
    """GP regression on the returns with an ARD kernel and white noise, inputs and returns standardised."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    scale = data.states.std(axis=0) + 1e-12
    kernel = ConstantKernel() * RBF(np.ones(data.n_dims)) + WhiteKernel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessRegressor(kernel, normalize_y=True).fit(data.states / scale, returns(data))
    mean, std = model.predict(states / scale, return_std=True)
    noise = model.kernel_.k2.noise_level * model._y_train_std**2
    return mean, np.sqrt(np.maximum(std**2 - noise, 0)), ""


def returns(data: Trajectories) -> Array:
    """Discounted returns, 0 being what follows a truncation."""
    return TemporalDifference.of(data).returns(data.rewards)


OURS = {
    "auto": ours("auto"),
    "evidence": ours("marginal_likelihood"),
    "thinned": ours("thinned"),
    "LOO": ours("loo"),
    "LOEO": ours("leave_one_episode_out"),
}
STRANGERS: dict[str, Contestant] = {
    "constant": constant,
    "Monte Carlo": monte_carlo,
    "LSTD": lstd,
    "sklearn GPR": sklearn_gpr,
}


@dataclass
class Score:
    """One contestant on one task with one seed."""

    task: str
    contestant: str
    seed: int
    rmse: float
    coverage: list[float]  # of the 50, 80 and 95 % intervals
    seconds: float
    remark: str


def run(task: Task, contestant: str, seed: int) -> Score:
    """Sample, fit, and compare with the truth."""
    problem = task.problem(seed)
    began = time.perf_counter()
    mean, std, remark = (OURS | STRANGERS)[contestant](problem.data, problem.states)
    seconds = time.perf_counter() - began
    error = np.abs(mean - problem.truth)
    coverage = [] if std is None else [float(np.mean(error <= norm.ppf(0.5 + level / 2) * std)) for level in LEVELS]
    return Score(task.name, contestant, seed, float(np.sqrt(np.mean(error**2))), coverage, seconds, remark)


def table(scores: list[Score], tasks: list[Task], contestants: list[str]) -> str:
    """Markdown: RMSE, coverage and seconds, means over seeds."""

    def mean(task: Task, name: str, what: Callable[[Score], float]) -> float:
        values = [what(s) for s in scores if s.task == task.name and s.contestant == name]
        return float(np.mean(values)) if values else np.nan

    covering = [c for c in contestants if covers(c)]
    lines = []
    for title, what, names in (
        ("RMSE", lambda s: s.rmse, contestants),
        *(
            (
                f"coverage of the {level:.0%} interval",
                lambda s, i=i: s.coverage[i],
                covering,
            )
            for i, level in enumerate(LEVELS)
        ),
        ("seconds", lambda s: s.seconds, contestants),
    ):
        lowest = title == "RMSE" and "auto" in contestants and any(n in STRANGERS for n in contestants)
        lines += ["", f"**{title}**", "", "| task | " + " | ".join(names) + (" | lowest? |" if lowest else " |")]
        lines.append("|---|" + "---|" * (len(names) + lowest))
        for task in tasks:
            values = [mean(task, n, what) for n in names]
            row = f"| {task.name} | " + " | ".join(f"{v:.3g}" for v in values) + " |"
            if lowest:
                best = min(mean(task, n, what) for n in contestants if n in STRANGERS)
                row += " yes |" if mean(task, "auto", what) < best else " **no** |"
            lines.append(row)
    return "\n".join(lines)


def covers(contestant: str) -> bool:
    """Whether the contestant gives intervals."""
    return contestant not in ("constant", "LSTD")


def main() -> None:
    """Run the comparison and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", help="names of tasks; all by default")
    parser.add_argument("--contestants", nargs="*", default=[*OURS, *STRANGERS])
    parser.add_argument("--json", type=Path, help="also write every score to this file")
    args = parser.parse_args()
    tasks = [t for t in all_tasks() if not args.tasks or t.name in args.tasks]
    scores = []
    for task in tasks:
        print(f"- {task.name}: {task.kind}; {task.n_transitions} transitions, γ = {task.gamma}", flush=True)
        for seed in range(args.seeds):
            for name in args.contestants:
                scores.append(run(task, name, seed))
                if seed == 0:
                    s = scores[-1]
                    print(f"    {name:<12} RMSE {s.rmse:8.3f}  {s.seconds:6.1f} s  {s.remark}", flush=True)
    print(table(scores, tasks, args.contestants))
    if args.json:
        args.json.write_text(json.dumps([asdict(s) for s in scores], indent=1))


if __name__ == "__main__":
    main()
