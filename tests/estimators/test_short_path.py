"""Plain trajectories of moderate size: nothing of sharding, and nothing is computed twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gptd_rl import GPTD, GPTDQ, Trajectories, linalg
from gptd_rl.estimators import engines, sparse_engine
from gptd_rl.inference.posterior import CHUNK
from gptd_rl.sharding import backends, dataset, sources, summary
from gptd_rl.temporal import differences
from tests.mdps import Drifting, Gridworld

SHARDING = {
    backends: ("make_backend",),
    dataset: ("open_dataset",),
    sparse_engine: ("open_dataset", "summarize", "sample", "contiguous_sample"),
    summary: ("summarize", "sample"),
}


def quick(**options: Any) -> GPTD:
    defaults: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
    return GPTD("isotropic", **(defaults | options))


@pytest.fixture
def data() -> Trajectories:
    return Drifting(time_limit=25).sample(500, np.random.default_rng(0))


@pytest.fixture
def no_sharding(monkeypatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        pytest.fail("sharding was used")

    for module, names in SHARDING.items():
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(sources.Sources, "of", refuse)
    monkeypatch.setattr(dataset.ShardedDataset, "__init__", refuse)
    monkeypatch.setattr(backends.Cache, "__init__", refuse)


@pytest.mark.usefixtures("no_sharding")
@pytest.mark.parametrize("objective", ["auto", "marginal_likelihood", "thinned", "loo"])
def test_fit_of_plain_trajectories_does_without_sharding(objective, data):
    v = quick(objective=objective).fit(data)
    assert (v.method_, v.exact_) == ("exact", True)
    v.predict(data.states[:5], return_std=True)
    v.confidence_interval(data.states[:5])
    v.sample(data.states[:5])
    v.log_marginal_likelihood(v.theta_ + 0.1)


@pytest.mark.usefixtures("no_sharding")
def test_fit_of_q_does_without_sharding(data):
    actions = np.random.default_rng(0).integers(2, size=len(data))
    actions[data.last] = 0
    logged = Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)
    q = GPTDQ("isotropic", objective="marginal_likelihood", n_restarts=0).fit(logged)
    assert q.method_ == "exact"


def test_data_beyond_the_exact_size_are_sharded(data, monkeypatch):
    for module in (engines, sparse_engine):
        monkeypatch.setattr(module, "EXACT_SIZE", 100)
    assert quick(subset_size=20).fit(data).method_ == "sparse"


@pytest.mark.parametrize("objective", ["auto", "marginal_likelihood"])
def test_fit_builds_H_once_for_each_trajectories(objective, data, monkeypatch):
    built = []
    original = differences.TemporalDifference.__init__

    def counting(self: Any, discounts: Any, *arguments: Any) -> None:
        built.append(id(discounts))
        original(self, discounts, *arguments)

    monkeypatch.setattr(differences.TemporalDifference, "__init__", counting)
    v = quick(objective=objective).fit(data)
    v.confidence_interval(data.states[:5])
    v.log_marginal_likelihood(v.theta_ + 0.1)
    assert built.count(id(data.discounts)) == 1


def test_fit_makes_the_states_distinct_once(monkeypatch):
    data = Gridworld().sample(500, np.random.default_rng(0))
    asked = []
    original = np.unique

    def counting(values: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(np.shape(values))
        return original(values, *arguments, **options)

    monkeypatch.setattr(np, "unique", counting)
    v = quick().fit(data)
    v.log_marginal_likelihood(v.theta_ + 0.1)
    assert asked.count(data.states.shape) == 1


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_confidence_interval_solves_once_for_each_chunk(method, data, monkeypatch):
    v = quick(method=method, subset_size=20).fit(data)
    assert v.method_ == method
    sizes = []
    original = linalg.half_solve

    def counting(L: Any, right: Any) -> Any:
        if len(L) == len(v.posterior_.L if method == "exact" else v.posterior_.solution.L):
            sizes.append(right.shape[1])
        return original(L, right)

    monkeypatch.setattr(linalg, "half_solve", counting)
    v.confidence_interval(np.zeros((2 * CHUNK + 10, 2)))
    assert sizes == [CHUNK, CHUNK, 10]
