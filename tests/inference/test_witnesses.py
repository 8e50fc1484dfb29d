"""Steps, their features and their witnesses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.inference.witnesses import Instruments, Steps
from tests.mdps import Gridworld, Walk


def test_steps_know_ends_and_pasts():
    episodes = [
        dict(observations=[[0.0], [1.0], [3.0]], rewards=[5.0, 6.0], terminated=True),
        dict(observations=[[7.0], [8.0], [8.5]], rewards=[1.0, 2.0], discounts=[0.5, 0.7]),
    ]
    data = Trajectories.from_episodes(episodes, gamma=0.9) + Trajectories.from_values([[4.0]], [2.0])
    steps = Steps.of(data)
    assert_array_equal(steps.states[:, 0], [0, 1, 7, 8])
    assert_array_equal(steps.next_states[:, 0], [1, 3, 8, 8.5])
    assert_array_equal(steps.rewards, [5, 6, 1, 2])
    assert_array_equal(steps.discounts, [0.9, 0, 0.5, 0.7])  # the terminal state is worth nothing
    assert_array_equal(steps.changes[:, 0], [0, 1, 0, 1])
    assert_array_equal(steps.has_past, [False, True, False, True])
    assert_array_equal(steps.number, [0, 1, 0, 1])
    assert steps.stretch[0] == steps.stretch[1] != steps.stretch[2] == steps.stretch[3]


def test_steps_cut_long_segments():
    data = Trajectories.from_episodes([dict(observations=np.arange(2502.0), rewards=np.ones(2501))], gamma=0.9)
    steps = Steps.of(data)
    assert len(steps) == 2501
    assert_array_equal(np.flatnonzero(~steps.has_past), [0, 1000, 2000])
    assert len(np.unique(steps.stretch)) == 3


@pytest.mark.parametrize("mdp", [Gridworld(), Walk()])
def test_equal_states_have_equal_places_in_every_block(mdp):
    data = mdp.sample(500, np.random.default_rng(0))
    steps = Steps.of(data)
    instruments = Instruments.of(steps)
    alone = np.vstack([instruments.along_axes(steps.states[i : i + 1]) for i in range(len(steps))])
    assert_array_equal(alone, instruments.along_axes(steps.states))


def test_instruments_give_the_difference_of_frames_an_axis_of_its_own():
    place = np.random.default_rng(0).normal(size=500).cumsum()
    frames = np.column_stack([place[1:], place[:-1]])
    data = Trajectories.from_episodes([dict(observations=frames, rewards=np.ones(498))], gamma=0.9)
    steps = Steps.of(data)
    z = Instruments.of(steps).along_axes(steps.states)
    assert_allclose(z.T @ z / len(z), np.eye(2), atol=1e-8)
    difference = np.diff(steps.states, axis=1)[:, 0]
    assert np.abs(np.corrcoef(difference, z.T)[0, 1:]).max() > 0.99


def test_instruments_of_constant_inputs_are_finite():
    states = np.column_stack([np.full(41, 0.1), np.random.default_rng(0).normal(size=41)])
    steps = Steps.of(Trajectories.from_episodes([dict(observations=states, rewards=np.ones(40))], gamma=0.9))
    instruments = Instruments.of(steps)
    assert_allclose(instruments.along_axes(steps.states).std(axis=0).max(), 1.0)
    assert np.isfinite(instruments.features(steps.states + 1.0)).all()
    assert_array_equal(instruments.witnesses(steps)[:, 0], 0.0)
