"""Options that several commands share, with the same name, help and checks."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path
from textwrap import indent
from typing import Any, NoReturn

from gptd_rl.checks import LARGEST_COUNT
from gptd_rl.cli.terminal import BAD_ARGUMENTS, one_line

TRUST = (
    "Stable-Baselines3's .zip and VecNormalize files run code when they are loaded: use only those you trust.\n"
    "gptd-rl reads plain ones without running code and rejects others. Its own files contain no code."
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, whose options are not abbreviated, and whose help ends with examples."""

    def __init__(self, *, examples: str, **options: Any) -> None:
        super().__init__(
            epilog="examples:\n" + indent(examples, "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )

    def error(self, message: str) -> NoReturn:
        """Print a one-line message, and exit."""
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {one_line(message)}\n")


# -------------------------------------------------------------------------------------- options


def add_env(parser: Any, *, otherwise: str = "") -> None:
    """``--env ID`` and ``--env-kwargs KEY=VALUE``.

    The environment is required unless there is a default, described by `otherwise`.
    """
    parser.add_argument(
        "--env",
        required=not otherwise,
        metavar="ID",
        help=_with_default("Gymnasium id of the environment; module:Name-v0 imports the module first", otherwise),
    )
    parser.add_argument(
        "--env-kwargs",
        action="extend",
        nargs="+",
        default=[],
        type=key_value,
        metavar="KEY=VALUE",
        help="arguments of the environment, Python literals or strings; KEY:VALUE as in rl-zoo will do, too",
    )


def add_agent(parser: Any, *, otherwise: str = "") -> None:
    """``--agent FILE``, ``--algo NAME``, ``--vecnormalize FILE`` and ``--stochastic``.

    The agent is required unless there is a default, described by `otherwise`.
    """
    parser.add_argument(
        "--agent",
        type=Path,
        required=not otherwise,
        metavar="FILE",
        help=_with_default("the agent: a .zip of Stable-Baselines3, or a file of gptd-rl iterate", otherwise),
    )
    parser.add_argument(
        "--algo", metavar="NAME", help=_with_default("the agent's algorithm, such as PPO", "read from the file")
    )
    parser.add_argument(
        "--vecnormalize",
        type=Path,
        metavar="FILE",
        help="statistics of VecNormalize, if the agent needs them",
    )
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the most likely")


def add_amount(parser: Any, default: int | None = None) -> None:
    """``--n-transitions N``."""
    parser.add_argument(
        "--n-transitions",
        type=count,
        default=default,
        metavar="N",
        help=_with_default("number of environment steps", default),
    )


def add_gamma(parser: Any, default: float | None = None, *, otherwise: str = "") -> None:
    """``--gamma G``, required unless there is a default, or one described by `otherwise`."""
    parser.add_argument(
        "--gamma",
        type=discount,
        default=default,
        required=default is None and not otherwise,
        metavar="G",
        help=_with_default("discount per step, from 0 to 1", otherwise or default),
    )


def add_seed(parser: Any) -> None:
    """``--seed N``."""
    parser.add_argument(
        "--seed",
        type=seed,
        default=0,
        metavar="N",
        help=_with_default("seed of the environment and of random numbers", 0),
    )


def add_out(parser: Any, what: str, default: str | None = None, *, otherwise: str = "") -> None:
    """``--out PATH``, required unless there is a default, or one described by `otherwise`."""
    parser.add_argument(
        "--out",
        type=Path,
        default=None if default is None else Path(default),
        required=default is None and not otherwise,
        metavar="PATH",
        help=_with_default(f"where to write {what}", otherwise or default),
    )


def add_json(parser: Any) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else, to stdout")


def _with_default(text: str, default: object) -> str:
    return text if default in (None, "") else f"{text} (default: {default})"


# -------------------------------------------------------------------------------------- checked values


def count(text: str) -> int:
    """A whole number of 1 or more."""
    return _whole(text, 1)


def seed(text: str) -> int:
    """A whole number of 0 or more."""
    return _whole(text, 0)


def discount(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def key_value(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` or ``KEY:VALUE`` as the key and a Python literal, or else the string."""
    found = re.fullmatch("([^=:]*)[=:](.*)", text, re.DOTALL)
    if found is None or not found[1].isidentifier():
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    key, value = found.groups()
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of {least} or more, got {text!r}")
    if int(text) > LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"expected a whole number of at most 2^53, got one of {len(text)} digits")
    return int(text)
