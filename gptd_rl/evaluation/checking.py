"""Whether what was learnt can be believed: predictions beside what fresh rollouts bring, at states nobody has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from gptd_rl.evaluation.environments import Environment
from gptd_rl.evaluation.fitting import Tick
from gptd_rl.evaluation.ground_truth import held_out, rolled_out
from gptd_rl.evaluation.value_models import Returns, along
from gptd_rl.report.records import LEVELS, Check, Disagreement, Score, ValueFunction
from gptd_rl.rollouts.collect import collect
from gptd_rl.types import Array

SHARES = np.round(np.arange(0.05, 1.0, 0.05), 2)
MAX_DISAGREEMENTS = 8


@dataclass(frozen=True, eq=False)
class Observed:
    """What fresh episodes of the policy brought.

    Attributes
    ----------
    returns : ndarray of shape (n_episodes,)
        Undiscounted returns of complete episodes.
    states : ndarray of shape (m, n_dims)
    values, errors : ndarray of shape (m,)
        Discounted returns from these states and their standard errors.
    episodes : ndarray of shape (m,)
    n_rollouts : int
        From each state; 0 if there is only the return of the episode itself.
    """

    returns: Array
    states: Array
    values: Array
    errors: Array
    episodes: NDArray[np.int64]
    n_rollouts: int

    def halves(self) -> tuple[Observed, Observed]:
        """What is known of every second episode, and of the others."""
        second = np.unique(self.episodes, return_inverse=True)[1] % 2 == 1
        return self._only(~second), self._only(second)

    def _only(self, rows: NDArray[np.bool_]) -> Observed:
        return replace(
            self,
            states=self.states[rows],
            values=self.values[rows],
            errors=self.errors[rows],
            episodes=self.episodes[rows],
        )


def observe(
    env: Environment,
    policy: Any,
    value: ValueFunction,
    *,
    n_episodes: int,
    n_states: int,
    gamma: float,
    seed: int,
    deterministic: bool,
    tick: Tick,
) -> Observed:
    """Run fresh episodes and see what states are worth; `value` stands in for what rollouts leave out."""
    if env.one is not None:
        places = held_out(
            env.one, policy, n_episodes=n_episodes, n_states=n_states, seed=seed, deterministic=deterministic
        )
        values, errors, n_rollouts = rolled_out(
            places, policy, gamma=gamma, seed=seed, deterministic=deterministic, tail=value.predict, tick=tick
        )
        return Observed(places.returns, places.states, values, errors, places.episodes, n_rollouts)
    fresh = collect(env.many, policy, n_episodes=n_episodes, gamma=gamma, seed=seed, deterministic=deterministic)
    seen = Returns.of(fresh)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(seen.usable, min(n_states, len(seen.usable)), replace=False))
    values = seen.y + seen.z * along(value.predict, fresh)[seen.end]
    returns = np.bincount(fresh.segment_of, weights=fresh.rewards).astype(np.float64)
    return Observed(returns, fresh.states[rows], values[rows], np.zeros(len(rows)), fresh.segment_of[rows], 0)


def check(observed: Observed, contestants: Mapping[str, ValueFunction], critic: Any) -> Check:
    """Score all contestants, the model first."""
    states, truth, errors = observed.states, observed.values, observed.errors
    model = next(iter(contestants.values()))
    lower, upper = model.confidence_interval(states)
    reliability = {
        name: np.array([_held(one, states, truth, errors, share) for share in SHARES])
        for name, one in contestants.items()
    }
    return Check(
        kind="rollouts" if observed.n_rollouts else "returns",
        states=states,
        observed=truth,
        errors=errors,
        episodes=observed.episodes,
        predicted=model.predict(states),
        lower=lower,
        upper=upper,
        critic=None if critic is None else critic(states),
        shares=SHARES,
        reliability=reliability,
        scores=tuple(score(name, one, states, truth, errors) for name, one in contestants.items()),
        n_rollouts=observed.n_rollouts,
    )


def score(name: str, one: ValueFunction, states: Array, truth: Array, errors: Array) -> Score:
    """How well one of them predicted what is known up to standard errors."""
    predicted = one.predict(states)
    lower, upper = one.confidence_interval(states)
    half = 0.5 * (upper - lower)
    # A normal whose 95 % interval is this one; exact predictions would make it infinitely sharp.
    std = np.maximum(half / norm.ppf(0.975), 1e-9 * max(float(np.abs(truth).max(initial=0.0)), 1.0))
    return Score(
        name=name,
        rmse=float(np.sqrt(np.mean((predicted - truth) ** 2))),
        bias=float(np.mean(predicted - truth)),
        nlpd=float(-norm.logpdf(truth, predicted, std).mean()),
        coverage=tuple(_held(one, states, truth, errors, level) for level in LEVELS),
        half_width=float(half.mean()),
    )


def disagreements(check: Check) -> tuple[Disagreement, ...]:
    """States at which the critic lies outside the model's interval, by how far, one for each episode."""
    if check.critic is None:
        return ()
    outside = np.maximum(check.lower - check.critic, check.critic - check.upper)
    found: list[Disagreement] = []
    seen: set[int] = set()
    for i in np.argsort(-outside):
        if outside[i] <= 0 or len(found) == MAX_DISAGREEMENTS:
            break
        if int(check.episodes[i]) in seen:  # its neighbours would say the same again
            continue
        seen.add(int(check.episodes[i]))
        numbers = (check.critic[i], check.predicted[i], check.lower[i], check.upper[i], check.observed[i])
        found.append(Disagreement(tuple(check.states[i].tolist()), *(float(n) for n in numbers)))
    return tuple(found)


def _held(one: ValueFunction, states: Array, truth: Array, errors: Array, level: float) -> float:
    """Share of true values inside the intervals, which are widened by how badly the truth is known."""
    lower, upper = one.confidence_interval(states, level)
    if np.isnan(lower).any():
        return np.nan
    half = np.hypot(0.5 * (upper - lower), norm.ppf(0.5 + 0.5 * level) * errors)
    slack = 1e-9 * np.maximum(np.abs(truth), 1.0)  # for rounding
    return float(np.mean(np.abs(truth - 0.5 * (lower + upper)) <= half + slack))
