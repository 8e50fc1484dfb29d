"""What a stationary kernel asks of a metric Ω in ``d²(x, x') = (x − x')ᵀ Ω (x − x')``."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np

from gptd_rl.kernels.scale import DataScale, ParameterSpace
from gptd_rl.types import Array, BoolArray, IntArray


class Metric(Protocol):
    """What the kernel asks of a metric."""

    @property
    def n_dims(self) -> int:
        """Width of a state."""
        ...

    @property
    def matrix(self) -> Array:
        """Ω, of shape (n_dims, n_dims)."""
        ...

    @property
    def eigenvalues(self) -> Array:
        """The s_i, largest first."""
        ...

    @property
    def directions(self) -> Array:
        """The u_i as rows."""
        ...

    @property
    def relevances(self) -> Array:
        """Diagonal of Ω."""
        ...

    @property
    def theta(self) -> Array:
        """The parameters as a vector."""
        ...

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the entries of `theta`."""
        ...

    @property
    def is_log(self) -> BoolArray:
        """Which entries of `theta` are logarithms."""
        ...

    def with_theta(self, theta: Array) -> Self:
        """Return the same metric with other parameters."""
        ...

    @property
    def label(self) -> str:
        """The paper's name of the variant."""
        ...

    @property
    def rank(self) -> int:
        """Number of directions beside the inputs themselves."""
        ...

    def space(self, scale: DataScale) -> ParameterSpace:
        """Bounds and units of the parameters for data of this scale."""
        ...

    def initial(self, scale: DataScale, relevance: float, rng: np.random.Generator) -> Self:
        """The same metric, in which states one standard deviation apart have d² = `relevance`."""
        ...

    def grow(self, column: Array) -> Metric:
        """The metric with one more direction."""
        ...

    def take_inputs(self, inputs: IntArray) -> Self:
        """The metric of some of the inputs."""
        ...

    def whiten(self, states: Array) -> Array:
        """Coordinates in which d² is the ordinary squared distance."""
        ...

    def pull_back(self, gradient: Array) -> Array:
        """Turn ∂L/∂Ω into ∂L/∂θ."""
        ...
