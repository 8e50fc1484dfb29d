"""Angles as inputs: cosine and sine instead, so that values are continuous across ±π."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter, index
from typing import Any, Self

import numpy as np

from gptd_rl.kernels import registry
from gptd_rl.kernels.base import BaseKernel, Pairs
from gptd_rl.kernels.compose import Kernel
from gptd_rl.kernels.scale import DataScale, Guess, ParameterSpace
from gptd_rl.types import Array, BoolArray, IntArray


def _of_inner(name: str) -> Any:
    """A property that is the inner kernel's."""
    return property(attrgetter(f"kernel.{name}"))


@registry.register
@dataclass(frozen=True, eq=False)
class Angles(Kernel):
    """k(x, x') = k₁(e(x), e(x')), where e puts (cos φ, sin φ) in the place of each angle φ.

    Its parameters are those of k₁, with a relevance for the cosine and one for the sine of an angle.

    Parameters
    ----------
    kernel : Kernel
        k₁, over one coordinate for each input and a second one for each angle.
    angles : tuple of int
        Numbers of the inputs that are angles, in radians.
    """

    kernel: Kernel
    angles: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "angles", _input_numbers(self.angles))
        _check_inner(self.kernel)
        n_coordinates = self.kernel.n_dims or 0
        n_inputs = max(0, n_coordinates - len(self.angles))
        if outside := [angle for angle in self.angles if not 0 <= angle < n_inputs]:
            raise ValueError(
                f"angles {outside} are no inputs: {n_coordinates} coordinates of the inner kernel with two for each "
                f"angle are {n_inputs} inputs, numbered from 0."
            )

    # ---------------------------------------------------------------------------------- coordinates

    @property
    def n_dims(self) -> int:
        """Inputs; each angle counts as one."""
        return (self.kernel.n_dims or 0) - len(self.angles)

    @cached_property
    def _is_angle(self) -> BoolArray:
        return np.isin(np.arange(self.n_dims), self.angles)  # [D]

    @cached_property
    def _inputs(self) -> IntArray:
        """The input of each coordinate, of shape (n_coordinates,)."""
        return np.repeat(np.arange(self.n_dims), 1 + self._is_angle)

    @cached_property
    def _first(self) -> IntArray:
        """The coordinate of each input, the cosine of an angle, of shape (n_dims,)."""
        return np.searchsorted(self._inputs, np.arange(self.n_dims))

    def encode(self, states: Array) -> Array:
        """e(x) of the first `n_dims` columns of each state, of shape (n_states, n_coordinates).

        Examples
        --------
        >>> from gptd_rl.kernels import ARD, Angles, SquaredExponential
        >>> kernel = Angles(SquaredExponential(ARD([1.0, 1.0, 0.1])), angles=(0,))
        >>> kernel.encode(np.array([[0.0, 0.5], [np.pi / 2, 2.0]])).round(6)
        array([[1. , 0. , 0.5],
               [0. , 1. , 2. ]])
        """
        coordinates = np.take(np.asarray(states, dtype=np.float64), self._inputs, axis=1)
        cosines = self._first[self._is_angle]
        phi = coordinates[:, cosines]
        coordinates[:, cosines], coordinates[:, cosines + 1] = np.cos(phi), np.sin(phi)
        return coordinates

    def _encode_both(self, states: Array, others: Array) -> tuple[Array, Array]:
        """Coordinates of two sets of states, which stay one and the same if they were."""
        encoded = self.encode(others)
        return (encoded if states is others else self.encode(states)), encoded

    def _scale(self, scale: DataScale) -> DataScale:
        """The scale of the coordinates: cosine and sine of an angle that goes around have a variance of ½."""
        std = np.where(self._is_angle & ~scale.is_constant, np.sqrt(0.5), scale.input_std)
        return replace(scale, input_std=std).take_inputs(self._inputs)

    def take_inputs(self, inputs: IntArray) -> Self:
        """The kernel of some of the inputs; an angle keeps both coordinates."""
        inner = self.kernel.take_inputs(np.concatenate([np.flatnonzero(self._inputs == i) for i in inputs]))
        return replace(self, kernel=inner, angles=tuple(np.flatnonzero(self._is_angle[inputs])))

    # ---------------------------------------------------------------------------------- parameters, those of k₁

    label = _of_inner("label")
    theta = _of_inner("theta")
    parameter_names = _of_inner("parameter_names")  # relevances are numbered by coordinate
    n_amplitudes = _of_inner("n_amplitudes")
    is_log = _of_inner("is_log")
    is_free = _of_inner("is_free")
    fixed = _of_inner("fixed")

    def fix(self, *names: str) -> Self:
        """The same kernel with these parameters held by model selection."""
        return replace(self, kernel=self.kernel.fix(*names))

    def with_theta(self, theta: Array) -> Self:
        """The same kernel with other parameters."""
        return replace(self, kernel=self.kernel.with_theta(theta))

    @property
    def relevances(self) -> Array:
        """Relevance of each input, of an angle the larger of its two, of shape (n_dims,)."""
        return np.asarray(np.maximum.reduceat(self.kernel.relevances, self._first))

    def space(self, scale: DataScale) -> ParameterSpace:
        """Bounds and units for the scale of the coordinates."""
        return self.kernel.space(self._scale(scale))

    def initial(self, scale: DataScale, guess: Guess, rng: np.random.Generator) -> Self:
        """Guess from the scale of the coordinates."""
        return replace(self, kernel=self.kernel.initial(self._scale(scale), guess, rng))

    def roughness(self, scale: DataScale) -> tuple[float, Array]:
        """½d² between coordinates one standard deviation apart, and its gradient."""
        return self.kernel.roughness(self._scale(scale))

    def to_dict(self) -> dict[str, Any]:
        """Description of k₁, and the angles."""
        return dict(kernel=registry.describe(self.kernel), angles=list(self.angles))

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Angles:
        """Build what `to_dict` described."""
        return cls(registry.build(description["kernel"]), tuple(description["angles"]))

    # ---------------------------------------------------------------------------------- values, those of k₁ at e(x)

    def pairs(self, states: Array, others: Array) -> Pairs:
        """Prepare two sets of states, of which the first `n_dims` columns are read."""
        return self.kernel.pairs(*self._encode_both(states, others))

    def diagonal(self, states: Array) -> Array:
        """k(x, x) for each state, of shape (n_states,)."""
        return self.kernel.diagonal(self.encode(states))

    def paired(self, states: Array, others: Array) -> Array:
        """Covariance of each state and the other of the same row, of shape (n_states,)."""
        return self.kernel.paired(*self._encode_both(states, others))

    def contract_paired(self, a: Array, states: Array, others: Array) -> Array:
        """Σ_i a_i ∂k(x_i, x'_i)/∂θ, of shape (n_parameters,)."""
        return self.kernel.contract_paired(a, *self._encode_both(states, others))

    def contract_diagonal(self, a: Array, states: Array) -> Array:
        """Σ_i a_i ∂k(x_i, x_i)/∂θ, of shape (n_parameters,)."""
        return self.kernel.contract_diagonal(a, self.encode(states))

    def terms(self) -> list[tuple[BaseKernel, IntArray]]:
        """Those of k₁; one that reads no inputs needs no angles."""
        terms: list[tuple[Any, IntArray]] = self.kernel.terms()
        return [(t if t.n_dims is None else replace(self, kernel=t), places) for t, places in terms]


def _input_numbers(angles: Iterable[int]) -> tuple[int, ...]:
    """Numbers of inputs in increasing order, each once."""
    try:
        numbers = sorted(index(angle) for angle in angles)
    except TypeError:
        raise TypeError(f"angles must be a tuple of input numbers, such as (0, 2); got {angles!r}.") from None
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"angles must name each input once; got {numbers}.")
    return tuple(numbers)


def _check_inner(kernel: Kernel) -> None:
    if not isinstance(kernel, Kernel):
        raise TypeError(f"Angles needs a kernel over the coordinates; got {kernel!r}.")
    if kernel.n_categorical:
        raise ValueError(
            "Angles cannot hold a kernel of actions: write Angles(kernel, angles) * ActionDelta(n_actions)."
        )
    if kernel.n_dims is None:
        raise ValueError(f"Angles needs a kernel that reads inputs; {kernel!r} reads none.")
