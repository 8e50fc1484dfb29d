"""A line in the terminal that says how far a fit has come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Passes over all data that a sparse fit takes, as far as one can say beforehand.
EXPECTED_PASSES = 16


class Watch:
    """What model selection reports to: each evaluation of its objective, each shard that was passed over."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._line = bar.add_task("model selection", total=None, rows="")
        self._n_evaluations = 0
        self._n_passes = 0.0  # over the shards
        self._began = time.perf_counter()  # when they did

    def evaluated(self, value: float) -> None:
        """The objective, minus the evidence so far, was computed once more."""
        self._n_evaluations += 1
        description = f"evaluation {self._n_evaluations}, evidence {-value:.2f}"
        self._bar.update(self._line, description=description)

    def passed(self, done: int, n_shards: int, n_rows: int) -> None:
        """In a pass over `n_rows` rows, `done` of `n_shards` shards are done."""
        now = time.perf_counter()
        if done == 0:
            self._began = now if self._n_passes == 0.0 else self._began
            return
        self._n_passes += 1.0 / n_shards
        to_come = max(EXPECTED_PASSES - self._n_passes, 1.0 - done / n_shards)
        seconds = (now - self._began) / self._n_passes * to_come
        self._bar.update(
            self._line, rows=f"{done / n_shards:.0%} of {n_rows:,} rows, about {seconds:.0f} s left", refresh=done == 1
        )


@contextmanager
def watch(show: bool) -> Iterator[Watch | None]:
    """Yield what a fit reports to, or None if nothing is to be shown."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[rows]}"),
    )
    with Progress(*columns, console=Console(), transient=True) as bar:
        yield Watch(bar)
