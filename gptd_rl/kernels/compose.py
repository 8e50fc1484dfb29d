"""Sums and products of kernels: k₁ + k₂, k₁·k₂.

θ of a composition lists the amplitudes of all parts, then their other parameters: v₀, b, … , a₁, … . A parameter name
that several parts share gets the number of its part: k1.v0, k2.v0; in nested compositions, of each level: k2.k1.v0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import mul
from typing import Any, Self

import numpy as np

from gptd_rl.kernels import registry
from gptd_rl.kernels.base import BaseKernel, Pairs, unknown_names
from gptd_rl.kernels.scale import DataScale, Guess, ParameterSpace
from gptd_rl.types import Array, BoolArray, IntArray


class Kernel(BaseKernel):
    """A covariance function k(x, x') that can be added and multiplied.

    A new kernel is a frozen dataclass with the abstract members of `BaseKernel`, registered by `register`. Selection,
    storage, the sparse method, `OnlineGPTD` and `GPTDQ` then work with it. θ lists amplitudes first.
    """

    def __add__(self, other: Kernel) -> Sum:
        """k₁ + k₂."""
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum((self, other))

    def __mul__(self, other: Kernel) -> Product:
        """k₁·k₂."""
        if not isinstance(other, Kernel):
            return NotImplemented
        return Product((self, other))


@dataclass(frozen=True, eq=False, repr=False)
class Composition(Kernel):
    """Several kernels over the same states."""

    parts: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError(f"a {type(self).__name__} of kernels needs one or more; got none.")
        widths = {part.n_dims for part in self.parts if part.n_dims is not None}
        if len(widths) > 1:
            raise ValueError(f"kernels of different widths cannot be combined: got {sorted(widths)} dimensions.")

    @property
    def label(self) -> str:
        """Labels of the parts."""
        sign = " + " if isinstance(self, Sum) else " · "
        return sign.join(label for label in (part.label for part in self.parts) if label)

    @property
    def n_dims(self) -> int | None:
        """Inputs that any part reads."""
        return next((part.n_dims for part in self.parts if part.n_dims is not None), None)

    @property
    def n_categorical(self) -> int:  # type: ignore[override]
        """Labels that any part reads."""
        return max(part.n_categorical for part in self.parts)

    # ---------------------------------------------------------------------------------- parameters

    @property
    def n_amplitudes(self) -> int:  # type: ignore[override]
        """Amplitudes of all parts."""
        return sum(part.n_amplitudes for part in self.parts)

    @cached_property
    def places(self) -> tuple[IntArray, ...]:
        """Where the parameters of each part stand in θ: amplitudes of all parts first."""
        amplitudes = np.cumsum([0, *(part.n_amplitudes for part in self.parts)])
        others = self.n_amplitudes + np.cumsum([0, *(len(p.theta) - p.n_amplitudes for p in self.parts)])
        return tuple(
            np.concatenate([np.arange(amplitudes[i], amplitudes[i + 1]), np.arange(others[i], others[i + 1])])
            for i in range(len(self.parts))
        )

    def _gather(self, arrays: Sequence[Any]) -> Any:
        """Arrays over the parameters of each part in the order of θ."""
        out = np.empty(sum(map(len, self.places)), dtype=np.result_type(*arrays, np.int8))
        for place, array in zip(self.places, arrays, strict=True):
            out[place] = array
        return out

    @property
    def theta(self) -> Array:
        """[amplitudes of all parts, other parameters of all parts]."""
        return np.asarray(self._gather([part.theta for part in self.parts]), dtype=np.float64)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names of the entries of `theta`; shared ones with the number of their part."""
        count = Counter(name for part in self.parts for name in part.parameter_names)
        several = sum(len(place) > 0 for place in self.places) > 1
        names = [
            f"k{number}.{name}" if count[name] > 1 or ("." in name and several) else name
            for number, part in enumerate(self.parts, 1)
            for name in part.parameter_names
        ]
        return tuple(names[i] for i in np.argsort(np.concatenate(self.places)))

    @property
    def is_log(self) -> BoolArray:
        """Which entries of `theta` are logarithms."""
        return np.asarray(self._gather([part.is_log for part in self.parts]), dtype=bool)

    @property
    def fixed(self) -> frozenset[str]:  # type: ignore[override]
        """Names of parameters that model selection leaves alone."""
        held = self._gather([np.isin(part.parameter_names, list(part.fixed)) for part in self.parts])
        return frozenset(name for name, is_held in zip(self.parameter_names, held, strict=True) if is_held)

    @property
    def is_free(self) -> BoolArray:
        """Which entries of `theta` model selection may move."""
        return np.asarray(self._gather([part.is_free for part in self.parts]), dtype=bool)

    def with_theta(self, theta: Array) -> Self:
        """The same composition with other parameters."""
        parts = (part.with_theta(theta[place]) for part, place in zip(self.parts, self.places, strict=True))
        moved = replace(self, parts=tuple(parts))
        moved.__dict__["places"] = self.places  # a cached property that θ does not change
        return moved

    def fix(self, *names: str) -> Self:
        """The same composition with these parameters held by model selection."""
        mine = self.parameter_names
        for name in set(names) - set(mine):
            if several := [n for n in mine if n.rpartition(".")[2] == name]:
                raise ValueError(f"{name!r} is a parameter of several kernels: name one of {', '.join(several)}.")
        unknown_names(names, mine)
        held = {mine.index(name) for name in names}
        parts = []
        for part, place in zip(self.parts, self.places, strict=True):
            inside = [part.parameter_names[i] for i, where in enumerate(place) if int(where) in held]
            parts.append(part.fix(*inside) if inside else part)
        return replace(self, parts=tuple(parts))

    def space(self, scale: DataScale) -> ParameterSpace:
        """Bounds and units of all parameters."""
        spaces = reduce(lambda a, b: a + b, (part.space(scale) for part in self.parts), ParameterSpace.empty())
        order = np.argsort(np.concatenate(self.places))
        return spaces.take(order)

    def roughness(self, scale: DataScale) -> tuple[float, Array]:
        """Sum of the parts' roughness."""
        values, gradients = zip(*(part.roughness(scale) for part in self.parts), strict=True)
        return float(sum(values)), np.asarray(self._gather(gradients), dtype=np.float64)

    def take_inputs(self, inputs: IntArray) -> Self:
        """The composition of some of the inputs."""
        return replace(self, parts=tuple(part.take_inputs(inputs) for part in self.parts))

    def to_dict(self) -> dict[str, Any]:
        """Descriptions of the parts."""
        return dict(parts=[registry.describe(part) for part in self.parts])

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> Kernel:
        """Build the parts and put them together."""
        return cls(tuple(registry.build(part) for part in description["parts"]))

    # ---------------------------------------------------------------------------------- the one part with an attribute

    def _only(self, name: str) -> Any:
        found = [getattr(part, name) for part in self.parts if hasattr(part, name)]
        if len(found) != 1:
            raise AttributeError(f"{len(found)} of the combined kernels have {name}: ask one of kernel.parts.")
        return found[0]

    @property
    def metric(self) -> Any:
        """Metric of the one part that has one."""
        return self._only("metric")

    @property
    def signal_variance(self) -> float:
        """Signal variance v₀ of the one part that has one."""
        return float(self._only("signal_variance"))

    @property
    def bias(self) -> float:
        """Variance b of the level, of the one part that has one."""
        return float(self._only("bias"))


@registry.register
@dataclass(frozen=True, eq=False, repr=False)
class Sum(Composition):
    """k(x, x') = Σ k_i(x, x').

    Parameters
    ----------
    parts : tuple of Kernel
        Sums among them are dissolved.
    """

    def __post_init__(self) -> None:
        flat = tuple(term for part in self.parts for term in (part.parts if isinstance(part, Sum) else (part,)))
        object.__setattr__(self, "parts", flat)
        super().__post_init__()

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))

    def pairs(self, states: Array, others: Array) -> Pairs:
        """Prepare two sets of states."""
        return _SumPairs(self, [part.pairs(states, others) for part in self.parts])

    def diagonal(self, states: Array) -> Array:
        """k(x, x) for each state, of shape (n_states,)."""
        return np.asarray(sum(part.diagonal(states) for part in self.parts))

    def initial(self, scale: DataScale, guess: Guess, rng: np.random.Generator) -> Self:
        """Parts of infinite rank share the variance of the returns."""
        n = max(1, sum(part.rank is None for part in self.parts))
        share = replace(guess, signal_variance=guess.signal_variance / n)
        return replace(self, parts=tuple(part.initial(scale, share, rng) for part in self.parts))

    @property
    def relevances(self) -> Array:
        """Relevances of the parts, weighted by their variances, of shape (n_dims,)."""
        if self.n_dims is None:
            return np.zeros(0)
        at = np.zeros((1, self.n_dims + self.n_categorical))
        pairs = [(float(p.diagonal(at)[0]), p.relevances) for p in self.parts if p.n_dims is not None]
        total = sum(variance for variance, _ in pairs) or 1.0
        return np.asarray(sum(variance / total * relevances for variance, relevances in pairs))

    def block_labels(self, states: Array) -> Array | None:
        """Labels that all parts have in common."""
        labels = [part.block_labels(states) for part in self.parts]
        first = labels[0]
        same = first is not None and all(other is not None and np.array_equal(first, other) for other in labels[1:])
        return first if same else None

    def terms(self) -> list[tuple[BaseKernel, IntArray]]:
        """Terms of all parts."""
        return [
            (term, place[inside])
            for part, place in zip(self.parts, self.places, strict=True)
            for term, inside in part.terms()
        ]


