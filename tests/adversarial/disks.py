"""Full and read-only disks: one line, the old content as it was, and nothing left over."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from tests.adversarial.harness import Attack, Category, pick, refused
from tests.adversarial.writers import WRITERS, which_is_there


@contextmanager
def full_after(n_bytes: int) -> Iterator[None]:
    """Let no file grow beyond `n_bytes`: a write fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder in which nothing can be made; root, who may all, is somebody else meanwhile."""
    mode, user = folder.stat().st_mode, os.geteuid()
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        folder.chmod(mode)


@contextmanager
def failing(function: str, number: int) -> Iterator[None]:
    """A call of the system that fails."""
    with mock.patch(function, side_effect=OSError(number, os.strerror(number))):
        yield


def prepare(folder: Path) -> Attack:
    def attack(rng: np.random.Generator) -> str | None:
        own = folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        name, path = pick(rng, list(WRITERS)), own / "file"
        exists = bool(rng.random() < 0.7)
        if exists:
            WRITERS[name].write(path, 0)
        WRITERS[name].write(folder / "size", 1)
        fault = pick(rng, faults(own, (folder / "size").stat().st_size, rng))
        with fault():
            failed = refused(lambda: WRITERS[name].write(path, 1))
        if not failed:
            return f"{name}: written to a disk that takes nothing"
        if [p.name for p in own.iterdir()] != (["file"] if exists else []):
            return f"{name}: a failed writer left {sorted(p.name for p in own.iterdir())}"
        return f"{name}: the old content is gone" if exists and which_is_there(name, path) != 0 else None

    return attack


def faults(own: Path, size: int, rng: np.random.Generator) -> list[Callable[[], object]]:
    number = pick(rng, [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
    return [
        lambda: full_after(int(rng.integers(0, size))),
        lambda: full_after(int(rng.integers(0, size))),
        lambda: read_only(own),
        lambda: failing("os.replace", number),
        lambda: failing("pathlib.Path.open", number),
    ]


CATEGORY = Category("full and read-only disks", prepare, 0.02)
