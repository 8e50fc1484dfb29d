"""Estimators with kernels of the user's own: selected, pruned, warm-started, added to, over actions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import ARD, GPTD, GPTDQ, Isotropic, Trajectories
from gptd_rl.estimators.storage import storable
from gptd_rl.kernels import ActionDelta, Constant, Kernel, Matern32, Matern52, MultiScale, register
from tests.helpers import central_differences
from tests.mdps import Drifting, Gridworld, rmse

QUICK: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
DRIFTING = Drifting(phi=0.8, gamma=0.9, time_limit=25, drift=0.02)
X = np.random.default_rng(1).normal(size=(20, 2))


def sampled(n: int, seed: int = 0) -> Trajectories:
    return DRIFTING.sample(n, np.random.default_rng(seed))


def composed(n_dims: int = 2) -> Kernel:
    return Matern52(ARD(np.ones(n_dims)), 3.0) + Constant(2.0)


def sparse(kernel: Kernel, **options: Any) -> GPTD:
    defaults: dict[str, Any] = dict(method="sparse", subset_size=20, objective="thinned", thinning=10)
    return GPTD(kernel, **(defaults | options))


# -------------------------------------------------------------------------------------- states


@pytest.mark.parametrize("method", ["exact", "sparse"])
@pytest.mark.parametrize(
    "kernel",
    [
        composed(),
        Matern32(Isotropic(1.0, 2)),
        Matern52(ARD([1.0, 1.0])) + Matern32(Isotropic(0.1, 2)) + Constant(),
        Matern52(ARD([1.0, 1.0])) * Matern32(Isotropic(0.1, 2)) + Constant(),
        MultiScale(ARD([1.0, 1.0])) + Constant(),
    ],
    ids=["matern + constant", "no constant", "sum", "product", "multiscale"],
)
def test_fit_selects_a_kernel_object(kernel, method):
    v = GPTD(kernel, method=method, subset_size=30, **QUICK).fit(sampled(300))
    assert v.method_ == method
    assert v.kernel_.parameter_names == kernel.parameter_names
    value, gradient = v.log_marginal_likelihood(eval_gradient=True)
    numeric = central_differences(v.log_marginal_likelihood, v.theta_)
    assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-3)
    start = v.model_.with_theta(np.insert(kernel.theta, v.model_.noise_index, 0.0))
    assert value > v.log_marginal_likelihood(start.theta), "better than where it began"


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_prune_of_a_composed_kernel(method):
    grid = Gridworld()
    data = grid.sample(400, np.random.default_rng(0))
    v = GPTD(composed(), method=method, subset_size=60, **QUICK).fit(data)
    pruned = v.prune()
    assert_array_equal(pruned.inputs_, [0])
    assert_array_equal(pruned.pruning_.removed, [1])
    assert pruned.kernel_.n_dims == 1 and pruned.kernel_.parameter_names == ("v0", "b", "a1")
    assert_array_equal(pruned.predict([[3.0, 1.0]]), pruned.predict([[3.0, 9.0]]))
    assert rmse(pruned.predict(grid.cells), grid.value(grid.cells)) < 0.1 * grid.value(grid.cells).std()
    again = pruned.prune()
    assert_array_equal(again.inputs_, [0])
    assert_allclose(again.predict(grid.cells), pruned.predict(grid.cells), atol=0.02)


def test_prune_twice_of_a_kernel_object_keeps_the_right_inputs():
    """Three inputs, of which only the last matters; the first is held at first, and goes when it is not."""
    rng = np.random.default_rng(0)
    data = Gridworld().sample(300, rng).take_inputs([1, 0])
    states = np.column_stack([rng.normal(size=len(data)), data.states])
    wide = Trajectories(states, data.rewards, data.discounts, data.lengths, data.terminated)
    kernel = (Matern52(ARD([0.01, 1.0, 1.0]), 3.0) + Constant(2.0)).fix("a1")
    first = GPTD(kernel, **QUICK).fit(wide).prune()
    assert_array_equal(first.inputs_, [0, 2])
    last = first.prune()
    assert_array_equal(last.inputs_, [2])
    assert_array_equal(last.pruning_.removed, [0])
    alone = GPTD(composed(1), **QUICK).fit(wide.take_inputs([2]))
    assert_allclose(last.predict(states[:9]), alone.predict(states[:9, [2]]), atol=1e-2)


def test_warm_start_of_a_sparse_composed_kernel():
    v = sparse(composed(), warm_start=True, n_restarts=0).fit(sampled(300))
    before = v.log_marginal_likelihood_
    v.fit(sampled(300))
    assert v.log_marginal_likelihood_ > before - 1.0
    assert_array_equal(v.kernel_.parameter_names, composed().parameter_names)


def test_executor_gives_the_same_for_a_sparse_composed_kernel():
    parts = [sampled(150), sampled(150, seed=1)]
    alone = sparse(composed(), n_restarts=0).fit(parts)
    with ThreadPoolExecutor(2) as executor:
        together = sparse(composed(), n_restarts=0).fit(parts, executor=executor)
    assert_allclose(together.theta_, alone.theta_, rtol=1e-9)
    assert_allclose(together.predict(X), alone.predict(X), rtol=1e-9)


def test_partial_fit_and_condition_of_a_sparse_composed_kernel():
    kernel = composed().fix("v0", "b", "a1", "a2")
    options: dict[str, Any] = dict(thinning=1, noise_variance=4.0)
    first, second = sampled(200), sampled(150, seed=1)
    v = sparse(kernel, **options).fit(first)
    points = v.inducing_points_
    both = v.condition(first + second)
    assert_array_equal(both.inducing_points_, points)
    v.partial_fit(second)
    assert_array_equal(v.inducing_points_, points)
    for ours, theirs in zip(v.predict(X, return_std=True), both.predict(X, return_std=True), strict=True):
        assert_allclose(ours, theirs, rtol=1e-8)
    fewer = v.condition(first, inducing_points=5)
    assert fewer.inducing_points_ is not None and len(fewer.inducing_points_) == 5


def test_sparse_composed_kernels_come_back_from_a_file(tmp_path):
    kernel = Matern52(ARD([1.0, 1.0])) * Matern32(Isotropic(0.1, 2), fixed=("h",)) + Constant(3.0)
    v = sparse(kernel, n_restarts=0).fit(sampled(300))
    again = gptd_rl.load(v.save(tmp_path / "v.gptd"))
    assert_allclose(again.predict(X), v.predict(X), rtol=1e-10)
    assert_array_equal(again.kernel.is_free, kernel.is_free)
    assert repr(again.kernel_) == repr(v.kernel_)


# -------------------------------------------------------------------------------------- states and actions


def logged(n: int = 300, n_actions: int = 2, seed: int = 0) -> Trajectories:
    """A walk in the plane whose reward depends on the state, and a little on the action."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n // 20):
        x = rng.normal(size=(21, 2)).cumsum(axis=0) / 4
        actions = rng.integers(n_actions, size=20)
        rewards = np.sin(x[:-1, 0]) + 0.3 * actions * np.cos(x[:-1, 1]) + 0.05 * rng.normal(size=20)
        episodes.append(dict(observations=x, actions=actions, rewards=rewards, terminated=True))
    return Trajectories.from_episodes(episodes, gamma=0.5)


