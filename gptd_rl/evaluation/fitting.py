"""Fit V with calibrated intervals, and analyse which inputs matter: everything that is learnt from the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.conformal import Calibrated
from gptd_rl.evaluation import inputs
from gptd_rl.evaluation.candidates import (
    UNEXPLAINED,
    Candidate,
    Chosen,
    choose,
    gaussian_process,
    learnt,
    nearest_neighbours,
)
from gptd_rl.evaluation.value_models import CriticLike, RefittedCritic, monte_carlo, return_bounds
from gptd_rl.report.records import Relevance
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array

Tick = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """Value functions that were learnt, and the relevance of inputs.

    Attributes
    ----------
    value : Calibrated
        V, by the candidate that was chosen.
    candidates : dict of str to float
        Root mean squared error of each candidate at left-out episodes.
    chosen : str
    monte_carlo : Calibrated
        The average return, the same in all states.
    critic : Calibrated or None
        The agent's critic, with intervals from its errors.
    starts : Starts
    relevance : Relevance
    """

    value: Calibrated
    candidates: dict[str, float]
    chosen: str
    monte_carlo: Calibrated
    critic: Calibrated | None
    starts: Starts
    relevance: Relevance


@dataclass(frozen=True, eq=False)
class Starts:
    """Where the episodes of the data start.

    Attributes
    ----------
    returns : ndarray of shape (n_segments,)
        Discounted return of each, plus V of what was cut off.
    values : ndarray of shape (n_segments,)
        V of its first state, learnt without it.
    """

    returns: Array
    values: Array

    @classmethod
    def of(cls, data: Trajectories, left_out: Array) -> Starts:
        """The starts of `data`, with V of each state learnt without its episode."""
        returns, first = Returns.of(data), data.starts
        return cls(returns.y[first] + returns.z[first] * left_out[returns.end[first]], left_out[first])


def fit(
    data: Trajectories, critic: CriticLike | None, *, is_categorical: bool, analyse_inputs: bool, tick: Tick
) -> Fitted:
    """Learn V from `data`, with the agent's critic as a prior mean if there is one and that helps.

    The simplest candidate that predicts left-out episodes as well as the best is taken. Values are clipped to the
    returns that the data allow.
    """
    bounds = return_bounds(data)
    constant = learnt("Monte Carlo", monte_carlo, data)
    candidates = [constant]
    for n, candidate in enumerate(_candidates(data, critic, is_categorical)):
        candidates.append(candidate.within(*bounds))
        tick(n + 1, 6)
    best = choose(candidates, data)
    model = next(c.selected for c in candidates if c.selected is not None)  # of V itself, not of a remainder
    value = Calibrated(Chosen(best, model.relevances_)).fit(data)
    own = None
    if critic is not None:
        of_critic = learnt("critic", lambda data: critic, data)
        own = Calibrated(Chosen(of_critic)).fit(data)
    average = Calibrated(Chosen(constant)).fit(data)
    tick(5, 6)
    found = inputs.analyse(model, model.data_, value.predict, leave_out=analyse_inputs)
    tick(6, 6)
    returns = Returns.of(data)
    errors = {c.name: float(np.sqrt(c.squared_errors(returns).sum() / len(returns.usable))) for c in candidates}
    return Fitted(value, errors, best.name, average, own, Starts.of(data, best.left_out), found)


def _candidates(data: Trajectories, critic: CriticLike | None, is_categorical: bool) -> Iterator[Candidate]:
    """The simplest first."""
    plain = gaussian_process("GPTD", data, is_categorical=is_categorical)
    yield plain
    returns = Returns.of(data)
    y = returns.y[returns.usable]
    if plain.squared_errors(returns).sum() > UNEXPLAINED * len(y) * y.var():
        yield gaussian_process("GPTD, bootstrapped", data, is_categorical=is_categorical, bootstrap=True)
    yield nearest_neighbours("GPTD of the nearest states", plain, data)
    if critic is not None:
        refitted = learnt("critic, refitted", RefittedCritic(critic), data)
        yield refitted
        yield gaussian_process("GPTD around the critic, refitted", data, is_categorical=is_categorical, mean=refitted)
