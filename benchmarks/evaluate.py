"""Evaluation of trained agents: error and coverage of V beside other ways to it, at states whose V^π is known.

    python benchmarks/evaluate.py                    # every agent, five data sets each; what is stored is not run again
    python benchmarks/evaluate.py --ours-only        # as after a change of the estimator: the others stay as stored
    python benchmarks/evaluate.py --starts           # the value from the start, 50 times for three agents
    python benchmarks/evaluate.py --from-json        # the tables of docs/evaluation.md, from the stored results
    python benchmarks/evaluate.py --small            # a smoke run of seconds, which stores nothing
    python benchmarks/evaluate.py --export FOLDER    # data sets and truths as .npz

Agents: `trained_agents.py`. Truths: `evaluation_truth.py`. The others: `evaluation_contestants.py`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import torch
from evaluation_contestants import CONTESTANTS
from evaluation_starts import run_starts
from evaluation_tables import tables
from evaluation_truth import Truth, file_hash, mode, truth_of
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from trained_agents import FOLDER, TRAININGS, Training

import gptd_rl
from gptd_rl import Trajectories
from gptd_rl.evaluation.random_state import seeded
from gptd_rl.sb3.critics import critic_of

Array = NDArray[np.float64]
Row = dict[str, Any]

LEVELS = (0.5, 0.8, 0.95)
STRIDE = 1000  # seeds of data sets are far apart: environment i of a data set has seed + i


@dataclass(frozen=True)
class Run:
    """One data set of one agent."""

    training: Training
    deterministic: bool
    index: int
    n_transitions: int

    @property
    def seed(self) -> int:
        return STRIDE * self.index

    @property
    def key(self) -> Row:
        """What tells this run from others; the agent's hash, because an agent may be trained again."""
        return dict(
            agent=self.training.name,
            mode=mode(self.deterministic),
            data_set=self.index,
            n_transitions=self.n_transitions,
            agent_hash=file_hash(self.training.path),
        )

    def data(self) -> Trajectories:
        """The transitions that `gptd_rl.evaluate_agent` collects with this seed."""
        agent, env_id = self.training.agent(), self.training.env
        limit = (gym.spec(env_id).max_episode_steps) or 1000
        n_envs = min(8, max(1, self.n_transitions // (2 * limit)))
        with seeded(self.seed, agent):
            envs = SyncVectorEnv([lambda: gym.make(env_id) for _ in range(n_envs)])
            return gptd_rl.collect(
                envs,
                agent,
                n_transitions=self.n_transitions,
                gamma=agent.gamma,
                seed=self.seed,
                deterministic=self.deterministic,
            )


def data_hash(data: Trajectories) -> str:
    return hashlib.sha256(np.ascontiguousarray(data.states).tobytes()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------ figures of one run


def run_ours(run: Run, truth: Truth) -> Row:
    """`gptd_rl.evaluate_agent` and its page."""
    agent = run.training.agent()
    wall, began = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluation = gptd_rl.evaluate_agent(
            agent,
            run.training.env,
            n_transitions=run.n_transitions,
            deterministic=run.deterministic,
            seed=run.seed,
        )
    seconds = dict(seconds=time.process_time() - began, wall_seconds=time.perf_counter() - wall)
    found = run.key | seconds | dict(data_hash=data_hash(evaluation.data))
    found["rmse"] = rmse(evaluation.value.predict(truth.states), truth)
    for level in LEVELS:
        lower, upper = evaluation.value.confidence_interval(truth.states, level)
        found[f"coverage {level:.0%}"] = float(np.mean((lower <= truth.values) & (truth.values <= upper)))
        found[f"half width {level:.0%}"] = float(np.mean(upper - lower)) / 2
    found["truth noise"] = float(np.sqrt(np.mean(truth.errors**2)))
    found["spread"] = float(truth.values.std())
    found["learners"] = getattr(evaluation.config, "learners", None)
    return found


def rmse(predicted: Array, truth: Truth) -> float:
    """Root mean squared error, with the noise of the truth subtracted."""
    excess = np.mean((predicted - truth.values) ** 2) - np.mean(truth.errors**2)
    return float(np.sqrt(max(excess, 0.0)))


def run_contestants(run: Run, truth: Truth, names: list[str], known: Row) -> Row:
    """Some of the others, on the same transitions, beside those of the row `known`."""
    data = run.data()
    critic = critic_of(run.training.agent(), run.deterministic)
    found, seconds = dict(known.get("rmse", {})), dict(known.get("seconds", {}))
    for name in names:
        began = time.process_time()
        found[name] = rmse(CONTESTANTS[name](data, truth.states, critic), truth)
        seconds[name] = time.process_time() - began
    return run.key | dict(data_hash=data_hash(data), rmse=found, seconds=seconds)


# ------------------------------------------------------------------------------------------ stored results


class Store:
    """Rows of results in a JSON file; a row is found by its key."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[Row] = json.loads(path.read_text()) if path is not None and path.exists() else []

    def find(self, key: Row) -> Row | None:
        """The row with this key."""
        return next((row for row in self.rows if row.items() >= key.items()), None)

    def add(self, key: Row, row: Row) -> None:
        """Keep a row, in place of one with the same agent, mode and data set, and write the file."""
        names = ("agent", "mode", "data_set")
        same = [tuple(row[name] for name in names) == tuple(key[name] for name in names) for row in self.rows]
        self.rows = [old for old, is_same in zip(self.rows, same, strict=True) if not is_same] + [row]
        print(json.dumps(row), file=sys.stderr, flush=True)
        if self.path is not None:
            partial = self.path.with_suffix(".partial")
            partial.write_text("[\n" + ",\n".join(json.dumps(row) for row in self.rows) + "\n]\n")
            partial.replace(self.path)


def runs(args: argparse.Namespace) -> Iterator[Run]:
    """Every agent's first data set, then every agent's second, …"""
    for index in args.seeds:
        for training in TRAININGS:
            if training.name in args.agents and training.path.exists():
                for deterministic in training.modes:
                    yield Run(training, deterministic, index, args.n_transitions)


def run_all(args: argparse.Namespace, folder: Path | None) -> dict[str, list[Row]]:
    """Run what is not stored."""
    ours, contestants = (Store(None if folder is None else folder / f"{name}.json") for name in ("ours", "contestants"))
    rollouts = 5 if args.small else None
    for run in runs(args):
        truth = functools.partial(truth_of, run.training, run.deterministic, args.states, rollouts)
        labelled = run.key | ({} if args.label is None else dict(label=args.label))
        if not args.contestants_only and ours.find(labelled) is None:
            ours.add(run.key, run_ours(run, truth()) | labelled)
        known = contestants.find(run.key) or {}
        missing = [name for name in args.contestants if name not in known.get("rmse", {})]
        if missing and not args.ours_only:
            contestants.add(run.key, run_contestants(run, truth(), missing, known))
    return dict(ours=ours.rows, contestants=contestants.rows)


# ------------------------------------------------------------------------------------------ data sets for other uses


def export(args: argparse.Namespace) -> None:
    """Data sets and truths: `<agent>-<mode>-<data set>.npz` (`Trajectories.load`), `<agent>-<mode>-truth.npz`."""
    args.export.mkdir(parents=True, exist_ok=True)
    for run in runs(args):
        name = f"{run.training.name}-{mode(run.deterministic)}"
        run.data().save(args.export / f"{name}-{run.index}.npz")
        truth_of(run.training, run.deterministic).save(args.export / f"{name}-truth.npz")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)), help="numbers of data sets")
    parser.add_argument("--n-transitions", type=int, default=10_000)
    parser.add_argument("--states", type=int, default=100)
    parser.add_argument("--agents", nargs="*", default=[t.name for t in TRAININGS])
    parser.add_argument("--ours-only", action="store_true", help="leave the others as stored")
    parser.add_argument("--contestants-only", action="store_true")
    parser.add_argument("--contestants", nargs="*", default=list(CONTESTANTS), choices=CONTESTANTS, help="some of them")
    parser.add_argument("--label", help="kept with ours; rows of ours with another label run again")
    parser.add_argument("--starts", action="store_true", help="the value from the start instead")
    parser.add_argument("--repeats", type=int, default=50, help="of --starts")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--from-json", action="store_true", help="print the tables of what is stored")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.small:
        args.seeds, args.n_transitions, args.states = [0], 1500, 20
    folder = None if args.small else FOLDER
    if args.export is not None:
        export(args)
        return 0
    if args.starts:
        run_starts(args, Store(None if folder is None else folder / "starts.json"))
        return 0
    if args.from_json:
        print(tables(*(Store(FOLDER / f"{name}.json").rows for name in ("ours", "contestants", "starts"))))
        return 0
    rows = run_all(args, folder)
    print(tables(rows["ours"], rows["contestants"], []))
    return 0


if __name__ == "__main__":
    sys.exit(main())
