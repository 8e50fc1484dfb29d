"""The tasks of the benchmarks: closed forms against rollouts, and what is sampled."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("tasks")


def test_all_tasks_span_the_field(tasks):
    found = tasks.all_tasks()
    assert len({task.name for task in found}) == len(found) >= 24
    assert {task.nature for task in found} == {"deterministic", "stochastic", "non-Markov"}
    assert min(task.gamma for task in found) == 0.9 and max(task.gamma for task in found) == 0.995
    assert min(task.n_transitions for task in found) == 300 and max(task.n_transitions for task in found) == 20_000
    assert min(task.max_steps for task in found) == 8
    assert any(task.max_steps == task.n_transitions for task in found)  # a single run
    with pytest.raises(ValueError, match="there is no task 'nothing'"):
        tasks.task_named("nothing")


def test_value_equals_the_mean_of_rollouts(tasks):
    rng, n_states, n_rollouts = np.random.default_rng(0), 40, 150
    checked = 0
    for task in tasks.all_tasks():
        if task.system.value is None or task.nature == "non-Markov":
            continue
        states = task.test_states(rng, n_states)
        returns = task.system.rolled_out(states, rng, n_rollouts)
        variances = returns.var(axis=1, ddof=1) / n_rollouts
        errors = returns.mean(axis=1) - task.system.value(states)
        cut = 2e-4 * np.abs(returns).max()  # a rollout stops when γ^t is 1e-4
        assert abs(errors.mean()) < 4 * np.sqrt(variances.mean() / n_states) + cut, task.name
        assert np.sqrt(np.mean(errors**2)) < 1.4 * np.sqrt(variances.mean()) + cut, task.name  # 4 deviations of it
        checked += 1
    assert checked >= 25


def test_value_of_hidden_states_is_the_mean_return_given_the_observation(tasks):
    rng, n = np.random.default_rng(0), 20_000
    hidden = [task for task in tasks.all_tasks() if task.nature == "non-Markov"]
    assert len(hidden) >= 3
    for task in hidden:
        states = task.system.start(n, rng)
        (seen,) = task.system.observe(states).T
        errors = task.system.rolled_out(states, rng, 1)[:, 0] - task.system.value(states)
        # E[(return − V(o)) f(o)] = 0 for every function f
        for f in (np.ones(n), seen, seen**2, np.abs(seen), np.cos(seen)):
            moments = errors * f
            assert abs(moments.mean()) < 4 * moments.std() / np.sqrt(n), task.name
        # the observation does not tell all: neither does V(o) equal V(x), nor is the state seen
        assert task.system.observe(states).shape[1] < states.shape[1]


def test_value_of_the_cliff_jumps(tasks):
    system = tasks.task_named("cliff").system
    below, above = system.value(np.array([[0.5 - 1e-9], [0.5 + 1e-9]]))
    assert above - below > 5


def test_sample_is_as_long_as_asked(tasks):
    for task in tasks.all_tasks():
        n = min(task.n_transitions, 700)
        data = task.sample(np.random.default_rng(1), n)
        again = task.sample(np.random.default_rng(1), n)
        assert data.n_transitions == n
        assert data.lengths.max() <= task.max_steps + 1
        assert set(data.discounts[data.has_transition]) == {task.gamma}
        assert_array_equal(data.states, again.states)
        # only the last run may be cut by the end of the data
        cut = ~data.terminated & (data.lengths <= task.max_steps)
        assert not cut[:-1].any()


def test_problem_is_the_same_for_the_same_seed(tasks):
    task = tasks.task_named("ring")
    one, same, other = task.problem(5, 60), task.problem(5, 60), task.problem(6, 60)
    assert_array_equal(one.states, same.states)
    assert_array_equal(one.truth, same.truth)
    assert_array_equal(one.data.states, same.data.states)
    assert one.states.shape == (200, 3) and one.truth.shape == (200,)
    assert not np.array_equal(one.data.states, other.data.states)


def test_heavy_tails_have_no_bias(tasks):
    noise = tasks._student_noise(np.full((200_000, 1), 2.0), np.random.default_rng(0))
    assert abs(noise.mean()) < 4 * noise.std() / np.sqrt(len(noise))
    assert noise.std() > 1.2 * (np.quantile(noise, 0.84) - np.quantile(noise, 0.16)) / 2  # a Gaussian's are equal
