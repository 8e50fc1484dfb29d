"""Training our agent on the control tasks, and keeping what came of it: what the benchmarks of our agent share."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from control_tasks import TASKS, ControlTask, Run, evaluate, evaluation_seed
from exact import fix_threads
from stable_baselines3.common.callbacks import BaseCallback

from gptd_rl.types import Predictor

GAMMA = 0.99
RESULTS = Path(__file__).resolve().parent / "results" / "policy_iteration"
PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy")
EVERY = 250  # steps between evaluations, of our agent and at least of the others
NEVER = 10**9  # no evaluations in between


# -------------------------------------------------------------------------------------- training


class LearningCurve(BaseCallback):
    """Evaluates a policy every so many steps; one callback may see several calls of `learn`.

    Parameters
    ----------
    task : ControlTask
    run : Run
        Gets the evaluations, and the time of training.
    every : int
        Steps between evaluations.
    stop_when_held : bool
        Whether to end once the level is held.
    give_up_after : float
        Steps after which to end if the level is not being attained.
    policy : object, optional
        What is evaluated instead of the agent itself.
    """

    def __init__(
        self,
        task: ControlTask,
        run: Run,
        every: int,
        *,
        stop_when_held: bool = False,
        give_up_after: float = np.inf,
        policy: Predictor | None = None,
    ) -> None:
        super().__init__()
        self.task, self.run, self.every, self.policy = task, run, every, policy
        self.stop_when_held, self.give_up_after = stop_when_held, give_up_after

    def _on_training_start(self) -> None:
        self._start_clocks()

    def _on_step(self) -> bool:
        last = self.run.steps[-1] if self.run.steps else 0
        if self.num_timesteps // self.every > last // self.every:
            self._evaluate()
        hopeless = self.num_timesteps > self.give_up_after and self.run.attained[-1:] == [False]
        return not (hopeless or (self.stop_when_held and self.run.held is not None))

    def _on_training_end(self) -> None:
        self._stop_clocks()

    def _evaluate(self) -> None:
        self._stop_clocks()
        seed = evaluation_seed(self.run.seed, len(self.run.steps))
        episodes = evaluate(self.policy or self.model, self.task, seed)
        self.run.add(self.num_timesteps, episodes, self.task.attained(episodes))
        self._start_clocks()

    def _start_clocks(self) -> None:
        self._resumed = time.perf_counter(), time.process_time()

    def _stop_clocks(self) -> None:
        self.run.seconds += time.perf_counter() - self._resumed[0]
        self.run.processor_seconds += time.process_time() - self._resumed[1]


@dataclass(frozen=True)
class Job:
    """One training of our agent.

    Attributes
    ----------
    key : str
        Where the archive keeps it.
    task : str
    seed : int
    stops : tuple of int
        Steps after which `learn` returns and its policy is judged.
    every : int
        Steps between the evaluations in between.
    options : dict
        Further arguments of `PolicyIteration`.
    """

    key: str
    task: str
    seed: int
    stops: tuple[int, ...]
    every: int = EVERY
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Run:
        """Train without early stopping; the same agent goes on after every stop."""
        from gptd_rl.agents import PolicyIteration

        task, run = TASKS[self.task], Run(self.seed, self.stops[-1])
        env = task.make()
        agent = PolicyIteration(env, gamma=GAMMA, seed=self.seed, **self.options)
        curve = LearningCurve(task, run, self.every)
        for start, stop in pairwise((0, *self.stops)):
            agent.learn(stop - start, callback=curve, reset_num_timesteps=start == 0)
            run.serve(stop, agent, task)
        env.close()
        return run


def one_thread() -> None:
    """Keep torch to one thread; BLAS has been told by the environment."""
    import torch

    torch.set_num_threads(1)


def train_ours(archive: Archive, jobs: Iterable[Job], processes: int) -> list[str]:
    """Train where the archive lacks a run with that seed and budget; returns what failed."""
    failures = []
    spawn = multiprocessing.get_context("spawn")  # so that BLAS reads its environment again
    with ProcessPoolExecutor(processes, spawn, one_thread) as pool:
        futures = {pool.submit(job.run): job for job in jobs if not archive.has(job)}
        for future in as_completed(futures):
            job = futures[future]
            if error := future.exception():
                failures.append(f"{job.key} seed {job.seed}: {error!r}")
                print(failures[-1], flush=True)
                continue
            archive.add(job.key, future.result())
            print(f"{job.key} seed {job.seed}: {summary(future.result())}", flush=True)
    return failures


def summary(run: Run) -> str:
    """One line about a training."""
    policies = ", ".join(f"{p.mean:.4g}{'*' if p.attained else ''} at {steps}" for steps, p in run.served.items())
    policies = policies or f"{run.final:.4g}"
    last = run.steps[-1] if run.steps else run.budget
    result = f"held after {run.held}" if run.held is not None else f"not held in {last}"
    return f"{result}, return {policies}, {run.seconds:.0f} s"


# -------------------------------------------------------------------------------------- results


@dataclass
class Archive:
    """Our trainings in a JSON file, written after each of them: key → command, versions, runs."""

    path: Path
    content: dict[str, Any]

    @classmethod
    def open(cls, path: Path, forget: Sequence[str] = ()) -> Archive:
        """What the file holds, if there is one, but for the keys to forget."""
        content = json.loads(path.read_text()) if path.exists() else {}
        return cls(path, {key: entry for key, entry in content.items() if key not in forget})

    def runs(self, key: str) -> list[Run]:
        """Trainings under a key, by seed."""
        return [Run.from_json(run) for run in self.content.get(key, {"runs": []})["runs"]]

    def has(self, job: Job) -> bool:
        """Whether the training is there."""
        return any(run.seed == job.seed and run.budget == job.stops[-1] for run in self.runs(job.key))

    def add(self, key: str, run: Run) -> None:
        """Keep a training, in the place of an older one with the same seed."""
        others = [other for other in self.runs(key) if other.seed != run.seed]
        runs = sorted([*others, run], key=lambda run: run.seed)
        command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
        entry = dict(command=command, versions=versions((*PACKAGES, "scipy", "gptd-rl")))
        self.content[key] = entry | dict(runs=[run.to_json() for run in runs])
        write(self.path, self.content)


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and some packages."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in packages}


def write(path: Path, content: dict[str, Any]) -> None:
    """JSON with a line for each short list, replacing the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(dumps(content) + "\n")
    draft.replace(path)


