"""The test of the Markov property: what it says, on what, and that shards, units and odd data do not matter."""

from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import gptd_rl
from gptd_rl import Trajectories, markov_test
from gptd_rl.estimators.markov import FEWEST_STEPS, SAMPLE_SIZE, MarkovTest, markov_test_of_shards
from gptd_rl.sharding.dataset import open_dataset
from gptd_rl.types import Array
from tests.mdps import Drifting, Garnet, Gridworld, Spiral, Walk


def hidden_speed(n_segments: int = 20, length: int = 50, seed: int = 0, n_frames: int = 1) -> Trajectories:
    """A point that keeps its speed for a while, paid by where it is; only its place is seen."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n_segments):
        speed = np.zeros(length + n_frames)
        for t in range(1, len(speed)):
            speed[t] = 0.8 * speed[t - 1] + rng.normal()
        angle = rng.uniform(0, 6) + np.cumsum(0.3 * speed)
        seen = np.column_stack([np.cos(angle), np.sin(angle)])
        frames = np.hstack([seen[n_frames - 1 - lag : len(seen) - lag] for lag in range(n_frames)])
        episodes.append(dict(observations=frames, rewards=seen[n_frames - 1 : -1, 1]))
    return Trajectories.from_episodes(episodes, gamma=0.9)


def numbers(test: MarkovTest) -> Array:
    values = [test.statistic, test.dof, test.pvalue, test.n_effective, test.n_steps]
    return np.r_[values, test.input_statistics, test.input_pvalues]


MARKOV = (Drifting(), Walk(), Garnet(), Gridworld(), Spiral())


@pytest.mark.parametrize("mdp", MARKOV, ids=lambda mdp: type(mdp).__name__)
def test_markov_test_has_its_size(mdp):
    pvalues = np.array([markov_test(mdp.sample(600, np.random.default_rng(seed))).pvalue for seed in range(12)])
    assert np.sum(pvalues < 0.05) <= 2  # more in one of 50 such sets, were p uniform; seeds are fixed
    assert np.sum(pvalues < 0.01) <= 1


def test_markov_test_has_power():
    tests = [markov_test(hidden_speed(seed=seed)) for seed in range(8)]
    assert max(test.pvalue for test in tests) < 0.01
    assert all(test.input in (0, 1) for test in tests)


def test_markov_test_accepts_stacked_frames():
    pvalues = [markov_test(hidden_speed(seed=seed, n_frames=2)).pvalue for seed in range(8)]
    assert np.sum(np.array(pvalues) < 0.05) <= 1


def test_markov_test_names_the_input():
    data = hidden_speed()
    noise = np.random.default_rng(1).normal(size=(len(data), 1))
    mixed = Trajectories(np.hstack([noise, data.states]), data.rewards, data.discounts, data.lengths, data.terminated)
    test = markov_test(mixed)
    assert test.input in (1, 2)
    assert test.input_pvalues[0] > 0.01 > test.input_pvalues[test.input]
    assert test.input_statistics.shape == test.input_pvalues.shape == (3,)


# -------------------------------------------------------------------------------------- shards


@pytest.mark.parametrize("n_segments", [30, 110], ids=["the sample is all", "more than the sample"])
def test_markov_test_does_not_depend_on_sharding(n_segments, tmp_path):
    data = hidden_speed(n_segments)
    assert (len(data) > SAMPLE_SIZE) == (n_segments == 110)
    expected = numbers(markov_test(data))
    for sizes in ([1, 7], [13]):
        cuts = [0, *sizes, data.n_segments]
        shards = [data[a:b] for a, b in pairwise(cuts)]
        assert_allclose(numbers(markov_test(shards)), expected, rtol=1e-8)
    paths = [shard.save(tmp_path / f"{i}.npz") for i, shard in enumerate(shards)]
    assert_allclose(numbers(markov_test(paths)), expected, rtol=1e-8)
    assert_allclose(numbers(markov_test(iter(shards))), expected, rtol=1e-8)
    for noise in ("stochastic", "deterministic"):
        dataset: Any = open_dataset(shards, noise)
        assert_allclose(numbers(markov_test_of_shards(dataset)), expected, rtol=1e-8)


def test_markov_test_does_not_depend_on_sharding_of_long_and_equal_segments():
    run = Drifting(time_limit=2500).sample(5000, np.random.default_rng(0))
    cells = Gridworld().sample(4500, np.random.default_rng(0))
    for data in (run, cells):
        half = data.n_segments // 2
        assert_allclose(numbers(markov_test([data[:half], data[half:]])), numbers(markov_test(data)), rtol=1e-8)


def test_markov_test_on_processes(tmp_path):
    data = hidden_speed(100)
    paths = [data[i::2].save(tmp_path / f"{i}.npz") for i in range(2)]
    with ProcessPoolExecutor(1) as pool:
        assert_allclose(numbers(markov_test(paths, executor=pool)), numbers(markov_test(paths)), rtol=1e-8)


# -------------------------------------------------------------------------------------- units


@pytest.mark.parametrize("data", [hidden_speed(), Drifting().sample(600, np.random.default_rng(0))])
def test_markov_test_does_not_depend_on_units(data):
    expected = numbers(markov_test(data))
    shift, scale = 3.0 * np.arange(1, data.n_dims + 1), 10.0 ** np.arange(-1, data.n_dims - 1)
    for states, rewards in ((shift + scale * data.states, data.rewards), (data.states, 1e4 * data.rewards)):
        other = Trajectories(states, rewards, data.discounts, data.lengths, data.terminated)
        assert_allclose(numbers(markov_test(other)), expected, rtol=1e-5, atol=1e-8)


def test_markov_test_does_not_look_at_actions():
    data = hidden_speed()
    acted = Trajectories(*data._fields().values())
    assert_allclose(numbers(markov_test(acted)), numbers(markov_test(data)))


# -------------------------------------------------------------------------------------- odd data


def chain(states: Any, rewards: Any, terminated: bool = False, gamma: float = 0.9) -> Trajectories:
    return Trajectories.from_episodes([dict(observations=states, rewards=rewards, terminated=terminated)], gamma=gamma)


RNG = np.random.default_rng(5)
NOISE = RNG.normal(size=(101, 2))
ODD = {
    "one transition": chain([[0.0], [1.0]], [1.0]),
    "few transitions": chain(NOISE[:10], np.ones(9)),
    "segments of one step": Trajectories.from_episodes(
        [dict(observations=NOISE[i : i + 2], rewards=[1.0], terminated=bool(i % 2)) for i in range(99)], gamma=0.9
    ),
    "constant inputs": chain(np.ones((101, 2)), RNG.normal(size=100)),
    "constant rewards": chain(NOISE, np.ones(100)),
    "no rewards": chain(NOISE, np.zeros(100)),
    "no discount": chain(NOISE, NOISE[:-1, 0] ** 2, gamma=0.0),
    "deterministic": Spiral().sample(200, np.random.default_rng(0)),
    "straight line": chain(np.arange(101.0), np.ones(100), terminated=True),
    "more inputs than steps": chain(RNG.normal(size=(41, 60)), RNG.normal(size=40)),
}


@pytest.mark.parametrize("name", ODD)
def test_markov_test_of_odd_data_has_an_answer(name):
    test = markov_test(ODD[name])
    assert np.isfinite(numbers(test)).all()
    assert test.pvalue > 0.05
    assert (test.input is None) == (test.dof == 0)
    assert str(test)


@pytest.mark.parametrize("name", ["no rewards", "deterministic", "straight line"])
def test_markov_test_where_nothing_is_left_to_explain(name):
    test = markov_test(ODD[name])
    assert (test.statistic, test.dof, test.pvalue, test.input) == (0.0, 0, 1.0, None)
    assert "nothing is left to explain" in str(test)


def test_markov_test_ignores_regression_targets():
    data = hidden_speed(10)
    targets = Trajectories.from_values(np.full((5, 2), 0.5), np.ones(5))
    assert_allclose(numbers(markov_test(data + targets)), numbers(markov_test(data)))


def test_markov_test_takes_gamma_of_one_where_segments_terminate():
    walk = Walk(gamma=1.0).sample(600, np.random.default_rng(0))
    assert markov_test(walk).pvalue > 0.05


@pytest.mark.parametrize("data", [np.ones((5, 2)), None, 3])
def test_markov_test_wants_trajectories(data):
    with pytest.raises(TypeError, match=r"^markov_test expects Trajectories, .*; got \w+: make Trajectories by"):
        markov_test(data)


def test_markov_test_wants_transitions():
    with pytest.raises(ValueError, match=r"^markov_test needs transitions; got regression targets only"):
        markov_test(Trajectories.from_values([[0.0], [1.0]], [1.0, 2.0]))


# -------------------------------------------------------------------------------------- sentences


def test_summary_says_what_to_try():
    test = markov_test(hidden_speed())
    text = test.summary(["cosine", "sine"])
    assert text.startswith("The observations do not tell all that matters for what comes next (p = ")
    assert f"the latest change of {['cosine', 'sine'][test.input or 0]} predicts" in text
    assert "Stack frames" in text and "velocity" in text and "recurrent" in text
    assert f"input {test.input}" in str(test)


def test_summary_does_not_claim_a_proof():
    text = str(markov_test(Drifting().sample(600, np.random.default_rng(0))))
    assert text.startswith("Nothing speaks against the observations telling all that matters for what comes next (p = ")
    assert "no proof" in text


def test_summary_says_when_data_are_too_few():
    text = str(markov_test(ODD["few transitions"]))
    assert (
        text.startswith("The data are too few") and f"8 steps have one before them, and it wants {FEWEST_STEPS}" in text
    )


def test_markov_test_is_public():
    assert gptd_rl.markov_test is markov_test


# -------------------------------------------------------------------------------------- errors of fit


def test_the_same_value_everywhere_is_nothing_to_explain():
    data = gptd_rl.collect(
        "CartPole-v1", lambda o: int(o[2] + 0.5 * o[3] > 0), n_transitions=1500, gamma=0.99, seed=1111
    )
    assert not data.terminated.any()  # every reward is 1
    assert markov_test(data).pvalue == 1.0


def test_errors_of_fit_in_a_deterministic_system_do_not_reject_and_hidden_velocities_do():
    pytest.importorskip("stable_baselines3")
    from gptd_rl.sb3 import load_agent

    archive = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "evaluate" / "a2c-CartPole-v1.zip"
    agent = load_agent(archive)
    sets = [
        gptd_rl.collect("CartPole-v1", agent, n_transitions=1500, gamma=0.99, seed=100 * s) for s in range(1000, 1004)
    ]
    assert min(markov_test(data).pvalue for data in sets) > 0.05
    assert max(markov_test(data.take_inputs([0, 2])).pvalue for data in sets) < 0.05
