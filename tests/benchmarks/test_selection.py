"""The benchmark of value estimation: small runs, rivals that are what they say, tables of stored scores."""

from __future__ import annotations

import importlib
import json
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


def ran(*options: str) -> str:
    command = [sys.executable, "benchmarks/selection.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_selection_runs_the_field_and_prints_it_again(tmp_path: Path) -> None:
    stored = str(tmp_path / "scores.json")
    names = ["GPTD", "LSTD", "LSTD(λ)", "LSTD radial", "fitted", "Monte Carlo", "constant"]
    printed = ran("--seeds", "3", "4", "--tasks", "gridworld", "spiral", "--json", stored, "--contestants", *names)
    assert (
        "| task | GPTD | LSTD | LSTD(λ) | LSTD radial | fitted | Monte Carlo | constant | best rival | ratio" in printed
    )
    assert "| best rival of each task |" in printed and "Coverage of 50 / 80 / 95 %" in printed
    assert ran("--from-json", "--json", stored) == printed
    merged = ran("--seeds", "5", "--tasks", "spiral", "--contestants", "GPTD", "--merge", "--json", stored)
    assert "| gridworld |" in merged and "| spiral |" in merged
    assert json.loads(Path(stored).read_text())["command"].count("selection.py") == 2


def test_run_all_in_processes_gives_the_same_scores(benchmarks, monkeypatch):
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # it sets them, and they are to be as before
    scores, selection = benchmarks("scores"), benchmarks("selection")
    jobs = [("gridworld", seed, ["constant"]) for seed in (0, 1)]
    one, two = ([s.rmse for new in scores.run_all(jobs, selection.run, n) for s in new] for n in (1, 2))
    assert sorted(one) == sorted(two)


@pytest.fixture
def chain() -> Trajectories:
    """A deterministic corridor, 0 … 5, the end of which is terminal; a step costs 1."""
    x = np.arange(6.0)[:, None]
    episodes = [dict(observations=x[i:], rewards=-np.ones(5 - i), terminated=True) for i in (0, 1, 2, 0, 3, 1, 0, 2)]
    return Trajectories.from_episodes(episodes * 3, gamma=0.9)


@pytest.mark.parametrize("lambdas", [(0.0,), (0.9,), (0.0, 0.5, 1.0)])
def test_lstd_solves_a_corridor(benchmarks, chain, lambdas):
    least_squares = benchmarks("least_squares")
    rows = least_squares.Rows.of(chain, lambda x: np.eye(6)[x[:, 0].astype(int)])
    assert_array_equal(rows.discounts == 0, chain.states[chain.has_transition][:, 0] == 4)
    w = least_squares.lstd(rows, lambdas, ridges=(1e-9, 1.0))
    assert_allclose(w[:5], -(1 - 0.9 ** np.arange(5, 0, -1)) / 0.1, atol=1e-6)


def test_fitted_evaluation_solves_a_corridor(benchmarks, chain):
    least_squares = benchmarks("least_squares")
    rows = least_squares.Rows.of(chain, lambda x: np.eye(6)[x[:, 0].astype(int)])
    w = least_squares.fitted_evaluation(rows)
    assert_allclose(w[:5], -(1 - 0.9 ** np.arange(5, 0, -1)) / 0.1, atol=1e-3)


def test_fitted_evaluation_starts_again_with_a_larger_ridge_where_it_diverges(benchmarks):
    least_squares = benchmarks("least_squares")
    n = 100  # Tsitsiklis and Van Roy: ψ' = 2ψ, so that one regression multiplies w by 2γ/(1 + ridge)
    rows = least_squares.Rows(np.ones((n, 1)), np.full((n, 1), 2.0), np.full(n, 0.9), np.ones(n), np.arange(n))
    assert least_squares.Regressions.of(rows).repeated(0) is None
    ridge = least_squares.RIDGES[-1]  # 10: at 1 it is 0.9, and values may exceed what rewards allow
    (w,) = least_squares.fitted_evaluation(rows)
    assert min(abs(w - 1 / (1 + ridge - 1.8)), abs(w - 1 / (1 + 1 - 1.8))) < 0.02 * w


def test_traces_are_those_of_the_loop(benchmarks, chain):
    rows = benchmarks("least_squares").Rows.of(chain, lambda x: np.column_stack([x, x**2]))
    expected = np.zeros_like(rows.now)
    for t in range(len(expected)):
        expected[t] = rows.now[t]
        if t and rows.segment[t] == rows.segment[t - 1]:
            expected[t] += 0.7 * rows.discounts[t - 1] * expected[t - 1]
    assert_allclose(rows.traces(0.7), expected)


def test_bellman_error_leaves_out_equal_pairs(benchmarks, chain):
    least_squares = benchmarks("least_squares")
    rows = least_squares.Rows.of(chain, lambda x: np.column_stack([x, x**2]))
    left, w = least_squares.LeftOut.of(rows), np.array([0.3, -0.1])
    delta = rows.rewards + rows.discounts * (rows.following @ w) - rows.now @ w
    G = rows.now.T @ rows.now
    metric = rows.now @ np.linalg.solve(G + 1e-3 * np.trace(G) / 2 * np.eye(2), rows.now.T)
    np.fill_diagonal(metric, 0.0)
    assert_allclose(left.bellman_error(w), delta @ metric @ delta)


def test_folds_keep_segments_together(benchmarks, chain):
    Rows = benchmarks("least_squares").Rows
    folds = Rows.of(chain, lambda x: x).folds()
    assert sum(len(fold.now) for fold in folds) == chain.n_transitions
    segments = [set(fold.segment) for fold in folds]
    assert sum(map(len, segments)) == len(set.union(*segments)) == chain.n_segments
    single = Trajectories.from_episodes([dict(observations=np.arange(101.0)[:, None], rewards=np.ones(100))], gamma=0.9)
    assert [len(fold.now) for fold in Rows.of(single, lambda x: x).folds()] == [20] * 5  # blocks of a single segment


def test_completed_returns_of_a_constant_reward_are_the_value(benchmarks):
    data = Trajectories.from_episodes([dict(observations=np.zeros((9, 1)), rewards=np.full(8, 2.0))], gamma=0.9)
    returns, level = benchmarks("value_estimators").completed_returns(data)
    assert_allclose(level, 20.0)
    assert_allclose(returns, 20.0)


def test_measure_counts_what_intervals_hold(benchmarks):
    scores = benchmarks("scores")
    truth = np.array([0.0, 1.0, 2.0, 3.0])
    wide, none = (truth - 1, truth + 1), (truth + 1, truth + 2)
    half = (truth - 1, truth + np.array([1, 1, -0.5, -0.5]))
    found = scores.Prediction(truth + 0.5, [none, half, wide])
    score = scores.measure("task", "someone", 7, truth, lambda: found)
    assert score.rmse == 0.5 and score.coverage == (0.0, 0.5, 1.0) and score.seed == 7


def test_tables_compare_with_the_best_rival(benchmarks, tmp_path: Path) -> None:
    scores = benchmarks("scores")
    errors = {"GPTD": (1.0, 8.0), "GPTD other": (0.1, 0.1), "LSTD": (2.0, 4.0), "constant": (4.0, 16.0)}
    found = [
        scores.Score(task, name, seed, error[i], 1.0, (0.5, 0.8, 0.9 + 0.1 * seed) if name == "GPTD" else (), 1.0)
        for name, error in errors.items()
        for i, task in enumerate(("easy", "hard"))
        for seed in (0, 1)
    ]
    field = scores.Field(found, "GPTD", "GPTD", {"easy": "stochastic", "hard": "stochastic"})
    printed = field.tables()
    assert "| easy | 1 | 0.1 | 2 | 4 | LSTD | 0.50 |" in printed
    assert "| hard | 8 | 0.1 | 4 | 16 | LSTD | **2.00** |" in printed
    assert "| constant | 0.354 | 0.354 | 2 of 2 | 0.50 (hard) |" in printed  # √(1/4 · 1/2)
    assert "| easy | 50 / 80 / 95 |" in printed
    scores.save(tmp_path / "scores.json", found, "by hand")
    assert sorted(map(repr, scores.load(tmp_path / "scores.json"))) == sorted(map(repr, found))


def test_gptd_contestants_know_bootstrap_once_it_exists(benchmarks):
    import inspect

    from gptd_rl import GPTD

    field = benchmarks("value_estimators").FIELD
    assert next(iter(field)) == "GPTD"  # before those that take its kernel
    assert ("GPTD returns" in field) == ("bootstrap" in inspect.signature(GPTD).parameters)
