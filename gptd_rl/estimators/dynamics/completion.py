"""Transitions completed with the outcomes of the actions not taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from gptd_rl.data.action_transitions import ActionTransitions, CompletedTransitions
from gptd_rl.data.state_space import StateSpace
from gptd_rl.estimators.dynamics.outcomes import Outcomes
from gptd_rl.estimators.dynamics.output import OutputModel
from gptd_rl.estimators.dynamics.terminations import Terminations
from gptd_rl.estimators.dynamics.walls import Wall
from gptd_rl.types import Array, BoolArray, IntArray

# Terminal states that are kept with completed transitions.
MAX_TERMINAL = 200


class Completer(Protocol):
    """What completion needs of a model."""

    n_actions_: int
    space_: StateSpace
    outputs_: list[OutputModel]
    terminations_: Terminations | None
    walls_: list[Wall]

    def changes(self, x: Array) -> Array:
        """Expected outputs of all actions."""
        ...

    def outcomes(self, states: Array, residuals: Array | None = None, actions: IntArray | None = None) -> Outcomes:
        """Outcomes of one action in each state, or of all."""
        ...

    def sample_residuals(self, n: int, rng: np.random.Generator) -> Array | None:
        """Noise of transitions."""
        ...


def complete_rows(
    model: Completer, t: ActionTransitions, rows: IntArray, states: Array | None, rng: np.random.Generator
) -> CompletedTransitions:
    """Some rows of the transitions with the outcomes of all actions, and further states.

    The outcome of the action taken stays as it was. Those of the others differ from it by the difference that the
    model predicts: the residual of this transition is added to them, too.
    """
    x, a, reached = t.states[rows], t.actions[rows], t.next_states[rows]
    everyone = np.arange(len(x))
    y = np.column_stack([model.space_.difference(reached, x), t.rewards[rows]])
    residuals = y - model.changes(x)[everyone, a]
    residuals[_is_stopped(model, reached)] = 0.0  # what stopped this action need not stop the others
    residuals[t.terminated[rows], -1] = 0.0  # and its reward on ending is not theirs
    outcome = model.outcomes(x, residuals).with_taken(a, reached, t.rewards[rows], t.terminated[rows])
    if states is not None:
        outcome = outcome + model.outcomes(states, model.sample_residuals(len(states), rng))
        x = np.concatenate([x, states])
    std = np.where(outcome.terminated, 0.0, _reward_std(model, x))
    std[everyone, a] = 0.0
    may_end = _possible_ends(model, outcome)
    may_end[everyone, a] = t.terminated[rows]
    return CompletedTransitions(
        states=x,
        next_states=outcome.next_states,
        rewards=outcome.rewards,
        reward_std=std,
        discounts=np.where(outcome.terminated, 0.0, t.gamma),
        may_end=may_end,
        terminal_states=t.next_states[t.terminated][-MAX_TERMINAL:],
        gamma=t.gamma,
        n_real=len(rows),
    )


def repeat_actions(
    model: Completer, data: CompletedTransitions, n_repeats: int, rng: np.random.Generator
) -> CompletedTransitions:
    """The same states with outcomes of every action taken `n_repeats` times in a row, less often if an end is reached.

    Rewards are discounted sums, and γ is that of the last state: a fit to these transitions makes an error of smoothing
    for every `n_repeats` steps instead of every one. Approximations: `reward_std` is that of the first step alone, and
    only the first state reached can be a possible end.
    """
    n, n_actions = data.rewards.shape
    x = data.next_states.reshape(n * n_actions, -1).copy()
    actions = np.tile(np.arange(n_actions), n)
    rewards, discounts = data.rewards.reshape(-1).copy(), data.discounts.reshape(-1).copy()
    may_end = data.may_end.reshape(-1).copy()
    for _ in range(n_repeats - 1):
        alive = np.flatnonzero(discounts > 0.0)
        if not len(alive):
            break
        outcome = model.outcomes(x[alive], model.sample_residuals(len(alive), rng), actions[alive])
        rewards[alive] += discounts[alive] * outcome.rewards
        discounts[alive] *= np.where(outcome.terminated, 0.0, data.gamma)
        x[alive] = outcome.next_states
        may_end[alive] |= outcome.terminated
    shape = data.rewards.shape
    return replace(
        data,
        next_states=x.reshape(data.next_states.shape),
        rewards=rewards.reshape(shape),
        discounts=discounts.reshape(shape),
        may_end=may_end.reshape(shape),
        gamma=data.gamma**n_repeats,
    )


def _possible_ends(model: Completer, outcome: Outcomes) -> BoolArray:
    """Whether outcomes end, certainly or possibly, of shape (n, n_actions)."""
    if model.terminations_ is None:
        return outcome.terminated.copy()
    reached = outcome.next_states.reshape(-1, outcome.next_states.shape[-1])
    return outcome.terminated | model.terminations_.both(reached)[1].reshape(outcome.terminated.shape)


def _reward_std(model: Completer, x: Array) -> Array:
    """Standard deviation of the expected reward of every action, of shape (n, n_actions)."""
    reward = model.outputs_[-1]
    everyone = [np.full(len(x), action, dtype=np.int64) for action in range(model.n_actions_)]
    return np.stack([reward.epistemic_std(x, actions) for actions in everyone], axis=1)


def _is_stopped(model: Completer, reached: Array) -> BoolArray:
    """Whether states of shape (n, n_dims) are at a wall."""
    groups = [wall.was_hit(reached) for wall in model.walls_]
    return np.asarray(np.any(groups, axis=0)) if groups else np.zeros(len(reached), dtype=bool)
