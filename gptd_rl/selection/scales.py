"""Measuring the scale of the data: how much returns vary, how far inputs spread."""

from __future__ import annotations

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.kernels import DataScale
from gptd_rl.temporal.differences import TemporalDifference, discounted_returns
from gptd_rl.types import Array

# Differences below this are none: their squares and the inverses of those leave the range of floats.
NEGLIGIBLE = 1e-150


def measure_scale(data: Trajectories, n_categorical: int = 0) -> DataScale:
    """The scale of `data`, whose last `n_categorical` columns are labels rather than inputs."""
    z = TemporalDifference.of(data).null_vectors()
    returns = discounted_returns(data)
    returns = returns + _tail_value(data, returns) * z
    mean = float(returns.mean())
    variance = float(returns.var())
    if variance <= max(1e-12 * mean**2, NEGLIGIBLE**2):
        variance = mean**2 if abs(mean) > NEGLIGIBLE else 1.0
    inputs = data.states[:, : data.n_dims - n_categorical]
    is_constant = np.ptp(inputs, axis=0) <= np.maximum(1e-12 * np.abs(inputs).max(axis=0), NEGLIGIBLE)
    return DataScale(variance, mean, np.where(is_constant, 1.0, inputs.std(axis=0)), is_constant)


def _tail_value(data: Trajectories, returns: Array) -> float:
    """A guess of the value behind a truncation: the mean return of terminated segments, if there are any."""
    if data.terminated.any():
        return float(returns[np.repeat(data.terminated, data.lengths)].mean())
    # If V were a constant c, every reward would be (1−γ)c.
    lost = float((1.0 - data.discounts)[data.has_row].sum())
    return float(data.rewards.sum()) / lost if lost > 1e-9 else 0.0
