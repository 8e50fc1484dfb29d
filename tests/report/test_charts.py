"""Panels of the pages."""

from __future__ import annotations

import numpy as np

from gptd_rl.report import charts


def test_plot_predictions_clips_the_critic():
    x = np.linspace(0.0, 1.0, 9)
    plain = charts.plot_predictions(x, x, x - 1, x + 1, None).get_ylim()
    ax = charts.plot_predictions(x, x, x - 1, x + 1, 1e6 * (x - 0.5))
    assert ax.get_ylim() == plain
    marks = np.concatenate([line.get_ydata() for line in ax.get_lines() if line.get_label() == "critic"])
    assert marks.min() == plain[0] and marks.max() == plain[1]


def test_short_leaves_out_the_middle():
    assert charts.short("a" * 22) == "a" * 22
    assert charts.short("abcdefghij" * 3) == "abcdefghija…abcdefghij"


def test_plot_heatmap_centres_cells_on_the_grid():
    values = np.arange(6.0).reshape(2, 3)
    ax = charts.plot_heatmap(values, (0.0, 4.0, 10.0, 20.0), label="V", states=np.array([[1.0, 12.0]]))
    (image,) = ax.images
    np.testing.assert_array_equal(np.asarray(image.get_array()), values)
    assert tuple(image.get_extent()) == (-1.0, 5.0, 5.0, 25.0)  # cells are 2 wide and 10 high
    assert ax.get_xlim() == (-1.0, 5.0) and ax.get_ylim() == (5.0, 25.0)
    np.testing.assert_array_equal(np.asarray(ax.collections[0].get_offsets()), [[1.0, 12.0]])


def test_plot_heatmap_marks_values_beyond_the_limits():
    for limits, expected in (
        ((1.0, 2.0), "both"),
        ((-1.0, 1.0), "max"),
        ((1.0, 9.0), "min"),
        ((0.0, 5.0), "neither"),
        (None, "neither"),
    ):
        ax = charts.plot_heatmap(np.array([[0.0, 5.0]]), (0.0, 1.0, 0.0, 0.0), label="V", limits=limits)
        assert ax.images[0].colorbar is not None and ax.images[0].colorbar.extend == expected


def test_plot_scaled_relevances_sorts_and_greys():
    ax = charts.plot_scaled_relevances(["a", "b", "c"], np.array([0.1, 5.0, 1e-12]), removed=[2])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "a", "c"]
    bars = ax.containers[0]
    assert [bar.get_width() for bar in bars] == [5.0, 0.1, charts.RELEVANCE_FLOOR]
    assert bars[2].get_facecolor() != bars[0].get_facecolor() == bars[1].get_facecolor()
