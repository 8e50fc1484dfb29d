"""What model selection minimises: each objective is a function of θ with its gradient, in closed form.

- `MarginalLikelihood`: −log p(r), the paper's. Right for deterministic systems.
- `MarginalLikelihood` of `thinned_parts`: the evidence of every τ-th state, averaged over offsets. In a stochastic
  system neighbouring returns share their noise, and the plain evidence takes what merely identifies an episode for
  relevant; states τ steps apart are nearly independent.
- `LeaveOut`: how well each return, or each whole episode, is predicted from all the others.
- `bound.Bound`: the variational bound of the sparse model.

All of them are in nats: of all targets, or of one thinned part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gptd_rl import linalg
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import Evidence
from gptd_rl.kernels import DataScale
from gptd_rl.temporal.targets import LinearTargets, Targets
from gptd_rl.types import Array, IntArray

# The thinned evidence is averaged over this many offsets; over more while the parts are small, over fewer if they are
# so large that one says nearly what all do.
MIN_OFFSETS = 5
MIN_STATES = 2000
ENOUGH_STATES = 100_000


class Objective(Protocol):
    """A function of θ to minimise."""

    @property
    def n_rows(self) -> int:
        """Number of rewards in it: curvatures are in proportion to them."""
        ...

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value in nats, smaller is better, and its gradient with respect to θ."""
        ...

    def evidence(self, model: Model) -> Evidence:
        """Log marginal likelihood of the data as this objective uses them."""
        ...

    def refine(self, model: Model, like: Any = None) -> Objective:
        """The objective with approximations chosen for `model`, or taken over from the refined objective `like`."""
        ...

    def remember(self, model: Model, refined: Objective) -> None:
        """Keep the approximations with which `model` was found."""
        ...


class ExactObjective:
    """An objective without approximations to choose."""

    def refine(self, model: Model, like: Any = None) -> Any:
        """There is nothing to choose."""
        return self

    def remember(self, model: Model, refined: Objective) -> None:
        """There is nothing to keep."""


class MarginalLikelihood(ExactObjective):
    """−log p(r) and its gradient, averaged over parts of the data: of thinned parts, a composite likelihood.

    Keeps one buffer, since fresh memory costs time.
    """

    def __init__(self, *parts: LinearTargets) -> None:
        self.parts = parts
        self.n_rows = round(np.mean([part.n_rows for part in parts]))
        self._memory = np.empty(max(len(part.states) for part in parts) ** 2)

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient."""
        found = [exact.evidence_and_gradient(model, part, self._scratch(part)) for part in self.parts]
        values, gradients = zip(*found, strict=True)
        return -sum(v.log_likelihood for v in values) / len(found), np.asarray(sum(gradients)) / len(found)

    def evidence(self, model: Model) -> Evidence:
        """Evidence with its complexity and fit, averaged over the parts."""
        return Evidence.mean([exact.evidence(model, part, self._scratch(part)) for part in self.parts])

    def _scratch(self, part: LinearTargets) -> Array:
        n = len(part.states)
        return self._memory[: n * n].reshape(n, n)


@dataclass(frozen=True, eq=False)
class Prior:
    """A weak prior on θ for thinned data, whose parts are small: a few nats, so any clear evidence overrules it.

    Small parts let a wiggly, noiseless fit win by chance. The prior finds it implausible that the value function
    turns over many times within the spread of an input, and that a stochastic system has no noise.
    """

    scale: DataScale

    # E[d²/2] for states one standard deviation apart; the noise share of the returns' variance, with its spread in log
    ROUGHNESS = 3.0
    NOISE_SHARE = 0.3
    NOISE_SPREAD = 1.5

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Minus the log prior and its gradient."""
        roughness, gradient = model.kernel.roughness(self.scale)
        expected = self.NOISE_SHARE * self.scale.return_variance
        deviation = np.log(model.noise_variance / expected) / self.NOISE_SPREAD
        value = roughness / self.ROUGHNESS + 0.5 * deviation**2
        return value, model.pack_gradient(gradient / self.ROUGHNESS, deviation / self.NOISE_SPREAD)


def thinned_parts(
    data: Trajectories, every: int, min_offsets: int = MIN_OFFSETS, min_states: int = MIN_STATES
) -> list[Trajectories]:
    """`data` thinned from a handful of evenly spaced offsets."""
    if every == 1:
        return [data]
    parts = [data.thin(every)]
    for offset in offsets(len(data), int(data.lengths.max()), every, min_offsets, min_states)[1:]:
        try:
            parts.append(data.thin(every, offset))
        except ValueError:  # no segment is that long
            break
    return parts


