"""Select the policy to deploy by measured episode returns instead of its own value estimates.

A newer Q-function is not always a better one: greedy policies oscillate. So each policy acts for whole episodes, and
the *incumbent* is deployed until another policy is credibly better. The return of the incumbent is reported from
episodes after its selection, because the episodes that led to its selection overestimate it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gptd_rl.inference.shrinkage import shrunken_mean, variance_between, variance_within
from gptd_rl.types import Array, IntArray

MIN_EPISODES = 3  # episodes of the policy with the best mean return before newer policies act
MAX_POLICIES = 40  # policies on record
N_RECENT = 5  # episodes by which the newest policies together are judged
MIN_FOR_BASELINE = 6  # episodes from which the effect of start states on returns can be estimated
# By how much an episode may fall short of its predicted return, in standard deviations of the targets of Q.
SHORTFALL_TOLERANCE = 0.1


class StateValues(Protocol):
    """Q of every action as a function of states: a `QFunction`, or what answers like one."""

    def __call__(self, states: Array) -> Array:
        """Q of shape (n, n_actions)."""
        ...

    def greedy(self, states: Array) -> IntArray:
        """Index of the best action, of shape (n,)."""
        ...


@dataclass(frozen=True, eq=False)
class NewestQ:
    """The Q-function of the last improvement.

    Attributes
    ----------
    mean : StateValues
        Posterior mean.
    sample : StateValues
        Posterior sample, for Thompson sampling.
    tolerance : float
        By how much an episode may fall short of its predicted return.
    """

    mean: StateValues
    sample: StateValues
    tolerance: float

    @classmethod
    def of(cls, mean: StateValues, sample: StateValues, targets: Array) -> NewestQ:
        """With the tolerance in the units of the targets of Q."""
        return cls(mean, sample, SHORTFALL_TOLERANCE * float(targets.std()))

    def value(self, states: Array) -> Array:
        """V of the greedy policy, of shape (n,)."""
        return self.mean(states).max(axis=1)


@dataclass(frozen=True, eq=False)
class Episode:
    """A finished episode.

    Attributes
    ----------
    total : float
        Its undiscounted return.
    start : ndarray of shape (n_dims,)
        Its first state.
    met_prediction : bool
        Whether its return met the prediction of the policy's own Q-function.
    difference : float
        Its return less that of a simulated episode from the same start; NaN without a model.
    """

    total: float
    start: Array
    met_prediction: bool
    difference: float = np.nan


@dataclass(eq=False)
class PolicyRecord:
    """A greedy policy and its episodes."""

    q: StateValues | None  # None is the newest policy, whichever that is
    episodes: list[Episode] = field(default_factory=list)
    n_before: int = 0  # episodes before it became the incumbent
    trial_return: float = np.nan  # mean return in a model of the dynamics, if it was simulated
    score: float = np.nan  # by which it was compared with others
    trial_returns: Array | None = None  # returns in the last trial, from the same states as the others' [n_starts]
    differences: Array | None = None  # measured returns less those of the last trial from the same starts [n_episodes]
    n_transitions: int = 0  # that it was learnt from
    explores: bool = False  # whether it seeks what the model does not know

    @property
    def met_prediction(self) -> bool:
        """Whether the last episode met its predicted return."""
        return bool(self.episodes) and self.episodes[-1].met_prediction

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean([episode.total for episode in self.episodes]))

    def drop(self, n: int) -> None:
        """Leave out the first `n` episodes, if n is positive."""
        n = max(0, n)
        self.episodes, self.n_before = self.episodes[n:], max(0, self.n_before - n)

    @property
    def returns_since_selection(self) -> list[float]:
        """Returns of the episodes since it became the incumbent."""
        return [episode.total for episode in self.episodes[self.n_before :]]


@dataclass(eq=False)
class EpisodeState:
    """A running episode.

    Attributes
    ----------
    policy : PolicyRecord or None
        Acting policy; None is the random policy.
    start : ndarray of shape (n_dims,)
        The first state.
    total, discounted : float
        The return so far, undiscounted and discounted to the start.
    discount : float
        Discount of the next reward.
    single_policy : bool
        Whether one policy acted from the start.
    restarting : bool
        Whether the next step only resets the environment.
    """

    policy: PolicyRecord | None
    start: Array
    total: float = 0.0
    discounted: float = 0.0
    discount: float = 1.0
    single_policy: bool = True
    restarting: bool = False

    def add_reward(self, reward: float, gamma: float) -> None:
        """Add a reward; γ is 0 if the episode terminated."""
        self.total += reward
        self.discounted += self.discount * reward
        self.discount *= gamma

    def shortfall(self, state: Array) -> float:
        """By how much the return up to `state` falls short of the policy's own prediction at the start."""
        if self.policy is None or self.policy.q is None:
            return np.inf
        predicted, rest = self.policy.q(np.stack([self.start, state])).max(axis=1)
        # V(x₀) − (r₀ + γr₁ + … + γᵗV(x_t))
        return float(predicted - (self.discounted + self.discount * rest))


