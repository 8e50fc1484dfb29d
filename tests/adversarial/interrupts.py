"""Ctrl-C at a random moment of a long call: all, nothing, or the best so far, and never a mixture."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gptd_rl import collect
from tests.adversarial.harness import Attack, Category, pick
from tests.adversarial.writers import WRITERS, visible, which_is_there
from tests.estimators.test_interrupts import (
    CALLS,
    ESTIMATORS,
    MORE,
    Interrupt,
    assert_consistent,
    interrupted,
    is_as_before,
)


class Moments:
    """Random moments of a call, which is run once to count the calls of functions within it."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}

    def draw(self, name: str, call: Callable[[], object], rng: np.random.Generator) -> int:
        if name not in self.counted:
            with Interrupt() as counted:
                call()
            self.counted[name] = counted.n_calls
        return int(rng.integers(1, self.counted[name] + 1))


def fitting(moments: Moments, rng: np.random.Generator) -> None:
    name = pick(rng, list(ESTIMATORS))
    make, data = ESTIMATORS[name]
    n, v = moments.draw(f"fit {name}", lambda: make().fit(data), rng), make()
    before = dict(vars(v))
    if not (interrupted(partial(v.fit, data), n) and is_as_before(v, before)):
        assert_consistent(v, data)


def adding(fitted: dict[str, Any], moments: Moments, rng: np.random.Generator) -> None:
    name = pick(rng, ["default", "deterministic", "sparse", "bootstrap"])
    make, data = ESTIMATORS[name]
    fitted.setdefault(name, make().fit(data))
    v = fitted[name].condition(data)
    n = moments.draw(f"partial_fit {name}", lambda: fitted[name].condition(data).partial_fit(MORE), rng)
    before = dict(vars(v))
    if not (interrupted(partial(v.partial_fit, MORE), n) and is_as_before(v, before)):
        assert_consistent(v, data + MORE)


def others(whole: dict[str, set[str]], moments: Moments, rng: np.random.Generator) -> None:
    name = pick(rng, list(CALLS))
    make, call = CALLS[name]
    if name not in whole:
        whole[name] = set(vars(call(make())))
    n, v = moments.draw(name, lambda: call(make()), rng), make()
    before = dict(vars(v))
    if not (interrupted(partial(call, v), n) and is_as_before(v, before)):
        assert set(vars(v)) == whole[name], f"{name}: half of the attributes are set"


def saving(folder: Path, moments: Moments, rng: np.random.Generator) -> None:
    name = pick(rng, list(WRITERS))
    path = folder / name
    WRITERS[name].write(path, 0)
    n = moments.draw(f"save {name}", lambda: WRITERS[name].write(path, 0), rng)
    interrupted(lambda: WRITERS[name].write(path, 1), n)
    assert which_is_there(name, path) is not None, f"{name}: an interrupted save left a mixture"
    assert set(visible(folder)) <= set(WRITERS) and visible(folder) == sorted(p.name for p in folder.iterdir())


def collecting(moments: Moments, rng: np.random.Generator) -> None:
    def run() -> Any:
        return collect("gptd_rl/LatentGridworld-v0", n_transitions=50, gamma=0.9, seed=0)

    interrupted(run, moments.draw("collect", run, rng))
    assert run().n_transitions == 50, "collecting after an interrupt is as before"


def prepare(folder: Path) -> Attack:
    moments, fitted, whole = Moments(), {}, {}  # type: ignore[var-annotated]
    sys.unraisablehook = lambda _: None  # an interrupt that comes while an object is finalised is lost
    kinds: list[Callable[[np.random.Generator], None]] = [
        partial(fitting, moments),
        partial(adding, fitted, moments),
        partial(others, whole, moments),
        partial(saving, folder, moments),
        partial(collecting, moments),
    ]

    def attack(rng: np.random.Generator) -> str | None:
        pick(rng, kinds)(rng)
        return None

    return attack


CATEGORY = Category("interrupts", prepare, 0.012)
