"""Seeded attacks on the library: what a category is, what a failure is, how cases are run and counted."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

import gptd_rl.exceptions

# What a public call may raise; the library's own errors are one of these.
ALLOWED = (ValueError, TypeError, OSError, gptd_rl.exceptions.ExecutorError)
MAX_SECONDS = 120  # of a case; more is a hang

# A case: draws all it needs from the generator, and returns None or a line that says what went wrong.
Attack = Callable[[np.random.Generator], str | None]


@dataclass(frozen=True)
class Category:
    """A kind of attack.

    Attributes
    ----------
    name : str
    prepare : callable
        Makes what all cases share, with files in a folder of its own, and returns the attack.
    share : float
        Of all cases.
    may_refuse : bool
        Whether a case may end in an error that is allowed; if not, the attack itself says where one is.
    """

    name: str
    prepare: Callable[[Path], Attack]
    share: float
    may_refuse: bool = False


@dataclass
class Tally:
    """Cases of a category that were run, and the failures by case number."""

    name: str
    cases: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


class TooSlow(BaseException):
    """A case hangs. No `Exception`, so that nothing in between takes it for an error of its own."""


def case(category: Category, attack: Attack, number: int) -> Callable[[], str | None]:
    """The case of a number: the same in every run."""
    seed = [crc32(category.name.encode()), number]
    return lambda: judge(lambda: attack(np.random.default_rng(seed)), category.may_refuse)


def judge(call: Callable[[], str | None], may_refuse: bool = True) -> str | None:
    """What is wrong with a call: another error than those allowed, a long message, a hang, or what it says itself."""
    try:
        with warnings.catch_warnings(), time_limit(MAX_SECONDS):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # NumPy's: an overflow or an invalid number on the way
            return call()
    except ALLOWED as error:
        unexpected = None if may_refuse else f"refused, {type(error).__name__}: {one_line(error)} ({place(error)})"
        return complaint(error) or unexpected
    except (Exception, SystemExit, TooSlow) as error:  # noqa: BLE001  (whatever comes is counted)
        return f"{type(error).__name__}: {one_line(error)} ({place(error)})"


def complaint(error: Exception) -> str | None:
    """What is wrong with the message of an error that is allowed."""
    text = str(error)
    if "\n" in text or not text.strip():
        return f"{type(error).__name__} with {text.count(chr(10)) + 1} lines: {one_line(error)} ({place(error)})"
    return None


def refused(call: Callable[[], Any]) -> bool:
    """Whether a call raises an error that is allowed; one that is not is raised on."""
    try:
        call()
    except ALLOWED as error:
        if said := complaint(error):
            raise AssertionError(said) from error
        return True
    return False


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def place(error: BaseException) -> str:
    """Where an error was raised: the last two places in the library."""
    places, trace = [], error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.parts[-2:-1] != ("adversarial",) and "site-packages" not in path.parts:
            places.append(f"{path.name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return ", ".join(places[-2:])


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in a block that takes longer; without effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TooSlow(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pick(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    """One of several things, as it is: `Generator.choice` makes arrays of them."""
    return options[int(rng.integers(len(options)))]


# -------------------------------------------------------------------------------------- running


def run(category: Category, numbers: range, seconds: float, note: Callable[[int, str | None], None]) -> None:
    """Run cases until they or the time are at an end; `note` is told each number and what went wrong."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        attack = category.prepare(Path(folder))
        for number in numbers:
            if time.monotonic() > end:
                return
            note(number, None)
            if said := case(category, attack, number)():
                note(number, said)


def attacked(category: Category, numbers: range, seconds: float) -> Tally:
    """The tally of cases that run in this process."""
    tally, start = Tally(category.name), time.monotonic()

    def note(number: int, said: str | None) -> None:
        if said is None:
            tally.cases += 1
        else:
            tally.failures[number] = said

    run(category, numbers, seconds, note)
    tally.seconds = time.monotonic() - start
    return tally


def attacked_in_processes(category: Category, numbers: range, seconds: float, n_processes: int) -> Tally:
    """The tally of cases that `n_processes` other processes run, side by side."""
    tally, start = Tally(category.name), time.monotonic()
    with ThreadPoolExecutor(n_processes) as pool:
        shares = [numbers[i::n_processes] for i in range(n_processes)]
        for part in pool.map(lambda share: _attacked_in_process(category, share, seconds), shares):
            tally.cases += part.cases
            tally.failures |= part.failures
    tally.seconds = time.monotonic() - start
    return tally


def _attacked_in_process(category: Category, numbers: range, seconds: float) -> Tally:
    """The tally of cases in a process of their own; if that crashes or hangs, it is a failure, and the rest follows."""
    tally, start, context = Tally(category.name), time.monotonic(), get_context("spawn")
    while numbers and (left := seconds - (time.monotonic() - start)) > 0:
        theirs, ours = context.Pipe()
        process = context.Process(target=_serve, args=(category, numbers, left, ours))
        process.start()
        ours.close()
        number = _listen(theirs, process, tally)
        process.join()
        if process.exitcode == 0:
            break
        if number is None:
            tally.failures[numbers.start] = f"the process ended with {process.exitcode} before the first case"
            break
        tally.failures[number] = f"the process ended with {process.exitcode}"
        numbers = numbers[numbers.index(number) + 1 :]
    return tally


def _serve(category: Category, numbers: range, seconds: float, connection: Connection) -> None:
    run(category, numbers, seconds, lambda number, said: connection.send((number, said)))


def _listen(connection: Connection, process: BaseProcess, tally: Tally) -> int | None:
    """Count what a process says until it ends; the number of its last case. One that is silent for long is killed."""
    number = None
    while True:
        if not connection.poll(2 * MAX_SECONDS):  # a hang that no signal ends
            process.kill()
        try:
            number, said = connection.recv()
        except EOFError:
            return number
        if said is None:
            tally.cases += 1
        else:
            tally.failures[number] = said


def table(tallies: Sequence[Tally]) -> str:
    """The figures: category, cases tried, failures, seconds."""
    total = Tally("all", seconds=sum(t.seconds for t in tallies))
    rows = [(t.name, t.cases, len(t.failures), t.seconds) for t in tallies]
    rows.append((total.name, sum(r[1] for r in rows), sum(r[2] for r in rows), total.seconds))
    lines = ["| category | cases | failures | seconds |", "|---|---:|---:|---:|"]
    return "\n".join(lines + [f"| {name} | {n:,} | {bad} | {s:.0f} |" for name, n, bad, s in rows])