def offsets(
    n_states: int, longest: int, every: int, min_offsets: int = MIN_OFFSETS, min_states: int = MIN_STATES
) -> list[int]:
    """From where to thin: a handful of evenly spaced offsets, the first of them 0."""
    n_offsets = max(min(min_offsets, -(-ENOUGH_STATES * every // n_states)), -(-min_states * every // n_states))
    n_different = min(every, longest - 1)
    spaced = np.linspace(0, n_different, min(n_offsets, max(1, n_different)), endpoint=False)
    return [int(o) for o in np.unique(spaced.astype(int))]


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Each target predicted from the targets of all other groups."""

    residuals: Array  # [q], target less prediction
    variances: Array  # [q], of the prediction, noise included
    groups: Sequence[IntArray]

    @property
    def squared_error(self) -> Array:
        """Sum of squared residuals of each group, of shape (n_groups,)."""
        return np.array([float(self.residuals[g] @ self.residuals[g]) for g in self.groups])


def visit_groups(targets: Targets) -> list[IntArray]:
    """Each target a group of its own."""
    return [np.array([i]) for i in np.flatnonzero(targets.H.has_row)]


def episode_groups(targets: Targets) -> list[IntArray]:
    """The targets of each segment as a group."""
    rows = np.flatnonzero(targets.H.has_row)
    return np.split(rows, np.flatnonzero(np.diff(targets.H.segment_of[rows])) + 1)


class LeaveOut(ExactObjective):
    """Minus the log density of each target given all other groups; one visit or one episode a group.

    Marginal densities of single targets, not the joint density of an episode: a joint density would again reward a
    kernel for explaining the correlation of the noise within an episode. In a truncated segment the targets are
    the returns after `Reflection`: a single one left out is not quite a single return; a whole episode left out is.
    """

    def __init__(self, targets: Targets, groups: Sequence[IntArray]) -> None:
        self.targets, self.groups, self.n_rows = targets, groups, targets.n_rows

    def __call__(self, model: Model) -> tuple[float, Array]:
        """Value and gradient."""
        P, w = _inverse(model, self.targets)
        value, q, N = 0.0, np.zeros_like(w), np.zeros_like(P)
        for g in self.groups:
            C, residual = _left_out_block(P, w, g)
            variance = np.diagonal(C)
            value += 0.5 * float((np.log(2.0 * np.pi * variance) + residual**2 / variance).sum())
            by_variance = 0.5 * (1.0 / variance - (residual / variance) ** 2)
            by_residual = residual / variance
            # C = M⁻¹ and residual = C w with M = [S⁻¹]_gg: ∂/∂M = −C diag(·)C − sym(C h residualᵀ), ∂/∂w = C h
            Ch = C @ by_residual
            outer = np.multiply.outer(Ch, residual)
            N[np.ix_(g, g)] = -(C * by_variance) @ C - 0.5 * (outer + outer.T)
            q[g] = Ch
        # ∂/∂S = −P N P − sym(P q wᵀ)
        outer = np.multiply.outer(P @ q, w)
        A = -(P @ N @ P) - 0.5 * (outer + outer.T)
        return value, exact.gradient(model, self.targets, np.ascontiguousarray(A))

    def evidence(self, model: Model) -> Evidence:
        """Log marginal likelihood of all rewards."""
        return exact.evidence(model, self.targets)


def predict_left_out(model: Model, targets: Targets, groups: Sequence[IntArray]) -> LeftOut:
    """Predict each group's targets from all other groups'."""
    P, w = _inverse(model, targets)
    residuals, variances = np.zeros_like(w), np.zeros_like(w)
    for g in groups:
        C, residuals[g] = _left_out_block(P, w, g)
        variances[g] = np.diagonal(C)
    return LeftOut(residuals, variances, groups)


def _inverse(model: Model, targets: Targets) -> tuple[Array, Array]:
    L = exact.factorise(model, targets)
    w = linalg.solve(L, targets.y)
    return linalg.symmetrise_in_place(linalg.inverse_in_place(L)), w


def _left_out_block(P: Array, w: Array, group: IntArray) -> tuple[Array, Array]:
    """Predictive covariance and residual of a group: C = (P_gg)⁻¹, residual = C w_g."""
    if len(group) == 1:
        C = 1.0 / P[np.ix_(group, group)]
    else:
        block = P[np.ix_(group, group)]
        factor = linalg.cholesky(lambda: block.copy())
        C = linalg.symmetrise_in_place(linalg.inverse_in_place(factor))
    return C, C @ w[group]
