"""BLAS threads that never cost more than they save.

BLAS threads that share their cores with other processes wait for each other in busy loops, and matrices below
`LARGE` rows gain little from them. The estimators therefore run under `one_blas_thread`. A factorisation of `LARGE`
rows or more runs under `spare_cores`, which takes as many threads as there are idle cores. The user's setting is an
upper limit, and it is restored when the last of all calls under way returns.

The number of BLAS threads belongs to the process. Calls that overlap in several threads share one limit: the smallest
that any of them asks for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Rows from which on two threads pay. On two idle cores they factor and invert a matrix of 2000 rows in 0.58 × the time
# of one thread, for 1.17 × its processor time; 1000 rows: 0.66 × and 1.32 ×; 500 rows: 0.79 × and 1.57 ×
# (benchmarks/threads.py). One thread and two differ in the last digits: matrices that are quick anyway stay with one.
LARGE = 2000

_PROC = Path("/proc")


class BlasLimit:
    """The limit on BLAS threads of this process: the smallest that a running thread asks for.

    Parameters
    ----------
    libraries : list of threadpoolctl.LibController, optional
        The BLAS libraries to limit; by default all that are loaded at the first use.
    """

    def __init__(self, libraries: list[Any] | None = None) -> None:
        self._libraries = libraries
        self._requests: dict[int, list[tuple[object, int]]] = {}  # thread → its nested requests, innermost last
        self._user: list[int] = []  # the user's setting for each library, while there are requests
        self._lock = threading.RLock()  # reentrant: a garbage collection may close a generator that holds a request

    @contextmanager
    def at_most(self, n_threads: int) -> Iterator[None]:
        """Ask for at most `n_threads` inside the block; an inner block of the same thread replaces an outer one."""
        token, thread = object(), threading.get_ident()
        try:
            self._enter(thread, token, n_threads)
            yield
        finally:
            self._leave(thread, token)

    def _enter(self, thread: int, token: object, n_threads: int) -> None:
        with self._lock:
            if not self._requests:
                self._user = [library.get_num_threads() for library in self.libraries]
            self._requests.setdefault(thread, []).append((token, n_threads))
            self._apply()

    def _leave(self, thread: int, token: object) -> None:
        with self._lock:
            left = [request for request in self._requests.get(thread, []) if request[0] is not token]
            self._requests[thread] = left
            if not left:
                del self._requests[thread]
            self._apply()

    def _apply(self) -> None:
        limit = min((requests[-1][1] for requests in self._requests.values()), default=None)
        for library, user in zip(self.libraries, self._user, strict=False):
            wanted = user if limit is None else min(user, limit)
            if user > 1 and library.get_num_threads() != wanted:
                library.set_num_threads(wanted)

    @property
    def libraries(self) -> list[Any]:
        """Controllers of the BLAS libraries, found once: that takes milliseconds."""
        if self._libraries is None:
            from threadpoolctl import ThreadpoolController

            self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        return self._libraries

    def follow_forks(self) -> None:
        """Let a forked child keep the requests of its only thread, and no others."""
        os.register_at_fork(
            before=lambda: self._lock.acquire(),
            after_in_parent=lambda: self._lock.release(),
            after_in_child=self._reset,
        )

    def _reset(self) -> None:
        self._lock = threading.RLock()
        thread = threading.get_ident()
        self._requests = {ident: requests for ident, requests in self._requests.items() if ident == thread}
        self._apply()


_limit = BlasLimit()
if hasattr(os, "register_at_fork"):
    _limit.follow_forks()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread; a context manager, and as ``@one_blas_thread()`` a decorator."""
    with _limit.at_most(1):
        yield


@contextmanager
def spare_cores(n_rows: int) -> Iterator[None]:
    """Let BLAS use the idle cores for one matrix of `n_rows` rows, if it is large; else change nothing.

    Parameters
    ----------
    n_rows : int
    """
    if n_rows < LARGE:
        yield
        return
    with _limit.at_most(count_spare_cores()):
        yield


def count_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_spare_cores() -> int:
    """Number of cores that no other process wants at this moment, from 1; 1 where the system does not tell."""
    try:
        running = int((_PROC / "loadavg").read_text().split()[3].partition("/")[0])
        ours = sum(_is_running(task) for task in (_PROC / "self" / "task").iterdir())
    except (OSError, ValueError, IndexError):
        return 1
    if running < ours:  # some sandboxes count nothing
        return 1
    return max(1, count_cores() - (running - ours))


def _is_running(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:  # it has ended
        return False
