"""Whether intervals are calibrated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gptd_rl.report.verdict import sampling_error
from gptd_rl.report.verdict import verdict as check_verdict
from tests.report.evaluations import make


def verdict(coverage: tuple[float, float, float], n_episodes: int) -> tuple[str, str]:
    check = make().check
    first = replace(check.scores[0], coverage=coverage)
    episodes = np.arange(len(check.observed)) % n_episodes
    return check_verdict(replace(check, scores=(first, *check.scores[1:]), episodes=episodes))


@pytest.mark.parametrize(
    ("coverage", "n_episodes", "mark"),
    [
        ((0.50, 0.80, 0.95), 20, "calibrated"),
        ((0.50, 0.80, 0.87), 20, "calibrated"),  # 17 of 20 episodes are within sampling error
        ((0.50, 0.80, 0.87), 100, "narrow"),  # 87 of 100 are not
        ((0.20, 0.80, 0.95), 20, "narrow"),
        ((0.50, 0.80, 1.00), 20, "calibrated"),
        ((0.50, 0.80, 1.00), 100, "wide"),
        ((0.95, 1.00, 1.00), 20, "wide"),
        ((0.95, 1.00, 0.50), 20, "narrow"),  # the worse of two faults
        ((0.50, 0.80, 0.95), 4, "unknown"),
        ((0.50, 0.80, float("nan")), 20, "unknown"),
    ],
)
def test_verdict(coverage: tuple[float, float, float], n_episodes: int, mark: str):
    found, sentence = verdict(coverage, n_episodes)
    assert found == mark
    words = dict(calibrated="are calibrated", narrow="too narrow", wide="wider than", unknown="no verdict")
    assert words[mark] in sentence


def test_verdict_names_the_level_that_fails():
    assert "50\u202f% intervals contain 95\u202f%" in verdict((0.95, 1.0, 1.0), 20)[1]
    assert "95\u202f% intervals contain 70\u202f%" in verdict((0.5, 0.8, 0.7), 20)[1]


def test_sampling_error_contains_95_percent():
    held = np.random.default_rng(0).binomial(30, 0.8, size=20_000) / 30
    (low,), (high,) = sampling_error(np.array([0.8]), 30)
    assert 0.95 <= ((held >= low) & (held <= high)).mean() < 0.98
    assert (held < low).mean() <= 0.025 and (held > high).mean() <= 0.025
