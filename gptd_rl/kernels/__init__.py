"""Covariance functions: states in, contractions of ∂L/∂K out."""

from gptd_rl.kernels.actions import ActionDelta
from gptd_rl.kernels.angles import Angles
from gptd_rl.kernels.base import Pairs
from gptd_rl.kernels.compose import Kernel, Product, Sum
from gptd_rl.kernels.constant import Constant
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic
from gptd_rl.kernels.registry import register
from gptd_rl.kernels.scale import DataScale, Guess, ParameterSpace
from gptd_rl.kernels.stationary import (
    Matern32,
    Matern52,
    MultiScale,
    SquaredExponential,
    Stationary,
    paper_kernel,
)

__all__ = [
    "ARD",
    "ActionDelta",
    "Angles",
    "Constant",
    "DataScale",
    "FactorAnalysis",
    "Guess",
    "Isotropic",
    "Kernel",
    "Matern32",
    "Matern52",
    "MultiScale",
    "Pairs",
    "ParameterSpace",
    "Product",
    "SquaredExponential",
    "Stationary",
    "Sum",
    "paper_kernel",
    "register",
]
