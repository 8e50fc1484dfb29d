"""The model that selection searches: a kernel and a noise variance, packed into one vector θ. Here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.types import Array

NOISE = 2  # its place in θ, behind v₀ and b


@dataclass(frozen=True, eq=False)
class Model:
    """A Gaussian process for V and the variance of what disturbs it.

    Parameters
    ----------
    kernel : SquaredExponential
        The prior covariance of the value function.
    noise_variance : float
        σ², of the noise σ²HHᵀ or σ²I.
    noise_is_fixed : bool
        Whether model selection must leave σ² alone.
    """

    kernel: SquaredExponential
    noise_variance: float
    noise_is_fixed: bool = False

    @property
    def theta(self) -> Array:
        """[log v₀, log b, log σ², metric…]."""
        return np.insert(self.kernel.theta, NOISE, np.log(self.noise_variance))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the entries of `theta`."""
        names = self.kernel.parameter_names
        return (*names[:NOISE], "noise", *names[NOISE:])

    @property
    def is_log(self) -> NDArray[np.bool_]:
        """Which entries of `theta` are logarithms."""
        return np.insert(self.kernel.is_log, NOISE, True)

    @property
    def is_free(self) -> NDArray[np.bool_]:
        """Which entries of `theta` selection may move."""
        held = self.kernel.fixed | ({"noise"} if self.noise_is_fixed else set())
        return np.array([name not in held for name in self.parameter_names]) & np.isfinite(self.theta)

    def with_theta(self, theta: Array) -> Model:
        """Return the same model with other parameters."""
        kernel = self.kernel.with_theta(np.delete(theta, NOISE))
        return replace(self, kernel=kernel, noise_variance=float(np.exp(theta[NOISE])))

    def with_noise(self, noise_variance: float) -> Model:
        """Return the same model with another noise variance."""
        return replace(self, noise_variance=noise_variance)


def pack_gradient(kernel_gradient: Array, noise_gradient: float) -> Array:
    """Put the parts of ∂L/∂θ into the order of θ."""
    return np.insert(kernel_gradient, NOISE, noise_gradient)
