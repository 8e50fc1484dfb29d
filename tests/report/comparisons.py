"""Made-up comparisons for the tests of pages and summaries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.estimators.importances import Importances
from gptd_rl.evaluation.comparison import AgentComparison
from gptd_rl.evaluation.differences import best_split
from gptd_rl.report.comparison_records import AgentValues, ComparisonConfig, Difference, StateComparison
from gptd_rl.report.records import Interval
from gptd_rl.types import Array


class Plane:
    """A value that is linear in the inputs."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def predict(self, states: ArrayLike) -> Array:
        """Values."""
        return np.asarray(self.slope * np.asarray(states, dtype=float).sum(axis=1))

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """One around the values."""
        middle = self.predict(states)
        return middle - 1.0, middle + 1.0


def made_up(
    names: Sequence[str],
    inputs: Sequence[str] = ("position", "speed", "angle"),
    *,
    kind: str = "rollouts",
    is_categorical: bool = False,
    gap: float = 2.0,
    with_states: bool = True,
    rough: bool = False,
) -> AgentComparison:
    """Agents that get better by `gap` each; the last one is the reference."""
    rng = np.random.default_rng(0)
    k, n, m, d = len(names), 30, 40, len(inputs)
    starts = 10.0 + gap * np.arange(k)[:, None] + rng.normal(size=n) + 0.3 * rng.normal(size=(k, n))
    states = np.eye(d)[rng.integers(d, size=m)] if is_categorical else rng.normal(size=(m, d))
    slopes = gap * np.arange(k) / 4
    values = slopes[:, None] * states.sum(axis=1)
    differences = values - values[-1]
    half = np.where(np.arange(k) == k - 1, 0.0, 0.3)[:, None]

    def interval(sample: Array) -> Interval:
        half = 2.0 * float(sample.std()) / np.sqrt(n)
        return Interval(float(sample.mean()), float(sample.mean()) - half, float(sample.mean()) + half)

    def importances(i: int) -> Importances:
        effects = np.linspace(0.9, 0.0, d) if i % 2 else np.linspace(0.1, 0.6, d)
        return Importances(effects, 0.8 * effects, 1.3 * effects)

    agents = tuple(
        AgentValues(name, "PPO", 0.99, interval(row), interval(5 * row), row, 5 * row, importances(i), 0.4)
        for i, (name, row) in enumerate(zip(names, starts, strict=True))
    )
    found = tuple(
        Difference(name, names[-1], interval(row - starts[-1]), interval(5 * (row - starts[-1])), 0.7, 0.1, 0.9)
        for name, row in zip(names[:-1], starts, strict=False)
    )
    at_states = StateComparison(
        kind="rollouts" if kind == "rollouts" else "models",
        n_rollouts=8 if kind == "rollouts" else 0,
        level=0.95,
        states=states,
        episodes=np.arange(m) // 3,
        values=values,
        differences=differences,
        lower=differences - half,
        upper=differences + half,
        modelled=differences + (100.0 if rough else 0.1),
        splits=tuple(best_split(states, row) for row in differences),
    )
    config = ComparisonConfig(
        "Robot-v0", 0.99, True, 5000, n, tuple(inputs), is_categorical, 0, names[-1], is_best=k > 2
    )
    return AgentComparison(
        config=config,
        agents=agents,
        differences=found,
        at_states=at_states if with_states else None,
        values={name: Plane(slope) for name, slope in zip(names, slopes, strict=True)},
        visited=states,
        warnings=("A limit of <this> comparison.",),
        seconds=12.0,
        is_complete=with_states,
    )
