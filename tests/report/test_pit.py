"""Probability integral transforms are uniform if intervals are right, and the band notices if they are not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from gptd_rl.report.charts import plot_pit_ecdf
from gptd_rl.report.pit import pit_values, simultaneous_band

POINTS = np.linspace(0.05, 0.95, 19)


class Normal:
    """A value function whose intervals are those of a normal distribution."""

    def __init__(self, std: float = 1.0, shift: float = 0.0) -> None:
        self.std, self.shift = std, shift

    def predict(self, states):
        return np.asarray(states)[:, 0] + self.shift

    def confidence_interval(self, states, level=0.95):
        half = self.std * stats.norm.ppf(0.5 + level / 2)
        return self.predict(states) - half, self.predict(states) + half


def observations(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(n, 2))
    return states, states[:, 0] + rng.normal(size=n)


def test_pit_values_are_those_of_the_normal_distribution():
    states, y = observations(200, 0)
    expected = stats.norm.cdf(y - states[:, 0])
    assert_allclose(pit_values(Normal(), states, y), expected, atol=0.013)  # half the distance of two levels


def test_pit_values_know_the_side():
    pit = pit_values(Normal(), np.zeros((3, 1)), np.array([-50.0, 0.0, 50.0]))
    assert pit[0] < 0.03
    assert pit[1] == 0.5
    assert pit[2] > 0.97


def outside(value: Normal, n: int, seed: int) -> bool:
    pit = pit_values(value, *observations(n, seed))
    ecdf = (pit[:, None] <= POINTS).mean(axis=0)
    lower, upper = simultaneous_band(n, POINTS)
    return bool(((ecdf < lower) | (ecdf > upper)).any())


def test_simultaneous_band_holds_calibrated_values_as_often_as_it_says():
    rejected = sum(outside(Normal(), 60, seed) for seed in range(100))
    assert stats.binomtest(rejected, 100, 0.05, alternative="greater").pvalue > 0.01


@pytest.mark.parametrize("wrong", [Normal(std=2.0), Normal(std=0.5), Normal(shift=1.0)])
def test_simultaneous_band_notices_wrong_intervals(wrong: Normal):
    assert all(outside(wrong, 60, seed) for seed in range(10))


def test_simultaneous_band_is_wider_than_pointwise_ones():
    lower, upper = simultaneous_band(100, POINTS)
    assert (lower <= stats.binom.ppf(0.025, 100, POINTS) / 100).all()
    assert (upper >= stats.binom.ppf(0.975, 100, POINTS) / 100).all()


def test_plot_pit_ecdf_draws_into_axes():
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    pit = np.random.default_rng(0).uniform(size=50)
    assert plot_pit_ecdf(pit, POINTS, simultaneous_band(50, POINTS), ax=ax) is ax
    (line,) = (line for line in ax.lines if line.get_label() == "GPTD")
    expected = (pit[:, None] <= POINTS).mean(axis=0) - POINTS
    assert_allclose(np.asarray(line.get_ydata(), dtype=float), expected)
    assert plot_pit_ecdf(pit, POINTS, simultaneous_band(50, POINTS)).figure is not ax.figure
