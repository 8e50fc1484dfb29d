"""Frozen records of the results of an evaluation: the terminal prints them, the page and the JSON file show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.exclusions import Cost
from gptd_rl.estimators.importances import Importances
from gptd_rl.estimators.markov import MarkovTest
from gptd_rl.report.recorded import Recordings
from gptd_rl.types import Array, BoolArray, IntArray

LEVELS = (0.5, 0.8, 0.95)


class ValueFunction(Protocol):
    """A value function with intervals."""

    def predict(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval that contains the value with probability `level`: lower and upper, each of shape (m,)."""


@dataclass(frozen=True)
class EvaluationConfig:
    """The policy, the environment and the data of an evaluation.

    Attributes
    ----------
    agent, env : str
        Names, such as "A2C" and "CartPole-v1".
    gamma : float
    deterministic : bool
        Whether the agent takes its most likely action.
    n_transitions, n_episodes, n_terminated : int
        Counts of the data. Episodes include truncated ones; `n_terminated` of them reached a terminal state.
    inputs : tuple of str
        Names of the observations.
    is_categorical : bool
        Whether the observation is one of finitely many states, each with an input of its own (one-hot).
    seed : int
    candidates : dict of str to float
        Root mean squared error of each candidate for V at left-out episodes; empty if there was no choice.
    chosen : str
        The candidate that V is.
    call : str
        The call of `evaluate_agent` that made it, without arguments at their defaults.
    """

    agent: str
    env: str
    gamma: float
    deterministic: bool
    n_transitions: int
    n_episodes: int
    n_terminated: int
    inputs: tuple[str, ...]
    is_categorical: bool
    seed: int
    candidates: dict[str, float]
    chosen: str
    call: str = field(default="", metadata={"json": False})


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    lower: float
    upper: float

    @property
    def half_width(self) -> float:
        """Half of the distance from `lower` to `upper`."""
        return (self.upper - self.lower) / 2


@dataclass(frozen=True)
class StartReturn:
    """Value and return from the start states.

    Attributes
    ----------
    value : Interval
        Discounted value by the model, averaged over the start states; the sampling unit of the interval is the episode.
    returns : Interval or None
        Mean undiscounted return of complete episodes, with Student's interval over episodes. None if fewer than two
        episodes are complete.
    mean, std : float
        Results of Stable-Baselines3's `evaluate_policy` on the same episodes: mean and standard deviation *of
        episodes*, which is not the standard error of the mean. NaN if no episode is complete.
    n_episodes : int
        Number of complete episodes.
    """

    value: Interval
    returns: Interval | None
    mean: float
    std: float
    n_episodes: int


@dataclass(frozen=True, eq=False)
class Relevance:
    """How much each observation matters for the value, and how the kernel uses it.

    Attributes
    ----------
    kernel : {"isotropic", "ard"}
        "isotropic" has one relevance for all inputs.
    scaled_relevances : ndarray of shape (n_dims,)
        Relevance × variance of the input: how much the value bends within the spread of the input. It is small where
        the value is linear in it, so a small one does not mean that the input is irrelevant.
    importances : Importances
        Shares of the value's variance over visited states that are lost when an input is unknown.
    n_transitions : int
        Number of transitions from whose states those were taken that relevances were selected on.
    costs : tuple of Cost
        What leaving out each input costs; empty if that was not asked.
    irrelevant : tuple of int
        Inputs of which less than `NEGLIGIBLE` depends, and that cost nothing when all of them are left out.
    irrelevant_cost : Cost or None
        What leaving out exactly these costs; None if there are none.
    alike : tuple of tuples of int
        Groups of inputs that carry the same information: each costs nothing, all of them together do.
    evidence : float
        Log evidence with all inputs of `n_compared` transitions, from which costs count; NaN without costs.
    n_compared : int
    """

    NEGLIGIBLE: ClassVar[float] = 0.01  # share of the value's variance
    STRAIGHT: ClassVar[float] = 1e-3  # scaled relevance

    kernel: Literal["isotropic", "ard"]
    scaled_relevances: Array
    importances: Importances
    n_transitions: int
    costs: tuple[Cost, ...] = ()
    irrelevant: tuple[int, ...] = ()
    irrelevant_cost: Cost | None = None
    alike: tuple[tuple[int, ...], ...] = ()
    evidence: float = np.nan
    n_compared: int = 0

    @property
    def underrated(self) -> tuple[int, ...]:
        """Inputs that are wanted although their relevance, or their share of the variance, is negligible."""
        is_small = (self.scaled_relevances < self.STRAIGHT) | (self.importances.upper < self.NEGLIGIBLE)
        return tuple(
            i for i, cost in enumerate(self.costs) if is_small[i] and np.isfinite(cost.evidence) and not cost.is_nothing
        )

    @property
    def order(self) -> IntArray:
        """Inputs in order of decreasing importance, of shape (n_dims,)."""
        return np.argsort(-np.nan_to_num(self.importances.total_effects), kind="stable")


@dataclass(frozen=True)
class Score:
    """Errors of one value function at held-out states.

    Attributes
    ----------
    name : str
        "GPTD", "A2C's critic", "Monte Carlo", …
    rmse : float
        Root mean squared error, without the noise of the rollouts that it was measured by.
    rmse_interval : tuple of float
        Its 95 % interval; the sampling unit is the episode.
    bias : float
        Mean of predicted − observed.
    nlpd : float
        Mean negative log predictive density of the observed values, under a normal with the width of the 95 % interval.
    coverage : tuple of float
        Share of the observed values inside the intervals of each level in `LEVELS`.
    half_width : float
        Mean half-width of the 95 % interval.
    """

    name: str
    rmse: float
    rmse_interval: tuple[float, float]
    bias: float
    nlpd: float
    coverage: tuple[float, ...]
    half_width: float


