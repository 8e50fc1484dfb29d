"""Arrays in files: NumPy's npz, written whole or not at all, read without ever running code from it."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

# What can come up when a file is not what it should be.
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    ValueError,
    NotImplementedError,
    np.linalg.LinAlgError,
)

# NumPy parses the header of each array as Python source, which CPython 3.11 cannot do in two threads at once: now and
# then it fails with "AST constructor recursion depth mismatch".
_READING = threading.Lock()


class TemporaryFolder:
    """A folder that lives as long as this object does."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gptd-rl-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def write(path: str | os.PathLike[str], arrays: dict[str, Any], *, compressed: bool = True) -> Path:
    """Write `arrays` to `path`, atomically: the file is whole, or as it was before."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    save = np.savez_compressed if compressed else np.savez
    try:
        with temporary.open("wb") as file:
            save(file, allow_pickle=False, **arrays)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Arrays in the file at `path`; anything in UNREADABLE, FileNotFoundError or OSError if there are none."""
    path = Path(path)
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError("it is no whole archive")
    with _READING, path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
