"""What estimators answer once they are fitted: moments, intervals and samples of their posterior."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import scipy  # its submodules are imported at first use
from numpy.typing import ArrayLike

from gptd_rl.checks import as_generator, as_vector, is_count, is_within, one_line
from gptd_rl.memory import available_bytes
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, IntArray


class Predictions:
    """Answers at rows that were checked: states, or pairs of a state and an action."""

    posterior_: Any  # a `Posterior`
    _columns: IntArray  # columns of a row that the posterior takes

    def _prior_mean(self, rows: Array) -> Array:
        """Prior mean at checked rows, of shape (m,)."""
        return np.zeros(len(rows))

    def _moments(self, rows: Array, return_std: bool, return_cov: bool = False) -> Any:
        """Posterior mean at checked states or pairs and, if asked, standard deviation or covariance."""
        if return_std and return_cov:
            raise ValueError("return_std and return_cov: ask for one of them.")
        x = rows[:, self._columns]
        mean = self._prior_mean(rows) + self.posterior_.mean(x)
        if return_cov:
            return mean, self.posterior_.covariance(x)
        return (mean, np.sqrt(self.posterior_.variance(x))) if return_std else mean

    def _interval(self, rows: Array, level: float) -> tuple[Array, Array]:
        """Interval at checked states or pairs, two arrays of shape (m,)."""
        if not is_within(level, 0.0, 1.0):
            raise ValueError(f"level must lie between 0 and 1; got {one_line(level)}.")
        x = rows[:, self._columns]
        mean = self._prior_mean(rows) + self.posterior_.mean(x)
        half = scipy.special.ndtri(0.5 + 0.5 * level) * np.sqrt(self.posterior_.interval_variance(x))
        return mean - half, mean + half

    def _sample(self, rows: Array, n: int, seed: int | np.random.Generator | None, what: str) -> Array:
        """Joint posterior samples at checked states or pairs, of shape (n, m)."""
        if not is_count(n):
            raise ValueError(f"n must be a whole number of 1 or more; got {one_line(repr(n))}.")
        needed, free = 4 * 8 * len(rows) ** 2, available_bytes()  # the covariance, its factor, and products on the way
        if free is not None and needed > free:
            raise ValueError(
                f"a joint sample over {what} needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: "
                "ask for fewer states at a time."
            )
        if not len(rows):
            return np.zeros((n, 0))
        rng = as_generator(seed)
        values: Array = self._prior_mean(rows) + self.posterior_.sample(rows[:, self._columns], n, rng)
        return values


class StatePredictions(Predictions):
    """Predictions of V at states, the same for `GPTD` and `OnlineGPTD`."""

    def _check_states(self, states: ArrayLike) -> Array:
        """States with all inputs, of shape (m, n_dims)."""
        raise NotImplementedError

    @overload
    def predict(
        self, states: ArrayLike, return_std: Literal[False] = ..., return_cov: Literal[False] = ...
    ) -> Array: ...

    @overload
    def predict(
        self, states: ArrayLike, return_std: Literal[True], return_cov: Literal[False] = ...
    ) -> tuple[Array, Array]: ...

    @overload
    def predict(
        self, states: ArrayLike, return_std: Literal[False] = ..., *, return_cov: Literal[True]
    ) -> tuple[Array, Array]: ...

    @one_blas_thread()
    def predict(
        self, states: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> Array | tuple[Array, Array]:
        """Posterior mean of V and, if asked, its standard deviation or covariance: paper eqs. (9) and (10).

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        return_std, return_cov : bool
            If values bootstrap, of the error of the mean, as in `confidence_interval`. Else the paper's posterior,
            which takes the residuals of the returns for independent. In a stochastic system they are not:
            `confidence_interval` is the honest one.

        Returns
        -------
        mean : ndarray of shape (m,)
        std : ndarray of shape (m,)
            Only if `return_std`.
        cov : ndarray of shape (m, m)
            Only if `return_cov`.
        """
        answer: Array | tuple[Array, Array] = self._moments(self._check_states(states), return_std, return_cov)
        return answer

    @one_blas_thread()
    def sample(self, states: ArrayLike, n: int = 1, seed: int | np.random.Generator | None = None) -> Array:
        """Joint posterior samples of V at all these states.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        n : int
            Number of samples.
        seed : int or Generator, optional

        Returns
        -------
        values : ndarray of shape (n, m)
        """
        x = self._check_states(states)
        return self._sample(x, n, seed, f"{len(x)} states")

    def score(self, states: ArrayLike, values: ArrayLike) -> float:
        """Coefficient of determination R² of the posterior mean, as scikit-learn's regressors have it.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        values : array-like of shape (m,)
            True values, such as returns of rollouts.
        """
        x = self._check_states(states)
        y = as_vector(values, len(x), "values")
        if not len(x):
            raise ValueError("R² needs one or more states; got none.")
        residual, total = float(((y - self.predict(x)) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
        return 1.0 - residual / total if total > 0.0 else float(residual == 0.0)

    @one_blas_thread()
    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval that holds V(x) with probability `level`, with the noise correlated as it is in a Markov chain.

        Its variance is what the prior leaves open plus the sampling noise Σ_t δ_t² u_t² of the TD errors δ_t, and
        never less than the posterior's. If values come from instruments, it is the variance of their error: what the
        features leave open, sampling noise, and the bias of shrinking.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        level : float

        Returns
        -------
        lower, upper : ndarray of shape (m,)
        """
        return self._interval(self._check_states(states), level)
