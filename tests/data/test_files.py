"""Files are whole or absent, whoever writes them at the same time, and hold no code."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import threading
import tracemalloc
import uuid
import zipfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gptd_rl.data import archives, files


def write_many(path: Path, value: float, times: int = 20) -> None:
    for _ in range(times):
        files.write(path, {"a": np.full(1000, value)}, compressed=False)


def is_whole(path: Path) -> bool:
    a = files.read(path)["a"]
    return a.shape == (1000,) and len(np.unique(a)) == 1


def test_write_by_threads_to_one_path_leaves_a_whole_file(tmp_path):
    path, done = tmp_path / "a.npz", threading.Event()
    write_many(path, 0.0, times=1)

    def read_until_done() -> bool:
        whole = True
        while not done.is_set():
            whole = whole and is_whole(path)
        return whole

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read_until_done)
        for writer in [pool.submit(write_many, path, float(i)) for i in range(4)]:
            writer.result()
        done.set()
        assert reader.result()
    assert os.listdir(tmp_path) == ["a.npz"]


def test_write_by_processes_to_one_path_leaves_a_whole_file(tmp_path):
    path = tmp_path / "a.npz"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for writer in [pool.submit(write_many, path, float(i)) for i in range(4)]:
            writer.result()
    assert is_whole(path) and os.listdir(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_atomic_write_error_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with files.atomic_write(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_atomic_write_never_follows_a_file_that_exists(tmp_path, monkeypatch):
    class Known:
        hex = "known"

    monkeypatch.setattr(uuid, "uuid4", Known)
    planted = tmp_path / ".a.txt.known.part"
    planted.write_text("other")
    with pytest.raises(FileExistsError), files.atomic_write(tmp_path / "a.txt"):
        pass
    assert planted.read_text() == "other"


def test_atomic_write_never_follows_a_link(tmp_path, monkeypatch):
    """Neither one planted under the temporary name, nor one at the path itself, which is replaced."""
    target = tmp_path / "target"
    target.write_text("other")
    (tmp_path / "a.txt").symlink_to(target)
    with files.atomic_write(tmp_path / "a.txt") as file:
        file.write(b"new")
    assert (tmp_path / "a.txt").read_text() == "new" and not (tmp_path / "a.txt").is_symlink()
    monkeypatch.setattr(uuid, "uuid4", lambda: SimpleNamespace(hex="known"))
    (tmp_path / ".b.txt.known.part").symlink_to(target)
    with pytest.raises(FileExistsError), files.atomic_write(tmp_path / "b.txt"):
        pass
    (tmp_path / ".c.txt.known.part").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError), files.atomic_write(tmp_path / "c.txt"):
        pass
    assert target.read_text() == "other" and not (tmp_path / "nowhere").exists()


KILLED = """
import os, signal, sys
from gptd_rl.data import archives, files
with files.atomic_write(sys.argv[1]) as file:
    file.write(b"half a file")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_atomic_write_leftovers_of_killed_writers_are_harmless(tmp_path):
    path = tmp_path / "a.npz"
    files.write(path, {"a": np.zeros(1000)})
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 3 and is_whole(path)
    files.write(path, {"a": np.ones(1000)})
    assert is_whole(path) and files.read(path)["a"][0] == 1.0


def test_atomic_write_permissions_are_those_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    with files.atomic_write(tmp_path / "a.txt") as file:
        file.write(b"x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a.txt")}
    assert len(modes) == 1


def test_atomic_write_takes_long_names(tmp_path):
    path = tmp_path / ("n" * 240)
    with files.atomic_write(path) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"


