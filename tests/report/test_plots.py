"""Plots of fitted models and learning runs."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest

from gptd_rl import GPTD, Trajectories
from gptd_rl.report.charts import RELEVANCE_FLOOR
from gptd_rl.report.plots import plot_history, plot_relevances, plot_section, plot_value

mpl.use("Agg")
from matplotlib import pyplot as plt


@pytest.fixture(scope="module")
def v() -> GPTD:
    rng = np.random.default_rng(0)
    x = np.cumsum(rng.normal(size=(40, 3)), axis=0)
    episode = dict(observations=x, rewards=np.sin(x[:-1, 0]), terminated=True)
    return GPTD(objective="marginal_likelihood").fit(Trajectories.from_episodes([episode], gamma=0.8))


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


@pytest.mark.parametrize("std", [False, True])
def test_plot_value_shows_the_predictions(v: GPTD, std: bool):
    _, ax = plt.subplots()
    assert plot_value(v, (0, 2), std=std, n=7, ax=ax) is ax
    shown = np.asarray(ax.images[0].get_array())
    low, high = v.data_.states.min(axis=0), v.data_.states.max(axis=0)
    corner = np.median(v.data_.states, axis=0)
    corner[[0, 2]] = low[0], high[2]
    expected = v.predict([corner], return_std=True)[int(std)][0]
    np.testing.assert_allclose(shown[-1, 0], expected, rtol=1e-8)
    assert ax.get_xlabel() == "input 0"
    assert ax.get_ylabel() == "input 2"


def test_plot_section_draws_mean_and_interval(v: GPTD):
    ax = plot_section(v, 1, n=11)
    x, y = ax.lines[0].get_data()
    states = np.tile(np.median(v.data_.states, axis=0), (11, 1))
    states[:, 1] = x
    np.testing.assert_allclose(np.asarray(y, dtype=float), v.predict(states))
    assert len(ax.collections) == 1


def test_plot_relevances_draws_named_bars(v: GPTD):
    ax = plot_relevances(v, ["x", "y", "z"])
    scaled = v.relevances_ * v.data_.states.var(axis=0)
    order = np.argsort(-scaled)
    assert [label.get_text() for label in ax.get_yticklabels()] == [["x", "y", "z"][i] for i in order]
    expected = np.maximum(scaled[order], RELEVANCE_FLOOR)
    np.testing.assert_allclose([bar.get_width() for bar in ax.containers[0]], expected)


def test_plot_history_draws_four_panels():
    figure = plot_history(
        [10, 20, 30],
        episodes=[(5, 1.0), (15, 2.0)],
        policy_return=[np.nan, 1.5, 2.0],
        relevances=[[1.0, 0.1], [2.0, 0.01], [3.0, 0.001]],
        log_evidence=[np.nan, -1.0, -0.5],
        policy_change=[1.0, 0.5, 0.25],
    )
    returns, relevances, evidence, change = figure.axes
    episodes, mean = returns.lines
    np.testing.assert_array_equal(episodes.get_xydata(), [(5, 1.0), (15, 2.0)])
    np.testing.assert_array_equal(mean.get_ydata(), [np.nan, 1.5, 2.0])
    np.testing.assert_array_equal([line.get_ydata() for line in relevances.lines], [[1, 2, 3], [0.1, 0.01, 0.001]])
    np.testing.assert_array_equal(evidence.lines[0].get_ydata(), [np.nan, -1.0, -0.5])
    np.testing.assert_array_equal(change.lines[0].get_ydata(), [100.0, 50.0, 25.0])
