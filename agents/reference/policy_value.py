"""Values of any policy of the pendulum, on a grid of states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from gptd_rl.agents.reference.bellman import check_gamma, solve
from gptd_rl.agents.reference.grid import GridValue, Pendulum, PendulumGrid, task_of
from gptd_rl.checks import check_number
from gptd_rl.envs.dynamics import ObservationArray, checked_actions
from gptd_rl.envs.pendulum import PendulumSwingUp
from gptd_rl.rollouts.policies import as_batch_policy
from gptd_rl.types import Array

_BATCH = 16_384  # observations per call of a policy


def policy_value(
    policy: Any,
    env: Pendulum | None = None,
    *,
    gamma: float = 0.99,
    shape: tuple[int, int] = (400, 400),
    deterministic: bool = True,
    n_samples: int = 16,
) -> GridValue:
    """Values of a policy of the pendulum, by one sparse linear system on a grid.

    Parameters
    ----------
    policy : object with `predict`, callable, or None
        As for `gptd_rl.collect`: Stable-Baselines3's `predict`; a callable from an
        observation to an action, or from batch to batch if it has the attribute `batched = True`;
        None for random actions. With discrete torques, a callable may also return
        the probability of each.
    env : PendulumSwingUp, Env or VectorEnv, optional
        The pendulum; that of `gptd_rl/PendulumSwingUp-v0` by default.
    gamma : float
        Discount, at least 0 and less than 1.
    shape : tuple of 2 ints
        Number of angles and speeds on the grid; the paper's by default.
    deterministic : bool
        Passed to `predict`. False averages over `n_samples` actions in each state.
    n_samples : int
        Number of actions averaged over if not `deterministic`, and by None where torques are continuous.

    Returns
    -------
    GridValue
        Call it with observations.
    """
    task = task_of(env)
    check_gamma(gamma)
    check_number("n_samples", n_samples, minimum=1, integer=True)
    grid = PendulumGrid(task, shape)
    points = grid.points
    if policy is None:
        choices = _random_choices(task, len(points), n_samples)
    else:
        choices = _choices(policy, task, points, deterministic, 1 if deterministic else n_samples)
    transitions = csr_array((len(points), len(points)))
    for probabilities, actions in choices:
        step = grid.interpolation(task.advance(points, task.torques(actions)))
        transitions = transitions + step.multiply(probabilities[:, np.newaxis]).tocsr()
    return GridValue(grid, solve(transitions, task.rewards(points), gamma), gamma)


def _random_choices(task: PendulumSwingUp, n: int, n_samples: int) -> Iterator[tuple[Array, NDArray[Any]]]:
    """Probabilities and actions, in n states, of the policy that takes every action with equal probability.

    Yields
    ------
    probabilities : ndarray of shape (n,)
    actions : ndarray of shape (n,) or (n, 1)
    """
    actions: NDArray[Any] = np.arange(task.n_torques or n_samples)
    if task.n_torques is None:
        actions = (2 * actions[:, np.newaxis] + 1) / n_samples - 1
    for action in actions:
        yield np.full(n, 1 / len(actions)), np.repeat(action[np.newaxis], n, axis=0)


def _choices(
    policy: Any, task: PendulumSwingUp, points: Array, deterministic: bool, n_draws: int
) -> Iterator[tuple[Array, NDArray[Any]]]:
    """Probabilities and actions of a policy in states of shape (n, 2), as in `_random_choices`."""
    n, observations = len(points), task.observe(points)
    for _ in range(n_draws):
        answers = _answers(policy, task, observations, deterministic)
        if answers.shape == (n, task.n_torques) and answers.dtype.kind == "f":
            _check_probabilities(answers)
            for action, probabilities in enumerate(answers.T):
                yield probabilities / n_draws, np.full(n, action)
        else:
            _check_actions(task, answers, n)
            yield np.full(n, 1 / n_draws), answers


def _answers(policy: Any, task: PendulumSwingUp, observations: ObservationArray, deterministic: bool) -> NDArray[Any]:
    """Output of a policy for each observation, an array of shape (n, ...)."""
    answers = []
    for start in range(0, len(observations), _BATCH):
        batch = observations[start : start + _BATCH]
        act = as_batch_policy(
            policy,
            observation_space=task.observation_space,
            action_space=task.action_space,
            n_envs=len(batch),
            seed=None,
            deterministic=deterministic,
        )
        everywhere = np.ones(len(batch), dtype=np.bool_)
        answers.append(np.asarray(act(batch, everywhere, everywhere)))
    return np.concatenate(answers)


def _check_probabilities(probabilities: Array) -> None:
    wrong = (probabilities.min(axis=1) < 0) | ~np.isclose(probabilities.sum(axis=1), 1, atol=1e-4)
    if wrong.any():
        raise ValueError(
            f"expected probabilities that are not negative and add up to 1, got {probabilities[wrong][0].tolist()}."
        )


def _check_actions(task: PendulumSwingUp, actions: NDArray[Any], n: int) -> None:
    expected = (n, *(task.action_space.shape or ()))
    if actions.shape != expected:
        raise ValueError(f"expected actions of shape {expected}, got shape {actions.shape}.")
    for extreme in (actions.min(axis=0), actions.max(axis=0)):
        checked_actions(task.action_space, extreme)
