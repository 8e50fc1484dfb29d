"""The estimator with more data than exact GPTD can hold: what it chooses, what it keeps, and what Ctrl-C leaves."""

from __future__ import annotations

import contextlib
import pickle
import re
import warnings
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import (
    ARD,
    GPTD,
    Isotropic,
    Trajectories,
    progress,
)
from gptd_rl.estimators import base as estimator
from gptd_rl.estimators import engines, sparse_engine
from gptd_rl.exceptions import InterruptedFitWarning, NotFittedError, RelevanceWarning
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.model import Model
from gptd_rl.inference.sparse import Solution, SparsePosterior
from gptd_rl.inference.statistics import noise_moments, statistics
from gptd_rl.kernels import paper_kernel
from gptd_rl.progress import FitProgress
from gptd_rl.selection import objectives
from gptd_rl.selection import search as selection
from gptd_rl.selection.bound import FixedBound
from gptd_rl.selection.objectives import MarginalLikelihood
from gptd_rl.sharding import summary
from gptd_rl.temporal.shards import Shard
from tests.estimators.test_coverage import coverages
from tests.helpers import NOISES, central_differences
from tests.mdps import Drifting, Garnet, Gridworld, Spiral, Walk, rmse

LINE = Drifting(phi=0.8, gamma=0.9, time_limit=25, drift=0.0)
FOOLED = Drifting(phi=0.8, gamma=0.9, time_limit=25, drift=0.02)

every_noise = pytest.mark.parametrize("noise", NOISES)


def quick(kernel: Any = "isotropic", **options: Any) -> GPTD:
    defaults: dict[str, Any] = dict(method="sparse", objective="marginal_likelihood", n_restarts=0)
    return GPTD(kernel, **(defaults | options))


def held(n_dims: int = 1, **options: Any) -> GPTD:
    """An estimator with nothing left to select."""
    kernel = paper_kernel(Isotropic(0.8, n_dims), 20.0, 60.0, fixed=("v0", "b", "h"))
    return quick(kernel, noise_variance=8.0, **options)


def sampled(mdp: Any, n: int, seed: int = 0) -> Trajectories:
    return mdp.sample(n, np.random.default_rng(seed))


def in_shards(data: Trajectories, n: int = 3) -> list[Trajectories]:
    return [data[part] for part in np.array_split(np.arange(data.n_segments), n)]


def new_states(n_dims: int, n: int = 30) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, n_dims))


def assert_same_answers(v: GPTD, w: GPTD, rtol: float = 1e-8) -> None:
    x = new_states(v.n_dims_)
    close: dict[str, Any] = dict(rtol=rtol, atol=rtol)
    assert_allclose(v.theta_, w.theta_, **close)
    for mine, theirs in zip(v.predict(x, return_std=True), w.predict(x, return_std=True), strict=True):
        assert_allclose(mine, theirs, **close)
    for mine, theirs in zip(v.confidence_interval(x), w.confidence_interval(x), strict=True):
        assert_allclose(mine, theirs, **close)
    assert_allclose(v.log_marginal_likelihood_, w.log_marginal_likelihood_, **close)


@pytest.fixture
def small_steps(monkeypatch) -> None:
    """Searches that explore on 20 states, then go on with 40, 80, … before they go to all."""
    monkeypatch.setattr(selection, "COARSE_SIZE", 20)


@pytest.fixture
def quick_search(monkeypatch) -> None:
    """For tests to which it does not matter where a search begins."""
    monkeypatch.setattr(selection, "COARSE_SIZE", 60)


# -------------------------------------------------------------------------------------- by hand


def solved(v: GPTD, data: Trajectories, model: Model | None = None) -> tuple[Shard, Solution]:
    """What the sparse formulas give for `data` at the θ and the subset of `v`."""
    model = model or v.model_.with_noise(v.thinning_ * v.noise_variance_)
    assert v.inducing_points_ is not None
    features = InducingFeatures(model.kernel, v.inducing_points_, whitened=True)
    shard = Shard.of(data.take_inputs(v.inputs_), v.noise)
    return shard, Solution.of(model, features, statistics(shard, features))


def by_hand(v: GPTD, *parts: Trajectories) -> SparsePosterior:
    """The posterior given all `parts`; the TD errors of each are those at the time when it came."""
    moments: Any = 0.0
    for i, part in enumerate(parts):
        _, solution = solved(v, Trajectories.concatenate(parts[: i + 1]))
        shard, _ = solved(v, part)
        moments = moments + noise_moments(shard, solution.features, solution.weights)
    return SparsePosterior(solution, moments, v.sparse_variance)


def assert_posterior(v: GPTD, expected: SparsePosterior) -> None:
    x = new_states(v.n_dims_)
    seen = x[:, v.inputs_]
    mean, std = v.predict(x, return_std=True)
    assert_allclose(mean, expected.mean(seen), rtol=1e-8, atol=1e-8)
    assert_allclose(std, np.sqrt(expected.variance(seen)), rtol=1e-7)
    lower, upper = v.confidence_interval(x, level=0.6826894921370859)
    assert_allclose(0.5 * (upper - lower), np.sqrt(expected.interval_variance(seen)), rtol=1e-7)
    assert_allclose(v.log_marginal_likelihood_, expected.evidence(v.model_).log_likelihood, rtol=1e-9)


