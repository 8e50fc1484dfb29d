"""Values of all actions in a state: to compare, to choose from, to sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.estimators import pairs
from gptd_rl.estimators.base import Estimator
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array

F = TypeVar("F", bound=Callable[..., Any])


def _batched(method: F) -> F:
    """Mark a method as a policy of many states at a time, for `collect` and for `fit(data, policy=…)`."""
    method.batched = True  # type: ignore[attr-defined]
    return method


class ActionValues(Estimator):
    """The methods of `GPTDQ` that ask for every action."""

    candidates: ArrayLike | None

    @overload
    def q_values(self, states: ArrayLike, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def q_values(self, states: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...

    @one_blas_thread()
    def q_values(self, states: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Posterior mean of Q for every action, or for every one of the `candidates`.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        return_std : bool

        Returns
        -------
        mean : ndarray of shape (m, n_actions)
        std : ndarray of shape (m, n_actions)
            Only if `return_std`.
        """
        rows, shape = self._all_pairs(states)
        answer = self._moments(rows, return_std)
        if isinstance(answer, tuple):
            return answer[0].reshape(shape), answer[1].reshape(shape)
        return answer.reshape(shape)

    @_batched
    def greedy_actions(self, states: ArrayLike) -> NDArray[Any]:
        """The action with the largest posterior mean of Q in each state, the first of several.

        This method is a policy: ``collect(env, q.greedy_actions, …)``, ``fit(data, policy=q.greedy_actions)``.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)

        Returns
        -------
        actions : ndarray of shape (m, ...)
            Numbers of discrete actions; else the best of the `candidates`.
        """
        best = self.q_values(states).argmax(axis=1)
        return self._space.decode(self._choices()[best])

    @one_blas_thread()
    def sample(self, states: ArrayLike, n: int = 1, seed: int | np.random.Generator | None = None) -> Array:
        """Joint posterior samples of Q over all these states and all actions.

        Acting greedily in one sample at a time is Thompson sampling.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        n : int
            Number of samples.
        seed : int or Generator, optional

        Returns
        -------
        values : ndarray of shape (n, m, n_actions)
        """
        rows, shape = self._all_pairs(states)
        values = self._sample(rows, n, seed, f"{shape[0]} states and {shape[1]} actions")
        return values.reshape(n, *shape)

    @property
    def _space(self) -> DiscreteActions | ContinuousActions:
        self._check_fitted()
        assert isinstance(self.actions_, DiscreteActions | ContinuousActions)
        return self.actions_

    def _all_pairs(self, states: ArrayLike) -> tuple[Array, tuple[int, int]]:
        """Each state with every action, of shape (m · n_actions, …), and (m, n_actions)."""
        x, choices = self._check_states(states), self._choices()
        return pairs.combine(x, choices), (len(x), len(choices))

    def _choices(self) -> Array:
        """The actions to choose from, of shape (n_actions, n_columns)."""
        return pairs.choices(self._space, self.candidates)
