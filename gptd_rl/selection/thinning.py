"""How far to thin: the choice of τ that keeps model selection honest in stochastic systems.

The evidence of *all* returns is right when the system is deterministic. When it is not, neighbouring returns share
their noise, and the evidence rewards a kernel for recognising the episode. Whether that happened shows when whole
episodes are predicted from the others. So: a system without noise is not thinned; for any other, select θ for each τ of
a short list, predict every episode from the rest, and keep the largest τ that does it as well as the best.

The largest τ comes first: its thinned parts are small, so exploring is cheap. Every smaller one goes on from there, on
a sample of the data and from few offsets; the final search of the τ that won sees them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from gptd_rl.data.resampling import evenly_spaced
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.kernels import DataScale, Kernel
from gptd_rl.selection import objectives
from gptd_rl.selection.coordinates import Coordinates
from gptd_rl.selection.objectives import Prior
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.search import ROUGH_TOLERANCE, SearchResult, SelectionProblem
from gptd_rl.selection.variants import SHORT, SearchOptions, first_guesses
from gptd_rl.temporal.targets import Noise, Targets, build_targets, distinct
from gptd_rl.types import Array

# Leave-one-episode-out looks at about this many states.
VALIDATION_SIZE = 1000
# Fewer segments than this are cut into pieces, so that there is something to leave out.
MIN_SEGMENTS = 5
# States in a thinned part of a trial's search, and in all of them together.
TRIAL_SIZE = 200
TRIAL_STATES = 500
# Noise of less than this share of the returns' variance is none.
NEGLIGIBLE_NOISE = 5e-3
# Values may bootstrap from this noise share on, if the squared error of episodes predicted from the others is at least
# this share of the variance, too. With less noise returns are as good, and do not spread errors of fit.
MUCH_NOISE, MUCH_ERROR = 0.06, 0.3
# States that a thinning must leave, to tell noise from a value function that few states do not resolve.
MIN_THINNED = 30


@dataclass(frozen=True, eq=False)
class ThinningResult:
    """One thinning, and how well whole episodes are predicted with the model it selects."""

    thinning: int
    noise_share: float  # σ² by the variance of the returns
    error: float  # root mean squared leave-one-episode-out error of the returns
    relevances: Array  # [D]
    found: SearchResult
    squared_errors: Array  # of each episode

    @property
    def model(self) -> Model:
        """The model selected."""
        return self.found.model


class InterruptedChoice(KeyboardInterrupt):
    """Ctrl-C while the thinning was chosen, and the first model that was found.

    That is the one of the largest thinning: the most cautious choice as long as left-out episodes say nothing else.
    """

    def __init__(self, thinning: int, found: SearchResult) -> None:
        super().__init__()
        self.thinning, self.found = thinning, found


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
    if data.n_segments < MIN_SEGMENTS:  # no choice: pieces of the same run, then
        longest = VALIDATION_SIZE // MIN_SEGMENTS
        data = data.cut(max(2, min(longest, -(-data.n_transitions // (2 * MIN_SEGMENTS)))))
    return contiguous_pieces(data, VALIDATION_SIZE)


def contiguous_pieces(data: Trajectories, size: int) -> Trajectories:
    """About `size` states in MIN_SEGMENTS pieces or more, one of a segment at most, from all parts of an episode."""
    if len(data) <= size:
        return data
    longest = size // MIN_SEGMENTS
    n_pieces = np.maximum(-(-(data.lengths - 1) // longest), 1)
    last = np.cumsum(n_pieces) - 1
    pieces = data.cut(longest)[last - np.arange(data.n_segments) % n_pieces]  # the end of the first one, and so on
    n_kept = max(MIN_SEGMENTS, round(pieces.n_segments * size / len(pieces)))
    return pieces[evenly_spaced(pieces.n_segments, n_kept)]


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
        Asked about a system with much noise: True if values will bootstrap. Then no smaller τ is tried.

    Raises
    ------
    InterruptedChoice
        On Ctrl-C, once a model was found.
    """
    part = validation_subset(data)
    *smaller, largest = candidates(part)
    if not smaller and bootstraps is None:
        return None, []
    if bootstraps is not None:
        *smaller, largest = [t for t in (*smaller, largest) if t == 1 or len(part) >= MIN_THINNED * t]
    trials = Trials.of(part, noise, "ard" if kernel in ("factor", "auto") else kernel, options)
    try:
        return _compare(trials, smaller, largest, bootstraps)
    except KeyboardInterrupt:
        if not trials.found:
            raise
        raise InterruptedChoice(*trials.found[0]) from None


