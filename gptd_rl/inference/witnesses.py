"""What the test of the Markov property makes of each step: features of its states, and witnesses of its past."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gptd_rl import linalg
from gptd_rl.data.resampling import evenly_spaced
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.inducing import ROUNDING, incomplete_cholesky
from gptd_rl.kernels.metrics import Isotropic
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.types import Array, BoolArray, IntArray

# Segments are cut into stretches of so many steps.
STRETCH = 1000

# The squared exponential of the features: its lengthscale, in standard deviations along each principal axis, its number
# of inducing points, per step and at most, and the candidates for these. An axis of the standardised inputs is not
# stretched beyond this share of the largest variance.
LENGTHSCALE = 0.5
POINTS_PER_STEP, MOST_POINTS, N_CANDIDATES = 0.25, 200, 1000
SMALLEST_AXIS = 1e-5

# Rows that are turned into features together.
BLOCK = 2048


@dataclass(frozen=True, eq=False)
class Steps:
    """The transitions of some data, one a row."""

    states: Array  # [n, D]
    next_states: Array  # [n, D]
    rewards: Array  # [n]
    discounts: Array  # 0 into terminal states  [n]
    changes: Array  # since the step before; 0 at the start of a stretch  [n, D]
    has_past: BoolArray  # [n]
    stretch: NDArray[np.uint64]  # a number made from the states at its ends  [n]
    number: IntArray  # of the step within its stretch  [n]

    @classmethod
    def of(cls, data: Trajectories) -> Steps:
        """Take the transitions of `data` one by one."""
        data = data.cut(STRETCH) if data.lengths.max() > STRETCH + 1 else data
        left = np.flatnonzero(data.has_transition)
        is_terminal = np.zeros(len(data), dtype=bool)
        is_terminal[data.last[data.terminated]] = True
        number = (np.arange(len(data)) - data.starts[data.segment_of])[left]
        has_past = number > 0
        states = data.states[left]
        return cls(
            states,
            data.states[left + 1],
            data.rewards[left],
            np.where(is_terminal[left + 1], 0.0, data.discounts[left]),
            np.where(has_past[:, None], states - data.states[left - has_past], 0.0),
            has_past,
            _stretch_keys(data)[data.segment_of[left]],
            number,
        )

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.rewards)

    def blocks(self) -> list[Steps]:
        """Rows in pieces of at most BLOCK."""
        names = self.__dataclass_fields__
        cuts = range(0, len(self), BLOCK)
        return [Steps(**{name: getattr(self, name)[i : i + BLOCK] for name in names}) for i in cuts]


def _stretch_keys(data: Trajectories) -> NDArray[np.uint64]:
    """A number for each segment from its first and last state and its length: the same in whatever shard it lies."""
    ends = np.column_stack([data.states[data.starts], data.states[data.last], data.lengths.astype(np.float64)])
    odd = np.random.default_rng(0).integers(2**63, size=ends.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return (np.ascontiguousarray(ends).view(np.uint64) * odd).sum(axis=1, dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class Instruments:
    """What is made of a step: features ψ of its states, and witnesses u of its past.

    Features are a squared exponential over the *principal axes* of the inputs, each scaled to variance one, so that the
    difference of two inputs that are nearly equal (stacked frames) is an axis of its own.
    """

    centre: Array  # [D]
    scale: Array  # standard deviations, 1 for constant inputs  [D]
    axes: Array  # [D, D]
    change_scale: Array  # [D]
    points: Array  # inducing points, along the axes  [m, D]
    L: Array  # Cholesky factor of their covariance  [m, m]

    @classmethod
    def of(cls, steps: Steps) -> Instruments:
        """Scale and features for the inputs of a sample."""
        centre, scale = steps.states.mean(axis=0), steps.states.std(axis=0)
        scale[scale <= ROUNDING * np.abs(centre)] = 1.0
        standardised = (steps.states - centre) / scale
        variances, axes = np.linalg.eigh(standardised.T @ standardised / len(steps))
        axes = axes / np.sqrt(positive(np.maximum(variances, SMALLEST_AXIS * variances[-1])))
        # Σψψᵀ cannot know more functions of the state than there are steps
        size = min(MOST_POINTS, max(1, int(POINTS_PER_STEP * len(steps))))
        candidates = np.unique((standardised @ axes)[evenly_spaced(len(steps), N_CANDIDATES)], axis=0)
        kernel = _kernel(len(centre))
        points = candidates[incomplete_cholesky(kernel, candidates, size, tolerance=1e-6).indices]
        L = linalg.cholesky(lambda: kernel(points, points))
        return cls(centre, scale, axes, positive(steps.changes.std(axis=0)), points, L)

    @property
    def n_features(self) -> int:
        """Number m' of features."""
        return len(self.points) + 1 + len(self.centre)

    def along_axes(self, states: Array) -> Array:
        """States along the principal axes, of shape (n, n_dims)."""
        standardised = (states - self.centre) / self.scale
        # not a matrix product: equal states stay equal to the last digit, in whatever block
        return sum((standardised[:, [i]] * axis for i, axis in enumerate(self.axes)), np.zeros_like(standardised))

    def features(self, states: Array) -> Array:
        """ψ: squared exponentials, a constant and the inputs themselves, of shape (n, n_features)."""
        z = self.along_axes(states)
        psi = linalg.half_solve(self.L, _kernel(z.shape[1])(self.points, z)).T
        return np.column_stack([psi, np.ones(len(z)), z])

    def witnesses(self, steps: Steps) -> Array:
        """u: each input's change, then each change times the input, of shape (n, 2·n_dims)."""
        changes = steps.changes / self.change_scale
        return np.hstack([changes, changes * (steps.states - self.centre) / self.scale])


def _kernel(n_dims: int) -> SquaredExponential:
    return SquaredExponential(Isotropic(LENGTHSCALE**-2.0, n_dims))


def positive(scale: Array) -> Array:
    """Scales to divide by: 1 where they are 0."""
    return np.where(scale > 0, scale, 1.0)
