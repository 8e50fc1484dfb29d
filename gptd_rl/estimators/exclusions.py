"""What it costs to leave inputs out, by the evidence and at left-out episodes.

A model without some inputs is not selected anew. It starts at the θ of the whole model, the inputs that are left take
over what they tell about the others, and a few steps of the search follow. With d² = Σ a_i(x_i − x'_i)² and a linear
regression x_e ≈ Σ B_ei x_i of a left-out input on those left, a_i grows by Σ_e a_e B_ei². The whole model makes the
same steps, so that the two compare.

Both are judged on the same data by what selected θ: the evidence of returns, thinned or not, or that of instrumented
rewards, with the instruments of *all* inputs. Left-out episodes are predicted from the others by their returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.kernels import DataScale
from gptd_rl.selection import thinning
from gptd_rl.selection.coordinates import Coordinates
from gptd_rl.selection.moments import MomentEvidence
from gptd_rl.selection.objectives import episode_groups, predict_left_out
from gptd_rl.selection.optimise import lbfgs
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.search import SelectionProblem
from gptd_rl.temporal.instruments import instrumented_targets
from gptd_rl.temporal.means import values_at
from gptd_rl.temporal.returns import Returns
from gptd_rl.temporal.targets import LinearTargets, Targets, build_targets
from gptd_rl.temporal.transitions import Transitions
from gptd_rl.types import Array, IntArray

# States of a thinned part whose evidence is compared, and states of left-out episodes; fewer where there are many
# inputs, so that each costs less.
N_COMPARED = 500
N_LEFT_OUT = 600
FEWEST = 200
FEW_INPUTS = 4

# Steps of the search, and an improvement in nats that is too small for a further one.
N_STEPS = 8
TOLERANCE = 0.05

# Relevances and variances below this are none.
SMALLEST = 1e-300

# Episodes, or pieces of them, in a sample at least.
N_PIECES = 10


@dataclass(frozen=True)
class Cost:
    """What leaving some inputs out costs.

    Attributes
    ----------
    evidence : float
        Decrease of the log evidence, in nats: positive if the inputs are wanted.
    error : float
        Increase of the mean squared error at left-out episodes, as a share of the variance of their returns; NaN where
        no episode can be left out, or where returns are those of another policy.
    standard_error : float
        Of `error`, by pairs of errors at the same episode.
    """

    TOLERATED: ClassVar[float] = 3.0  # nats
    TOLERATED_ERROR: ClassVar[float] = 1e-3  # of the variance of returns
    STANDARD_ERRORS: ClassVar[float] = 2.0

    evidence: float
    error: float
    standard_error: float

    @property
    def is_nothing(self) -> bool:
        """Whether neither the evidence nor left-out episodes speak against leaving the inputs out."""
        # where it is NaN the evidence decides
        costs_error = self.error > max(self.STANDARD_ERRORS * self.standard_error, self.TOLERATED_ERROR)
        return self.evidence < self.TOLERATED and not costs_error

    def __str__(self) -> str:
        text = f"evidence {-self.evidence:+.1f} nats"
        if np.isnan(self.error):
            return text
        noise = f"{100 * self.error:+.2g} ± {100 * self.standard_error:.2g} %"
        return f"{text}, squared error at left-out episodes {noise} of the variance of returns"


@dataclass(frozen=True, eq=False)
class Exclusions:
    """A fitted model without some of its inputs, compared with the whole on a sample of its data."""

    v: Any  # GPTD or GPTDQ
    compared: Trajectories
    scale: DataScale
    left_out: Targets | None
    return_noise: float  # of a model that bootstraps: its σ² is that of TD errors

    @classmethod
    def of(cls, v: Any) -> Exclusions:
        """Take samples of the data that `v` was fitted to."""
        data = v._engine("compare models on").contiguous_sample
        share = min(1.0, (FEW_INPUTS / v.n_dims_) ** 0.5)
        n_compared, n_left_out = (max(FEWEST, int(n * share)) for n in (N_COMPARED, N_LEFT_OUT))
        compared = _sample(data, n_compared * v.thinning_, 1)
        episodes = None if data.policy_actions is not None else _sample(data, n_left_out, N_PIECES)
        if episodes is not None and episodes.n_segments < 2:
            episodes = None
        targets = None if episodes is None else build_targets(episodes, v.noise, merge=False)
        noise = np.nan if episodes is None or not v.bootstrap_ else _return_noise(v, episodes)
        return cls(v, compared, measure_scale(data, v.actions_.n_categorical), targets, noise)

    @property
    def n_transitions(self) -> int:
        """Transitions that the evidence is of."""
        return self.compared.n_transitions

    @property
    def evidence(self) -> float:
        """Log evidence of the whole model."""
        return -self._whole.value

    def remove(self, candidates: Iterable[int]) -> tuple[int, ...]:
        """Leave out one candidate after the other, in this order, where all that are out together cost nothing."""
        removed: tuple[int, ...] = ()
        for i in candidates:
            if len(removed) + 1 < len(self.v.inputs_) and self.cost([*removed, i]).is_nothing:
                removed = (*removed, i)
        return removed

    def cost(self, inputs: Iterable[int]) -> Cost:
        """What leaving out some inputs costs, as they are numbered in `fit`; some input must be left."""
        kept = np.flatnonzero(~np.isin(self.v._columns, list(inputs)))
        found = self._search(self._restricted(kept), kept)
        return Cost(found.value - self._whole.value, *self._more_error(found.model, kept))

    # ---------------------------------------------------------------------------------- models

    @cached_property
    def _whole(self) -> _Found:
        return self._search(self.v.model_, self._all)

    @property
    def _all(self) -> IntArray:
        return np.arange(len(self.v._columns))

    def _coordinates(self, kept: IntArray) -> IntArray:
        """The columns `kept` that a kernel reads as numbers: all but the labels of actions."""
        return kept[kept < len(self.v._columns) - self.v.actions_.n_categorical]

    def _restricted(self, kept: IntArray) -> Model:
        """The whole model with the columns `kept`, which take over what they tell about the others."""
        whole, coordinates = self._whole.model, self._coordinates(kept)
        model = replace(whole, kernel=whole.kernel.take_inputs(coordinates))
        names = list(model.parameter_names)
        places = [names.index(name) for i in range(len(coordinates)) if (name := f"a{i + 1}") in names]
        if len(places) < len(coordinates):  # not a relevance for each input
            return model
        left_out = np.setdiff1d(self._coordinates(self._all), coordinates)
        more = self._slopes(left_out, coordinates) ** 2 @ whole.kernel.relevances[left_out]
        theta = model.theta
        theta[places] = np.log(np.maximum(np.exp(theta[places]) + more, SMALLEST))
        return model.with_theta(theta)

    def _slopes(self, left_out: IntArray, kept: IntArray) -> Array:
        """B: coefficients of regressions of the inputs left out on those kept, of shape (n_kept, n_left_out)."""
        x = self.compared.states - self.compared.states.mean(axis=0)
        spread = x[:, kept].std(axis=0)
        spread = np.where(spread > 0.0, spread, np.inf)
        return np.asarray(np.linalg.lstsq(x[:, kept] / spread, x[:, left_out], rcond=1e-6)[0] / spread[:, None])

    def _search(self, model: Model, kept: IntArray) -> _Found:
        """A few steps from `model`."""
        scale = self.scale.take_inputs(self._coordinates(kept))
        space = Coordinates.of(model, scale, self.v.noise_floor)
        objective = space.function(self._objective(kept, scale).refine(model))
        found = lbfgs(objective, space.pack(model), space.lower, space.upper, N_STEPS, tolerance=TOLERANCE)
        return _Found(space.unpack(found.x), found.value)

    # ---------------------------------------------------------------------------------- judges

    @cached_property
    def _instrumented(self) -> LinearTargets:
        return instrumented_targets(Transitions.of(self.compared), self.v.actions_.n_categorical)

    def _objective(self, kept: IntArray, scale: DataScale) -> Any:
        """What selected θ, of the sample with the columns `kept`."""
        v = self.v
        if v.bootstrap_ and v.objective == "auto":
            return MomentEvidence(replace(self._instrumented, states=self._instrumented.states[:, kept]))
        name = v.objective if v.objective in ("loo", "leave_one_episode_out") else "thinned"
        return SelectionProblem.of(self.compared.take_inputs(kept), v.noise, name, v.thinning_, scale).objective

    @cached_property
    def _errors(self) -> Array:
        return self._left_out_errors(self._whole.model, self._all)

    def _more_error(self, model: Model, kept: IntArray) -> tuple[float, float]:
        """`error` and `standard_error` of `Cost`."""
        if self.left_out is None:
            return np.nan, np.nan
        more = self._left_out_errors(model, kept) - self._errors  # [n_episodes]
        unit = self.left_out.n_rows * max(float(self.left_out.y.var()), SMALLEST)
        return float(more.sum()) / unit, float(np.sqrt(len(more)) * more.std(ddof=1)) / unit

    def _left_out_errors(self, model: Model, kept: IntArray) -> Array:
        """Sum of squared errors of each episode, predicted from the others; of shape (n_episodes,)."""
        assert self.left_out is not None
        targets = replace(self.left_out, states=self.left_out.states[:, kept])
        if self.v.bootstrap_:  # amplitudes were found beside another noise: the same ones, then
            n, theta = model.noise_index, model.theta
            theta[:n] = self._whole.model.theta[:n]
            model = model.with_theta(theta).with_noise(self.return_noise)
        else:
            model = model.with_noise(self.v.thinning_ * model.noise_variance)
        return predict_left_out(model, targets, episode_groups(targets)).squared_error


@dataclass(frozen=True, eq=False)
class _Found:
    model: Model
    value: float  # minus the log evidence


def _sample(data: Trajectories, n_states: int, n_pieces: int) -> Trajectories:
    """About `n_states` states in so many episodes at least, or pieces of long ones."""
    if len(data) <= n_states and data.n_segments >= n_pieces:
        return data
    longest = max(2, min(n_states, len(data)) // max(n_pieces, 8))
    parts = data.cut(longest) if data.lengths.max() > longest + 1 else data
    order = np.random.default_rng(0).permutation(parts.n_segments)
    n_kept = int(np.searchsorted(np.cumsum(parts.lengths[order]), n_states)) + 1
    return parts[np.sort(order[:n_kept])]


def _return_noise(v: Any, data: Trajectories) -> float:
    """Variance of returns around V, times the steps that share their noise."""
    returns = Returns.of(data)
    values = values_at(v.posterior_.mean, data)
    errors = (returns.y - returns.difference(values))[returns.usable]
    return float(np.mean(errors**2)) * thinning.horizon(data)
