"""GPTD of the returns around each state: the posterior given the nearest states, which are few, in place of all data.

A sparse posterior cannot express more than its inducing points do, and an exact one costs O(n³). Where returns are not
noisy, the states that matter for V(x) are those near x:

    V(x) = k(x, N)(k(N, N) + σ²I)⁻¹y_N        N the nearest states to x in the metric of the kernel

as in nearest-neighbour Gaussian processes (Vecchia 1988; Datta et al. 2016). y are returns; those that were cut off are
completed by another estimate of V.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gptd_rl.inference.model import Model
from gptd_rl.types import Array

N_NEIGHBOURS = 8
CHUNK = 2048  # states predicted at a time


@dataclass(frozen=True, eq=False)
class NearestStates:
    """States with returns, and V around any other state.

    Attributes
    ----------
    model : Model
        Kernel, whose metric says what is near, and noise.
    states : ndarray of shape (n, n_dims)
    returns : ndarray of shape (n,)
    """

    model: Model
    states: Array
    returns: Array

    @classmethod
    def of(cls, model: Model, states: Array, returns: Array) -> NearestStates:
        """With less noise than `model` has, if the returns of next neighbours differ less than that.

        The noise of a model that saw few states contains what these did not resolve.
        """
        v = cls(model, states, returns)
        if len(states) < 2:
            return v
        _, near = v._tree.query(states * v._weights, k=[2])
        # Differences of two returns have twice the variance; the median of χ²₁ is 0.455.
        noise = float(np.median((returns - returns[near[:, 0]]) ** 2)) / (2.0 * 0.455)
        least = 1e-9 * model.kernel.diagonal(states[:1])[0]
        return cls(model.with_noise(float(np.clip(noise, least, model.noise_variance))), states, returns)

    def __call__(self, states: Array) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""
        parts = [self._predict(states[i : i + CHUNK]) for i in range(0, len(states), CHUNK)]
        return np.concatenate([np.zeros(0), *parts])

    def _predict(self, x: Array) -> Array:
        kernel: Any = self.model.kernel
        k = min(N_NEIGHBOURS, len(self.states))
        _, near = self._tree.query(x * self._weights, k=np.arange(1, k + 1))
        N = self.states[near]  # [m, k, D]
        shape = (len(x), k, k)
        one, other = (np.broadcast_to(part, (*shape, N.shape[-1])) for part in (N[:, :, None], N[:, None]))
        K = kernel.paired(one.reshape(-1, N.shape[-1]), other.reshape(-1, N.shape[-1])).reshape(shape)
        K[:, np.arange(k), np.arange(k)] += self.model.noise_variance
        to_x = kernel.paired(np.repeat(x, k, axis=0), N.reshape(-1, N.shape[-1])).reshape(len(x), k)
        weights = np.linalg.solve(K, self.returns[near][:, :, None])[:, :, 0]
        return np.asarray((to_x * weights).sum(axis=1))

    @cached_property
    def _weights(self) -> Array:
        relevances: Array = self.model.kernel.relevances
        return np.sqrt(np.maximum(relevances, 1e-9 * relevances.max()))

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import KDTree  # slow to import

        return KDTree(self.states * self._weights)
