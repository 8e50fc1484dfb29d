"""``gptd-rl compare``: files and their names, options, errors; with a stand-in for the computation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gptd_rl.cli.compare import named_files
from gptd_rl.cli.terminal import CommandError
from gptd_rl.evaluation import compare
from gptd_rl.evaluation.comparison import AgentComparison
from gptd_rl.sb3 import loading
from tests.cli.commands import GRID, Capture, StandIn, error_line, run
from tests.report.comparisons import made_up


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Checkpoints that are no archives; `load_agent` gives a policy of the gridworld for each."""
    paths = [tmp_path / "logs" / f"rl_model_{n}_steps.zip" for n in (1000, 200)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_text("no zip")
    monkeypatch.setattr(loading, "load_agent", lambda path, algo=None: StandIn())
    return paths


def test_named_files_sorts_checkpoints_by_their_steps():
    paths = [Path(f"logs/rl_model_{n}_steps.zip") for n in (10_000, 2_000, 400)]
    statistics = [Path(f"logs/rl_model_vecnormalize_{n}_steps.pkl") for n in (10_000, 2_000, 400)]
    found = named_files(paths, statistics)
    assert list(found) == ["400 steps", "2000 steps", "10000 steps"]
    assert found["400 steps"] == (paths[2], statistics[2])
    several = named_files([Path("a/ppo_5_steps.zip"), Path("a/dqn_1_steps.zip")])
    assert list(several) == ["dqn_1_steps", "ppo_5_steps"]


def test_named_files_keeps_the_order_of_others():
    assert list(named_files([Path("b.zip"), Path("a.zip")])) == ["b", "a"]
    assert list(named_files([Path("x/best.zip"), Path("y/best.zip")])) == ["x/best", "y/best"]
    assert list(named_files([Path("x/best.zip"), Path("x/best.zip")])) == ["x/best (1)", "x/best (2)"]
    one_for_all = named_files([Path("a.zip"), Path("b.zip")], [Path("s.pkl")])
    assert [statistics for _, statistics in one_for_all.values()] == [Path("s.pkl")] * 2


def test_named_files_of_folders(files: list[Path]):
    assert [file for file, _ in named_files([files[0].parent]).values()] == [files[1], files[0]]
    with pytest.raises(CommandError, match=r"--vecnormalize needs one file .* one for each of 2, got 3"):
        named_files(files, [Path("s.pkl")] * 3)


def test_compare_writes_page_and_numbers(
    files: list[Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    seen: dict[str, Any] = {}

    def compare_agents(agents: Any, env: Any, **options: Any) -> AgentComparison:
        seen.update(options, env=env, agents=list(agents))
        options["progress"]("agents", 1, 8)
        return made_up(list(agents))

    monkeypatch.setattr(compare, "compare_agents", compare_agents)
    out = tmp_path / "new" / "page"
    more = ["--n-starts", 9, "--n-states", 8, "--n-transitions", 70, "--gamma", 0.9, "--reference", "200 steps"]
    assert run("compare", *files, "--env", GRID, "--out", out, *more) == 0
    said, error = capsys.readouterr()
    assert error == "" and said.endswith(f"page: {out / 'index.html'}\n") and "200 steps" in said
    assert sorted(path.name for path in out.iterdir()) == ["comparison.json", "index.html"]
    assert "gptd-rl compare" in (out / "index.html").read_text()
    del seen["progress"]
    assert seen == dict(
        agents=["200 steps", "1000 steps"],
        env=GRID,
        n_transitions=70,
        n_starts=9,
        n_states=8,
        gamma=0.9,
        deterministic=True,
        seed=0,
        reference="200 steps",
    )
    assert run("compare", *files, "--env", GRID, "--out", out, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == str(out / "index.html") and printed["config"]["reference"] == "1000 steps"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{0}"], "compare needs two agents or more: got {0} alone"),
        (["{folder}/empty"], "there is no agent in the folder {folder}/empty: expected files that end in .zip"),
        (["{0}", "{1}", "--reference", "best"], "--reference must be one of 200 steps, 1000 steps; got best"),
        (["{0}", "{1}", "--n-starts", "1"], "--n-starts must be 2 or more"),
        (["{0}", "{1}", "--vecnormalize", "a", "b", "c"], "one for each of 2, got 3"),
    ],
)
def test_compare_refuses(arguments: list[str], words: str, files: list[Path], tmp_path: Path, capsys: Capture):
    (tmp_path / "empty").mkdir()
    named = dict(folder=str(tmp_path))
    given = [argument.format(*files, **named) for argument in arguments]
    assert run("compare", "--env", GRID, "--out", tmp_path / "new", *given) == 2
    assert words.format(*files, **named) in error_line(capsys)
    assert not (tmp_path / "new").exists()


def test_compare_needs_an_environment(files: list[Path], capsys: Capture):
    assert run("compare", *files) == 2
    assert "the following arguments are required: --env" in error_line(capsys)


def test_compare_names_the_agent_with_other_spaces(files: list[Path], tmp_path: Path, capsys: Capture):
    assert run("compare", *files, "--env", "CartPole-v1", "--out", tmp_path / "new") == 2
    line = error_line(capsys)
    assert "rl_model_200_steps.zip: the agent observes Box(2,) and CartPole-v1 gives Box(4,)" in line


def test_compare_missing_file(files: list[Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert run("compare", tmp_path / "no.zip", files[0], "--env", GRID, "--out", tmp_path / "new") == 2
    assert "no.zip" in error_line(capsys)


def test_compare_keeps_what_is_finished(
    files: list[Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
):
    part = made_up(["200 steps", "1000 steps"], with_states=False)
    monkeypatch.setattr(compare, "compare_agents", lambda *args, **options: part)
    assert run("compare", *files, "--env", GRID, "--out", tmp_path / "new") == 130
    assert (tmp_path / "new" / "comparison.json").exists()
    assert "page:" in capsys.readouterr().out
