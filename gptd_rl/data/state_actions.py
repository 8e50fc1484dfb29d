"""Trajectories of states and actions as trajectories of pairs [x, a], so that Q of pairs is learnt like V of states.

A run of the evaluated policy is a run of pairs: `r = Q(x, a) − γQ(x', a')` with a' the policy's next action. The end
of a segment decides how the run of pairs ends:

- **terminated**: Q(x_L, ·) = 0. The terminal state becomes one pair per action, each with a row Q(x_L, a) = 0 and
  discount 0 (*terminal rows*). Continuous actions cannot be listed, so the last action taken is used.
- **truncated**: the policy's action in the last state was not recorded. If the policy is given, it is queried there;
  otherwise the run ends at the pair before.

Under *another* policy than the one that made the data, the pair (x', π(x')) follows (x, a), which may differ from the
recorded one. There the segment is cut: one piece ends, truncated, in (x', π(x')); the next starts in (x', a'). H is
block diagonal over pieces as over segments.

Regression targets (`Trajectories.from_values` with actions) become one row Q(x, a) = y each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gptd_rl.checks import as_array
from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array, BoolArray, IntArray, Policy

F = TypeVar("F", bound=Callable[..., Any])


def to_state_actions(
    data: Trajectories, actions: DiscreteActions | ContinuousActions, policy: Policy = None
) -> Trajectories | None:
    """Turn trajectories with actions into trajectories of pairs; None if no transition is left.

    Parameters
    ----------
    data : Trajectories
        With actions.
    actions : DiscreteActions or ContinuousActions
        Encoding of the actions.
    policy : object with `predict`, or callable, optional
        The policy to evaluate. None: the one that made the data.

    Returns
    -------
    Trajectories or None
        States are pairs, of shape (n_pairs, n_dims + n_columns).
    """
    require_actions(data)
    single = data.lengths == 1
    runs = None if single.all() else _run_pairs(data[~single], actions, policy)
    if not single.any():
        return runs
    targets = _target_pairs(data[single], actions)
    return targets if runs is None else runs + targets


def require_actions(data: Trajectories) -> None:
    """Refuse data without actions."""
    if data.actions is None:
        raise ValueError(
            "the data have no actions, and Q needs them: collect(…) keeps them; from_episodes(…) takes `actions` [T]."
        )


def _target_pairs(data: Trajectories, actions: DiscreteActions | ContinuousActions) -> Trajectories:
    """Regression targets: a row Q(x, a) = y each."""
    assert data.actions is not None
    return replace(data, states=np.column_stack([data.states, actions.encode(data.actions)]), actions=None)


def _run_pairs(data: Trajectories, actions: DiscreteActions | ContinuousActions, policy: Policy) -> Trajectories | None:
    """Pairs of segments with transitions."""
    if data.rewards[data.last].any():
        raise ValueError("these are thinned data, whose last states are not the terminal ones: fit the whole data.")
    taken = np.zeros((len(data), actions.n_columns))
    taken[data.has_transition] = actions.encode(np.asarray(data.actions)[data.has_transition])
    logged, terminal = _logged_pairs(data, taken), _terminal_rows(data, actions, taken)
    if policy is None:
        _end_before_truncation(data, logged)
        return _join(data, [logged, terminal])
    return _join(data, [_policy_ends(data, actions, taken, policy), logged, terminal])


def recorded_actions(data: Trajectories) -> NDArray[Any]:
    """Actions of transitions and of regression targets, without the zeros in last states, of shape (n, …)."""
    if data.actions is None:
        return np.zeros(0, dtype=np.int64)
    return data.actions[data.has_transition | (data.lengths == 1)[data.segment_of]]


def batched_policy(method: F) -> F:
    """Mark a method as a policy of many states at a time, for `collect` and for `fit(data, policy=…)`."""
    method.batched = True  # type: ignore[attr-defined]
    return method


def copy_action(action: Any) -> Any:
    """One action, copied unless it is a number: a policy may return the same array each time."""
    return action if isinstance(action, int | float | np.generic) else as_array(action, "actions of the policy")


def query_policy(policy: Policy, states: Array) -> NDArray[Any]:
    """Actions of a policy in many states, of shape (n_states, …).

    Parameters
    ----------
    policy : object or callable
        With Stable-Baselines3's `predict(obs, deterministic=…)`, which takes a batch; or a callable of one state, or
        of a batch if it has an attribute `batched` that is true.
    states : ndarray of shape (n_states, n_dims)
    """
    if not len(states):
        return np.zeros(0, dtype=np.int64)
    if policy is not None and hasattr(policy, "predict"):
        answer: Any = policy.predict(states, deterministic=True)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"predict must return (actions, state), as in Stable-Baselines3; got {type(answer).__name__}."
            )
        actions = as_array(answer[0], "actions of the policy")
    elif callable(policy):
        answers = policy(states) if getattr(policy, "batched", False) else [copy_action(policy(x)) for x in states]
        actions = as_array(answers, "actions of the policy")
    else:
        raise TypeError(
            "expected a policy with predict(obs, deterministic=...) or a callable obs -> action; "
            f"got {type(policy).__name__}."
        )
    if len(np.atleast_1d(actions)) != len(states):
        raise ValueError(f"the policy was asked in {len(states)} states and gave actions of shape {actions.shape}.")
    return actions


@dataclass(eq=False)
class _Pairs:
    """Some of the pairs, in any order of the states they come from."""

    states: IntArray  # index of the state in the data
    actions: Array  # [n, n_columns]
    rewards: Array
    discounts: Array
    ends: BoolArray  # whether a piece ends with this pair
    terminated: BoolArray

    @classmethod
    def final(cls, states: IntArray, actions: Array, ends: BoolArray, terminated: bool) -> _Pairs:
        """Pairs that nothing follows."""
        nothing = np.zeros(len(states))
        return cls(states, actions, nothing, nothing, ends, np.full(len(states), terminated))


def _is_terminal(data: Trajectories) -> BoolArray:
    terminal = np.zeros(len(data), dtype=bool)
    terminal[data.last[data.terminated]] = True
    return terminal


def _logged_pairs(data: Trajectories, taken: Array) -> _Pairs:
    """The recorded pairs: r = Q(x, a) − γQ(x', a'), where nothing follows if x' is terminal."""
    i = np.flatnonzero(data.has_transition)
    discounts = np.where(_is_terminal(data)[i + 1], 0.0, data.discounts[i])
    no = np.zeros(len(i), dtype=bool)
    return _Pairs(i, taken[i], data.rewards[i], discounts, no, no)


