"""Select the policy to deploy by simulated episodes, corrected by measured ones.

Each candidate has a trial: its mean return t in a model of the dynamics, from the same states as the others'. Measured
episodes tell how wrong trials are: with d the return of an episode less that of a simulated one from the same start, in
the model of that time, which had not seen the episode, s² is the variance of d within policies and τ² its variance
between them. Then the return of a policy with n episodes, whose mean difference to the model of today is d̄, is t and
the `shrunken_mean` of d̄.

Candidates are compared by the mean less one standard deviation. If the model is right, d is 0 and the trial decides. If
it is wrong, τ is large, and a policy needs measured episodes to be deployed. If trials tell nothing of measured
returns, these decide alone, as in `PolicyPool`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gptd_rl.agents.policy_pool import Episode, EpisodeState, PolicyPool, PolicyRecord, StateValues
from gptd_rl.inference.shrinkage import shrunken_mean, variance_between, variance_within
from gptd_rl.types import Array

N_COMPARED = 6  # latest episodes by which trials are judged
N_TESTED = 3  # policies with episodes that are tried again, the best ones
MIN_COMPARED = 4  # episodes that must be off before trials are called uninformative
UNINFORMATIVE = 0.5  # typical |d| as a share of the range of all returns so far


@dataclass(frozen=True)
class TrialErrors:
    """How wrong trials are.

    Attributes
    ----------
    within, between : float
        s² and τ².
    n_episodes : int
        Measured episodes that were compared.
    is_uninformative : bool
        Whether trials say nothing of measured returns.
    """

    within: float = 0.0
    between: float = 0.0
    n_episodes: int = 0
    is_uninformative: bool = False


@dataclass(frozen=True, eq=False)
class Served:
    """The policy that an agent serves.

    Attributes
    ----------
    q : StateValues
        Its Q-function.
    n_transitions : int
        Transitions that it was learnt from; 0 if it is not known.
    trial_return : float
        Mean return of simulated episodes; NaN if there was no trial.
    measured_returns : ndarray of shape (k,)
        Returns of its real episodes since it is served; `evaluate` runs more.
    reason : str
        Why it is served, in one sentence.
    """

    q: StateValues = field(repr=False)
    n_transitions: int
    trial_return: float
    measured_returns: Array
    reason: str

    @classmethod
    def of(cls, record: PolicyRecord, q: StateValues, pool: PolicyPool) -> Served:
        """The incumbent of a pool."""
        returns = np.array(record.returns_since_selection)
        return cls(q, record.n_transitions, record.trial_return, returns, pool.reason)


class TrialPool(PolicyPool):
    """Candidates with trials; a `PolicyPool` as long as the model is not trusted."""

    def __init__(self) -> None:
        super().__init__()
        self.trusts_model = False
        self.is_noisy = False  # whether returns of one policy from one state differ
        self.has_plan = False  # whether the last plan knows something better than doing nothing
        self.compared: list[tuple[int, float]] = []  # policy and difference of the latest episodes
        self.return_range = np.inf, -np.inf  # smallest and largest return of all episodes
        self.simulate: Callable[[PolicyRecord, Array], float] | None = None  # one return in the model, from a state
        self._n_chosen = self._n_explored = 0  # episodes since the last improvement

    @property
    def trial_errors(self) -> TrialErrors:
        """How wrong the trials of the latest episodes were."""
        return _trial_errors(self.compared, self.is_noisy, self.return_range)

    def judge(self, candidates: Sequence[PolicyRecord], n_kept: int) -> None:
        """Adopt candidates with trials and select the incumbent.

        Parameters
        ----------
        candidates : sequence of PolicyRecord
            With `trial_return`; those of earlier improvements among them.
        n_kept : int
            Candidates to try again next time, beside those with episodes.
        """
        errors = self.trial_errors
        for record in candidates:
            record.score = _score(record, errors)
        ranked = sorted(candidates, key=lambda record: (-record.score, -record.n_transitions))
        tested = [record for record in ranked if record.episodes][:N_TESTED]
        best = ranked[0]
        if best is not self.incumbent and _is_credibly_better(best, self.incumbent):
            self.incumbent, best.n_before = best, len(best.episodes)
        kept = dict.fromkeys([*ranked[:n_kept], *tested, self.incumbent])
        self.records = [record for record in kept if record.q is not None]

    def distrust(self) -> None:
        """Judge policies by measured returns alone, as long as the model is wrong."""
        self.trusts_model = False
        self.records = [record for record in self.records if record.episodes]
        if not self.incumbent.episodes:
            self.incumbent = self.newest

    @property
    def reason(self) -> str:
        """Why the incumbent is served."""
        if not self.trusts_model:
            return super().reason
        n = self.trial_errors.n_episodes
        measured = f"; trials are corrected by the last {n} measured episodes" if n > 1 else ""
        return f"the best simulated return of all candidates, or not credibly worse{measured}"

    def add_episode(self, policy: PolicyRecord | None, episode: Episode) -> None:
        """Add an episode; the incumbent is selected with the next improvement, unless the model is not trusted."""
        is_test = policy is not None and policy.q is not None and not policy.explores
        if policy is not None and is_test and self.simulate is not None:
            episode = replace(episode, difference=episode.total - self.simulate(policy, episode.start))
            self.compared = [*self.compared, (policy.n_transitions, episode.difference)][-N_COMPARED:]
        self.return_range = min(self.return_range[0], episode.total), max(self.return_range[1], episode.total)
        if not self.trusts_model:
            super().add_episode(policy, episode)
            return
        self._add_to_newest(episode)
        if policy is not None:
            policy.episodes.append(episode)

    def is_replaced(self, episode: EpisodeState, state: Array) -> bool:
        """Whether a running episode goes on with the newest policy: one that explores does, a test goes on."""
        if not self.trusts_model:
            return super().is_replaced(episode, state)
        return episode.policy is None or episode.policy.explores

    def choose(self) -> PolicyRecord | None:
        """The policy of the next episode: the incumbent and the one that explores, in turn."""
        if not self.trusts_model or self.newest_q is None:
            return super().choose()
        self._n_choices += 1
        self._n_chosen += 1
        if self.has_plan and self._n_choices % 2 == 0 and self.incumbent.q is not None:
            return self.incumbent
        self._n_explored += 1
        return PolicyRecord(self.newest_q.sample, explores=True)

    def take_exploration(self) -> float:
        """Share of the episodes since the last call that explored; NaN without episodes."""
        share = self._n_explored / self._n_chosen if self._n_chosen else np.nan
        self._n_chosen = self._n_explored = 0
        return share


def _trial_errors(
    compared: Sequence[tuple[int, float]], is_noisy: bool, return_range: tuple[float, float]
) -> TrialErrors:
    """How wrong the trials of the latest episodes were; policies by the transitions they were learnt from."""
    if not compared:
        return TrialErrors()
    policies, every = (np.array(column) for column in zip(*compared, strict=True))
    groups = [every[policies == policy] for policy in np.unique(policies)]
    within = variance_within(groups, float((every**2).mean()) if is_noisy else None)
    noise = within / np.array([len(group) for group in groups])
    between = variance_between(np.array([group.mean() for group in groups]), noise, centre=0.0)
    spread = max(0.0, return_range[1] - return_range[0])
    is_off = len(every) >= MIN_COMPARED and float(np.median(np.abs(every))) > UNINFORMATIVE * spread > 0.0
    return TrialErrors(within, between, len(every), is_off)


def _is_credibly_better(challenger: PolicyRecord, incumbent: PolicyRecord) -> bool:
    """Whether the difference of scores exceeds the standard error of the difference of trials.

    All policies start in the same states: differences of their returns tell more than each mean does. Without it the
    served policy would change with every trial, by chance. If all returns are the same, the one that was learnt from
    more transitions has the better Q-function.
    """
    if challenger.trial_returns is None or incumbent.trial_returns is None:
        return True
    if len(challenger.trial_returns) != len(incumbent.trial_returns):
        return True
    differences = challenger.trial_returns - incumbent.trial_returns
    error = float(differences.std()) / np.sqrt(len(differences))
    if not differences.any() and challenger.score == incumbent.score:
        return challenger.n_transitions > incumbent.n_transitions
    return challenger.score - incumbent.score > error


def _score(record: PolicyRecord, errors: TrialErrors) -> float:
    """Mean less one standard deviation of the posterior of a policy's return."""
    differences = record.differences
    if differences is None or not len(differences):
        return record.trial_return - float(np.sqrt(errors.between))
    shift, std = shrunken_mean(float(differences.mean()), errors.within / len(differences), errors.between)
    return float(record.trial_return + shift - std)
