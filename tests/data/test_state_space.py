"""The space of states: bounds, angles, pairs on a circle; bounds of flattened observations."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.spaces import flat_bounds, flatten, stack
from gptd_rl.data.state_space import MARGIN, StateSpace, check_bounds

BOUNDS = ([-np.pi, -8.0], [np.pi, 8.0])


def spread(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.uniform(-3.0, 3.0, size=50), rng.uniform(-4.0, 4.0, size=50)])


def test_move_wraps_angles_and_difference_goes_the_short_way():
    space = StateSpace.of(spread(), BOUNDS)
    assert space.angles == (0,)
    start, change = np.array([[3.0, 1.0], [-3.0, 1.0]]), np.array([[0.5, 0.25], [-0.5, -0.25]])
    moved = space.move(start, change)
    assert_allclose(moved, [[3.5 - 2 * np.pi, 1.25], [2 * np.pi - 3.5, 0.75]])
    assert_allclose(space.difference(moved, start), change)
    assert_allclose(space.coordinates(start), np.column_stack([np.cos(start[:, 0]), np.sin(start[:, 0]), start[:, 1]]))


def test_move_stays_within_bounds_and_near_the_visited_range():
    states = spread()
    space, free = StateSpace.of(states, BOUNDS), StateSpace.of(states)
    far = np.array([[0.0, 100.0], [0.0, -100.0]])
    lowest, highest = states[:, 1].min(), states[:, 1].max()
    slack = MARGIN * (highest - lowest)
    assert_allclose(space.move(np.zeros((2, 2)), far)[:, 1], [highest + slack, lowest - slack])
    assert_allclose(free.move(np.zeros((2, 2)), far)[:, 1], [highest + slack, lowest - slack])
    tight = StateSpace.of(states, ([-np.inf, lowest], [np.inf, highest + 0.01]))
    assert_allclose(tight.move(np.zeros((2, 2)), far)[:, 1], [highest + 0.01, lowest])
    assert not tight.is_angle.any()


def test_a_pair_of_cosine_and_sine_stays_on_the_circle():
    phi = np.linspace(-3.0, 3.0, 40)
    states = np.column_stack([np.linspace(0.0, 9.0, 40), np.cos(phi), np.sin(phi), phi])
    space = StateSpace.of(states)
    assert space.circles == (1,)
    moved = space.move(states, np.random.default_rng(0).normal(size=states.shape))
    assert_allclose((moved[:, 1:3] ** 2).sum(axis=1), 1.0, rtol=1e-12)
    assert_array_equal(StateSpace.of(np.array([[1.0, 0.0], [1.0, 0.0]])).circles, ())  # a constant is no angle


def test_is_outside_counts_shares_of_the_visited_range():
    space = StateSpace.of(np.array([[0.0, 0.0], [2.0, 1.0]]))
    states = np.array([[2.5, 0.5], [2.1, 0.5], [1.0, -0.2], [1.0, 0.5]])
    assert_array_equal(space.is_outside(states, 0.1), [True, False, True, False])


def test_the_end_of_the_range_is_a_bound_if_it_is_known_or_none_is_known_and_it_was_reached_often():
    column = np.array([-1.0, -1.0, -1.0, 0.3, 0.7, 1.0])[:, None]
    unknown, known = StateSpace.of(column), StateSpace.of(column, ([-5.0], [1.0]))
    assert unknown.stops_low[0] and not unknown.stops_high[0]
    assert not known.stops_low[0] and known.stops_high[0]  # equal steps reach the same state often: no wall at -1
    assert StateSpace.of(column, ([-np.inf], [1.0])).stops_low[0]
    assert not StateSpace.of(np.ones((5, 1))).stops_low[0]  # a constant is stopped by nothing


def test_who_stands_still_at_the_end_of_the_range_is_not_stopped_there():
    before = np.array([0.0, 1.0, 1.0, 1.0, 0.5])[:, None]
    states = np.array([1.0, 1.0, 1.0, 1.0, 0.2])[:, None]  # arrives at 1 once, and stays
    assert StateSpace.of(states).stops_high[0]
    assert not StateSpace.of(states, None, before).stops_high[0]
    assert StateSpace.of(states, ([0.0], [1.0]), before).stops_high[0]  # once is enough at a known bound
    often = np.array([0.0, 0.4, 0.7, 1.0, 0.5])[:, None]
    assert StateSpace.of(states, None, often).stops_high[0]


def test_inputs_with_few_values_are_discrete_and_not_perturbed():
    rng = np.random.default_rng(0)
    states = np.column_stack([rng.integers(0, 4, size=100), rng.normal(size=100)]).astype(float)
    space = StateSpace.of(states)
    assert_array_equal(space.is_discrete, [True, False])
    moved = space.perturbed(states, np.full(states.shape, 0.01))
    assert_array_equal(moved[:, 0], states[:, 0])
    assert (moved[:, 1] > states[:, 1]).all()


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (([0.0], [1.0]), r"two arrays of 2 numbers each; got 1 and 1"),
        (([0.0, 2.0], [1.0, 1.0]), r"ordered; bounds of input 1 are 2 and 1"),
        (([0.0, np.nan], [1.0, 1.0]), r"ordered; bounds of input 1 are nan and 1"),
        (3.0, r"two arrays of 2 numbers each, \(low, high\); got 3.0"),
        (([0.0], [1.0], [2.0]), r"two arrays of 2 numbers each"),
        (("a", "b"), r"two arrays of 2 numbers each"),
    ],
)
def test_check_bounds_says_what_is_wrong(bounds, message):
    with pytest.raises(ValueError, match=message):
        check_bounds(bounds, 2)


SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(np.array([[-1.0, 0.0], [2.0, -5.0]]), np.array([[1.0, 0.5], [3.0, 5.0]]), dtype=np.float64),
    "discrete": spaces.Discrete(3, start=-1),
    "multi": spaces.MultiDiscrete([2, 4]),
    "bits": spaces.MultiBinary(3),
}
SPACES["dict"] = spaces.Dict(b=SPACES["box"], a=SPACES["discrete"])
SPACES["tuple"] = spaces.Tuple((SPACES["multi"], SPACES["dict"], SPACES["bits"]))


@pytest.mark.parametrize("name", SPACES)
def test_flat_bounds_are_those_of_flattened_samples(name):
    space = SPACES[name]
    space.seed(0)
    states = flatten(space, stack(space, [space.sample() for _ in range(400)]))
    low, high = flat_bounds(space)
    assert low.shape == high.shape == (states.shape[1],)
    assert (states >= low).all() and (states <= high).all()
    slack = 0.05 * (high - low)  # 400 samples come near every bound
    assert (states.min(axis=0) <= low + slack).all() and (states.max(axis=0) >= high - slack).all()


def test_flat_bounds_of_an_unbounded_box_are_infinite():
    low, high = flat_bounds(spaces.Box(-np.inf, np.inf, (2,)))
    assert np.isneginf(low).all() and np.isposinf(high).all()
