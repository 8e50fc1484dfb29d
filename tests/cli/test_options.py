"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from gptd_rl.cli import options
from gptd_rl.cli.main import parser
from tests.cli.commands import COMMANDS, subparsers


@pytest.mark.parametrize("name", COMMANDS)
def test_parser_accepts_the_examples(name: str):
    text = subparsers()[name].epilog or ""
    lines = [line.split(">")[0].split()[1:] for line in text.splitlines()[1:]]
    for line in lines:
        parser().parse_args(line)
    assert any(line[0] == name for line in lines)


def test_options_are_the_same_in_all_commands():
    seen: dict[str, dict[str, argparse.Action]] = {}
    for command, sub in subparsers().items():
        for action in sub._actions:
            for option in action.option_strings:
                seen.setdefault(option, {})[command] = action
    shared = {option: list(where.values()) for option, where in seen.items() if len(where) > 1}
    assert {
        "--env",
        "--env-kwargs",
        "--agent",
        "--algo",
        "--vecnormalize",
        "--n-transitions",
        "--gamma",
        "--seed",
        "--stochastic",
        "--out",
        "--json",
    } <= shared.keys()
    for option, actions in shared.items():
        first, *others = actions
        for other in others:
            assert (other.metavar, other.type, other.nargs, type(other)) == (
                first.metavar,
                first.type,
                first.nargs,
                type(first),
            )
            words = [str(a.help).split(" (default")[0] for a in (first, other)]
            if option == "--out":
                assert all(text.startswith("where to write ") for text in words)
            else:
                assert words[0] == words[1]


def test_options_have_defaults():
    args = parser().parse_args(["evaluate", "--agent", "a.zip", "--env", "E-v0"])
    assert (args.n_transitions, args.gamma, args.seed, args.out) == (10_000, None, 0, Path("evaluation"))
    assert (args.stochastic, args.json, args.target, args.env_kwargs) == (False, False, None, [])
    args = parser().parse_args(["iterate", "--env", "E-v0", "--out", "a", "--candidates", "-2", "0.5"])
    assert (args.n_transitions, args.gamma, args.candidates) == (5_000, 0.99, [-2.0, 0.5])


@pytest.mark.parametrize("name", ["collect", "evaluate"])
def test_help_warns_of_code_in_files(name: str):
    text = " ".join(str(subparsers()[name].description).split())
    assert "run code when they are loaded: use only those you trust." in text


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("g=9.81", ("g", 9.81)),
        ("sutton=True", ("sutton", True)),
        ("mode=rgb", ("mode", "rgb")),
        ("size=(3, 4)", ("size", (3, 4))),
        ("name=", ("name", "")),
        ("sum=a=b", ("sum", "a=b")),
        ("g:9.81", ("g", 9.81)),  # as in rl-zoo
        ("file:'a=b'", ("file", "a=b")),
        ("file=C:/b", ("file", "C:/b")),
    ],
)
def test_key_value(text: str, pair: tuple[str, Any]):
    assert options.key_value(text) == pair
