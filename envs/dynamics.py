"""What an environment is made of, without Gymnasium's bookkeeping: a few pure functions over batches.

A :class:`Task` holds constants only. States, actions and random generators go in and come out, so the
same functions drive one environment, a batch of them, and dynamic programming on a grid of states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import ArrayLike, NDArray

from gptd_rl.envs.rendering import Canvas

FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
Observations: TypeAlias = NDArray[np.float32]


class Task(ABC):
    """Dynamics, rewards, ends, starts and looks of an environment."""

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
        """Frames per second at which a film of the task looks natural."""

    @abstractmethod
    def sample_states(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Random start states, an array of shape (n, n_state_dims)."""

    @abstractmethod
    def may_start(self, states: FloatArray) -> BoolArray:
        """Whether an episode may start in each of the states, an array of shape (n,)."""

    @abstractmethod
    def step(
        self, states: FloatArray, actions: NDArray[Any], rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
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
    def observe(self, states: FloatArray) -> Observations:
        """What the agent sees of each state, a new array of shape (n, n_observation_dims)."""

    @abstractmethod
    def draw(self, state: FloatArray, action: NDArray[Any] | None) -> Canvas:
        """Picture of one state, of shape (n_state_dims,), and the action that led there."""

    def start_states(self, n: int, rng: np.random.Generator, given: ArrayLike | None = None) -> FloatArray:
        """Start states, drawn at random or as the caller wants them.

        Parameters
        ----------
        n : int
        rng : numpy.random.Generator
        given : array_like of shape (n, n_state_dims), optional

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
    actions : array_like

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


def check_options(options: dict[str, Any] | None, known: tuple[str, ...]) -> None:
    """Refuse options of ``reset`` that nobody would read."""
    for name in options or {}:
        if name not in known:
            raise ValueError(f"reset options: expected some of {list(known)}, got {name!r}.")


def check_number(
    name: str,
    value: object,
    *,
    minimum: float = -np.inf,
    above: float = -np.inf,
    integer: bool = False,
) -> None:
    """Refuse what is not a finite number, or too small a one.

    Parameters
    ----------
    name : str
        The keyword, for the message.
    value : object
    minimum : float
        Smallest value allowed.
    above : float
        Largest value just refused.
    integer : bool
        Whether the number must be whole.
    """
    kind = Integral if integer else Real
    if not isinstance(value, bool) and isinstance(value, kind):
        number = float(value)
        if np.isfinite(number) and number >= minimum and number > above:
            return
    what = "an integer" if integer else "a finite number"
    if minimum > -np.inf:
        what += f" >= {minimum:g}"
    if above > -np.inf:
        what += f" > {above:g}"
    raise ValueError(f"{name}: expected {what}, got {value!r}.")
