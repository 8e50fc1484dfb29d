"""Transitions (x, a, r, x') with numbered actions: as they were made, and completed with the actions not taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array, BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class ActionTransitions:
    """Transitions (x, a, r, x') of state-action pairs.

    Attributes
    ----------
    states, next_states : ndarray of shape (n, n_dims)
    actions : ndarray of shape (n,)
        Indices.
    rewards : ndarray of shape (n,)
    terminated : ndarray of shape (n,)
        Whether x' is terminal.
    gamma : float
        The largest discount.
    discounts : ndarray of shape (n,)
        γ; 0 where x' is terminal.
    """

    states: Array
    actions: IntArray
    rewards: Array
    next_states: Array
    terminated: BoolArray
    gamma: float
    discounts: Array

    @classmethod
    def of(cls, pairs: Trajectories) -> ActionTransitions:
        """Transitions of trajectories whose states are pairs [x, a] with the action's index in the last column."""
        i = np.flatnonzero(pairs.has_transition)
        is_terminal = np.isin(i + 1, pairs.last[pairs.terminated])
        return cls(
            states=pairs.states[i, :-1],
            actions=pairs.states[i, -1].astype(np.int64),
            rewards=pairs.rewards[i],
            next_states=pairs.states[i + 1, :-1],
            terminated=is_terminal,
            gamma=float(pairs.discounts[i].max(initial=0.0)),
            discounts=pairs.discounts[i] * ~is_terminal,
        )

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.rewards)


@dataclass(frozen=True, eq=False)
class CompletedTransitions:
    """States with the outcome of every action.

    Attributes
    ----------
    states : ndarray of shape (n, n_dims)
    next_states : ndarray of shape (n, n_actions, n_dims)
    rewards : ndarray of shape (n, n_actions)
    reward_std : ndarray of shape (n, n_actions)
        How little is known of the expected rewards; 0 for those that were received.
    discounts : ndarray of shape (n, n_actions)
        γ; 0 where the next state is terminal.
    may_end : ndarray of shape (n, n_actions)
        Whether the next state is terminal, or possibly so.
    terminal_states : ndarray of shape (k, n_dims)
        States whose value is known to be 0.
    gamma : float
        The largest discount.
    n_real : int
        The first so many states were visited; the others are only thought of.
    """

    states: Array
    next_states: Array
    rewards: Array
    reward_std: Array
    discounts: Array
    may_end: BoolArray
    terminal_states: Array
    gamma: float
    n_real: int

    def __len__(self) -> int:
        """Number of states."""
        return len(self.states)

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return int(self.rewards.shape[1])

    def cautious_discounts(self, caution: float) -> Array:
        """Discounts; with a negative caution also 0 where the next state is possibly terminal, (n, n_actions)."""
        return np.where(self.may_end, 0.0, self.discounts) if caution < 0.0 else self.discounts

    def cautious_rewards(self, caution: float) -> Array:
        """Rewards less `caution` standard deviations, by at most the range of rewards, of shape (n, n_actions).

        They are never below the smallest reward. With a negative caution unknown rewards may be larger than all known
        ones: who seeks them explores.
        """
        lowest, range_ = float(self.rewards.min()), float(np.ptp(self.rewards))
        shift = np.clip(-caution * self.reward_std, -range_, range_)
        return np.maximum(self.rewards + shift, lowest)