def dumps(content: Any, indent: str = "") -> str:
    """JSON that opens dictionaries and lists of dictionaries, and keeps what holds numbers only on one line."""
    inner = indent + " "
    if isinstance(content, dict) and any(isinstance(value, dict | list | str) for value in content.values()):
        rows = [f"{json.dumps(key)}: {dumps(value, inner)}" for key, value in content.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}}}"
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return "[\n" + ",\n".join(inner + dumps(value, inner) for value in content) + f"\n{indent}]"
    return json.dumps(content, default=lambda value: value.__name__)  # classes among hyperparameters


# -------------------------------------------------------------------------------------- command line


def arguments(doc: str | None, n_seeds: int, **names: tuple[list[str], list[str]]) -> argparse.Namespace:
    """Options of a benchmark of our agent; `names` are further ones, with their defaults and choices."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (default, choices) in names.items():
        parser.add_argument(f"--{name}", nargs="*", default=default, choices=choices)
    parser.add_argument("--seeds", type=int, default=n_seeds)
    parser.add_argument("--budget-scale", type=float, default=1.0, help="share of the steps, for a smoke test")
    parser.add_argument("--rerun", action="store_true", help="train again what is stored")
    parser.add_argument("--from-json", action="store_true", help="train nothing, print the table of what is stored")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args()


def run(args: argparse.Namespace, file: str, jobs: Iterable[Job], report: Callable[[Archive], str]) -> None:
    """Train what the file of results lacks, and print a table of what it holds."""
    fix_threads(1)
    one_thread()
    jobs = list(jobs)
    archive = Archive.open(args.output / file, [job.key for job in jobs] if args.rerun else [])
    failures = [] if args.from_json else train_ours(archive, jobs, args.processes)
    print(report(archive))
    if failures:
        sys.exit("failed: " + "; ".join(failures))