@dataclass(eq=False)
class _SumPairs:
    kernel: Sum
    parts: list[Pairs]

    def values(self, rows: slice, columns: slice) -> Array | float:
        tiles = [part.values(rows, columns) for part in self.parts]
        tiles.sort(key=lambda tile: isinstance(tile, float))  # add numbers to the first array, in place
        total = tiles[0]
        for tile in tiles[1:]:
            total += tile
        return total

    def add(self, A: Array, rows: slice, columns: slice, K: Array | None = None) -> None:
        for part in self.parts:
            part.add(A, rows, columns)

    def gradient(self) -> Array:
        return np.asarray(self.kernel._gather([part.gradient() for part in self.parts]), dtype=np.float64)


@registry.register
@dataclass(frozen=True, eq=False, repr=False)
class Product(Composition):
    """k(x, x') = Π k_i(x, x').

    Parameters
    ----------
    parts : tuple of Kernel
        Products among them are dissolved.
    """

    def __post_init__(self) -> None:
        flat = tuple(f for part in self.parts for f in (part.parts if isinstance(part, Product) else (part,)))
        object.__setattr__(self, "parts", flat)
        super().__post_init__()

    def __repr__(self) -> str:
        return " * ".join(f"({part!r})" if isinstance(part, Sum) else repr(part) for part in self.parts)

    def pairs(self, states: Array, others: Array) -> Pairs:
        """Prepare two sets of states."""
        return _ProductPairs(self, [part.pairs(states, others) for part in self.parts])

    def diagonal(self, states: Array) -> Array:
        """k(x, x) for each state, of shape (n_states,)."""
        return np.asarray(reduce(mul, (part.diagonal(states) for part in self.parts)))

    def initial(self, scale: DataScale, guess: Guess, rng: np.random.Generator) -> Self:
        """The first factor with an amplitude takes the variance of the returns, the others one."""
        parts = []
        for part in self.parts:
            parts.append(part.initial(scale, guess, rng))
            if part.n_amplitudes:
                guess = replace(guess, signal_variance=1.0, level_variance=1.0)
        return replace(self, parts=tuple(parts))

    @property
    def relevances(self) -> Array:
        """Relevances add up: factors fall off together, of shape (n_dims,)."""
        return np.asarray(sum((p.relevances for p in self.parts if p.n_dims is not None), np.zeros(self.n_dims or 0)))

    def block_labels(self, states: Array) -> Array | None:
        """Labels of the first factor that has any."""
        return next((found for part in self.parts if (found := part.block_labels(states)) is not None), None)

    def terms(self) -> list[tuple[BaseKernel, IntArray]]:
        """Products distribute over sums."""
        expanded: list[list[tuple[Any, IntArray]]] = [[]]
        for part, place in zip(self.parts, self.places, strict=True):
            expanded = [
                [*factors, *_factors(term, place[inside])] for factors in expanded for term, inside in part.terms()
            ]
        return [_multiply(factors) for factors in expanded]

    # The rank of a product of kernels of finite rank is the product of their ranks.

    @property
    def rank(self) -> int | None:  # type: ignore[override]
        """Product of the ranks, if all are finite."""
        ranks = [part.rank for part in self.parts]
        return None if None in ranks else int(np.prod([r for r in ranks if r is not None]))

    def basis(self, states: Array) -> Array:
        """Row by row, products of all entries of the parts' bases, of shape (n_states, rank)."""
        Phi = np.ones((len(states), 1))
        for part in self.parts:
            Phi = (Phi[:, :, None] * part.basis(states)[:, None, :]).reshape(len(states), -1)
        return Phi

    @property
    def weight_covariance(self) -> Array:
        """Kronecker product of the parts' covariances, of shape (rank, rank)."""
        C: Array = np.ones((1, 1))
        for part in self.parts:
            C = np.asarray(np.kron(C, part.weight_covariance), dtype=np.float64)
        return C


