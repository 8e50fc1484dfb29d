"""A Gaussian-process model of the dynamics: what a transition from (x, a) leads to.

The change of every state variable and the reward are outputs of their own (`output`), each with a kernel
that the evidence selects; which states are terminal is a classification (`terminations`). Angles wrap, states stop at
their bounds, and what happens at a bound is learnt from the rows that were stopped there.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import as_count, as_generator, as_states
from gptd_rl.data.action_transitions import ActionTransitions, CompletedTransitions
from gptd_rl.data.actions import DiscreteActions
from gptd_rl.data.state_space import StateSpace
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.dynamics.completion import complete_rows
from gptd_rl.estimators.dynamics.files import DynamicsFiles
from gptd_rl.estimators.dynamics.outcomes import ModelErrors, Outcomes
from gptd_rl.estimators.dynamics.output import ROUNDING, OutputData, OutputModel
from gptd_rl.estimators.dynamics.simulation import as_actor, simulate
from gptd_rl.estimators.dynamics.terminations import Terminations, fit_terminations
from gptd_rl.estimators.dynamics.transitions import read_transitions
from gptd_rl.estimators.dynamics.walls import find_walls, stopped_rows
from gptd_rl.estimators.params import Parameters
from gptd_rl.estimators.storage import storable
from gptd_rl.exceptions import NotFittedError
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, IntArray, Policy

# A kernel is selected again when the data have grown by this factor, if `warm_start`.
GROWTH = 2
# Rewards are fitted to transitions that did not end, if there are as many.
MIN_CONTINUED = 20
# An output is noisy if its noise is a larger share of its standard deviation.
NOISY = 1e-2


@storable
class DynamicsModel(Parameters, DynamicsFiles):
    """Gaussian-process model of (x, a) → x', r, terminated, for numbered actions; it selects its own kernels.

    Parameters
    ----------
    n_actions : int, optional
        Number of actions, numbered from 0; by default as many as the data show.
    bounds : tuple of 2 array-likes of shape (n_dims,), optional
        Lower and upper bounds of states, as in ``(space.low, space.high)`` of a Box. Inputs with bounds ±π are angles.
    subset_size : int
        Largest number of inducing states of an output.
    max_rows : int
        Transitions to fit to, at most; a random choice of more.
    warm_start : bool
        Keep the kernels of the last fit until the data have doubled.
    random_state : int or None

    Attributes
    ----------
    space_ : StateSpace
        Bounds, angles and visited range.
    outputs_ : list of OutputModel
        Changes of the state variables, then the reward.
    terminations_ : Terminations or None
        None if no transition of the data ended in a terminal state.
    walls_ : list of Wall
        What happens at bounds.
    transitions_ : ActionTransitions
        The data.
    noise_ : ndarray of shape (n_dims + 1,)
        Standard deviation of the noise of each output; 0 where it does not matter.

    Examples
    --------
    >>> import gymnasium as gym, gptd_rl
    >>> env = gym.make("MountainCar-v0")
    >>> data = gptd_rl.collect(env, None, n_transitions=300, gamma=0.99, seed=0)
    >>> box = env.observation_space
    >>> model = DynamicsModel(bounds=(box.low, box.high)).fit(data)
    >>> outcome = model.predict([[-0.5, 0.0]], [2])  # in the valley, push right
    >>> outcome.next_states.round(5), outcome.rewards.round(3), outcome.terminated
    (array([[-0.49918,  0.00082]]), array([-1.]), array([False]))
    """

    def __init__(
        self,
        *,
        n_actions: int | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        subset_size: int = 400,
        max_rows: int = 1500,
        warm_start: bool = False,
        random_state: int | None = 0,
    ) -> None:
        self.n_actions = n_actions
        self.bounds = bounds
        self.subset_size = subset_size
        self.max_rows = max_rows
        self.warm_start = warm_start
        self.random_state = random_state

    # ---------------------------------------------------------------------------------- fitting

    outputs_: list[OutputModel]
    terminations_: Terminations | None
    n_actions_: int
    _n_selected: int

    @one_blas_thread()
    def fit(self, data: Trajectories) -> Self:
        """Select kernels for the outputs and condition them on the data.

        Parameters
        ----------
        data : Trajectories
            With numbered actions.
        """
        for name in ("subset_size", "max_rows"):
            as_count(getattr(self, name), name)
        return self._become(copy(self)._fit(data))

    def _fit(self, data: Trajectories) -> Self:
        transitions, n_actions = read_transitions(data, self.n_actions, self.bounds)
        rng = as_generator(self.random_state)
        n, states = len(transitions), np.concatenate([transitions.states, transitions.next_states])
        space = StateSpace.of(states, self.bounds, np.concatenate([transitions.states, transitions.states]))
        fitted = self.warm_start and self._is_like(space, n_actions)
        select = not fitted or n >= GROWTH * self._n_selected
        earlier: Any = self.outputs_ if fitted else [None] * (transitions.states.shape[1] + 1)
        self.space_ = space
        rows = np.arange(n) if n <= self.max_rows else np.sort(rng.permutation(n)[: self.max_rows])
        groups = stopped_rows(space, transitions.next_states)
        outputs = []
        for y, rows_of, old in zip(self._outputs(transitions).T, self._rows(transitions, rows), earlier, strict=True):
            part = OutputData(space, transitions.states, transitions.actions, y, n_actions, self.subset_size)
            selection = None if old is None else old.selection
            outputs.append(part.fit_robustly(rows_of, groups, selection, select, rng))
        self.transitions_, self.n_actions_, self.n_dims_ = transitions, n_actions, space.n_dims
        self.outputs_ = outputs
        self._n_selected = n if select else self._n_selected
        self.walls_ = find_walls(space, transitions, self.changes(transitions.states))
        self.terminations_ = fit_terminations(
            space,
            transitions.next_states,
            transitions.terminated,
            transitions.rewards,
            transitions.gamma,
            self.subset_size,
            self.terminations_ if fitted and not select else None,
            rng,
        )
        self._set_noise()
        return self

    def _read_other(self, data: Trajectories) -> ActionTransitions:
        """Transitions of further data for the fitted model."""
        self._check_fitted()
        transitions, n_actions = read_transitions(data, self.n_actions, self.bounds)
        self._check_states(transitions.states[:1])
        if n_actions > self.n_actions_:
            raise ValueError(f"the model knows {self.n_actions_} actions; got {n_actions}.")
        return transitions

    def _is_like(self, space: StateSpace, n_actions: int) -> bool:
        """Whether kernels of the last fit are of the same states and actions."""
        if not hasattr(self, "outputs_") or self.n_actions_ != n_actions or self.n_dims_ != space.n_dims:
            return False
        return self.space_.angles == space.angles

    def _outputs(self, t: ActionTransitions) -> Array:
        """Changes of the state and rewards, of shape (n, n_dims + 1)."""
        return np.column_stack([self.space_.difference(t.next_states, t.states), t.rewards])

    def _rows(self, t: ActionTransitions, rows: IntArray) -> list[IntArray]:
        """Rows to which each output is fitted: rewards on ending belong to the terminal states."""
        continued = rows[~t.terminated[rows]]
        return [rows] * t.states.shape[1] + [continued if len(continued) >= MIN_CONTINUED else rows]

    def _set_noise(self) -> None:
        """Noise of each output, and the residuals to draw it from."""
        t = self.transitions_
        y = self._outputs(t)
        std = np.array([output.noise_std for output in self.outputs_])
        rounding = ROUNDING * np.abs(y).max(axis=0)
        self.noise_ = np.where(std > np.maximum(NOISY * y.std(axis=0), rounding), std, 0.0)
        # Rewards on ending are no noise of the other rewards.
        parts = self.outputs_ if self.noise_[-1] > 0 else self.outputs_[:-1]
        rows = np.flatnonzero(np.all([np.isin(np.arange(len(t)), output.rows) for output in parts], axis=0))
        errors = np.stack([o.errors(t.states[rows], t.actions[rows], y[rows, d]) for d, o in enumerate(self.outputs_)])
        self._residuals = np.where(self.noise_ > 0, errors.T, 0.0)  # [k, D + 1]

    # ---------------------------------------------------------------------------------- predicting

    @one_blas_thread()
    def predict(self, states: ArrayLike, actions: ArrayLike, return_std: bool = False) -> Outcomes:
        """Expected outcome of one action in each state.

        Parameters
        ----------
        states : array-like of shape (n, n_dims)
        actions : array-like of shape (n,)
        return_std : bool
            Also the standard deviations of next states and rewards, noise included.

        Returns
        -------
        Outcomes
            With arrays of shape (n, n_dims), (n,) and (n,).
        """
        x = self._check_states(states)
        a = DiscreteActions(self.n_actions_).encode(actions)[:, 0].astype(np.int64)
        if len(a) != len(x):
            raise ValueError(f"expected one action for each of {len(x)} states; got {len(a)}.")
        outcome = self.outcomes(x, actions=a)
        if not return_std:
            return outcome
        std = np.stack([output.std(x, a) for output in self.outputs_], axis=1)
        return outcome.with_std(std[:, :-1], std[:, -1])

    @one_blas_thread()
    def outcomes(self, states: ArrayLike, residuals: Array | None = None, actions: IntArray | None = None) -> Outcomes:
        """Expected outcomes of all actions in each state, or of one.

        Parameters
        ----------
        states : array-like of shape (n, n_dims)
        residuals : ndarray of shape (n, n_dims + 1), optional
            Noise to add to the changes of the state and to the reward, the same for all actions.
        actions : ndarray of shape (n,), optional
            The action of each state; all by default.

        Returns
        -------
        Outcomes
            With arrays of shape (n, n_actions, n_dims), (n, n_actions) and (n, n_actions), or without n_actions.
        """
        x = self._check_states(states)
        change = self.changes(x)
        if actions is None:
            x, residuals = x[:, None], None if residuals is None else residuals[:, None]
        else:
            change = change[np.arange(len(x)), actions]
        if residuals is not None:
            change = change + residuals
        reached = self.space_.move(x, change[..., :-1])
        for wall in self.walls_:
            wall.stop(x + change[..., :-1], reached)
        return self._judge(reached, change[..., -1])

    def changes(self, x: Array) -> Array:
        """Expected outputs of all actions, of shape (n, n_actions, n_dims + 1)."""
        return np.stack([output.mean(x) for output in self.outputs_], axis=2)

    def _judge(self, reached: Array, rewards: Array) -> Outcomes:
        """Which of the states reached are terminal, and rewards within the range of those seen."""
        seen = self.transitions_.rewards
        rewards = np.clip(rewards, seen.min(), seen.max())
        terminated = np.zeros(rewards.shape, dtype=bool)
        if self.terminations_ is not None:
            terminated = self.terminations_(reached.reshape(-1, self.n_dims_)).reshape(rewards.shape)
            rewards[terminated] = self.terminations_.rewards_at(reached[terminated])
        return Outcomes(reached, rewards, terminated)

    def cautious(self, outcome: Outcomes, states: Array, actions: IntArray, caution: float) -> Array:
        """Rewards of outcomes less `caution` standard deviations of what is expected, of shape (n,)."""
        seen, std = self.transitions_.rewards, self.outputs_[-1].epistemic_std(states, actions)
        rewards = np.clip(outcome.rewards - caution * std, seen.min(), seen.max())
        return np.where(outcome.terminated, outcome.rewards, rewards)

    def sample_residuals(self, n: int, rng: np.random.Generator) -> Array | None:
        """Noise of `n` transitions, drawn from the residuals of the data, (n, n_dims + 1); None without noise."""
        if not self.noise_.any() or not len(self._residuals):
            return None
        return np.asarray(self._residuals[rng.integers(len(self._residuals), size=n)])

    def errors(self, data: Trajectories, value: Callable[[Array], Array] | None = None) -> ModelErrors:
        """One-step errors on other data.

        Parameters
        ----------
        data : Trajectories
        value : callable, optional
            V of states of shape (n, n_dims), of shape (n,): to say what the errors mean for values.
        """
        t = self._read_other(data)
        outcome = self.predict(t.states, t.actions, return_std=True)
        residuals = self.sample_residuals(len(t), np.random.default_rng(0))
        noisy = None if residuals is None else self.outcomes(t.states, residuals, t.actions)
        return ModelErrors.of(self.space_, t, outcome, value, noisy)

    # ---------------------------------------------------------------------------------- completing, simulating

    @one_blas_thread()
    def complete(
        self, data: Trajectories | None = None, states: ArrayLike | None = None, seed: int = 0
    ) -> CompletedTransitions:
        """Transitions with the outcomes of the actions not taken.

        The outcome of the action taken stays as it was. Those of the others differ from it by the difference that the
        model predicts, so that its errors, and the noise of this transition, are the same for all actions.

        Parameters
        ----------
        data : Trajectories, optional
            The fitted data by default.
        states : array-like of shape (k, n_dims), optional
            Further states, with predicted outcomes of all actions.
        seed : int
            Of the noise of outcomes in the further states.
        """
        self._check_fitted()
        t = self.transitions_ if data is None else self._read_other(data)
        more = None if states is None else self._check_states(states)
        return complete_rows(self, t, np.arange(len(t)), more, as_generator(seed))

    @one_blas_thread()
    def simulate(
        self, policy: Policy, starts: ArrayLike, n_steps: int, *, seed: int | None = 0, gamma: float | None = None
    ) -> Trajectories:
        """Episodes of a policy in the model: as `collect`, but without an environment.

        Parameters
        ----------
        policy : callable, object with `predict`, or None
            As for `collect`; None acts at random.
        starts : array-like of shape (n_episodes, n_dims)
            First states.
        n_steps : int
            Steps of an episode, at most.
        seed : int or None
            Of the noise, and of random actions.
        gamma : float, optional
            Discount; that of the fitted data by default.

        Returns
        -------
        Trajectories
            One segment per episode.
        """
        x, rng = self._check_states(starts), as_generator(seed)
        if not len(x):
            raise ValueError("simulate needs at least one state to start from.")
        act = as_actor(policy, self.n_actions_, rng)
        episodes = simulate(self, act, x, as_count(n_steps, "n_steps"), rng)
        return episodes.trajectories(self.transitions_.gamma if gamma is None else gamma)

    def snapshot(self) -> Self:
        """A copy that later calls of `fit` leave as it is."""
        return copy(self)

    # ---------------------------------------------------------------------------------- checks

    def _check_states(self, states: ArrayLike) -> Array:
        self._check_fitted()
        x = as_states(states)
        if x.shape[1] != self.n_dims_:
            raise ValueError(f"the model knows states of {self.n_dims_} numbers; got {x.shape[1]}.")
        return x

    def _check_fitted(self) -> None:
        if not hasattr(self, "outputs_"):
            raise NotFittedError("this DynamicsModel has not been fitted yet: call fit(data) first.")

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there are outputs to ask."""
        return hasattr(self, "outputs_")

    def _describe_fit(self) -> str:
        """One line about what was fitted; empty if nothing was."""
        if not hasattr(self, "outputs_"):
            return ""
        return f"fitted to {len(self.transitions_)} transitions of {self.n_dims_} state variables"
