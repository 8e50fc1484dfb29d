"""Minari datasets that are collected: two writers, kill -9, damaged episodes and notes. No episode is lost unsaid."""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from gptd_rl import Trajectories, collect, collect_to_minari
from tests.adversarial.harness import Attack, Category, pick, refused
from tests.adversarial.kills import Kill
from tests.adversarial.own_files import BYTES
from tests.counting import GAMMA, Counting

ID = "some/stream-v0"
N = 30  # transitions of the first call; the second goes on to twice as many
N_EVENTS = 30_000  # calls of functions, Python's and C's, in the second call, about


def collected(n: int, seed: int = 5) -> Any:
    return collect_to_minari(Counting(), dataset_id=ID, n_transitions=n, gamma=GAMMA, seed=seed)


def episodes() -> list[tuple[Any, ...]]:
    """What is in the dataset, by episode."""
    return [(s.states.tolist(), s.rewards.tolist(), s.discounts.tolist()) for s in Trajectories.from_minari(ID)]


def killed(root: Path, n: int) -> None:
    """Go on collecting; killed at the n-th call of a function."""
    os.environ["MINARI_DATASETS_PATH"] = str(root)
    collect(Counting(), n_transitions=5, gamma=GAMMA)  # imports all there is
    sys.setprofile(Kill(n))
    collected(2 * N)
    sys.setprofile(None)


def kill(root: Path, context: Any, rng: np.random.Generator) -> str | None:
    """After a kill, the same call goes on with the complete episodes of before."""
    before = episodes()
    process = context.Process(target=killed, args=(root, int(rng.integers(1, N_EVENTS))))
    process.start()
    process.join()
    if process.exitcode not in (0, -9):
        return f"the writer ended with {process.exitcode}"
    dataset, after = collected(2 * N), episodes()
    if after[: len(before)] != before:
        return "episodes of before the kill are lost"
    return None if dataset.total_steps == 2 * N else f"{dataset.total_steps} transitions instead of {2 * N}"


def two_writers(rng: np.random.Generator) -> str | None:
    """One of two writers at a time; the other one is refused, and whatever is written is whole."""
    before, n = episodes(), 2 * N
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(refused, lambda: collected(n)) for _ in range(2)]
        if all(future.result() for future in ended):
            return "both writers were refused"
    if episodes()[: len(before)] != before:
        return "episodes are lost"
    steps = sum(len(rewards) - 1 for _, rewards, _ in episodes())
    return None if steps == n else f"two writers made {steps} transitions instead of {n}"


def damage(path: Path, rng: np.random.Generator) -> str | None:
    """Files of the dataset are damaged or missing: refused, with all others as they were, or nothing is lost."""
    before = episodes()
    files = sorted(p for p in path.rglob("*") if p.is_file())
    target = pick(rng, files)
    content = target.read_bytes()
    if rng.random() < 0.2:
        target.unlink()
    else:
        target.write_bytes(pick(rng, BYTES)(content, rng))
    others = {p: p.read_bytes() for p in files if p != target}
    if refused(lambda: collected(2 * N)):
        changed = [p for p, was in others.items() if not p.exists() or (p.read_bytes() != was and "episode" in str(p))]
        return f"refused, but {changed} changed" if changed else None
    read: list[Any] = []
    if refused(lambda: read.append(episodes())):
        return None  # found by its reader
    if target.name == "part-0.arrow":  # numbers that were flipped are numbers
        return None if len(read[0]) >= len(before) else "episodes are lost without a word"
    return None if read[0][: len(before)] == before else f"{target.name} was damaged: episodes are lost without a word"


def prepare(folder: Path) -> Attack:
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.adversarial.datasets"])
    root, first = folder / "root", folder / "first"
    with mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(first)):
        collected(N)

    def attack(rng: np.random.Generator) -> str | None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(first, root)
        with mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(root)):
            kind = rng.random()
            if kind < 0.2:
                return kill(root, context, rng)
            return two_writers(rng) if kind < 0.4 else damage(root / ID, rng)

    return attack


CATEGORY = Category("Minari datasets", prepare, 0.005)
