"""Processor time of ``import gptd_rl``, beside scikit-learn's Gaussian processes.

    python benchmarks/imports.py
    python benchmarks/imports.py --slowest 20        also the modules that take longest

Every import has a fresh process, the modules take turns, and the fastest of the repeats counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

# Starting BLAS threads takes processor time, the same in each of these imports.
ONE_THREAD = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
RESULTS = Path(__file__).parent / "results" / "imports.json"
OURS, PEER = "gptd_rl", "sklearn.gaussian_process"
MODULES = ("numpy", "scipy.linalg", "gymnasium", PEER, OURS)
TARGET = 0.6  # of the peer's time

PROGRAM = "import time; began = time.process_time(); import {}; print(time.process_time() - began)"


def seconds(module: str) -> float:
    """Processor seconds of one import in a fresh process."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=ONE_THREAD).stdout)


def slowest(n: int) -> str:
    """The modules whose own code takes longest, as ``-X importtime`` tells: microseconds by the clock."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {OURS}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, env=ONE_THREAD).stderr.splitlines()
    rows = [line.removeprefix("import time:").split("|") for line in lines[1:]]
    rows.sort(key=lambda row: -int(row[0]) if row[0].strip().isdigit() else 0)
    return "\n".join(f"{row[0].strip():>8}  {row[2].strip()}" for row in rows[:n])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="also print the N slowest modules")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the figures go")
    options = parser.parse_args(arguments)
    best = dict.fromkeys(MODULES, float("inf"))
    for _ in range(options.repeats):
        for module in MODULES:
            best[module] = min(best[module], seconds(module))
    ratio = best[OURS] / best[PEER]

    print(f"| import | processor seconds, fastest of {options.repeats} |\n|---|---|")
    for module, time in best.items():
        print(f"| `{module}` | {time:.3f} |")
    print(f"\n{OURS} / {PEER}: {ratio:.2f} (target: at most {TARGET}) {'met' if ratio <= TARGET else 'NOT MET'}")
    if options.slowest:
        print(f"\nMicroseconds of a module's own code:\n{slowest(options.slowest)}")
    figures = dict(
        command=f"python benchmarks/imports.py --repeats {options.repeats}",
        versions={"python": platform.python_version()}
        | {name: version(name) for name in ("numpy", "scipy", "gymnasium", "scikit-learn")},
        cores=os.cpu_count(),
        seconds={module: round(time, 4) for module, time in best.items()},
        ratio=round(ratio, 3),
        target=TARGET,
    )
    options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
