"""The dynamics of an environment as pure functions of batches of states.

A `Dynamics` holds constants only. The same functions drive single environments, vector environments, and dynamic
programming on a grid of states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import ArrayLike, NDArray

from gptd_rl.envs.rendering import Canvas
from gptd_rl.types import Array, BoolArray

ObservationArray: TypeAlias = NDArray[np.float32]


class Dynamics(ABC):
    """Transitions, rewards, terminal states, start states, observations and pictures of an environment."""

    @property
    @abstractmethod
    def n_state_dims(self) -> int:
        """Number of entries of a state."""

    @property
    @abstractmethod
    def observation_space(self) -> spaces.Box:
        """Space of one observation."""

    @property
    @abstractmethod
    def action_space(self) -> spaces.Discrete | spaces.Box:
        """Space of one action."""

    @property
    @abstractmethod
    def render_fps(self) -> int:
        """Frames per second at which a film looks natural."""

    @abstractmethod
    def sample_states(self, n: int, rng: np.random.Generator) -> Array:
        """Random start states, an array of shape (n, n_state_dims)."""

    @abstractmethod
    def may_start(self, states: Array) -> BoolArray:
        """Whether an episode may start in each of the states, an array of shape (n,)."""

    @abstractmethod
    def step(self, states: Array, actions: NDArray[Any], rng: np.random.Generator) -> tuple[Array, Array, BoolArray]:
        """States reached, rewards, and whether the states reached are terminal.

        Parameters
        ----------
        states : ndarray of shape (n, n_state_dims)
        actions : ndarray of shape (n, ...)
        rng : numpy.random.Generator

        Returns
        -------
        states : ndarray of shape (n, n_state_dims)
            A new array.
        rewards : ndarray of shape (n,)
        terminated : ndarray of shape (n,)
        """

    @abstractmethod
    def observe(self, states: Array) -> ObservationArray:
        """Observation of each state, a new array of shape (n, n_observation_dims)."""

    @abstractmethod
    def draw(self, state: Array, action: NDArray[Any] | None) -> Canvas:
        """Picture of one state, of shape (n_state_dims,), and the action that led there."""

    def start_states(self, n: int, rng: np.random.Generator, given: ArrayLike | None = None) -> Array:
        """Start states, random or given.

        Parameters
        ----------
        n : int
        rng : numpy.random.Generator
        given : array-like of shape (n, n_state_dims), optional

        Returns
        -------
        ndarray of shape (n, n_state_dims)
        """
        if given is None:
            return self.sample_states(n, rng)
        states = np.array(given, dtype=np.float64)
        if states.shape != (n, self.n_state_dims):
            raise ValueError(
                f"reset option 'state': expected {self.n_state_dims} numbers for each of {n} "
                f"environment(s), got an array of shape {states.shape}."
            )
        refused = states[~self.may_start(states)]
        if len(refused):
            raise ValueError(
                "reset option 'state': expected a state inside the state space that is not "
                f"terminal, got {refused[0].tolist()}."
            )
        return states


def checked_actions(space: Space[Any], actions: Any) -> NDArray[Any]:
    """Actions as an array of the space's type, after a check that they lie inside the space.

    Parameters
    ----------
    space : gymnasium.Space
        Space of one action, or of a batch.
    actions : array-like

    Returns
    -------
    ndarray
        Of the shape of the space.
    """
    array = np.asarray(actions)
    assert space.dtype is not None
    if np.can_cast(array.dtype, space.dtype, casting="same_kind"):  # float64 will do for float32
        array = array.astype(space.dtype, copy=False)
        if space.contains(array):
            return array
    raise ValueError(f"expected an action in {space}, got {actions!r}.")


def checked_observations(observations: ArrayLike, n_dims: int) -> Array:
    """Observations as a float64 array of shape (n, n_dims), after a check that they are finite."""
    seen = np.asarray(observations, dtype=np.float64)
    if seen.ndim != 2 or seen.shape[1] != n_dims:
        raise ValueError(f"expected observations of shape (n, {n_dims}), got {seen.shape}.")
    if not np.isfinite(seen).all():
        raise ValueError("expected finite observations, got some that are not.")
    return seen


def check_options(options: dict[str, Any] | None, known: tuple[str, ...]) -> None:
    """Refuse unknown options of `reset`."""
    for name in options or {}:
        if name not in known:
            raise ValueError(f"reset options: expected some of {list(known)}, got {name!r}.")
