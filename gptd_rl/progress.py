"""A line in the terminal that says how far model selection has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watch(show: bool) -> Iterator[Callable[[float], None] | None]:
    """Yield a function to call with the objective after each evaluation, or None if nothing is to be shown."""
    if not show:
        yield None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, transient=True) as bar:
        line = bar.add_task("model selection")
        n_evaluations = 0

        def report(value: float) -> None:
            nonlocal n_evaluations
            n_evaluations += 1
            bar.update(line, description=f"model selection: evaluation {n_evaluations}, objective {value:.2f}")

        yield report
