"""How far to thin: the choice of τ that keeps model selection honest in stochastic systems.

The evidence of *all* returns is right when the system is deterministic. When it is not, neighbouring returns share
their noise, and the evidence rewards a kernel for recognising the episode. Whether that happened shows when whole
episodes are predicted from the others. So: select θ for each τ of a short list, predict every episode from the rest,
and thin only if that is clearly better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gptd_rl import objectives
from gptd_rl.model import Model
from gptd_rl.observations import Noise, observe
from gptd_rl.scales import Scales
from gptd_rl.trajectories import Array, Trajectories

# Leave-one-episode-out looks at about this many states.
JUDGED_SIZE = 1000
# Fewer segments than this are cut into pieces, so that there is something to leave out.
MIN_SEGMENTS = 5
# Noise of less than this share of the returns' variance is none.
NEGLIGIBLE_NOISE = 5e-3


@dataclass(frozen=True, eq=False)
class Trial:
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


def judged(data: Trajectories) -> Trajectories:
    """The part of `data` on which thinnings are compared: whole segments, enough of them to leave some out."""
    if data.n_segments < MIN_SEGMENTS:
        data = data.cut(max(2, -(-data.n_transitions // (2 * MIN_SEGMENTS))))
    if len(data) <= JUDGED_SIZE:
        return data
    n_kept = max(MIN_SEGMENTS, round(data.n_segments * JUDGED_SIZE / len(data)))
    return data[np.linspace(0, data.n_segments - 1, min(n_kept, data.n_segments)).round().astype(int)]


def try_thinnings(data: Trajectories, noise: Noise, select: Callable[[Trajectories, int], Model]) -> list[Trial]:
    """Judge each candidate thinning by leaving out whole episodes."""
    part = judged(data)
    seen = observe(part, noise, merge=False)
    groups = objectives.episode_groups(seen)
    variance = Scales.of(part).variance
    trials = []
    for every in candidates(part):
        model = select(part, every)
        left_out = objectives.predict_left_out(model.with_noise(every * model.noise_variance), seen, groups)
        squared = left_out.squared_error
        error = float(np.sqrt(squared.sum() / seen.n_rows))
        share = model.noise_variance / variance
        trials.append(Trial(every, share, error, model.kernel.metric.relevances, model, squared))
    return trials


def choose(trials: list[Trial]) -> Trial:
    """τ = 1 for a deterministic system; else the largest τ that predicts left-out episodes as well as the best does.

    A system is taken for deterministic if the noise is negligible even at the largest τ, where it cannot hide in what
    neighbouring returns have in common. "As well as" allows for one standard error of the difference, by episode.
    """
    if trials[-1].noise_share < NEGLIGIBLE_NOISE:
        return trials[0]
    best = min(trials, key=lambda t: t.error)
    for trial in reversed(trials):
        loss = trial.squared_errors - best.squared_errors
        if loss.sum() <= np.sqrt(len(loss)) * loss.std():
            return trial
    raise AssertionError("the best trial is as good as itself")
