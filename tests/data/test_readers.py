"""Regression targets as trajectories: plain Gaussian-process regression is the case without transitions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from gptd_rl import GPTD
from gptd_rl.data.trajectories import Trajectories
from tests.helpers import NOISES, assert_same

X = np.random.default_rng(0).normal(size=(30, 2))
Y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=30)


def test_from_values_makes_one_row_per_state():
    data = Trajectories.from_values(X, Y)
    assert_array_equal(data.states, X)
    assert_array_equal(data.rewards, Y)
    assert_array_equal(data.discounts, np.zeros(30))
    assert_array_equal(data.lengths, np.ones(30))
    assert data.terminated.all() and data.has_row.all() and not data.has_transition.any()
    assert (data.n_rows, data.n_transitions, data.n_segments) == (30, 0, 30)
    assert data.actions is None


def test_from_values_keeps_actions():
    assert_array_equal(Trajectories.from_values([1.0, 2.0], [3.0, 4.0], [0, 2]).actions, [0, 2])


def test_from_values_survives_saving_and_joining(tmp_path):
    data = Trajectories.from_values(X, Y, np.arange(30))
    assert_same(Trajectories.load(data.save(tmp_path / "values.npz")), data)
    assert_same(data[:10] + data[10:], data)
    assert_same(data.cut(5), data)


@pytest.mark.parametrize("noise", NOISES)
def test_from_values_fit_equals_scikit_learn_regression(noise):
    v = GPTD(noise=noise, objective="marginal_likelihood", noise_variance=0.05).fit(Trajectories.from_values(X, Y))
    k = v.kernel_
    kernel = ConstantKernel(k.signal_variance) * RBF(1 / np.sqrt(v.relevances_)) + ConstantKernel(k.bias)
    reference = GaussianProcessRegressor(kernel, alpha=v.noise_variance_, optimizer=None).fit(X, Y)
    queries = np.random.default_rng(2).normal(size=(20, 2))
    mean, std = v.predict(queries, return_std=True)
    expected, spread = reference.predict(queries, return_std=True)
    assert_allclose(mean, expected, rtol=1e-8, atol=1e-9)
    assert_allclose(std, spread, rtol=1e-6)
    assert_allclose(v.log_marginal_likelihood_, reference.log_marginal_likelihood_value_, rtol=1e-9)


def test_from_values_fit_selects_a_kernel_by_default():
    v = GPTD().fit(Trajectories.from_values(X, Y))
    assert_allclose(v.predict(X), np.sin(X[:, 0]), atol=0.3)
    assert v.relevances_[0] > v.relevances_[1]


@pytest.mark.parametrize(
    ("states", "values", "actions", "error", "message"),
    [
        ([], [], None, ValueError, "empty data: expected at least one state with a value, got none."),
        (X, Y[:-1], None, ValueError, "values must have shape (30,); got (29,)."),
        (X, Y[:, None], None, ValueError, "values must have shape (30,); got (30, 1)."),
        ([[1.0], [np.inf]], [1, 2], None, ValueError, "states must be finite; states[1, 0] is inf."),
        ([1.0, 2.0], [1, np.nan], None, ValueError, "values must be finite; values[1] is nan."),
        ([1.0, 2.0], ["a", "b"], None, TypeError, "values must be numbers: "),
        ([1.0, 2.0], [1, 2], [0], ValueError, "actions must have one entry per state (2); got shape (1,)."),
        ([1.0, 2.0], [1, 2], 3, ValueError, "actions must have one entry per state (2); got shape ()."),
        (np.zeros((2, 3, 3)), [1, 2], None, ValueError, "states must have shape (n, n_dims); got (2, 3, 3)."),
    ],
)  # fmt: skip
def test_from_values_refuses_bad_input_in_one_line(states, values, actions, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        Trajectories.from_values(states, values, actions)
    assert "\n" not in str(caught.value)
