"""Scores, checks and disagreements by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.evaluation.ground_truth import GroundTruth
from gptd_rl.evaluation.scoring import SHARES, check, disagreements, score
from gptd_rl.report.records import LEVELS


class Fixed:
    """The same everywhere; 95 % intervals of ± 2, others in proportion."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def predict(self, states):
        return np.full(len(states), self.value)

    def confidence_interval(self, states, level=0.95):
        half = 2.0 * level / 0.95
        return self.predict(states) - half, self.predict(states) + half


def test_score_by_hand():
    truth = np.array([1.0, 0.0, -1.0, 5.0])
    found = score("ours", Fixed(), np.zeros((4, 1)), truth, np.zeros(4))
    assert (found.name, found.half_width) == ("ours", 2.0)
    assert found.rmse == pytest.approx(np.sqrt((0 + 1 + 4 + 16) / 4)) and found.bias == pytest.approx(-0.25)
    assert found.coverage == (0.5, 0.5, 0.75)  # within 1.05, 1.68 and 2
    std = 2.0 / 1.959964
    expected = np.log(std) + 0.5 * np.log(2 * np.pi) + (0 + 1 + 4 + 16) / 4 / (2 * std**2)
    assert found.nlpd == pytest.approx(expected, rel=1e-6)


def test_score_widens_intervals_by_standard_errors():
    # 4 from the middle: held by √(2² + (1.96·error)²) from an error of √12 / 1.96 on.
    truth, states = np.full(2, 5.0), np.zeros((2, 1))
    for error, held in ((1.7, 0.0), (1.8, 1.0)):
        assert score("ours", Fixed(), states, truth, np.full(2, error)).coverage[2] == held


def test_ground_truth_halves():
    episodes = np.array([0, 0, 3, 4, 4, 9])
    x = np.arange(6.0)
    known, judged = GroundTruth(np.ones(9), x[:, None], x, 0.1 * x, episodes, 10).halves()
    assert_array_equal(known.values, [0, 1, 3, 4])
    assert_array_equal(judged.values, [2, 5])
    assert_array_equal(judged.errors, 0.1 * judged.values)
    assert_array_equal(judged.states[:, 0], judged.values)
    assert set(known.episodes) == {0, 4} and set(judged.episodes) == {3, 9}
    assert len(known.returns) == len(judged.returns) == 9 and known.n_rollouts == 10


def test_check_by_hand():
    truth, states = np.array([1.0, 2.5, 9.0]), np.arange(3.0)[:, None]
    observed = GroundTruth(np.ones(2), states, truth, np.zeros(3), np.array([0, 0, 1]), 4)
    critic = np.array([2.0, 4.0, -8.0])
    found = check(observed, {"GPTD": Fixed(), "other": Fixed(9.0)}, lambda x: critic)
    assert (found.kind, found.n_rollouts) == ("rollouts", 4)
    assert_array_equal(found.shares, SHARES)
    assert SHARES[0] == 0.05 and SHARES[-1] == 0.95 and set(LEVELS) <= set(SHARES)
    half = 2.0 * SHARES / 0.95
    assert_allclose(found.reliability["GPTD"], (1.0 + (half >= 1.5)) / 3)
    assert_allclose(found.reliability["other"], np.full(len(SHARES), 1 / 3))
    assert [one.name for one in found.scores] == ["GPTD", "other"]
    # 4 is outside [−1, 3] by 1, −8 by 7; 2 is inside.
    assert [(d.state, d.critic, d.observed) for d in disagreements(found)] == [((2.0,), -8.0, 9.0), ((1.0,), 4.0, 2.5)]
    assert [(d.value, d.lower, d.upper) for d in disagreements(found)] == [(1.0, -1.0, 3.0)] * 2
    alone = check(
        GroundTruth(np.ones(1), states, truth, np.zeros(3), np.zeros(3, dtype=int), 0), {"GPTD": Fixed()}, None
    )
    assert alone.kind == "returns" and disagreements(alone) == ()
    # One for each episode, and no more than eight.
    far = GroundTruth(np.ones(1), np.arange(30.0)[:, None], np.zeros(30), np.zeros(30), np.repeat(np.arange(10), 3), 1)
    many = disagreements(check(far, {"GPTD": Fixed()}, lambda x: 10.0 + x[:, 0]))
    assert [d.state[0] for d in many] == [29.0, 26.0, 23.0, 20.0, 17.0, 14.0, 11.0, 8.0]
