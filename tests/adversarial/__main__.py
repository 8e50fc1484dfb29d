"""Attack the library: `python -m tests.adversarial --cases 100000 --seconds 3600 --categories "bad arguments" …`."""

from __future__ import annotations

import argparse
import resource
import sys
import time

from gptd_rl.threads import count_cores
from tests.adversarial.catalogue import CATEGORIES
from tests.adversarial.harness import Tally, attacked_in_processes, table

GIB = 2**30


def main() -> int:
    options = parse()
    # Whoever takes more gets a MemoryError, which is a failure.
    resource.setrlimit(resource.RLIMIT_AS, (options.memory * GIB, resource.getrlimit(resource.RLIMIT_AS)[1]))
    chosen = [c for c in CATEGORIES if not options.categories or c.name in options.categories]
    end, whole = time.monotonic() + options.seconds, sum(c.share for c in chosen)
    tallies: list[Tally] = []
    for i, category in enumerate(chosen):
        n = max(1, round(options.cases * category.share / whole))
        numbers = range(options.first, options.first + n)
        seconds = (end - time.monotonic()) / (len(chosen) - i)
        tallies.append(attacked_in_processes(category, numbers, seconds, min(options.processes, n)))
        print_failures(tallies[-1])
    print(table(tallies))
    return 1 if any(tally.failures for tally in tallies) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description="Attack the library.")
    parser.add_argument("--cases", type=int, default=100_000, help="in all categories together (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="in all categories together (%(default)s)")
    parser.add_argument("--processes", type=int, default=count_cores(), help="side by side (%(default)s)")
    parser.add_argument("--categories", nargs="+", choices=[c.name for c in CATEGORIES], metavar="NAME", help="(all)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, which seeds it (%(default)s)")
    parser.add_argument("--memory", type=int, default=16, help="address space in GiB (%(default)s)")
    return parser.parse_args()


def print_failures(tally: Tally) -> None:
    """Each failure, with what runs it again."""
    for number, said in tally.failures.items():
        again = f'--categories "{tally.name}" --first {number} --cases 1'
        print(f"{again}: {said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
