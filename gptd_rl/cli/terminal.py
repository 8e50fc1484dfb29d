"""Output of the commands: exit codes, one-line errors and warnings, progress on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import Any

FAILED = 1
BAD_ARGUMENTS = 2  # or input that cannot be used
INTERRUPTED = 130  # 128 + SIGINT, as in shells


class CommandError(Exception):
    """The one-line message with which a command stops, and its exit code."""

    def __init__(self, message: str, code: int = BAD_ARGUMENTS) -> None:
        super().__init__(message)
        self.code = code


def fail(message: str, code: int) -> int:
    """Print a one-line message to stderr, and return the exit code."""
    sys.stderr.write(f"gptd-rl: {one_line(message)}\n")
    return code


def one_line(message: object) -> str:
    """The message without line breaks, and without characters that a terminal would obey."""
    text = " ".join(str(message).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def as_command_error(*errors: type[Exception], code: int = BAD_ARGUMENTS, prefix: str = "") -> Iterator[None]:
    """Raise `errors` as `CommandError`, their messages with `prefix` in front."""
    try:
        yield
    except errors as error:
        raise CommandError(f"{prefix}{error}", code) from error


@contextmanager
def short_warnings() -> Iterator[None]:
    """Print each warning as one line, without the source code that raised it."""

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        fail(f"warning: {message}", 0)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def only_json(wanted: bool) -> Any:
    """Context in which everything printed goes to stderr, if only JSON is wanted on stdout."""
    return redirect_stdout(sys.stderr) if wanted else nullcontext()


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")


def show(*renderables: Any) -> None:
    """Print lines of plain text and tables of `rich`."""
    from rich.console import Console

    console = Console()
    for renderable in renderables:
        console.print(renderable, markup=False, highlight=False, soft_wrap=isinstance(renderable, str))


def shows_progress(args: Any) -> bool:
    """Whether stdout is a terminal, and not reserved for JSON."""
    return sys.stdout.isatty() and not getattr(args, "json", False)
