"""Progress and interruption of long computations."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gptd_rl.exceptions import InterruptedFitWarning

# Expected number of passes over all data in a sparse fit.
EXPECTED_PASSES = 16


class Progress(Protocol):
    """Receives the progress of a computation, stage by stage."""

    def started(self, stage: str, total: int = 0) -> None:
        """A stage begins; `total` is its number of steps, 0 if unknown."""

    def advanced(self, stage: str, done: int, total: int = 0, note: str = "") -> None:
        """`done` of `total` steps of a stage are complete; `note` describes the last one."""

    def closed(self, stage: str) -> None:
        """A stage is complete."""


class NoProgress:
    """Progress that is not shown."""

    def started(self, stage: str, total: int = 0) -> None:
        """See `Progress`."""

    def advanced(self, stage: str, done: int, total: int = 0, note: str = "") -> None:
        """See `Progress`."""

    def closed(self, stage: str) -> None:
        """See `Progress`."""


class StageBars:
    """Progress as one bar of `rich` for each stage, in a given order.

    A stage that reports closes the stages before it, so `advanced` alone is enough.

    Parameters
    ----------
    bars : rich.progress.Progress
    stages : tuple of str
    """

    def __init__(self, bars: Any, stages: tuple[str, ...]) -> None:
        self._bars = bars
        self._stages = stages
        self._lines = {stage: bars.add_task(stage, total=None, start=False) for stage in stages}

    def started(self, stage: str, total: int = 0) -> None:
        """See `Progress`."""
        for earlier in self._stages[: self._stages.index(stage)]:
            self.closed(earlier)
        self._bars.start_task(self._lines[stage])
        self._bars.update(self._lines[stage], total=total or None)

    def advanced(self, stage: str, done: int, total: int = 0, note: str = "") -> None:
        """See `Progress`."""
        self.started(stage, total)
        self._bars.update(self._lines[stage], completed=done, description=note or stage)

    def closed(self, stage: str) -> None:
        """See `Progress`."""
        line = self._lines[stage]
        done = max(self._bars.tasks[line].completed, 1)
        self._bars.update(line, total=done, completed=done)


@contextmanager
def stage_bars(*stages: str) -> Iterator[Progress]:
    """Show a bar for each stage, with the time left, while the context lasts, if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    left = TimeRemainingColumn(elapsed_when_finished=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield StageBars(bars, stages)


@contextmanager
def no_partial_fits() -> Iterator[None]:
    """Raise KeyboardInterrupt if Ctrl-C interrupts a fit, which otherwise keeps the best model found so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", InterruptedFitWarning)
        try:
            yield
        except InterruptedFitWarning:
            raise KeyboardInterrupt from None


@contextmanager
def step_bar(show: bool, description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of steps made; a bar shows it, if asked for."""
    if not show:
        yield lambda made: None
        return
    from rich.progress import Progress as Bars

    with Bars() as bar:
        line = bar.add_task(description, total=total)
        yield lambda made: bar.update(line, completed=made)


class FitProgress:
    """Progress of model selection: evaluations of the objective, and passes over the shards."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._line = bar.add_task("model selection", total=None, rows="")
        self._n_evaluations = 0
        self._n_passes = 0.0  # over the shards
        self._began = time.perf_counter()  # the first pass

    def evaluated(self, value: float) -> None:
        """The objective, minus the log evidence, was evaluated."""
        self._n_evaluations += 1
        description = f"evaluation {self._n_evaluations}, evidence {-value:.2f}"
        self._bar.update(self._line, description=description)

    def passed(self, done: int, n_shards: int, n_rows: int) -> None:
        """In a pass over `n_rows` rows, `done` of `n_shards` shards are complete."""
        now = time.perf_counter()
        if done == 0:
            self._began = now if self._n_passes == 0.0 else self._began
            return
        self._n_passes += 1.0 / n_shards
        n_left = max(EXPECTED_PASSES - self._n_passes, 1.0 - done / n_shards)
        seconds = (now - self._began) / self._n_passes * n_left
        self._bar.update(
            self._line, rows=f"{done / n_shards:.0%} of {n_rows:,} rows, about {seconds:.0f} s left", refresh=done == 1
        )


@contextmanager
def fit_progress(show: bool) -> Iterator[FitProgress | None]:
    """Yield the receiver of a fit's progress, or None if it is not shown."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[rows]}"),
    )
    with Bars(*columns, console=Console(), transient=True) as bar:
        yield FitProgress(bar)
