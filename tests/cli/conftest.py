"""Fixtures of the tests of the command line."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import gptd_rl
from gptd_rl.agents.reference.gridworld import TowardsMiddle
from gptd_rl.evaluation.results import Evaluation
from gptd_rl.sb3 import loading
from tests.cli.commands import GRID, Breaks, StandIn, run
from tests.report.evaluations import in_gridworld


@pytest.fixture
def agent_file(tmp_path: Path) -> Path:
    """A file that is no agent; `stand_in` makes `load_agent` read it."""
    path = tmp_path / "agent.zip"
    path.write_text("no zip")
    return path


@pytest.fixture
def stand_in(monkeypatch, agent_file: Path) -> StandIn:
    """The agent that `load_agent` reads from `agent_file`."""
    made = StandIn()

    def load_agent(path: Path, *, algo: str | None = None) -> StandIn:
        assert path == agent_file and algo in (None, "PPO")
        return made

    monkeypatch.setattr(loading, "load_agent", load_agent)
    return made


@pytest.fixture
def breaking_env(tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Iterator[None]:
    """A module `robots` that registers `Breaks`."""
    folder = tmp_path_factory.mktemp("modules")
    monkeypatch.setattr(gym, "ours", Breaks, raising=False)
    text = "import gymnasium\ngymnasium.register('Breaks-v0', gymnasium.ours, disable_env_checker=True)\n"
    (folder / "robots.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    yield
    gym.registry.pop("Breaks-v0", None)
    sys.modules.pop("robots", None)


@pytest.fixture(scope="module")
def iterated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of an agent that learnt in the gridworld; the printed JSON is in the same folder."""
    folder = tmp_path_factory.mktemp("iterate") / "new"
    with pytest.MonkeyPatch.context() as patch:
        shown: list[str] = []
        patch.setattr(sys.stdout, "write", shown.append)
        assert (
            run("iterate", "--env", GRID, "--n-transitions", 150, "--seed", 1, "--out", folder / "agent.gptd", "--json")
            == 0
        )
    (folder / "printed.json").write_text("".join(shown))
    return folder / "agent.gptd"


@pytest.fixture(scope="module")
def gridworld() -> gptd_rl.Trajectories:
    return gptd_rl.collect(GRID, TowardsMiddle(), n_transitions=60, gamma=0.9, seed=0)


@pytest.fixture(autouse=True)
def call(monkeypatch) -> dict[str, Any]:
    """Arguments of the last call of `evaluate_agent`, which a stand-in replaces; `call["error"]` is raised if set."""
    seen: dict[str, Any] = {}

    def evaluate_agent(policy: Any, env: Any, **options: Any) -> Evaluation:
        seen.update(options, policy=policy, env=env)
        print("an environment that prints")
        for stage, done, total in [
            ("collect", 0, 10),
            ("collect", 10, 10),
            ("fit", 0, 0),
            ("fit", 3, 0),
            ("check", 1, 2),
        ]:
            options["progress"](stage, done, total)
        if "error" in seen:
            raise seen["error"]
        return in_gridworld()

    def write(self: Evaluation, folder: Path, command: str) -> Path:
        assert command.startswith("gptd-rl ")
        (folder / "index.html").write_text("page")
        return folder / "index.html"

    module = types.ModuleType("gptd_rl.evaluation.evaluate")
    module.evaluate_agent = evaluate_agent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gptd_rl.evaluation.evaluate", module)
    monkeypatch.setattr(Evaluation, "write", write)
    return seen
