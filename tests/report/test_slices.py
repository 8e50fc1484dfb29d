"""Lines and planes through the visited states."""

from __future__ import annotations

import numpy as np

from gptd_rl.report.slices import Slice, subsample


def test_slice_lies_on_its_axes_and_near_the_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    states = np.stack([5 + 10 * x, -2 * x + 0.01 * rng.normal(size=300), rng.normal(size=300)], axis=1)
    sliced = Slice.of(states, np.eye(3)[[0, 2]])
    grid = sliced.states(8)
    left, right, bottom, top = sliced.extent()
    np.testing.assert_allclose([left, right], [states[:, 0].min(), states[:, 0].max()])
    np.testing.assert_allclose(grid[:8, 0], np.linspace(left, right, 8))  # the first axis runs fastest
    np.testing.assert_allclose(grid[:8, 2], bottom)
    np.testing.assert_allclose(grid[::8, 2], np.linspace(bottom, top, 8))
    near = -0.2 * (grid[:, 0] - 5)  # what the second input is where the first is that
    assert np.abs(grid[:, 1] - near).mean() < 0.5 * np.abs(near).mean()
    dots = sliced.dots()
    np.testing.assert_allclose(dots, states[:, [0, 2]])
    np.testing.assert_allclose(sliced.ticks(1, 5), np.linspace(bottom, top, 5))


def test_slice_along_directions():
    states = np.random.default_rng(0).normal(size=(50, 3)) * [1.0, 5.0, 0.1] + 3
    axes = np.array([[0.6, 0.8, 0.0], [0.0, 0.6, -0.8]])  # not at right angles
    sliced = Slice.of(states, axes)
    along = (sliced.states(4) - np.median(states, axis=0)) / states.std(axis=0) @ axes.T
    left, right, bottom, top = sliced.extent()
    np.testing.assert_allclose(along[:4, 0], np.linspace(left, right, 4))
    np.testing.assert_allclose(along[::4, 1], np.linspace(bottom, top, 4))


def test_slice_of_a_constant_input():
    states = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(Slice.of(states, np.eye(2)).extent(), [0.5, 1.5, 0.0, 2.0], atol=1e-12)


def test_subsample_keeps_the_ends():
    rows = np.arange(100)
    np.testing.assert_array_equal(subsample(rows, 4), [0, 33, 66, 99])
    assert subsample(rows, 100) is rows