def shared_and_apart(n_actions: int = 2) -> Kernel:
    """k_V + k_A·δ: what all actions have in common, and what each has for itself."""
    return Matern52(ARD([1.0, 1.0])) + Constant() + Matern52(ARD([1.0, 1.0])) * ActionDelta(n_actions)


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_gptdq_selects_a_kernel_that_reads_actions_itself(method):
    data = logged()
    options: dict[str, Any] = dict(method=method, subset_size=60, **QUICK)
    q = GPTDQ(shared_and_apart(), **options).fit(data)
    assert q.method_ == method
    assert q.kernel_.parameter_names == shared_and_apart().parameter_names, "nothing was multiplied"
    _, gradient = q.log_marginal_likelihood(eval_gradient=True)
    assert_allclose(gradient, central_differences(q.log_marginal_likelihood, q.theta_), rtol=1e-3, atol=1e-2)
    apart = GPTDQ(Matern52(ARD([1.0, 1.0])) + Constant(), **options).fit(data)
    assert q.log_marginal_likelihood_ > apart.log_marginal_likelihood_, "actions have much in common here"
    assert q.greedy_actions(X).shape == (20,)


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_gptdq_multiplies_other_kernels_by_the_action_delta(method):
    options: dict[str, Any] = dict(method=method, subset_size=60, **QUICK)
    data = logged()
    plain = GPTDQ(Matern52(ARD([1.0, 1.0])) + Constant(), **options).fit(data)
    spelt_out = GPTDQ((Matern52(ARD([1.0, 1.0])) + Constant()) * ActionDelta(2), **options).fit(data)
    assert_allclose(plain.theta_, spelt_out.theta_, rtol=1e-9)
    assert_allclose(plain.q_values(X), spelt_out.q_values(X), rtol=1e-9)
    states, far = data.states[:3], np.full(3, 1)
    pairs = np.column_stack([states, np.zeros(3)]), np.column_stack([states, far])
    assert_array_equal(plain.kernel_(*pairs), 0.0)


