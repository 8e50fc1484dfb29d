"""The command line: ``gptd-rl reproduce all --out DIR``.

Each subcommand is a function that adds its parser, and one that runs it and returns an exit code. What a subcommand
needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gptd_rl

if TYPE_CHECKING:
    from gptd_rl.experiments.claims import Claim

BAD_ARGUMENTS = 2
INTERRUPTED = 130  # as shells count it


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 where the arguments are wrong, 130 after Ctrl-C.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.
    """
    args = _parser().parse_args(arguments)
    return int(args.run(args))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gptd-rl", description="Value functions with honest error bars.")
    parser.add_argument("--version", action="version", version=f"gptd-rl {gptd_rl.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_reproduce(commands)
    return parser


# -------------------------------------------------------------------------------------- reproduce


def _add_reproduce(commands: Any) -> None:
    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments and put its numbers beside ours",
        description="Run the experiments of the paper's Section 6 and some beyond it; write figures, tables, a page.",
    )
    parser.add_argument("experiment", choices=("pendulum", "gridworld", "all"))
    parser.add_argument(
        "--out", type=Path, default=Path("reproduction"), metavar="DIR", help="folder to write to (%(default)s)"
    )
    parser.add_argument("--seeds", type=_count, default=3, metavar="N", help="number of seeds (%(default)s)")
    parser.add_argument("--small", action="store_true", help="less of everything: a smoke run of seconds")
    parser.set_defaults(run=_reproduce)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def _reproduce(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from gptd_rl.experiments.reproduce import Plan, make_writable, reproduce

    plan = Plan(args.experiment, args.seeds, args.small)
    console = Console()
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    try:
        make_writable(args.out)
        with Progress(*columns, console=console, transient=True) as bar:
            line = bar.add_task("", total=plan.n_ticks)
            chapters = reproduce(plan, args.out, lambda word: bar.update(line, advance=1, description=word))
    except OSError as error:
        return _fail(f"cannot write to {args.out}: {error.strerror or error}", BAD_ARGUMENTS)
    except KeyboardInterrupt:
        return _fail("interrupted, nothing was written", INTERRUPTED)
    _print_claims(console, [claim for chapter in chapters for claim in chapter.claims])
    console.print(f"page: {args.out / 'index.html'}", soft_wrap=True, highlight=False)
    return 0


def _print_claims(console: Any, claims: Sequence[Claim]) -> None:
    from rich.table import Table

    table = Table("section", "claim", "verdict", "seeds", title="Claims", title_justify="left")
    for claim in claims:
        style = "green" if all(claim.held) else "bold red"
        table.add_row(claim.section, claim.text, f"[{style}]{claim.verdict}[/]", claim.count)
    console.print(table)


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"gptd-rl: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