@every_noise
@pytest.mark.parametrize("thinning", [1, 4])
def test_a_fitted_model_is_that_of_the_formulas(noise, thinning):
    data = sampled(FOOLED, 300)
    v = held(2, noise=noise, subset_size=25, objective="thinned", thinning=thinning).fit(in_shards(data))
    assert v.inducing_points_ is not None and len(v.inducing_points_) == 25
    assert v.thinning_ == thinning
    assert_posterior(v, by_hand(v, data))


# -------------------------------------------------------------------------------------- which method


def test_few_data_are_treated_exactly():
    v = quick(method="auto").fit(in_shards(sampled(LINE, 100)))
    assert (v.method_, v.exact_, v.inducing_points_) == ("exact", True, None)


@pytest.mark.usefixtures("quick_search")
def test_many_states_are_treated_sparsely(monkeypatch):
    data = sampled(LINE, 100)
    for module in (engines, sparse_engine):
        monkeypatch.setattr(module, "EXACT_SIZE", 99)
    v = quick(method="auto", subset_size=20).fit(data)
    assert (v.method_, v.exact_) == ("sparse", False)
    assert v.inducing_points_ is not None and 1 <= len(v.inducing_points_) <= 20 and v.inducing_points_.shape[1] == 1
    assert np.isin(v.inducing_points_, data.states).all()
    assert quick(method="exact").fit(data).method_ == "exact", "if the user says so"


@pytest.mark.usefixtures("quick_search")
@pytest.mark.parametrize("method", ["auto", "sparse"])
def test_few_distinct_states_are_treated_exactly_however_often_they_were_visited(method, monkeypatch):
    for module in (engines, sparse_engine):
        monkeypatch.setattr(module, "EXACT_SIZE", 50)
    data = sampled(Walk(), 600)
    assert len(np.unique(data.states)) == 21
    v = quick(method=method, subset_size=30).fit(in_shards(data))
    assert (v.method_, v.exact_, v.inducing_points_) == ("exact", True, None)
    assert_same_answers(v, quick(method="exact").fit(data), rtol=1e-12)
    assert_same_answers(v, quick(method=method, subset_size=30).fit(iter(in_shards(data))), rtol=1e-12)


@pytest.mark.usefixtures("quick_search")
def test_a_subset_of_more_states_than_there_are():
    data = sampled(LINE, 100)
    v = quick(subset_size=10_000).fit(data)
    assert v.exact_
    assert_same_answers(v, quick(method="exact").fit(data), rtol=1e-12)


def test_all_states_in_the_subset_where_memory_is_short(monkeypatch):
    """Then the data are passed over, but nothing is approximated."""
    data = sampled(Walk(), 600)
    expected = held(method="exact").fit(data)
    for module in (engines, sparse_engine):
        monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    v = held(method="auto", subset_size=30).fit(in_shards(data))
    assert (v.method_, v.exact_) == ("sparse", True)
    x = Walk().cells
    for mine, theirs in zip(v.predict(x, return_std=True), expected.predict(x, return_std=True), strict=True):
        assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert_allclose(v.log_marginal_likelihood_, expected.log_marginal_likelihood_, atol=1e-4)


def test_a_subset_that_lacks_new_states_is_no_longer_exact(monkeypatch):
    walk = Walk(n_cells=9)
    data = sampled(walk, 400)
    is_low = np.array([segment.states.max() < 6 for segment in data])
    for module in (engines, sparse_engine):
        monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    v = held(subset_size=30).fit(data[is_low])
    assert v.exact_
    v.partial_fit(data[~is_low])
    assert v.inducing_points_ is not None and v.inducing_points_.max() < 6
    assert not v.exact_


def test_a_subset_of_one_state():
    v = quick(subset_size=1).fit(sampled(LINE, 100))
    assert v.inducing_points_ is not None and len(v.inducing_points_) == 1
    assert np.isfinite(v.predict(new_states(1), return_std=True)).all()


def test_the_tolerance_leaves_states_out():
    sizes = []
    for tolerance in (0.5, 1e-2, 1e-6):
        v = held(subset_size=60, tolerance=tolerance).fit(sampled(LINE, 300))
        assert v.inducing_points_ is not None
        sizes.append(len(v.inducing_points_))
    assert sizes[0] < sizes[1] < sizes[2] < 60


@pytest.mark.usefixtures("quick_search")
def test_gamma_of_one_needs_an_end_in_some_shard():
    data = sampled(Walk(gamma=1.0), 300)
    cut_off = data.cut(1)
    cut_off = cut_off[np.flatnonzero(~cut_off.terminated)]
    with pytest.raises(ValueError, match="gamma is 1 and no episode terminates"):
        quick(subset_size=5).fit([cut_off[:40], cut_off[40:]])
    assert quick(subset_size=5).fit([cut_off[:40], data]).method_ == "sparse"


# -------------------------------------------------------------------------------------- as good as exact


