"""Evaluation of trained agents: error and coverage of V beside the agents' own critics and other methods.

    python benchmarks/evaluate.py                    # the four agents, two data sets each, and the time to a page
    python benchmarks/evaluate.py --small            # a smoke run of seconds

The truth is V^π from 200 rollouts per state (one in a deterministic system), at states of fresh episodes, by batched
copies of the systems (`control_systems.py`). Agents are trained once and kept (`trained_agents.py`).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from control_systems import SYSTEMS, rolled_out_values
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from trained_agents import FOLDER, TRAININGS, Training

import gptd_rl
from gptd_rl import Trajectories
from gptd_rl.sb3 import load_agent
from gptd_rl.sb3.critics import critic_name
from gptd_rl.temporal.differences import TemporalDifference

Array = NDArray[np.float64]

LEVELS = (0.5, 0.8, 0.95)
PEER_SIZE = 1000


@functools.cache
def truths(training: Training, deterministic: bool, n_states: int, n_rollouts: int) -> tuple[Array, Array]:
    """States of fresh episodes, and V^π there."""
    model = load_agent(training.path)
    torch.manual_seed(0)
    rng = np.random.default_rng(12345)
    fresh = gptd_rl.collect(
        training.env, model, n_transitions=40 * n_states, gamma=model.gamma, seed=77_000, deterministic=deterministic
    )
    rows = rng.choice(np.flatnonzero(fresh.discounts > 0), n_states, replace=False)
    states = fresh.states[rows]

    def act(observations: Any) -> Any:
        return model.predict(observations, deterministic=deterministic)[0]

    n = 1 if deterministic else n_rollouts
    value, _ = rolled_out_values(SYSTEMS[training.env], act, states, model.gamma, n, tolerance=1e-5)
    return states, value


def sklearn_gpr(data: Trajectories) -> Callable[[Array], Array]:
    """scikit-learn's regression with default settings on the returns of the same transitions.

    Its search takes about 60 evaluations of cubic cost: hours at 10 000 states, ten seconds at `PEER_SIZE` evenly
    chosen ones.
    """
    y, x = TemporalDifference.of(data).returns(data.rewards), data.states
    rows = np.linspace(0, len(x) - 1, min(PEER_SIZE, len(x))).round().astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianProcessRegressor(random_state=0).fit(x[rows], y[rows]).predict


def run(training: Training, deterministic: bool, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One evaluation against the truth."""
    model = load_agent(training.path)
    torch.manual_seed(seed)
    states, value = truths(training, deterministic, args.states, args.rollouts)
    began = time.perf_counter()
    evaluation = gptd_rl.evaluate_agent(
        model, training.env, n_transitions=args.n_transitions, deterministic=deterministic, seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        evaluation.write(folder)
    seconds = time.perf_counter() - began
    found: dict[str, Any] = dict(agent=training.name, deterministic=deterministic, seed=seed, seconds=seconds)
    found["spread"] = float(value.std())
    found["rmse"] = rmse(evaluation.value.predict(states), value)
    assert evaluation.critic is not None
    found["critic"], found["critic name"] = rmse(evaluation.critic(states), value), critic_name(model)
    constant = TemporalDifference.of(evaluation.data)
    inner = evaluation.data.discounts > 0
    found["monte carlo"] = rmse(np.full(len(value), constant.returns(evaluation.data.rewards)[inner].mean()), value)
    found["sklearn"] = rmse(sklearn_gpr(evaluation.data)(states), value)
    for level in LEVELS:
        lower, upper = evaluation.value.confidence_interval(states, level)
        found[f"coverage {level:.0%}"] = float(np.mean((lower <= value) & (value <= upper)))
    found["half width"] = float(np.mean(upper - lower)) / 2
    found["learners"] = evaluation.config.learners
    return found


def rmse(predicted: Array, truth: Array) -> float:
    return float(np.sqrt(np.mean((predicted - truth) ** 2)))


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds, as Markdown."""
    heads = "agent, actions, V varies by, **RMSE**, critic, sklearn GPR, Monte Carlo, 50 %, 80 %, **95 %**, ±, seconds"
    lines = ["| " + " | ".join(heads.split(", ")) + " |", "|" + "---|" * 12]
    groups: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["agent"], row["deterministic"]), []).append(row)
    for (agent, deterministic), group in groups.items():

        def mean(key: str, group: list[dict[str, Any]] = group) -> float:
            return float(np.mean([row[key] for row in group]))

        each = [f"{100 * row['coverage 95%']:.1f}" for row in group]
        cells = [
            agent,
            "most likely" if deterministic else "sampled",
            f"{mean('spread'):.1f}",
            f"**{mean('rmse'):.2f}** ({min(r['rmse'] for r in group):.2f}–{max(r['rmse'] for r in group):.2f})",
            f"{mean('critic'):.2f}",
            f"{mean('sklearn'):.1f}",
            f"{mean('monte carlo'):.1f}",
            *(f"{100 * mean(f'coverage {level:.0%}'):.0f}" for level in LEVELS[:-1]),
            f"**{100 * mean('coverage 95%'):.1f}** ({', '.join(each)})",
            f"{mean('half width'):.2f}",
            f"{max(r['seconds'] for r in group):.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--n-transitions", type=int, default=10_000)
    parser.add_argument("--states", type=int, default=400)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--agents", nargs="*", default=[t.name for t in TRAININGS])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=FOLDER / "results.json")
    args = parser.parse_args()
    if args.small:
        args.seeds, args.n_transitions, args.states, args.rollouts = 1, 1500, 30, 5
    torch.set_num_threads(1)
    rows = []
    for training in TRAININGS:
        if training.name not in args.agents:
            continue
        if not training.path.exists():
            training.train()
        for deterministic in sorted({True, training.deterministic}):
            for seed in range(args.seeds):
                rows.append(run(training, deterministic, seed, args))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if not args.small:
        args.out.write_text(json.dumps(dict(command=" ".join(sys.argv), rows=rows), indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
