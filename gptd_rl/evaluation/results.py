"""What an evaluation found: frozen records, which the terminal prints, the page shows and the JSON file keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

LEVELS = (0.5, 0.8, 0.95)


class ValueFunction(Protocol):
    """Values with intervals, wherever they come from."""

    def predict(self, states: ArrayLike) -> Array:
        """Values at states of shape (m, n_dims), of shape (m,)."""

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval that holds the value with probability `level`: lower and upper, each of shape (m,)."""


@dataclass(frozen=True)
class Setting:
    """What was evaluated, and on what.

    Attributes
    ----------
    agent, env : str
        As people call them: "A2C", "CartPole-v1".
    gamma : float
    deterministic : bool
        Whether the agent took its most likely action.
    n_transitions, n_episodes, n_terminated : int
        Of the data; episodes are counted with those that were cut off, terminated ones ended by themselves.
    inputs : tuple of str
        Names of the observations.
    is_categorical : bool
        Whether an observation is one of a list, each of which has an input of its own.
    seed : int
    learners : dict of str to float
        What V was put together from, and the share of each.
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
    learners: dict[str, float]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class StartReturn:
    """How good the policy is from where episodes start.

    Attributes
    ----------
    value : Interval
        Discounted value, by the model, averaged over the start states; the unit of the interval is the episode.
    returns : Interval or None
        Undiscounted return of complete episodes: their mean, with Student's interval over episodes. None if fewer than
        two episodes were complete.
    mean, std : float
        What Stable-Baselines3's `evaluate_policy` reports of the same episodes: mean and standard deviation *of
        episodes*, which is not an error bar of the mean. NaN if none was complete.
    n_episodes : int
        Complete ones.
    """

    value: Interval
    returns: Interval | None
    mean: float
    std: float
    n_episodes: int


@dataclass(frozen=True, eq=False)
class Relevance:
    """Which observations matter for the value.

    Attributes
    ----------
    kernel : {"isotropic", "ard", "factor"}
        The kernel with the best evidence; with "isotropic" all inputs matter alike.
    strengths : ndarray of shape (n_dims,)
        Relevance × squared spread of the input: above 1 the value changes within the spread of the input, below 0.001
        it hardly notices it.
    directions : ndarray of shape (k, n_dims) or None
        With "factor": the combinations of inputs that matter, unit vectors in units of the inputs' spreads, the most
        relevant first.
    direction_strengths : ndarray of shape (k,) or None
    kept, removed : tuple of int
        Inputs that pruning keeps and removes.
    evidence, pruned_evidence : float
        Log marginal likelihood with all inputs, and without those removed (both NaN if nothing was pruned).
    n_transitions : int
        How many the comparison looked at.
    """

    TOLERATED: ClassVar[float] = 3.0  # nats

    kernel: Literal["isotropic", "ard", "factor"]
    strengths: Array
    directions: Array | None
    direction_strengths: Array | None
    kept: tuple[int, ...]
    removed: tuple[int, ...]
    evidence: float
    pruned_evidence: float
    n_transitions: int

    @property
    def cost(self) -> float:
        """What pruning takes from the evidence, in nats; NaN if nothing was pruned."""
        return self.evidence - self.pruned_evidence

    @property
    def can_be_pruned(self) -> bool:
        """Whether the model without the inputs removed explains the rewards as well, or better."""
        return self.cost < self.TOLERATED


@dataclass(frozen=True)
class Score:
    """How well one way of predicting values did at held-out states.

    Attributes
    ----------
    name : str
        "GPTD", "A2C's critic", "Monte Carlo", …
    rmse : float
    bias : float
        Mean of predicted − observed.
    nlpd : float
        Mean negative log density of what was observed, under a normal with the width of the 95 % interval.
    coverage : tuple of float
        Share of what was observed that the intervals of `LEVELS` held.
    half_width : float
        Mean half-width of the 95 % interval.
    """

    name: str
    rmse: float
    bias: float
    nlpd: float
    coverage: tuple[float, ...]
    half_width: float


@dataclass(frozen=True, eq=False)
class Check:
    """Predictions beside what fresh rollouts brought, at states that no model has seen.

    Attributes
    ----------
    kind : {"rollouts", "returns"}
        "rollouts": from each state the environment was continued `n_rollouts` times, without a time limit, and
        `observed` is the average return, so V itself up to `errors`. "returns": the one return of a held-out episode,
        noise included; intervals are then those of returns.
    states : ndarray of shape (m, n_dims)
    observed, errors : ndarray of shape (m,)
        Returns, and their standard errors (0 where nothing is random).
    episodes : ndarray of shape (m,)
        The held-out episode of each state.
    predicted, lower, upper : ndarray of shape (m,)
        The model's, with its 95 % interval.
    critic : ndarray of shape (m,) or None
        The agent's own critic.
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
    episodes: NDArray[np.int64]
    predicted: Array
    lower: Array
    upper: Array
    critic: Array | None
    shares: Array
    reliability: dict[str, Array]
    scores: tuple[Score, ...]
    n_rollouts: int