def test_close_to_exact_in_a_stochastic_system():
    data = sampled(FOOLED, 1500)
    options: dict[str, Any] = dict(objective="thinned", thinning=10, subset_size=60)
    sparse, exact = (quick(method=method, **options).fit(data) for method in ("sparse", "exact"))
    x = new_states(2, 100)
    (mean, std), (exact_mean, exact_std) = (v.predict(x, return_std=True) for v in (sparse, exact))
    assert (np.abs(mean - exact_mean) < 0.15 * exact_std).all()
    assert_allclose(std, exact_std, rtol=0.06)
    assert rmse(mean, FOOLED.value(x)) < 1.05 * rmse(exact_mean, FOOLED.value(x))
    (lower, upper), (exact_lower, exact_upper) = (v.confidence_interval(x) for v in (sparse, exact))
    assert_allclose(upper - lower, exact_upper - exact_lower, rtol=0.06)
    # at the same θ, nothing but the approximation is left
    assert 0.0 <= exact.log_marginal_likelihood(sparse.theta_) - sparse.log_marginal_likelihood_ < 1.0
    assert exact.engine_ is not None
    posterior = exact.engine_.condition(sparse.model_, sparse.thinning_)
    assert (np.abs(mean - posterior.mean(x)) < 0.02 * std).all()
    assert_allclose(std, np.sqrt(posterior.variance(x)), rtol=0.02)


def test_close_to_exact_where_nothing_is_random():
    spiral = Spiral()
    data = sampled(spiral, 300)
    x = np.random.default_rng(1).uniform(-0.7, 0.7, size=(100, 2))
    sparse, exact = (quick(method=m, subset_size=100, tolerance=0.0).fit(data) for m in ("sparse", "exact"))
    truth = spiral.value(x)
    assert rmse(sparse.predict(x), truth) < 1e-3 * truth.std()
    assert abs(sparse.log_marginal_likelihood_ - exact.log_marginal_likelihood_) < 0.02 * data.n_rows * 5


def test_the_default_tolerance_is_honest_where_nothing_is_random():
    spiral = Spiral()
    data = sampled(spiral, 1500)
    x = np.random.default_rng(1).uniform(-0.7, 0.7, size=(100, 2))
    v = quick(subset_size=100).fit(data)
    lower, upper = v.confidence_interval(x)
    truth = spiral.value(x)
    assert np.mean((lower <= truth) & (truth <= upper)) > 0.8


def test_the_variance_of_the_subset_of_regressors_forgets_what_is_far():
    data = sampled(LINE, 300)
    kinds = ("projected_process", "subset_of_regressors")
    projected, regressors = (held(subset_size=15, sparse_variance=kind).fit(data) for kind in kinds)
    x = np.array([[0.0], [1.0], [50.0]])
    (mean, wide), (same, narrow) = (v.predict(x, return_std=True) for v in (projected, regressors))
    assert_array_equal(mean, same)
    assert_allclose(narrow[:2], wide[:2], rtol=0.05)
    prior = projected.kernel_.signal_variance
    assert wide[2] > np.sqrt(prior)
    assert narrow[2] < 0.5 * wide[2]
    for v in (projected, regressors):  # the honest interval does not forget
        lower, upper = v.confidence_interval(x)
        assert upper[2] - lower[2] > 2 * 1.95 * np.sqrt(prior)


# -------------------------------------------------------------------------------------- objectives


