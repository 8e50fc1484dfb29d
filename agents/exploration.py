"""Exploring where nothing is to be gained by what is known.

Unknown states look as good as the largest value that the rewards so far allow. If no reward was positive and doing
nothing costs nothing, that is 0, and doing nothing attains it: nothing unknown could look better. As in R-MAX
(Brafman & Tennenholtz 2002), whoever explores then gets a reward for states that are far from all visited ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy  # its submodules are imported at first use

from gptd_rl.data.action_transitions import CompletedTransitions
from gptd_rl.estimators.completed import CompletedProblem
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.dynamics.output import unit_relevances
from gptd_rl.types import Array

# An action costs nothing if its reward is nearer to 0 than this share of the range of rewards; in so many states there
# must be one.
NOTHING, ALMOST_ALL = 0.01, 0.9
# States are far from visited ones from this share of the largest distance that one step from a visited state leads to:
# with a fixed distance, a start that lies between two visited states would be new enough to stay there.
FAR = 0.7


def nothing_to_gain(data: CompletedTransitions) -> bool:
    """Whether no reward was positive, and in almost all visited states there is an action that costs nothing."""
    rewards = data.rewards[: data.n_real]
    best = np.quantile(rewards.max(axis=1), 1.0 - ALMOST_ALL)
    return bool(rewards.max() <= 0.0 and best >= -NOTHING * np.ptp(rewards))


def reward_novelty(model: DynamicsModel, problem: CompletedProblem) -> tuple[CompletedProblem, float]:
    """The problem with a reward for leaving the visited states, and the reward.

    It is worth as much as the range of the rewards so far, in every step forever.
    """
    data, space, visited = problem.data, model.space_, model.transitions_.states
    scale = np.sqrt(unit_relevances(space, visited))

    def distances(states: Array) -> Array:
        return np.asarray(space.coordinates(states) * scale)

    following = data.next_states.reshape(-1, space.n_dims)
    nearest = scipy.spatial.cKDTree(distances(visited)).query(distances(following))[0].reshape(data.rewards.shape)
    is_far = nearest > FAR * nearest[: data.n_real].max()
    reward = (float(np.ptp(data.rewards)) or 1.0) / (1.0 - data.gamma)
    sought = replace(
        data, rewards=np.where(is_far, reward, data.rewards), discounts=np.where(is_far, 0.0, data.discounts)
    )
    return replace(problem, data=sought), reward
