"""Intervals of paired differences, and descriptions of where they are large."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from gptd_rl.evaluation.differences import (
    best_split,
    cautious_std,
    pairwise_differences,
    simultaneous_quantile,
    state_intervals,
    student_quantile,
)


def test_simultaneous_quantile_of_one_sample_is_students():
    sample = np.random.default_rng(0).normal(size=(12, 1))
    assert_allclose(simultaneous_quantile(sample), stats.t.ppf(0.975, 11))
    assert_allclose(student_quantile(12), stats.t.ppf(0.975, 11))


def test_simultaneous_quantile_lies_between_students_and_bonferronis():
    rng = np.random.default_rng(0)
    common = rng.normal(size=(40, 1))
    apart, alike = rng.normal(size=(40, 5)), common + 0.01 * rng.normal(size=(40, 5))
    student, bonferroni = student_quantile(40), student_quantile(40, n_intervals=5)
    assert student + 0.4 < simultaneous_quantile(apart) < bonferroni + 0.03
    assert_allclose(simultaneous_quantile(alike), student, atol=0.06)
    constant = np.column_stack([common, np.ones(40)])
    assert_allclose(simultaneous_quantile(constant), student)


def test_simultaneous_quantile_holds_all_means():
    """Coverage of all pairs of four means together; Student's quantile, the control, fails."""
    rng = np.random.default_rng(1)
    together, alone = [], []
    for seed in range(400):
        samples = pairwise_differences(rng.normal(size=(4, 20)))
        t = np.abs(samples.mean(axis=0)) / (samples.std(axis=0, ddof=1) / np.sqrt(20))
        together.append(t.max() <= simultaneous_quantile(samples[:, :], seed=seed) if seed % 4 == 0 else True)
        alone.append(t.max() <= student_quantile(20))
    held = np.mean(together[::4])
    assert stats.binomtest(int(100 * held), 100, 0.95).pvalue > 0.01
    assert np.mean(alone) < 0.88


def test_pairwise_differences():
    assert_allclose(pairwise_differences(np.array([[1.0, 2.0], [0.0, 4.0], [5.0, 5.0]])), [[1, -4, -5], [-2, -3, -1]])


def test_state_intervals_hold_together():
    """Forty states, five rollouts each, of which many differ rarely: all forty are held in 95 % of all cases."""
    rng = np.random.default_rng(0)
    missed = []
    for _ in range(200):
        common, slip = rng.normal(size=(5, 40)), rng.random((5, 40)) < 0.05
        mean, half = state_intervals(common, common + 2.0 * slip, np.zeros(40), 0.95, 40)
        missed.append((np.abs(mean + 0.1) > half).any())
    assert np.mean(missed) <= 0.05


def test_state_intervals_never_have_zero_width_where_returns_are_random():
    same = np.random.default_rng(0).normal(size=(6, 3))
    mean, half = state_intervals(same, same, np.zeros(3), 0.95, 3)
    assert (mean == 0).all() and (half > 0.5).all()


def test_state_intervals_of_a_single_rollout_are_the_systematic_errors():
    mean, half = state_intervals(np.array([[3.0, 1.0]]), np.array([[1.0, 1.0]]), np.array([0.1, 0.0]), 0.95, 2)
    assert_allclose(mean, [2.0, 0.0])
    assert_allclose(half, [0.1, 0.0])


def test_best_split_finds_input_and_threshold():
    rng = np.random.default_rng(0)
    states = rng.uniform(-1.0, 1.0, size=(200, 3))
    differences = np.where(states[:, 1] > 0.25, 5.0, -1.0) + 0.1 * rng.normal(size=200)
    found = best_split(states, differences)
    assert found is not None and found.input == 1 and found.share > 0.99
    assert_allclose([found.threshold, found.below, found.above], [0.25, -1.0, 5.0], atol=0.05)


@pytest.mark.parametrize("kind", ["noise", "constant", "few"])
def test_best_split_may_find_none(kind: str):
    rng = np.random.default_rng(0)
    n = 3 if kind == "few" else 300
    states = rng.normal(size=(n, 2))
    assert best_split(states, np.full(n, 0.3) if kind == "constant" else rng.normal(size=n)) is None


def test_cautious_std_holds_rare_large_differences():
    """One start in twenty makes a difference: Student's interval, the control, is too narrow."""
    rng = np.random.default_rng(0)
    samples = (rng.random((100, 2000)) < 0.05).astype(np.float64)
    half = student_quantile(100) * np.array([cautious_std(samples), samples.std(axis=0, ddof=1)]) / 10.0
    cautious, plain = (np.abs(samples.mean(axis=0) - 0.05) <= half).mean(axis=1)
    assert 0.94 <= cautious <= 0.98 and plain < 0.9
    normal = np.asarray(rng.normal(size=(100, 500)), dtype=np.float64)
    assert_allclose(cautious_std(normal).mean(), normal.std(axis=0, ddof=1).mean(), rtol=0.1)
