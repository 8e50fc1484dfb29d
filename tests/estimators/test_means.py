"""Prior means of GPTD and GPTDQ: V = m + f, where f is fitted to the rewards r − H m."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import gptd_rl
from gptd_rl import ARD, GPTD, GPTDQ, Isotropic, Trajectories
from gptd_rl.kernels import paper_kernel
from gptd_rl.temporal.means import subtract_mean
from tests.helpers import MIXES, sample

STATES = np.random.default_rng(1).normal(size=(20, 2))
FAR = np.full((1, 2), 1e3)  # where nothing but the mean is known


def slope(states: np.ndarray) -> np.ndarray:
    return 5.0 + 2.0 * states[:, 0] - states[:, 1]


def some_data(seed: int = 0, n: int = 4) -> Trajectories:
    return sample(MIXES["mixed"] * n, seed, n_dims=2)


def held(method: str = "exact", **options: Any) -> GPTD:
    """An estimator with nothing left to select."""
    kernel = paper_kernel(ARD([0.5, 0.8]), 2.0, 0.0, fixed=("v0", "b", "a1", "a2"))
    defaults: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0, subset_size=30, noise_variance=0.3)
    return GPTD(kernel, method=method, **(defaults | options))


@pytest.mark.parametrize("method", ["exact", "sparse"])
@pytest.mark.parametrize("mean", [3.0, slope])
def test_mean_is_added_to_a_model_of_what_is_left(mean: Any, method: str) -> None:
    data = some_data()
    v, f = held(method, mean=mean).fit(data), held(method).fit(subtract_mean(data, mean))
    m = mean(STATES) if callable(mean) else mean
    assert v.method_ == method
    assert_allclose(v.predict(STATES), m + f.predict(STATES), rtol=1e-9)
    assert_allclose(v.predict(STATES, return_std=True)[1], f.predict(STATES, return_std=True)[1], rtol=1e-9)
    for mine, theirs in zip(v.confidence_interval(STATES), f.confidence_interval(STATES), strict=True):
        assert_allclose(mine, m + theirs, rtol=1e-9)
    assert_allclose(v.log_marginal_likelihood_, f.log_marginal_likelihood_, rtol=1e-9)
    assert_allclose(v.log_marginal_likelihood(), f.log_marginal_likelihood(), rtol=1e-9)


def test_mean_is_the_value_far_from_the_data() -> None:
    assert_allclose(held(mean=slope).fit(some_data()).predict(FAR), slope(FAR))
    assert_allclose(held(mean=-7).fit(some_data()).predict(FAR), [-7.0])


@pytest.mark.parametrize("mean", [0, 0.0, None])
def test_mean_of_zero_changes_nothing(mean: Any) -> None:
    v, w = held(mean=mean).fit(some_data()), held().fit(some_data())
    assert_array_equal(v.predict(STATES), w.predict(STATES))


def test_mean_in_shards_is_that_of_the_whole() -> None:
    data = some_data(n=6)
    parts = [data[:8], data[8:]]
    v, w = held("sparse", mean=slope).fit(data), held("sparse", mean=slope).fit(iter(parts))
    assert_allclose(v.predict(STATES), w.predict(STATES), rtol=1e-7)


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_mean_and_partial_fit(method: str) -> None:
    first, second = some_data(0, 6), some_data(1)
    v = held(method, mean=slope).fit(first)
    both = v.condition(first + second)
    assert_allclose(v.partial_fit(second).predict(STATES), both.predict(STATES), rtol=1e-7)


def test_mean_sees_all_inputs_of_a_pruned_model() -> None:
    rng = np.random.default_rng(0)
    states = np.column_stack([np.tile(np.arange(8.0), 12), rng.normal(size=96)])
    rewards = np.tile([*np.sin(np.arange(7.0)), 0.0], 12)
    data = Trajectories(states, rewards, np.tile([0.9] * 7 + [0.0], 12), np.full(12, 8), np.full(12, True))
    data = subtract_mean(data, lambda x: -10.0 * x[:, 1])  # V has the irrelevant input in its mean alone
    v = GPTD(mean=lambda x: 10.0 * x[:, 1], objective="marginal_likelihood", n_restarts=0).fit(data)
    pruned = v.prune(1e-2)
    assert_array_equal(pruned.inputs_, [0])
    x = np.array([[2.0, 0.0], [2.0, 1.0]])
    assert_allclose(np.diff(pruned.predict(x)), 10.0)


def test_mean_that_is_changed_after_the_fit_counts_from_the_next_fit_on() -> None:
    v = held(mean=3.0).fit(some_data())
    before = v.predict(STATES)
    v.set_params(mean=slope)
    assert_array_equal(v.predict(STATES), before)
    assert_allclose(v.fit(some_data()).predict(FAR), slope(FAR))


def test_mean_in_parameters_copies_and_repr() -> None:
    v = held(mean=slope)
    assert v.get_params()["mean"] is slope
    assert clone(v).mean is slope
    assert f"mean={slope!r}" in repr(v)
    assert "mean" not in repr(GPTD())
    fitted = v.fit(some_data())
    assert_array_equal(copy.deepcopy(fitted).predict(STATES), fitted.predict(STATES))


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_mean_that_is_a_number_is_saved(method: str, tmp_path: Any) -> None:
    v = held(method, mean=3.0).fit(some_data())
    w = gptd_rl.load(v.save(tmp_path / "v.gptd"))
    assert w.mean == w.mean_ == 3.0
    assert_allclose(w.predict(STATES), v.predict(STATES), rtol=1e-9)


def test_mean_that_is_a_function_is_refused_by_save(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="the prior mean is a function, and a file holds no code"):
        held(mean=slope).fit(some_data()).save(tmp_path / "v.gptd")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        ("critic", TypeError, "mean must be None, a number, or a function of states; got str."),
        (np.nan, ValueError, "mean must be finite; got nan."),
        (lambda x: x, ValueError, "mean must return one number for each of"),
        (lambda x: np.full(len(x), np.nan), ValueError, "mean must return finite values"),
    ],
)
def test_bad_means_are_refused_in_one_line(mean: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as raised:
        held(mean=mean).fit(some_data())
    assert "\n" not in str(raised.value)


# -------------------------------------------------------------------------------------- Q


def with_actions(seed: int = 0) -> Trajectories:
    data = sample(MIXES["mixed"] * 4, seed, n_dims=2)
    actions = np.random.default_rng(seed).integers(3, size=len(data))
    actions[data.last] = 0
    return Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)


def critic(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    assert actions.dtype.kind == "i"
    return slope(states) + 10.0 * actions


def held_q(**options: Any) -> GPTDQ:
    kernel = paper_kernel(Isotropic(0.5, 2), 2.0, 0.0, fixed=("v0", "b", "h"))
    return GPTDQ(kernel, n_actions=3, objective="marginal_likelihood", noise_variance=0.3, **options)


@pytest.mark.parametrize("policy", [None, lambda x: 1])
def test_mean_of_q_is_a_function_of_states_and_actions(policy: Any) -> None:
    q = held_q(mean=critic).fit(with_actions(), policy=policy)
    assert_allclose(q.q_values(FAR), slope(FAR)[:, None] + 10.0 * np.arange(3))
    assert_allclose(q.predict(FAR, [2]), slope(FAR) + 20.0)
    assert_array_equal(q.greedy_actions(FAR), [2])
    lower, upper = q.confidence_interval(FAR, [1])
    assert_allclose(0.5 * (lower + upper), slope(FAR) + 10.0)
    assert_allclose(q.sample(FAR, 4000, seed=0).mean(axis=0), q.q_values(FAR), atol=0.2)


def test_mean_of_q_leaves_terminal_pairs_at_zero() -> None:
    """A mean that is Q itself leaves nothing to fit, at the terminal state with any action neither."""
    x, a = np.arange(4.0)[:, None], np.array([1, 1, 1])
    data = Trajectories.from_episodes([dict(observations=x, actions=a, rewards=-np.ones(3), terminated=True)], 1.0)
    q = held_q_of_one_input(lambda states, actions: states[:, 0] - 3.0 + 0.0 * actions + 99.0 * (states[:, 0] == 3))
    q.fit(data)
    assert_allclose(q.data_.rewards, 0.0, atol=1e-12)


def held_q_of_one_input(mean: Any) -> GPTDQ:
    kernel = paper_kernel(Isotropic(0.5, 1), 2.0, 0.0, fixed=("v0", "b", "h"))
    return GPTDQ(kernel, n_actions=3, objective="marginal_likelihood", noise_variance=0.3, mean=mean)


def test_mean_of_q_with_continuous_actions() -> None:
    data = with_actions()
    assert data.actions is not None
    wavy = Trajectories(
        data.states, data.rewards, data.discounts, data.lengths, data.terminated, np.sin(data.actions)[:, None]
    )
    kernel = paper_kernel(Isotropic(0.5, 3), 2.0, 0.0, fixed=("v0", "b", "h"))
    q = GPTDQ(kernel, noise_variance=0.3, objective="marginal_likelihood", mean=lambda x, a: x[:, 0] + a[:, 0])
    q.fit(wavy)
    assert_allclose(q.predict(FAR, [[0.5]]), FAR[:, 0] + 0.5)


# -------------------------------------------------------------------------------------- conditioning on other data


@pytest.mark.parametrize("method", ["exact", "sparse"])
@pytest.mark.parametrize("mean", [None, slope])
def test_condition_on_the_same_data_predicts_the_same(method: str, mean: Any) -> None:
    data = some_data(n=6)
    v = held(method, mean=mean).fit(data)
    w = v.condition(data)
    assert w is not v
    assert w.method_ == v.method_ == method
    assert_array_equal(w.theta_, v.theta_)
    for mine, theirs in zip(w.predict(STATES, return_std=True), v.predict(STATES, return_std=True), strict=True):
        assert_allclose(mine, theirs, rtol=1e-8)
    assert_allclose(w.confidence_interval(STATES), v.confidence_interval(STATES), rtol=1e-8)
    assert_allclose(w.log_marginal_likelihood(), v.log_marginal_likelihood(), rtol=1e-9)
    if v.inducing_points_ is not None:
        assert w.inducing_points_ is not None
        assert_array_equal(np.sort(w.inducing_points_, axis=0), np.sort(v.inducing_points_, axis=0))


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_condition_on_both_is_partial_fit(method: str) -> None:
    first, second = some_data(0, 6), some_data(1)
    v = held(method).fit(first)
    w = v.condition(first + second)
    v.partial_fit(second)
    assert_allclose(w.predict(STATES), v.predict(STATES), rtol=1e-7)
    assert_allclose(w.predict(STATES, return_std=True)[1], v.predict(STATES, return_std=True)[1], rtol=1e-6)


def test_condition_forgets_the_first_data() -> None:
    v = held().fit(some_data(0))
    assert_allclose(v.condition(some_data(1)).predict(STATES), held().fit(some_data(1)).predict(STATES), rtol=1e-9)


def test_condition_leaves_the_model_as_it_was() -> None:
    v = held().fit(some_data(0))
    before = v.predict(STATES)
    v.condition(some_data(1))
    assert_array_equal(v.predict(STATES), before)


def test_condition_keeps_thinning_and_pruned_inputs() -> None:
    data = sample([(20, True)] * 12, 0, n_dims=2)
    v = GPTD(objective="thinned", thinning=3, n_restarts=0).fit(data).prune(1e300)  # the larger of two inputs is left
    w = v.condition(data)
    assert w.thinning_ == 3
    assert_array_equal(w.inputs_, v.inputs_)
    assert_allclose(w.predict(STATES), v.predict(STATES), rtol=1e-8)


def test_condition_with_inducing_points_is_close_to_exact() -> None:
    data = some_data(n=8)
    v = held().fit(data)
    w = v.condition(data, inducing_points=100)
    assert w.method_ == "sparse"
    assert w.inducing_points_ is not None
    assert 30 < len(w.inducing_points_) <= 100  # more than subset_size
    assert np.abs(w.predict(STATES) - v.predict(STATES)).max() < 0.2 * v.predict(STATES).std()
    again = w.condition(data[:10])
    assert again.inducing_points_ is not None
    assert_array_equal(again.inducing_points_, w.inducing_points_)


def test_condition_of_a_loaded_sparse_model(tmp_path: Any) -> None:
    v = held("sparse").fit(some_data(n=6))
    w = gptd_rl.load(v.save(tmp_path / "v.gptd"))
    assert_allclose(w.condition(some_data(1)).predict(STATES), v.condition(some_data(1)).predict(STATES), rtol=1e-7)


def test_condition_of_q() -> None:
    q = held_q(mean=critic).fit(with_actions(), policy=lambda x: 1)
    again = q.condition(with_actions(), policy=lambda x: 1)
    assert_allclose(again.q_values(STATES), q.q_values(STATES), rtol=1e-9)
    other = held_q(mean=critic).fit(with_actions(1))
    assert_allclose(q.condition(with_actions(1)).q_values(STATES), other.q_values(STATES), rtol=1e-9)


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_condition_on_states_of_another_width(method: str) -> None:
    v = held(method).fit(some_data(n=6))
    with pytest.raises(ValueError, match="3"):
        v.condition(sample(MIXES["mixed"], 0, n_dims=3))


def test_condition_before_fit() -> None:
    with pytest.raises(gptd_rl.exceptions.NotFittedError, match="call fit"):
        held().condition(some_data())


@pytest.mark.parametrize("number", [0, -1, 2.5, True])
def test_condition_on_no_inducing_points(number: Any) -> None:
    with pytest.raises(ValueError, match="inducing_points must be a whole number of 1 or more"):
        held().fit(some_data()).condition(some_data(), inducing_points=number)
