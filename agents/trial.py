"""Trials of policies in a model of the dynamics: where episodes start, and what policies return from there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptd_rl.agents.policy_pool import StateValues
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.dynamics.simulation import Simulation, simulate
from gptd_rl.types import Array, IntArray

# Leaving the visited range by this share of it ends a simulated episode; the rest of it earns the smallest reward.
MARGIN = 0.05


def start_states(model: DynamicsModel, starts: Array, n: int, rng: np.random.Generator) -> Array:
    """States where episodes may start, of shape (n, n_dims): a smoothed bootstrap of those that did.

    Few episodes have started so far, and a policy should be tried where the next ones may start. The bandwidth is
    Silverman's.
    """
    k, n_dims = starts.shape
    x = starts[rng.integers(k, size=n)]
    width = (4.0 / ((n_dims + 2.0) * k)) ** (1.0 / (n_dims + 4.0)) * starts.std(axis=0)
    moved = model.space_.perturbed(x, width * rng.standard_normal(x.shape))
    if model.space_.circles:
        return moved
    near = np.clip(moved, starts.min(axis=0) - width, starts.max(axis=0) + width)
    return np.where(model.space_.is_angle, moved, near)


def simulated_returns(
    model: DynamicsModel,
    policies: Sequence[StateValues],
    starts: Sequence[Array],
    n_steps: int,
    rng: np.random.Generator,
    caution: float = 0.0,
) -> tuple[list[Array], Simulation]:
    """Undiscounted returns of policies in the model, for each of them from states of shape (k, n_dims) an array (k,).

    Whoever leaves the visited range, where the model knows nothing, earns the smallest reward until the end.
    """
    owners = np.repeat(np.arange(len(policies)), [len(own) for own in starts])

    def act(states: Array, episodes: IntArray) -> IntArray:
        actions, owner = np.zeros(len(states), dtype=np.int64), owners[episodes]
        for number, policy in enumerate(policies):
            mine = np.flatnonzero(owner == number)
            if len(mine):
                actions[mine] = policy.greedy(states[mine])
        return actions

    space, worst = model.space_, min(0.0, float(model.transitions_.rewards.min()))
    x = np.concatenate(starts)
    trial = simulate(model, act, x, n_steps, rng, lambda states: space.is_outside(states, MARGIN), caution)
    left = ~trial.terminated & (trial.n_steps < n_steps)
    returns = trial.returns + np.where(left, (n_steps - trial.n_steps) * worst, 0.0)
    return [returns[owners == number] for number in range(len(policies))], trial
