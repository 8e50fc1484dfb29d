"""Output files and folders of the commands."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import gptd_rl
from gptd_rl.cli import outputs
from gptd_rl.estimators import storage
from tests.cli.commands import GRID, Capture, error_line, run


@pytest.mark.parametrize("below", ["file/below", "file/far/below"])
@pytest.mark.parametrize("command", ["collect", "evaluate", "iterate", "plot"])
def test_writing_checks_the_path_before_any_work(
    command: str, below: str, agent_file: Path, tmp_path: Path, capsys: Capture, monkeypatch
):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(gym, "make", lambda *args, **kwargs: pytest.fail("there was work"))
    monkeypatch.setattr(storage, "load", lambda path: pytest.fail("there was work"))
    more: dict[str, list[object]] = {
        "collect": ["--env", GRID, "--n-episodes", 1, "--gamma", 0.9],
        "evaluate": ["--env", GRID, "--agent", agent_file],
        "iterate": ["--env", GRID],
        "plot": [agent_file],
    }
    assert (
        run(command, *more[command], "--out", tmp_path / f"{below}.png" if command == "plot" else tmp_path / below) == 2
    )
    assert "cannot write to" in error_line(capsys)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.zip", "file"]


def test_writing_file_rejects_a_folder(tmp_path: Path, capsys: Capture):
    assert run("iterate", "--env", GRID, "--out", tmp_path) == 2
    assert error_line(capsys) == f"gptd-rl: cannot write to {tmp_path}: it is a folder\n"
    (tmp_path / "agent.png").mkdir()
    assert run("iterate", "--env", GRID, "--out", tmp_path / "agent.gptd") == 2
    assert "agent.png: it is a folder" in error_line(capsys)


def test_writing_folder_removes_new_folders_after_an_error(tmp_path: Path):
    with outputs.writing_folder(tmp_path / "kept" / "new"):
        pass
    assert (tmp_path / "kept" / "new").is_dir()
    with pytest.raises(KeyboardInterrupt), outputs.writing_folder(tmp_path / "kept" / "other" / "new"):
        raise KeyboardInterrupt
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["new"]


def test_writing_folder_keeps_files_of_others(tmp_path: Path):
    with contextlib.suppress(KeyboardInterrupt), outputs.writing_folder(tmp_path / "full"):
        (tmp_path / "full" / "theirs").touch()
        raise KeyboardInterrupt
    assert (tmp_path / "full" / "theirs").exists()


def test_save_picture_is_atomic(tmp_path: Path):
    class Broken:
        def savefig(self, path: Path, **options: Any) -> None:
            path.write_text("half")
            raise OSError(28, "No space left on device")

    (tmp_path / "a.png").write_text("before")
    with pytest.raises(OSError, match="No space"):
        outputs.save_picture(Broken(), tmp_path / "a.png")  # type: ignore[arg-type]
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_saving_to_a_full_disk_fails(tmp_path: Path, capsys: Capture, monkeypatch):
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gptd_rl.Trajectories, "save", full)
    assert run("collect", "--env", GRID, "--n-episodes", 1, "--gamma", 0.9, "--out", tmp_path / "a" / "b.npz") == 1
    assert "No space left on device" in error_line(capsys)
    assert list(tmp_path.iterdir()) == []
