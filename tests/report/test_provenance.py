"""When and how a page was made."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from gptd_rl.report.provenance import Provenance
from gptd_rl.version import __version__


def test_provenance_now(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    made = Provenance.now("gptd-rl evaluate", clock=lambda: 1_769_951_100.0)
    assert made.time == "2026-02-01 13:05 UTC" and made.command == "gptd-rl evaluate"
    assert made.versions["gptd-rl"] == __version__ and made.versions["Python"] == platform.python_version()
    assert made.versions["NumPy"] == np.__version__ and "Gymnasium" in made.versions


def test_provenance_names_what_is_loaded():
    torch = pytest.importorskip("torch")
    sb3 = pytest.importorskip("stable_baselines3")
    versions = Provenance.now("").versions
    assert versions["PyTorch"] == torch.__version__ and versions["Stable-Baselines3"] == sb3.__version__


@pytest.mark.parametrize(("epoch", "time"), [("1000000000", "2001-09-09 01:46 UTC"), ("soon", "1970-01-01 00:00 UTC")])
def test_provenance_honours_source_date_epoch(monkeypatch: pytest.MonkeyPatch, epoch: str, time: str):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    assert Provenance.now("", clock=lambda: 0.0).time == time
