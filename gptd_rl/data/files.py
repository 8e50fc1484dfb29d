"""Arrays in files: NumPy's npz, written atomically, read without running any code."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import uuid
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

# Errors that reading a damaged or foreign file can raise.
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

# NumPy parses the header of each array as Python source, which CPython 3.11 cannot do in two threads at once: sometimes
# it fails with "AST constructor recursion depth mismatch".
_READING = threading.Lock()


class TemporaryFolder:
    """A folder that is removed together with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gptd-rl-"))
        self._finalizer = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` when the block ends without an error.

    The content goes to a new file with a unique name beside `path`, so that readers never see half a file, and threads
    or processes that write to one path at the same time leave the content of one of them. After an error `path` is
    unchanged and the new file is removed.

    Parameters
    ----------
    path : str or path-like
        Its folder must exist.

    Yields
    ------
    file : binary file
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.part")
    with temporary.open("xb") as file:
        try:
            yield file
            file.close()
            os.replace(temporary, path)
        except BaseException:
            file.close()
            temporary.unlink(missing_ok=True)
            raise


def write(path: str | os.PathLike[str], arrays: Mapping[str, Any], *, compressed: bool = True) -> Path:
    """Write arrays to one file, atomically.

    Parameters
    ----------
    path : str or path-like
    arrays : mapping of str to array-like
        Arrays of Python objects are refused.
    compressed : bool

    Returns
    -------
    path : pathlib.Path
    """
    save = np.savez_compressed if compressed else np.savez
    with atomic_write(path) as file:
        save(file, allow_pickle=False, **arrays)
    return Path(path)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the arrays of a file by name.

    Raises
    ------
    OSError
        If there is no such file, or it cannot be opened.
    UNREADABLE
        Any of these errors if it is not a whole npz file of plain arrays.
    """
    path = Path(path)
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError("it is no whole archive")
    with _READING, path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ValueError("it points to places outside of itself") from None
