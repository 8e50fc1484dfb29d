"""Members of zip archives, unpacked within a limit that is checked before memory is taken."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

MAX_BYTES = 2**30  # that the compressed members of a file may unpack to; others are as large as the file itself
MAX_JSON_ITEMS = 2**22  # numbers, strings, lists and dicts in JSON: each takes some 100 bytes of memory

_CHUNK = 2**20
_IS_ENCRYPTED = 0x1


@contextmanager
def open_archive(file: IO[bytes], max_bytes: int | None = None) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, none of whose members takes more memory than it may.

    What an archive says about its members is not trusted: together they are no larger than the file, and those that are
    compressed unpack to `max_bytes` at most.

    Parameters
    ----------
    file : binary file
    max_bytes : int, optional
        `MAX_BYTES` by default; 0 if nothing may be compressed.

    Raises
    ------
    zipfile.BadZipFile, ValueError, NotImplementedError
        If it is no whole archive, or has members that no writer of archives makes.
    """
    with zipfile.ZipFile(file) as archive:
        _check_members(archive.infolist(), file.seek(0, 2), MAX_BYTES if max_bytes is None else max_bytes)
        yield archive


def read_member(archive: zipfile.ZipFile, name: str) -> bytearray:
    """Content of a member; it is unpacked chunk by chunk, never to more than its checked size."""
    content = bytearray()
    with archive.open(name) as member:
        while chunk := member.read(_CHUNK):
            content += chunk
    if len(content) != archive.getinfo(name).file_size:
        raise ValueError(f"its member {name!r} is cut off")
    return content


def parse_json(text: bytes | bytearray) -> Any:
    """The content of a JSON text that is neither too long nor nested too deeply."""
    check_json(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def check_json(text: bytes | bytearray) -> None:
    """Raise an error if a JSON text has more items than `MAX_JSON_ITEMS`."""
    n_items = text.count(b"[") + text.count(b"{") + text.count(b",")
    if n_items > MAX_JSON_ITEMS:
        raise ValueError(f"its JSON has {n_items} items, and {MAX_JSON_ITEMS} are allowed")


def _check_members(members: list[zipfile.ZipInfo], n_bytes: int, max_bytes: int) -> None:
    names = set()
    for member in members:
        if member.filename in names:
            raise ValueError(f"it should have a member {member.filename!r} once, and has it twice")
        names.add(member.filename)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & _IS_ENCRYPTED:
            raise ValueError(
                f"its member {member.filename!r} is encrypted, or compressed in another way than by deflate"
            )
        if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
            raise ValueError(f"its member {member.filename!r} has two sizes")
    if sum(member.compress_size for member in members) > n_bytes:
        raise ValueError("its members are larger than itself")
    unpacked = sum(member.file_size for member in members if member.compress_type != zipfile.ZIP_STORED)
    if unpacked > max_bytes:
        raise ValueError(f"it would unpack to {unpacked} bytes, and {max_bytes} are allowed")
