"""Single transitions: ``r = V(x) − Σ_j w_j V(x'_j) + δ``, where δ is the TD error.

A segment ties its rewards together only through the values of its states. Bootstrapping needs no more than the rows one
by one, so that an off-policy row is a row like any other: the successor of (x, a) is then (x', π(x')), or every action
of π in x' with its probability.

    X = (E − N)Ψ        E picks the state that is left, N the successors with their weights γ·π(a'|x')

Nothing follows a terminal state: V is 0 there, and a transition into one has no successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array, BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class Transitions:
    """Rows of single transitions over a set of points.

    Attributes
    ----------
    points : ndarray of shape (p, n_dims)
        States, or pairs of a state and an action, that rows refer to.
    left : ndarray of shape (n,)
        Which point each transition leaves.
    successors : csr_array of shape (n, p)
        Weights of the points that follow, discounts included.
    rewards : ndarray of shape (n,)
    is_first : ndarray of shape (n,)
        Whether the transition is the first of its segment.
    """

    points: Array
    left: IntArray
    successors: sparse.csr_array
    rewards: Array
    is_first: BoolArray

    def __len__(self) -> int:
        """Number n of transitions."""
        return len(self.rewards)

    @classmethod
    def of(cls, data: Trajectories) -> Transitions:
        """Transitions of trajectories: of states, or of logged pairs with the actions of the evaluated policy."""
        # A segment of one state, or one with a reward at its last state, ends in a regression target V(x) = y instead.
        is_target = data.terminated & ((data.lengths == 1) | (data.rewards[data.last] != 0.0))
        has_row, is_terminal = data.has_transition.copy(), np.zeros(len(data) + 1, dtype=bool)
        has_row[data.last[is_target]] = True
        is_terminal[data.last[data.terminated & ~is_target]] = True
        left = np.flatnonzero(has_row)
        discounts = np.where(is_terminal[left + 1], 0.0, data.discounts[left])
        is_first = np.zeros(len(data), dtype=bool)
        is_first[data.starts] = True
        points, weights = data.states, one_successor(left, discounts, len(data))
        if data.policy_actions is not None:
            points, weights = _policy_successors(data, data.policy_actions, left, discounts)
        return cls(points, left, weights, data.rewards[left], is_first[left])

    @cached_property
    def discounts(self) -> Array:
        """Total weight of what follows each transition, of shape (n,)."""
        return np.asarray(self.successors.sum(axis=1)).reshape(-1)

    @cached_property
    def states(self) -> Array:
        """The state or pair that each transition leaves, of shape (n, n_dims)."""
        return self.points[self.left]

    def difference(self, values: Array) -> Array:
        """V(x) − Σ_j w_j V(x'_j) of values at all points, of shape (n, …)."""
        return values[self.left] - np.asarray(self.successors @ values)

    def difference_transposed(self, rows: Array) -> Array:
        """(E − N)ᵀ·rows, of shape (p, …)."""
        out = -np.asarray(self.successors.T @ rows)
        np.add.at(out, self.left, rows)
        return out

    def select(self, rows: IntArray | slice) -> Transitions:
        """Some of the transitions, over the points that these refer to."""
        left, successors = self.left[rows], self.successors[rows]
        used, place = np.unique(np.concatenate([left, successors.indices]), return_inverse=True)
        n = len(left)
        weights = sparse.csr_array((successors.data, place[n:], successors.indptr), shape=(n, len(used)))
        return Transitions(self.points[used], place[:n], weights, self.rewards[rows], self.is_first[rows])


def one_successor(left: IntArray, discounts: Array, n_points: int) -> sparse.csr_array:
    """The next state follows, with the weight γ; nothing where that is 0."""
    goes_on = discounts > 0.0
    pointers = np.concatenate([[0], np.cumsum(goes_on)])
    return sparse.csr_array((discounts[goes_on], left[goes_on] + 1, pointers), shape=(len(left), n_points))


def _policy_successors(
    data: Trajectories, policy_actions: Array, left: IntArray, discounts: Array
) -> tuple[Array, sparse.csr_array]:
    """Pairs (x', a') for every action a' of the policy in x', with the weights γ·π(a'|x'), behind the logged pairs."""
    n_columns = policy_actions.shape[2] - 1
    goes_on = np.flatnonzero(discounts > 0.0)
    chosen = policy_actions[left[goes_on] + 1]  # [n', n_choices, 1 + n_columns]
    weights = discounts[goes_on, None] * chosen[:, :, 0]
    row, choice = np.nonzero(weights)
    states = data.states[left[goes_on] + 1, : data.n_dims - n_columns]
    points = np.concatenate([data.states, np.column_stack([states[row], chosen[row, choice, 1:]])])
    place = len(data) + np.arange(len(row))
    shape = (len(left), len(points))
    return points, sparse.csr_array((weights[row, choice], (goes_on[row], place)), shape=shape)
