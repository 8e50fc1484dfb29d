"""Bounds at which state variables stop: what rows there say, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import DynamicsModel
from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.state_space import StateSpace
from gptd_rl.estimators.dynamics.walls import find_walls
from gptd_rl.types import Array
from tests.estimators.dynamics.cases import BOUNDS, hits_wall, parts
from tests.systems import System, transitions

N = 100


def crash(model_error: float) -> tuple[StateSpace, ActionTransitions, Array]:
    """Positions and speeds; the first row runs into a wall at 1 and stops there, as the model does not expect."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.8, 0.8, size=(N, 2))
    x[0] = 0.95, 0.7
    change = np.column_stack([0.1 * x[:, 1], 0.05 * rng.standard_normal(N)])
    reached = x + change
    reached[0] = 1.0, 0.0
    zeros = np.zeros(N, dtype=np.int64)
    t = ActionTransitions(x, zeros, np.zeros(N), reached, zeros > 0, 0.9, np.full(N, 0.9))
    expected = np.column_stack([change, np.zeros(N)])
    expected[1:, 1] += model_error * rng.standard_normal(N - 1)
    return StateSpace.of(np.concatenate([x, reached]), ([-2.0, -9.0], [1.0, 9.0])), t, expected[:, None]


def test_one_row_shows_a_wall_if_the_model_is_right_elsewhere():
    (wall,) = find_walls(*crash(1e-4))
    assert wall.input == 0 and wall.is_upper and wall.edge == 1.0
    assert_array_equal(wall.is_fixed, [True, True])
    assert_array_equal(wall.values, [1.0, 0.0])


def test_one_row_says_nothing_of_a_state_variable_that_the_model_misses_everywhere():
    (wall,) = find_walls(*crash(0.5))
    assert_array_equal(wall.is_fixed, [True, False])


def test_cosines_and_sines_do_not_stop_at_one():
    angle = np.linspace(-np.pi, np.pi, 41)  # the cosine of the middle one is exactly 1
    space = StateSpace.of(
        np.column_stack([np.cos(angle), np.sin(angle), angle]), (-np.ones(3) * 9, np.array([1, 1, 9]))
    )
    assert space.circles == (0,)
    assert not space.stops_high.any() and not space.stops_low.any()


# -------------------------------------------------------------------------------------- walls of a fitted model


@pytest.mark.parametrize("bounds", [None, BOUNDS])
def test_a_wall_stops_and_sets_the_speed_to_zero(bounds):
    x, a, reached, stopped = hits_wall(500, 0)
    assert stopped.sum() >= 10
    model = DynamicsModel(bounds=bounds).fit(transitions(x, a, reached, 0.0))
    x, a, reached, stopped = hits_wall(2000, 1)
    assert stopped.sum() > 20
    assert_allclose(model.predict(x, a).next_states, reached, atol=1e-3)


def test_one_row_at_a_known_bound_is_enough_and_fixes_nothing_else():
    x, a, reached, stopped = hits_wall(400, 0)
    first = np.flatnonzero(stopped)[0]
    kept = ~stopped | (np.arange(400) == first)
    model = DynamicsModel(bounds=BOUNDS).fit(transitions(x[kept], a[kept], reached[kept], 0.0))
    x, a, reached, stopped = hits_wall(2000, 1)
    found = model.predict(x[stopped], a[stopped]).next_states
    assert_allclose(found[:, 1], -1.0, atol=1e-12)
    assert_allclose(found[:, 2], 0.0, atol=1e-12)
    assert_allclose(found[:, 0], reached[stopped, 0], atol=1e-3)  # y goes on along the wall


def test_states_are_clipped_to_bounds():
    def clipped(x, a):
        return np.column_stack([x[:, 0], np.clip(x[:, 1] + 0.4 * (a - 0.5), -1.0, 1.0)])

    model = DynamicsModel(bounds=([-9.0, -1.0], [9.0, 1.0])).fit(System(clipped).sample(300, 0))
    x, a, reached, *_ = parts(System(clipped).sample(300, 1))
    assert_allclose(model.predict(x, a).next_states, reached, atol=1e-3)