@pytest.fixture(scope="module")
def automatic() -> tuple[GPTD, list[Any], Trajectories]:
    """The default objective in a system with an input that drifts and means nothing."""
    data = sampled(FOOLED, 300, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        v = quick("ard", objective="auto", bootstrap=False, subset_size=40).fit(in_shards(data))
    return v, [w for w in caught if issubclass(w.category, UserWarning)], data


def test_auto_thins_a_stochastic_system_and_says_so(automatic):
    v, caught, _ = automatic
    assert v.method_ == "sparse"
    assert v.thinning_ > 1 and v.thinning_ in [trial.thinning for trial in v.thinning_trials_]
    assert [w.category for w in caught] == [RelevanceWarning]
    assert re.search(r"input 1 the most relevant, left-out episodes say input 0", str(caught[0].message))
    assert v.relevances_[1] < 0.05 * v.relevances_[0]
    x = new_states(2, 200)
    truth = FOOLED.value(x)
    assert rmse(v.predict(x), truth) < truth.std()


def test_auto_does_not_thin_a_deterministic_system():
    spiral = Spiral()
    v = quick(objective="auto", subset_size=60, tolerance=0.0).fit(sampled(spiral, 100))
    assert (v.method_, v.thinning_) == ("sparse", 1)


@pytest.mark.usefixtures("quick_search")
def test_thinning_by_the_horizon():
    v = quick(objective="thinned", subset_size=30).fit(sampled(LINE, 250))
    assert v.thinning_ == 10
    assert quick(objective="thinned", thinning=4, subset_size=30).fit(sampled(LINE, 100)).thinning_ == 4


@pytest.mark.usefixtures("quick_search")
@pytest.mark.parametrize("objective", ["marginal_likelihood", "thinned", "loo", "leave_one_episode_out"])
def test_every_objective_beats_a_constant(objective):
    chain = Garnet(n_points=30, seed=1)
    v = quick("ard", objective=objective, subset_size=20).fit(sampled(chain, 400))
    assert v.method_ == "sparse"
    truth = chain.value(chain.points)
    assert rmse(v.predict(chain.points), truth) < 0.8 * truth.std()


@pytest.mark.usefixtures("quick_search")
def test_leave_one_out_looks_at_a_part_of_large_data(monkeypatch):
    sizes = []
    original = objectives.LeaveOut

    def watched(targets: Any, groups: Any) -> Any:
        sizes.append(targets.n_rows)
        return original(targets, groups)

    monkeypatch.setattr(objectives, "LeaveOut", watched)
    monkeypatch.setattr(sparse_engine, "LEFT_OUT_SIZE", 100)
    v = quick(objective="loo", subset_size=20).fit(sampled(LINE, 1000))
    assert sizes and max(sizes) < 150
    x = new_states(1)
    assert rmse(v.predict(x), LINE.value(x)) < LINE.value(x).std()


@pytest.mark.usefixtures("quick_search")
@pytest.mark.parametrize("objective", ["marginal_likelihood", "thinned"])
def test_large_data_are_searched_by_samples(objective, monkeypatch):
    """Nearly the same θ, and only a few evaluations on all of the data."""
    data = sampled(LINE, 1500)
    options: dict[str, Any] = dict(objective=objective, subset_size=20)
    monkeypatch.setattr(sparse_engine, "LARGEST_EXACT_SAMPLE", 300)
    expected = quick(**options).fit(data)
    monkeypatch.setattr(sparse_engine, "SAMPLE_SIZE", 300)
    monkeypatch.setattr(sparse_engine, "CONTIGUOUS_SIZE", 300)
    rows = []
    original = FixedBound.__call__

    def counting(self: FixedBound, model: Model) -> Any:
        rows.append(self.n_rows)
        return original(self, model)

    monkeypatch.setattr(FixedBound, "__call__", counting)
    v = quick(**options).fit(data)
    assert len(v.data_) < 400
    assert 1 <= sum(n > 0.8 * max(rows) for n in rows) < 30
    if objective == "marginal_likelihood":
        assert min(rows) < 400, "first a bound on the sample"
    x = new_states(1)
    mean, std = v.predict(x, return_std=True)
    assert (np.abs(mean - expected.predict(x)) < 0.3 * std).all()
    assert v.log_marginal_likelihood_ > expected.log_marginal_likelihood_ - 2.0


# -------------------------------------------------------------------------------------- θ


@pytest.mark.usefixtures("quick_search")
@every_noise
@pytest.mark.parametrize("kernel", ["isotropic", "ard"])
def test_the_evidence_and_its_gradient(noise, kernel):
    data = sampled(FOOLED, 200)
    v = quick(kernel, noise=noise, subset_size=15, noise_floor=1e-2).fit(in_shards(data))
    value, gradient = v.log_marginal_likelihood(eval_gradient=True)
    assert value == pytest.approx(v.log_marginal_likelihood_, rel=1e-12)
    assert v.log_marginal_likelihood() == pytest.approx(value, rel=1e-12)

    def bound(theta: np.ndarray) -> float:
        return solved(v, data, v.model_.with_theta(theta))[1].evidence.log_likelihood

    assert_allclose(bound(v.theta_), value, rtol=1e-10)
    assert_allclose(gradient, central_differences(bound, v.theta_), rtol=1e-5, atol=1e-4)


@every_noise
def test_the_evidence_at_another_theta(noise):
    """With basis states for that θ: below the exact evidence, and its gradient leads uphill."""
    data = sampled(FOOLED, 200)
    sparse, exact = (held(2, noise=noise, method=m, subset_size=40).fit(data) for m in ("sparse", "exact"))
    theta = sparse.theta_ + np.array([0.3, -0.2, 0.4, 0.1])
    value, gradient = sparse.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == sparse.log_marginal_likelihood(theta)
    expected, exact_gradient = exact.log_marginal_likelihood(theta, eval_gradient=True)
    assert expected - 10.0 < value <= expected + 1e-6
    assert gradient @ exact_gradient > 0.8 * np.linalg.norm(gradient) * np.linalg.norm(exact_gradient)
    assert sparse.log_marginal_likelihood() == pytest.approx(sparse.log_marginal_likelihood_, rel=1e-12)


def test_the_evidence_has_no_jumps():
    v = quick(subset_size=15).fit(sampled(Spiral(), 200))
    value, gradient = v.log_marginal_likelihood(eval_gradient=True)
    for step in 1e-7 * np.eye(len(v.theta_)):
        moved = v.log_marginal_likelihood(v.theta_ + step)
        assert_allclose(moved - value, gradient @ step, atol=1e-2)
    assert v.kernel_.signal_variance / v.noise_variance_ > 1e9, "where rounding errors are large"
    assert_allclose(gradient, central_differences(v.log_marginal_likelihood, v.theta_, h=1e-3), rtol=0.02, atol=3.0)


# -------------------------------------------------------------------------------------- pruning


@pytest.fixture(scope="module")
def pruned(automatic) -> GPTD:
    return automatic[0].prune()


def test_pruning(automatic, pruned):
    v, _, data = automatic
    assert_array_equal(pruned.inputs_, [0])
    assert_array_equal(pruned.pruning_.removed, [1])
    assert pruned.method_ == "sparse" and pruned.inducing_points_ is not None and pruned.inducing_points_.shape[1] == 1
    assert pruned.thinning_ == v.thinning_
    assert_array_equal(pruned.predict([[0.5, -3.0]]), pruned.predict([[0.5, 8.0]]))
    assert pruned.pruning_.before.log_likelihood == v.log_marginal_likelihood_
    assert pruned.pruning_.after.log_likelihood == pruned.log_marginal_likelihood_
    assert_array_equal(v.inputs_, [0, 1])
    assert_posterior(pruned, by_hand(pruned, data))


def test_a_pruned_model_is_that_of_the_inputs_left(automatic, pruned):
    v, _, data = automatic
    narrow = quick("ard", objective="thinned", thinning=v.thinning_, subset_size=40).fit(data.take_inputs([0]))
    x = new_states(2)
    assert_allclose(pruned.predict(x), narrow.predict(x[:, [0]]), rtol=1e-6)
    assert_allclose(pruned.confidence_interval(x), narrow.confidence_interval(x[:, [0]]), rtol=1e-6)
    assert_allclose(pruned.log_marginal_likelihood_, narrow.log_marginal_likelihood_, rtol=1e-8)


def test_a_pruned_model_takes_further_data(automatic, pruned):
    more = sampled(FOOLED, 200, seed=7)
    v = copy(pruned).partial_fit(in_shards(more))
    assert_posterior(v, by_hand(v, automatic[2], more))
    assert_array_equal(v.inputs_, [0])


# -------------------------------------------------------------------------------------- further data


@every_noise
@pytest.mark.parametrize("thinning", [1, 3])
def test_further_data_are_conditioned_on(noise, thinning):
    first, second, third = sampled(FOOLED, 200), sampled(FOOLED, 90, seed=5), sampled(FOOLED, 60, seed=6)
    v = held(2, noise=noise, subset_size=25, objective="thinned", thinning=thinning).fit(in_shards(first))
    theta, subset = v.theta_, v.inducing_points_
    assert v.partial_fit(second) is v
    assert_posterior(v, by_hand(v, first, second))
    v.partial_fit(iter(in_shards(third)))
    assert_posterior(v, by_hand(v, first, second, third))
    assert_array_equal(v.theta_, theta)
    assert subset is not None and v.inducing_points_ is not None
    assert_array_equal(v.inducing_points_, subset)
    assert v.log_marginal_likelihood() == pytest.approx(v.log_marginal_likelihood_, rel=1e-9), "of all of the data"


@every_noise
@pytest.mark.parametrize("thinning", [1, 3])
def test_further_data_of_an_exact_model(noise, thinning):
    first, second = sampled(FOOLED, 100), sampled(FOOLED, 60, seed=5)
    options: dict[str, Any] = dict(noise=noise, method="exact", objective="thinned", thinning=thinning)
    v = held(2, **options).fit(first).partial_fit(in_shards(second))
    assert_same_answers(v, held(2, **options).fit(first + second), rtol=1e-10)
    assert len(v.data_) == len(first) + len(second)


@pytest.mark.usefixtures("quick_search")
@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_the_first_call_fits(method):
    data = sampled(LINE, 100)
    v = quick(method=method, subset_size=15)
    assert v.partial_fit(in_shards(data)) is v
    assert_same_answers(v, quick(method=method, subset_size=15).fit(in_shards(data)))


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_further_data_of_another_width_are_refused(method):
    v = held(1, method=method, subset_size=15).fit(sampled(LINE, 100))
    before = v.predict(new_states(1))
    with pytest.raises(ValueError, match=r"^the data: states have 2 dimensions; expected 1\.$"):
        v.partial_fit(sampled(FOOLED, 50))
    with pytest.raises(ValueError, match=r"^shard 2 of 2: states have 2 dimensions; expected 1\.$"):
        v.partial_fit([sampled(LINE, 50), sampled(FOOLED, 50)])
    assert_array_equal(v.predict(new_states(1)), before)


# -------------------------------------------------------------------------------------- in a file


@pytest.fixture(scope="module")
def large() -> tuple[GPTD, Trajectories]:
    """A model of data that are much larger than the sample kept of them."""
    data = sampled(FOOLED, 6000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_engine, "SAMPLE_SIZE", 300)
        patch.setattr(sparse_engine, "CONTIGUOUS_SIZE", 300)
        return quick("ard", objective="thinned", thinning=10, subset_size=20).fit(in_shards(data)), data


def test_a_sparse_model_comes_back_from_a_file(large, tmp_path):
    v, data = large
    path = v.save(tmp_path / "v.gptd")
    assert path.stat().st_size < 0.2 * sum(a.nbytes for a in (data.states, data.rewards, data.discounts))
    w = gptd_rl.load(path)
    assert_same_answers(w, v, rtol=1e-10)
    assert (w.method_, w.exact_, w.thinning_) == ("sparse", False, 10)
    assert w.inducing_points_ is not None and v.inducing_points_ is not None
    assert_array_equal(w.inducing_points_, v.inducing_points_)
    assert w.get_params() == v.get_params()
    assert_allclose([w.complexity_, w.data_fit_], [v.complexity_, v.data_fit_], rtol=1e-10)
    assert_same_answers(gptd_rl.load(w.save(tmp_path / "w.gptd")), v, rtol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        dict(noise="deterministic"),
        dict(sparse_variance="subset_of_regressors"),
        dict(kernel="factor", max_rank=1),
        dict(kernel=paper_kernel(ARD([1.0, 0.1]), 5.0, 0.0, fixed=("v0",))),
    ],
    ids=["deterministic", "subset of regressors", "factor", "kernel object"],
)
def test_other_sparse_models_come_back(options, tmp_path):
    v = quick(**(dict(subset_size=10, noise_floor=1e-2) | options)).fit(sampled(FOOLED, 150))
    assert v.method_ == "sparse"
    assert_same_answers(gptd_rl.load(v.save(tmp_path / "v.gptd")), v, rtol=1e-10)