def _compare(
    trials: Trials, smaller: list[int], largest: int, bootstraps: Callable[[], bool] | None
) -> tuple[ThinningResult | None, list[ThinningResult]]:
    """Try the largest thinning, and the smaller ones if need be."""
    results = [trials.run(largest)]
    if results[0].noise_share < NEGLIGIBLE_NOISE:
        return None, results
    error_share = results[0].error ** 2 / trials.scale.return_variance
    is_noisy = results[0].noise_share >= MUCH_NOISE and error_share >= MUCH_ERROR
    if bootstraps is not None and is_noisy and bootstraps():
        return results[0], results
    for every in reversed(smaller):
        results.insert(0, trials.run(every, results[0].found))
    best = min(results, key=lambda t: t.error)
    return next(t for t in reversed(results) if _as_good(t, best)), results


@dataclass(frozen=True, eq=False)
class Trials:
    """Selecting θ with one thinning after the other, the largest first: neighbouring optima are close."""

    part: Trajectories
    targets: Targets
    scale: DataScale
    kernel: str | Kernel
    options: SearchOptions
    found: list[tuple[int, SearchResult]] = field(default_factory=list)  # thinnings and models, for an interrupt

    @classmethod
    def of(cls, part: Trajectories, noise: Noise, kernel: str | Kernel, options: SearchOptions) -> Trials:
        """Prepare trials on `part`."""
        scale = measure_scale(part, 0 if options.actions is None else options.actions.n_categorical)
        targets = build_targets(part, noise, merge=False)
        return cls(part, targets, scale, kernel, options)

    def run(self, every: int, larger: SearchResult | None = None) -> ThinningResult:
        """Select θ with thinning `every`, from the result of a `larger` one if there is any, and predict episodes."""
        found = self._search(every, larger)
        self.found.append((every, found))
        if found.interrupted:
            raise KeyboardInterrupt
        model = found.model
        groups = objectives.episode_groups(self.targets)
        squared = objectives.predict_left_out(
            model.with_noise(every * model.noise_variance), self.targets, groups
        ).squared_error
        error = float(np.sqrt(squared.sum() / self.targets.n_rows))
        share = model.noise_variance / self.scale.return_variance
        return ThinningResult(every, share, error, model.kernel.relevances, found, squared)

    def _search(self, every: int, larger: SearchResult | None) -> SearchResult:
        problem, options = self.problem(every), replace(self.options, n_restarts=0)
        if larger is None:
            return options.search(problem, first_guesses(self.kernel, self.scale, options))
        short = first_guesses(self.kernel, self.scale, replace(options, layouts=(SHORT,), warm=None))
        model = Coordinates.of(short[0], self.scale, options.noise_floor).lift(larger.model, short[0])
        if every > 1 or len(self.scale.input_std) == 1:
            return replace(options, start=replace(larger, model=model)).search(problem, short)
        # All returns together may well be explained by another input, one that tells the episodes apart.
        return options.search(problem, [*short, model])

    def problem(self, every: int) -> SelectionProblem:
        """The evidence of the part with thinning `every`, from fewer states and offsets than a final search sees."""
        few = len(distinct(self.part)[0]) <= TRIAL_SIZE
        sample = self.part if few else contiguous_pieces(self.part, TRIAL_SIZE * every)
        parts = objectives.thinned_parts(sample, every, min_offsets=1, min_states=TRIAL_STATES)
        prior = Prior(self.scale) if every > 1 else None
        problem = SelectionProblem.of_parts(parts, self.targets.noise, prior, self.scale)
        return replace(problem, tolerance=ROUGH_TOLERANCE)


def _as_good(result: ThinningResult, best: ThinningResult) -> bool:
    loss = result.squared_errors - best.squared_errors
    return bool(loss.sum() <= np.sqrt(len(loss)) * loss.std())
