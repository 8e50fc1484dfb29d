"""Everything that writes files: an old content, a new one, and a check that one of them is there as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import gptd_rl
from gptd_rl import Trajectories
from gptd_rl.agents import PolicyIteration
from tests.adversarial.own_files import answer
from tests.estimators.test_edited_files import DATA, MODELS


@dataclass(frozen=True)
class Writer:
    """Writes one of two contents (0, 1) to a path, and reads it."""

    write: Callable[[Path, int], Any]
    read: Callable[[Path], Any]


@cache
def contents(name: str) -> tuple[Any, Any]:
    """Two things of a kind that differ."""
    if name == "data":
        return DATA, DATA[:2]
    if name == "agent":
        first = PolicyIteration("gptd_rl/LatentGridworld-v0", seed=0).learn(60)
        return first, PolicyIteration("gptd_rl/LatentGridworld-v0", seed=1).learn(80)
    if name == "online":
        return MODELS["online"](), MODELS["online"]().update(DATA)
    return MODELS[name](), MODELS[name]().condition(DATA[:2])


def _save(name: str) -> Callable[[Path, int], Any]:
    return lambda path, which: contents(name)[which].save(path)


WRITERS: dict[str, Writer] = {
    "exact": Writer(_save("exact"), gptd_rl.load),
    "online": Writer(_save("online"), gptd_rl.load),
    "data": Writer(_save("data"), Trajectories.load),
    "agent": Writer(_save("agent"), PolicyIteration.load),
}


@cache
def answers(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    one, other = contents(name)
    return answer(one), answer(other)


def which_is_there(name: str, path: Path) -> int | None:
    """Which content a file has, 0 or 1; None if it is neither."""
    found = answer(WRITERS[name].read(path))
    rounding = 1e-12 if name == "online" else 0.0  # the root of its covariance is updated, and computed anew on loading
    for which, expected in enumerate(answers(name)):
        if all(
            a.shape == b.shape and np.allclose(a, b, rounding, rounding) for a, b in zip(found, expected, strict=True)
        ):
            return which
    return None


def visible(folder: Path) -> list[str]:
    """Names of the files but for hidden ones ending in .part, which killed writers leave."""
    return sorted(p.name for p in folder.iterdir() if not (p.name.startswith(".") and p.name.endswith(".part")))
