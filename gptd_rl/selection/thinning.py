"""How far to thin: the choice of τ that keeps model selection honest in stochastic systems.

The evidence of *all* returns is right when the system is deterministic. When it is not, neighbouring returns share
their noise, and the evidence rewards a kernel for recognising the episode. Whether that happened shows when whole
episodes are predicted from the others. So: a system without noise is not thinned; for any other, select θ for each τ of
a short list, predict every episode from the rest, and keep the largest τ that does it as well as the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.kernels import Kernel
from gptd_rl.selection import objectives
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.search import SelectionProblem
from gptd_rl.selection.variants import SearchOptions, compare
from gptd_rl.temporal.targets import Noise, Targets, build_targets
from gptd_rl.types import Array

# Leave-one-episode-out looks at about this many states.
VALIDATION_SIZE = 1000
# Fewer segments than this are cut into pieces, so that there is something to leave out.
MIN_SEGMENTS = 5
# Noise of less than this share of the returns' variance is none.
NEGLIGIBLE_NOISE = 5e-3
# States that a thinning must leave, to tell noise from a value function that few states do not resolve.
MIN_THINNED = 30


@dataclass(frozen=True, eq=False)
class ThinningResult:
    """One thinning, and how well whole episodes are predicted with the model it selects."""

    thinning: int
    noise_share: float  # σ² by the variance of the returns
    error: float  # root mean squared leave-one-episode-out error of the returns
    relevances: Array  # [D]
    model: Model
    squared_errors: Array  # of each episode


def horizon(data: Trajectories) -> float:
    """Steps over which returns share their noise: 1/(1−γ), or the mean segment if that is shorter."""
    gamma = float(data.discounts.max())
    longest = len(data) / data.n_segments
    return longest if gamma >= 1.0 else min(1.0 / (1.0 - gamma), longest)


def candidates(data: Trajectories) -> list[int]:
    """Thinnings worth trying: 1, 3, 10, 30, … up to twice the horizon."""
    limit = min(2.0 * horizon(data), (len(data) / data.n_segments) / 1.5)
    return [1] + [t for t in (3, 10, 30, 100, 300, 1000) if t <= limit]


def validation_subset(data: Trajectories) -> Trajectories:
    """The part of `data` on which thinnings are compared: about VALIDATION_SIZE states in segments to leave out.

    A run that is too long gives one piece only: pieces of the same run would tell too much about each other.
    """
    longest = VALIDATION_SIZE // MIN_SEGMENTS
    if data.n_segments < MIN_SEGMENTS:  # no choice: pieces of the same run, then
        data = data.cut(max(2, min(longest, -(-data.n_transitions // (2 * MIN_SEGMENTS)))))
    if len(data) <= VALIDATION_SIZE:
        return data
    n_pieces = np.maximum(-(-(data.lengths - 1) // longest), 1)
    first = np.cumsum(n_pieces) - n_pieces
    pieces = data.cut(longest)[first + np.arange(data.n_segments) % n_pieces]  # from all parts of an episode
    n_kept = max(MIN_SEGMENTS, round(pieces.n_segments * VALIDATION_SIZE / len(pieces)))
    return pieces[np.linspace(0, pieces.n_segments - 1, min(n_kept, pieces.n_segments)).round().astype(int)]


def choose(
    data: Trajectories,
    noise: Noise,
    kernel: str | Kernel,
    options: SearchOptions,
    bootstraps: Callable[[], bool] | None = None,
) -> tuple[ThinningResult | None, list[ThinningResult]]:
    """Choose the thinning: None for τ = 1 without further ado, or the result that won; and all results.

    A system is taken for deterministic, and not thinned, if the noise is negligible even at the largest τ, where it
    cannot hide in what neighbouring returns have in common. Otherwise it is the largest τ that predicts left-out
    episodes as well as the best does, within one standard error of the difference, by episode.

    Parameters
    ----------
    data : Trajectories
    noise : {"stochastic", "deterministic"}
    kernel : str or Kernel
        As in `GPTD`; "factor" and "auto" are tried as "ard".
    options : SearchOptions
    bootstraps : callable, optional
        Asked about a stochastic system: True if values will bootstrap. Then no smaller τ is tried.
    """
    part = validation_subset(data)
    *smaller, largest = candidates(part)
    if not smaller and bootstraps is None:
        return None, []
    if bootstraps is not None:
        *smaller, largest = [t for t in (*smaller, largest) if t == 1 or len(part) >= MIN_THINNED * t]
    kernel = "ard" if kernel in ("factor", "auto") else kernel
    targets = build_targets(part, noise, merge=False)
    last = _try(largest, part, targets, kernel, options)
    if last.noise_share < NEGLIGIBLE_NOISE:
        return None, [last]
    if bootstraps is not None and bootstraps():
        return last, [last]
    results = [*(_try(every, part, targets, kernel, options) for every in smaller), last]
    best = min(results, key=lambda t: t.error)
    return next(t for t in reversed(results) if _as_good(t, best)), results


def _try(
    every: int, part: Trajectories, targets: Targets, kernel: str | Kernel, options: SearchOptions
) -> ThinningResult:
    """Select θ with one thinning and predict every episode from the rest."""
    scale = measure_scale(part, 0 if options.actions is None else options.actions.n_categorical)
    problem = SelectionProblem.of(part, targets.noise, "thinned", every, scale)
    comparison = compare(kernel, problem, options)
    if comparison.interrupted:  # the model found so far is of a small part of the data
        raise KeyboardInterrupt
    model = comparison.best.model
    groups = objectives.episode_groups(targets)
    left_out = objectives.predict_left_out(model.with_noise(every * model.noise_variance), targets, groups)
    squared = left_out.squared_error
    error = float(np.sqrt(squared.sum() / targets.n_rows))
    share = model.noise_variance / scale.return_variance
    return ThinningResult(every, share, error, model.kernel.relevances, model, squared)


def _as_good(result: ThinningResult, best: ThinningResult) -> bool:
    loss = result.squared_errors - best.squared_errors
    return bool(loss.sum() <= np.sqrt(len(loss)) * loss.std())
