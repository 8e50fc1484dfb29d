"""Finite sets of actions, numbered from 0."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from gptd_rl.rollouts.actions import ActionSet

BOX = spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_action_set_of_a_discrete_space_counts_from_its_start():
    found = ActionSet.from_space(spaces.Discrete(3, start=-1))
    assert_array_equal(found.actions, [-1, 0, 1])
    assert found.n == 3 and not found.is_continuous
    assert_array_equal(found.indices(np.array([1, -1, 0])), [2, 0, 1])
    assert_array_equal(found.actions[found.indices(np.array([[1], [0]]))], [1, 0])


def test_action_set_of_a_box_takes_the_nearest_candidate():
    found = ActionSet.from_space(BOX, [[-1.0], [0.0], [1.0]])
    assert found.is_continuous and found.actions.dtype == np.float32
    assert_array_equal(found.indices(np.array([[-0.4], [0.6], [-2.0]])), [1, 2, 0])


def test_action_set_from_data():
    assert_array_equal(ActionSet.from_data(np.array([0, 2, 1])).actions, [0, 1, 2])
    assert ActionSet.from_data(np.zeros((3, 1)), [[0.0], [1.0]]).is_continuous


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ActionSet.from_space(spaces.Discrete(2), [[0.0]]), "candidates are for continuous actions"),
        (lambda: ActionSet.from_space(BOX), "is continuous: give candidates"),
        (lambda: ActionSet.from_space(BOX, [[0.0]]), r"two or more actions of shape \(1,\); got \(1, 1\)"),
        (lambda: ActionSet.from_space(BOX, [[0.0], [3.0]]), r"candidate \[3.\] is outside Box"),
        (
            lambda: ActionSet.from_space(spaces.Box(0, 99, (1,), np.uint8), [[1], [257]]),
            r"candidate \[257\.\] is outside Box",
        ),
        (lambda: ActionSet.from_data(np.array([0, 10**6])), "there can be 4096 discrete actions at most; got 1000001"),
        (lambda: ActionSet.from_space(spaces.MultiBinary(2)), "MultiBinary.* not supported: expected Discrete or Box"),
        (lambda: ActionSet.from_data(np.zeros((3, 1))), "continuous: give candidates"),
        (lambda: ActionSet.from_space(spaces.Discrete(2)).indices(np.array([0, 5])), "unknown action 5: there are 2"),
    ],
)
def test_action_set_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
