"""Progress bars, and interrupts of fits."""

from __future__ import annotations

import warnings

import pytest

from gptd_rl.exceptions import InterruptedFitWarning
from gptd_rl.progress import no_partial_fits, stage_bars
from tests.cli.commands import Capture


def test_stage_bars_on_a_terminal(monkeypatch, capsys: Capture):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any stream for a terminal then
    monkeypatch.setenv("TERM", "xterm")
    with stage_bars("collect", "fit", "check") as bars:
        bars.advanced("collect", 5, 10)
        bars.advanced("fit", 0, 0)
        bars.advanced("check", 2, 4)
    out, error = capsys.readouterr()
    assert out == "" and all(word in error for word in ("collect", "fit", "check", "2/4"))
    with stage_bars("fit") as bars:
        bars.advanced("fit", 0, 0)  # of unknown length
    assert "0/0" not in capsys.readouterr().err


def test_no_partial_fits_raises_keyboard_interrupt():
    with pytest.raises(KeyboardInterrupt), no_partial_fits():
        warnings.warn("the best model so far", InterruptedFitWarning, stacklevel=1)
    with no_partial_fits(), pytest.warns(UserWarning, match="another"):
        warnings.warn("another", UserWarning, stacklevel=1)
