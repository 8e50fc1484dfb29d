"""Prior means: V(x) = m(x) + f(x), where f is a Gaussian process with mean zero.

H is linear, so a mean only changes the rewards. From ``r = H V + noise`` and ``V = m + f`` follows

    r − H m = H f + noise

which is the same model for f, with the rewards ``r − H m``. Evidence, posterior and intervals of f are those of V; the
posterior mean of V is that of f plus m. Terminal states are worth 0, so m is 0 there, whatever a critic says.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import LARGEST, as_array, as_float, one_line
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array, IntArray

# None and 0 are the same; a function takes states of shape (n, n_dims) and returns values of shape (n,).
Mean: TypeAlias = float | Callable[..., ArrayLike] | None


def check_mean(mean: object) -> None:
    """Refuse what is neither None, nor a finite number, nor a function."""
    if mean is None or callable(mean):
        return
    if isinstance(mean, bool | np.bool_) or not isinstance(mean, Real):
        raise TypeError(f"mean must be None, a number, or a function of states; got {type(mean).__name__}.")
    if not np.isfinite(number := as_float(mean)):
        raise ValueError(f"mean must be finite; got {number}.")
    if abs(number) > LARGEST:
        raise ValueError(f"mean must lie within ±{LARGEST:g}; got {one_line(mean)}. Use larger units of rewards.")


def evaluate_mean(mean: Mean, *arguments: Any) -> Array:
    """Values of a mean, of shape (n,).

    Parameters
    ----------
    mean : None, float or callable
    *arguments : ndarray of shape (n, ...)
        What the function takes: states, or states and actions.

    Returns
    -------
    values : ndarray of shape (n,)
    """
    n = len(arguments[0])
    if mean is None or not callable(mean):
        return np.full(n, 0.0 if mean is None else float(mean))
    if n == 0:
        return np.zeros(0)
    found = as_array(mean(*arguments), "what mean returns")
    try:
        values = found.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"mean must return numbers: {error}.") from None
    if values.shape != (n,):
        raise ValueError(f"mean must return one number for each of {n} states, shape ({n},); got shape {values.shape}.")
    if not np.isfinite(values).all():
        i = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"mean must return finite values; it returned {values[i]} for state {i}, {arguments[0][i]}.")
    return values


def values_at(mean: Mean, data: Trajectories, n_terminal: int = 1) -> Array:
    """Values of a mean at all states of the data, 0 at terminal states.

    Parameters
    ----------
    mean : None, float or callable
    data : Trajectories
    n_terminal : int
        Rows at the end of a terminated segment that are terminal: 1 for states; for pairs of a state and an action, the
        terminal state stands there once for each action.

    Returns
    -------
    values : ndarray of shape (n_states,)
    """
    values = evaluate_mean(mean, data.states)
    values[terminal_rows(data, n_terminal)] = 0.0
    return values


def subtract_mean(data: Trajectories, mean: Mean, n_terminal: int = 1) -> Trajectories:
    """Trajectories whose value function is V − m: the same states, with rewards r − H m.

    Parameters
    ----------
    data : Trajectories
    mean : None, float or callable
    n_terminal : int
        As for `values_at`.

    Returns
    -------
    Trajectories
    """
    if data.policy_actions is not None:
        return replace_rewards(data, _rewards_of_pairs(data, mean))
    return subtract_values(data, values_at(mean, data, n_terminal))


def subtract_values(data: Trajectories, values: Array) -> Trajectories:
    """Trajectories whose value function is V less the given values of their states, of shape (n_states,)."""
    H = TemporalDifference.of(data)
    # r − H m
    return replace_rewards(data, np.where(H.has_row, data.rewards - H.apply(values), 0.0))


def replace_rewards(data: Trajectories, rewards: Array) -> Trajectories:
    """The same trajectories with other rewards."""
    return Trajectories._trusted(
        states=data.states,
        rewards=rewards,
        discounts=data.discounts,
        lengths=data.lengths,
        terminated=data.terminated,
        actions=data.actions,
        policy_actions=data.policy_actions,
    )


def _rewards_of_pairs(data: Trajectories, mean: Mean) -> Array:
    """R − m(x, a) + γ Σ π(a'|x') m(x', a') of logged pairs, of shape (n_states,)."""
    transitions, rewards = Transitions.of(data), np.zeros(len(data))
    rewards[transitions.left] = transitions.rewards - transitions.difference(evaluate_mean(mean, transitions.points))
    return rewards


def terminal_rows(data: Trajectories, n_terminal: int = 1) -> IntArray:
    """Rows of terminal states.

    A segment of one state, or one with a reward at its last state, ends in a regression target V(x) = y instead.
    """
    ends = data.last[data.terminated & (data.lengths > n_terminal) & (data.rewards[data.last] == 0.0)]
    return np.asarray((ends[:, None] - np.arange(n_terminal)).ravel(), dtype=np.int64)