def test_a_pruned_sparse_model_comes_back(large, tmp_path):
    v, _ = large
    pruned = v.prune()
    assert_array_equal(pruned.inputs_, [0])
    assert_same_answers(gptd_rl.load(pruned.save(tmp_path / "v.gptd")), pruned, rtol=1e-10)


def test_a_loaded_sparse_model_has_no_data(large, tmp_path):
    w = gptd_rl.load(large[0].save(tmp_path / "v.gptd"))
    asks: dict[str, Callable[[], Any]] = {
        "fit a smaller model to": w.prune,
        "judge θ by": lambda: w.log_marginal_likelihood(w.theta_),
        "add to": lambda: w.partial_fit(large[1]),
    }
    for purpose, ask in asks.items():
        with pytest.raises(ValueError, match=rf"^a sparse model .* from a file has no data to {purpose}: fit it again"):
            ask()
    assert np.isfinite(w.predict(new_states(2))).all()
    w.set_params(objective="marginal_likelihood", thinning=None, kernel="isotropic")
    assert w.fit(sampled(FOOLED, 100)).method_ == "sparse", "and can be fitted again"


@pytest.mark.parametrize("again", [deepcopy, lambda v: pickle.loads(pickle.dumps(v))], ids=["copied", "pickled"])
def test_a_fitted_model_can_be_copied_and_pickled(again):
    """As exact ones can."""
    v = held(subset_size=12).fit(in_shards(sampled(LINE, 60)))
    assert_same_answers(again(v), v, rtol=1e-12)


