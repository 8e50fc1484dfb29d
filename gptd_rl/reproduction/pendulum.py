"""Section 6.1: the pendulum swing-up under its optimal policy, evaluated with the paper's three covariances."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gptd_rl.agents import OptimalPendulum, solve_pendulum
from gptd_rl.rollouts.collect import collect
from gptd_rl.reproduction.covariance import CovarianceSpectrum
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.kernels import DataScale
from gptd_rl.selection.scales import measure_scale
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

KERNELS: Mapping[str, str] = {"I": "isotropic", "II": "ard", "III": "factor"}

OnFit = Callable[[str], None]  # called after each fit, with its description


@dataclass(frozen=True)
class PendulumSettings:
    """Sizes of the experiment, those of the paper by default; γ and the time step are not in the paper.

    Attributes
    ----------
    n_transitions : int
    shape : tuple of 2 ints
        Grid of the dynamic programming.
    n_grid : int
        Number of angles, and of speeds, of the grid on which errors are measured.
    gamma : float
    """

    n_transitions: int = 1000
    shape: tuple[int, int] = (400, 400)
    n_grid: int = 50
    gamma: float = 0.99


SMALL = PendulumSettings(n_transitions=300, shape=(120, 120), n_grid=25)


@dataclass(frozen=True, eq=False)
class PendulumFit:
    """One covariance after model selection.

    Attributes
    ----------
    label : {"I", "II", "III"}
    kernel : Kernel
    noise_variance, evidence, seconds : float
    mean, variance : ndarray of shape (n_grid, n_grid)
        Posterior on the grid, a row for each speed.
    trajectory_mse, grid_mse : float
        Mean squared errors against the optimal values.
    spectrum : CovarianceSpectrum
        Of K over the states of the data.
    """

    label: str
    kernel: Any  # the paper's: has signal_variance, bias and metric
    noise_variance: float
    evidence: float
    seconds: float
    mean: Array
    variance: Array
    trajectory_mse: float
    grid_mse: float
    spectrum: CovarianceSpectrum


@dataclass(frozen=True, eq=False)
class PendulumResult:
    """One sample of transitions, and the fit of each covariance."""

    seed: int
    agent: OptimalPendulum
    data: Trajectories
    grid: Array  # the states on which errors are measured  [n_grid², 2]
    truth: Array  # optimal values there  [n_grid, n_grid]
    fits: Mapping[str, PendulumFit]

    @property
    def scale(self) -> DataScale:
        """Level and variance of the returns."""
        return measure_scale(self.data)

    @property
    def returns_mse(self) -> float:
        """Mean squared difference between returns of terminated episodes and the optimal values on the grid."""
        completed = self.data.terminated[self.data.segment_of]
        returns = TemporalDifference.of(self.data).returns(self.data.rewards)
        return mean_squared((returns - self.agent.value.at(self.data.states))[completed])


def run(seed: int, settings: PendulumSettings, on_fit: OnFit) -> PendulumResult:
    """Sample transitions under the optimal policy, and fit each covariance."""
    agent, data = sample(seed, settings)
    grid = state_grid(agent, settings.n_grid)
    truth = agent.value.at(grid)
    fits = {}
    for label in KERNELS:
        fits[label] = fit(label, data, agent, grid, truth)
        on_fit(f"pendulum, seed {seed}, covariance {label}")
    return PendulumResult(seed, agent, data, grid, truth.reshape(settings.n_grid, -1), fits)


def sample(seed: int, settings: PendulumSettings) -> tuple[OptimalPendulum, Trajectories]:
    """The optimal policy, and transitions under it from uniform start states."""
    agent = solve_pendulum(gamma=settings.gamma, shape=settings.shape)
    env = "gptd_rl/PendulumSwingUp-v0"
    return agent, collect(env, agent, n_transitions=settings.n_transitions, gamma=settings.gamma, seed=seed)


def state_grid(agent: OptimalPendulum, n: int) -> Array:
    """States on an even grid over the whole state space, of shape (n², 2), angles varying fastest."""
    top = agent.value.grid.task.max_speed
    axes = np.meshgrid(np.linspace(-np.pi, np.pi, n), np.linspace(-top, top, n))
    return np.stack(axes, axis=-1).reshape(-1, 2)


def fit(label: str, data: Trajectories, agent: OptimalPendulum, grid: Array, truth: Array) -> PendulumFit:
    """Select the hyperparameters of one covariance by the evidence, and measure its errors."""
    began = time.perf_counter()
    v = GPTD(kernel=KERNELS[label], objective="marginal_likelihood", method="exact").fit(data)
    seconds = time.perf_counter() - began
    mean, std = v.predict(grid, return_std=True)
    shape = 2 * (round(np.sqrt(len(grid))),)
    return PendulumFit(
        label=label,
        kernel=v.kernel_,
        noise_variance=v.noise_variance_,
        evidence=v.log_marginal_likelihood_,
        seconds=seconds,
        mean=mean.reshape(shape),
        variance=(std**2).reshape(shape),
        trajectory_mse=mean_squared(v.predict(data.states) - agent.value.at(data.states)),
        grid_mse=mean_squared(mean - truth),
        spectrum=CovarianceSpectrum.of(v.kernel_, data.states),
    )


def mean_squared(errors: Array) -> float:
    """Mean of the squares."""
    return float(np.mean(errors**2))
