"""Files are whole or absent, whoever writes them at the same time, and hold no code."""

from __future__ import annotations

import os
import stat
import threading
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from gptd_rl.data import files


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