class PolicyPool:
    """Policies on record and the incumbent.

    Beside single policies there is the newest policy, whichever that is, judged by the last few episodes. It is the
    incumbent unless another policy with more episodes is credibly better.
    """

    def __init__(self) -> None:
        self.newest = PolicyRecord(None)
        self.records: list[PolicyRecord] = []
        self.incumbent = self.newest
        self.newest_q: NewestQ | None = None
        self._n_choices = 0

    def add_episode(self, policy: PolicyRecord | None, episode: Episode) -> None:
        """Add an episode and select the incumbent.

        Parameters
        ----------
        policy : PolicyRecord or None
            The policy that acted; None if it was switched during the episode.
        episode : Episode
        """
        assert self.newest_q is not None
        is_known = policy is not None and policy in self.records
        if policy is not None:
            policy.episodes.append(episode)
            self.records += [] if is_known else [policy]
        if not is_known or not self.newest.episodes:
            self._add_to_newest(episode)
        scores = _scores(self.newest, self.records, self.newest_q.value)
        best = self.records[int(scores.argmax())] if scores.max(initial=0.0) > 0.0 else self.newest
        if best is not self.incumbent:
            self.incumbent, best.n_before = best, len(best.episodes)
        worst = np.argsort(scores)[: max(0, len(self.records) - MAX_POLICIES)]
        self.records = [r for i, r in enumerate(self.records) if i not in worst or r is self.incumbent]

    def _add_to_newest(self, episode: Episode) -> None:
        self.newest.episodes.append(episode)
        self.newest.drop(len(self.newest.episodes) - N_RECENT)

    @property
    def reason(self) -> str:
        """Why the incumbent is served."""
        if self.incumbent.q is None:
            return "the newest policy: no other is credibly better by measured returns"
        n = len(self.incumbent.episodes)
        return f"credibly better than the newest policies by the measured returns of {n} episodes"

    def is_replaced(self, episode: EpisodeState, state: Array) -> bool:
        """Whether a running episode goes on with the newest policy: if it falls short of its predicted return."""
        assert self.newest_q is not None
        return episode.shortfall(state) > self.newest_q.tolerance

    def choose(self) -> PolicyRecord | None:
        """The policy of the next episode; None, the random policy, before the first improvement.

        A policy whose mean return exceeds that of the newest policies, until it has enough episodes. Otherwise the
        posterior mean of the newest Q where episodes meet their predicted return, and a posterior sample of it, which
        explores, where they do not. Every second episode explores in any case: a Q-function that predicts the lowest
        return always meets it.
        """
        if self.newest_q is None:
            return None
        self._n_choices += 1
        leader = max(self.records, key=lambda record: record.mean, default=self.newest)
        if leader.met_prediction and leader.mean >= self.newest.mean and len(leader.episodes) < MIN_EPISODES:
            return leader
        explores = not self.newest.met_prediction or self._n_choices % 2 == 0
        q = self.newest_q.sample if explores else self.newest_q.mean
        return next((record for record in self.records if record.q is q), PolicyRecord(q))


def _scores(newest: PolicyRecord, records: list[PolicyRecord], value: Callable[[Array], Array]) -> Array:
    """By how much each policy is credibly better than the newest ones, of shape (n_records,).

    The best of many policies is overestimated. So differences of mean returns to that of the newest policies are shrunk
    (`shrunken_mean`), with s² the variance within policies and τ² between them, and one posterior standard deviation is
    subtracted.
    """
    arms = [newest, *records]
    sizes = np.array([len(arm.episodes) for arm in arms])
    returns = np.array([episode.total for arm in arms for episode in arm.episodes])
    if len(returns) >= MIN_FOR_BASELINE:
        starts = np.array([episode.start for arm in arms for episode in arm.episodes])
        returns = returns - _baseline(returns, value(starts))
    groups = np.split(returns, np.cumsum(sizes)[:-1])
    means = np.array([group.mean() for group in groups])
    noise = variance_within(groups) / sizes[1:]
    between = variance_between(means[1:], noise) if len(records) > 1 else 0.0
    if between == 0.0:
        return np.full(len(records), -np.inf)
    difference, std = shrunken_mean(means[1:] - means[0], noise, between)
    return np.asarray(difference - std)


def _baseline(returns: Array, values: Array) -> Array:
    """The part of returns, of shape (n,), that the values of their start states explain: a control variate."""
    values = values - values.mean()
    variance = float(values @ values)
    slope = float(values @ returns) / variance if variance > 0 else 0.0
    return float(np.clip(slope, 0.0, 2.0)) * values