@dataclass(frozen=True)
class Disagreement:
    """A state at which critic and model differ by more than the model's interval allows.

    Attributes
    ----------
    state : tuple of float
    critic, value, lower, upper : float
    observed : float
        What fresh rollouts brought.
    """

    state: tuple[float, ...]
    critic: float
    value: float
    lower: float
    upper: float
    observed: float


@dataclass(frozen=True)
class OffPolicy:
    """How far the policy that was evaluated is from the one that made the data.

    Attributes
    ----------
    target : str
        The policy evaluated.
    n_asked : int
        States at which both were asked.
    disagreement : float
        Share of these at which their actions differ (continuous ones: by more than 10 % of the action's range).
    mean_difference : float
        Mean difference of continuous actions, as a share of the range; equal to `disagreement` for discrete ones.
    warning : str
        One line, empty if they hardly differ.
    """

    target: str
    n_asked: int
    disagreement: float
    mean_difference: float
    warning: str


@dataclass(frozen=True)
class Timing:
    """Seconds that each part took."""

    collect: float
    fit: float
    check: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All that `gptd_rl.evaluate_agent` found.

    Attributes
    ----------
    setting : Setting
    start : StartReturn
    relevance : Relevance
    check : Check
    disagreements : tuple of Disagreement
        The largest first; empty if the agent has no critic, or none differs.
    off_policy : OffPolicy or None
        Set if the policy evaluated is not the one that made the data.
    value : ValueFunction
        V with intervals, to be asked anywhere.
    critic : callable or None
        The agent's own critic: states of shape (m, n_dims) to values of shape (m,).
    data : Trajectories
        What was collected.
    warnings : tuple of str
        What a reader should know before believing any of it, a sentence each.
    timing : Timing
    """

    setting: Setting
    start: StartReturn
    relevance: Relevance
    check: Check
    disagreements: tuple[Disagreement, ...]
    off_policy: OffPolicy | None
    value: ValueFunction
    critic: Callable[[Array], Array] | None
    data: Trajectories
    warnings: tuple[str, ...]
    timing: Timing

    def as_json(self) -> dict[str, Any]:
        """All numbers, as JSON holds them: NaN becomes null."""
        records = ("setting", "start", "relevance", "check", "disagreements", "off_policy", "warnings", "timing")
        return {"levels": list(LEVELS)} | {name: _plain(getattr(self, name)) for name in records}

    def write(self, folder: str | os.PathLike[str], command: str = "") -> Path:
        """Write the page ``index.html`` and ``evaluation.json`` into `folder`, and return the page's path.

        Nothing appears there before both are complete.

        Parameters
        ----------
        folder : path
            Made if it is not there.
        command : str
            The command line that made it, to be shown on the page.
        """
        from gptd_rl.report.page import write

        return write(self, Path(folder), command)


def _plain(value: Any) -> Any:
    """Records, arrays and tuples as dicts, lists and numbers."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value
