"""Planning in a dynamics model: candidate policies, and their trial in the model.

One improvement: complete visited and simulated states with the outcomes of all actions, fit Q for several settings,
simulate each greedy policy from start states, and judge it by its return. What the simulations visit is where the next
round plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gptd_rl.agents.exploration import nothing_to_gain, reward_novelty
from gptd_rl.agents.lookahead import Lookahead
from gptd_rl.agents.planning_states import StateCounts, distant_rows, planning_states
from gptd_rl.agents.policy_pool import PolicyRecord, StateValues
from gptd_rl.agents.trial import simulated_returns, start_states
from gptd_rl.data.action_transitions import CompletedTransitions
from gptd_rl.estimators.completed import CompletedFit, CompletedProblem, PriorMean, select_by_values
from gptd_rl.estimators.dynamics.completion import repeat_actions
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.dynamics.output import state_kernel, unit_relevances
from gptd_rl.inference.by_action import QFunction
from gptd_rl.kernels import Kernel, MultiScale
from gptd_rl.selection.regression import rescale
from gptd_rl.types import Array, IntArray

DEFAULT_TIME_LIMIT = 500  # steps of a simulated episode where none is known
THINNED = 3  # every third state of a trial is kept to plan in
MAX_COMPARED = 6  # latest episodes of a policy with which its trial is compared
PRELIMINARY = 3  # trials before the last round have this many times fewer episodes
# Rewards are known if 99 % of their standard deviations are a smaller share of their range: caution changes nothing.
KNOWN = 1e-3


@dataclass(frozen=True)
class Setting:
    """How to fit Q.

    Attributes
    ----------
    softness : float
        ε of the backup: with more of it a policy keeps away from edges, with less it takes the shortest way.
    noise_share : float
        λ = σ²/v₀.
    fineness : float
        Relevances of the selected kernel times this: how fine the details of Q may be.
    n_inducing : int
        Inducing states of Q.
    n_repeats : int
        Steps for which an action is held while planning. With more of them errors add up less often; the policy still
        chooses in every step.
    """

    softness: float
    noise_share: float
    fineness: float = 1.0
    n_inducing: int = 400
    n_repeats: int = 1


@dataclass(frozen=True)
class Planning:
    """Settings of planning in a model; one default for all tasks.

    Attributes
    ----------
    settings : tuple of Setting
        One for each candidate policy.
    refined : tuple of Setting
        Of further candidates in the last round, which take more time.
    exploring : Setting
        Of the policy that explores.
    prior_mean : {"smallest", "largest"}
        Prior mean of the candidates: states that nothing is known of look bad, or good.
    trial : bool
        Judge candidates by simulated episodes; False takes the first.
    lookahead : bool
        Act by r + γV(x') of predicted next states instead of by Q.
    caution : float
        Unknown rewards are taken to be so many standard deviations smaller than expected, by candidates and in trials.
    curiosity : float
        And so many larger by the policy that explores.
    n_rounds : int
        Planning and trial in one improvement.
    states : StateCounts
        How many states to plan in.
    n_starts : int
        Simulated episodes of a trial.
    start_share : float
        How many of them start where episodes start; the others in visited states.
    n_kept : int
        Best candidates that are tried again in the next improvement.
    """

    settings: tuple[Setting, ...] = (
        Setting(0.3, 1e-3),
        Setting(0.1, 1e-3),
        Setting(0.1, 1e-3, 4.0),
        Setting(0.02, 1e-4, 4.0),
    )
    refined: tuple[Setting, ...] = (Setting(0.1, 1e-3, 16.0, n_inducing=800, n_repeats=2),)
    exploring: Setting = Setting(0.1, 3e-3)
    prior_mean: PriorMean = "smallest"
    trial: bool = True
    lookahead: bool = False
    caution: float = 1.0
    curiosity: float = 20.0
    n_rounds: int = 2
    states: StateCounts = field(default_factory=StateCounts)
    n_starts: int = 120
    start_share: float = 0.6
    n_kept: int = 2


@dataclass(frozen=True, eq=False)
class Improvement:
    """Result of an improvement.

    Attributes
    ----------
    candidates : list of PolicyRecord
        Policies with their returns in the trial, best first.
    explorer : StateValues
        Posterior sample of an optimistic Q.
    fit : CompletedFit
        Of the first setting.
    """

    candidates: list[PolicyRecord]
    explorer: StateValues
    fit: CompletedFit


@dataclass(eq=False)
class Planner:
    """Improves policies in a model.

    Attributes
    ----------
    planning : Planning
    time_limit : int
        Steps of a simulated episode.
    reselect : bool
        Select the kernel of Q again whenever the data have doubled.
    kernel : Kernel or None
        Of states, with the relevances that were selected last.
    n_selected : int
        Transitions at the last selection.
    simulated : ndarray of shape (k, n_dims) or None
        States of the last trial.
    newest : QFunction or None
        Of the first setting, from which the next fit starts.
    has_gain : bool
        Whether the last plan knew something better than doing nothing; if not, there is only to explore.
    """

    planning: Planning
    time_limit: int = DEFAULT_TIME_LIMIT
    reselect: bool = True
    kernel: Kernel | None = None
    n_selected: int = 0
    simulated: Array | None = None
    newest: QFunction | None = None
    has_gain: bool = True
    _distant: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def improve(
        self,
        model: DynamicsModel,
        starts: Array,
        known: Sequence[PolicyRecord],
        explorer: StateValues | None,
        rng: np.random.Generator,
    ) -> Improvement:
        """Plan, try, and plan again.

        Parameters
        ----------
        model : DynamicsModel
        starts : ndarray of shape (k, n_dims)
            First states of episodes.
        known : sequence of PolicyRecord
            Policies to try beside the new ones.
        explorer : StateValues or None
            The policy that explores, so far.
        rng : Generator
        """
        counts, selection, known, retried = self.planning.states, None, list(known), list(known)
        for round_ in range(1, self.planning.n_rounds + 1):
            acting = [q for q in (*(record.q for record in known), explorer) if q is not None]
            self._distant = distant_rows(model, self._kernel(model), rng)
            data = planning_states(model, counts, self._distant, starts, self.simulated, acting, rng)
            self.has_gain = not nothing_to_gain(data)
            plan = self._plan(model, data, starts, known, round_ == self.planning.n_rounds, rng)
            selection, explorer = plan.fit.selection or selection, plan.explorer
            if not self.has_gain:
                break
            best = plan.candidates[: self.planning.n_kept]
            known = best + [record for record in retried if record not in best]
        return replace(plan, fit=replace(plan.fit, selection=selection))

    # ---------------------------------------------------------------------------------- candidates

    def _kernel(self, model: DynamicsModel) -> Kernel:
        if self.kernel is None:
            space = model.space_
            self.kernel = state_kernel(space, unit_relevances(space, model.transitions_.states), MultiScale)
        return self.kernel

    def _plan(
        self,
        model: DynamicsModel,
        data: CompletedTransitions,
        starts: Array,
        known: Sequence[PolicyRecord],
        is_last: bool,
        rng: np.random.Generator,
    ) -> Improvement:
        """Fit Q for all settings, and try the greedy policies; with less effort before the last round."""
        planning, problems = self.planning, dict[tuple[float, int, int], CompletedProblem]()

        def problem_of(setting: Setting) -> CompletedProblem:
            key = setting.fineness, setting.n_inducing, setting.n_repeats
            if key not in problems:
                kernel = rescale(self._kernel(model), relevance=setting.fineness)
                repeated = data if setting.n_repeats == 1 else repeat_actions(model, data, setting.n_repeats, rng)
                problems[key] = CompletedProblem.of(repeated, kernel, setting.n_inducing, rng)
            return problems[key]

        values, selection = None if self.newest is None else _next_values(self.newest, data), None
        first = self._solve(problem_of(planning.settings[0]), planning.settings[0], values)
        if self.n_selected == 0 or (self.reselect and len(model.transitions_) >= 2 * self.n_selected):
            selection = select_by_values(problem_of(planning.settings[0]), first, rng)
        if selection is not None:
            self.kernel, self.n_selected, problems = selection.kernel, len(model.transitions_), {}
            first = self._solve(problem_of(planning.settings[0]), planning.settings[0], first.values)
        self.newest = first.posterior.mean_function
        settings, others = planning.settings + (planning.refined if is_last else ()), []
        if not self.has_gain:
            settings, is_last = settings[:1], False
        for setting in settings[1:]:
            problem = problem_of(setting)
            values = first.values if problem.data is data else _next_values(self.newest, problem.data)
            others.append(self._solve(problem, setting, values))
        optimistic = self._explorer(model, problem_of(planning.exploring), rng)
        new = [
            PolicyRecord(self._acting(model, fit.posterior.mean_function, setting))
            for fit, setting in zip([first, *others], settings, strict=True)
        ]
        candidates = [*new[:1], *known]
        if planning.trial:
            is_known = np.quantile(data.reward_std, 0.99) <= KNOWN * np.ptp(data.rewards)
            caution = 0.0 if is_known else planning.caution
            n_starts = planning.n_starts // (1 if is_last else PRELIMINARY)
            candidates = self._try(model, [*known, *new], starts, n_starts, caution, rng)
        explorer = self._acting(model, optimistic, planning.exploring)
        return Improvement(candidates, explorer, replace(first, selection=selection))

    def _solve(self, problem: CompletedProblem, setting: Setting, values: Array | None) -> CompletedFit:
        return problem.solve(
            softness=setting.softness,
            noise_share=setting.noise_share,
            prior_mean=self.planning.prior_mean,
            values=values,
            caution=self.planning.caution,
        )

    def _explorer(self, model: DynamicsModel, problem: CompletedProblem, rng: np.random.Generator) -> QFunction:
        """Posterior sample of a Q-function to which unknown states and rewards look good."""
        setting, values = self.planning.exploring, None
        prior_mean: float | PriorMean = "largest"
        if not self.has_gain:
            problem, prior_mean = reward_novelty(model, problem)
            values = np.full(problem.data.rewards.shape, prior_mean)
        optimistic = problem.solve(
            softness=setting.softness,
            noise_share=setting.noise_share,
            prior_mean=prior_mean,
            values=values,
            caution=-self.planning.curiosity,
        )
        return optimistic.posterior.sample_function(rng)

    def _acting(self, model: DynamicsModel, q: QFunction, setting: Setting) -> StateValues:
        return Lookahead(model.snapshot(), q, setting.softness) if self.planning.lookahead else q

    # ---------------------------------------------------------------------------------- trial

    def _try(
        self,
        model: DynamicsModel,
        records: Sequence[PolicyRecord],
        starts: Array,
        n: int,
        caution: float,
        rng: np.random.Generator,
    ) -> list[PolicyRecord]:
        """Simulate every policy from the same `n` states; the best first."""
        from_start = round(self.planning.start_share * n)
        others = model.transitions_.states[rng.choice(self._distant, size=n - from_start)]
        x = np.concatenate([start_states(model, starts, from_start, rng), others])
        policies = [record.q for record in records if record.q is not None]
        episodes = [record.episodes[-MAX_COMPARED:] for record in records]
        # Where its measured episodes started, a policy starts again, for a comparison with the model of today.
        all_starts = [np.concatenate([x, *(e.start[None] for e in own)]) for own in episodes]
        returns, trial = simulated_returns(model, policies, all_starts, self.time_limit, rng, caution)
        self.simulated = trial.states[::THINNED]
        for record, measured, own in zip(records, episodes, returns, strict=True):
            record.trial_returns, record.trial_return = own[:n], float(own[:n].mean())
            record.differences = np.array([episode.total for episode in measured]) - own[n:]
        return sorted(records, key=lambda record: -record.trial_return)


def _next_values(q: QFunction, data: CompletedTransitions) -> Array:
    """V of the next states, of shape (n, n_actions)."""
    following = data.next_states.reshape(-1, data.states.shape[1])
    return q(following).max(axis=1).reshape(data.rewards.shape)


def planning_from_dict(kept: dict[str, Any]) -> Planning:
    """The settings again that `dataclasses.asdict` took apart."""
    parts = dict(
        settings=tuple(Setting(**setting) for setting in kept["settings"]),
        refined=tuple(Setting(**setting) for setting in kept["refined"]),
        exploring=Setting(**kept["exploring"]),
        states=StateCounts(**kept["states"]),
    )
    return Planning(**kept | parts)