@dataclass(frozen=True, eq=False)
class Check:
    """Predicted and observed values at states of held-out episodes.

    Attributes
    ----------
    kind : {"rollouts", "returns"}
        "rollouts": `observed` is the mean return of `n_rollouts` continuations of the environment from each state,
        without a time limit, an estimate of V with standard error `errors`. "returns": the single return of a held-out
        episode, noise included; the intervals are then those of returns.
    states : ndarray of shape (m, n_dims)
    observed, errors : ndarray of shape (m,)
        Returns, and their standard errors (0 where nothing is random).
    episodes : ndarray of shape (m,)
        The held-out episode of each state.
    predicted, lower, upper : ndarray of shape (m,)
        Predictions of the model, with the 95 % interval.
    critic : ndarray of shape (m,) or None
        Values of the agent's own critic.
    shares : ndarray of shape (k,)
        Levels of the reliability diagram.
    reliability : dict of str to ndarray of shape (k,)
        Coverage at these levels, by name.
    scores : tuple of Score
        The model first.
    n_rollouts : int
    """

    kind: Literal["rollouts", "returns"]
    states: Array
    observed: Array
    errors: Array
    episodes: IntArray
    predicted: Array
    lower: Array
    upper: Array
    critic: Array | None
    shares: Array
    reliability: dict[str, Array]
    scores: tuple[Score, ...]
    n_rollouts: int

    @property
    def n_episodes(self) -> int:
        """Number of held-out episodes."""
        return len(np.unique(self.episodes))

    @property
    def disagrees(self) -> BoolArray:
        """States at which the critic is outside the model's 95 % interval, of shape (m,)."""
        if self.critic is None:
            return np.zeros(len(self.states), dtype=bool)
        return (self.critic < self.lower) | (self.critic > self.upper)

    @property
    def n_disagreements(self) -> int:
        """Number of states at which the critic is outside the model's 95 % interval."""
        return int(self.disagrees.sum())

    def closer_model(self) -> tuple[int, int]:
        """Disagreements at which the model is closer to the observed value than the critic, and those observed."""
        if self.critic is None:
            return 0, 0
        known = self.disagrees & np.isfinite(self.observed)
        is_closer = np.abs(self.predicted - self.observed) <= np.abs(self.critic - self.observed)
        return int((known & is_closer).sum()), int(known.sum())


@dataclass(frozen=True)
class Disagreement:
    """A state at which the critic lies outside the model's 95 % interval.

    Attributes
    ----------
    state : tuple of float
    critic, value, lower, upper : float
    observed : float
        Value observed in fresh rollouts.
    """

    state: tuple[float, ...]
    critic: float
    value: float
    lower: float
    upper: float
    observed: float

    @property
    def closer(self) -> Literal["model", "critic"] | None:
        """Which of the two is closer to the observed value; None if nothing was observed."""
        if not np.isfinite(self.observed):
            return None
        return "model" if abs(self.value - self.observed) <= abs(self.critic - self.observed) else "critic"


@dataclass(frozen=True)
class OffPolicy:
    """Difference between the evaluated policy and the policy that generated the data.

    Attributes
    ----------
    target : str
        Name of the evaluated policy.
    n_asked : int
        Number of states at which the actions were compared.
    disagreement : float
        Share of these states at which the actions differ (continuous ones: by more than 10 % of the action's range).
    mean_difference : float
        Mean difference of continuous actions, as a share of the range; equal to `disagreement` for discrete ones.
    warning : str
        One line, empty if the policies hardly differ.
    """

    target: str
    n_asked: int
    disagreement: float
    mean_difference: float
    warning: str


@dataclass(frozen=True)
class Timing:
    """Duration of each stage in seconds."""

    collect: float
    fit: float
    check: float
    record: float = 0.0


class EvaluationResults(Protocol):
    """Contents of a report; `gptd_rl.evaluation.Evaluation` is the implementation."""

    @property
    def config(self) -> EvaluationConfig:
        """The policy, the environment and the data."""

    @property
    def start(self) -> StartReturn:
        """Value and return from the start states."""

    @property
    def relevance(self) -> Relevance:
        """Relevance of each observation."""

    @property
    def markov(self) -> MarkovTest:
        """Whether the observations tell all that matters for what comes next."""

    @property
    def check(self) -> Check:
        """Predictions at held-out states."""

    @property
    def disagreements(self) -> tuple[Disagreement, ...]:
        """States at which critic and model differ, the largest difference first."""

    @property
    def off_policy(self) -> OffPolicy | None:
        """Set if the evaluated policy did not generate the data."""

    @property
    def recordings(self) -> Recordings:
        """Episodes to watch."""

    @property
    def value(self) -> ValueFunction:
        """V with intervals."""

    @property
    def critic(self) -> Callable[[Array], Array] | None:
        """The agent's own critic: states of shape (m, n_dims) to values of shape (m,)."""

    @property
    def data(self) -> Trajectories:
        """The collected transitions."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Limits of the evaluation, a sentence each."""

    @property
    def timing(self) -> Timing:
        """Duration of each stage."""
