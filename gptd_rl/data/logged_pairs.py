"""Logged pairs [x, a], each with what the evaluated policy π does there: the data of Q by instruments.

A logged transition (x, a, r, x') says ``r = Q(x, a) − γ Σ_a' π(a'|x') Q(x', a') + TD error``, whoever acted. So pairs
stay in the order in which they were logged, and `Trajectories.policy_actions` holds π's actions in each state with
their weights:

- the probabilities of all discrete actions, if the policy has `action_probabilities(states)`;
- several samples of equal weight, if it answers differently when asked again;
- its one action otherwise; without a policy, the action that was logged. What the policy that made the data would
  have done in the last state of a truncated segment is then unknown, and the transition into it is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gptd_rl.checks import as_floats
from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.state_actions import query_policy, require_actions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array, Policy

# Answers of a policy that answers differently each time.
N_SAMPLES = 8

# By how much probabilities may miss a sum of 1.
SUM_TOLERANCE = 1e-4


def logged_pairs(
    data: Trajectories, actions: DiscreteActions | ContinuousActions, policy: Policy = None
) -> Trajectories | None:
    """Turn trajectories with actions into trajectories of pairs with the policy's actions; None if nothing is left.

    Parameters
    ----------
    data : Trajectories
        With actions.
    actions : DiscreteActions or ContinuousActions
        Encoding of the actions.
    policy : object with `action_probabilities` or `predict`, or callable, optional
        The policy to evaluate. None: the one that made the data.

    Returns
    -------
    Trajectories or None
        States are pairs, of shape (n, n_dims + n_columns); `policy_actions` has shape (n, n_choices, 1 + n_columns):
        weight, then action. The pair of a last state holds an arbitrary action.
    """
    require_actions(data)
    is_taken = data.has_transition | (data.lengths == 1)[data.segment_of]
    taken = np.zeros((len(data), actions.n_columns))
    taken[is_taken] = actions.encode(np.asarray(data.actions)[is_taken])
    if policy is None:
        chosen = np.concatenate([np.ones((len(data), 1)), taken], axis=1)[:, None]
    else:
        chosen = policy_actions(policy, data.states, actions)
    pairs = Trajectories._trusted(
        states=np.column_stack([data.states, taken]),
        rewards=data.rewards,
        discounts=data.discounts,
        lengths=data.lengths,
        terminated=data.terminated,
        policy_actions=chosen,
    )
    return pairs if policy is not None else _without_unknown_ends(pairs)


def policy_actions(policy: Policy, states: Array, actions: DiscreteActions | ContinuousActions) -> Array:
    """Weights and actions of a policy in many states, of shape (n_states, n_choices, 1 + n_columns)."""
    if isinstance(actions, DiscreteActions) and hasattr(policy, "action_probabilities"):
        return _all_actions(_probabilities(policy, states, actions.n))
    first = actions.encode(query_policy(policy, states))
    answers = [first]
    if not actions.equal(first, actions.encode(query_policy(policy, states))).all():
        answers += [actions.encode(query_policy(policy, states)) for _ in range(N_SAMPLES - 1)]
    stacked = np.stack(answers, axis=1)  # [n, n_choices, n_columns]
    return np.concatenate([np.full((*stacked.shape[:2], 1), 1.0 / len(answers)), stacked], axis=2)


def _all_actions(probabilities: Array) -> Array:
    """Every discrete action with its probability, of shape (n_states, n_actions, 2)."""
    numbers = np.broadcast_to(np.arange(float(probabilities.shape[1])), probabilities.shape)
    return np.stack([probabilities, numbers], axis=2)


def _probabilities(policy: Any, states: Array, n_actions: int) -> Array:
    """Probabilities of all actions, of shape (n_states, n_actions), checked."""
    found = as_floats(policy.action_probabilities(states), "action_probabilities")
    if found.shape != (len(states), n_actions):
        raise ValueError(
            f"action_probabilities must have shape ({len(states)}, {n_actions}), one row for each state and one column "
            f"for each action in the data; got {found.shape}. GPTDQ(n_actions=…) says how many actions there are."
        )
    sums = found.sum(axis=1)
    wrong = ~(found >= 0.0).all(axis=1) | ~(np.abs(sums - 1.0) <= SUM_TOLERANCE)
    if (bad := np.flatnonzero(wrong)).size:
        row = np.array2string(found[bad[0]], max_line_width=10_000, threshold=10)  # in one line, however many
        raise ValueError(
            f"action_probabilities must be at least 0 and sum to 1 in each state; in state {bad[0]} they are "
            f"{row}, with sum {sums[bad[0]]:g}."
        )
    return found / sums[:, None]


def _without_unknown_ends(pairs: Trajectories) -> Trajectories | None:
    """End truncated segments at their last logged pair, whose successor is unknown: its reward is dropped."""
    shortened = pairs.lengths - np.where(pairs.terminated, 0, 1)
    has_rows = pairs.terminated | (shortened > 1)
    if not has_rows.any():
        return None
    kept = np.ones(len(pairs), dtype=bool)
    kept[pairs.last[~pairs.terminated]] = False
    kept &= has_rows[pairs.segment_of]
    rewards, discounts = pairs.rewards.copy(), pairs.discounts.copy()
    ends = (pairs.last - 1)[~pairs.terminated & has_rows]
    rewards[ends] = discounts[ends] = 0.0
    assert pairs.policy_actions is not None
    return Trajectories._trusted(
        states=pairs.states[kept],
        rewards=rewards[kept],
        discounts=discounts[kept],
        lengths=shortened[has_rows],
        terminated=pairs.terminated[has_rows],
        policy_actions=pairs.policy_actions[kept],
    )
