"""Agents in files: those that were edited are refused in one line, and subclasses are not saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gptd_rl import GPTDQ, DynamicsModel
from gptd_rl.agents import PolicyIteration
from gptd_rl.agents.planning import Planning

GRIDWORLD = "gptd_rl/LatentGridworld-v0"


@pytest.fixture(scope="module")
def agent() -> PolicyIteration:
    return PolicyIteration(GRIDWORLD, seed=0).learn(60)


@pytest.fixture(scope="module")
def saved(agent, tmp_path_factory) -> Path:
    return agent.save(tmp_path_factory.mktemp("agents") / "agent")


def members(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(str(arrays.pop("header"))), arrays


def write(path: Path, header: dict[str, Any], arrays: dict[str, Any]) -> Path:
    with path.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)
    return path


def refusal(path: Path) -> str:
    """Why a file is refused; empty if it is not, and the agent then has finite values."""
    message = ""
    try:
        agent = PolicyIteration.load(path)
    except ValueError as error:
        message = str(error)
    else:
        assert np.isfinite(agent.q_values(np.ones((1, 2)))).all()
    assert "\n" not in message and (not message or str(path) in message)
    return message


def test_load_takes_a_file_that_was_not_edited(saved, tmp_path):
    assert not refusal(write(tmp_path / "agent", *members(saved)))


def test_load_refuses_arrays_with_nan(saved, tmp_path):
    header, arrays = members(saved)
    for edited, array in arrays.items():
        follows = edited in ("estimator_theta", "dynamics_space_low", "dynamics_space_high")
        if array.dtype.kind == "f" and array.size and not follows:
            broken = array.copy()
            broken.flat[-1] = np.nan
            assert refusal(write(tmp_path / "agent", header, arrays | {edited: broken})), edited


@pytest.mark.parametrize("name", ["strange", "estimator_strange", "dynamics_strange", "buffer_strange", "q99_weights"])
def test_load_refuses_unknown_arrays(name, saved, tmp_path):
    header, arrays = members(saved)
    path = write(tmp_path / "agent", header, arrays | {name: np.zeros(3)})
    assert f"it holds an unknown array '{name}'" in refusal(path)


def leaves(header: Any, trail: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of nested dicts and lists are; of a long list, the first three."""
    yield trail
    items = header.items() if isinstance(header, dict) else enumerate(header[:3]) if isinstance(header, list) else ()
    for key, value in items:
        yield from leaves(value, (*trail, key))


def test_load_of_headers_with_nonsense(saved, tmp_path):
    """Every fourth value in turn: the agent is refused in one line, or still acts."""
    header, arrays = members(saved)
    nonsense: list[Any] = [None, -1, float("nan"), "x", [], {}, [[1]], 10**30]
    trails = [trail for trail in leaves(header) if trail]
    for i in range(0, len(trails), 4):
        edited = deepcopy(header)
        place: Any = edited
        for key in trails[i][:-1]:
            place = place[key]
        place[trails[i][-1]] = nonsense[(i // 4) % len(nonsense)]
        refusal(write(tmp_path / "agent", edited, arrays))


def test_load_refuses_a_folder_in_one_line(tmp_path):
    with pytest.raises(OSError, match=r"is a folder: expected a file\.$"):
        PolicyIteration.load(tmp_path)


# -------------------------------------------------------------------------------------- subclasses


class Own(PolicyIteration):
    """An agent that would come back as its base."""


class OwnGPTDQ(GPTDQ):
    """An estimator that would come back as its base."""


class OwnDynamics(DynamicsModel):
    """A model that would come back as its base."""


@dataclass(frozen=True)
class OwnPlanning(Planning):
    """Settings that would come back as their base."""


def test_save_refuses_a_subclass(tmp_path):
    with pytest.raises(TypeError, match=r"^class Own cannot be saved: save a PolicyIteration\.$"):
        Own(GRIDWORLD, seed=0).save(tmp_path / "agent")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "other"), [("estimator", OwnGPTDQ()), ("dynamics_", OwnDynamics()), ("planning", OwnPlanning())]
)
def test_save_refuses_parts_of_other_classes(name, other, agent, tmp_path, monkeypatch):
    monkeypatch.setattr(agent, name, other)
    with pytest.raises(TypeError, match=rf"^class {type(other).__name__} .*cannot be saved"):
        agent.save(tmp_path / "agent")
    assert not list(tmp_path.iterdir())
