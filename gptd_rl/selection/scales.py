"""What the data say about sizes: how much values vary, how far inputs spread. Bounds of θ are measured by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.kernels.metrics import FactorAnalysis, Isotropic
from gptd_rl.temporal.differences import TemporalDifference
from gptd_rl.types import Array


@dataclass(frozen=True, eq=False)
class Scales:
    """What sensible guesses and bounds are measured by."""

    variance: float  # of the returns around their level
    level: float  # their mean
    spread: Array  # standard deviation of each input, 1 where constant  [D]
    constant: NDArray[np.bool_]  # which inputs are constant  [D]

    @classmethod
    def of(cls, data: Trajectories, n_categorical: int = 0) -> Scales:
        """Measure `data`, whose last `n_categorical` columns are names rather than inputs."""
        H = TemporalDifference.of(data)
        z = H.null_vectors()
        returns = H.returns(data.rewards)
        returns += _tail(data, returns) * z
        level = float(returns.mean())
        variance = float(returns.var())
        if variance <= 1e-12 * level**2:
            variance = level**2 or 1.0
        inputs = data.states[:, : data.n_dims - n_categorical]
        constant = np.ptp(inputs, axis=0) <= 1e-12 * np.abs(inputs).max(axis=0)
        return cls(variance, level, np.where(constant, 1.0, inputs.std(axis=0)), constant)

    def bounds(self, model: Model, noise_floor: float) -> tuple[Array, Array]:
        """Lower and upper bounds of θ; parameters that are held, and constant inputs, get equal ones."""
        value = self.variance
        level = self.variance + self.level**2
        lower, upper = [1e-4 * value, 1e-4 * level, noise_floor * value], [1e4 * value, 1e4 * level, 10 * value]
        squared = self.spread**2
        metric = model.kernel.metric
        if isinstance(metric, Isotropic):
            low, high = np.array([1e-8 / squared.max()]), np.array([1e4 / squared.min()])
        else:
            low, high = 1e-8 / squared, np.where(self.constant, 1e-8, 1e4) / squared
        lo, hi = np.log(np.concatenate([lower, low])), np.log(np.concatenate([upper, high]))
        if isinstance(metric, FactorAnalysis):
            limit = np.tile(np.where(self.constant, 0.0, 100.0) / self.spread, metric.rank)
            lo, hi = np.concatenate([lo, -limit]), np.concatenate([hi, limit])
        held = ~model.is_free
        theta = model.theta
        return np.where(held, theta, lo), np.where(held, theta, hi)


def _tail(data: Trajectories, returns: Array) -> float:
    """A guess of what follows a truncation: what terminated segments have on average, if there are any."""
    if data.terminated.any():
        return float(returns[np.repeat(data.terminated, data.lengths)].mean())
    # If V were a constant c, every reward would be (1−γ)c.
    lost = float((1.0 - data.discounts)[data.has_row].sum())
    return float(data.rewards.sum()) / lost if lost > 1e-9 else 0.0
