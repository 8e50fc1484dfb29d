"""``gptd-rl reproduce``: the paper's experiments, with its numbers beside ours."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gptd_rl.cli import options, terminal

if TYPE_CHECKING:
    from gptd_rl.reproduction.claims import Claim

EXAMPLES = """\
gptd-rl reproduce all --out reproduction
gptd-rl reproduce gridworld --seeds 10
gptd-rl reproduce all --small"""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments and put its numbers beside ours",
        description="Run the experiments of the paper's Section 6 and some beyond it; write figures, tables, a page.",
        examples=EXAMPLES,
    )
    parser.add_argument("experiment", choices=("pendulum", "gridworld", "all"))
    options.add_out(parser, "figures, tables and the page, a folder", "reproduction")
    parser.add_argument(
        "--seeds", type=options.count, default=3, metavar="N", help="number of seeds (default: %(default)s)"
    )
    parser.add_argument("--small", action="store_true", help="less of everything: a smoke run of seconds")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the experiments and print the claims."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from gptd_rl.reproduction.reproduce import Plan, make_writable, reproduce

    plan = Plan(args.experiment, args.seeds, args.small)
    console = Console()
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    try:
        make_writable(args.out)
        with Progress(*columns, console=console, transient=True) as bar:
            line = bar.add_task("", total=plan.n_ticks)
            chapters = reproduce(plan, args.out, lambda word: bar.update(line, advance=1, description=word))
    except OSError as error:
        raise terminal.Refusal(f"cannot write to {args.out}: {error.strerror or error}") from error
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
