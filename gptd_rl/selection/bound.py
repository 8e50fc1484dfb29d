"""The sparse evidence as an objective: the variational bound over all shards, with basis states that suit θ.

Kept apart from `objectives`, whose matrices hold all pairs of states; here each evaluation is two passes over the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gptd_rl.inference import sparse
from gptd_rl.inference.exact import Evidence
from gptd_rl.inference.inducing import incomplete_cholesky, independent
from gptd_rl.inference.model import Model
from gptd_rl.inference.sparse import Basis, Solution, Statistics
from gptd_rl.selection.objectives import Objective
from gptd_rl.sharding.dataset import ShardedDataset
from gptd_rl.types import Array

# A basis state is left out where the others explain all but this share of its variance.
REDUNDANT = 1e-11

# Basis states are chosen at least as finely as this.
FINE = 1e-7

# Rounding errors of the bound, in nats for each reward, that are worth the cost of a whitened basis; with no more
# rewards than these, any are.
ROUNDING = 5e-7
CHEAP = 30_000


@dataclass(frozen=True, eq=False)
class Choice:
    """How basis states are chosen: from which candidates, how many, to which precision."""

    candidates: Array  # [c, D]
    size: int
    tolerance: float | None  # the share of v₀ below which a state counts as represented
    is_final: bool = False  # the candidates are all distinct states, and all are to be taken
    kept: dict[bytes, Array] = field(default_factory=dict)  # with which states models were found, by metric

    def states(self, model: Model, n_rows: int) -> Array:
        """Basis states for a model of so many rewards, of shape (m, n_dims)."""
        if self.is_final:
            return self.candidates
        rng = np.random.default_rng(0)  # the same for the same kernel
        signal = replace(model.kernel, signal_variance=1.0, bias=0.0)
        tolerance = self.tolerance
        if tolerance is None:  # what is left unexplained then costs the bound about half a nat at most
            tolerance = min(FINE, model.noise_variance / (model.kernel.signal_variance * n_rows))
        subset = incomplete_cholesky(signal, self.candidates, self.size, tolerance, rng=rng)
        return self.candidates[subset.indices]


class Bound:
    """−bound on log p(r) and its gradient, averaged over parts of the data, as `MarginalLikelihood` is."""

    def __init__(self, parts: Sequence[ShardedDataset], choice: Choice, n_rows: int) -> None:
        self.parts = tuple(parts)
        self.choice = choice
        self.n_rows = n_rows  # of a part
        self._last: tuple[bytes, FixedBound] | None = None

    def at(self, model: Model, like: Objective | None = None) -> FixedBound:
        """With basis states chosen for `model`, or with those of the bound `like`."""
        states = like.states if isinstance(like, FixedBound) else self.choice.states(model, self.n_rows)
        return FixedBound(self.parts, states, self.n_rows)

    def keep(self, model: Model, fixed: FixedBound) -> None:
        """Remember the basis states with which `model` was found."""
        self.choice.kept[_key(model)] = fixed.states

    def kept(self, model: Model) -> FixedBound:
        """With the basis states that `model` was found with, or with some chosen for it."""
        key = _key(model)
        if key not in self.choice.kept:
            self.keep(model, self.at(model))
        if self._last is None or self._last[0] != key:
            self._last = (key, FixedBound(self.parts, self.choice.kept[key], self.n_rows))
        return self._last[1]

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient, with basis states chosen for `model` itself."""
        return self.at(model)(model)

    def evidence(self, model: Model) -> Evidence:
        """Bound with its complexity and fit."""
        return self.kept(model).evidence(model)


class FixedBound:
    """The bound with basis states that stay, smooth in θ."""

    def __init__(self, parts: Sequence[ShardedDataset], states: Array, n_rows: int) -> None:
        self.parts, self.states, self.n_rows = tuple(parts), states, n_rows
        self._last: tuple[bytes, tuple[float, Array]] | None = None
        self._seen: tuple[bytes, list[Statistics]] | None = None

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient: two passes over the data, one for the statistics and one for their derivatives."""
        key = model.theta.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = (key, self._evaluate(model))
        return self._last[1]

    def _evaluate(self, model: Model) -> tuple[float, Array]:
        value, gradient = 0.0, np.zeros(len(model.theta))
        basis = self.basis(model)
        for part in self.parts:
            solution = Solution.of(model, basis, part.sum(sparse.statistics, basis))
            by_omega = part.sum(sparse.pull_back, basis.raw(), solution.slopes())
            value -= solution.evidence.log_likelihood
            gradient += solution.gradient(by_omega)
        return value / len(self.parts), gradient / len(self.parts)

    def evidence(self, model: Model) -> Evidence:
        """Bound with its complexity and fit, averaged over the parts: one pass."""
        solutions = [Solution.of(model, self.basis(model, whitened=True), seen) for seen in self.statistics(model)]
        return Evidence.mean([solution.evidence for solution in solutions])

    def statistics(self, model: Model) -> list[Statistics]:
        """What the whitened basis sees of each part; the last answer is remembered."""
        key = _key(model)
        if self._seen is None or self._seen[0] != key:
            basis = self.basis(model, whitened=True)
            self._seen = (key, [part.sum(sparse.statistics, basis) for part in self.parts])
        return self._seen[1]

    def basis(self, model: Model, whitened: bool = False) -> Basis:
        """The basis at `model`: without states that the others represent there, whitened if asked or if need be."""
        kept, smallest = independent(model.kernel, self.states, REDUNDANT)
        signal_to_noise = model.kernel.signal_variance / model.noise_variance
        error = np.finfo(np.float64).eps * signal_to_noise / smallest
        whitened = whitened or self.n_rows <= CHEAP or bool(error > ROUNDING)
        return Basis(model.kernel, self.states[kept], whitened)


def _key(model: Model) -> bytes:
    """What statistics depend on: the metric, and whether there is a bias."""
    return model.kernel.metric.theta.tobytes() + bytes([model.kernel.bias > 0])
