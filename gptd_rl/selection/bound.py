"""The sparse evidence as an objective: the variational bound over all shards, with inducing points chosen for θ.

Kept apart from `objectives`, whose matrices hold all pairs of states; here each evaluation is two passes over the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gptd_rl.inference.features import InducingFeatures, KernelSplit
from gptd_rl.inference.inducing import REDUNDANT, InducingPointSelector, independent
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.inference.sparse import Solution
from gptd_rl.inference.statistics import Statistics, pull_back, statistics
from gptd_rl.selection.objectives import Objective
from gptd_rl.types import Array

# Rounding errors of the bound, in nats for each reward, that are worth the cost of whitened features; with no more
# rewards than these, any are.
ROUNDING = 5e-7
CHEAP = 30_000


class Dataset(Protocol):
    """Data over which functions of a `Shard` are summed."""

    def sum(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Σ function(shard, *arguments) over all shards."""
        ...


class Bound:
    """−bound on log p(r) and its gradient, averaged over parts of the data, as `MarginalLikelihood` is."""

    def __init__(self, parts: Sequence[Dataset], selector: InducingPointSelector, n_rows: int) -> None:
        self.parts = tuple(parts)
        self.selector = selector
        self.n_rows = n_rows  # of a part
        self._last: tuple[bytes, FixedBound] | None = None

    def refine(self, model: Model, like: Any = None) -> FixedBound:
        """With inducing points chosen for `model`, or with those of the bound `like`."""
        states = like.states if isinstance(like, FixedBound) else self.selector.select(model, self.n_rows)
        return FixedBound(self.parts, states, self.n_rows)

    def remember(self, model: Model, refined: Objective) -> None:
        """Keep the inducing points with which `model` was found."""
        if isinstance(refined, FixedBound):
            self.selector.cache[_key(model)] = refined.states

    def found(self, model: Model) -> FixedBound:
        """With the inducing points with which `model` was found, or with some chosen for it."""
        key = _key(model)
        if key not in self.selector.cache:
            self.remember(model, self.refine(model))
        if self._last is None or self._last[0] != key:
            self._last = (key, FixedBound(self.parts, self.selector.cache[key], self.n_rows))
        return self._last[1]

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient, with inducing points chosen for `model` itself."""
        return self.refine(model)(model)

    def evidence(self, model: Model) -> Evidence:
        """Bound with its complexity and fit."""
        return self.found(model).evidence(model)


class FixedBound:
    """The bound with inducing points that stay, smooth in θ."""

    def __init__(self, parts: Sequence[Dataset], states: Array, n_rows: int) -> None:
        self.parts, self.states, self.n_rows = tuple(parts), states, n_rows
        self._last: tuple[bytes, tuple[float, Array]] | None = None
        self._known: tuple[bytes, list[Statistics]] | None = None

    def refine(self, model: Model, like: Any = None) -> FixedBound:
        """The inducing points stay."""
        return self

    def remember(self, model: Model, refined: Objective) -> None:
        """There is nothing to keep."""

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient: two passes over the data, one for the statistics and one for their derivatives."""
        key = model.theta.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = (key, self._evaluate(model))
        return self._last[1]

    def _evaluate(self, model: Model) -> tuple[float, Array]:
        value, gradient = 0.0, np.zeros(len(model.theta))
        features = self.features(model)
        for part in self.parts:
            solution = Solution.of(model, features, part.sum(statistics, features))
            by_statistics = part.sum(pull_back, features, solution.statistics_gradient())
            value -= solution.evidence.log_likelihood
            gradient += solution.gradient(by_statistics)
        return value / len(self.parts), gradient / len(self.parts)

    def evidence(self, model: Model) -> Evidence:
        """Bound with its complexity and fit, averaged over the parts: one pass."""
        features = self.features(model, whitened=True)
        return Evidence.mean([Solution.of(model, features, known).evidence for known in self.statistics(model)])

    def statistics(self, model: Model) -> list[Statistics]:
        """Statistics of the whitened features for each part; the last answer is remembered."""
        key = _key(model)
        if self._known is None or self._known[0] != key:
            features = self.features(model, whitened=True)
            self._known = (key, [part.sum(statistics, features) for part in self.parts])
        return self._known[1]

    def features(self, model: Model, whitened: bool = False) -> InducingFeatures:
        """The features at `model`: without redundant inducing points, whitened if asked or if need be."""
        kernel = KernelSplit.of(model.kernel).inducing
        kept, smallest = independent(kernel, self.states, REDUNDANT)
        signal_to_noise = float(kernel.diagonal(self.states).max()) / model.noise_variance
        error = np.finfo(np.float64).eps * signal_to_noise / smallest
        whitened = whitened or self.n_rows <= CHEAP or bool(error > ROUNDING)
        return InducingFeatures(model.kernel, self.states[kept], whitened)


def _key(model: Model) -> bytes:
    """What statistics depend on: the kernel."""
    return model.kernel.theta.tobytes()
