"""Values of a target policy, from Q."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from gptd_rl import Trajectories
from gptd_rl.evaluation.off_policy import TargetValue


class Wild:
    """A Q-function with impossible values, but for the first state."""

    def predict(self, states, actions):
        return np.where(np.arange(len(states)) == 0, 5.0, 300.0)

    def confidence_interval(self, states, actions, level):
        middle = self.predict(states, actions)
        return middle - 2.0, middle + 6.0


def test_target_value_is_clipped_to_possible_returns():
    data = Trajectories.from_episodes([dict(observations=np.zeros((4, 1)), rewards=np.ones(3), terminated=True)], 0.9)
    value = TargetValue(Wild(), lambda states: None, data)  # type: ignore[arg-type]
    assert_allclose(value.predict(np.zeros((2, 1))), [5.0, 10.0])
    lower, upper = value.confidence_interval(np.zeros((2, 1)))
    assert_allclose(lower, [3.0, 0.0])
    assert_allclose(upper, [10.0, 10.0])  # an impossible interval becomes the whole range
