"""The benchmark of policy iteration: levels, learning curves, and stored results of DQN and PPO."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl.agents import TowardsMiddle
from gptd_rl.envs import LatentGridworld

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "policy_iteration"
NAMES = (
    "LatentGridworld-1",
    "LatentGridworld-10",
    "PendulumSwingUp",
    "CartPole-v1",
    "MountainCar-v0",
    "Acrobot-v1",
    "Pendulum-v1",
)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("control_tasks")


class Rule:
    """Policy that a function of the observations [n, D] gives."""

    def __init__(self, rule: Any) -> None:
        self.rule, self.n_calls = rule, 0

    def predict(self, observation: Any, *, deterministic: bool = True) -> tuple[Any, Any]:
        self.n_calls += 1
        return np.asarray(self.rule(observation), dtype=np.int64), None


@pytest.mark.parametrize("n_irrelevant", [1, 10])
def test_attained_only_by_the_optimal_policy_of_the_gridworld(control: Any, n_irrelevant: int) -> None:
    task = control.TASKS[f"LatentGridworld-{n_irrelevant}"]
    best = TowardsMiddle(LatentGridworld(n_irrelevant=n_irrelevant))
    episodes = control.evaluate(best, task, seed=7)
    assert_array_equal(episodes.returns, -np.abs(episodes.starts[:, 0] - 6))  # a step costs 1
    assert task.attained(episodes)
    assert len(episodes.returns) == 20

    right = control.evaluate(Rule(lambda x: np.ones(len(x))), task, seed=7)  # from the right half it never arrives
    assert_array_equal(right.starts, episodes.starts)
    assert_array_equal(right.returns, np.where(episodes.starts[:, 0] < 6, episodes.returns, -200))
    assert not task.attained(right)

    # one mistake in one column costs two steps, in few of the episodes
    almost = control.evaluate(Rule(lambda x: (x[:, 0] < 6) & ((x[:, 0] != 1) | (x[:, 1] < 11))), task, seed=8)
    optimum = -np.abs(almost.starts[:, 0] - 6)
    assert task.attained(almost) == bool((almost.returns == optimum).all())


def test_attained_compares_the_pendulum_with_the_optimum_from_the_same_starts(control: Any) -> None:
    task = control.TASKS["PendulumSwingUp"]
    best = control.optimal_swing_up(11, 20)
    assert task.attained(best)  # 10 % are left
    as_good_as_needed = control.Episodes(11, best.starts, 1.1 * best.returns)
    assert task.attained(as_good_as_needed)
    assert not task.attained(control.Episodes(11, best.starts, 1.11 * best.returns))
    assert not task.attained(control.evaluate(Rule(lambda x: np.full(len(x), 2)), task, seed=11))  # no torque
    with pytest.raises(AssertionError, match="same states"):
        task.attained(control.Episodes(12, best.starts, best.returns))
    # the level that is printed: the mean over starts; 400 of them tell it to 8.2 / √400 · 1.1 · 3
    assert abs(1.1 * control.optimal_swing_up(13, 400).returns.mean() - task.level) < 1.4


def test_evaluate_of_a_policy_that_balances_the_pole(control: Any) -> None:
    task = control.TASKS["CartPole-v1"]
    policy = Rule(lambda x: x @ [0.05, 0.1, 1.0, 0.5] > 0)
    episodes = control.evaluate(policy, task, seed=3)
    assert_array_equal(episodes.returns, 500.0)  # until truncation: an episode that follows adds nothing
    assert policy.n_calls == 500  # one for all twenty
    assert task.attained(episodes)
    assert not task.attained(control.evaluate(Rule(lambda x: np.zeros(len(x))), task, seed=3))


def test_few_torques_are_evenly_spaced(control: Any) -> None:
    env = control.TASKS["Pendulum-v1"].make()
    assert env.action_space.n == 5
    assert_array_equal([env.action(i)[0] for i in range(5)], [-2, -1, 0, 1, 2])


def test_evaluation_seed_is_never_repeated(control: Any) -> None:
    seeds = [control.evaluation_seed(s, k) + i for s in range(10) for k in range(400) for i in range(20)]
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 1_000_000


@pytest.mark.parametrize(
    ("attained", "expected"),
    [
        ("", None),
        ("11", None),
        ("111", 1),
        ("0111", 2),
        ("110110", None),
        ("11011101", 4),
        ("000111", 4),
        ("1110000", 1),  # what comes later is another matter
        ("011", None),
    ],
)
def test_held_asks_for_three_in_a_row(control: Any, attained: str, expected: int | None) -> None:
    steps = list(range(1, len(attained) + 1))
    assert control.held(steps, [flag == "1" for flag in attained]) == expected


def test_run_from_json_undoes_to_json(control: Any) -> None:
    run = control.Run(3, 5000, [250, 500], [-1.0, 475.5], [False, True], 1.5)
    assert control.Run.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_results_of_peers_are_stored(control: Any) -> None:
    assert tuple(control.TASKS) == NAMES
    for algorithm in ("dqn", "ppo"):
        cached = [name for name in NAMES if (RESULTS / f"{algorithm}-{name}.json").exists()]
        assert cached == list(NAMES) or algorithm == "ppo"  # PPO was not run on all of them
        for name in cached:
            content = json.loads((RESULTS / f"{algorithm}-{name}.json").read_text())
            assert {"command", "versions", "settings", "candidates"} <= content.keys()
            runs = [control.Run.from_json(entry) for entry in content["runs"]]
            assert [run.seed for run in runs] == [0, 1, 2][: len(runs)] and len(runs) >= 2
            for run, entry in zip(runs, content["runs"], strict=True):
                assert run.held == entry["held"]
                assert len(run.steps) == len(run.returns) == len(run.attained)
                # it stopped once it held the level, or used its budget up
                assert run.held == run.steps[-3] if run.held else run.budget - run.steps[-1] < content["eval_every"]


def test_main_writes_tables_and_figure_of_stored_results(control: Any, tmp_path: Path) -> None:
    run = control.Run(0, 5000, [250, 500, 750], [500.0] * 3, [True] * 3, 1.0)
    never = control.Run(1, 5000, [250, 500, 750], [9.0] * 3, [False] * 3, 1.0)
    entry = dict(command="by hand", versions={}, runs=[run.to_json(), never.to_json()])
    (tmp_path / "ours.json").write_text(json.dumps({"CartPole-v1": entry}))
    options = f"--seeds 0 --resume --tasks CartPole-v1 --output {tmp_path}".split()
    command = [sys.executable, "benchmarks/policy_iteration.py", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| CartPole-v1 | 475   | ≥ 2,625                   | 1/2    | 254.5 ± 3.1e+03" in done.stdout
    assert "**no**, not CartPole-v1" in done.stdout  # one seed of two is not nine of ten
    assert (tmp_path / "learning_curves.png").stat().st_size > 10_000
