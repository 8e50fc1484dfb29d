"""Candidates for V, and the choice between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, Trajectories
from gptd_rl.evaluation import candidates
from gptd_rl.evaluation.candidates import (
    Chosen,
    ValueCandidate,
    choose,
    contiguous_sample,
    gaussian_process,
    learnt,
    nearest_neighbours,
    select,
)
from gptd_rl.evaluation.value_models import monte_carlo
from gptd_rl.kernels import ARD, Constant, Isotropic, Matern32
from gptd_rl.temporal.returns import Returns
from tests.mdps import Gridworld, Spiral, Walk


def numbered(lengths: list[int], terminated: list[bool], gamma: float = 0.9) -> Trajectories:
    """Every state is its own number, from 1."""
    n = sum(lengths)
    last = np.cumsum(lengths) - 1
    discounts, rewards = np.full(n, gamma), np.random.default_rng(0).normal(size=n)
    discounts[last] = rewards[last] = 0.0
    return Trajectories(np.arange(1.0, n + 1)[:, None], rewards, discounts, np.array(lengths), np.array(terminated))


def one_step(x: Any, returns: Any) -> Trajectories:
    """Episodes of one step each, from states `x` of shape (n, D), which bring `returns`."""
    n = len(x)
    states = np.repeat(np.asarray(x, dtype=np.float64), 2, axis=0)
    rewards = np.column_stack([returns, np.zeros(n)]).ravel()
    return Trajectories(states, rewards, np.tile([0.9, 0.0], n), np.full(n, 2), np.ones(n, dtype=bool))


def guess(name: str, values: Any) -> ValueCandidate:
    """A candidate with given values of left-out states."""
    return ValueCandidate(name, lambda x: np.zeros(len(x)), np.asarray(values, dtype=np.float64))


def at_starts(values: Any) -> Any:
    """Values of the states of `one_step`: those given, and 0 at the terminal states."""
    return np.column_stack([values, np.zeros(len(values))]).ravel()


def test_the_best_is_chosen_where_it_is_better_in_every_episode():
    y = np.arange(10.0)
    data = one_step(y[:, None], y)
    options = [
        guess("far", at_starts(y + 3.0)),
        guess("near", at_starts(y + 1.0)),
        guess("also near", at_starts(y + 1)),
    ]
    assert choose(options, data).name == "near"


def test_the_simplest_is_chosen_where_left_out_episodes_cannot_tell():
    rng = np.random.default_rng(0)
    y = np.repeat(rng.normal(size=20), 2)
    data = one_step(y[:, None], y)
    one, other = (at_starts(sign * np.tile([0.1, -0.1], 20)) for sign in (1.0, -1.0))  # differ by chance
    for pair in ([guess("one", one), guess("other", other)], [guess("other", other), guess("one", one)]):
        assert choose(pair, data).name == pair[0].name
    assert choose([guess("bad", at_starts(np.full(40, 5.0))), guess("one", one)], data).name == "one"


def test_squared_errors_are_those_of_each_episode():
    data = numbered([3, 2], [True, True], gamma=1.0)
    returns = Returns.of(data)
    found = guess("ours", np.zeros(len(data))).squared_errors(returns)
    r = data.rewards
    assert_allclose(found, [(r[0] + r[1]) ** 2 + r[1] ** 2, r[3] ** 2])


def test_within_clips_predictions_and_left_out_values():
    clipped = ValueCandidate("ours", lambda x: x[:, 0], np.array([-9.0, 1.0, 9.0])).within(-2.0, 3.0)
    assert_array_equal(clipped.left_out, [-2.0, 1.0, 3.0])
    assert_array_equal(clipped.predict(np.array([[-5.0], [0.0], [5.0]])), [-2.0, 0.0, 3.0])


def test_chosen_is_the_candidate():
    data = Walk().sample(100, np.random.default_rng(0))
    constant = learnt("Monte Carlo", monte_carlo, data)
    v = Chosen(constant).fit(data)
    assert_array_equal(v.predict(data.states), monte_carlo(data)(data.states))
    assert_array_equal(v.cross_val_values_, constant.left_out)
    assert (constant.left_out[data.last[data.terminated]] == 0).all() and v.error_scale_ is None


def unselected(name: str, data: Trajectories) -> ValueCandidate:
    """GPTD with a kernel that was not selected."""
    v = GPTD(Matern32(ARD([1.0])).fix() + Constant(), n_restarts=0, noise_variance=1.0, bootstrap=False).fit(data)
    return ValueCandidate(name, v.predict, np.zeros(len(data)), None, v)


def grid(n: int, seed: int = 0) -> Trajectories:
    return Gridworld(gamma=0.9).sample(n, np.random.default_rng(seed))


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_gaussian_process_finds_v_with_a_mean_and_without(bootstrap):
    data, task = grid(120), Gridworld(gamma=0.9)
    inner = data.states[~np.isin(np.arange(len(data)), data.last)]
    mean = learnt("line", lambda _: lambda states: 0.5 * states[:, 0] - 4.0, data)
    for around in (None, mean):
        found = gaussian_process("ours", data, is_categorical=False, bootstrap=bootstrap, mean=around)
        assert np.abs(found.predict(inner) - task.value(inner)).mean() < 0.1
        assert found.selected is not None and found.scale is not None and (found.scale(inner) >= 0).all()
        error = np.sqrt(found.squared_errors(Returns.of(data)).sum() / len(data))
        assert error < 0.5 < np.std(task.value(inner))


def test_a_gaussian_process_learns_what_the_mean_leaves_of_left_out_episodes(monkeypatch):
    seen: list[Trajectories] = []

    def spy(data: Trajectories, *options: Any) -> Any:
        seen.append(data)
        return select(data, *options)

    monkeypatch.setattr(candidates, "select", spy)
    data = grid(30)
    left_out = np.where(data.has_transition, 0.1 * np.arange(len(data)), 0.0)
    mean = ValueCandidate("mean", lambda x: np.full(len(x), 100.0), left_out)
    found = gaussian_process("ours", data, is_categorical=False, mean=mean)
    ended = np.repeat(data.terminated, data.lengths)
    assert_allclose(Returns.of(seen[0]).y[ended], (Returns.of(data).y - left_out)[ended], atol=1e-9)
    # but predictions are around the mean that was fitted to all data
    assert (np.abs(found.predict(data.states[:3]) - 100.0) < 50.0).all()


@pytest.mark.parametrize("longest", [1000, 5])
def test_nearest_states_find_v_also_where_returns_were_cut_off(longest):
    data, task = grid(120).cut(longest), Gridworld(gamma=0.9)
    plain = gaussian_process("plain", data, is_categorical=False)
    found = nearest_neighbours("nearest", plain, data)
    inner = data.states[data.has_transition]
    assert np.abs(found.predict(inner) - task.value(inner)).mean() < 0.02
    assert np.abs(found.left_out - np.where(_is_terminal(data), 0.0, task.value(data.states))).mean() < 0.1
    assert (found.left_out[_is_terminal(data)] == 0).all()


def _is_terminal(data: Trajectories) -> Any:
    found = np.zeros(len(data), dtype=bool)
    found[data.last[data.terminated]] = True
    return found


def test_left_out_values_of_nearest_states_do_not_know_their_episode():
    y = np.arange(30.0)
    data = one_step(np.zeros((30, 1)), np.where(y == 7, 100.0, 0.0))  # one odd return at a state that all have
    plain = unselected("plain", data)
    found = nearest_neighbours("nearest", plain, data)
    assert abs(found.left_out[14]) < 50.0


def test_select_uses_one_relevance_for_categories_and_many_inputs():
    data = grid(20)
    for is_categorical in (False, True):
        metric = select(data, is_categorical, False).kernel_.metric
        assert isinstance(metric, Isotropic) == is_categorical


def test_contiguous_sample_has_whole_episodes():
    data = Walk().sample(2000, np.random.default_rng(0))
    part = contiguous_sample(data, 900)
    assert 900 <= len(part) < 900 + data.lengths.max()
    starts = {tuple(data.states[s : s + n, 0]) for s, n in zip(data.starts, data.lengths, strict=True)}
    assert all(tuple(part.states[s : s + n, 0]) in starts for s, n in zip(part.starts, part.lengths, strict=True))
    assert contiguous_sample(data, len(data)) is data
    long = Spiral(time_limit=500).sample(2000, np.random.default_rng(0))
    pieces = contiguous_sample(long, 400)
    assert pieces.lengths.max() <= 51 and 400 <= len(pieces) <= 451
