"""Fits with BLAS threads as they come, beside fits with one thread, on a busy and on an idle machine.

    python benchmarks/threads.py                            everything, about twenty minutes on two cores
    python benchmarks/threads.py --parts fits --busy 4      beside four busy processes
    python benchmarks/threads.py --parts threshold          from how many rows on threads pay

Three settings take turns, each in a process of its own:

- *one thread*: OPENBLAS_NUM_THREADS=1
- *default*: nothing is set; the library limits BLAS itself (`gptd_rl.threads`)
- *unlimited*: nothing is set, and the limit is switched off: version 0.1, which limited only data in several shards

A busy process is an endless loop in Python. Of the repeats, the one with the least processor time counts. Ratios are
to one thread; on an idle machine several threads may save time by the clock, on a busy one nothing may be lost.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from exact import Problem

from gptd_rl import GPTD, linalg, threads

RESULTS = Path(__file__).parent / "results" / "threads.json"
VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
ONE, DEFAULT, UNLIMITED = SETTINGS = ("one thread", "default", "unlimited")
CASES = ("exact:300", "exact:1000", "exact:4000", "evidence:4000", "sparse:20000")
ROWS = (300, 500, 1000, 2000, 4000)
N_DIMS = 4
SUBSET_SIZE = 300
TARGET = 1.5  # × the processor time of one thread
LEAST = 1.0  # seconds
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # it does not outlive the benchmark


@dataclass(frozen=True)
class Time:
    """Seconds of one fit, or of one factorisation."""

    processor: float
    wall: float


@dataclass(frozen=True)
class Row:
    """One case in all settings."""

    case: str
    n_busy: int
    times: dict[str, Time]

    def ratio(self, setting: str, clock: str) -> float:
        """Time in a setting, in times of that with one thread."""
        return float(getattr(self.times[setting], clock) / getattr(self.times[ONE], clock))


# -------------------------------------------------------------------------------------- one case, in its own process


def measured(work: Callable[[], object], least: float) -> Time:
    """Mean time of `work`, which is repeated for some time: processor time of other threads is known by the tick."""
    n = 0
    wall, processor = time.perf_counter(), time.process_time()
    while not n or time.perf_counter() - wall < least:
        work()
        n += 1
    return Time((time.process_time() - processor) / n, (time.perf_counter() - wall) / n)


def work_of(case: str) -> Callable[[], object]:
    """What is measured: a whole fit, or a factorisation and an inverse."""
    kind, size = case.split(":")
    if kind == "matrix":
        K = np.eye(int(size)) + 0.5
        return lambda: linalg.inverse_in_place(linalg.cholesky(K.copy))
    data = Problem.sample(int(size), N_DIMS, seed=0).trajectories()
    if kind == "evidence":  # every evaluation takes all rewards, where the default may thin them
        return lambda: GPTD(method="exact", objective="marginal_likelihood").fit(data)
    return lambda: GPTD(method=kind, subset_size=SUBSET_SIZE).fit(data)


def run_child(case: str, setting: str, least: str) -> None:
    """Measure one case, and print the figures."""
    if setting == UNLIMITED:
        threads._limit = threads.BlasLimit([])
    if not case.startswith("matrix"):
        work_of("exact:50")()  # imports what is imported at first use
    print(json.dumps(asdict(measured(work_of(case), float(least)))))


# -------------------------------------------------------------------------------------- all of them


@contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """Keep `n` processes busy that have nothing to do with this one."""
    spinning = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def child(case: str, setting: str, least: float) -> Time:
    """The figures of one process."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    if setting == ONE:
        environment |= dict.fromkeys(VARIABLES, "1")
    command = [sys.executable, __file__, "--child", case, setting, str(least)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return Time(**json.loads(done.stdout))


def measure(case: str, n_busy: int, options: argparse.Namespace, settings: Sequence[str]) -> Row:
    """The best of some repeats; the settings take turns."""
    times: dict[str, list[Time]] = {setting: [] for setting in settings}
    with busy_processes(n_busy):
        for _ in range(options.repeats):
            for setting in settings:
                times[setting].append(child(case, setting, options.least))
    row = Row(case, n_busy, {name: min(found, key=lambda t: t.processor) for name, found in times.items()})
    print(f"{case} beside {n_busy} done; load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return row


def table(rows: Sequence[Row]) -> str:
    """Markdown: seconds with one thread, and ratios of the others to it."""
    others = [name for name in SETTINGS[1:] if name in rows[0].times]
    heads = ["case", "busy processes", "one thread: processor, wall"]
    lines = [heads + [f"{name}: processor, wall" for name in others]]
    for row in rows:
        one = row.times[ONE]
        cells = [f"{row.ratio(name, 'processor'):.2f} ×, {row.ratio(name, 'wall'):.2f} ×" for name in others]
        lines.append([row.case, str(row.n_busy), f"{one.processor:.3g} s, {one.wall:.3g} s", *cells])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["fits", "threshold"], choices=["fits", "threshold"])
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="METHOD:n", help="fits: exact, sparse or evidence")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="of the matrices, for the threshold")
    parser.add_argument("--busy", type=int, nargs="+", default=[1, 0], help="numbers of busy processes")
    parser.add_argument("--settings", nargs="+", default=SETTINGS[1:], choices=SETTINGS[1:], help="beside one thread")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--least", type=float, default=LEAST, help="seconds for which quick work is repeated")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the figures go")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return run_child(*options.child)

    figures: dict[str, object] = dict(
        command="python benchmarks/threads.py " + " ".join(sys.argv[1:] if arguments is None else arguments),
        versions={"python": platform.python_version()} | {name: version(name) for name in ("numpy", "scipy")},
        cores=threads.count_cores(),
        target=TARGET,
    )
    if "fits" in options.parts:
        rows = [measure(case, n, options, [ONE, *options.settings]) for n in options.busy for case in options.cases]
        worst = max(row.ratio(options.settings[0], "processor") for row in rows)
        print(f"\nWhole fits, with times of one thread as the unit:\n\n{table(rows)}")
        print(f"\nlargest processor time, {options.settings[0]} / one thread: {worst:.2f} (target: at most {TARGET})")
        figures |= dict(fits=[asdict(row) for row in rows], worst=worst)
    if "threshold" in options.parts:
        cases = [f"matrix:{n}" for n in options.rows]
        matrices = [measure(case, n, options, (ONE, UNLIMITED)) for n in options.busy for case in cases]
        print(f"\nOne factorisation and inverse:\n\n{table(matrices)}")
        figures |= dict(threshold=[asdict(row) for row in matrices], large=threads.LARGE)
    options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
