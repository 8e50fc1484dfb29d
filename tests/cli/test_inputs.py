"""Environments and agents that options name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptd_rl
from gptd_rl.agents import PolicyIteration
from gptd_rl.sb3 import loading
from tests.cli.commands import GRID, Capture, StandIn, error_line, run

BAD_ENVS = [
    ("Nothing-v0", "doesn't exist"),
    ("no id", "Malformed environment ID"),
    ("no_such_module:Env-v0", "No module named 'no_such_module'"),
    *(
        (env, "is not installed")
        for env, module in [("LunarLander-v3", "Box2D"), ("HalfCheetah-v5", "mujoco")]
        if importlib.util.find_spec(module) is None
    ),
]


@pytest.mark.parametrize("command", ["collect", "evaluate", "iterate"])
@pytest.mark.parametrize(("env", "words"), BAD_ENVS)
def test_make_env_fails(command: str, env: str, words: str, tmp_path: Path, capsys: Capture):
    more = {
        "collect": ["--n-episodes", 2, "--gamma", 0.9],
        "evaluate": ["--agent", tmp_path / "no.zip"],
        "iterate": [],
    }
    assert run(command, "--env", env, *more[command], "--out", tmp_path / "new" / "out") == 2
    said = error_line(capsys)
    assert said.startswith(f"gptd-rl: cannot make environment '{env}': ") and words in said
    assert list(tmp_path.iterdir()) == []


def test_make_env_with_unknown_arguments(tmp_path: Path, capsys: Capture):
    out = tmp_path / "data.npz"
    assert run("collect", "--env", GRID, "--env-kwargs", "sise=4", "--n-episodes", 1, "--gamma", 1, "--out", out) == 2
    assert "sise" in error_line(capsys)


def test_load_policy_of_another_environment(stand_in: StandIn, agent_file: Path, tmp_path: Path, capsys: Capture):
    for command, more in (("collect", ["--n-episodes", 1, "--gamma", 0.9]), ("evaluate", [])):
        out = tmp_path / "new"
        assert run(command, "--env", "CartPole-v1", "--agent", agent_file, *more, "--out", out) == 2
        said = error_line(capsys)
        assert "the agent observes" in said and "CartPole-v1 gives Box(4,)" in said
        assert not out.exists()


@pytest.mark.parametrize(("name", "words"), [("agent.zip", "agent.zip is no"), ("none.zip", "there is no file")])
@pytest.mark.parametrize("command", ["collect", "evaluate"])
def test_load_policy_from_an_unreadable_file(
    command: str, name: str, words: str, agent_file: Path, tmp_path: Path, capsys: Capture
):
    more = ["--n-episodes", 1, "--gamma", 0.9] if command == "collect" else []
    assert run(command, "--env", GRID, "--agent", tmp_path / name, *more, "--out", tmp_path / "new") == 2
    assert words in error_line(capsys)
    assert list(tmp_path.iterdir()) == [agent_file]


def test_load_policy_of_stable_baselines(tmp_path: Path, capsys: Capture):
    sb3 = pytest.importorskip("stable_baselines3")
    path = tmp_path / "a2c.zip"
    sb3.A2C("MlpPolicy", "CartPole-v1", device="cpu", seed=0).save(path)

    def states(*more: object) -> Any:
        out = tmp_path / "data.npz"
        amount = ["--n-transitions", 40, "--gamma", 0.9, "--out", out]
        assert run("collect", "--env", "CartPole-v1", "--agent", path, *amount, *more) == 0
        return gptd_rl.Trajectories.load(out).states

    np.testing.assert_array_equal(states("--stochastic"), states("--stochastic"))
    assert not np.array_equal(states("--stochastic"), states())
    capsys.readouterr()
    assert run("evaluate", "--env", "CartPole-v1", "--agent", path, "--algo", "dqn", "--out", tmp_path / "new") == 2
    assert "A2C" in error_line(capsys)


def test_load_policy_with_statistics(stand_in: StandIn, agent_file: Path, tmp_path: Path, monkeypatch):
    seen: list[Any] = []

    def normalised(model: Any, statistics: Any) -> Any:
        seen.append((model, statistics))
        return model

    monkeypatch.setattr(loading, "load_statistics", lambda path: f"what {path.name} holds")
    monkeypatch.setattr("gptd_rl.sb3.policies.NormalizedPolicy", normalised)
    more = ["--vecnormalize", "stats.pkl", "--n-episodes", 1, "--gamma", 0.9, "--out", tmp_path / "data.npz"]
    assert run("collect", "--env", GRID, "--agent", agent_file, *more) == 0
    assert seen == [(stand_in, "what stats.pkl holds")]


def test_load_policy_of_policy_iteration(iterated: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "data.npz"
    more = ["--n-episodes", 2, "--gamma", 0.9, "--out", out]
    assert run("collect", "--env", GRID, "--agent", iterated, *more) == 0
    agent, data = PolicyIteration.load(iterated), gptd_rl.Trajectories.load(out)
    left = np.setdiff1d(np.arange(len(data)), data.last)
    assert data.actions is not None
    np.testing.assert_array_equal(data.actions[left], agent.predict(data.states[left])[0])
    capsys.readouterr()
    assert run("collect", "--env", "Acrobot-v1", "--agent", iterated, *more) == 2
    assert "the environment has 3 actions, but the agent learnt with 2" in error_line(capsys)
