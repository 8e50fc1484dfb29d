"""Arrays in files: NumPy's npz, written atomically, read without running any code, and within limits."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
import tempfile
import threading
import tokenize
import uuid
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data import archives

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
    tokenize.TokenError,  # in the header of an array
    ArithmeticError,
    RecursionError,
    np.linalg.LinAlgError,
)

# NumPy parses the header of each array as Python source, which CPython 3.11 cannot do in two threads at once: sometimes
# it fails with "AST constructor recursion depth mismatch".
_READING = threading.Lock()

_HEADER_BYTES = 2**14  # of an array, at most


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
    file = temporary.open("xb")
    try:
        with file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Members(Mapping[str, Any]):
    """The arrays of a file by name; it knows which of them nobody asked for."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays, self._prefix, self._unread = arrays, "", set(arrays)

    def part(self, prefix: str) -> Members:
        """The arrays whose names begin with `prefix`, by the rest of their names."""
        part = Members(self._arrays)
        part._prefix, part._unread = self._prefix + prefix, self._unread
        return part

    def __getitem__(self, name: str) -> Any:
        """The array of a name."""
        array = self._arrays[self._prefix + name]
        self._unread.discard(self._prefix + name)
        return array

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (name.removeprefix(self._prefix) for name in self._arrays if name.startswith(self._prefix))

    def __len__(self) -> int:
        """Number of arrays."""
        return sum(1 for _ in self)

    def check_all_read(self) -> None:
        """Refuse a file with arrays that were not asked for: it is another kind of file."""
        if self._unread:
            raise ValueError(f"it holds an unknown array {min(self._unread)!r}")


def write(path: str | os.PathLike[str], arrays: Mapping[str, Any], *, compressed: bool = True) -> Path:
    """Write arrays to one file, atomically.

    Parameters
    ----------
    path : str or path-like
    arrays : mapping of str to array-like
        Arrays of Python objects are refused.
    compressed : bool
        Arrays that are larger than what `read` unpacks are written as they are.

    Returns
    -------
    path : pathlib.Path
    """
    n_bytes = sum(np.asarray(array).nbytes + _HEADER_BYTES for array in arrays.values())
    save = np.savez_compressed if compressed and n_bytes <= archives.MAX_BYTES else np.savez
    with atomic_write(path) as file:
        save(file, allow_pickle=False, **arrays)
    return Path(path)


def read(path: str | os.PathLike[str]) -> Members:
    """Read the arrays of a file by name.

    Raises
    ------
    OSError
        If there is no such file, or it cannot be opened.
    UNREADABLE
        Any of these errors if it is not a whole npz file of plain arrays, or would take more memory than it may.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: expected a file.")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no regular file: expected one that can be read as a whole.")
    with _READING, path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no whole archive")
        try:
            return Members(_read_arrays(file))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ValueError("it points to places outside of itself") from None


def _read_arrays(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    with archives.open_archive(file) as archive:
        names = archive.namelist()
        if foreign := [name for name in names if not name.endswith(".npy")]:
            raise ValueError(f"it has a member {foreign[0]!r}, which is no array")
        return {name.removesuffix(".npy"): _as_array(archives.read_member(archive, name)) for name in names}


def _as_array(content: bytearray) -> NDArray[Any]:
    """The array in a member; its content is as large as its shape says."""
    stream = io.BytesIO(content[:_HEADER_BYTES])
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("it has an array in another format than 1.0")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind in "OV":
        raise ValueError(f"it has an array of {dtype}, and nothing is unpickled: expected plain numbers or text")
    n_bytes = len(content) - stream.tell()
    if math.prod(shape) * dtype.itemsize != n_bytes:
        raise ValueError(f"it has an array of shape {shape} in {n_bytes} bytes")
    return np.ndarray(shape, dtype, content, stream.tell(), order="F" if is_fortran else "C")


def strict_arithmetic() -> np.errstate:
    """Let numbers of a file that overflow, divide by zero or are invalid raise one of the errors `UNREADABLE`."""
    return np.errstate(over="raise", divide="raise", invalid="raise")


def encode_header(header: Mapping[str, Any]) -> NDArray[Any]:
    """Plain data as an array of JSON text."""
    text = json.dumps(header, default=lambda array: array.tolist())  # NumPy's numbers are numbers
    archives.check_json(text.encode())
    return np.array(text)


def decode_header(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of `encode_header`, kept under the name "header"."""
    header = archives.parse_json(str(arrays["header"]).encode())
    if not isinstance(header, dict):
        raise ValueError("its header holds no fields")
    return header
