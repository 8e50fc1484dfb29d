"""Selecting a kernel for regression targets of states and numbered actions, by their evidence.

For bootstrapped values and for dynamics alike: targets are given, so this is plain Gaussian-process regression on at
most a few hundred of them, with the covariance v₀k(x, x')·(ρ + (1−ρ)δ(a, a')) + σ²I.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gptd_rl.checks import as_correlation, check_number
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.kernels import ActionDelta, Kernel, registry
from gptd_rl.selection.optimise import lbfgs
from gptd_rl.selection.scales import measure_scale
from gptd_rl.temporal.targets import build_targets
from gptd_rl.types import Array, IntArray

# Steps from the best start with another correlation of actions.
FURTHER_STEPS = 10


@dataclass(frozen=True, eq=False)
class KernelSelection:
    """A kernel and the evidence of regression targets for it.

    Attributes
    ----------
    kernel : Kernel
        Of states, with unit variance.
    signal_variance, noise_variance : float
        v₀ and σ² at the maximum of the evidence.
    evidence : Evidence
        Of the targets that were used.
    correlation : float
        ρ, the prior correlation between two actions.
    """

    kernel: Kernel
    signal_variance: float
    noise_variance: float
    evidence: Evidence
    correlation: float = 0.0

    @property
    def noise_share(self) -> float:
        """λ = σ²/v₀."""
        return self.noise_variance / self.signal_variance

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists from which `from_dict` builds the selection again."""
        return dict(asdict(replace(self, kernel=None)), kernel=registry.describe(self.kernel))  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> KernelSelection:
        """Build what `to_dict` described."""
        kernel, evidence = registry.build(description["kernel"]), Evidence.from_dict(description["evidence"])
        for name in ("signal_variance", "noise_variance"):
            check_number(name, description[name], above=0.0)
        as_correlation(description.get("correlation", 0.0))
        return cls(**dict(description, kernel=kernel, evidence=evidence))


@dataclass(frozen=True, eq=False)
class RegressionTargets:
    """Targets of a regression on states and actions.

    Attributes
    ----------
    states : ndarray of shape (n, n_dims)
    actions : ndarray of shape (n,)
        Indices.
    values : ndarray of shape (n,)
        Not all zero; their prior mean is 0.
    n_actions : int
    """

    states: Array
    actions: IntArray
    values: Array
    n_actions: int

    def take(self, rows: IntArray) -> RegressionTargets:
        """Some of the targets."""
        return replace(self, states=self.states[rows], actions=self.actions[rows], values=self.values[rows])

    def sample(self, size: int, rng: np.random.Generator) -> RegressionTargets:
        """At most `size` of the targets, drawn at random."""
        if len(self.values) <= size:
            return self
        return self.take(np.sort(rng.choice(len(self.values), size, replace=False)))


def select_regression_kernel(
    targets: RegressionTargets,
    starts: Sequence[tuple[Kernel, float]],
    *,
    correlations: Sequence[float] = (0.0,),
    noise_shares: tuple[float, float],
    max_steps: int,
) -> KernelSelection:
    """Maximise the evidence p(targets | θ) by L-BFGS, from several starts.

    Parameters
    ----------
    targets : RegressionTargets
    starts : sequence of (Kernel, float)
        Kernels of states with unit variance, and σ² as a share of the mean square of the targets.
    correlations : sequence of float
        Values of ρ to choose from; the first one for all starts, the others from the best.
    noise_shares : tuple of 2 floats
        Bounds of σ², as shares of the mean square of the targets.
    max_steps : int
        From each start.
    """
    first, *others = correlations if targets.n_actions > 1 else correlations[:1]
    found = [_maximise(targets, kernel, noise, first, noise_shares, max_steps) for kernel, noise in starts]
    best = max(found, key=lambda s: s.evidence.log_likelihood)
    size = float(np.mean(targets.values**2))
    for correlation in others:
        noise = best.noise_variance / size
        other = _maximise(targets, best.kernel, noise, correlation, noise_shares, FURTHER_STEPS)
        best = max(best, other, key=lambda s: s.evidence.log_likelihood)
    return best


def _maximise(
    targets: RegressionTargets,
    kernel: Kernel,
    noise: float,
    correlation: float,
    noise_shares: tuple[float, float],
    max_steps: int,
) -> KernelSelection:
    data = Trajectories.from_values(np.column_stack([targets.states, targets.actions]), targets.values)
    scale = measure_scale(data, n_categorical=1)
    rows, size = build_targets(data, "stochastic"), float(np.mean(targets.values**2))
    tied = rescale(kernel, amplitude=size) * ActionDelta(targets.n_actions, correlation)
    model, space = Model(tied, noise * size), tied.space(scale)
    lower, upper = (
        np.insert(bound, model.noise_index, np.log(share * size))
        for bound, share in zip((space.lower, space.upper), noise_shares, strict=True)
    )
    free, theta = model.is_free, np.clip(model.theta, lower, upper)
    theta[~free] = model.theta[~free]

    def minus_log_evidence(x: Array) -> tuple[float, Array]:
        theta[free] = x
        evidence, gradient = exact.evidence_and_gradient(model.with_theta(theta), rows)
        return -evidence.log_likelihood, gradient[free]

    theta[free] = lbfgs(minus_log_evidence, theta[free], lower[free], upper[free], max_steps).x
    best = model.with_theta(theta)
    selected = kernel.with_theta(best.kernel.theta)
    v0 = float(selected.diagonal(targets.states[:1])[0])
    unit = rescale(selected, amplitude=1.0 / v0)
    return KernelSelection(unit, v0, best.noise_variance, exact.evidence(best, rows), correlation)


def rescale(kernel: Kernel, amplitude: float = 1.0, relevance: float = 1.0) -> Kernel:
    """The same kernel with its variance and its metric Ω times a factor each."""
    theta, n = kernel.theta, kernel.n_amplitudes
    theta[:n] += np.log(amplitude)
    theta[n:] = np.where(kernel.is_log[n:], theta[n:] + np.log(relevance), theta[n:] * np.sqrt(relevance))
    return kernel.with_theta(theta)
