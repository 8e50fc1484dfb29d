"""``gptd-rl collect``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gptd_rl
from tests.cli.commands import GRID, Capture, StandIn, error_line, run


def test_collect_random_episodes(tmp_path: Path, capsys: Capture):
    out = tmp_path / "new" / "data.npz"
    assert run("collect", "--env", GRID, "--n-episodes", 10, "--gamma", 0.9, "--seed", 3, "--out", out) == 0
    data = gptd_rl.Trajectories.load(out)
    assert data.n_segments == 10
    left = np.setdiff1d(np.arange(len(data)), data.last)
    assert set(data.discounts[left]) <= {0.9}
    said, error = capsys.readouterr()
    assert error == "" and said.count("\n") == 1
    assert f"{out}: {data.n_transitions} transitions with 2 inputs, 10 episodes, " in said
    again = tmp_path / "again.npz"
    assert run("collect", "--env", GRID, "--n-episodes", 10, "--gamma", 0.9, "--seed", 3, "--out", again) == 0
    np.testing.assert_array_equal(gptd_rl.Trajectories.load(again).states, data.states)
    assert run("collect", "--env", GRID, "--n-episodes", 10, "--gamma", 0.9, "--seed", 4, "--out", again) == 0
    assert not np.array_equal(gptd_rl.Trajectories.load(again).states[:20], data.states[:20])


def test_collect_transitions_in_an_environment_with_arguments(tmp_path: Path, capsys: Capture):
    out = tmp_path / "data.npz"
    kwargs = ["--env-kwargs", "max_episode_steps=7", "--env-kwargs", "g=1.0"]
    assert run("collect", "--env", "Pendulum-v1", *kwargs, "--n-transitions", 30, "--gamma", 1, "--out", out) == 0
    data = gptd_rl.Trajectories.load(out)
    assert data.n_transitions == 30 and max(data.lengths) == 8


@pytest.mark.parametrize("stochastic", [False, True])
def test_collect_with_an_agent(stand_in: StandIn, stochastic: bool, agent_file: Path, tmp_path: Path):
    out = tmp_path / "data.npz"
    amount = ["--n-transitions", 50, "--gamma", 0.9, "--seed", 5, "--out", out]
    more = ["--stochastic"] if stochastic else []
    assert run("collect", "--env", GRID, "--agent", agent_file, "--algo", "PPO", *amount, *more) == 0
    assert set(stand_in.asked) == {not stochastic}
    assert stand_in.seeds == ([5] if stochastic else [])
    data = gptd_rl.Trajectories.load(out)
    assert data.terminated[:-1].all() and data.n_transitions == 50


@pytest.mark.parametrize(
    ("kwargs", "code", "words"),
    [
        (["n=3"], 1, "RuntimeError: the robot fell over"),
        (["n=0"], 2, "RuntimeError: the robot fell over"),
        (["image=True"], 2, "image"),
    ],
)
@pytest.mark.usefixtures("breaking_env")
def test_collect_in_an_environment_that_fails(
    kwargs: list[str], code: int, words: str, tmp_path: Path, capsys: Capture
):
    more = ["--env-kwargs", *kwargs, "--n-transitions", 9, "--gamma", 0.9, "--out", tmp_path / "new" / "data.npz"]
    assert run("collect", "--env", "robots:Breaks-v0", *more) == code
    assert words in error_line(capsys)
    assert list(tmp_path.iterdir()) == []
