"""The gridworld's policy in the paper, and its values in closed form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.envs.gridworld import LatentGridworld


@dataclass(frozen=True)
class TowardsMiddle:
    """Agent that walks to the middle column: right when left of it, left when right of it.

    Parameters
    ----------
    task : LatentGridworld
        The paper's by default.

    Examples
    --------
    >>> agent = TowardsMiddle()
    >>> agent.predict([[1.0, 3.0], [8.0, 3.0]])[0]
    array([1, 0])
    >>> agent.value([[1.0, 3.0], [8.0, 3.0]], gamma=0.9)
    array([-4.0951, -1.9   ])
    """

    task: LatentGridworld = field(default_factory=LatentGridworld)

    def predict(
        self,
        observation: ArrayLike,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[NDArray[np.int64], Any]:
        """Actions of the policy.

        Parameters
        ----------
        observation : array-like of shape (n_dims,) or (n, n_dims)
        state, episode_start, deterministic
            Ignored; accepted for compatibility with Stable-Baselines3.

        Returns
        -------
        actions : ndarray of shape () or (n,)
            0 for left, 1 for right.
        state : object
            As given.
        """
        return np.asarray(self._columns(observation) < self.task.middle, dtype=np.int64), state

    def value(self, observations: ArrayLike, gamma: float) -> NDArray[np.float64]:
        """True values of the policy.

        It needs d = abs(x − middle) steps of reward r: V = r (1 − γᵈ) / (1 − γ). Where it may slip with probability p,
        V(d) = r + γ(1 − p) V(d − 1) + γp V(d + 1), V(0) = 0, and the border is a wall.

        Parameters
        ----------
        observations : array-like of shape (n, n_dims)
        gamma : float
            Discount, from 0 to 1.

        Returns
        -------
        ndarray of shape (n,)
        """
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma: expected a number from 0 to 1, got {gamma!r}.")
        steps = np.abs(self._columns(observations) - self.task.middle)
        if self.task.slip > 0:
            return self._values_by_distance(gamma)[steps.astype(np.int64)]
        discounted = steps if gamma == 1 else (1 - gamma**steps) / (1 - gamma)
        return self.task.step_reward * discounted

    def _values_by_distance(self, gamma: float) -> NDArray[np.float64]:
        """V at 0, 1, … steps from the middle column, where x may slip."""
        n, p = self.task.middle - 1, self.task.slip
        distances = np.arange(n)  # less one
        A = np.eye(n)  # [n, n]
        A[distances[1:], distances[:-1]] -= gamma * (1 - p)
        A[distances, np.minimum(distances + 1, n - 1)] -= gamma * p
        return np.r_[0.0, np.linalg.solve(A, np.full(n, self.task.step_reward))]

    def _columns(self, observations: ArrayLike) -> NDArray[np.float64]:
        array = np.asarray(observations, dtype=np.float64)
        if array.shape[-1:] != (self.task.n_state_dims,):
            raise ValueError(
                f"expected observations with {self.task.n_state_dims} entries, got an array of shape {array.shape}."
            )
        return array[..., 0]
