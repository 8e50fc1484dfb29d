"""The command line, ``gptd-rl COMMAND``: the parser, errors and exit codes.

Each command is a module of `gptd_rl.cli`, and imports its dependencies when it runs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from gptd_rl.cli import collect, compare, evaluate, iterate, plot, reproduce
from gptd_rl.cli.options import Parser
from gptd_rl.cli.terminal import BAD_ARGUMENTS, INTERRUPTED, CommandError, fail, short_warnings
from gptd_rl.progress import no_partial_fits
from gptd_rl.version import __version__

COMMANDS = (collect, evaluate, compare, iterate, plot, reproduce)

EXAMPLES = """\
gptd-rl evaluate --agent model.zip --env CartPole-v1
gptd-rl compare old.zip new.zip --env CartPole-v1
gptd-rl iterate --env Acrobot-v1 --n-transitions 1000 --out agent.gptd
gptd-rl evaluate --help"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.

    Returns
    -------
    int
        0; 1 if the computation fails; 2 if arguments or input files are wrong; 130 after Ctrl-C.
    """
    typed = sys.argv[1:] if arguments is None else list(arguments)
    args = parser().parse_args(typed)
    args.command_line = shlex.join(["gptd-rl", *typed])
    with short_warnings():
        try:
            with no_partial_fits():
                return int(args.run(args))
        except CommandError as error:
            return fail(str(error), error.code)
        except OSError as error:  # a path that cannot even be looked at
            return fail(str(error), BAD_ARGUMENTS)
        except KeyboardInterrupt:
            return fail("interrupted, nothing was written", INTERRUPTED)


def parser() -> Parser:
    """The parser of all commands."""
    made = Parser(prog="gptd-rl", description="Value functions with honest error bars.", examples=EXAMPLES)
    made.add_argument("--version", action="version", version=f"gptd-rl {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return made


if __name__ == "__main__":
    sys.exit(main())
