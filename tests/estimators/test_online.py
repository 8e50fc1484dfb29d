"""The online posterior equals the batch one after every transition; what is approximate is as close as it says."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.estimators.online import OnlineGPTD, Transition
from gptd_rl.exceptions import NotFittedError
from gptd_rl.inference import growing
from gptd_rl.inference.features import InducingFeatures
from gptd_rl.inference.inducing import Dictionary
from gptd_rl.inference.instrumental import (
    InstrumentalPosterior,
    MomentSolution,
    WhiteFeatures,
    moment_noise,
    moment_statistics,
)
from gptd_rl.inference.model import Model
from gptd_rl.inference.online import OnlinePosterior
from gptd_rl.inference.sparse import Solution, SparsePosterior
from gptd_rl.inference.statistics import statistics
from gptd_rl.kernels import SquaredExponential, paper_kernel
from gptd_rl.kernels.metrics import ARD, Isotropic
from gptd_rl.temporal.shards import Shard
from tests.helpers import METRICS, MIXES, NOISES, Reference, dense_H, make_model, row_places, sample
from tests.mdps import Walk

MODEL = make_model("ard")
SOMEWHERE = np.random.default_rng(99).normal(size=(12, 3))


def make(model: Model = MODEL, **options: Any) -> OnlineGPTD:
    return OnlineGPTD(model.kernel, model.noise_variance, **options)


def batch(v: OnlineGPTD, data: Trajectories) -> SparsePosterior:
    """The batch posterior of `data` with the dictionary of `v`."""
    features = InducingFeatures(v.kernel, v.dictionary_)
    solution = Solution.of(Model(v.kernel, v.noise_variance), features, statistics(Shard.of(data, v.noise), features))
    return SparsePosterior(solution, np.zeros_like(solution.L))


def assert_equals_batch(v: OnlineGPTD, data: Trajectories, states: np.ndarray = SOMEWHERE, rtol: float = 1e-8) -> None:
    mean, std = v.predict(states, return_std=True)
    expected = batch(v, data)
    assert_allclose(mean, expected.mean(states), rtol=rtol, atol=rtol)
    assert_allclose(std, np.sqrt(expected.variance(states)), rtol=rtol)


def steps(data: Trajectories) -> Iterator[Transition]:
    for first, last, terminated in zip(data.starts, data.last, data.terminated, strict=True):
        for i in range(first, last):
            flags = (bool(terminated), not terminated) if i == last - 1 else (False, False)
            yield Transition(data.states[i], data.rewards[i], data.states[i + 1], data.discounts[i], *flags)


def prefixes(data: Trajectories) -> Iterator[Trajectories]:
    """The data up to each transition; where a segment goes on, what is there of it is truncated."""
    past: list[Trajectories] = []
    for segment in data:
        for n in range(2, len(segment) + 1):
            rewards, discounts = segment.rewards[:n].copy(), segment.discounts[:n].copy()
            if n < len(segment):
                rewards[-1] = discounts[-1] = 0.0
            terminated = segment.terminated & (n == len(segment))
            so_far = Trajectories(segment.states[:n], rewards, discounts, np.array([n]), terminated)
            yield Trajectories.concatenate([*past, so_far])
        past.append(segment)


def transitions(data: Trajectories) -> Iterator[tuple[Transition, Trajectories]]:
    """Each transition, and all data up to it."""
    return zip(steps(data), prefixes(data), strict=True)


def dense_mean(v: OnlineGPTD, data: Trajectories, states: np.ndarray) -> np.ndarray:
    """SparsePosterior mean from the whitened rows of H, each with the weight that forgetting leaves it."""
    features, H = InducingFeatures(v.kernel, v.dictionary_), dense_H(data)
    T = np.linalg.cholesky(H @ H.T) if v.noise == "stochastic" else np.eye(len(H))
    G = np.linalg.solve(T, H @ features(data.states))
    t = np.linalg.solve(T, data.rewards[row_places(data)])
    weights = v.forgetting ** np.arange(len(H))[::-1]
    M = (G.T * weights) @ G + v.noise_variance * features.precision
    return features(states) @ np.linalg.solve(M, (G.T * weights) @ t)


# -------------------------------------------------------------------------------------- equal to the batch


@pytest.mark.parametrize("gamma", [None, 0.0, 1.0])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("noise", NOISES)
def test_equals_batch_after_every_update(noise, mix, gamma):
    v = make(noise=noise, tolerance=0.5)
    for transition, so_far in transitions(sample(MIXES[mix], gamma=gamma)):
        assert_equals_batch(v.update(transition), so_far)
        assert v.n_transitions_ == so_far.n_transitions


@pytest.mark.parametrize("noise", NOISES)
def test_equals_batch_while_the_dictionary_grows_now_and_then(noise):
    v = make(noise=noise, tolerance=0.5)
    sizes = []
    for transition, so_far in transitions(sample([(20, False), (30, True), (20, True), (30, False)])):
        assert_equals_batch(v.update(transition), so_far)
        sizes.append(len(v.dictionary_))
    # Past states that are in the dictionary have no part in what a new one adds: the others are what is tested.
    growth = np.flatnonzero(np.diff(sizes))
    assert (sizes[growth[-1]] < growth[-1] / 2) and len(growth) > 10


@pytest.mark.parametrize("metric", ["isotropic", "factor 2"])
@pytest.mark.parametrize("bias", [0.0, 3.0])
@pytest.mark.parametrize("noise", NOISES)
def test_equals_batch_for_other_kernels_and_repeated_states(noise, bias, metric):
    v = make(make_model(metric, bias=bias), noise=noise)
    for transition, so_far in transitions(sample(MIXES["mixed"], repeated=True)):
        assert_equals_batch(v.update(transition), so_far)
    assert len(v.dictionary_) <= 4


@pytest.mark.parametrize("noise", NOISES)
def test_equals_batch_when_predictions_are_rare_and_the_past_is_read_in_blocks(noise, monkeypatch):
    monkeypatch.setattr(growing, "BLOCK", 7)
    data = sample([(40, False), (25, True), (9, False)])
    v = make(noise=noise, tolerance=0.5)
    for i, (transition, so_far) in enumerate(transitions(data)):
        v.update(transition)
        if i % 11 == 10:
            assert_equals_batch(v, so_far)


@pytest.mark.parametrize("noise", NOISES)
def test_all_states_in_the_dictionary_is_exact_gptd(noise):
    data = sample(MIXES["mixed"])
    model = make_model("ard", noise_variance=1e-3)
    v = make(model, noise=noise, tolerance=1e-9)
    for transition in steps(data):
        v.update(transition).predict(SOMEWHERE)
    assert len(v.dictionary_) == len(data)
    exact = Reference.of(model, data, noise)
    mean, std = v.predict(SOMEWHERE, return_std=True)
    assert_allclose(mean, exact.mean(SOMEWHERE), rtol=1e-8, atol=1e-8)
    assert_allclose(std**2, exact.variance(SOMEWHERE), rtol=1e-7)


@pytest.mark.parametrize("noise", NOISES)
def test_whole_segments_equal_single_transitions(noise):
    data = sample(MIXES["mixed"])
    one_by_one, whole = make(noise=noise), make(noise=noise).update(data)
    for transition in steps(data):
        one_by_one.update(transition)
    assert_array_equal(one_by_one.dictionary_, whole.dictionary_)
    assert one_by_one.n_transitions_ == whole.n_transitions_ == data.n_transitions
    for a, b in zip(one_by_one.predict(SOMEWHERE, True), whole.predict(SOMEWHERE, True), strict=True):
        assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("noise", NOISES)
def test_terminal_rewards_and_lone_terminal_states_of_thinned_data(noise):
    data = sample(MIXES["mixed"], terminal_rewards=True).thin(4, offset=1)
    assert 1 in data.lengths
    assert_equals_batch(make(noise=noise).update(data), data)


def test_a_corridor_solved_by_hand():
    kernel = paper_kernel(Isotropic(0.1, 1), 10.0, 10.0)
    v = OnlineGPTD(kernel, 1e-4)
    for _ in range(3):
        for x in range(5):
            v.update(Transition(x, -1.0, x + 1, 1.0, terminated=x == 4))
    assert_allclose(v.predict(np.arange(6.0)), np.arange(6.0) - 5, atol=0.01)


def test_dictionary_is_that_of_the_linear_dependence_test():
    data = sample([(50, False), (30, True)])
    v = make(tolerance=0.1).update(data)
    expected = Dictionary.empty(SquaredExponential(METRICS["ard"]()))
    for state in data.states:
        if expected.residuals(state[None])[0] > 0.1:
            expected = expected.extended(state)
    assert 5 < len(expected.states) < len(data)
    assert_array_equal(v.dictionary_, expected.states)


def test_the_signal_variance_does_not_change_the_dictionary():
    data = sample([(50, False)])
    one, other = (make(make_model("ard", signal_variance=s)).update(data) for s in (0.01, 100.0))
    assert_array_equal(one.dictionary_, other.dictionary_)


# -------------------------------------------------------------------------------------- segments


def test_a_jump_cuts_the_running_segment_off():
    data = sample([(5, False), (4, False)])
    v = make()
    for transition in steps(data):
        v.update(transition._replace(truncated=False))  # nobody says that the first segment is over
    assert_equals_batch(v, data)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_after_an_end_the_same_state_starts_a_new_segment(flag):
    a, b, c = SOMEWHERE[:3]
    v = make().update(Transition(a, 1.0, b, 0.9, **{flag: True})).update(Transition(b, 2.0, c, 0.8))
    two = Trajectories(
        np.array([a, b, b, c]),
        np.array([1.0, 0, 2, 0]),
        np.array([0.9, 0, 0.8, 0]),
        np.array([2, 2]),
        np.array([flag == "terminated", False]),
    )
    assert_equals_batch(v, two)


def test_segments_cut_off_the_running_one():
    first, rest = sample([(5, False)], seed=1), sample(MIXES["mixed"], seed=2)
    v = make()
    for transition in steps(first):
        v.update(transition._replace(truncated=False))
    assert_equals_batch(v.update(rest), first + rest)


def test_termination_wins():
    a, b = SOMEWHERE[:2]
    both, one = (make().update(Transition(a, 1.0, b, 0.9, True, flag)) for flag in (True, False))
    assert_array_equal(both.predict(SOMEWHERE), one.predict(SOMEWHERE))


def test_an_environment_may_reuse_its_buffer():
    data = sample([(9, True)])
    v, buffer = make(), data.states[0].copy()
    for i in range(8):
        before = buffer.copy()
        buffer[:] = data.states[i + 1]
        v.update(Transition(before, data.rewards[i], buffer, data.discounts[i], terminated=i == 7))
        before[:] = np.nan
    assert_array_equal(v.dictionary_, data.states)
    assert_equals_batch(v, data)


# -------------------------------------------------------------------------------------- options


@pytest.mark.parametrize("noise", NOISES)
def test_without_history_close_for_a_small_tolerance(noise):
    data = sample([(60, False), (40, True), (50, False)], n_dims=3)
    errors = []
    for tolerance in (1e-1, 1e-3, 1e-5):
        with_history, without = (make(noise=noise, tolerance=tolerance, keep_history=k) for k in (True, False))
        for transition in steps(data):
            with_history.update(transition)
            without.update(transition)
        assert_array_equal(without.dictionary_, with_history.dictionary_)
        errors.append(np.abs(without.predict(SOMEWHERE) - with_history.predict(SOMEWHERE)).max())
    assert errors[0] > 1e-3  # it is an approximation
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < 5e-3


def test_without_history_memory_does_not_grow():
    v = make(keep_history=False, max_size=5).update(sample([(300, False)]))
    assert isinstance(v.posterior_, OnlinePosterior) and v.posterior_.history is None
    assert v.posterior_.weights.gram.shape == (6, 6)
    assert all(x.base is None for x in v._chosen)  # or the data would live on


@pytest.mark.parametrize("keep_history", [True, False])
def test_never_larger_than_max_size(keep_history):
    v = make(max_size=6, keep_history=keep_history)
    for i, transition in enumerate(steps(sample([(20, False), (20, True)]))):
        assert len(v.update(transition).dictionary_) == min(i + 2, 6)


@pytest.mark.parametrize("noise", NOISES)
def test_a_full_dictionary_still_equals_batch(noise):
    v = make(max_size=6, noise=noise)
    for transition, so_far in transitions(sample(MIXES["mixed"])):
        assert_equals_batch(v.update(transition), so_far)
    assert len(v.dictionary_) == 6


@pytest.mark.parametrize("noise", NOISES)
def test_forgetting_weighs_rows_by_their_age(noise):
    data = sample([(12, False), (20, True), (15, False)])
    v = make(noise=noise, forgetting=0.9, tolerance=0.5)
    for transition, so_far in transitions(data):
        assert_allclose(v.update(transition).predict(SOMEWHERE), dense_mean(v, so_far, SOMEWHERE), rtol=1e-8, atol=1e-8)


def test_forgetting_forgets():
    a, b = [0.0, 0.0, 0.0], [9.0, 9.0, 9.0]
    old, new = Transition(a, 1.0, b, 0.0, truncated=True), Transition(a, -1.0, b, 0.0, truncated=True)
    keeps, forgets = make(), make(forgetting=0.9)
    for transition in [old] * 50 + [new] * 50:
        keeps.update(transition)
        forgets.update(transition)
    assert_allclose(keeps.predict([a]), 0.0, atol=0.01)
    assert forgets.predict([a])[0] < -0.9
    assert forgets.predict([a], True)[1] > keeps.predict([a], True)[1]


# -------------------------------------------------------------------------------------- many updates


@pytest.mark.parametrize("noise", NOISES)
def test_thousands_of_updates_stay_accurate(noise):
    rng = np.random.default_rng(5)
    data = sample([(k, k % 2 == 0) for k in rng.integers(2, 220, size=50)], n_dims=2)
    v = OnlineGPTD(paper_kernel(ARD([0.8, 1.2]), 2.0, 1.0), 0.05, noise=noise, tolerance=3e-2)
    for i, transition in enumerate(steps(data)):
        v.update(transition)
        if i % 5 == 0:
            v.predict(data.states[:1])  # so that there is a root to be taken along
    assert v.n_transitions_ == data.n_transitions > 5000
    assert 20 < len(v.dictionary_) < 100
    assert_equals_batch(v, data, rng.normal(size=(50, 2)))


def test_rounding_errors_are_swept_away():
    data = sample([(200, False)])
    v = make(max_size=10).update(data[0])
    right = v.predict(SOMEWHERE)
    assert isinstance(v.posterior_, OnlinePosterior)
    root = v.posterior_.weights.root()
    root *= 1.01  # far worse than rounding
    assert np.abs(v.predict(SOMEWHERE) - right).max() > 1e-3
    more = sample([(52, False)], seed=1)
    assert_equals_batch(v.update(more), data + more)


# -------------------------------------------------------------------------------------- hybrid


@pytest.fixture(scope="module")
def fitted() -> GPTD:
    rng = np.random.default_rng(3)
    states = rng.uniform(-1, 1, size=(60, 2))
    value = np.sin(2.0 * states[:, 0])  # the second input is of no use
    rewards = np.append(value[:-1] - 0.9 * value[1:], 0.0)
    discounts = np.append(np.full(59, 0.9), 0.0)
    data = Trajectories(states, rewards, discounts, np.array([60]), np.array([False]))
    return GPTD(objective="thinned", thinning=2, n_restarts=0, noise_variance=1e-2).fit(data)


def test_from_batch_equals_the_sparse_posterior(fitted):
    v = OnlineGPTD.from_batch(fitted, data=fitted.data_, tolerance=1e-2)
    assert v.noise_variance == 2 * fitted.noise_variance_ and v.kernel is fitted.kernel_ and v.noise == fitted.noise
    x = np.random.default_rng(0).uniform(-1, 1, size=(20, 2))
    assert_equals_batch(v, fitted.data_, x)
    assert_allclose(v.predict(x), fitted.predict(x), atol=0.02)
    more = fitted.data_.states[-1], 0.3, [0.2, 0.1], 0.9
    assert v.update(Transition(*more)).n_transitions_ == 60


def test_from_batch_reads_only_the_inputs_that_were_not_pruned(fitted):
    pruned = fitted.prune()
    assert_array_equal(pruned.inputs_, [0])
    v = OnlineGPTD.from_batch(pruned, tolerance=1e-2)
    for transition in steps(fitted.data_):
        v.update(transition)
    assert v.dictionary_.shape[1] == v.n_dims_ == 2
    x = np.random.default_rng(0).uniform(-1, 1, size=(20, 2))
    features = InducingFeatures(v.kernel, v.dictionary_[:, [0]])
    known = statistics(Shard.of(fitted.data_.take_inputs([0]), v.noise), features)
    solution = Solution.of(Model(v.kernel, v.noise_variance), features, known)
    assert_allclose(v.predict(x), features(x[:, [0]]) @ solution.weights, rtol=1e-6, atol=1e-6)
    assert_array_equal(v.predict(x), v.predict(x * [1, 5]))


def test_from_batch_needs_a_fitted_model(fitted):
    with pytest.raises(NotFittedError, match=r"not been fitted yet: call fit\(data\)"):
        OnlineGPTD.from_batch(GPTD())
    with pytest.raises(TypeError, match="expects a fitted GPTD"):
        OnlineGPTD.from_batch(MODEL)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------- by instruments


def instrumental_batch(v: OnlineGPTD, data: Trajectories) -> InstrumentalPosterior:
    """Values by instruments from all of `data`, with the dictionary of `v`."""
    features, shard = WhiteFeatures.of(v.kernel, v.dictionary_), Shard.of(data, "stochastic")
    solution = MomentSolution.of(moment_statistics(shard, features))
    return InstrumentalPosterior(features, solution, moment_noise(shard, features, solution), is_exact=False)


def assert_equals_instrumental_batch(v: OnlineGPTD, data: Trajectories, states: np.ndarray = SOMEWHERE) -> None:
    expected = instrumental_batch(v, data)
    mean, std = v.predict(states, return_std=True)
    assert_allclose(mean, expected.mean(states), rtol=1e-6, atol=1e-8)
    assert_allclose(std, np.sqrt(expected.variance(states)), rtol=1e-6)
    lower, upper = v.confidence_interval(states, level=0.6826894921370859)  # one standard deviation
    assert_allclose(0.5 * (upper - lower), std, rtol=1e-7)


@pytest.mark.parametrize("mix", MIXES)
def test_bootstrapping_equals_batch_after_every_update(mix):
    v = make(bootstrap=True, tolerance=0.2)
    for transition, so_far in transitions(sample(MIXES[mix])):
        assert_equals_instrumental_batch(v.update(transition), so_far)


def test_bootstrapping_from_whole_segments_equals_single_transitions():
    data = sample(MIXES["mixed"])
    one_by_one, whole = make(bootstrap=True), make(bootstrap=True).update(data)
    for transition in steps(data):
        one_by_one.update(transition)
    assert_array_equal(one_by_one.predict(SOMEWHERE, True), whole.predict(SOMEWHERE, True))
    assert one_by_one.n_transitions_ == whole.n_transitions_ == data.n_transitions


def test_bootstrapping_a_jump_cuts_the_running_segment_off():
    data, rest = sample([(5, False), (4, False)]), sample(MIXES["mixed"], seed=2)
    v = make(bootstrap=True)
    for transition in steps(data):
        v.update(transition._replace(truncated=False))  # nobody says that a segment is over
    assert_equals_instrumental_batch(v, data)
    assert_equals_instrumental_batch(v.update(rest), data + rest)


def test_bootstrapping_a_terminal_state_is_worth_nothing():
    """x → terminal with the reward 1, again and again: V(x) = 1, whatever the terminal state looks like."""
    v = make(bootstrap=True)
    for _ in range(100):
        v.update(Transition(SOMEWHERE[0], 1.0, SOMEWHERE[0] + 0.01, 1.0, terminated=True))
    assert_allclose(v.predict(SOMEWHERE[:1]), 1.0, atol=1e-3)


def test_bootstrapping_equals_batch_on_a_stochastic_walk():
    walk = Walk()
    data = walk.sample(400, np.random.default_rng(0))
    v = OnlineGPTD(paper_kernel(Isotropic(0.05, 1), 20.0, 60.0), 1.0, bootstrap=True, tolerance=1e-4)
    for transition in steps(data):
        v.update(transition)
    assert_equals_instrumental_batch(v, data, walk.cells)
    values = v.sample(walk.cells, 20_000, seed=0)
    mean, std = v.predict(walk.cells, return_std=True)
    assert_allclose(values.mean(axis=0), mean, atol=5 * std.max() / np.sqrt(len(values)))
    assert_allclose(values.std(axis=0), std, rtol=0.05)


@pytest.fixture(scope="module")
def bootstrapped() -> GPTD:
    kernel = paper_kernel(Isotropic(0.05, 1), 20.0, 60.0, ("v0", "b", "h"))
    return GPTD(kernel, bootstrap=True, n_restarts=0).fit(Walk().sample(400, np.random.default_rng(0)))


def test_from_batch_of_a_model_that_bootstraps_bootstraps(bootstrapped, tmp_path):
    assert bootstrapped.bootstrap_
    v = OnlineGPTD.from_batch(bootstrapped, data=bootstrapped.data_, tolerance=1e-7)
    assert v.bootstrap is True and v.kernel is bootstrapped.kernel_ and v.noise == "stochastic"
    x = Walk().cells
    for ours, theirs in zip(v.predict(x, True), bootstrapped.predict(x, return_std=True), strict=True):
        assert_allclose(ours, theirs, rtol=1e-3)
    again = OnlineGPTD.load(v.save(tmp_path / "v.gptd"))
    assert_allclose(again.predict(x, True), v.predict(x, True), rtol=1e-9)


def test_from_batch_bootstraps_if_told_so(fitted, bootstrapped):
    assert OnlineGPTD.from_batch(bootstrapped, bootstrap=False).bootstrap is False
    assert OnlineGPTD.from_batch(fitted).bootstrap is False
    assert OnlineGPTD.from_batch(fitted, bootstrap=True).posterior_.trace_decay == 0.0
    assert OnlineGPTD.from_batch(fitted.prune(), data=fitted.data_, bootstrap=True).n_dims_ == 2
    with pytest.raises(ValueError, match=r"^bootstrap must be True or False; got 'x'\.$"):
        OnlineGPTD.from_batch(bootstrapped, bootstrap="x")


def test_bootstrap_is_a_parameter_like_others():
    v = make(bootstrap=True, max_size=7).update(sample([(9, False)]))
    assert v.get_params()["bootstrap"] is True and "bootstrap=True" in repr(v)
    copied = clone(v)
    assert copied.posterior_.trace_decay == 0.0 and copied.n_transitions_ == 0 and copied.max_size == 7
    assert v.set_params(bootstrap=False).posterior_.trace_decay is None and v.n_transitions_ == 0
    with pytest.raises(ValueError, match="bootstrap must be True or False; got 'x'"):
        v.set_params(bootstrap="x")
    assert v.bootstrap is False


# -------------------------------------------------------------------------------------- bad input

GOOD = Transition([0.0, 0.0, 0.0], 1.0, [1.0, 1.0, 1.0], 0.9)
BAD_UPDATES: dict[str, Any] = {
    "short state": (GOOD._replace(state=[0.0, 0.0]), ValueError, r"^state must have shape \(3,\).*got \(2,\)"),
    "nested state": (GOOD._replace(next_state=[[0.0, 0, 0]]), ValueError, r"^next_state must have shape \(3,\)"),
    "nan state": (GOOD._replace(state=[0, np.nan, 0]), ValueError, "^state must be finite; it holds nan"),
    "inf next_state": (GOOD._replace(next_state=[0, np.inf, 0]), ValueError, "^next_state must be finite.* inf"),
    "text": (GOOD._replace(state="here"), TypeError, "^state must be made of numbers"),
    "nan reward": (GOOD._replace(reward=np.nan), ValueError, "^reward must be finite; it holds nan"),
    "two rewards": (
        GOOD._replace(reward=[1.0, 2.0]),  # type: ignore[arg-type]
        ValueError,
        r"^reward must have shape \(\)",
    ),
    "large discount": (GOOD._replace(discount=1.1), ValueError, r"^discount must lie in \[0, 1\]; got 1.1"),
    "negative discount": (GOOD._replace(discount=-0.1), ValueError, r"^discount must lie in \[0, 1\]; got -0.1"),
    "nan discount": (GOOD._replace(discount=np.nan), ValueError, "^discount must be finite"),
    "tuple": (tuple(GOOD), TypeError, "expects a Transition or Trajectories; got <class 'tuple'>"),
    "narrow data": (sample([(3, True)], n_dims=2), ValueError, "^states must have 3 columns; got 2"),
}


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("case", BAD_UPDATES)
def test_a_refused_update_changes_nothing(case, bootstrap):
    bad, error, message = BAD_UPDATES[case]
    v = make(bootstrap=bootstrap).update(sample([(9, False)])).update(GOOD)
    before = copy.deepcopy(v)
    with pytest.raises(error, match=message) as caught:
        v.update(bad)
    assert "\n" not in str(caught.value)
    onwards = Transition(GOOD.next_state, -1.0, SOMEWHERE[0], 0.8, terminated=True)  # the segment goes on
    for a, b in ((v, before), (v.update(onwards), before.update(onwards))):
        assert_array_equal(a.predict(SOMEWHERE, True), b.predict(SOMEWHERE, True))
        assert_array_equal(a.dictionary_, b.dictionary_)
        assert a.n_transitions_ == b.n_transitions_


@pytest.mark.parametrize("case", BAD_UPDATES)
def test_a_refused_first_update_changes_nothing(case):
    v = make()
    with pytest.raises(BAD_UPDATES[case][1]):
        v.update(BAD_UPDATES[case][0])
    assert v.n_transitions_ == 0 and v.dictionary_.shape == (0, 3)
    with pytest.raises(NotFittedError):
        v.predict(SOMEWHERE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(tolerance=0.0), "tolerance .* between 0 and 1; got 0.0"),
        (dict(tolerance=1.0), "tolerance .* between 0 and 1; got 1.0"),
        (dict(tolerance=np.nan), "tolerance .* got nan"),
        (dict(forgetting=0.0), r"forgetting must lie in \(0, 1\].*got 0.0"),
        (dict(forgetting=1.01), r"forgetting must lie in \(0, 1\].*got 1.01"),
        (dict(max_size=0), "max_size must be 1 or more, or None for no limit; got 0"),
        (dict(noise="white"), "noise must be one of 'stochastic', 'deterministic'; got 'white'"),
        (dict(noise_variance=0.0), "noise_variance must be positive and finite; got 0.0"),
        (dict(bootstrap="x"), "bootstrap must be True or False; got 'x'"),
        (dict(bootstrap="auto"), "bootstrap must be True or False; got 'auto'"),
        (dict(bootstrap=1), "bootstrap must be True or False; got 1"),
        (dict(bootstrap=True, noise="deterministic"), "bootstrap=True .* stochastic system.*; got 'deterministic'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        OnlineGPTD(MODEL.kernel, **(dict(noise_variance=0.1) | options))
    assert "\n" not in str(caught.value)


def test_bad_kernel():
    with pytest.raises(TypeError, match="kernel must be a kernel object; got <class 'str'>"):
        OnlineGPTD("ard", 0.1)  # type: ignore[arg-type]


def test_predicting_too_early_or_for_other_states():
    v = make()
    with pytest.raises(NotFittedError, match="has seen no transition yet: call update"):
        v.predict(SOMEWHERE)
    v.update(GOOD)
    with pytest.raises(ValueError, match="states must have 3 columns; got 2"):
        v.predict([[0.0, 1.0]])
    with pytest.raises(ValueError, match="states must be finite"):
        v.predict([[0.0, np.nan, 1.0]])
    assert v.predict(np.zeros((0, 3))).shape == (0,)
    assert repr(v).startswith("OnlineGPTD(SquaredExponential(") and repr(v).endswith(
        "# 1 transitions, 2 states in the dictionary"
    )


# -------------------------------------------------------------------------------------- in a file


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(noise="deterministic"),
        dict(keep_history=False),
        dict(max_size=6),
        dict(forgetting=0.97),
        dict(keep_history=False, forgetting=0.97, max_size=5),
        dict(bootstrap=True),
        dict(bootstrap=True, keep_history=False),
        dict(bootstrap=True, forgetting=0.97),
        dict(bootstrap=True, keep_history=False, forgetting=0.97, max_size=5),
    ],
    ids=str,
)
def test_a_model_saved_in_the_middle_of_a_segment_goes_on_as_if_nothing_had_happened(options, tmp_path):
    data = sample([(20, False), (30, True), (20, False)])
    moves = list(steps(data))
    v = make(tolerance=0.2, **options)
    for transition in moves[:33]:
        v.update(transition)
    again = OnlineGPTD.load(v.save(tmp_path / "v.gptd"))
    assert (again.n_transitions_, again.n_dims_) == (33, 3)
    assert again.get_params(deep=False).keys() == v.get_params(deep=False).keys() and again.bootstrap == v.bootstrap
    assert_array_equal(again.dictionary_, v.dictionary_)
    assert_allclose(again.predict(SOMEWHERE, True), v.predict(SOMEWHERE, True), rtol=1e-8, atol=1e-10)
    for transition in moves[33:]:
        v.update(transition)
        again.update(transition)
        assert_array_equal(again.dictionary_, v.dictionary_)
        for ours, theirs in zip(again.predict(SOMEWHERE, True), v.predict(SOMEWHERE, True), strict=True):
            assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)
    assert_allclose(again.confidence_interval(SOMEWHERE), v.confidence_interval(SOMEWHERE), rtol=1e-8)
    assert again.n_transitions_ == v.n_transitions_ == data.n_transitions


def test_a_model_that_has_seen_nothing_comes_back(tmp_path):
    again = OnlineGPTD.load(make().save(tmp_path / "v.gptd"))
    data = sample([(20, False)])
    assert_array_equal(again.update(data).predict(SOMEWHERE), make().update(data).predict(SOMEWHERE))


def test_a_model_of_some_inputs_comes_back(fitted, tmp_path):
    v = OnlineGPTD.from_batch(fitted.prune(), data=fitted.data_)
    again = OnlineGPTD.load(v.save(tmp_path / "v.gptd"))
    x = np.random.default_rng(0).uniform(-1, 1, size=(20, 2))
    assert_allclose(again.predict(x), v.predict(x), rtol=1e-9)
    assert_array_equal(again.predict(x), again.predict(x * [1, 5]))


def test_load_refuses_another_class(fitted, tmp_path):
    path = fitted.save(tmp_path / "v.gptd")
    with pytest.raises(ValueError, match=r"holds a GPTD, not a OnlineGPTD: gptd_rl\.load reads all\.$"):
        OnlineGPTD.load(path)
