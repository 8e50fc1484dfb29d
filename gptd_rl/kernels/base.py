"""What a kernel is: a covariance function with parameters θ, bounds and first guesses, a derivative and a name.

A kernel knows states and nothing else. It hands out `Pairs`: two sets of states, prepared, from which tiles of K are
computed. An objective hands a kernel ``A = ∂L/∂K``; the kernel contracts it with ∂K/∂θ tile by tile, so that neither a
second n×n matrix nor an n×n×P tensor ever exists. Sums and products of kernels combine tiles, hence are kernels.

Symmetric matrices are kept as their lower triangle in a C-ordered array; entries above the diagonal have no meaning.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any, Protocol, Self

import numpy as np

from gptd_rl.checks import as_float, one_line
from gptd_rl.kernels.scale import DataScale, Guess, ParameterSpace
from gptd_rl.linalg import mirrored
from gptd_rl.types import Array, BoolArray, IntArray

# Rows and columns of a tile: small enough for a tile and its factor to stay in a core's cache. Up to SMALL rows a
# matrix is one tile: more would cost more time around them than they save.
TILE = 128
SMALL = 192

# Rows of a block of which only the diagonal is used.
DIAGONAL_BLOCK = 32

ALL = slice(None)


class Pairs(Protocol):
    """All pairs of two sets of states: tiles of K, and sums Σ A∘∂K/∂θ over tiles."""

    def values(self, rows: slice, columns: slice) -> Array | float:
        """A tile of K, in fresh memory; a number where the tile is constant."""
        ...

    def add(self, A: Array, rows: slice, columns: slice, K: Array | None = None) -> None:
        """Add Σ_ij A_ij ∂K_ij/∂θ over a tile; `K` is the tile itself if it is at hand, and is overwritten."""
        ...

    def gradient(self) -> Array:
        """The sum so far, of shape (n_parameters,)."""
        ...


class BaseKernel(ABC):
    """A covariance function k(x, x'), without the operators + and *, which `Kernel` adds."""

    fixed: frozenset[str] = frozenset()  # names of parameters that model selection leaves alone
    n_categorical: int = 0  # trailing columns of a state that are labels, which this kernel reads
    n_amplitudes: int = 0  # leading entries of θ that scale the kernel
    # Rank of K, if it is finite: then K(X, Z) = Φ(X) C Φ(Z)ᵀ with `basis` Φ and `weight_covariance` C.
    rank: int | None = None

    # ---------------------------------------------------------------------------------- what a kernel must have

    @property
    @abstractmethod
    def n_dims(self) -> int | None:
        """Inputs that the kernel reads, the first columns of a state; None if it reads none."""

    @property
    @abstractmethod
    def theta(self) -> Array:
        """Parameters as a vector; positive ones as logarithms, −inf for one that is exactly 0 and stays there."""

    @property
    @abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the entries of `theta`."""

    @abstractmethod
    def with_theta(self, theta: Array) -> Self:
        """The same kernel with other parameters."""

    @abstractmethod
    def pairs(self, states: Array, others: Array) -> Pairs:
        """Prepare two sets of states; rounding errors are smallest near `others`."""

    @abstractmethod
    def diagonal(self, states: Array) -> Array:
        """k(x, x) for each state, of shape (n_states,)."""

    @abstractmethod
    def space(self, scale: DataScale) -> ParameterSpace:
        """Bounds and units of the parameters for data of this scale."""

    @abstractmethod
    def initial(self, scale: DataScale, guess: Guess, rng: np.random.Generator) -> Self:
        """The same kernel with parameters guessed from the scale of the data."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists from which `from_dict` builds the kernel again."""

    @classmethod
    @abstractmethod
    def from_dict(cls, description: dict[str, Any]) -> BaseKernel:
        """Build what `to_dict` described."""

    # ---------------------------------------------------------------------------------- what a kernel may have

    @property
    def label(self) -> str:
        """A short name for tables; empty if the kernel is not worth a word there."""
        return type(self).__name__

    @property
    def is_log(self) -> BoolArray:
        """Which entries of `theta` are logarithms."""
        return np.ones(len(self.theta), dtype=bool)

    @property
    def is_free(self) -> BoolArray:
        """Which entries of `theta` model selection may move."""
        named = np.array([name not in self.fixed for name in self.parameter_names], dtype=bool)
        return named & np.isfinite(self.theta)

    @property
    def relevances(self) -> Array:
        """How fast the covariance falls along each input, of shape (n_dims,)."""
        return np.zeros(self.n_dims or 0)

    def roughness(self, scale: DataScale) -> tuple[float, Array]:
        """Mean of ½d² between states one standard deviation apart, and its gradient of shape (n_parameters,)."""
        return 0.0, np.zeros(len(self.theta))

    def take_inputs(self, inputs: IntArray) -> Self:
        """The kernel of some of the inputs."""
        if self.n_dims is None:
            return self
        raise ValueError(f"{type(self).__name__} cannot be restricted to some inputs: define take_inputs.")

    def fix(self, *names: str) -> Self:
        """The same kernel with these parameters held by model selection."""
        unknown_names(names, self.parameter_names)
        if not names:
            return self
        return dataclasses.replace(self, fixed=self.fixed | set(names))  # type: ignore[type-var]

    def block_labels(self, states: Array) -> Array | None:
        """A label for each state such that K is zero between different labels; None if K has no such blocks."""
        return None

    def terms(self) -> list[tuple[BaseKernel, IntArray]]:
        """Kernels that add up to this one, each with the places of its parameters in `theta`."""
        return [(self, np.arange(len(self.theta)))]

    def basis(self, states: Array) -> Array:
        """Φ, of shape (n_states, rank), of a kernel of finite rank."""
        raise NotImplementedError

    @property
    def weight_covariance(self) -> Array:
        """C, of shape (rank, rank), of a kernel of finite rank."""
        raise NotImplementedError

    def contract_weight_covariance(self, A: Array) -> Array:
        """Σ A∘∂C/∂θ, of shape (n_parameters,); every parameter of a kernel of finite rank is an amplitude."""
        return np.full(len(self.theta), float((A * self.weight_covariance).sum()))

    # ---------------------------------------------------------------------------------- values

    @property
    def width(self) -> int | None:
        """Columns of a state; None if any number will do."""
        return None if self.n_dims is None else self.n_dims + self.n_categorical

    def __call__(self, states: Array, others: Array | None = None, out: Array | None = None) -> Array:
        """K between two sets of states, of shape (n_states, n_others)."""
        others = states if others is None else others
        self._check_width(states, others)
        labels = self.block_labels(others)
        values = self.pairs(states, others).values(ALL, ALL) if labels is None else 0.0
        if out is None and not isinstance(values, float):
            return values
        K = np.empty((len(states), len(others))) if out is None else out
        K[:] = values
        if labels is None:
            return K
        for rows, columns in _common_blocks(self._labels(states), labels):
            K[np.ix_(rows, columns)] = self.pairs(states[rows], others[columns]).values(ALL, ALL)
        return K

    def lower(self, states: Array, out: Array | None = None) -> Array:
        """Lower triangle of K, of shape (n_states, n_states), in `out` if given."""
        self._check_width(states)
        K = np.zeros((len(states), len(states))) if out is None else out
        blocks = self.blocks(states)
        if len(blocks) > 1:
            K[:] = 0.0
            for rows in blocks:
                K[np.ix_(rows, rows)] = self.lower(states[rows])
            return K
        pairs = self.pairs(states, states)
        for tile in lower_tiles(len(states)):
            K[tile] = pairs.values(*tile)
        return K

    def paired(self, states: Array, others: Array) -> Array:
        """K between each state and the other of the same row, of shape (n_states,)."""
        values = np.empty(len(states))
        pairs = self.pairs(states, others)
        for rows in _diagonal_blocks(len(states)):
            tile = pairs.values(rows, rows)
            values[rows] = tile if isinstance(tile, float) else np.diagonal(tile)
        return values

    def blocks(self, states: Array) -> list[IntArray]:
        """Row numbers of groups of states between which K is zero; all in one if there are no such groups."""
        labels = self.block_labels(states)
        if labels is None:
            return [np.arange(len(states))]
        return [np.flatnonzero(labels == label) for label in np.unique(labels)]

    # ---------------------------------------------------------------------------------- derivatives

    def contract(self, A: Array, states: Array, others: Array, K: Array | None = None) -> Array:
        """Σ_ij A_ij ∂K_ij/∂θ for a full `A`, of shape (n_parameters,); `K`, if at hand, is overwritten."""
        self._check_width(states, others)
        labels = self.block_labels(others)
        if labels is None:
            pairs = self.pairs(states, others)
            pairs.add(A, ALL, ALL, K)
            return pairs.gradient()
        total = np.zeros(len(self.theta))
        for rows, columns in _common_blocks(self._labels(states), labels):
            block = np.ix_(rows, columns)
            pairs = self.pairs(states[rows], others[columns])
            pairs.add(A[block], ALL, ALL, None if K is None else K[block])
            total += pairs.gradient()
        return total

    def contract_lower(self, A: Array, states: Array) -> Array:
        """Σ_ij A_ij ∂K_ij/∂θ for a symmetric `A` of which only the lower triangle is read."""
        self._check_width(states)
        blocks = self.blocks(states)
        if len(blocks) > 1:
            parts = [self.contract_lower(A[np.ix_(rows, rows)], states[rows]) for rows in blocks]
            return np.asarray(np.sum(parts, axis=0))
        pairs = self.pairs(states, states)
        for rows, columns in lower_tiles(len(states)):
            tile = A[rows, columns]
            if rows == columns:
                pairs.add(mirrored(tile), rows, columns)
            else:  # once for the tile above the diagonal
                pairs.add(2.0 * tile, rows, columns)
        return pairs.gradient()

    def contract_paired(self, a: Array, states: Array, others: Array) -> Array:
        """Σ_i a_i ∂k(x_i, x'_i)/∂θ, of shape (n_parameters,)."""
        pairs = self.pairs(states, others)
        for rows in _diagonal_blocks(len(states)):
            pairs.add(np.diag(a[rows]), rows, rows)
        return pairs.gradient()

    def contract_diagonal(self, a: Array, states: Array) -> Array:
        """Σ_i a_i ∂k(x_i, x_i)/∂θ, of shape (n_parameters,)."""
        return self.contract_paired(a, states, states)

    # ---------------------------------------------------------------------------------- checks

    def _check_width(self, *sets: Array) -> None:
        for x in sets:
            if self.width is not None and x.shape[1] != self.width:
                raise ValueError(f"the kernel has {self.width} dimensions; got states of width {x.shape[1]}.")

    def _labels(self, states: Array) -> Array:
        labels = self.block_labels(states)
        assert labels is not None
        return labels


def unknown_names(names: Iterable[str], parameter_names: tuple[str, ...]) -> None:
    """Refuse to fix parameters that a kernel does not have."""
    if unknown := sorted(set(names) - set(parameter_names)):
        raise ValueError(f"fixed names {unknown}, but the parameters are {parameter_names}.")


def check_variance(name: str, value: Any) -> float:
    """A finite variance that is not negative; it may be an array of shape ()."""
    number = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if not (isinstance(number, Real) and 0 <= as_float(number) < np.inf):
        raise ValueError(f"{name} must be finite and not negative; got {one_line(value)}.")
    return float(number)


def short(values: Array | float) -> str:
    """Numbers with four digits, as `repr` shows them."""
    rounded = np.vectorize(lambda value: float(f"{value:.4g}"), otypes=[float])(values)
    return repr(rounded.tolist())


def describe_fixed(fixed: Iterable[str]) -> str:
    """The argument `fixed` as `repr` shows it; empty if nothing is fixed."""
    names = sorted(fixed)
    return f", fixed={names}" if names else ""


def safe_log(values: Array) -> Array:
    """Logarithms; −inf of a parameter that is exactly 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values), dtype=np.float64)


def lower_tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Tiles that cover the lower triangle of an n×n matrix."""
    size = n if 0 < n <= SMALL else TILE
    cuts = [slice(i, min(i + size, n)) for i in range(0, n, size)]
    return ((cuts[i], cuts[j]) for i in range(len(cuts)) for j in range(i + 1))


def _diagonal_blocks(n: int) -> Iterator[slice]:
    return (slice(i, min(i + DIAGONAL_BLOCK, n)) for i in range(0, n, DIAGONAL_BLOCK))


def _common_blocks(labels: Array, other_labels: Array) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows of each label that both sets of states have."""
    for label in np.intersect1d(labels, other_labels):
        yield np.flatnonzero(labels == label), np.flatnonzero(other_labels == label)
