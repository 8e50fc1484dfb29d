"""The constant kernel: the bias b of paper eq. (18), the variance of the level that V varies around."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from gptd_rl.kernels.base import Pairs, check_variance, describe_fixed, safe_log, short, unknown_names
from gptd_rl.kernels.compose import Kernel
from gptd_rl.kernels.registry import register
from gptd_rl.kernels.scale import DataScale, Guess, ParameterSpace
from gptd_rl.types import Array


@register
@dataclass(frozen=True, eq=False, repr=False)
class Constant(Kernel):
    """k(x, x') = b.

    Parameters
    ----------
    bias : float
        b, the variance of the level.
    fixed : iterable of str
        ``("b",)`` if model selection must leave it alone.
    """

    bias: float = 1.0
    fixed: frozenset[str] = frozenset()
    n_amplitudes = 1
    n_dims = None
    label = ""
    rank = 1

    def __init__(self, bias: float = 1.0, fixed: Iterable[str] = ()) -> None:
        object.__setattr__(self, "bias", check_variance("bias", bias))
        object.__setattr__(self, "fixed", frozenset(fixed))
        unknown_names(self.fixed, self.parameter_names)

    def __repr__(self) -> str:
        return f"Constant({short(self.bias)}{describe_fixed(self.fixed)})"

    @property
    def theta(self) -> Array:
        """[log b]."""
        return safe_log(np.array([self.bias]))

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """("b",)."""
        return ("b",)

    def with_theta(self, theta: Array) -> Self:
        """The same kernel with another level."""
        return replace(self, bias=float(np.exp(theta[0])))

    def pairs(self, states: Array, others: Array) -> Pairs:
        """Prepare two sets of states."""
        return _ConstantPairs(self.bias)

    def diagonal(self, states: Array) -> Array:
        """B for each state, of shape (n_states,)."""
        return np.full(len(states), self.bias)

    def basis(self, states: Array) -> Array:
        """Ones, of shape (n_states, 1)."""
        return np.ones((len(states), 1))

    @property
    def weight_covariance(self) -> Array:
        """[[b]]."""
        return np.array([[self.bias]])

    def space(self, scale: DataScale) -> ParameterSpace:
        """Around the second moment of the returns."""
        level = scale.return_variance + scale.mean_return**2
        return ParameterSpace.log(1e-4 * level, 1e4 * level)

    def initial(self, scale: DataScale, guess: Guess, rng: np.random.Generator) -> Self:
        """Guess the level."""
        return replace(self, bias=guess.level_variance)

    def to_dict(self) -> dict[str, Any]:
        """The level and whether it is fixed."""
        return dict(bias=self.bias, fixed=sorted(self.fixed))

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Constant:
        """Build what `to_dict` described."""
        return cls(**description)


@dataclass(eq=False)
class _ConstantPairs:
    bias: float
    total: float = 0.0

    def values(self, rows: slice, columns: slice) -> Array | float:
        return self.bias

    def add(self, A: Array, rows: slice, columns: slice, K: Array | None = None) -> None:
        self.total += float(A.sum())

    def gradient(self) -> Array:
        # ∂L/∂log b = b·ΣA
        return np.array([self.bias * self.total])