# -------------------------------------------------------------------------------------- Ctrl-C


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of an objective."""

    theta: np.ndarray
    value: float
    n_rows: int


def n_rows_of(objective: Any) -> int:
    return objective.n_rows if isinstance(objective, FixedBound) else objective.parts[0].n_rows


def interrupt(
    patch: pytest.MonkeyPatch,
    objective: Any,
    nth: int,
    is_meant: Callable[[int, Model], bool] = lambda rows, model: True,
) -> list[Evaluation]:
    """Ctrl-C at the n-th evaluation of those meant, by their number of rows and model; lists all until then.

    The last one before it seems to be bad: the best so far is not the last so far.
    """
    original, seen, n = objective.__call__, [], [0]

    def watched(self: Any, model: Model) -> Any:
        n[0] += is_meant(n_rows_of(self), model)
        if n[0] == nth:
            patch.setattr(objective, "__call__", original)  # Ctrl-C is pressed once
            raise KeyboardInterrupt
        value, gradient = original(self, model)
        value += 1e6 * (n[0] == nth - 1 and is_meant(n_rows_of(self), model))
        seen.append(Evaluation(model.theta, value, n_rows_of(self)))
        return value, gradient

    patch.setattr(objective, "__call__", watched)
    return seen


@pytest.mark.usefixtures("quick_search")
def test_an_interrupted_search_keeps_the_best_so_far(monkeypatch):
    data = sampled(FOOLED, 400)
    v = quick(subset_size=12)
    seen = interrupt(monkeypatch, FixedBound, 5)
    with pytest.warns(InterruptedFitWarning, match="best model found so far"):
        assert v.fit(in_shards(data)) is v
    assert len(seen) == 4
    best = min(seen, key=lambda evaluation: evaluation.value)
    assert_allclose(v.theta_, best.theta, rtol=1e-12)
    assert v.comparison_.best.interrupted
    assert_allclose(v.comparison_.best.objective, best.value)
    assert_posterior(v, by_hand(v, data))
    assert v.fit(in_shards(data)).log_marginal_likelihood_ > -best.value - 1e-6, "another fit goes on to the end"


@pytest.mark.usefixtures("small_steps")
def test_an_interrupted_exact_search_keeps_the_best_so_far(monkeypatch):
    data = sampled(FOOLED, 150)
    seen = interrupt(monkeypatch, MarginalLikelihood, 6, lambda rows, model: rows == data.n_rows)
    with pytest.warns(InterruptedFitWarning, match="best model found so far"):
        v = quick(method="exact").fit(data)
    last_step = list(takewhile(lambda evaluation: evaluation.n_rows == data.n_rows, reversed(seen)))
    assert len(last_step) > 1
    best = min(last_step, key=lambda evaluation: evaluation.value)
    assert_allclose(v.theta_, best.theta, rtol=1e-12)
    assert_allclose(-v.log_marginal_likelihood_, best.value)
    assert np.isfinite(v.predict(new_states(2), return_std=True)).all()


@pytest.mark.usefixtures("small_steps")
def test_interrupted_on_a_sample_the_model_is_the_best_for_the_sample(monkeypatch):
    data = sampled(FOOLED, 300)
    seen = interrupt(monkeypatch, MarginalLikelihood, 3, lambda rows, model: 27 < rows < 60)
    with pytest.warns(InterruptedFitWarning):
        v = quick(subset_size=12).fit(data)
    best = min((e for e in seen if 27 < e.n_rows < 60), key=lambda evaluation: evaluation.value)
    assert_allclose(v.theta_, best.theta, rtol=1e-12)
    assert_posterior(v, by_hand(v, data))


@pytest.mark.usefixtures("quick_search")
@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_interrupted_before_anything_was_found(method):
    data = sampled(LINE, 100)
    v = quick(method=method, subset_size=15)

    def interrupted(data: Trajectories) -> None:
        with pytest.MonkeyPatch.context() as patch:
            interrupt(patch, MarginalLikelihood, 5)
            with pytest.raises(KeyboardInterrupt):
                v.fit(data)

    interrupted(data)
    with pytest.raises(NotFittedError):
        v.predict([[0.0]])
    before = dict(vars(v.fit(data)))
    interrupted(data[:2])
    assert all(value is before[name] for name, value in vars(v).items())


def test_interrupted_while_looking_at_the_data(monkeypatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    v = quick(subset_size=15)
    monkeypatch.setattr(summary, "summarize_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        v.fit(in_shards(sampled(LINE, 100)))
    with pytest.raises(NotFittedError):
        v.predict([[0.0]])


def fit_or_fail(v: GPTD, data: Trajectories) -> None:
    """A KeyboardInterrupt that came through would end the whole run of tests."""
    try:
        v.fit(data)
    except KeyboardInterrupt:
        pytest.fail("nothing was kept")


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("method", ["exact", "sparse"])
@pytest.mark.parametrize(
    ("least", "most"),
    [
        (27, 60),
        (0, 26),
    ],
    ids=["on a larger sample", "while exploring"],
)
def test_interrupted_in_the_second_variant_the_first_is_kept(method, least, most, monkeypatch):
    """Where the search for ARD has hardly begun, the finished isotropic model is the best so far."""
    data = sampled(FOOLED, 200)
    interrupt(
        monkeypatch,
        MarginalLikelihood,
        3,
        lambda rows, model: len(model.theta) == 5 and least <= rows <= most,
    )
    v = quick("auto", method=method, subset_size=12)
    with pytest.warns(InterruptedFitWarning):
        fit_or_fail(v, data)
    finished = v.comparison_[0]
    assert finished.variant == "isotropic" and not finished.interrupted
    assert v.log_marginal_likelihood_ >= finished.evidence - 1e-6


@pytest.mark.usefixtures("small_steps")
def test_interrupted_while_a_thinning_is_chosen(monkeypatch):
    """Either nothing was found so far, or the user is told that this is not the end of the search."""
    data = sampled(LINE, 150)
    seen = interrupt(monkeypatch, MarginalLikelihood, 2, lambda rows, model: rows == data.n_rows)
    v = quick(objective="auto", bootstrap=False, subset_size=12)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            v.fit(data)
        except KeyboardInterrupt:
            pass
        else:
            assert InterruptedFitWarning in [w.category for w in caught]
    assert sum(e.n_rows == data.n_rows for e in seen) == 1, "it was interrupted"


# -------------------------------------------------------------------------------------- coverage


@pytest.mark.parametrize(
    ("mdp", "size"),
    [(Walk(), 12), (Garnet(n_points=150), 80)],
    ids=["walk", "garnet"],
)
def test_intervals_cover_where_the_posterior_does_not(mdp, size):
    """4000 transitions, 95 %. Measured over 8 seeds: 0.45 and 0.97, 0.55 and 0.88."""
    x = mdp.points if isinstance(mdp, Garnet) else mdp.cells
    out = []
    for seed in range(3):
        v = quick(subset_size=size).fit(in_shards(sampled(mdp, 4000, seed)))
        assert v.method_ == "sparse"
        out.append(coverages(v, x, mdp.value(x)))
    posterior, interval = np.mean(out, axis=0)
    assert posterior[2] < 0.8
    assert interval[2] > 0.82
    assert interval[2] > posterior[2] + 0.12
    assert 0.3 < interval[0] < 0.75, "nor do they cover by being wide"


# -------------------------------------------------------------------------------------- progress


class Bar:
    """Stands for rich's: keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.rows: list[str] = []
        self.descriptions: list[str] = []

    def add_task(self, description: str, **_: Any) -> int:
        self.descriptions.append(description)
        return 7

    def update(self, task: int, **fields: Any) -> None:
        assert task == 7
        if "rows" in fields:
            self.rows.append(fields["rows"])
        if "description" in fields:
            self.descriptions.append(fields["description"])


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("gptd_rl.progress.time.perf_counter", lambda: now[0])
    return now


