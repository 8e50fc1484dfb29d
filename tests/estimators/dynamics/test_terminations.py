"""Which states the dynamics model calls terminal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import DynamicsModel
from tests.estimators.dynamics.cases import GOAL, PIT, parts
from tests.systems import straight, transitions


@pytest.mark.parametrize("system", [GOAL, PIT], ids=["sought", "feared"])
def test_ends_and_rewards_on_ending(system):
    model = DynamicsModel().fit(system.sample(400, 0))
    assert model.terminations_ is not None
    assert (model.terminations_.is_sought == (system is GOAL)).all()
    x, a, _, rewards, ended = parts(system.sample(600, 1))
    assert 0.05 < ended.mean() < 0.6
    outcome = model.predict(x, a)
    assert (outcome.terminated == ended).mean() > 0.97
    right = outcome.terminated == ended
    assert_allclose(outcome.rewards[right], rewards[right], atol=1e-6)
    assert model.errors(system.sample(600, 1)).termination == pytest.approx((~right).mean())


def test_without_ends_nothing_is_terminal(smooth):
    assert smooth.terminations_ is None
    assert not smooth.outcomes(np.random.default_rng(0).normal(size=(50, 2))).terminated.any()


def test_ends_alone_are_terminal():
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(40, 2)), rng.integers(2, size=40)
    model = DynamicsModel().fit(transitions(x, a, straight(x, a), -1.0, True))
    assert model.predict(x, a).terminated.all()


def test_sought_ends_lie_within_the_range_of_known_ones(goal):
    ends, asked = goal.terminations_, np.random.default_rng(5).uniform(-3.0, 3.0, size=(400, 2))
    certain, possible = ends.both(asked)
    assert_array_equal(ends(asked), certain)
    within = ((asked >= ends.low) & (asked <= ends.high)).all(axis=1)
    assert_array_equal(certain, possible & within)
    assert certain.any() and (possible & ~certain).any()
    assert ((ends.ended >= ends.low) & (ends.ended <= ends.high)).all()


def test_who_explores_takes_possible_ends_for_ends(goal):
    model, ends = goal.snapshot(), goal.terminations_
    model.terminations_ = replace(ends, high=np.array([0.9, 9.0]))  # as if none beyond had been reached
    data = model.complete()
    doubtful = data.may_end & (data.discounts > 0)
    assert doubtful.any() and not doubtful[:400][np.arange(400), parts(GOAL.sample(400, 0))[1]].any()
    assert_array_equal(data.cautious_discounts(1.0), data.discounts)
    assert_array_equal(data.cautious_discounts(-1.0), np.where(data.may_end, 0.0, data.discounts))
