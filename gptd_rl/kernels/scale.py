"""The scale of the data, from which kernels take their bounds and first guesses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from gptd_rl.types import Array, BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class DataScale:
    """How much returns and inputs vary."""

    return_variance: float
    mean_return: float
    input_std: Array  # 1 where an input is constant  [D]
    is_constant: BoolArray  # [D]

    def take_inputs(self, inputs: IntArray) -> Self:
        """The scale of some of the inputs."""
        return replace(self, input_std=self.input_std[inputs], is_constant=self.is_constant[inputs])


@dataclass(frozen=True)
class Guess:
    """A first guess, in units of the data: kernels turn it into parameters."""

    relevance: float  # ½d² between states one standard deviation apart in every input, times 2
    signal_variance: float
    level_variance: float  # of the level b


@dataclass(frozen=True, eq=False)
class ParameterSpace:
    """Where parameters may lie and how an optimiser should see them, each array of shape (n_parameters,)."""

    lower: Array
    upper: Array
    unit: Array  # step of a parameter that is no relevance: 1, or 1/std of an input
    linear_below: Array  # log of the relevance below which steps are linear; nan for other parameters

    @classmethod
    def log(cls, lower: Array | float, upper: Array | float) -> ParameterSpace:
        """Positive parameters between two bounds, as logarithms."""
        low, high = np.log(np.atleast_1d(lower)), np.log(np.atleast_1d(upper))
        return cls(low, high, np.ones(len(low)), np.full(len(low), np.nan))

    @classmethod
    def empty(cls) -> ParameterSpace:
        """No parameters."""
        nothing = np.zeros(0)
        return cls(nothing, nothing, nothing, nothing)

    def take(self, order: IntArray) -> ParameterSpace:
        """Some of the parameters, or all in another order."""
        return ParameterSpace(self.lower[order], self.upper[order], self.unit[order], self.linear_below[order])

    def __add__(self, other: ParameterSpace) -> ParameterSpace:
        """The parameters of both."""
        return ParameterSpace(
            np.concatenate([self.lower, other.lower]),
            np.concatenate([self.upper, other.upper]),
            np.concatenate([self.unit, other.unit]),
            np.concatenate([self.linear_below, other.linear_below]),
        )