def test_write_refuses_objects(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle"):
        files.write(tmp_path / "a.npz", {"a": np.array([print])})
    assert os.listdir(tmp_path) == []


def test_temporary_folder_is_removed_with_its_object():
    folder = files.TemporaryFolder()
    path = folder.path
    (path / "a").write_text("x")
    del folder
    assert not path.exists()


# -------------------------------------------------------------------------------------- limits


def refusal(path: Path, match: str | None = None, max_peak: int = 2**22) -> None:
    """A file is refused, with little memory taken."""
    tracemalloc.start()
    try:
        with pytest.raises(files.UNREADABLE, match=match):
            files.read(path)
        assert tracemalloc.get_traced_memory()[1] < max_peak
    finally:
        tracemalloc.stop()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def pack(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_read_refuses_what_unpacks_to_more_than_the_limit(tmp_path, monkeypatch):
    path = files.write(tmp_path / "a.npz", {"a": np.zeros(2**20)})
    assert path.stat().st_size < 2**14 and files.read(path)["a"].nbytes == 2**23
    monkeypatch.setattr(archives, "MAX_BYTES", 2**22)
    refusal(path, "it would unpack to 8388736 bytes, and 4194304 are allowed")


def test_write_does_not_compress_what_read_would_refuse(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MAX_BYTES", 2**22)
    path = files.write(tmp_path / "a.npz", {"a": np.zeros(2**20)})
    assert path.stat().st_size > 2**23 and files.read(path)["a"].nbytes == 2**23


@pytest.mark.parametrize("size", [10, 2**31])
def test_read_does_not_trust_the_size_of_a_member(size, tmp_path):
    path = files.write(tmp_path / "a.npz", {"a": np.zeros(2**22)})
    with zipfile.ZipFile(path) as archive:
        declared = archive.getinfo("a.npy").file_size.to_bytes(4, "little")
    content = path.read_bytes()
    assert content.count(declared) >= 1
    path.write_bytes(content.replace(declared, size.to_bytes(4, "little")))
    refusal(path, max_peak=2**23)


def test_read_refuses_stored_members_that_share_their_bytes(tmp_path):
    """Entries of the directory that all point to one member: small files that are many large ones."""
    path = pack(tmp_path / "a.npz", {f"a{i}.npy": npy(np.zeros(2**16)) for i in range(8)}, zipfile.ZIP_STORED)
    with zipfile.ZipFile(path) as archive:
        start, first = archive.start_dir, archive.getinfo("a1.npy").header_offset
    content = path.read_bytes()
    moved = bytearray(content[:first] + content[start:])
    moved[-6:-2] = first.to_bytes(4, "little")
    at = first
    for _ in range(8):
        moved[at + 42 : at + 46] = bytes(4)  # where the member is
        at += 46 + 6
    path.write_bytes(moved)
    refusal(path, "larger than itself")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_read_refuses_other_compressions(compression, tmp_path):
    refusal(pack(tmp_path / "a.npz", {"a.npy": npy(np.zeros(2**22))}, compression), "compressed in another way")


def test_read_refuses_encrypted_members(tmp_path):
    path = pack(tmp_path / "a.npz", {"a.npy": npy(np.zeros(3))})
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x01\x02")
    content[place + 8] |= 1
    path.write_bytes(content)
    refusal(path, "encrypted")


def test_read_refuses_members_that_are_no_arrays(tmp_path):
    refusal(pack(tmp_path / "a.npz", {"a.npy": npy(np.zeros(3)), "b.txt": b"x"}), "'b.txt', which is no array")


@pytest.mark.parametrize(
    "array",
    [np.array([None]), np.zeros(2, dtype=[("a", "f8")]), np.zeros(2, dtype="V8"), np.zeros(2, dtype="f8,O")],
    ids=["objects", "fields", "void", "hidden objects"],
)
def test_read_refuses_arrays_of_other_things(array, tmp_path):
    refusal(pack(tmp_path / "a.npz", {"a.npy": npy(array)}), "expected plain numbers or text")


@pytest.mark.parametrize("shape", ["(3,)", "(1,)", "(35184372088832,)", "(0, 4611686018427387904)", "(-1, -2)"])
def test_read_refuses_shapes_that_the_content_does_not_have(shape, tmp_path):
    content = npy(np.zeros(2))
    head = content[:128].replace(b"(2,)", shape.encode())
    refusal(pack(tmp_path / "a.npz", {"a.npy": head[:127].ljust(127) + b"\n" + content[128:]}))


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.float64(2.0), np.asfortranarray(np.eye(3)), np.array("text")])
def test_read_returns_what_was_written(array, tmp_path):
    for compressed in (True, False):
        again = files.read(files.write(tmp_path / "a.npz", {"a": array}, compressed=compressed))["a"]
        np.testing.assert_array_equal(again, array)
        assert again.flags.writeable and again.dtype == np.asarray(array).dtype


def test_read_refuses_folders_and_pipes(tmp_path):
    with pytest.raises(IsADirectoryError, match=r"is a folder: expected a file\.$"):
        files.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is no regular file"):
        files.read(tmp_path / "pipe")


def test_members_know_what_was_not_asked_for():
    members = files.Members(dict(a=1, b_c=2, b_d=3))
    assert members["a"] == 1 and members.part("b_")["c"] == 2 and set(members.part("b_")) == {"c", "d"}
    with pytest.raises(ValueError, match="it holds an unknown array 'b_d'"):
        members.check_all_read()
    assert members.part("b_").get("d") == 3 and members.get("e") is None
    members.check_all_read()


def test_header_is_checked_on_both_ways(monkeypatch):
    header = dict(a=[1.5, None], b="ä")
    assert files.decode_header(dict(header=files.encode_header(header))) == header
    monkeypatch.setattr(archives, "MAX_JSON_ITEMS", 2)
    with pytest.raises(ValueError, match="items"):
        files.encode_header(header)
    with pytest.raises(ValueError, match="no fields"):
        files.decode_header(dict(header=np.array("[1]")))
