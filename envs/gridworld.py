"""The paper's gridworld: values depend on x only, and every other coordinate is noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from gptd_rl.checks import check_number
from gptd_rl.envs.batched import DynamicsVectorEnv
from gptd_rl.envs.dynamics import Dynamics, ObservationArray
from gptd_rl.envs.rendering import BLUE, GREEN, GREY, INK, Canvas
from gptd_rl.envs.single import DynamicsEnv
from gptd_rl.types import Array, BoolArray

MAX_EPISODE_STEPS = 200
LEFT, RIGHT = 0, 1


@dataclass(frozen=True, kw_only=True)
class LatentGridworld(Dynamics):
    """Walk to the middle column, at any height.

    The state is (x, y, ...), whole numbers from 1 to `size`. The two actions move x left (0) or right (1); every other
    coordinate moves one up or down with probability ½ each. A step against the border has no effect. Every step costs
    1, including the step *into* the middle column, where the episode terminates. Start states are uniform over the
    cells outside the middle column.

    Parameters
    ----------
    size : int
        Cells along each dimension; odd, at least 3.
    n_irrelevant : int
        Number of coordinates beside x. The paper has one, y.
    step_reward : float
        Reward of every step.
    slip : float
        Probability that x moves the other way.
    """

    size: int = 11
    n_irrelevant: int = 1
    step_reward: float = -1.0
    slip: float = 0.0

    def __post_init__(self) -> None:
        check_number("size", self.size, minimum=3, integer=True)
        if self.size % 2 == 0:
            raise ValueError(f"size: expected an odd number, so that there is a middle column, got {self.size}.")
        check_number("n_irrelevant", self.n_irrelevant, minimum=0, integer=True)
        check_number("step_reward", self.step_reward)
        check_number("slip", self.slip, minimum=0.0)
        if self.slip > 1:
            raise ValueError(f"slip: expected a probability, got {self.slip!r}.")

    @property
    def middle(self) -> int:
        """The x of the column that ends the episode."""
        return (self.size + 1) // 2

    @property
    def n_state_dims(self) -> int:
        """Number of coordinates."""
        return 1 + self.n_irrelevant

    @property
    def observation_space(self) -> spaces.Box:
        """Space of one observation, the coordinates as floats."""
        return spaces.Box(1.0, self.size, shape=(self.n_state_dims,), dtype=np.float32)

    @property
    def action_space(self) -> spaces.Discrete:
        """Space of one action: 0 is left, 1 is right."""
        return spaces.Discrete(2)

    @property
    def render_fps(self) -> int:
        """Frames per second slow enough to see each move."""
        return 4

    def sample_states(self, n: int, rng: np.random.Generator) -> Array:
        """Cells drawn uniformly outside the middle column, of shape (n, n_state_dims)."""
        states = rng.integers(1, self.size + 1, size=(n, self.n_state_dims)).astype(np.float64)
        columns = rng.integers(1, self.size, size=n)
        states[:, 0] = columns + (columns >= self.middle)  # steps over the middle
        return states

    def may_start(self, states: Array) -> BoolArray:
        """Whether states of shape (n, n_state_dims) are cells outside the middle column."""
        cells = (states == np.round(states)) & (states >= 1) & (states <= self.size)
        allowed: BoolArray = cells.all(axis=1) & ~self.is_terminal(states)
        return allowed

    def is_terminal(self, states: Array) -> BoolArray:
        """Whether states of shape (n, n_state_dims) are in the middle column."""
        terminal: BoolArray = states[:, 0] == self.middle
        return terminal

    def step(self, states: Array, actions: NDArray[Any], rng: np.random.Generator) -> tuple[Array, Array, BoolArray]:
        """States reached, rewards, and whether the states reached are in the middle column.

        Parameters
        ----------
        states : ndarray of shape (n, n_state_dims)
        actions : ndarray of shape (n,)
        rng : numpy.random.Generator

        Returns
        -------
        states : ndarray of shape (n, n_state_dims)
        rewards : ndarray of shape (n,)
        terminated : ndarray of shape (n,)
        """
        forward = rng.integers(2, size=states.shape)
        forward[:, 0] = actions
        if self.slip > 0:
            forward[:, 0] ^= rng.random(len(states)) < self.slip
        reached = np.clip(states + (2 * forward - 1), 1, self.size)
        return reached, np.full(len(states), self.step_reward), self.is_terminal(reached)

    def observe(self, states: Array) -> ObservationArray:
        """The states themselves, as float32, an array of shape (n, n_state_dims)."""
        return states.astype(np.float32)

    def draw(self, state: Array, action: NDArray[Any] | None) -> Canvas:
        """Picture of the cells with x to the right and y upwards, and further coordinates beside it.

        Parameters
        ----------
        state : ndarray of shape (n_state_dims,)
        action : ndarray, optional
            Not drawn.

        Returns
        -------
        Canvas
        """
        rows = self.size if self.n_irrelevant else 1
        others = state[2:]
        columns = self.size + (1 + len(others) if len(others) else 0)
        canvas = Canvas(columns + 1, rows + 1, scale=max(2, 440 // self.size))
        canvas.rectangle((self.middle - 0.5, 0.5), 1.0, rows, GREEN)
        for x in np.arange(self.size + 1) + 0.5:
            canvas.path([(x, 0.5), (x, rows + 0.5)], 0.06, GREY)
        for y in np.arange(rows + 1) + 0.5:
            canvas.path([(0.5, y), (self.size + 0.5, y)], 0.06, GREY)
        canvas.disc((float(state[0]), float(state[1]) if self.n_irrelevant else 1.0), 0.36, BLUE)
        for x, height in enumerate(others, start=self.size + 2):
            canvas.path([(x, 1.0), (x, rows)], 0.1, GREY)
            canvas.disc((x, float(height)), 0.25, INK)
        return canvas


class LatentGridworldEnv(DynamicsEnv):
    """One gridworld: `gymnasium.make("gptd_rl/LatentGridworld-v0", **constants)`.

    Parameters
    ----------
    render_mode : {"rgb_array", "human"}, optional
    **constants
        Arguments of `LatentGridworld`.
    """

    dynamics_class = LatentGridworld


class LatentGridworldVectorEnv(DynamicsVectorEnv):
    """Many gridworlds: `gymnasium.make_vec("gptd_rl/LatentGridworld-v0", num_envs, **constants)`.

    Parameters
    ----------
    num_envs : int
    max_episode_steps, render_mode, autoreset_mode
        As for `DynamicsVectorEnv`.
    **constants
        Arguments of `LatentGridworld`.
    """

    dynamics_class = LatentGridworld
    default_max_episode_steps = MAX_EPISODE_STEPS
