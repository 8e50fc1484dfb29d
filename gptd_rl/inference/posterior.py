"""What every posterior over values offers, exact, sparse or online: estimators ask for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from gptd_rl import linalg
from gptd_rl.checks import check_number
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

# States predicted at a time: bounds the memory of a prediction to CHUNK·n.
CHUNK = 512


@dataclass(frozen=True)
class Evidence:
    """The log marginal likelihood log p(r | states, θ) of the rewards, and its two opposing parts: paper eq. (16)."""

    complexity: float  # ½ log det Q
    data_fit: float  # ½ rᵀQ⁻¹r
    n_rows: float  # number of rewards; their mean over several parts

    @property
    def log_likelihood(self) -> float:
        """−(complexity + data fit + ½·rows·log 2π)."""
        return -(self.complexity + self.data_fit + 0.5 * self.n_rows * np.log(2.0 * np.pi))

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Evidence:
        """Build what `dataclasses.asdict` described."""
        for name, value in description.items():
            check_number(name, value)
        return cls(**description)

    @classmethod
    def mean(cls, each: Sequence[Evidence]) -> Evidence:
        """Average over several parts of the data."""
        complexity, fit, n_rows = np.mean([(e.complexity, e.data_fit, e.n_rows) for e in each], axis=0)
        return cls(float(complexity), float(fit), float(n_rows))

    def __add__(self, other: Evidence) -> Evidence:
        """Of independent data."""
        return Evidence(self.complexity + other.complexity, self.data_fit + other.data_fit, self.n_rows + other.n_rows)


class Posterior(Protocol):
    """The posterior over values, at states of shape (m, n_inputs)."""

    @property
    def trace_decay(self) -> float | None:
        """λ if values come from instruments: 0 if they bootstrap at every step. None: GPTD as in the paper."""
        ...

    @property
    def inducing_points(self) -> Array | None:
        """Inducing points of shape (k, n_inputs); None if the posterior is exact."""
        ...

    def mean(self, states: Array) -> Array:
        """Posterior mean, of shape (m,)."""
        ...

    def variance(self, states: Array) -> Array:
        """Posterior variance under the noise model, of shape (m,)."""
        ...

    def covariance(self, states: Array) -> Array:
        """Posterior covariance between all pairs of states, of shape (m, m)."""
        ...

    def interval_variance(self, states: Array) -> Array:
        """Variance for intervals: with the noise of a Markov chain, and never below `variance`, of shape (m,)."""
        ...

    def sample(self, states: Array, n: int, rng: np.random.Generator) -> Array:
        """Joint posterior samples, of shape (n, m)."""
        ...

    def condition_on(self, data: Trajectories) -> Self:
        """The posterior given further segments, θ as it is."""
        ...


def sample_gaussian(mean: Array, covariance: Array, n: int, rng: np.random.Generator) -> Array:
    """Samples of N(mean, covariance), of shape (n, m); `covariance` is overwritten where that spares memory."""
    if not len(mean):
        return np.zeros((n, 0))
    L = np.tril(linalg.cholesky(covariance.copy))
    return np.asarray(mean + rng.standard_normal((n, len(mean))) @ L.T)


def in_chunks(function: Callable[[Array], Array], states: Array) -> Array:
    """`function` of each state, a chunk of states at a time, of shape (m,)."""
    parts = [function(states[i : i + CHUNK]) for i in range(0, len(states), CHUNK)]
    return np.concatenate([np.zeros(0), *parts])
