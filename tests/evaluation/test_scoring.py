"""Scores, checks and disagreements by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.estimators.conformal import Calibrated
from gptd_rl.evaluation.candidates import Chosen, ValueCandidate
from gptd_rl.evaluation.ground_truth import GroundTruth
from gptd_rl.evaluation.scoring import (
    SHARES,
    Coverage,
    CrossFitted,
    check,
    disagreements,
    recalibrated,
    root_mean_squared_error,
    score,
)
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


def known(values, errors=None, episodes=None) -> GroundTruth:
    """Truth at states 0, 1, …, one for each episode."""
    n = len(values)
    noise = np.zeros(n) if errors is None else np.asarray(errors)
    of = np.arange(n) if episodes is None else np.asarray(episodes)
    return GroundTruth(np.ones(1), np.arange(float(n))[:, None], np.asarray(values), noise, of, 4)


def test_score_by_hand():
    truth = known(np.array([1.0, 0.0, -1.0, 5.0]))
    found = score("ours", Fixed(), truth, Coverage(Fixed(), truth))
    assert (found.name, found.half_width) == ("ours", 2.0)
    assert found.rmse == pytest.approx(np.sqrt((0 + 1 + 4 + 16) / 4)) and found.bias == pytest.approx(-0.25)
    assert found.coverage == (0.5, 0.5, 0.75)  # within 1.05, 1.68 and 2
    std = 2.0 / 1.959964
    expected = np.log(std) + 0.5 * np.log(2 * np.pi) + (0 + 1 + 4 + 16) / 4 / (2 * std**2)
    assert found.nlpd == pytest.approx(expected, rel=1e-6)


def test_rmse_is_without_the_noise_of_the_rollouts():
    rng = np.random.default_rng(0)
    episodes = np.repeat(np.arange(100), 4)
    differences = 2.0 * rng.standard_normal(400) + 3.0 * rng.standard_normal(400)
    rmse, (low, high) = root_mean_squared_error(differences, np.full(400, 3.0), episodes)
    assert low < 2.0 < high and rmse == pytest.approx(2.0, abs=0.4)
    assert root_mean_squared_error(np.ones(4), np.full(4, 2.0), np.arange(4)) == (0.0, (0.0, 0.0))
    assert root_mean_squared_error(np.ones(4), np.zeros(4), np.zeros(4, dtype=int))[1] == (0.0, np.inf)  # one episode


def test_interval_of_rmse_holds_it():
    rng, held = np.random.default_rng(1), 0
    for _ in range(200):
        of_episode = np.repeat(rng.standard_normal(40), 4)  # states of one episode are alike
        low, high = root_mean_squared_error(of_episode + rng.standard_normal(160), np.zeros(160), np.arange(160) // 4)[
            1
        ]
        held += low <= np.sqrt(2.0) <= high
    assert 0.88 <= held / 200 <= 0.99


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("size", "share"), [(1.0, 0.95), (3.0, 0.487)])  # P(|z| < 1.96 / size)
def test_coverage_is_that_of_the_value_and_not_of_its_noisy_estimate(noise, size, share):
    rng = np.random.default_rng(0)
    n, std = 400, 2.0 / 1.96  # of errors that intervals of ±2 hold in 95 of 100 cases
    found = []
    for _ in range(8):
        errors = size * std * rng.standard_normal(n) + noise * rng.standard_normal(n)
        found.append(Coverage(Fixed(), known(1.0 + errors, np.full(n, noise)))(0.95))
    assert np.mean(found) == pytest.approx(share, abs=0.03)


def test_no_state_of_a_check_has_a_part_in_its_own_interval():
    v = Calibrated(Chosen(ValueCandidate("ours", lambda x: np.zeros(len(x)), np.zeros(4))))
    data = Trajectories(
        np.arange(4.0)[:, None], np.array([1.0, 0, 2, 0]), np.tile([0.9, 0.0], 2), np.full(2, 2), np.ones(2, dtype=bool)
    )
    v.fit(data)
    truth = known(np.array([1.0, 10.0] * 20))  # every second episode is of the second half
    crossed = CrossFitted(v, truth)
    lower, upper = crossed.confidence_interval(truth.states, 0.95)
    first, second = truth.halves()
    for rows, other in ((~truth.in_second_half, second), (truth.in_second_half, first)):
        expected = recalibrated(v, other).confidence_interval(truth.states[rows], 0.95)
        assert_allclose([lower[rows], upper[rows]], expected)
    assert (upper - lower)[0] > 5.0 * (upper - lower)[1]


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
