"""What a dynamics model says of transitions: outcomes, and how far off they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gptd_rl.data.action_transitions import ActionTransitions
from gptd_rl.data.state_space import StateSpace
from gptd_rl.types import Array, BoolArray, IntArray

# Standard deviations of V that are a smaller share of the largest |V| possible are none.
NEGLIGIBLE = 1e-3
# Half the width of a 95 % interval, in standard deviations.
WIDTH = 1.96


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Expected outcomes of transitions, of one action in each state or of all actions.

    Attributes
    ----------
    next_states : ndarray of shape (n, n_dims) or (n, n_actions, n_dims)
    rewards : ndarray of shape (n,) or (n, n_actions)
    terminated : ndarray of shape (n,) or (n, n_actions)
        Whether the next state is terminal.
    next_state_std : ndarray of the shape of `next_states`, or None
        Standard deviation of each state variable, noise included.
    reward_std : ndarray of the shape of `rewards`, or None
    """

    next_states: Array
    rewards: Array
    terminated: BoolArray
    next_state_std: Array | None = None
    reward_std: Array | None = None

    def with_std(self, next_state_std: Array, reward_std: Array) -> Outcomes:
        """The same with standard deviations."""
        return replace(self, next_state_std=next_state_std, reward_std=reward_std)

    def with_taken(self, actions: IntArray, next_states: Array, rewards: Array, terminated: BoolArray) -> Outcomes:
        """The same with given outcomes of one action in each state."""
        rows, new = np.arange(len(actions)), replace(self, next_states=self.next_states.copy())
        new = replace(new, rewards=self.rewards.copy(), terminated=self.terminated.copy())
        new.next_states[rows, actions], new.rewards[rows, actions] = next_states, rewards
        new.terminated[rows, actions] = terminated
        return new

    def __add__(self, other: Outcomes) -> Outcomes:
        """Outcomes in the states of both."""
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("next_states", "rewards", "terminated")]
        return Outcomes(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True, eq=False)
class ModelErrors:
    """One-step errors of a dynamics model on data it was not fitted to.

    Attributes
    ----------
    relative : ndarray of shape (n_dims + 1,)
        Root mean square error of the change of each state variable and of the reward, over its standard deviation in
        the data; 0 if it is constant and right.
    median : ndarray of shape (n_dims + 1,)
        The same with the median of the absolute errors.
    coverage : float
        Share of outputs within their 95 % intervals.
    termination : float
        Share of transitions whose end was predicted wrongly.
    value : float
        Median error of r + γV(x') beyond what the model's noise explains, in standard deviations of V over these
        states; NaN without V.
    """

    relative: Array
    median: Array
    coverage: float
    termination: float
    value: float = np.nan

    @classmethod
    def of(
        cls,
        space: StateSpace,
        t: ActionTransitions,
        outcome: Outcomes,
        value: Callable[[Array], Array] | None = None,
        noisy: Outcomes | None = None,
    ) -> ModelErrors:
        """Errors of outcomes with standard deviations; V and noisy outcomes, to say what the errors mean."""
        assert outcome.next_state_std is not None and outcome.reward_std is not None
        errors = np.column_stack([space.difference(outcome.next_states, t.next_states), outcome.rewards - t.rewards])
        std = np.column_stack([outcome.next_state_std, outcome.reward_std])
        size = np.column_stack([space.difference(t.next_states, t.states), t.rewards]).std(axis=0)
        # An error this small is rounding, whatever the model expects of it.
        rounding = 1e-6 * np.where(size > 0, size, 1.0)
        within = np.abs(errors) <= np.maximum(WIDTH * std, rounding)
        unit = np.where(size > 0, size, 1.0)
        return cls(
            relative=np.sqrt((errors**2).mean(axis=0)) / unit,
            median=np.median(np.abs(errors), axis=0) / unit,
            coverage=float(within.mean()),
            termination=float(np.mean(outcome.terminated != t.terminated)),
            value=np.nan if value is None else _value_error(t, outcome, value, noisy),
        )


def _value_error(
    t: ActionTransitions, outcome: Outcomes, value: Callable[[Array], Array], noisy: Outcomes | None
) -> float:
    """Median of |r̂ + γV(x̂') − r − γV(x')| less its median under the model's noise, in standard deviations of V."""

    def target(o: Outcomes) -> Array:
        return np.asarray(o.rewards + t.gamma * ~o.terminated * value(o.next_states))

    predicted, spread = target(outcome), float(value(t.states).std())
    if t.gamma < 1.0:  # where V hardly varies, its errors do not matter
        spread = max(spread, NEGLIGIBLE * float(np.abs(t.rewards).max()) / (1.0 - t.gamma))
    real = t.rewards + t.discounts * value(t.next_states)
    error = float(np.median(np.abs(predicted - real)))
    expected = 0.0 if noisy is None else float(np.median(np.abs(target(noisy) - predicted)))
    return max(0.0, error - expected) / spread if spread > 0.0 else 0.0