def seconds_left(rows: list[str]) -> list[int]:
    return [int(re.search(r"about (\d+) s left$", text)[1]) for text in rows]  # type: ignore[index]


def walk_through(clock: list[float], n_passes: int) -> Bar:
    """Passes over 4 shards, each of which takes 10 s."""
    bar = Bar()
    watch = FitProgress(bar)
    for _ in range(n_passes):
        watch.passed(0, 4, 1_234_567)
        for done in (1, 2, 3, 4):
            clock[0] += 10.0
            watch.passed(done, 4, 1_234_567)
        watch.evaluated(250.125)
    return bar


def test_progress_in_words(clock):
    bar = walk_through(clock, n_passes=2)
    assert bar.descriptions == [
        "model selection",
        "evaluation 1, evidence -250.12",
        "evaluation 2, evidence -250.12",
    ]
    assert [text.split(",")[0] for text in bar.rows[:5]] == [
        "25% of 1",
        "50% of 1",
        "75% of 1",
        "100% of 1",
        "25% of 1",
    ]
    assert all(re.fullmatch(r"\d+% of 1,234,567 rows, about \d+ s left", text) for text in bar.rows)


def test_the_time_left_runs_out(clock):
    left = seconds_left(walk_through(clock, progress.EXPECTED_PASSES + 3).rows)
    settled = left[2 * 4 :]
    assert settled[0] > 100
    assert all(after <= before for before, after in pairwise(settled) if before > 40)
    late = left[4 * progress.EXPECTED_PASSES :]
    assert all(seconds <= 40 for seconds in late), "a pass that was not expected is nearly over"
    assert late[3] == late[-1] == 0


