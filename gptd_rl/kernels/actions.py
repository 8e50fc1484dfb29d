"""The action kernel of GPTD for control: δ(a, a'), and its correlated form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gptd_rl.checks import as_count
from gptd_rl.kernels.base import Pairs, short
from gptd_rl.kernels.compose import Kernel
from gptd_rl.kernels.registry import register
from gptd_rl.kernels.scale import DataScale, Guess, ParameterSpace
from gptd_rl.types import Array, BoolArray


@register
@dataclass(frozen=True, eq=False, repr=False)
class ActionDelta(Kernel):
    """k([x, a], [x', a']) = 1 where the actions are equal, ρ where they are not; the last column holds the action.

    With ρ = 0, the δ(a, a') of the paper, each action has a value function of its own: K is block diagonal, and nothing
    is computed outside the blocks.

    Parameters
    ----------
    n_actions : int
        Actions are numbered from 0 to n_actions − 1.
    correlation : float
        ρ, from 0 to below 1.
    """

    n_actions: int
    correlation: float = 0.0
    n_categorical = 1
    n_dims = None
    label = ""

    def __post_init__(self) -> None:
        as_count(self.n_actions, "n_actions")
        if not 0.0 <= self.correlation < 1.0:
            raise ValueError(f"action_correlation must lie in [0, 1); got {self.correlation}.")

    def __repr__(self) -> str:
        correlation = f", correlation={short(self.correlation)}" if self.correlation else ""
        return f"ActionDelta({self.n_actions}{correlation})"

    @property
    def theta(self) -> Array:
        """Nothing to select."""
        return np.zeros(0)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """No names."""
        return ()

    @property
    def is_free(self) -> BoolArray:
        """Nothing to select."""
        return np.zeros(0, dtype=bool)

    def with_theta(self, theta: Array) -> Self:
        """The same kernel."""
        return self

    def pairs(self, states: Array, others: Array) -> Pairs:
        """Prepare two sets of state-action pairs."""
        return _DeltaPairs(states[:, -1], others[:, -1], self.correlation)

    def diagonal(self, states: Array) -> Array:
        """1 for each pair, of shape (n_states,)."""
        return np.ones(len(states))

    def block_labels(self, states: Array) -> Array | None:
        """The actions, if they do not correlate."""
        return None if self.correlation else states[:, -1]

    @property
    def rank(self) -> int:  # type: ignore[override]
        """One weight for each action."""
        return self.n_actions

    def basis(self, states: Array) -> Array:
        """1 in the column of each pair's action, of shape (n_states, n_actions)."""
        return (states[:, -1:] == np.arange(self.n_actions)).astype(np.float64)

    @property
    def weight_covariance(self) -> Array:
        """R = (1−ρ)I + ρ11ᵀ, of shape (n_actions, n_actions)."""
        return (1.0 - self.correlation) * np.eye(self.n_actions) + self.correlation

    def space(self, scale: DataScale) -> ParameterSpace:
        """Nothing to select."""
        return ParameterSpace.empty()

    def initial(self, scale: DataScale, guess: Guess, rng: np.random.Generator) -> Self:
        """The same kernel."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Number of actions and ρ."""
        return dict(n_actions=int(self.n_actions), correlation=float(self.correlation))

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> ActionDelta:
        """Build what `to_dict` described."""
        return cls(**description)


@dataclass(eq=False)
class _DeltaPairs:
    actions: Array  # [n]
    others: Array  # [n']
    correlation: float

    def values(self, rows: slice, columns: slice) -> Array | float:
        a, b = self.actions[rows], self.others[columns]
        if len(a) and len(b) and a[0] == b[0] and (a == a[0]).all() and (b == b[0]).all():
            return 1.0
        return np.where(a[:, None] == b, 1.0, self.correlation)

    def add(self, A: Array, rows: slice, columns: slice, K: Array | None = None) -> None:
        """There is no parameter."""

    def gradient(self) -> Array:
        return np.zeros(0)
