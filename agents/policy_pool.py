"""Safe improvement: policies are believed by what they earned, not by what their Q-functions promise.

A newer Q-function is not always a better one: greedy policies chatter. So each policy is tried for whole episodes, and
the *champion* serves until another one has earned more, allowing for luck. Its return is reported from episodes that
came after it was chosen: those that made it champion were lucky ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gptd_rl.agents.fitted_q import QFunction
from gptd_rl.types import Array

ENOUGH = 3  # episodes for which a leader is tried again before newer policies are
KEPT = 40  # policies remembered
RECENT = 5  # episodes by which the newest policies together are judged
# Episodes from which one can tell how much of a return is the luck of the start.
ENOUGH_FOR_BASELINE = 6


@dataclass(frozen=True, eq=False)
class Episode:
    """What an episode brought.

    Attributes
    ----------
    total : float
        Its undiscounted return.
    start : ndarray of shape (n_dims,)
        Its first state.
    kept_word : bool
        Whether it went as the Q-function of the policy had promised.
    """

    total: float
    start: Array
    kept_word: bool


@dataclass(eq=False)
class Trial:
    """A policy and the episodes it was tried in."""

    q: QFunction | None  # None is whichever policy is the newest
    episodes: list[Episode] = field(default_factory=list)
    n_before: int = 0  # episodes it took to become champion

    @property
    def kept_word(self) -> bool:
        """Whether the last episode went as promised."""
        return bool(self.episodes) and self.episodes[-1].kept_word

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean([episode.total for episode in self.episodes]))

    def forget(self, n: int) -> None:
        """Leave out the first `n` episodes, if n is positive."""
        n = max(0, n)
        self.episodes, self.n_before = self.episodes[n:], max(0, self.n_before - n)

    @property
    def fresh_returns(self) -> list[float]:
        """Returns of the episodes since it became champion."""
        return [episode.total for episode in self.episodes[self.n_before :]]


class Trials:
    """Who was tried, who serves.

    Beside single policies there is *the newest*, whichever that is, judged by the last few episodes. It serves unless
    a policy that was tried for longer is credibly better.
    """

    def __init__(self) -> None:
        self.newest = Trial(None)
        self.tried: list[Trial] = []
        self.champion = self.newest
        self._n_asked = 0

    def record(self, trial: Trial | None, episode: Episode, value: Callable[[Array], Array]) -> None:
        """Note an episode and see who is champion now.

        Parameters
        ----------
        trial : Trial or None
            Whose episode it was; None if the policy was changed in between.
        episode : Episode
        value : callable
            V of states, of shape (n,), as far as it is known: starts that promise more are no merit of the policy.
        """
        again = trial is not None and trial in self.tried
        if trial is not None:
            trial.episodes.append(episode)
            self.tried += [] if again else [trial]
        if not again:
            self.newest.episodes.append(episode)
            self.newest.forget(len(self.newest.episodes) - RECENT)
        scores = _scores(self.newest, self.tried, value)
        best = self.tried[int(scores.argmax())] if scores.max(initial=0.0) > 0.0 else self.newest
        if best is not self.champion:
            self.champion, best.n_before = best, len(best.episodes)
        worst = np.argsort(scores)[: max(0, len(self.tried) - KEPT)]
        self.tried = [t for i, t in enumerate(self.tried) if i not in worst or t is self.champion]

    def next(self, mean: QFunction, draw: QFunction) -> Trial:
        """Who is to be tried next.

        A policy that has earned more than the newest ones, while that may be luck; else the mean of the newest Q where
        episodes go as promised, and a draw of it, which explores, where they do not. Every second one explores anyway:
        a Q-function that promises nothing always keeps its word.
        """
        self._n_asked += 1
        leader = max(self.tried, key=lambda trial: trial.mean, default=self.newest)
        if leader.kept_word and leader.mean >= self.newest.mean and len(leader.episodes) < ENOUGH:
            return leader
        q = mean if self.newest.kept_word and self._n_asked % 2 else draw
        return next((trial for trial in self.tried if trial.q is q), Trial(q))


def _scores(newest: Trial, tried: list[Trial], value: Callable[[Array], Array]) -> Array:
    """By how much each policy is credibly better than the newest ones, of shape (n_tried,).

    The best of many was also lucky. So what a policy earned is shrunk towards what the newest earn (empirical Bayes),
    by as much as policies differ less from each other than episodes of one policy do, and one standard deviation is
    taken off. With s² the variance within policies, τ² that between them and n episodes, the posterior of the lead is

        mean τ²/(τ² + s²/n) · lead,  variance τ²·(s²/n)/(τ² + s²/n)
    """
    arms = [newest, *tried]
    sizes = np.array([len(arm.episodes) for arm in arms])
    owner = np.repeat(np.arange(len(arms)), sizes)
    earned = np.array([episode.total for arm in arms for episode in arm.episodes])
    if len(earned) >= ENOUGH_FOR_BASELINE:
        starts = np.array([episode.start for arm in arms for episode in arm.episodes])
        earned = earned - _explained(earned, value(starts))
    means = np.bincount(owner, weights=earned) / sizes
    freedom = len(earned) - len(arms)
    within = float(np.sum((earned - means[owner]) ** 2)) / freedom if freedom > 0 else 0.0  # s²
    noise = within / sizes[1:]
    between = max(0.0, float(np.var(means[1:]) - np.mean(noise))) if len(tried) > 1 else 0.0  # τ²
    if between == 0.0:
        return np.full(len(tried), -np.inf)
    trust = between / (between + noise)
    return np.asarray(trust * (means[1:] - means[0]) - np.sqrt(trust * noise))


def _explained(earned: Array, promised: Array) -> Array:
    """The part of returns, of shape (n,), that the values of their starts explain: a control variate."""
    promised = promised - promised.mean()
    variance = float(promised @ promised)
    slope = float(promised @ earned) / variance if variance > 0 else 0.0
    return float(np.clip(slope, 0.0, 2.0)) * promised
