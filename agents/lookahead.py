"""Acting by one step of lookahead in a model instead of by Q."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.agents.policy_pool import StateValues
from gptd_rl.estimators.completed import soften
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.greedy import value_range
from gptd_rl.inference.by_action import QFunction
from gptd_rl.types import Array, IntArray


@dataclass(frozen=True, eq=False)
class Lookahead:
    """Q by one step in the model: r + γV(x')."""

    model: DynamicsModel
    q: QFunction
    softness: float

    def __call__(self, states: Array) -> Array:
        """Q of every action, of shape (n, n_actions)."""
        outcome = self.model.outcomes(states)
        flat = outcome.next_states.reshape(-1, states.shape[1])
        t = self.model.transitions_
        values = np.clip(soften(self.q(flat), self.softness), *value_range(t.rewards, t.gamma))
        return np.asarray(outcome.rewards + t.gamma * ~outcome.terminated * values.reshape(outcome.rewards.shape))

    def greedy(self, states: Array) -> IntArray:
        """Index of the best action in each state, of shape (n,)."""
        return self(states).argmax(axis=1)


def q_function(values: StateValues) -> QFunction:
    """The Q-function of a policy, with or without lookahead."""
    found = values.q if isinstance(values, Lookahead) else values
    assert isinstance(found, QFunction)
    return found