def test_gptdq_prunes_a_kernel_that_reads_actions_itself():
    data = logged(400)
    states = np.column_stack([data.states, np.random.default_rng(0).normal(size=len(data))])
    wide = Trajectories(states, data.rewards, data.discounts, data.lengths, data.terminated, data.actions)
    kernel = Matern52(ARD(np.ones(3))) + Constant() + Matern52(ARD(np.ones(3))) * ActionDelta(2)
    q = GPTDQ(kernel, objective="thinned", thinning=3, n_restarts=0).fit(wide)
    strength = q.relevances_ * states.var(axis=0)
    assert strength.argmin() == 2
    pruned = q.prune(threshold=1.01 * strength[2])
    assert_array_equal(pruned.pruning_.removed, [2])
    assert pruned.kernel_.n_dims == 2
    assert_array_equal(pruned.q_values([[0.1, 0.2, 5.0]]), pruned.q_values([[0.1, 0.2, -5.0]]))


# -------------------------------------------------------------------------------------- classes that are not registered


@dataclass(frozen=True, eq=False, init=False)
class Unregistered(Matern52):
    """A user's kernel that nobody registered."""


class MyGPTD(GPTD):
    """A user's estimator that nobody registered."""


def test_save_refuses_a_kernel_that_is_not_registered(tmp_path):
    v = GPTD(Unregistered(ARD([1.0, 1.0])), **QUICK).fit(sampled(100))
    message = r"^kernel class Unregistered is not registered, so a model with it cannot be saved: .*register\.$"
    with pytest.raises(TypeError, match=message):
        v.save(tmp_path / "v.gptd")
    assert list(tmp_path.iterdir()) == []


def test_save_refuses_an_estimator_that_is_not_registered(tmp_path):
    v = MyGPTD("isotropic", **QUICK).fit(sampled(100))
    with pytest.raises(TypeError, match=r"^class MyGPTD is not registered, so it cannot be saved: save one of .*GPTD"):
        v.save(tmp_path / "v.gptd")
    assert list(tmp_path.iterdir()) == []


def test_registered_classes_come_back(tmp_path, monkeypatch):
    from gptd_rl.estimators import storage
    from gptd_rl.kernels import registry

    monkeypatch.setattr(storage, "_CLASSES", dict(storage._CLASSES))
    monkeypatch.setattr(registry, "_CLASSES", dict(registry._CLASSES))
    register(Unregistered)
    storable(MyGPTD)
    v = MyGPTD(Unregistered(ARD([1.0, 1.0])), **QUICK).fit(sampled(100))
    again = gptd_rl.load(v.save(tmp_path / "v.gptd"))
    assert type(again) is MyGPTD and type(again.kernel_) is Unregistered
    assert_array_equal(again.predict(X), v.predict(X))