def _terminal_rows(data: Trajectories, actions: DiscreteActions | ContinuousActions, taken: Array) -> _Pairs:
    """Q(x_L, a) = 0 in every terminal state; a segment ends with the last of its terminal rows."""
    ends = data.last[data.terminated]
    columns = actions.terminal_actions(taken[ends - 1])  # [n_ends, n_rows_each, n_columns]
    n_each = columns.shape[1]
    is_last = np.tile(np.arange(n_each) == n_each - 1, len(ends))
    return _Pairs.final(np.repeat(ends, n_each), columns.reshape(-1, actions.n_columns), is_last, terminated=True)


def _end_before_truncation(data: Trajectories, logged: _Pairs) -> None:
    """End truncated segments at their last recorded pair, whose successor is unknown: its reward is dropped."""
    following = logged.states + 1
    here = ~data.has_transition[following] & ~_is_terminal(data)[following]
    logged.ends = logged.ends | here
    logged.rewards = np.where(here, 0.0, logged.rewards)
    logged.discounts = np.where(here, 0.0, logged.discounts)


def _policy_ends(
    data: Trajectories, actions: DiscreteActions | ContinuousActions, taken: Array, policy: Policy
) -> _Pairs:
    """Pairs (x', π(x')) that end a piece: in truncated states, and where π differs from the recorded action."""
    queried = ~_is_terminal(data)
    queried[data.starts] = False
    i = np.flatnonzero(queried)
    chosen = actions.encode(query_policy(policy, data.states[i]))
    differs = ~data.has_transition[i] | ~actions.equal(chosen, taken[i])
    n = int(differs.sum())
    return _Pairs.final(i[differs], chosen[differs], np.ones(n, dtype=bool), terminated=False)


def _join(data: Trajectories, groups: list[_Pairs]) -> Trajectories | None:
    """Pairs in the order of the data, and of the groups within one state; pieces without a row are left out."""

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(group, name) for group in groups])[order]

    order = np.argsort(np.concatenate([group.states for group in groups]), kind="stable")
    ends = np.flatnonzero(all_of("ends"))
    lengths, terminated = np.diff(ends, prepend=-1), all_of("terminated")[ends]
    pieces = Trajectories._trusted(
        states=np.column_stack([data.states[all_of("states")], all_of("actions")]),
        rewards=all_of("rewards"),
        discounts=all_of("discounts"),
        lengths=lengths.astype(np.int64),
        terminated=terminated,
        actions=None,
    )
    has_rows = terminated | (lengths > 1)
    if has_rows.all():
        return pieces
    return pieces[has_rows] if has_rows.any() else None