def test_the_time_left_is_right_from_the_beginning(clock):
    left = seconds_left(walk_through(clock, 3).rows)
    truth = [10.0 * (4 * progress.EXPECTED_PASSES - k) for k in range(1, 13)]
    assert_allclose(left, truth, rtol=0.1)


def fit_with_bar(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[GPTD, Bar]:
    bar = Bar()
    monkeypatch.setattr(estimator, "fit_progress", lambda show: contextlib.nullcontext(FitProgress(bar)))
    return quick(subset_size=12, **options).fit(in_shards(sampled(LINE, 100))), bar


@pytest.mark.usefixtures("quick_search")
def test_a_fit_tells_of_each_pass(monkeypatch):
    v, bar = fit_with_bar(monkeypatch)
    assert len(bar.rows) % 3 == 0 and len(bar.rows) >= 12
    n_rows = v.evidence_.n_rows
    assert {text.split(" rows")[0] for text in bar.rows} == {f"{p} of {n_rows}" for p in ("33%", "67%", "100%")}
    assert bar.descriptions[-1].startswith(f"evaluation {len(bar.descriptions) - 1}, evidence ")
    assert v.engine_ is not None
    n = len(bar.rows)
    v.log_marginal_likelihood(v.theta_ + 0.1)
    assert len(bar.rows) == n, "when the fit is over nobody listens"


@pytest.mark.usefixtures("quick_search")
def test_a_thinned_fit_tells_of_each_pass(monkeypatch):
    _, bar = fit_with_bar(monkeypatch, objective="thinned", thinning=5)
    assert len(bar.rows) >= 12


@pytest.mark.usefixtures("quick_search")
def test_the_bar_is_shown_and_changes_nothing(capsys, monkeypatch):
    parts = in_shards(sampled(LINE, 200))
    quiet = quick(subset_size=12).fit(parts)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # take the captured output for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    shown = quick(subset_size=12).fit(parts, progress_bar=True)
    out = capsys.readouterr().out
    assert re.search(r"evidence -\d+\.\d\d", out)
    assert re.search(r"\d+% of \d+ rows, about \d+ s left", out)
    assert_array_equal(shown.theta_, quiet.theta_)


def test_nothing_left_to_see_of_a_fit_that_failed(monkeypatch, capsys):
    """The bar goes also when a fit fails."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    interrupt(monkeypatch, MarginalLikelihood, 2)
    with pytest.raises(KeyboardInterrupt):
        quick(subset_size=12).fit(sampled(LINE, 100), progress_bar=True)
    assert capsys.readouterr().out.endswith("\x1b[2K"), "the line was erased"


def test_a_gridworld_from_shards_is_the_papers():
    """Few distinct states, many visits: exact from shards, y pruned."""
    grid = Gridworld()
    v = GPTD("ard", n_restarts=0).fit(in_shards(sampled(grid, 3000)))
    assert v.exact_
    assert_array_equal(v.prune().inputs_, [0])
    assert_allclose(v.predict(grid.cells), grid.value(grid.cells), atol=0.05)
