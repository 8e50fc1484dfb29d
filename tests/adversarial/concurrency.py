"""Threads on one model, and writers on one path."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gptd_rl import GPTD
from tests.adversarial.harness import Attack, Category, pick
from tests.adversarial.writers import WRITERS, which_is_there
from tests.estimators.test_edited_files import DATA, KERNEL, MODELS, QUICK
from tests.estimators.test_interrupts import assert_consistent

N_THREADS = 4


def predicting(rng: np.random.Generator) -> str | None:
    """Threads that predict by one model get what one thread gets."""
    model = MODELS[pick(rng, ["exact", "sparse", "bootstrapped", "online"])]()
    batches = [rng.normal(size=(int(rng.integers(1, 30)), 3)) for _ in range(8)]
    expected = [model.predict(x, return_std=True) for x in batches]
    with ThreadPoolExecutor(N_THREADS) as pool:
        found = list(pool.map(lambda x: model.predict(x, return_std=True), batches))
    same = all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    return None if same else "threads on one model get other predictions"


def refitting(rng: np.random.Generator) -> str | None:
    """Threads that predict while another adds data get predictions before or after, never between."""
    v = GPTD(KERNEL, **QUICK).fit(DATA)
    x, more = DATA.states[:5], DATA[: int(rng.integers(1, 4))]
    before, after = v.predict(x), v.condition(DATA + more).predict(x)
    with ThreadPoolExecutor(N_THREADS) as pool:
        adding = pool.submit(v.partial_fit, more)
        found = [pool.submit(v.predict, x) for _ in range(6)]
        adding.result()
    assert_consistent(v, DATA + more)
    for future in found:
        if not (np.allclose(future.result(), before, atol=1e-6) or np.allclose(future.result(), after, atol=1e-6)):
            return "a prediction during partial_fit is neither of the old nor of the new model"
    return None


def writing(folder: Path, rng: np.random.Generator) -> str | None:
    """Writers on one path leave the content of one of them; readers see one of them at any time."""
    name = pick(rng, list(WRITERS))
    path = folder / "file"
    WRITERS[name].write(path, 0)
    with ThreadPoolExecutor(N_THREADS) as pool:
        writers = [pool.submit(WRITERS[name].write, path, int(rng.integers(2))) for _ in range(6)]
        readers = [pool.submit(which_is_there, name, path) for _ in range(3)]
        for writer in writers:
            writer.result()
        seen = [reader.result() for reader in readers]
    if None in [*seen, which_is_there(name, path)]:
        return f"{name}: a mixture of what several writers wrote was read"
    return None if [p.name for p in folder.iterdir()] == ["file"] else f"{name}: something is left over"


def prepare(folder: Path) -> Attack:
    def attack(rng: np.random.Generator) -> str | None:
        own = folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        return pick(rng, [lambda: predicting(rng), lambda: refitting(rng), lambda: writing(own, rng)])()

    return attack


CATEGORY = Category("concurrency", prepare, 0.01)
