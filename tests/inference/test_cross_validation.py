"""Values without the own segment: in one pass, as by conditioning on the other folds."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl import GPTD, collect
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array


def lean(observation: Array) -> int:
    """A policy that lets CartPole fall after some forty steps."""
    return int(observation[2] > 0)


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return collect("CartPole-v1", lean, n_transitions=800, gamma=0.9, seed=0)


@pytest.mark.parametrize("parameters", [dict(bootstrap=False, objective="marginal_likelihood"), dict(bootstrap=True)])
@pytest.mark.parametrize("mean", [None, lambda states: 3.0 + states[:, 2]])
def test_one_pass_equals_conditioning_on_the_others(data, parameters, mean):
    selected = GPTD(n_restarts=0, noise_floor=1e-3, mean=mean, **parameters).fit(data.thin(4))
    v = selected.condition(data, inducing_points=40)
    fold = np.arange(data.n_segments) % 3
    values = v.predict_left_out(data, fold)
    for f in range(3):
        test = data[np.flatnonzero(fold == f)]
        expected = v.condition(data[np.flatnonzero(fold != f)]).predict(test.states)
        expected[test.last[test.terminated]] = 0.0
        assert_allclose(values[np.isin(data.segment_of, np.flatnonzero(fold == f))], expected, rtol=1e-4, atol=1e-4)


def test_exact_posterior_conditions_again(data):
    few = data[np.arange(6)]
    v = GPTD(n_restarts=0, bootstrap=False, objective="marginal_likelihood").fit(few)
    fold = np.array([0, 1, 0, 1, 0, 1])
    values = v.predict_left_out(few, fold)
    test = few[np.flatnonzero(fold == 1)]
    expected = v.condition(few[np.flatnonzero(fold == 0)]).predict(test.states)
    expected[test.last[test.terminated]] = 0.0
    assert_allclose(values[np.isin(few.segment_of, np.flatnonzero(fold == 1))], expected)


@pytest.mark.parametrize("fold", [np.zeros(6, dtype=int), np.arange(5)])
def test_refuses_folds_that_leave_nothing(data, fold):
    few = data[np.arange(6)]
    v = GPTD(n_restarts=0, bootstrap=False, objective="marginal_likelihood").fit(few)
    with pytest.raises(ValueError, match="two folds"):
        v.predict_left_out(few, fold)
