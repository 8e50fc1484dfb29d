"""The model that selection searches: a kernel and a noise variance, packed into one vector θ. Here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gptd_rl.kernels import Kernel
from gptd_rl.types import Array, BoolArray


@dataclass(frozen=True, eq=False)
class Model:
    """A Gaussian process for V and the variance of the noise.

    Parameters
    ----------
    kernel : Kernel
        The prior covariance of the value function.
    noise_variance : float
        σ², of the noise σ²HHᵀ or σ²I.
    noise_is_fixed : bool
        Whether model selection must leave σ² alone.
    """

    kernel: Kernel
    noise_variance: float
    noise_is_fixed: bool = False

    @property
    def noise_index(self) -> int:
        """Place of log σ² in θ, behind the amplitudes of the kernel."""
        return self.kernel.n_amplitudes

    @property
    def theta(self) -> Array:
        """[amplitudes, log σ², other parameters of the kernel]; for the paper's kernels v₀, b, σ², metric."""
        return self._insert(self.kernel.theta, np.log(self.noise_variance))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the entries of `theta`."""
        names = self.kernel.parameter_names
        return (*names[: self.noise_index], "noise", *names[self.noise_index :])

    @property
    def is_log(self) -> BoolArray:
        """Which entries of `theta` are logarithms."""
        return self._insert(self.kernel.is_log, True)

    @property
    def is_free(self) -> BoolArray:
        """Which entries of `theta` selection may move."""
        return self._insert(self.kernel.is_free, not self.noise_is_fixed)

    def with_theta(self, theta: Array) -> Model:
        """Return the same model with other parameters."""
        i = self.noise_index
        kernel = self.kernel.with_theta(np.concatenate([theta[:i], theta[i + 1 :]]))
        return replace(self, kernel=kernel, noise_variance=float(np.exp(theta[i])))

    def with_noise(self, noise_variance: float) -> Model:
        """Return the same model with another noise variance."""
        return replace(self, noise_variance=noise_variance)

    def amplified(self, factor: float) -> Model:
        """Return the same model with `factor` times the prior variance, except for amplitudes that are fixed."""
        if factor == 1.0:
            return self
        scales = np.arange(len(self.theta)) < self.kernel.n_amplitudes
        return self.with_theta(self.theta + np.where(scales & self.is_free, np.log(factor), 0.0))

    def pack_gradient(self, kernel_gradient: Array, noise_gradient: float) -> Array:
        """Put the parts of ∂L/∂θ into the order of θ."""
        return self._insert(kernel_gradient, noise_gradient)

    def _insert(self, of_kernel: Any, of_noise: float) -> Any:
        """An array over θ from the kernel's part of it and the noise's."""
        i = self.noise_index
        return np.concatenate([of_kernel[:i], [of_noise], of_kernel[i:]], dtype=of_kernel.dtype)