def _factors(term: BaseKernel, places: IntArray) -> list[tuple[BaseKernel, IntArray]]:
    """Factors of a term, each with the places of its parameters."""
    if not isinstance(term, Product):
        return [(term, places)]
    return [(factor, places[inside]) for factor, inside in zip(term.parts, term.places, strict=True)]


def _multiply(factors: list[tuple[Any, IntArray]]) -> tuple[BaseKernel, IntArray]:
    """A product of factors, with the places of its parameters in the order of its own θ."""
    if len(factors) == 1:
        return factors[0]
    product = Product(tuple(factor for factor, _ in factors))
    places = np.concatenate([place for _, place in factors])
    return product, np.asarray(places[np.argsort(np.concatenate(product.places))])


@dataclass(eq=False)
class _ProductPairs:
    kernel: Product
    parts: list[Pairs]

    def values(self, rows: slice, columns: slice) -> Array | float:
        tiles = [part.values(rows, columns) for part in self.parts]
        tiles.sort(key=lambda tile: isinstance(tile, float))
        total = tiles[0]
        for tile in tiles[1:]:
            total *= tile
        return total

    def add(self, A: Array, rows: slice, columns: slice, K: Array | None = None) -> None:
        moved = [i for i, place in enumerate(self.kernel.places) if len(place)]
        # A factor that alone has parameters need not be computed.
        tiles = [1.0 if moved == [i] else part.values(rows, columns) for i, part in enumerate(self.parts)]
        for i in moved:
            # ∂(k₁k₂)/∂θ₁ = k₂·∂k₁/∂θ₁
            others = reduce(mul, (tile for j, tile in enumerate(tiles) if j != i), 1.0)
            self.parts[i].add(A * others, rows, columns)

    def gradient(self) -> Array:
        return np.asarray(self.kernel._gather([part.gradient() for part in self.parts]), dtype=np.float64)
