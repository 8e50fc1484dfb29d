"""The benchmark of policy iteration: levels, learning curves, tables, and stored results of other agents."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from gptd_rl.agents import TowardsMiddle
from gptd_rl.envs import LatentGridworld

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "policy_iteration"
DESIGNED = (
    "LatentGridworld-1",
    "LatentGridworld-10",
    "PendulumSwingUp",
    "CartPole-v1",
    "MountainCar-v0",
    "Acrobot-v1",
    "Pendulum-v1",
)
UNSEEN = ("LatentGridworld-slip", "MountainCarContinuous-v0", "CartPoleSwingUp", "FrozenLake8x8-v1")


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("control_tasks")


@pytest.fixture
def tables(control: Any) -> Any:
    return importlib.import_module("control_tables")


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


def test_attained_compares_the_slippery_walk_with_the_optimum_under_the_same_slips(control: Any) -> None:
    task = control.TASKS["LatentGridworld-slip"]
    best = TowardsMiddle(LatentGridworld(slip=0.2))
    episodes = control.evaluate(best, task, seed=7, n_episodes=100)
    assert_array_equal(episodes.returns, control.optimal_slippery_walk(7, 100).returns)
    assert task.attained(episodes)  # always, however unlucky
    idle = control.evaluate(
        Rule(lambda x: x[:, 0] < 3), task, seed=7, n_episodes=100
    )  # left of the middle it turns back
    assert not task.attained(idle)
    starts = [[x, 1.0] for x in range(1, 12) if x != 6]
    assert_allclose(1.1 * best.value(starts, gamma=1.0).mean(), task.level, atol=0.01)
    # 100 returns tell their mean to 4 standard errors
    expected = best.value(episodes.starts, gamma=1.0).mean()
    assert abs(episodes.returns.mean() - expected) < 4 * episodes.returns.std() / 10


def test_level_of_frozen_lake_is_nine_tenths_of_the_optimum_within_the_time_limit(control: Any) -> None:
    env: Any = control.TASKS["FrozenLake8x8-v1"].make()
    table = env.unwrapped.P
    T, R = np.zeros((64, 4, 64)), np.zeros((64, 4))
    for s, a in np.ndindex(64, 4):
        for p, reached, reward, terminated in table[s][a]:
            R[s, a] += p * reward
            T[s, a, reached] += 0 if terminated else p
    V = np.zeros(64)
    for _ in range(3000):
        V = (R + 0.99 * T @ V).max(axis=1)
    policy = (R + 0.99 * T @ V).round(10).argmax(axis=1)
    success, states = np.zeros(64), np.arange(64)
    for _ in range(env.spec.max_episode_steps):
        success = R[states, policy] + T[states, policy] @ success
    assert env.spec.max_episode_steps == 200
    assert_allclose(0.9 * success[0], control.TASKS["FrozenLake8x8-v1"].level, atol=0.005)

    episodes = control.evaluate(Rule(lambda x: policy[x]), control.TASKS["FrozenLake8x8-v1"], seed=1, n_episodes=100)
    assert abs(episodes.returns.mean() - success[0]) < 4 * np.sqrt(0.25 / 100)


def test_level_of_the_cart_pole_is_four_fifths_of_what_a_planner_attains(control: Any) -> None:
    reference = importlib.import_module("cartpole_reference").reference_returns(2, seed=1)
    assert_allclose(0.8 * reference, control.TASKS["CartPoleSwingUp"].level, rtol=0.05)


def test_evaluate_of_a_policy_that_balances_the_pole(control: Any) -> None:
    task = control.TASKS["CartPole-v1"]
    policy = Rule(lambda x: x @ [0.05, 0.1, 1.0, 0.5] > 0)
    episodes = control.evaluate(policy, task, seed=3)
    assert_array_equal(episodes.returns, 500.0)  # until truncation: an episode that follows adds nothing
    assert policy.n_calls == 500  # one for all twenty
    assert task.attained(episodes)
    assert not task.attained(control.evaluate(Rule(lambda x: np.zeros(len(x))), task, seed=3))


@pytest.mark.parametrize(("name", "largest"), [("Pendulum-v1", 2), ("MountainCarContinuous-v0", 1)])
def test_few_forces_are_evenly_spaced(control: Any, name: str, largest: float) -> None:
    env = control.TASKS[name].make()
    assert env.action_space.n == 5
    assert_array_equal([env.action(i)[0] for i in range(5)], largest * np.linspace(-1, 1, 5))


def test_evaluation_seed_is_never_repeated(control: Any) -> None:
    seeds = [control.evaluation_seed(s, k) + i for s in range(10) for k in range(400) for i in range(20)]
    served = [control.evaluation_seed(s, 9000 + k) + i for s in range(10) for k in range(4) for i in range(100)]
    assert len({*seeds, *served}) == len(seeds) + len(served)
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
    served = {1000: control.Served(475.5, 10.0, True, 2.0, 1.5)}
    run = control.Run(3, 5000, [250, 500], [-1.0, 475.5], [False, True], 1.5, 1.2, served)
    assert control.Run.from_json(json.loads(json.dumps(run.to_json()))) == run
    assert (run.first, run.held, run.final) == (500, None, 475.5)
    dumps = importlib.import_module("control_runs").dumps
    assert control.Run.from_json(json.loads(dumps(run.to_json()))) == run


def test_results_of_peers_are_stored(control: Any) -> None:
    assert tuple(control.TASKS) == DESIGNED + UNSEEN
    assert [task.name for task in control.TASKS.values() if task.designed] == list(DESIGNED)
    for algorithm in ("dqn", "ppo", "qrdqn"):
        cached = [name for name in control.TASKS if (RESULTS / f"{algorithm}-{name}.json").exists()]
        assert set(cached) >= set(DESIGNED) or algorithm != "dqn"  # others were not run on all of them
        for name in cached:
            content = json.loads((RESULTS / f"{algorithm}-{name}.json").read_text())
            assert {"command", "versions", "settings", "candidates"} <= content.keys()
            runs = [control.Run.from_json(entry) for entry in content["runs"]]
            assert [run.seed for run in runs] == [0, 1, 2][: len(runs)]
            for run, entry in zip(runs, content["runs"], strict=True):
                assert run.held == entry["held"]
                assert len(run.steps) == len(run.returns) == len(run.attained)
                # it stopped once it held the level, or used its budget up
                assert run.held == run.steps[-3] if run.held else run.budget - run.steps[-1] < content["eval_every"]


def test_every_peer_has_settings_for_every_task(control: Any) -> None:
    peers = importlib.import_module("control_peers")
    assert set(peers.CANDIDATES) == {(algorithm, name) for algorithm in peers.ALGORITHMS for name in control.TASKS}
    for (algorithm, _), candidates in peers.CANDIDATES.items():
        assert all(settings.source.startswith(f"{algorithm}.yml ") for settings in candidates)
        quantiles = ["n_quantiles" in s.hyperparameters.get("policy_kwargs", {}) for s in candidates]
        assert set(quantiles) == {algorithm == "qrdqn"}


def test_bootstrap_of_the_mean_is_as_wide_as_theory_says(tables: Any) -> None:
    rng = np.random.default_rng(0)
    scores = [rng.normal(10 * task, 1, size=50) for task in range(2)]
    low, high = tables.bootstrap(scores, lambda x: float(np.mean(x)))
    error = np.sqrt(np.mean([task.var() / 100 for task in scores]))  # tasks are drawn within themselves
    assert_allclose(high - low, 2 * norm.ppf(0.975) * error, rtol=0.05)
    assert low < np.mean(scores) < high


def test_interquartile_mean_leaves_out_the_outer_quarters(tables: Any) -> None:
    assert tables.interquartile_mean(np.array([-100.0, 1, 2, 3, 4, 5, 6, 1000])) == 3.5


def stored(control: Any, seed: int, returns: float, attained: bool) -> dict[str, Any]:
    stops = (1000, 2000, 5000)
    served = {steps: control.Served(returns, 1.0, attained, 2.0, 1.5) for steps in stops}
    run = control.Run(seed, 5000, [250, 500, 750], [returns] * 3, [attained] * 3, 2.0, 1.5, served)
    entry: dict[str, Any] = run.to_json()
    return entry


def run_benchmark(script: str, options: str) -> str:
    command = [sys.executable, f"benchmarks/{script}.py", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_main_writes_tables_and_figure_of_stored_results(control: Any, tmp_path: Path) -> None:
    runs = [stored(control, 100, 500.0, True), stored(control, 101, 9.0, False)]
    content = {"CartPole-v1": dict(command="by hand", versions={}, runs=runs)}
    (tmp_path / "ours.json").write_text(json.dumps(content))
    printed = run_benchmark("policy_iteration", f"--from-json --figure --tasks CartPole-v1 --output {tmp_path}")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()]
    assert "Seeds of ours: 100, 101." in printed
    row = ["CartPole-v1", "475", "1,000", "1 of 2", "254.5 (9 to 500)", "254.5 (9 to 500)", "9"]
    assert row in [line[:7] for line in lines]
    assert ["CartPole-v1", "475", "≥ 2,625", "≥ 2,625", "1 of 2", "254.5 (9 to 500)", "2 s", "2 s"] in lines
    assert ["designed on (1)", "5,000", "0.50 (0.00 to 1.00)"] in lines
    assert "tasks of the design: **no**, CartPole-v1 50%" in printed  # one seed of two is not nine of ten
    assert "at most 180 processor seconds: yes, the longest 2 (CartPole-v1)" in printed
    assert (tmp_path / "learning_curves.png").stat().st_size > 10_000


def test_main_trains_without_early_stopping_and_resumes(control: Any, tmp_path: Path) -> None:
    options = f"--tasks LatentGridworld-10 LatentGridworld-slip --first-seed 5 --budget-scale 0.05 --output {tmp_path}"
    run_benchmark("policy_iteration", f"--seeds 1 --eval-every 100 {options}")
    content = json.loads((tmp_path / "ours.json").read_text())
    (run,) = [control.Run.from_json(entry) for entry in content["LatentGridworld-10"]["runs"]]
    assert (run.seed, run.budget) == (5, 250)
    assert run.steps == [100, 200]
    assert list(run.served) == [50, 75, 100, 250]
    times = [policy.processor_seconds for policy in run.served.values()]
    assert times == sorted(times) and times[0] > 0
    printed = run_benchmark("policy_iteration", f"--seeds 2 --resume {options}")
    assert "seed 6" in printed and "seed 5" not in printed
    after = json.loads((tmp_path / "ours.json").read_text())
    assert after["LatentGridworld-10"]["runs"][0] == content["LatentGridworld-10"]["runs"][0]


def test_ablation_prints_the_table_of_what_it_trained(control: Any, tmp_path: Path) -> None:
    options = f"--tasks CartPole-v1 --variants default --output {tmp_path}"
    printed = run_benchmark("ablation", f"--seeds 2 --budget-scale 0.05 {options}")
    assert "default, CartPole-v1 seed 201" in printed
    again = run_benchmark("ablation", f"--from-json {options}")
    assert again.strip() and printed.endswith(again)
    assert again.count("| CartPole-v1 | default |") == 1


def test_model_or_not_prints_differences_on_the_same_seeds(control: Any, tmp_path: Path) -> None:
    options = f"--tasks portals --output {tmp_path}"
    printed = run_benchmark("model_or_not", f"--seeds 1 --budget-scale 0.05 {options}")
    assert "portals, gp seed 300" in printed and "portals, none seed 300" in printed
    again = run_benchmark("model_or_not", f"--from-json {options}")
    assert again.strip() and printed.endswith(again)
    cells = [cell.strip() for cell in again.splitlines()[-1].split("|")[1:-1]]
    assert cells[:2] == ["portals", "1"]
    assert float(cells[4]) == float(cells[2]) - float(cells[3])
