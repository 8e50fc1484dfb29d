"""Planning in a dynamics model: states to plan in, candidate policies, and their trial in the model.

One improvement: complete visited and simulated states with the outcomes of all actions, fit Q for several settings,
simulate each greedy policy from start states, and judge it by its return. What the simulations visit is where the next
round plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from gptd_rl.agents.policy_pool import PolicyRecord, StateValues
from gptd_rl.data.action_transitions import CompletedTransitions
from gptd_rl.estimators.completed import CompletedFit, CompletedProblem, select_by_values, soften
from gptd_rl.estimators.dynamics import DynamicsModel
from gptd_rl.estimators.dynamics_output import state_kernel, unit_relevances
from gptd_rl.estimators.simulation import Simulation, simulate
from gptd_rl.inference.by_action import QFunction
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.kernels import Kernel, MultiScale
from gptd_rl.selection.regression import KernelSelection
from gptd_rl.types import Array, IntArray

MAX_PIVOTS, MAX_CANDIDATES, PIVOT_TOLERANCE = 400, 1500, 1e-6
# Leaving the visited range by this share of it ends a simulated episode; the rest of it earns the smallest reward.
MARGIN = 0.05
# Simulated episodes that show states to plan in: how many at a time, their random actions, how often they start again.
N_PARALLEL, RANDOM_SHARE, RESTART = 40, 0.3, 0.01
PERTURBATION = 0.3  # of visited states, in standard deviations
DEFAULT_TIME_LIMIT = 500  # steps of a simulated episode where none is known
THINNED = 3  # every third state of a trial is kept to plan in


@dataclass(frozen=True)
class Planning:
    """Settings of planning in a model; one default for all tasks.

    Attributes
    ----------
    settings : tuple of (float, float)
        Softness ε and noise share λ of each candidate policy.
    exploring : tuple of (float, float)
        The same for the policy that explores.
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
    n_visited, n_perturbed, n_rollout, n_simulated : int
        States to plan in: visited ones, perturbed ones, of partly random episodes in the model, of the last trial.
    n_starts : int
        Simulated episodes of a trial.
    start_share : float
        How many of them start where episodes start; the others in visited states.
    n_kept : int
        Best candidates that are tried again in the next improvement.
    n_inducing : int
        Inducing states of Q.
    """

    settings: tuple[tuple[float, float], ...] = ((0.3, 1e-3), (0.1, 1e-3), (0.02, 1e-4))
    exploring: tuple[float, float] = (0.1, 3e-3)
    prior_mean: Literal["smallest", "largest"] = "smallest"
    trial: bool = True
    lookahead: bool = False
    caution: float = 1.0
    curiosity: float = 20.0
    n_rounds: int = 2
    n_visited: int = 800
    n_perturbed: int = 300
    n_rollout: int = 600
    n_simulated: int = 600
    n_starts: int = 120
    start_share: float = 0.6
    n_kept: int = 2
    n_inducing: int = 400


@dataclass(frozen=True, eq=False)
class Lookahead:
    """Q by one step in the model: r + γV(x')."""

    model: DynamicsModel
    q: QFunction
    softness: float
    bounds: tuple[float, float]

    def __call__(self, states: Array) -> Array:
        """Q of every action, of shape (n, n_actions)."""
        outcome = self.model.outcomes(states)
        flat = outcome.next_states.reshape(-1, states.shape[1])
        values = np.clip(soften(self.q(flat), self.softness), *self.bounds).reshape(outcome.rewards.shape)
        return np.asarray(outcome.rewards + self.model.transitions_.gamma * ~outcome.terminated * values)

    def greedy(self, states: Array) -> IntArray:
        """Index of the best action in each state, of shape (n,)."""
        return self(states).argmax(axis=1)


def q_function(values: StateValues) -> QFunction:
    """The Q-function of a policy, with or without lookahead."""
    found = values.q if isinstance(values, Lookahead) else values
    assert isinstance(found, QFunction)
    return found


@dataclass(frozen=True, eq=False)
class Plan:
    """Result of an improvement.

    Attributes
    ----------
    candidates : list of PolicyRecord
        Policies with their returns in the trial, best first.
    explorer : QFunction
        Posterior sample of an optimistic Q.
    fit : CompletedFit
        Of the first candidate.
    selection : KernelSelection or None
        The kernel, if it was selected.
    """

    candidates: list[PolicyRecord]
    explorer: StateValues
    fit: CompletedFit
    selection: KernelSelection | None


@dataclass(eq=False)
class Planner:
    """Improves policies in a model; remembers what simulations visited.

    Attributes
    ----------
    planning : Planning
    time_limit : int
        Steps of a simulated episode.
    reselect : bool
        Select the kernel of Q again whenever the data have doubled.
    """

    planning: Planning
    time_limit: int = DEFAULT_TIME_LIMIT
    reselect: bool = True
    kernel: Kernel | None = None
    n_selected: int = 0
    simulated: Array | None = None  # [k, D]
    newest: QFunction | None = None
    _pivots: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def improve(
        self,
        model: DynamicsModel,
        starts: Array,
        known: Sequence[PolicyRecord],
        explorer: StateValues | None,
        rng: np.random.Generator,
    ) -> Plan:
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
        known, plan = list(known), None
        for _ in range(self.planning.n_rounds):
            acting = [record.q for record in known if record.q is not None]
            data = self._states(model, starts, acting if explorer is None else [*acting, explorer], rng)
            plan = self._plan(model, data, starts, known, rng)
            known, explorer = self._retried(known, plan.candidates), plan.explorer
        assert plan is not None
        return plan

    def _retried(self, known: Sequence[PolicyRecord], candidates: Sequence[PolicyRecord]) -> list[PolicyRecord]:
        """The best candidates, and policies with episodes."""
        best = list(candidates[: self.planning.n_kept])
        return best + [record for record in known if record.episodes and record not in best]

    # ---------------------------------------------------------------------------------- states to plan in

    def _states(
        self, model: DynamicsModel, starts: Array, policies: Sequence[StateValues], rng: np.random.Generator
    ) -> CompletedTransitions:
        """Visited states with the outcomes of all actions, and states that the model leads to."""
        planning, t, space = self.planning, model.transitions_, model.space_
        rows = self._visited(model, rng)
        alive = np.concatenate([t.states, t.next_states[~t.terminated]])
        extra = []
        if planning.n_perturbed and not space.circles:
            x = alive[rng.integers(len(alive), size=planning.n_perturbed)]
            extra.append(space.move(x, PERTURBATION * alive.std(axis=0) * rng.standard_normal(x.shape)))
        if planning.n_rollout:
            extra.append(self._rollout(model, alive, starts, policies, rng))
        if planning.n_simulated and self.simulated is not None:
            extra.append(rng.permutation(self.simulated)[: planning.n_simulated])
        if not extra:
            return model.complete_rows(t, rows, None, rng)
        states = np.concatenate(extra)
        if model.terminations_ is not None:
            states = states[~model.terminations_(states)]
        return model.complete_rows(t, rows, states, rng)

    def _visited(self, model: DynamicsModel, rng: np.random.Generator) -> IntArray:
        """Rows of the data to plan in: all, or some at random and some that are far apart."""
        t = model.transitions_
        some = rng.permutation(len(t))[:MAX_CANDIDATES]
        kernel = self._kernel(model)
        pivots = incomplete_cholesky(kernel, t.states[some], MAX_PIVOTS, PIVOT_TOLERANCE).indices
        self._pivots = some[pivots]
        if len(t) <= self.planning.n_visited:
            return np.arange(len(t))
        half = self.planning.n_visited // 2
        return np.unique(np.concatenate([self._pivots[:half], rng.permutation(len(t))[: self.planning.n_visited]]))

    def _rollout(
        self,
        model: DynamicsModel,
        alive: Array,
        starts: Array,
        policies: Sequence[StateValues],
        rng: np.random.Generator,
    ) -> Array:
        """States of partly random episodes in the model, of shape (n_rollout, n_dims)."""

        def fresh(n: int) -> Array:
            x = alive[rng.integers(len(alive), size=n)]
            from_start = rng.random(n) < 0.5
            x[from_start] = start_states(model, starts, int(from_start.sum()), rng)
            return x

        x, visited = fresh(N_PARALLEL), []
        owner = rng.integers(max(1, len(policies)), size=N_PARALLEL)
        for _ in range(self.planning.n_rollout // N_PARALLEL):
            actions = rng.integers(model.n_actions_, size=N_PARALLEL)
            for number, policy in enumerate(policies):
                mine = np.flatnonzero((owner == number) & (rng.random(N_PARALLEL) >= RANDOM_SHARE))
                if len(mine):
                    actions[mine] = policy.greedy(x[mine])
            outcome = model.outcomes(x, model.sample_residuals(len(x), rng)).take(actions)
            again = outcome.terminated | (rng.random(N_PARALLEL) < RESTART)
            again |= model.space_.is_outside(outcome.next_states, MARGIN)
            x = np.where(again[:, None], fresh(N_PARALLEL), outcome.next_states)
            visited.append(x)
        return np.concatenate(visited)

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
        rng: np.random.Generator,
    ) -> Plan:
        planning = self.planning
        problem = CompletedProblem.of(data, self._kernel(model), planning.n_inducing, rng)
        values = None
        if self.newest is not None:
            following = data.next_states.reshape(-1, data.states.shape[1])
            values = self.newest(following).max(axis=1).reshape(data.rewards.shape)
        solve = self._solver(problem)
        first = solve(planning.settings[0], values)
        selection = None
        if self._is_due(len(model.transitions_)):
            problem, first, selection = self._reselect(problem, first, model, rng)
            solve = self._solver(problem)
            first = replace(first, selection=selection)
        fits = [first, *(solve(setting, first.values) for setting in planning.settings[1:])]
        self.newest = first.posterior.mean_function
        softness, noise_share = planning.exploring
        optimistic = problem.solve(
            softness=softness, noise_share=noise_share, prior_mean="largest", caution=-planning.curiosity
        )
        explorer = optimistic.posterior.sample_function(rng)
        act = self._acting(model, problem)
        new = [
            PolicyRecord(act(fit.posterior.mean_function, setting[0]))
            for fit, setting in zip(fits, planning.settings, strict=True)
        ]
        candidates = self._try(model, [*known, *new], starts, rng) if planning.trial else [*new[:1], *known]
        return Plan(candidates, act(explorer, softness), first, selection)

    def _is_due(self, n: int) -> bool:
        """Whether to select a kernel for `n` transitions: the first one, and again whenever they have doubled."""
        return self.n_selected == 0 or (self.reselect and n >= 2 * self.n_selected)

    def _solver(self, problem: CompletedProblem) -> Callable[[tuple[float, float], Array | None], CompletedFit]:
        def solve(setting: tuple[float, float], values: Array | None) -> CompletedFit:
            mean = self.planning.prior_mean
            kept: Any = dict(prior_mean=mean, values=values, caution=self.planning.caution)
            return problem.solve(softness=setting[0], noise_share=setting[1], **kept)

        return solve

    def _acting(self, model: DynamicsModel, problem: CompletedProblem) -> Callable[[QFunction, float], StateValues]:
        if not self.planning.lookahead:
            return lambda q, _: q
        frozen = model.snapshot()
        return lambda q, softness: Lookahead(frozen, q, softness, problem.bounds)

    def _reselect(
        self, problem: CompletedProblem, fit: CompletedFit, model: DynamicsModel, rng: np.random.Generator
    ) -> tuple[CompletedProblem, CompletedFit, KernelSelection | None]:
        """Select relevances by the evidence of V, once its targets differ."""
        selection = select_by_values(problem, fit, rng)
        if selection is None:
            return problem, fit, None
        self.kernel, self.n_selected = selection.kernel, len(model.transitions_)
        problem = CompletedProblem.of(problem.data, self.kernel, self.planning.n_inducing, rng)
        return problem, self._solver(problem)(self.planning.settings[0], fit.values), selection

    # ---------------------------------------------------------------------------------- trial

    def _try(
        self, model: DynamicsModel, records: Sequence[PolicyRecord], starts: Array, rng: np.random.Generator
    ) -> list[PolicyRecord]:
        """Simulate every policy from the same states; the best first."""
        n = self.planning.n_starts
        from_start = round(self.planning.start_share * n)
        others = model.transitions_.states[rng.choice(self._pivots, size=n - from_start)]
        x = np.concatenate([start_states(model, starts, from_start, rng), others])
        policies = [record.q for record in records if record.q is not None]
        returns, trial = simulated_returns(model, policies, x, self.time_limit, rng, self.planning.caution)
        self.simulated = trial.states[::THINNED]
        for record, own in zip(records, returns, strict=True):
            record.trial_return = float(own.mean())
        return sorted(records, key=lambda record: -record.trial_return)


def start_states(model: DynamicsModel, starts: Array, n: int, rng: np.random.Generator) -> Array:
    """States where episodes may start, of shape (n, n_dims): a smoothed bootstrap of those that did.

    Few episodes have started so far, and a policy should be tried where the next ones may start. The bandwidth is
    Silverman's.
    """
    k, n_dims = starts.shape
    x = starts[rng.integers(k, size=n)]
    width = (4.0 / ((n_dims + 2.0) * k)) ** (1.0 / (n_dims + 4.0)) * starts.std(axis=0)
    moved = model.space_.move(x, width * rng.standard_normal(x.shape))
    if model.space_.circles:
        return moved
    near = np.clip(moved, starts.min(axis=0) - width, starts.max(axis=0) + width)
    return np.where(model.space_.is_angle, moved, near)


def simulated_returns(
    model: DynamicsModel,
    policies: Sequence[StateValues],
    starts: Array,
    n_steps: int,
    rng: np.random.Generator,
    caution: float = 0.0,
) -> tuple[Array, Simulation]:
    """Undiscounted returns of policies from the same states in the model, of shape (n_policies, n_starts).

    Whoever leaves the visited range, where the model knows nothing, earns the smallest reward until the end.
    """
    k = len(starts)

    def act(states: Array, episodes: IntArray) -> IntArray:
        actions, owner = np.zeros(len(states), dtype=np.int64), episodes // k
        for number, policy in enumerate(policies):
            mine = np.flatnonzero(owner == number)
            if len(mine):
                actions[mine] = policy.greedy(states[mine])
        return actions

    space, worst = model.space_, min(0.0, float(model.transitions_.rewards.min()))
    x = np.tile(starts, (len(policies), 1))
    trial = simulate(model, act, x, n_steps, rng, lambda states: space.is_outside(states, MARGIN), caution)
    left = ~trial.terminated & (trial.n_steps < n_steps)
    returns = trial.returns + np.where(left, (n_steps - trial.n_steps) * worst, 0.0)
    return returns.reshape(len(policies), k), trial
