"""One writer at a time: a lock on a path that ends with the process that holds it, however that ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of `path` while the context lasts; neither other processes nor other threads can have it, too.

    The lock is a hidden file beside `path`, which need not exist. The system releases it when its holder is killed.

    Parameters
    ----------
    path : Path

    Raises
    ------
    BlockingIOError
        If somebody else holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    handle = _acquire(lock)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file; one that is left over is harmless
            lock.unlink()
        os.close(handle)


def _acquire(lock: Path) -> int:
    """Open and lock a file, and make sure that its last holder did not remove it in between."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            _lock(handle)
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
