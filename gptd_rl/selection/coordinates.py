"""The free parameters of a model as an optimiser should see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.kernels import DataScale
from gptd_rl.selection.optimise import Function
from gptd_rl.temporal.targets import LinearTargets
from gptd_rl.types import Array, BoolArray

# Logarithm of the ratio by which an amplitude is far below another.
NOTHING = 3.0

# An input does not matter if its relevance is less than this share of the one below which its effect is linear.
IRRELEVANT = 0.1


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A map from the free parameters of a model to the coordinates x of a search, and back.

    Positive parameters move as logarithms, factor loadings in units of 1/std of their input. The relevances a_ν of
    single inputs are logarithmic when large but *linear when small* (an asinh): an irrelevant input reaches its bound
    in one step, where log a would creep down for ever.
    """

    template: Model
    free: BoolArray  # [P]
    unit: Array  # step of a plain parameter  [n_free]
    linear_below: Array  # log of the relevance below which steps are linear; nan for plain parameters  [n_free]
    lower: Array  # [n_free]
    upper: Array  # [n_free]

    @classmethod
    def of(cls, template: Model, scale: DataScale, noise_floor: float) -> Coordinates:
        """Free parameters of `template`, with the bounds that its kernel takes from the scale of the data."""
        space, i, theta = template.kernel.space(scale), template.noise_index, template.theta
        variance = scale.return_variance
        held = ~template.is_free
        lower = np.where(held, theta, np.insert(space.lower, i, np.log(float(noise_floor) * variance)))
        upper = np.where(held, theta, np.insert(space.upper, i, np.log(10.0 * variance)))
        free = template.is_free & (lower < upper)
        template = template.with_theta(np.where(free, theta, np.clip(theta, lower, upper)))
        unit, linear_below = np.insert(space.unit, i, 1.0), np.insert(space.linear_below, i, np.nan)
        blank = cls(template, free, unit[free], linear_below[free], lower[free], upper[free])
        return replace(blank, lower=blank._x(lower[free]), upper=blank._x(upper[free]))

    def pack(self, model: Model) -> Array:
        """Coordinates of `model`."""
        return np.clip(self._x(model.theta[self.free]), self.lower, self.upper)

    def lift(self, model: Model, guess: Model) -> Model:
        """`model` with amplitudes that are far below those of `guess` raised to them: at nothing, all slopes vanish."""
        theta, other = model.theta, guess.theta
        is_amplitude = np.arange(len(theta)) < model.noise_index
        return model.with_theta(np.where(self.free & is_amplitude & (theta < other - NOTHING), other, theta))

    def prune(self, guess: Array, mode: Array) -> Array:
        """`guess` without the inputs that do not matter in `mode`, the others sharing what it gave to all of them."""
        relevances, irrelevant = ~self._plain, self._irrelevant(mode)
        n_kept = max(1, relevances.sum() - irrelevant.sum())
        theta = self.unpack(guess).theta
        theta[self.free] += np.where(relevances, np.log(relevances.sum() / n_kept), 0.0)
        return np.where(irrelevant, self.lower, self.pack(self.template.with_theta(theta)))

    def n_irrelevant(self, x: Array) -> int:
        """Number of inputs that do not matter at `x`."""
        return int(self._irrelevant(x).sum())

    def total_relevance(self, x: Array) -> float:
        """Sum of the coordinates of all relevances."""
        return float(x[~self._plain].sum())

    def _irrelevant(self, x: Array) -> BoolArray:
        return ~self._plain & (x < IRRELEVANT)

    def unpack(self, x: Array) -> Model:
        """The model at `x`."""
        theta, plain = self._theta.copy(), self._plain
        theta[self.free] = np.where(plain, x * self.unit, self.linear_below + np.log(np.sinh(np.where(plain, 1.0, x))))
        return self.template.with_theta(theta)

    def function(
        self, objective: Callable[[Model], tuple[float, Array]], report: Callable[[float], None] | None = None
    ) -> Function:
        """`objective` as a function of x."""

        def f(x: Array) -> tuple[float, Array]:
            value, gradient = objective(self.unpack(x))
            if report is not None:
                report(value)
            return value, gradient[self.free] * self._slope(x)

        return f

    def curvature(self, x: Array, targets: LinearTargets) -> Array:
        """Fisher information of `targets` at `x`, with a ridge of a tenth of a nat."""
        information = exact.fisher_information(self.unpack(x), targets)[np.ix_(self.free, self.free)]
        slope = self._slope(x)
        return information * np.multiply.outer(slope, slope) + 0.1 * np.eye(len(x))

    @cached_property
    def _theta(self) -> Array:
        return self.template.theta

    @cached_property
    def _plain(self) -> BoolArray:
        """Which coordinates are no relevances."""
        return np.isnan(self.linear_below)

    def _x(self, theta: Array) -> Array:
        plain = self._plain
        return np.where(plain, theta / self.unit, np.arcsinh(np.exp(np.where(plain, 0.0, theta - self.linear_below))))

    def _slope(self, x: Array) -> Array:
        """∂θ/∂x."""
        plain = self._plain
        return np.where(plain, self.unit, 1.0 / np.tanh(np.where(plain, 1.0, x)))
