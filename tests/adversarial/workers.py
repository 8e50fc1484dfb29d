"""Workers of executors and of Dask that are killed in the middle of a fit: the same result, or one clear error."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import numpy as np

from gptd_rl import GPTD
from gptd_rl.exceptions import ExecutorError
from tests.adversarial.harness import Attack, Category, complaint, pick
from tests.estimators.test_edited_files import DATA, KERNEL, QUICK
from tests.estimators.test_interrupts import is_as_before

PARTS = [DATA[i::3] for i in range(3)] * 4
X = DATA.states[:5]
ESTIMATORS: dict[str, Callable[[], GPTD]] = {
    "sparse": lambda: GPTD("isotropic", method="sparse", subset_size=5, **QUICK),
    "bootstrapped": lambda: GPTD(KERNEL, bootstrap=True, method="sparse", subset_size=5, n_restarts=0),
}


def answers(v: GPTD) -> np.ndarray:
    return np.array(v.predict(X, return_std=True))


@contextmanager
def killing(pid: int, seconds: float) -> Iterator[None]:
    """Kill a process after some time."""

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def in_threads(expected: dict[str, np.ndarray], rng: np.random.Generator) -> str | None:
    """Threads that share one model of shards."""
    name = pick(rng, list(ESTIMATORS))
    with ThreadPoolExecutor(4) as pool:
        found = answers(ESTIMATORS[name]().fit(PARTS, executor=pool))
    return None if np.allclose(found, expected[name], 1e-6, 1e-9) else f"{name}: threads fit another model"


def in_processes(expected: dict[str, np.ndarray], rng: np.random.Generator) -> str | None:
    name = pick(rng, list(ESTIMATORS))
    v = ESTIMATORS[name]().fit(DATA) if rng.random() < 0.5 else ESTIMATORS[name]()
    before = dict(vars(v))
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        pids = set(pool.map(_process, range(8)))
        with killing(pick(rng, sorted(pids)), float(rng.uniform(0.0, 0.5))):
            try:
                v.fit(PARTS, executor=pool)
            except ExecutorError as error:
                return complaint(error) or (
                    None if is_as_before(v, before) else f"{name}: a failed fit changed the model"
                )
    return None if np.allclose(answers(v), expected[name], 1e-6, 1e-9) else f"{name}: processes fit another model"


def on_dask(client: Any, expected: dict[str, np.ndarray], rng: np.random.Generator) -> str | None:
    name = pick(rng, list(ESTIMATORS))
    client.wait_for_workers(2, timeout=100)  # starting processes is slow on a loaded machine
    pids = sorted(client.run(os.getpid, on_error="ignore").values())
    with killing(pick(rng, pids), float(rng.uniform(0.0, 1.0))):
        try:
            v = ESTIMATORS[name]().fit(PARTS, executor=client)
        except ExecutorError as error:
            return complaint(error)
    return None if np.allclose(answers(v), expected[name], 1e-6, 1e-9) else f"{name}: Dask fits another model"


def _process(_: int) -> int:
    threading.Event().wait(0.02)
    return os.getpid()


def prepare(folder: Path) -> Attack:
    from distributed import Client, LocalCluster

    get_context("forkserver").set_forkserver_preload(["tests.adversarial.workers"])
    expected = {name: answers(make().fit(PARTS)) for name, make in ESTIMATORS.items()}
    made: list[Any] = []  # the cluster takes seconds to start: only who needs it starts it

    def client() -> Any:
        if not made:
            cluster = LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                dashboard_address=":0",
                local_directory=str(folder),
                silence_logs=logging.CRITICAL,
            )
            made.append(Client(cluster))
            Finalize(None, made[0].shutdown, exitpriority=10)
        return made[0]

    def attack(rng: np.random.Generator) -> str | None:
        kind = rng.random()
        if kind < 0.4:
            return in_threads(expected, rng)
        return in_processes(expected, rng) if kind < 0.8 else on_dask(client(), expected, rng)

    return attack


CATEGORY = Category("killed workers", prepare, 0.001)
