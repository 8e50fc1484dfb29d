"""``gptd-rl iterate``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gptd_rl.agents import PolicyIteration
from tests.cli.commands import GRID, Capture, error_line, run


def test_iterate_writes_agent_picture_and_json(iterated: Path):
    agent = PolicyIteration.load(iterated)
    assert (agent.num_timesteps, agent.seed, agent.gamma) == (150, 1, 0.99)
    assert iterated.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(list(iterated.parent.iterdir())) == 3
    found = json.loads((iterated.parent / "printed.json").read_text())
    assert found["agent"] == str(iterated) and found["picture"] == str(iterated.with_suffix(".png"))
    assert found["n_transitions"] == 150 and found["n_episodes"] == len(agent.episodes)
    np.testing.assert_allclose(found["relevances"], agent.relevances_)
    returns = agent.incumbent_returns
    assert found["n_incumbent_episodes"] == len(returns)
    assert found["served"] == agent.served_.reason
    assert found["incumbent_return"] == (pytest.approx(returns.mean()) if len(returns) else None)


def test_iterate_prints_a_table(tmp_path: Path, capsys: Capture):
    out = tmp_path / "a.gptd"
    more = ["--candidates", "-2", "0", "2", "--n-transitions", 60, "--gamma", 0.9]
    short = ["--env-kwargs", "max_episode_steps=20"]
    assert run("iterate", "--env", "Pendulum-v1", *short, *more, "--out", out) == 0
    said, error = capsys.readouterr()
    assert error == "" and "60, in 3 episodes" in said and "input 2" in said
    assert f"agent: {out}\npicture: {tmp_path / 'a.png'}\n" in said
    agent = PolicyIteration.load(out)
    assert agent.gamma == 0.9 and agent.candidates is not None and agent.candidates.shape == (3, 1)


@pytest.mark.parametrize("model", ["gp", "none"])
def test_iterate_with_and_without_a_model(model: str, tmp_path: Path):
    out = tmp_path / "a.gptd"
    assert run("iterate", "--env", GRID, "--n-transitions", 60, "--model", model, "--out", out, "--json") == 0
    assert PolicyIteration.load(out).model == (None if model == "none" else "gp")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", GRID, "--model", "x", "--out", "a.gptd"], "invalid choice: 'x'"),
        (["--env", "Pendulum-v1", "--out", "a.gptd"], "is continuous: give candidates"),
        (["--env", "Pendulum-v1", "--candidates", "0", "9", "--out", "a.gptd"], "is outside"),
        (["--env", GRID, "--candidates", "0", "1", "--out", "a.gptd"], "candidates are for continuous actions"),
        (["--env", GRID, "--gamma", "1", "--out", "a.gptd"], "gamma must lie in [0, 1)"),
        (["--env", GRID, "--out", "a.png"], "a.png is for the picture"),
    ],
)
def test_iterate_rejects_bad_arguments(arguments: list[str], words: str, tmp_path: Path, capsys: Capture):
    arguments[-1] = str(tmp_path / "new" / arguments[-1])
    assert run("iterate", *arguments) == 2
    assert words in error_line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("breaking_env")
def test_iterate_in_an_environment_that_fails(tmp_path: Path, capsys: Capture):
    more = ["--env-kwargs", "n=40", "--n-transitions", 60, "--out", tmp_path / "new" / "a.gptd"]
    assert run("iterate", "--env", "robots:Breaks-v0", *more) == 1
    said = error_line(capsys)
    assert "RuntimeError: the robot fell over (step 40)" in said and "saved" not in said
    assert list(tmp_path.iterdir()) == []


def test_iterate_takes_candidates_of_several_numbers():
    from gptd_rl.cli.iterate import _actions

    np.testing.assert_array_equal(_actions([1, 2, 3, 4], (2,)), [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="an action has 2 numbers"):
        _actions([1, 2, 3], (2,))
