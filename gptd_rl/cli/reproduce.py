"""``gptd-rl reproduce``: run the paper's experiments, and compare its numbers with ours."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gptd_rl.cli import options, outputs, terminal

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
        help="run the paper's experiments and compare the numbers",
        description="Run the experiments of the paper's Section 6, and one with more irrelevant inputs. Write\n"
        "figures, tables and a page.",
        examples=EXAMPLES,
    )
    parser.add_argument("experiment", choices=("pendulum", "gridworld", "all"))
    options.add_out(parser, "figures, tables and the page (a folder)", "reproduction")
    parser.add_argument(
        "--seeds", type=options.count, default=3, metavar="N", help="number of seeds (default: %(default)s)"
    )
    parser.add_argument("--small", action="store_true", help="fewer transitions and coarser grids: a run of seconds")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the experiments and print the claims."""
    from gptd_rl.progress import stage_bars
    from gptd_rl.reproduction.reproduce import STAGE, ReproductionPlan, reproduce

    plan = ReproductionPlan(args.experiment, args.seeds, args.small)
    with outputs.writing_folder(args.out), outputs.saving(args.out), stage_bars(STAGE) as bars:
        chapters = reproduce(plan, args.out, bars)
    claims = [claim for chapter in chapters for claim in chapter.claims]
    terminal.show(_claims_table(claims), f"page: {args.out / 'index.html'}")
    return 0


def _claims_table(claims: Sequence[Claim]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table("section", "claim", "verdict", "seeds", title="Claims", title_justify="left")
    for claim in claims:
        style = "green" if all(claim.held) else "bold red"
        table.add_row(claim.section, claim.text, Text(claim.verdict, style=style), claim.count)
    return table
