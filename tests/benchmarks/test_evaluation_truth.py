"""The truths of the benchmark of evaluations agree with each other, and its contestants learn known values."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("stable_baselines3")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def lean(observations: Any) -> Any:
    return (observations[:, 2] > 0).astype(np.int64)  # falls after some forty steps


# ------------------------------------------------------------------------------------------ truths


def test_copies_agree_with_the_batched_system(load):
    truth, control = load("evaluation_truth"), load("control_systems")
    visits = truth.chosen_visits("CartPole-v1", lean, 6)
    rollouts = truth.Rollouts("CartPole-v1", lean, 0.9, visits)
    observations = np.array([visit.observation for visit in visits], dtype=np.float64)
    expected, _ = control.rolled_out_values(control.SYSTEMS["CartPole-v1"], lean, observations, 0.9, 1)
    first, second = rollouts.returns(0), rollouts.returns(1)
    assert_allclose(first, expected, rtol=1e-5)
    assert_array_equal(second, first)  # the copies do not change what they were made from
    assert expected.std() > 0.1


def test_setting_a_mujoco_state_agrees_with_playing_the_episode_again(load):
    pytest.importorskip("mujoco")
    truth = load("evaluation_truth")

    def act(observations: Any) -> Any:
        return np.clip(-observations[:, 1:2] - 0.1 * observations[:, 3:], -3.0, 3.0).astype(np.float32)

    visits = list(truth.episodes("InvertedPendulum-v5", act, range(2)))[::3][:5]
    rollouts = truth.Rollouts("InvertedPendulum-v5", act, 0.9, visits)
    assert rollouts.start == rollouts.set_state
    found = rollouts.returns(0)
    rollouts.start = rollouts.replay
    assert_allclose(found, rollouts.returns(0), rtol=1e-3)


def test_hidden_card_of_the_dealer_is_drawn_again(load):
    truth = load("evaluation_truth")

    def stand(observations: Any) -> Any:
        return np.zeros(len(observations), dtype=np.int64)

    (visit,) = (v for v in truth.episodes("gptd_benchmarks/Blackjack-v0", stand, range(1)))
    rollouts = truth.Rollouts("gptd_benchmarks/Blackjack-v0", stand, 0.99, [visit])
    cards = []
    for seed in range(40):
        rollouts.start(0, np.random.default_rng(seed))
        cards.append(rollouts.envs[0].unwrapped.dealer[1])
    assert len(set(cards)) > 5 and min(cards) >= 1 and max(cards) == 10


def test_values_from_a_table(load):
    # Two states; action 0 stays, action 1 goes to the end, which pays 1.
    table = {
        0: {0: [(1.0, 0, 0.0, False)], 1: [(0.5, 1, 1.0, True), (0.5, 0, 0.0, False)]},
        1: {0: [(1.0, 1, 0.0, True)], 1: [(1.0, 1, 0.0, True)]},
    }
    policy = np.array([[0.4, 0.6], [1.0, 0.0]])
    # V₀ = 0.3 · 1 + 0.7 · 0.9 V₀
    assert_allclose(load("evaluation_truth").solved(table, policy, 0.9), [0.3 / (1 - 0.63), 0.0])


def test_truth_of_a_table_is_what_rollouts_average_to(load):
    truth = load("evaluation_truth")
    rng = np.random.default_rng(0)

    def act(observations: Any) -> Any:
        return rng.integers(1, 3, len(observations))

    env: Any = gym.make("FrozenLake-v1").unwrapped
    exact = truth.solved(env.P, np.tile([0.0, 0.5, 0.5, 0.0], (16, 1)), 0.9)[14]
    visit = next(
        v
        for seed in range(200)
        for v in truth.episodes("FrozenLake-v1", act, range(seed, seed + 1))
        if v.observation == 14
    )
    rollouts = truth.Rollouts("FrozenLake-v1", act, 0.9, [visit] * 20)
    returns = np.concatenate([rollouts.returns(seed) for seed in range(20)])
    assert abs(returns.mean() - exact) < 4 * returns.std() / np.sqrt(len(returns))


# ------------------------------------------------------------------------------------------ contestants


def constant_rewards(n: int, terminated: bool) -> dict[str, Any]:
    return dict(observations=np.arange(n + 1.0)[:, None], rewards=np.ones(n), terminated=terminated)


def test_returns_and_what_they_lack(load):
    data = Trajectories.from_episodes([constant_rewards(3, True), constant_rewards(2, False)], gamma=0.5)
    returns, rest = load("evaluation_contestants").returns_of(data)
    assert_allclose(returns, [1.75, 1.5, 1.0, 0.0, 1.5, 1.0, 0.0])
    assert_allclose(rest, [0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 1.0])


@pytest.mark.parametrize("name", ["nearest_neighbours", "sklearn_gpr", "average_return", "neural_td"])
def test_contestants_fill_in_truncated_returns(load, name, monkeypatch):
    contestants = load("evaluation_contestants")
    monkeypatch.setattr(contestants, "N_STEPS", 600)
    data = Trajectories.from_episodes([constant_rewards(20, False) for _ in range(6)], gamma=0.8)
    found = getattr(contestants, name)(data, np.array([[1.0], [8.0]]), None)
    assert_allclose(found, 5.0, rtol=0.05)


def test_number_of_neighbours_follows_the_noise(load):
    best_k = load("evaluation_contestants").best_k
    rng = np.random.default_rng(0)
    x, episode = rng.random((600, 1)), np.repeat(np.arange(30), 20)
    exact = np.sin(20 * x[:, 0])
    assert best_k(x, exact, episode) <= 2
    assert best_k(x, rng.normal(size=600), episode) >= 64


# ------------------------------------------------------------------------------------------ figures


def test_rmse_leaves_out_the_noise_of_the_truth(load):
    evaluate, rng = load("evaluate"), np.random.default_rng(0)
    value, noise = rng.normal(size=4000), np.full(4000, 0.5)
    truth = load("evaluation_truth").Truth(np.zeros((4000, 1)), value + noise * rng.normal(size=4000), noise, 0.9)
    assert evaluate.rmse(value + 0.3, truth) == pytest.approx(0.3, abs=0.05)
    assert evaluate.rmse(truth.values, truth) == 0.0


def test_ratio_is_that_of_shared_data_sets(load):
    tables = load("evaluation_tables")
    ours = [dict(data_set=i, rmse=rmse) for i, rmse in enumerate((1.0, 3.0, 100.0))]
    others: list[Any] = [dict(data_set=i, rmse={"critic": 4.0, "neural TD": rmse}) for i, rmse in enumerate((1.0, 9.0))]
    assert tables.best_peer(ours, others) == ("critic", 4.0, 0.5)
    del others[1]["rmse"]["neural TD"]  # the first data set only: 1.0, as ours
    assert tables.best_peer(ours, others) == ("neural TD", 1.0, 1.0)


def test_a_small_run_prints_both_tables() -> None:
    command = [sys.executable, "benchmarks/evaluate.py", "--small", "--agents", "ppo-FrozenLake-v1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| ppo-FrozenLake-v1 | sampled |") == 2
    assert "RMSE is at most 1.05 ×" in done.stdout


def test_stored_rows_are_found_and_replaced(load, tmp_path):
    store = load("evaluate").Store(tmp_path / "rows.json")
    key = dict(agent="a", mode="greedy", data_set=0, agent_hash="x")
    store.add(key, key | dict(rmse=1.0))
    assert store.find(key) == key | dict(rmse=1.0) and store.find(key | dict(agent_hash="y")) is None
    store.add(key | dict(agent_hash="y"), key | dict(agent_hash="y", rmse=2.0))
    read = load("evaluate").Store(tmp_path / "rows.json")
    assert [row["rmse"] for row in read.rows] == [2.0]


def test_mean_return_is_that_of_completed_episodes(load):
    episodes = [constant_rewards(3, True), constant_rewards(1, True), constant_rewards(2, False)]
    mean, half = load("evaluation_starts").mean_return(Trajectories.from_episodes(episodes, gamma=0.5))
    assert mean == pytest.approx((1.75 + 1.0) / 2)  # the third was cut off before the longest
    assert half == pytest.approx(12.706 * 0.375, rel=1e-3)  # Student, one degree of freedom


def test_table_of_starts_counts_intervals_that_hold(load):
    row = dict(agent="ppo-FrozenLake-v1", mode="sampled", truth=1.0, mean=1.2, lower=0.8, upper=1.6)
    returns = {"mean return": 0.0, "return half width": 0.8}
    table = load("evaluation_tables").starts_table([row | returns, row | returns | dict(lower=1.1)])
    cells = [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
    assert cells[2:4] == ["2", "1.00"] and cells[4].startswith("50 (") and cells[5] == "0"
    assert cells[6:] == ["0.200", "1.00", "0.325", "0.41"]
