"""Episodes in a dynamics model instead of an environment, all side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gptd_rl.data.state_actions import query_policy
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.dynamics.outcomes import Outcomes
from gptd_rl.types import Array, BoolArray, IntArray, Policy

# States of the running episodes, of shape (n, n_dims), and the numbers of these episodes, of shape (n,) → actions (n,).
Actor = Callable[[Array, IntArray], IntArray]


class Simulator(Protocol):
    """What a simulation asks of a model."""

    n_actions_: int

    def outcomes(self, states: Array, residuals: Array | None = None, actions: IntArray | None = None) -> Outcomes:
        """Outcomes of one action in each state, or of all."""
        ...

    def cautious(self, outcome: Outcomes, states: Array, actions: IntArray, caution: float) -> Array:
        """Rewards less `caution` standard deviations."""
        ...

    def sample_residuals(self, n: int, rng: np.random.Generator) -> Array | None:
        """Noise of transitions."""
        ...


@dataclass(frozen=True, eq=False)
class Simulation:
    """Steps of simulated episodes, one entry per step and running episode, in the order of the steps.

    Attributes
    ----------
    episodes : ndarray of shape (n,)
        Number of the episode.
    states, next_states : ndarray of shape (n, n_dims)
    actions, rewards : ndarray of shape (n,)
    terminated : ndarray of shape (n_episodes,)
        Whether each episode ended in a terminal state.
    n_steps : ndarray of shape (n_episodes,)
        Length of each episode.
    """

    episodes: IntArray
    states: Array
    actions: IntArray
    rewards: Array
    next_states: Array
    terminated: BoolArray
    n_steps: IntArray

    @property
    def returns(self) -> Array:
        """Undiscounted return of each episode, of shape (n_episodes,)."""
        return np.asarray(np.bincount(self.episodes, weights=self.rewards, minlength=len(self.n_steps)))

    def trajectories(self, gamma: float) -> Trajectories:
        """The episodes as segments."""
        order = np.argsort(self.episodes, kind="stable")
        parts = np.split(order, np.cumsum(self.n_steps)[:-1])
        episodes = [
            dict(
                observations=np.concatenate([self.states[i], self.next_states[i[-1:]]]),
                actions=self.actions[i],
                rewards=self.rewards[i],
                terminated=bool(ended),
            )
            for i, ended in zip(parts, self.terminated, strict=True)
        ]
        return Trajectories.from_episodes(episodes, gamma=gamma)


def simulate(
    model: Simulator,
    act: Actor,
    starts: Array,
    n_steps: int,
    rng: np.random.Generator,
    stop: Callable[[Array], BoolArray] | None = None,
    caution: float = 0.0,
) -> Simulation:
    """Run an episode from each of the `starts`, of shape (n_episodes, n_dims).

    Parameters
    ----------
    model : DynamicsModel
    act : callable
        States and numbers of the running episodes → action of each.
    starts : ndarray of shape (n_episodes, n_dims)
    n_steps : int
        Steps of an episode, at most.
    rng : Generator
        Draws the noise.
    stop : callable, optional
        States → whether to stop an episode there, as if it had been truncated.
    caution : float
        Rewards are so many standard deviations smaller than expected, where they are not known.
    """
    x, running = starts, np.arange(len(starts))
    length, terminated = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts), dtype=bool)
    steps = []
    for _ in range(n_steps):
        actions = np.asarray(act(x, running), dtype=np.int64)
        outcome = model.outcomes(x, model.sample_residuals(len(x), rng), actions)
        rewards = model.cautious(outcome, x, actions, caution) if caution else outcome.rewards
        steps.append((running, x, actions, rewards, outcome.next_states))
        length[running] += 1
        terminated[running] = outcome.terminated
        ended = outcome.terminated if stop is None else outcome.terminated | stop(outcome.next_states)
        x, running = outcome.next_states[~ended], running[~ended]
        if not len(x):
            break
    episodes, states, taken, rewards, reached = (np.concatenate(column) for column in zip(*steps, strict=True))
    return Simulation(episodes, states, taken, rewards, reached, terminated, length)


def as_actor(policy: Policy, n_actions: int, rng: np.random.Generator) -> Actor:
    """Any policy as a function of the running episodes; None acts at random."""
    if policy is None:
        return lambda states, _: rng.integers(n_actions, size=len(states))

    def act(states: Array, _: IntArray) -> IntArray:
        actions = np.asarray(query_policy(policy, states))
        is_number = np.isin(actions, np.arange(n_actions))
        if actions.shape != (len(states),) or not is_number.all():
            raise ValueError(f"the policy must choose among the {n_actions} actions 0 to {n_actions - 1} of the model.")
        return actions.astype(np.int64)

    return act
