"""The value from the start, and how well it is known."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from gptd_rl.data.spaces import flattener, stack
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.evaluation.environments import Environment
from gptd_rl.report.records import Interval, StartReturn, ValueFunction
from gptd_rl.seeds import STARTS, derived_seed
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array

N_STARTS = 500  # resets over which V is averaged


@dataclass(frozen=True, eq=False)
class Starts:
    """Where the episodes of the data start.

    Attributes
    ----------
    returns : ndarray of shape (n_segments,)
        Discounted return of each, plus V of what was cut off.
    values : ndarray of shape (n_segments,)
        V of its first state, learnt without it.
    """

    returns: Array
    values: Array

    @classmethod
    def of(cls, data: Trajectories, left_out: Array) -> Starts:
        """The starts of `data`, with V of each state learnt without its episode."""
        returns, first = Returns.of(data), data.starts
        return cls(returns.y[first] + returns.z[first] * left_out[returns.end[first]], left_out[first])


def start_states(env: Environment, seed: int) -> Array:
    """Start states of `N_STARTS` resets, of shape (n, n_dims); none if the environment cannot be copied."""
    if env.template_env is None:
        return np.zeros((0, 0))
    copied, space = copy.deepcopy(env.template_env), env.observation_space
    first = derived_seed(seed, STARTS)
    observations = [copied.reset(seed=first if i == 0 else None)[0] for i in range(N_STARTS)]
    return np.asarray(flattener(space)(stack(space, observations)), dtype=np.float64)


def start_return(value: ValueFunction, starts: Starts, states: Array, returns: Array) -> StartReturn:
    """Value from the start, and the returns of fresh episodes; the unit of all intervals is the episode.

    The value is the mean of V at many start states, corrected by its mean error at the episodes seen, learnt without
    them: what V explains of the difference between start states does not scatter.

    Parameters
    ----------
    value : ValueFunction
    starts : Starts
    states : ndarray of shape (n, n_dims)
        From `start_states`.
    returns : ndarray of shape (n_episodes,)
        Of fresh episodes, undiscounted.
    """
    discounted = student(starts.returns)
    if len(states):
        v = value.predict(states)
        discounted = student(starts.returns - starts.values + v.mean(), v.var(ddof=1) / len(states))
    return StartReturn(
        value=discounted,
        returns=student(returns) if len(returns) > 1 else None,
        mean=float(returns.mean()) if len(returns) else np.nan,
        std=float(returns.std()) if len(returns) else np.nan,
        n_episodes=len(returns),
    )


def student(sample: Array, variance: float = 0.0) -> Interval:
    """Mean of independent numbers with Student's 95 % interval; `variance` is that of an offset that they share."""
    mean, n = float(sample.mean()), len(sample)
    half = float(stdtrit(n - 1, 0.975) * np.sqrt(sample.var(ddof=1) / n + variance)) if n > 1 else np.inf
    return Interval(mean, mean - half, mean + half)
