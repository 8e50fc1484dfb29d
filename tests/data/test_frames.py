"""Transitions as a table of pandas: every number where it belongs, and gaps where nothing is known."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl import Trajectories

pytest.importorskip("pandas")


def two_segments(actions: bool = True) -> Trajectories:
    steps: dict[str, Any] = dict(actions=[1, 2]) if actions else {}
    ended = dict(observations=[[0.0, 5.0], [1.0, 6.0], [2.0, 7.0]], rewards=[-1.0, -2.0], terminated=True, **steps)
    steps = dict(actions=[3]) if actions else {}
    cut = dict(observations=[[3.0, 8.0], [4.0, 9.0]], rewards=[-3.0], terminated=False, **steps)
    return Trajectories.from_episodes([ended, cut], gamma=0.9)


def test_to_pandas_has_a_row_for_each_state():
    table = two_segments().to_pandas(["x", "y"])
    columns = ["segment", "step", "x", "y", "action", "reward", "discount", "terminated", "truncated"]
    assert list(table) == columns
    assert_array_equal(table["segment"], [0, 0, 0, 1, 1])
    assert_array_equal(table["step"], [0, 1, 2, 0, 1])
    assert_array_equal(table["y"], [5.0, 6.0, 7.0, 8.0, 9.0])
    assert_array_equal(table["reward"], [-1.0, -2.0, 0.0, -3.0, np.nan])
    assert_array_equal(table["discount"], [0.9, 0.9, 0.0, 0.9, np.nan])
    assert_array_equal(table["terminated"], [False, False, True, False, False])
    assert_array_equal(table["truncated"], [False, False, False, False, True])
    assert table["action"].isna().tolist() == [False, False, True, False, True]
    assert table["action"].dropna().tolist() == [1, 2, 3]


def test_to_pandas_without_actions_and_names():
    table = two_segments(actions=False).to_pandas()
    assert list(table)[:4] == ["segment", "step", "input 0", "input 1"]
    assert "action" not in table


def test_to_pandas_gives_each_part_of_an_action_a_column():
    episode = dict(observations=[[0.0], [1.0]], rewards=[1.0], actions=[[0.5, -0.5]], terminated=True)
    table = Trajectories.from_episodes([episode], gamma=0.9).to_pandas()
    assert table["action 1"].tolist()[0] == -0.5
    assert table["action 0"].isna().tolist() == [False, True]


def test_to_pandas_is_a_copy():
    data = two_segments()
    table = data.to_pandas()
    table.loc[0, "input 0"] = 100.0
    assert data.states[0, 0] == 0.0


@pytest.mark.parametrize("names", [["x"], ["x", "x"], [1, 2], ["x", "reward"], ["x", "action 0"]])
def test_to_pandas_refuses_other_names(names: Any):
    with pytest.raises(ValueError, match=r"^names must[^\n]*$"):
        two_segments().to_pandas(names)


def test_to_pandas_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r'^to_pandas needs pandas: pip install "gptd-rl\[pandas\]"$'):
        two_segments().to_pandas()
