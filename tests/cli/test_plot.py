"""``gptd-rl plot``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptd_rl
from gptd_rl.cli import plot
from gptd_rl.exceptions import InterruptedFitWarning
from tests.cli.commands import Capture, error_line, run


def test_plot_a_model(gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture):
    path = gptd_rl.GPTD(kernel="ard").fit(gridworld).save(tmp_path / "v.gptd")
    assert run("plot", path) == 0
    assert capsys.readouterr().out == f"picture: {tmp_path / 'v.png'}\n"
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    assert run("plot", path, "--inputs", 1, 0, "--out", tmp_path / "new" / "v.JPG") == 0
    assert (tmp_path / "new" / "v.JPG").read_bytes().startswith(b"\xff\xd8")
    capsys.readouterr()
    for inputs in ((0, 2), (1, 1)):
        assert run("plot", path, "--inputs", *inputs, "--out", tmp_path / "w.png") == 2
        assert "--inputs must be two different numbers from 0 to 1" in error_line(capsys)


def test_plot_transitions(gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture):
    path = gridworld.save(tmp_path / "data.npz")
    assert run("plot", path, "--out", tmp_path / "v.png") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{path} contains 60 transitions: fitting GPTD()"
    assert second == f"picture: {tmp_path / 'v.png'}"
    assert run("plot", path, "--inputs", 0, 5, "--out", tmp_path / "w.png") == 2
    assert "from 0 to 1, got 0 5" in error_line(capsys)


def walk(*inputs: Any) -> gptd_rl.GPTD:
    """A model of one walk, in which all inputs are taken for equally relevant."""
    episode = dict(observations=np.column_stack(inputs), rewards=-np.ones(len(inputs[0]) - 1), terminated=True)
    return gptd_rl.GPTD(kernel="isotropic").fit(gptd_rl.Trajectories.from_episodes([episode], gamma=0.9))


def test_draw_shows_three_panels():
    axes = plot.draw(walk(np.arange(9.0), np.zeros(9), np.arange(9.0) % 2)).axes
    assert [ax.get_title() for ax in axes if ax.get_title()] == [
        "value function and visited states",
        "standard deviation",
        "relevances",
    ]
    assert all((ax.get_xlabel(), ax.get_ylabel()) == ("input 0", "input 2") for ax in axes[:2])
    assert [ax.get_ylabel() for ax in axes[3:]] == ["V", "standard deviation of V"]
    axes = plot.draw(walk(np.arange(9.0), np.arange(9.0) % 4, np.arange(9.0) % 2), [2, 1]).axes
    assert all((ax.get_xlabel(), ax.get_ylabel()) == ("input 2", "input 1") for ax in axes[:2])


def test_draw_shows_a_section_of_one_input():
    axes = plot.draw(walk(np.arange(9.0))).axes
    assert [ax.get_title() for ax in axes] == ["value function with 95 % interval", "relevances"]


@pytest.mark.parametrize(
    ("name", "out", "words"),
    [
        ("none.gptd", "v.png", "there is no file"),
        ("text.gptd", "v.png", "neither a model nor transitions"),
        ("arrays.npz", "v.png", "does not hold trajectories"),
        ("agent.gptd", "v.png", "is not a gptd-rl model"),
        ("q.gptd", "v.png", "contains a GPTDQ: only GPTD models can be drawn"),
        ("text.gptd", "v.xyz", "its name must end in .png or"),
        ("text.gptd", "v", "its name must end in .png or"),
        ("text.png", "text.png", "is the input file"),
        (".", "v.png", "there is no file"),
    ],
)
def test_plot_rejects_bad_files(
    name: str, out: str, words: str, gridworld: gptd_rl.Trajectories, iterated: Path, tmp_path: Path, capsys: Capture
):
    for text in ("text.gptd", "text.png"):
        (tmp_path / text).write_text("words")
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    (tmp_path / "agent.gptd").write_bytes(iterated.read_bytes())
    if name == "q.gptd":
        gptd_rl.GPTDQ().fit(gridworld).save(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    assert run("plot", tmp_path / name, "--out", tmp_path / out) == 2
    assert words in error_line(capsys)
    assert sorted(tmp_path.iterdir()) == before


def test_plot_discards_an_interrupted_fit(
    gridworld: gptd_rl.Trajectories, tmp_path: Path, capsys: Capture, monkeypatch
):
    def interrupted(self: gptd_rl.GPTD, data: Any, **options: Any) -> gptd_rl.GPTD:
        warnings.warn("the best model so far", InterruptedFitWarning, stacklevel=2)
        return self

    monkeypatch.setattr(gptd_rl.GPTD, "fit", interrupted)
    path = gridworld.save(tmp_path / "data.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as in a process of its own
        assert run("plot", path) == 130
    assert capsys.readouterr().err == "gptd-rl: interrupted, nothing was written\n"
    assert list(tmp_path.iterdir()) == [path]
