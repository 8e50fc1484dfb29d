"""The model card of an evaluation: metadata that others read, and a text without foreign markup."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gptd_rl.report.records import Interval, StartReturn
from tests.report.evaluations import make

huggingface_hub = pytest.importorskip("huggingface_hub")


def metadata(path: Path) -> dict[str, Any]:
    """Metric type → result, as Hugging Face reads them."""
    card = huggingface_hub.ModelCard.load(path)
    return {result.metric_type: result for result in card.data.eval_results}


def test_write_card_gives_the_return_and_its_interval(tmp_path: Path):
    path = make().write_card(tmp_path)
    assert path == tmp_path / "README.md"
    found = metadata(path)
    mean = found["mean_reward"]
    assert (mean.task_type, mean.dataset_type, mean.metric_value) == (
        "reinforcement-learning",
        "CartPole-v1",
        "59.70 +/- 27.10",
    )
    assert mean.metric_args == dict(confidence_level=0.95, lower=48.2, upper=71.2, n_episodes=22)
    assert found["discounted_value"].metric_args["lower"] == 30.87
    assert found["coverage_of_95_percent_intervals"].metric_value == 0.942


def test_write_card_has_the_layout_of_stable_baselines3(tmp_path: Path):
    path = make().write_card(tmp_path / "card.md", license="mit")
    card = huggingface_hub.ModelCard.load(path)
    assert card.data.library_name == "stable-baselines3"
    assert card.data.license == "mit"
    assert {"CartPole-v1", "reinforcement-learning", "deep-reinforcement-learning"} <= set(card.data.tags)
    assert "# **A2C** agent playing **CartPole-v1**" in card.text
    assert "| mean return of 22 episodes | 60 | 48 to 71 |" in card.text
    assert [file.name for file in tmp_path.iterdir()] == ["card.md"]


def test_write_card_of_another_policy_and_library(tmp_path: Path):
    evaluation = make()
    evaluation = replace(evaluation, config=replace(evaluation.config, agent="LinearController"))
    assert huggingface_hub.ModelCard.load(evaluation.write_card(tmp_path)).data.library_name == "gptd-rl"
    recurrent = replace(evaluation, config=replace(evaluation.config, agent="RecurrentPPO"))
    assert huggingface_hub.ModelCard.load(recurrent.write_card(tmp_path)).data.library_name == "sb3-contrib"
    card = huggingface_hub.ModelCard.load(evaluation.write_card(tmp_path, library_name="mine", model_name="best"))
    assert (card.data.library_name, card.data.model_name) == ("mine", "best")


def test_write_card_without_complete_episodes_or_bounds(tmp_path: Path):
    start = StartReturn(Interval(1.0, -np.inf, np.inf), None, np.nan, np.nan, 0)
    found = metadata(make(start=start).write_card(tmp_path))
    assert "mean_reward" not in found
    assert found["discounted_value"].metric_args == dict(confidence_level=0.95, discount=0.98)  # no infinite bounds


def test_write_card_shows_names_as_they_are(tmp_path: Path):
    evaluation = make(warnings=("a\n# b | <b>",))
    config = replace(evaluation.config, agent="**x**\n---\n[y](z)", inputs=("a|b", "<script>", "c`", "d"))
    text = replace(evaluation, config=config).write_card(tmp_path).read_text(encoding="utf-8")
    card = huggingface_hub.ModelCard(text)
    assert card.data.model_name == "**x**\n---\n[y](z)"
    assert "<script>" not in card.text
    assert "a\\|b" in card.text
    assert "\n# b" not in card.text


def test_write_card_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'^model cards need huggingface_hub: pip install "gptd-rl\[hub\]"$'):
        make().write_card(tmp_path)
    assert not list(tmp_path.iterdir())


def test_write_card_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        make().write_card(tmp_path / "file" / "README.md")


def test_write_card_uploads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import socket

    monkeypatch.setattr(socket.socket, "connect", lambda *args: pytest.fail("asks the network"))
    make().write_card(tmp_path)
    assert os.listdir(tmp_path) == ["README.md"]
