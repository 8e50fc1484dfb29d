"""What a command says: exit codes, one-line errors and warnings, progress on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

FAILED = 1
BAD_ARGUMENTS = 2  # or input that cannot be used
INTERRUPTED = 130  # as shells count it

Report = Callable[[str, int, int], None]  # stage, how much of it is done, of how much in all (0: nobody knows)


class Refusal(Exception):
    """Why a command stops, and its exit code."""

    def __init__(self, message: str, code: int = BAD_ARGUMENTS) -> None:
        super().__init__(message)
        self.code = code


def fail(message: str, code: int) -> int:
    """Say in one line on stderr what is wrong, and return the exit code."""
    sys.stderr.write(f"gptd-rl: {one_line(message)}\n")
    return code


def one_line(message: object) -> str:
    """The same words without line breaks."""
    return " ".join(str(message).split())


@contextmanager
def refusing(*errors: type[Exception], code: int = BAD_ARGUMENTS, before: str = "") -> Iterator[None]:
    """Turn `errors` into a `Refusal`, with the words `before` in front of what they say."""
    try:
        yield
    except errors as error:
        raise Refusal(f"{before}{error}", code) from error


@contextmanager
def short_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the source code that raised them."""

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        fail(f"warning: {message}", 0)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def progress(*stages: str) -> Iterator[Report]:
    """Show a line for each stage while it lasts, if stderr is a terminal; yield what is told how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        lines = {stage: bar.add_task(stage, total=None, start=False) for stage in stages}

        def report(stage: str, done: int, total: int) -> None:
            for earlier in stages[: stages.index(stage)]:
                made = bar.tasks[lines[earlier]].completed
                bar.update(lines[earlier], total=max(made, 1), completed=max(made, 1))
            bar.start_task(lines[stage])
            bar.update(lines[stage], completed=done, total=total or None)

        yield report


def only_json(wanted: bool) -> Any:
    """While this lasts, and if it is wanted, what anybody prints goes to stderr."""
    return redirect_stdout(sys.stderr) if wanted else nullcontext()


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")


def show(*renderables: Any) -> None:
    """Print lines of plain text and rich's tables."""
    from rich.console import Console

    console = Console()
    for renderable in renderables:
        console.print(renderable, markup=False, highlight=False, soft_wrap=isinstance(renderable, str))


def is_watched(args: Any) -> bool:
    """Whether somebody looks at stdout, and wants more there than JSON."""
    return sys.stdout.isatty() and not getattr(args, "json", False)
