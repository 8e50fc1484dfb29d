"""Frozen records of a comparison of agents: the terminal prints them, the page and the JSON file show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from gptd_rl.estimators.importances import Importances
from gptd_rl.report.records import Interval, ValueFunction
from gptd_rl.types import Array, BoolArray, IntArray


@dataclass(frozen=True)
class ComparisonConfig:
    """Where and how agents were compared.

    Attributes
    ----------
    env : str
    gamma : float
        The one discount of all values.
    deterministic : bool
        Whether the agents take their most likely actions.
    n_transitions : int
        From which the value function of each agent was learnt.
    n_starts : int
        Start states, the same for all agents.
    inputs : tuple of str
        Names of the observations.
    is_categorical : bool
        Whether the observation is one of finitely many states.
    seed : int
    reference : str
        The agent that the others are compared with.
    is_best : bool
        Whether the reference is the one with the highest value, chosen by the same rollouts.
    """

    env: str
    gamma: float
    deterministic: bool
    n_transitions: int
    n_starts: int
    inputs: tuple[str, ...]
    is_categorical: bool
    seed: int
    reference: str
    is_best: bool


@dataclass(frozen=True, eq=False)
class AgentValues:
    """One of the agents.

    Attributes
    ----------
    name : str
    algorithm : str
        "PPO", or the name of the callable.
    gamma : float or None
        Discount that the agent was trained with, if it says so.
    value : Interval
        Mean discounted return from the start states, with its own 95 % interval.
    returns : Interval or None
        Mean undiscounted return of the episodes; None if some did not end.
    start_values, start_returns : ndarray of shape (n_starts,)
        Of each start state; `start_returns` holds NaN where an episode did not end.
    importances : Importances
        What its value relies on.
    rmse : float
        Error of its value function at fresh states.
    """

    name: str
    algorithm: str
    gamma: float | None
    value: Interval
    returns: Interval | None
    start_values: Array
    start_returns: Array
    importances: Importances
    rmse: float


@dataclass(frozen=True)
class Difference:
    """An agent less the reference, from the same start states.

    Attributes
    ----------
    agent, reference : str
    value, returns : Interval
        Mean difference of discounted and of undiscounted returns, with 95 % intervals that hold together with those of
        the other agents. `returns` is None if some episodes did not end.
    unpaired_half_width : float
        Half-width that the interval of `value` would have if the start states were different ones for each agent.
    higher, lower : float
        Shares of the start states from which the return of the agent was higher, and lower.
    """

    agent: str
    reference: str
    value: Interval
    returns: Interval | None
    unpaired_half_width: float
    higher: float
    lower: float

    @property
    def credible(self) -> Literal["better", "worse"] | None:
        """Whether the interval of the value excludes 0."""
        return "better" if self.value.lower > 0.0 else "worse" if self.value.upper < 0.0 else None


@dataclass(frozen=True)
class Split:
    """A threshold of one input that separates large differences from small ones.

    Attributes
    ----------
    input : int
    threshold : float
    below, above : float
        Mean difference on each side.
    share : float
        Of the variance of the differences that the two means explain.
    """

    input: int
    threshold: float
    below: float
    above: float
    share: float


@dataclass(frozen=True, eq=False)
class StateComparison:
    """Values of the agents at the same states, which are from episodes of all of them.

    Attributes
    ----------
    kind : {"rollouts", "models"}
        "rollouts": means of `n_rollouts` rollouts of each agent from copies of the environment in these states, with
        the same random numbers. "models": values by the agents' value functions, where copies are not possible.
    n_rollouts : int
        1 if nothing is random, 0 with "models".
    level : float
        Of the intervals: with "rollouts" of all together, with "models" of each.
    states : ndarray of shape (m, n_dims)
    episodes : ndarray of shape (m,)
    values : ndarray of shape (k, m)
        Of each agent.
    differences, lower, upper : ndarray of shape (k, m)
        Each agent less the reference, with intervals.
    modelled : ndarray of shape (k, m)
        The same differences by the value functions, which the page maps.
    splits : tuple of Split or None
        For each agent, the threshold of one input that separates its differences best.
    """

    kind: Literal["rollouts", "models"]
    n_rollouts: int
    level: float
    states: Array
    episodes: IntArray
    values: Array
    differences: Array
    lower: Array
    upper: Array
    modelled: Array
    splits: tuple[Split | None, ...]

    @property
    def better(self) -> BoolArray:
        """Where each agent is credibly better than the reference, of shape (k, m)."""
        return np.asarray(self.lower > 0.0)

    @property
    def worse(self) -> BoolArray:
        """Where each agent is credibly worse than the reference, of shape (k, m)."""
        return np.asarray(self.upper < 0.0)


class ComparisonResults(Protocol):
    """Contents of a report; `gptd_rl.evaluation.comparison.AgentComparison` is the implementation."""

    @property
    def config(self) -> ComparisonConfig:
        """Where and how agents were compared."""

    @property
    def agents(self) -> tuple[AgentValues, ...]:
        """The agents, in the order given."""

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Each other agent less the reference."""

    @property
    def at_states(self) -> StateComparison | None:
        """Differences state by state; None if they were not reached."""

    @property
    def values(self) -> Mapping[str, ValueFunction]:
        """V of each agent."""

    @property
    def visited(self) -> Array:
        """States that the agents visited, of shape (m, n_dims)."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Limits of the comparison, a sentence each."""

    @property
    def seconds(self) -> float:
        """Duration."""
