"""The parser, errors and exit codes of the command line."""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import gptd_rl
from gptd_rl.cli import plot
from tests.cli.commands import COMMANDS, GRID, Capture, error_line, run, subparsers


def test_main_has_the_commands():
    assert tuple(subparsers()) == COMMANDS


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_ends_with_examples(command: list[str], capsys: Capture):
    assert run(*command, "--help") == 0
    text = capsys.readouterr().out
    examples = text.split("examples:\n")[1].splitlines()
    assert all(line.startswith("  gptd-rl ") for line in examples) and len(examples) >= 2
    assert max(map(len, text.splitlines())) <= 120


def test_parser_needs_no_slow_import():
    slow = ["matplotlib", "rich", "torch", "stable_baselines3"]
    code = f"import sys, gptd_rl.cli.main as c; c.parser(); print(*sorted(set({slow}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


COLLECT = ["collect", "--env", GRID, "--gamma", "0.9", "--out", "OUT"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: COMMAND"),
        (["collct"], "invalid choice: 'collct'"),
        (COLLECT, "one of the arguments --n-transitions --n-episodes is required"),
        ([*COLLECT, "--n-transitions", "5", "--n-episodes", "1"], "not allowed with"),
        ([*COLLECT, "--n-transitions", "0"], "expected a whole number of 1 or more, got '0'"),
        ([*COLLECT, "--n-transitions", str(2**100)], "expected a whole number of at most 2^53, got one of 31 digits"),
        ([*COLLECT, "--n-transitions", "1.5"], "expected a whole number of 1 or more"),
        ([*COLLECT, "--n-episodes", "1", "--seed", "-1"], "expected a whole number of 0 or more, got '-1'"),
        ([*COLLECT, "--n-episodes", "1", "--gamma", "1.01"], "expected a number from 0 to 1, got '1.01'"),
        ([*COLLECT, "--n-episodes", "1", "--gamma", "nan"], "expected a number from 0 to 1"),
        ([*COLLECT, "--n-episodes", "1", "--gamma", "much"], "expected a number from 0 to 1"),
        ([*COLLECT, "--n-episodes", "1", "--env-kwargs", "size"], "expected KEY=VALUE, got 'size'"),
        ([*COLLECT, "--n-episodes", "1", "--env-kwargs", "1=2"], "expected KEY=VALUE"),
        ([*COLLECT, "--n-episodes", "1", "--stoch"], "unrecognized arguments: --stoch"),
        (["collect", "--env", GRID, "--n-episodes", "1", "--out", "OUT"], "required: --gamma"),
        (["evaluate", "--env", GRID, "--out", "OUT"], "--agent is missing: give --agent and --env, or --zoo"),
        (["iterate", "--env", GRID], "required: --out"),
        (["plot"], "required: FILE"),
        (["plot", "FILE", "--inputs", "0"], "expected 2 arguments"),
        (["reproduce", "all", "--seed", "1", "--out", "OUT"], "unrecognized arguments: --seed"),
    ],
)
def test_parser_rejects_wrong_arguments(arguments: list[str], words: str, tmp_path: Path, capsys: Capture):
    assert run(*(str(tmp_path / "out") if a == "OUT" else a for a in arguments)) == 2
    assert words in error_line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_main_prints_warnings_as_one_line(capsys: Capture, monkeypatch):
    def warn(args: argparse.Namespace) -> int:
        warnings.warn("be\ncareful", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(plot, "run", warn)
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run("plot", "file") == 0
    assert capsys.readouterr().err == "gptd-rl: warning: be careful\n"
    assert warnings.showwarning is before


@pytest.mark.parametrize("command", ["collect", "iterate", "plot"])
def test_main_ends_after_an_interrupt(
    command: str, gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture, monkeypatch
):
    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gym, "make", stop)
    monkeypatch.setattr(plot, "draw", stop)
    model = gptd_rl.GPTD(kernel="isotropic").fit(gridworld).save(tmp_path / "v.gptd")
    more: dict[str, list[object]] = {
        "collect": ["--env", GRID, "--n-episodes", 1, "--gamma", 0.9],
        "iterate": ["--env", GRID],
        "plot": [model],
    }
    assert run(command, *more[command], "--out", tmp_path / "new" / "a.svg") == 130
    assert error_line(capsys) == "gptd-rl: interrupted, nothing was written\n"
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize("arguments", [["plot", "\x1b[31mred\x07"], ["plot", "a", "--strange=\x1b[31mred\x07"]])
def test_main_shows_control_characters_instead_of_sending_them(arguments: list[str], capsys: Capture):
    assert run(*arguments) == 2
    assert r"\x1b[31mred\x07" in error_line(capsys)


@pytest.mark.parametrize("command", ["plot", "collect", "iterate"])
def test_main_says_in_one_line_that_a_name_is_too_long(command: str, tmp_path: Path, capsys: Capture):
    path = tmp_path / ("é" * 300)
    given = (
        [path] if command == "plot" else ["--env", "CartPole-v1", "--n-transitions", 5, "--gamma", 0.9, "--out", path]
    )
    assert run(command, *given) == 2
    assert "File name too long" in error_line(capsys)
