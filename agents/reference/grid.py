"""The pendulum's state space as a grid, with values between the grid points by interpolation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from gptd_rl.checks import check_number
from gptd_rl.envs.pendulum import PendulumSwingUp
from gptd_rl.types import Array

Pendulum: TypeAlias = PendulumSwingUp | gym.Env[Any, Any] | VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class PendulumGrid:
    """Grid over angles, which close to a circle, and speeds, which end at the limits.

    Parameters
    ----------
    task : PendulumSwingUp
    shape : tuple of 2 ints
        Number of angles and of speeds.
    """

    task: PendulumSwingUp
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if len(self.shape) != 2:
            raise ValueError(f"shape: expected the numbers of angles and speeds, got {self.shape}.")
        for count in self.shape:
            check_number("shape", count, minimum=2, integer=True)

    @cached_property
    def points(self) -> Array:
        """The states on the grid, an array of shape (n_points, 2), speeds running fastest."""
        n_angles, n_speeds = self.shape
        angles = -np.pi + 2 * np.pi * np.arange(n_angles) / n_angles
        speeds = np.linspace(-self.task.max_speed, self.task.max_speed, n_speeds)
        return np.stack(np.meshgrid(angles, speeds, indexing="ij"), axis=-1).reshape(-1, 2)

    def interpolation(self, states: Array) -> csr_array:
        """Bilinear interpolation as a matrix: times values on the grid it gives values at states.

        The rows of terminal states are zero: no reward follows.

        Parameters
        ----------
        states : ndarray of shape (n_states, 2)

        Returns
        -------
        csr_array of shape (n_states, n_points)
        """
        n_angles, n_speeds = self.shape
        limit = self.task.max_speed
        i, right = _cells((states[:, 0] + np.pi) * (n_angles / (2 * np.pi)), n_angles)
        j, upper = _cells((states[:, 1] / limit + 1) * ((n_speeds - 1) / 2), n_speeds - 1)
        here, next_angle = (i % n_angles) * n_speeds + j, ((i + 1) % n_angles) * n_speeds + j
        corners = np.stack([here, here + 1, next_angle, next_angle + 1], axis=1)  # [n_states, 4]
        weights = np.stack(
            [(1 - right) * (1 - upper), (1 - right) * upper, right * (1 - upper), right * upper],
            axis=1,
        )  # [n_states, 4]
        weights[self.task.is_terminal(states)] = 0.0
        row_ends = np.arange(0, corners.size + 1, 4, dtype=np.int32)
        size = (len(states), n_angles * n_speeds)
        return csr_array((weights.ravel(), corners.ravel(), row_ends), shape=size)


@dataclass(frozen=True, eq=False)
class GridValue:
    """Value function known on a grid: call it with observations.

    Parameters
    ----------
    grid : PendulumGrid
    values : ndarray of shape (n_points,)
        Value of acting from each point. In the terminal region it continues the values from outside, so that
        interpolation across the border is as accurate as elsewhere.
    gamma : float
        Discount of the values.
    """

    grid: PendulumGrid
    values: Array
    gamma: float

    def __call__(self, observations: ArrayLike) -> Array:
        """Values of observations, 0 where they are terminal.

        Parameters
        ----------
        observations : array-like of shape (n, n_observation_dims)
            As the environment gives them, angles or cosines and sines.

        Returns
        -------
        ndarray of shape (n,)
        """
        return self.at(self.grid.task.states_of(observations))

    def at(self, states: Array) -> Array:
        """Values of states (φ, φ̇) of shape (n, 2), 0 where they are terminal."""
        values: Array = self.grid.interpolation(states) @ self.values
        return values


def _cells(positions: Array, n_cells: int) -> tuple[NDArray[np.int32], Array]:
    """Cells in which positions lie, and how far along in them, from 0 to 1."""
    positions = np.clip(positions, 0, n_cells)
    cells = np.minimum(positions.astype(np.int32), n_cells - 1)
    return cells, positions - cells


def task_of(env: Pendulum | None) -> PendulumSwingUp:
    """The pendulum inside an environment; the registered one for None."""
    if env is None:
        return PendulumSwingUp()
    task = getattr(getattr(env, "unwrapped", None), "dynamics", env)
    if not isinstance(task, PendulumSwingUp):
        raise TypeError(f"env: expected a PendulumSwingUp or an environment of it, got {env!r}.")
    return task
