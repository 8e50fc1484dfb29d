"""``gptd-rl evaluate``, with a stand-in for the computation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gptd_rl
from gptd_rl.exceptions import AgentError, InterruptedFitWarning
from tests.cli.commands import GRID, Capture, StandIn, run
from tests.report.evaluations import in_gridworld


def test_evaluate(call: dict[str, Any], stand_in: StandIn, agent_file: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "new" / "page"
    assert run("evaluate", "--env", GRID, "--agent", agent_file, "--out", out) == 0
    said, error = capsys.readouterr()
    assert error == "" and said.endswith(f"page: {out / 'index.html'}\n")
    assert "A2C on Grid[red]-v0" in said
    assert (out / "index.html").read_text() == "page"
    progress = call.pop("progress")
    assert callable(progress)
    assert call == dict(
        policy=stand_in,
        env=GRID,
        env_kwargs={},
        n_transitions=10_000,
        gamma=None,
        deterministic=True,
        seed=0,
        target=None,
        frames=True,
    )


def test_evaluate_with_every_option(call: dict[str, Any], stand_in: StandIn, agent_file: Path, tmp_path: Path):
    named = ["--env", GRID, "--agent", agent_file, "--algo", "PPO", "--target", agent_file]
    more = [
        "--n-transitions",
        7,
        "--gamma",
        0.5,
        "--seed",
        9,
        "--stochastic",
        "--no-frames",
        "--env-kwargs",
        "max_episode_steps=3",
    ]
    assert run("evaluate", *named, *more, "--out", tmp_path) == 0
    assert (
        call["n_transitions"],
        call["gamma"],
        call["seed"],
        call["deterministic"],
    ) == (7, 0.5, 9, False)
    assert call["frames"] is False
    assert call["policy"] is stand_in and call["target"] is stand_in and stand_in.seeds == [9, 9]
    assert (call["env"], call["env_kwargs"]) == (GRID, dict(max_episode_steps=3))


def test_evaluate_prints_only_json(
    call: dict[str, Any], stand_in: StandIn, agent_file: Path, tmp_path: Path, capsys: Capture
):
    assert run("evaluate", "--env", GRID, "--agent", agent_file, "--out", tmp_path, "--json") == 0
    said, error = capsys.readouterr()
    found = json.loads(said)
    assert found["config"]["agent"] == "A2C" and found["check"]["scores"][1]["nlpd"] is None
    assert found["page"] == str(tmp_path / "index.html")
    assert error == "an environment that prints\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted, nothing was written"),
        (InterruptedFitWarning("the best so far"), 130, "interrupted, nothing was written"),
        (AgentError("no such agent"), 2, "no such agent"),
        (gptd_rl.CollectionError("cannot begin"), 2, "cannot begin"),
        (gptd_rl.CollectionError("broke", in_gridworld().data), 1, "broke"),
        (ValueError("nothing\nto fit"), 1, "nothing to fit"),
    ],
)
def test_evaluate_fails(
    error: BaseException,
    code: int,
    words: str,
    call: dict[str, Any],
    stand_in: StandIn,
    agent_file: Path,
    tmp_path: Path,
    capsys: Capture,
):
    call["error"] = error
    assert run("evaluate", "--env", GRID, "--agent", agent_file, "--json", "--out", tmp_path / "new") == code
    out, said = capsys.readouterr()
    assert out == "" and said == f"an environment that prints\ngptd-rl: {words}\n"
    assert not (tmp_path / "new").exists()
