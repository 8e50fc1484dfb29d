"""Default fits of stochastic systems beside scikit-learn's, irrelevant inputs, and units that must not matter.

    python benchmarks/fits.py                                         everything, about five minutes
    python benchmarks/fits.py --sizes 300 --seeds 1 --parts fits

- *fits*: `GPTD()` with all that it chooses (thinning, kernel, noise) beside scikit-learn's GaussianProcessRegressor
  (ARD and white noise, no restarts) on the same returns. Processor seconds, the fastest of the repeats.
- *irrelevant*: how often the search on the paper's gridworld with many irrelevant inputs finds the relevance of x that
  a fit without them finds.
- *units*: how often V changes by more than a thousandth of the returns' spread with the units of rewards or inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tasks import Task, task_named

from gptd_rl import GPTD, Trajectories
from gptd_rl.inference import exact
from gptd_rl.reproduction import gridworld
from gptd_rl.selection.moments import FixedMomentEvidence
from gptd_rl.selection.scales import measure_scale
from gptd_rl.temporal.differences import discounted_returns

RESULTS = Path(__file__).parent / "results" / "fits.json"
STOCHASTIC = ("walk", "noisy cartpole", "random grid", "drift", "one long run")
SAME_RELEVANCE = 2.0  # ratio
SAME_VALUE = 1e-3  # of the spread of the returns
UNITS = {"rewards × 10⁶": (1.0, 0.0, 1e6), "inputs × 10³ + 7": (1e3, 7.0, 1.0)}


def fastest(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Processor seconds of the fastest repeat, and what the last one gave."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return min(seconds), result


def count_evaluations(work: Callable[[], Any]) -> int:
    """Evaluations of an evidence with its gradient: of samples, of thinned parts, of instrumented rewards."""
    by_returns, by_moments, n = exact.evidence_and_gradient, FixedMomentEvidence.__call__, 0

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal n
            n += 1
            return original(*arguments)

        return counted

    exact.evidence_and_gradient = counting(by_returns)
    FixedMomentEvidence.__call__ = counting(by_moments)  # type: ignore[method-assign]
    try:
        work()
    finally:
        exact.evidence_and_gradient = by_returns
        FixedMomentEvidence.__call__ = by_moments  # type: ignore[method-assign]
    return n


def scikit_learn(data: Trajectories) -> Any:
    """GP regression on the returns: ARD kernel and white noise, inputs and returns standardised, no restarts."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x = data.states / (data.states.std(axis=0) + 1e-12)
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel()
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x, discounted_returns(data))


def compare_fits(task: Task, n: int, seed: int, repeats: int) -> dict[str, Any]:
    """One default fit beside scikit-learn's, and beside that of returns."""
    data = task.sample(np.random.default_rng([seed, 0]), n)
    seconds, v = fastest(lambda: GPTD().fit(data), repeats)
    by_returns, _ = fastest(lambda: GPTD(bootstrap=False).fit(data), repeats)
    peer, _ = fastest(lambda: scikit_learn(data), max(1, repeats // 3))
    return dict(
        task=task.name,
        n=n,
        seed=seed,
        seconds=round(seconds, 4),
        returns_seconds=round(by_returns, 4),
        evaluations=count_evaluations(lambda: GPTD().fit(data)),
        scikit_learn_seconds=round(peer, 4),
        bootstrap=bool(v.bootstrap_),
    )


def finds_relevance(seed: int, n_irrelevant: int) -> bool:
    """Whether x is as relevant in a fit with irrelevant inputs as in one without them."""
    settings = gridworld.GridworldSettings()
    _, data = gridworld.sample(seed, settings.n_transitions, settings.gamma, n_irrelevant)
    v = gridworld.fitted("ard", data)
    return bool(v.relevances_[0] < SAME_RELEVANCE * v.prune().relevances_[0])


def small_problem(seed: int) -> Trajectories:
    """A handful of short episodes, with or without noise, terminated or truncated."""
    rng = np.random.default_rng(seed)
    n_dims, gamma, noise = int(rng.integers(1, 4)), float(rng.choice([0.9, 0.99])), float(rng.choice([0.0, 0.1, 1.0]))
    direction, episodes = rng.normal(size=n_dims), []
    for _ in range(int(rng.integers(4, 8))):
        length = int(rng.integers(4, 15))
        x = np.cumsum(0.5 * rng.normal(size=(length + 1, n_dims)), axis=0)
        rewards = np.sin(x[:-1] @ direction) + noise * rng.normal(size=length)
        episodes.append(dict(observations=x, rewards=rewards, terminated=bool(rng.random() < 0.7)))
    return Trajectories.from_episodes(episodes, gamma=gamma)


def change_of_value(seed: int, by: float, shift: float, rewards: float) -> float:
    """How much V changes with the units, by the spread of the returns."""
    data = small_problem(seed)
    other = Trajectories(
        data.states * by + shift, data.rewards * rewards, data.discounts, data.lengths, data.terminated
    )
    plain, scaled = (GPTD(objective="marginal_likelihood").fit(d) for d in (data, other))
    change = scaled.predict(other.states) / rewards - plain.predict(data.states)
    return float(np.abs(change).max() / np.sqrt(measure_scale(data).return_variance))


def fits_table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, means over seeds."""
    lines = [
        "| task | n | seconds | evaluations | seconds of returns | scikit-learn | scikit-learn / ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((row["task"], row["n"]) for row in rows):
        same = [row for row in rows if (row["task"], row["n"]) == key]
        names = ("seconds", "evaluations", "returns_seconds", "scikit_learn_seconds")
        ours, count, other, peer = (float(np.mean([row[name] for row in same])) for name in names)
        figures = f"{ours:.3f} | {count:.0f} | {other:.3f} | {peer:.3f} | {peer / ours:.1f}"
        lines.append(f"| {key[0]} | {key[1]} | {figures} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["fits", "irrelevant", "units"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[300, 1000])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--irrelevant", nargs="+", type=int, default=[10, 20], help="numbers of irrelevant inputs")
    parser.add_argument("--grids", type=int, default=20, help="gridworlds for each number, seeds from 100 on")
    parser.add_argument("--problems", type=int, default=200, help="small problems in other units")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the figures go")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", UserWarning)
    figures: dict[str, Any] = dict(
        versions={"python": platform.python_version()}
        | {name: version(name) for name in ("numpy", "scipy", "scikit-learn")},
        cores=os.cpu_count(),
    )
    if "fits" in options.parts:
        figures["fits"] = [
            compare_fits(task_named(name), n, seed, options.repeats)
            for name in STOCHASTIC
            for n in options.sizes
            for seed in range(options.seeds)
        ]
        print(fits_table(figures["fits"]), flush=True)
    if "irrelevant" in options.parts:
        seeds = range(100, 100 + options.grids)
        figures["irrelevant"] = {n: sum(finds_relevance(seed, n) for seed in seeds) for n in options.irrelevant}
        for n, hits in figures["irrelevant"].items():
            print(f"{n} irrelevant inputs: the relevance of x in {hits} of {options.grids} seeds", flush=True)
    if "units" in options.parts:
        figures["units"] = {
            name: sum(change_of_value(seed, *units) > SAME_VALUE for seed in range(options.problems))
            for name, units in UNITS.items()
        }
        for name, n in figures["units"].items():
            print(f"{name}: V changes by more than {SAME_VALUE:g} in {n} of {options.problems} problems")
    options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
