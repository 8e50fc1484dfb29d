"""The off-policy benchmark: closed forms of Q against rollouts, rivals, and a small run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import modules of the benchmarks by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_q_equals_the_mean_of_rollouts(benchmarks):
    rng, n_rollouts, n_pairs, checked = np.random.default_rng(0), 150, 60, 0
    for task in benchmarks("decision_tasks").all_decision_tasks():
        if task.system.q is None:
            continue
        problem = task.problem(1, 50, n_pairs)
        returns = task.system.rolled_out(problem.states, problem.actions, rng, n_rollouts)
        variances = returns.var(axis=1, ddof=1) / n_rollouts
        errors = returns.mean(axis=1) - problem.truth
        cut = 2e-4 * np.abs(returns).max()
        assert abs(errors.mean()) < 4 * np.sqrt(variances.mean() / n_pairs) + cut, task.name
        assert np.sqrt(np.mean(errors**2)) < 1.4 * np.sqrt(variances.mean()) + cut, task.name
        checked += 1
    assert checked >= 6


def test_decision_tasks_are_off_policy(benchmarks):
    tasks = benchmarks("decision_tasks")
    assert any(not task.covered for task in tasks.all_decision_tasks())
    for task in tasks.all_decision_tasks():
        system, problem = task.system, task.problem(0, 300, 50)
        data = problem.data
        assert data.n_transitions == 300 and data.lengths.max() <= task.max_steps + 1
        assert_array_equal(data.states, task.problem(0, 300, 50).data.states)
        x = data.states[data.has_transition]
        if system.n_actions is None:
            assert not np.allclose(system.target(x), data.actions[data.has_transition])
            continue
        target, behaviour = system.target_probabilities(x), system.behaviour.action_probabilities(x)
        assert_allclose(target.sum(axis=1), 1.0)
        assert_allclose(behaviour.sum(axis=1), 1.0)
        assert np.abs(target - behaviour).max() > 0.1
        assert ((behaviour > 0) | (target == 0)).all() == task.covered
    with pytest.raises(ValueError, match="there is no task 'nothing'"):
        tasks.decision_task_named("nothing")


def test_stochastic_policy_samples_its_probabilities(benchmarks):
    policy = benchmarks("decision_tasks").decision_task_named("queue").system.target
    states = np.full((20_000, 1), 6.0)
    p = policy.action_probabilities(states)[0]
    actions, _ = policy.predict(states)
    assert_allclose(np.bincount(actions, minlength=2) / len(actions), p, atol=4 * 0.5 / np.sqrt(len(actions)))
    assert_array_equal(policy(states), actions)  # the same for the same batch


def case_of(benchmarks: Any, name: str, n: int) -> tuple[Any, Any]:
    task = benchmarks("decision_tasks").decision_task_named(name)
    problem = task.problem(0, n)
    DecisionCase = benchmarks("action_value_estimators").DecisionCase
    return DecisionCase(task.system, problem.data, problem.states, problem.actions), problem


def test_lstdq_and_fqe_find_q_of_a_small_mdp(benchmarks):
    estimators, least_squares = benchmarks("action_value_estimators"), benchmarks("least_squares")
    case, problem = case_of(benchmarks, "random MDP", 20_000)

    def one_hot(x: np.ndarray, a: np.ndarray) -> np.ndarray:
        return (x[:, :, None] * np.eye(3)[a][:, None]).reshape(len(x), -1)

    for estimate in (least_squares.lstd, least_squares.fitted_evaluation):
        found = estimators.linear(lambda c: one_hot, estimate, case).mean
        assert np.sqrt(np.mean((found - problem.truth) ** 2)) < 0.1 * problem.truth.std()


@pytest.mark.parametrize("task", ["queue", "linear-quadratic"])
def test_neural_fqe_learns(benchmarks, task, monkeypatch):
    network = benchmarks("neural_fqe")
    monkeypatch.setattr(network, "N_STEPS", 1000)
    case, problem = case_of(benchmarks, task, 1500)
    found = network.neural_fqe(case).mean
    assert np.sqrt(np.mean((found - problem.truth) ** 2)) < 0.7 * np.sqrt(np.mean(problem.truth**2))


def test_importance_weighting_follows_the_target(benchmarks):
    """Two states in a row, known ratios: the runs that went on as the target does are what counts."""
    estimators, systems = benchmarks("action_value_estimators"), benchmarks("decision_systems")
    target = systems.batched(lambda x: np.ones(len(x), dtype=int))
    system = systems.DecisionSystem(0.5, None, None, systems.uniform(3), target, 3)
    episodes = [
        dict(observations=[[0.0], [1.0], [2.0]], actions=[2, a], rewards=[1.0, 10.0 * a], terminated=True)
        for a in (0, 1, 1)
    ]
    data = Trajectories.from_episodes(episodes, gamma=0.5)
    states, actions = np.array([[0.0], [1.0]]), np.array([2, 1])
    found = estimators.importance_weighting(estimators.DecisionCase(system, data, states, actions))
    assert_allclose(found.mean, [1 + 0.5 * 10, 10.0])


def test_importance_weighting_tells_more_than_a_constant(benchmarks):
    estimators = benchmarks("action_value_estimators")
    case, problem = case_of(benchmarks, "queue", 3000)
    found = estimators.importance_weighting(case).mean
    assert np.sqrt(np.mean((found - problem.truth) ** 2)) < 0.5 * problem.truth.std()


def test_off_policy_runs_and_prints_it_again(tmp_path: Path) -> None:
    stored = str(tmp_path / "scores.json")

    def ran(*options: str) -> str:
        command = [sys.executable, "benchmarks/off_policy.py", "--json", stored, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = ["GPTDQ", "LSTDQ", "LSTDQ radial", "FQE", "FQE radial", "importance", "constant"]
    options = ["--seeds", "0", "--sizes", "400", "--tasks", "queue", "linear-quadratic"]
    printed = ran(*options, "--contestants", *names)
    assert "| queue, n = 400 |" in printed and "| linear-quadratic, n = 400 |" in printed
    for name in names:
        assert f"| {name} |" in printed
    assert ran("--from-json") == printed
