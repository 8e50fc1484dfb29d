"""Trajectories of states and actions as trajectories of pairs [x, a], on which Q is what V is on states.

A run of the policy to be evaluated is a run of pairs: ``r = Q(x, a) − γQ(x', a')`` with a' the action that the policy
takes next. What is known of a segment's end decides how it ends as a run of pairs:

- **terminated**: the terminal state is worth 0 whatever one does there. It becomes a pair for each action, all of them
  pinned to 0, one behind the other with discount 0. A continuous action has no such list: the last one taken has to do.
- **truncated**: nobody logged what the policy would do in the last state. If the policy is at hand, it is asked; if
  not, the pair before it is the last one.

Under *another* policy than the one that logged the data, the pair behind (x, a) is (x', π(x')), which is no longer the
one that the log goes on with. There the segment is cut: one piece ends, truncated, in (x', π(x')); the next begins in
(x', a'). H is block diagonal over pieces as it is over segments, so nothing else changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.action_types import Box, Discrete
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array


def pair_up(data: Trajectories, actions: Discrete | Box, policy: Any = None) -> Trajectories | None:
    """Turn trajectories with actions into trajectories of pairs; None if no transition is left.

    Parameters
    ----------
    data : Trajectories
        With actions.
    actions : Discrete or Box
        How actions stand in a pair.
    policy : object with `predict`, or callable, optional
        The policy to evaluate. None: the one that logged the data.

    Returns
    -------
    Trajectories or None
        States are pairs, of shape (n_pairs, n_dims + n_columns).
    """
    if data.actions is None:
        raise ValueError(
            "the data have no actions, and Q needs them: collect(…) keeps them; from_episodes(…) takes `actions` [T]."
        )
    if data.rewards[data.last].any():
        raise ValueError("these are thinned data, whose last states are not the terminal ones: fit the whole data.")
    if (data.lengths < 2).all():
        return None
    data = data[data.lengths > 1]
    is_first, is_last, is_terminal = _places(data)
    taken = np.zeros((len(data), actions.n_columns))
    taken[~is_last] = actions.encode(np.asarray(data.actions)[~is_last])
    i = np.flatnonzero(~is_last)
    before_the_end = is_last[i + 1]
    # r = Q(x, a) − γQ(x', a'): nothing follows if x' is terminal.
    logged = _Rows(i, taken[i], data.rewards[i], np.where(is_terminal[i + 1], 0.0, data.discounts[i]))
    ends = np.flatnonzero(is_terminal)
    pinned = actions.at_the_end(taken[ends - 1])  # [n_ends, n_pinned, n_columns]
    n_pinned = pinned.shape[1]
    pins = _Rows.silent(np.repeat(ends, n_pinned), pinned.reshape(-1, actions.n_columns))
    pins.ends[n_pinned - 1 :: n_pinned] = True
    pins.terminated[:] = True
    if policy is None:
        logged.end_at(before_the_end & ~is_terminal[i + 1])
        return _put_together(data, [logged, pins])
    asked = np.flatnonzero(~is_first & ~is_terminal)
    chosen = actions.encode(ask(policy, data.states[asked]))
    differs = is_last[asked] | ~actions.same(chosen, taken[asked])
    cuts = _Rows.silent(asked[differs], chosen[differs])
    cuts.ends[:] = True
    return _put_together(data, [cuts, logged, pins])


def ask(policy: Any, states: Array) -> NDArray[Any]:
    """Actions of a policy in many states, of shape (n_states, …).

    Parameters
    ----------
    policy : object or callable
        With Stable-Baselines3's ``predict(obs, deterministic=…)``, which takes a batch; or a callable of one state, or
        of a batch if it has an attribute `batched` that is true.
    states : ndarray of shape (n_states, n_dims)
    """
    if not len(states):
        return np.zeros(0, dtype=np.int64)
    if hasattr(policy, "predict"):
        answer = policy.predict(states, deterministic=True)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"predict must return (actions, state), as in Stable-Baselines3; got {type(answer).__name__}."
            )
        actions = np.asarray(answer[0])
    elif callable(policy):
        actions = np.asarray(policy(states) if getattr(policy, "batched", False) else [policy(x) for x in states])
    else:
        raise TypeError(
            "expected a policy with predict(obs, deterministic=...) or a callable obs -> action; "
            f"got {type(policy).__name__}."
        )
    if len(np.atleast_1d(actions)) != len(states):
        raise ValueError(f"the policy was asked in {len(states)} states and gave actions of shape {actions.shape}.")
    return actions


def _places(data: Trajectories) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Which states are the first of a segment, the last of one, terminal."""
    masks = np.zeros((3, len(data)), dtype=bool)
    masks[0, data.starts] = masks[1, data.last] = masks[2, data.last[data.terminated]] = True
    return masks[0], masks[1], masks[2]


@dataclass(eq=False)
class _Rows:
    """Some rows of the result, with the state that each comes from."""

    states: NDArray[np.int64]  # where they stand in the data
    actions: Array  # [n, n_columns]
    rewards: Array
    discounts: Array

    def __post_init__(self) -> None:
        self.ends = np.zeros(len(self.states), dtype=bool)  # whether a piece ends here
        self.terminated = np.zeros(len(self.states), dtype=bool)

    @classmethod
    def silent(cls, states: NDArray[np.int64], actions: Array) -> _Rows:
        """Rows that nothing follows."""
        return cls(states, actions, np.zeros(len(states)), np.zeros(len(states)))

    def end_at(self, here: NDArray[np.bool_]) -> None:
        """Cut pieces off here: what was paid on leaving is not known to belong to anything."""
        self.ends |= here
        self.rewards = np.where(here, 0.0, self.rewards)
        self.discounts = np.where(here, 0.0, self.discounts)


def _put_together(data: Trajectories, groups: list[_Rows]) -> Trajectories | None:
    """Rows in the order of the data; of one state, those of earlier groups come first. Pieces without a row go."""

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
    has_transition = terminated | (lengths > 1)
    if has_transition.all():
        return pieces
    return pieces[has_transition] if has_transition.any() else None
