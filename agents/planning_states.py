"""States to plan in: visited ones with the outcomes of all actions, and states that the model leads to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gptd_rl.agents.policy_pool import StateValues
from gptd_rl.agents.trial import MARGIN, start_states
from gptd_rl.data.action_transitions import CompletedTransitions
from gptd_rl.estimators.dynamics.completion import complete_rows
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.kernels import Kernel
from gptd_rl.types import Array, IntArray

# States that are far apart: how many at most, from how many, until no residual variance exceeds the tolerance.
MAX_PIVOTS, MAX_CANDIDATES, PIVOT_TOLERANCE = 400, 1500, 1e-6
# Simulated episodes that show states to plan in: how many at a time, their random actions, how often they start again.
N_PARALLEL, RANDOM_SHARE, RESTART = 40, 0.3, 0.01
PERTURBATION = 0.3  # of visited states, in standard deviations


@dataclass(frozen=True)
class StateCounts:
    """How many states of each kind to plan in.

    Attributes
    ----------
    visited, perturbed, rollout, simulated : int
        Visited ones, perturbed ones, of partly random episodes in the model, of the last trial.
    """

    visited: int = 800
    perturbed: int = 300
    rollout: int = 600
    simulated: int = 600


def distant_rows(model: DynamicsModel, kernel: Kernel, rng: np.random.Generator) -> IntArray:
    """Rows of the data whose states are far apart, by pivoted Cholesky factorisation, of shape (k,)."""
    t = model.transitions_
    some = rng.permutation(len(t))[:MAX_CANDIDATES]
    return some[incomplete_cholesky(kernel, t.states[some], MAX_PIVOTS, PIVOT_TOLERANCE).indices]


def planning_states(
    model: DynamicsModel,
    counts: StateCounts,
    distant: IntArray,
    starts: Array,
    simulated: Array | None,
    policies: Sequence[StateValues],
    rng: np.random.Generator,
) -> CompletedTransitions:
    """States to plan in, completed.

    Parameters
    ----------
    model : DynamicsModel
    counts : StateCounts
    distant : ndarray of shape (k,)
        Rows of the data that are far apart.
    starts : ndarray of shape (l, n_dims)
        First states of episodes.
    simulated : ndarray of shape (n, n_dims) or None
        States of the last trial.
    policies : sequence of StateValues
        Who acts in the partly random episodes.
    rng : Generator
    """
    t, space = model.transitions_, model.space_
    rows = np.arange(len(t))
    if len(t) > counts.visited:
        rows = np.unique(np.concatenate([distant[: counts.visited // 2], rng.permutation(len(t))[: counts.visited]]))
    alive = np.concatenate([t.states, t.next_states[~t.terminated]])
    extra = []
    if counts.perturbed and not space.circles:
        x = alive[rng.integers(len(alive), size=counts.perturbed)]
        extra.append(space.perturbed(x, PERTURBATION * alive.std(axis=0) * rng.standard_normal(x.shape)))
    if counts.rollout:
        extra.append(_rollout(model, counts.rollout, alive, starts, policies, rng))
    if counts.simulated and simulated is not None:
        extra.append(rng.permutation(simulated)[: counts.simulated])
    if not extra:
        return complete_rows(model, t, rows, None, rng)
    states = np.concatenate(extra)
    if model.terminations_ is not None:
        states = states[~model.terminations_(states)]
    return complete_rows(model, t, rows, states, rng)


def _rollout(
    model: DynamicsModel,
    n: int,
    alive: Array,
    starts: Array,
    policies: Sequence[StateValues],
    rng: np.random.Generator,
) -> Array:
    """States of partly random episodes in the model, of shape (n, n_dims)."""

    def fresh(k: int) -> Array:
        x = alive[rng.integers(len(alive), size=k)]
        from_start = rng.random(k) < 0.5
        x[from_start] = start_states(model, starts, int(from_start.sum()), rng)
        return x

    x, visited = fresh(N_PARALLEL), []
    owner = rng.integers(max(1, len(policies)), size=N_PARALLEL)
    for _ in range(max(1, n // N_PARALLEL)):
        actions = rng.integers(model.n_actions_, size=N_PARALLEL)
        for number, policy in enumerate(policies):
            mine = np.flatnonzero((owner == number) & (rng.random(N_PARALLEL) >= RANDOM_SHARE))
            if len(mine):
                actions[mine] = policy.greedy(x[mine])
        outcome = model.outcomes(x, model.sample_residuals(len(x), rng), actions)
        again = outcome.terminated | (rng.random(N_PARALLEL) < RESTART)
        again |= model.space_.is_outside(outcome.next_states, MARGIN)
        x = np.where(again[:, None], fresh(N_PARALLEL), outcome.next_states)
        visited.append(x)
    return np.concatenate(visited)
