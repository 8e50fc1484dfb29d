"""What an evaluation fits: the choice of a candidate, its calibration, and the starts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.estimators.conformal import calibrate
from gptd_rl.evaluation import fitting
from gptd_rl.evaluation.starts import Starts
from gptd_rl.temporal.returns import Returns
from tests.mdps import Walk


@pytest.fixture(scope="module")
def walk():
    data = Walk().sample(150, np.random.default_rng(0))
    return data, fitting.fit(data, None, is_categorical=False, analyse_inputs=True, tick=lambda done, total: None)


def test_fit_calibrates_on_left_out_episodes(walk):
    data, found = walk
    returns = Returns.of(data)
    for value, is_local in ((found.value, True), (found.monte_carlo, False)):
        left_out = value.estimator_.candidate.left_out
        assert_array_equal(value.cross_val_values_, left_out)
        relevances = value.estimator_.relevances_
        assert (relevances is not None) == is_local
        weights = None if relevances is None else np.sqrt(relevances + 1e-9 * relevances.max())
        _, expected = calibrate(left_out, data, weights)
        assert_array_equal(value.errors_.ratios, expected.ratios)
        errors = (returns.y - returns.difference(left_out))[returns.usable]
        assert is_local or sorted(np.abs(errors)) == value.errors_.ratios.tolist()


def test_fit_tells_the_errors_of_its_candidates(walk):
    data, found = walk
    assert found.chosen in found.candidates and set(found.candidates) >= {"Monte Carlo", "GPTD"}
    returns = Returns.of(data)
    errors = (returns.y - returns.difference(found.value.cross_val_values_))[returns.usable]
    assert found.candidates[found.chosen] == pytest.approx(np.sqrt(np.mean(errors**2)))


def test_fit_with_a_good_critic_uses_it():
    class Critic:
        def __call__(self, states):
            return Walk().value(states) + 0.5

        def features(self, states):
            return np.column_stack([Walk().value(states), states])

    data = Walk().sample(150, np.random.default_rng(0))
    found = fitting.fit(data, Critic(), is_categorical=False, analyse_inputs=False, tick=lambda done, total: None)
    assert {"critic, refitted", "GPTD around the critic, refitted"} <= set(found.candidates)
    assert found.critic is not None
    assert found.candidates["critic, refitted"] < found.candidates["Monte Carlo"]


def test_starts_are_returns_completed_by_v(walk):
    data, found = walk
    returns = Returns.of(data)
    rest = returns.z * found.value.cross_val_values_[returns.end]
    assert_allclose(found.starts.returns, (returns.y + rest)[data.starts])
    assert_array_equal(found.starts.values, found.value.cross_val_values_[data.starts])
    assert isinstance(found.starts, Starts)
