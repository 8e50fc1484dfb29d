"""The record of what was sampled: reading, refusing, cutting, joining, and staying as it was made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from tests.helpers import MIXES, assert_same, naive_returns, row_places, sample, segments

NAN, INF = float("nan"), float("inf")
ARRAYS = ("states", "rewards", "discounts", "lengths", "terminated", "actions", "policy_actions")


def arrays(**changed):
    """Arguments of a valid record, two segments (terminated, truncated), some of them replaced."""
    valid = dict(
        states=[[0.0, 0.0], [1.0, 0.5], [2.0, 1.0], [5.0, 5.0], [6.0, 5.5]],
        rewards=[1.0, 2.0, 0.0, 3.0, 0.0],
        discounts=[0.9, 0.8, 0.0, 0.7, 0.0],
        lengths=[3, 2],
        terminated=[True, False],
        actions=[[1], [2], [0], [3], [0]],
    )
    return valid | changed


def record(**changed) -> Trajectories:
    return Trajectories(**arrays(**changed))


def chain(**changed) -> Trajectories:
    valid: dict[str, Any] = dict(states=[[0.0], [1.0], [2.0]], rewards=[1.0, 2.0], gammas=[0.9, 0.9])
    return Trajectories.from_chain(**(valid | changed))


def episode(**changed) -> dict:
    valid = dict(observations=[[0.0, 0.0], [1.0, 0.5], [2.0, 1.0]], rewards=[1.0, 2.0], terminated=True)
    return valid | changed


def episodes(gamma: float | None = 0.9, **changed) -> Trajectories:
    """A good episode and a second one with something changed: messages must name the second, number 1."""
    return Trajectories.from_episodes([episode(), episode(**changed)], gamma=gamma)


# Reading


def test_constructor_keeps_its_arguments():
    data = record()
    for name, given in arrays().items():
        assert_array_equal(getattr(data, name), given)
    assert data.states.dtype == data.rewards.dtype == data.discounts.dtype == np.float64
    assert data.terminated.dtype == bool
    assert data.lengths.dtype == np.int64


def test_trajectories_counts_and_indices():
    data = record()
    assert len(data) == 5
    assert (data.n_dims, data.n_segments, data.n_transitions, data.n_rows) == (2, 2, 3, 4)
    assert_array_equal(data.starts, [0, 3])
    assert_array_equal(data.last, [2, 4])
    assert_array_equal(data.segment_of, [0, 0, 0, 1, 1])
    assert_array_equal(data.has_row, [True, True, True, True, False])
    assert_array_equal(data.has_transition, [True, True, False, True, False])


def test_repr_shows_the_sizes():
    assert repr(record()) == "Trajectories(3 transitions in 2 segments, 1 terminated, 1 truncated; 2 dimensions)"


@pytest.mark.parametrize("mix", MIXES)
def test_has_row_of_any_mix(mix):
    data = sample(MIXES[mix])
    assert_array_equal(np.flatnonzero(data.has_row), row_places(data))
    assert data.n_rows == data.n_transitions + sum(terminated for _, terminated in MIXES[mix])
    assert_array_equal(data.segment_of, [s for s, places in enumerate(segments(data)) for _ in places])


def test_from_chain_reads_a_flat_list_as_one_dimension():
    data = Trajectories.from_chain([0.0, 1.0, 2.0], [1.0, 2.0], [0.9, 0.9])
    assert_array_equal(data.states, [[0.0], [1.0], [2.0]])


def test_from_chain_without_reset_is_one_truncated_segment():
    data = chain(rewards=[1, 2], gammas=[0.9, 1.0])
    assert_array_equal(data.states, [[0], [1], [2]])
    assert_array_equal(data.rewards, [1, 2, 0])
    assert_array_equal(data.discounts, [0.9, 1.0, 0])
    assert_array_equal(data.lengths, [3])
    assert_array_equal(data.terminated, [False])
    assert data.actions is None


def test_from_chain_cuts_behind_each_reset():
    # 0 → 1 → 2 (terminal) | 3 → 4 (terminal) | 5 → 6, and then the data stop
    data = Trajectories.from_chain(np.arange(7.0), [1, 2, 0, 3, 0, 4], [0.9, 0.8, 0, 0.7, 0, 0.6])
    assert_array_equal(data.states[:, 0], np.arange(7.0))
    assert_array_equal(data.rewards, [1, 2, 0, 3, 0, 4, 0])
    assert_array_equal(data.discounts, [0.9, 0.8, 0, 0.7, 0, 0.6, 0])
    assert_array_equal(data.lengths, [3, 2, 2])
    assert_array_equal(data.terminated, [True, True, False])


def test_from_chain_drops_a_single_state_behind_the_last_reset():
    data = Trajectories.from_chain([0, 1, 2], [5, 0], [0.9, 0])
    assert_array_equal(data.states[:, 0], [0, 1])
    assert_array_equal(data.rewards, [5, 0])
    assert_array_equal(data.discounts, [0.9, 0])
    assert_array_equal(data.lengths, [2])
    assert_array_equal(data.terminated, [True])


def test_from_chain_keeps_the_reward_of_a_reset_row():
    data = Trajectories.from_chain([0, 1, 2], [5, 7], [0.9, 0])
    assert_array_equal(data.rewards, [5, 7])


def test_from_episodes_concatenates():
    first = episode(actions=[[3], [4]])
    second = episode(observations=[[7.0, 7.0], [8.0, 8.0]], rewards=[9.0], terminated=False, actions=[[5]])
    data = Trajectories.from_episodes([first, second], gamma=0.9)
    assert_array_equal(data.states, [[0, 0], [1, 0.5], [2, 1], [7, 7], [8, 8]])
    assert_array_equal(data.rewards, [1, 2, 0, 9, 0])
    assert_array_equal(data.discounts, [0.9, 0.9, 0, 0.9, 0])
    assert_array_equal(data.lengths, [3, 2])
    assert_array_equal(data.terminated, [True, False])
    assert data.actions is not None
    assert_array_equal(data.actions, [[3], [4], [0], [5], [0]])  # no action follows a last state


@pytest.mark.parametrize(
    ("actions", "padded"),
    [
        ([3, 4], [3, 4, 0]),
        ([[0.5, 1.0], [2.0, 3.0]], [[0.5, 1.0], [2.0, 3.0], [0.0, 0.0]]),
        ([True, True], [True, True, False]),
    ],
)
def test_from_episodes_pads_actions_with_a_zero_of_their_dtype(actions, padded):
    data = Trajectories.from_episodes([episode(actions=actions)], gamma=0.9)
    assert data.actions is not None
    assert_array_equal(data.actions, padded)
    assert data.actions.dtype == np.asarray(actions).dtype


def test_from_episodes_takes_objects_and_generators():
    as_objects = (SimpleNamespace(**e) for e in [episode(), episode(terminated=False)])
    assert_same(
        Trajectories.from_episodes(as_objects, gamma=0.9),
        Trajectories.from_episodes([episode(), episode(terminated=False)], gamma=0.9),
    )


@pytest.mark.parametrize(
    ("flags", "terminated"),
    [
        (dict(terminated=True), True),
        (dict(terminated=False), False),
        (dict(terminated=None), False),
        (dict(terminated=np.True_), True),
        (dict(terminated=False, truncated=True), False),
        (dict(terminated=True, truncated=False), True),
        (dict(terminated=True, truncated=True), True),  # termination wins
        (dict(terminated=[False, True]), True),
        (dict(terminated=[False, False], truncated=[False, True]), False),
        (dict(terminated=[False, True], truncated=[False, True]), True),
        (dict(terminated=np.array([[False], [True]])), True),
        (dict(terminated=[True, False]), False),  # the last of the flags counts
    ],
)
def test_from_episodes_flags(flags, terminated):
    data = Trajectories.from_episodes([episode(**flags)], gamma=0.9)
    assert_array_equal(data.terminated, [terminated])
    assert data.n_rows == 2 + terminated


def test_from_episodes_without_flags_is_truncated():
    data = Trajectories.from_episodes([dict(observations=[[0.0], [1.0]], rewards=[1.0])], gamma=0.9)
    assert_array_equal(data.terminated, [False])


def test_from_episodes_prefers_own_discounts():
    data = Trajectories.from_episodes([episode(discounts=[0.3, 1.0]), episode()], gamma=0.9)
    assert_array_equal(data.discounts, [0.3, 1.0, 0, 0.9, 0.9, 0])


def test_from_episodes_takes_discounts_without_gamma():
    data = Trajectories.from_episodes([episode(discounts=[0.3, 0.0])])
    assert_array_equal(data.discounts, [0.3, 0.0, 0.0])
    assert_array_equal(data.lengths, [3])  # a discount of 0 inside an episode is no reset here


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_from_episodes_takes_gamma_0_and_1(gamma):
    assert_array_equal(Trajectories.from_episodes([episode()], gamma=gamma).discounts, [gamma, gamma, 0])
    assert_array_equal(chain(gammas=[1.0, 1.0]).discounts, [1, 1, 0])


def test_from_episodes_reads_integers_as_floats():
    data = Trajectories.from_episodes([dict(observations=np.array([[1], [2]]), rewards=[1])], gamma=1)
    assert data.states.dtype == data.rewards.dtype == data.discounts.dtype == np.float64


# Refusing. Each message says where, what came, and (where it is not plain) what to do.

IMAGES = np.zeros((3, 8, 8, 3))

BAD = {
    # the constructor
    "no states": (record, dict(states=np.zeros((0, 2))), ValueError, "empty data: .*at least one transition, got no"),
    "NaN state": (
        record,
        dict(states=[[0, 0], [1, 1], [2, NAN], [3, 3], [4, 4]]),
        ValueError,
        r"states must be finite; states\[2, 1\] is nan",
    ),
    "infinite reward": (
        record,
        dict(rewards=[1, -INF, 0, 1, 0]),
        ValueError,
        r"rewards must be finite; rewards\[1\] is -inf",
    ),
    "NaN discount": (
        record,
        dict(discounts=[0.9, NAN, 0, 0.9, 0]),
        ValueError,
        r"discounts must be finite; discounts\[1\] is nan",
    ),
    "too few rewards": (record, dict(rewards=[1, 2, 0, 3]), ValueError, r"rewards must have shape \(5,\); got \(4,\)"),
    "rewards as a column": (record, dict(rewards=np.zeros((5, 1))), ValueError, r"shape \(5,\); got \(5, 1\)"),
    "too many discounts": (
        record,
        dict(discounts=[0.9] * 6),
        ValueError,
        r"discounts must have shape \(5,\); got \(6,\)",
    ),
    "negative discount": (
        record,
        dict(discounts=[0.9, -0.1, 0, 0.9, 0]),
        ValueError,
        r"discounts must lie in \[0, 1\]; discounts\[1\] is -0.1",
    ),
    "discount above one": (
        record,
        dict(discounts=[0.9, 0.9, 0, 1.5, 0]),
        ValueError,
        r"discounts must lie in \[0, 1\]; discounts\[3\] is 1.5",
    ),
    "a flag too many": (
        record,
        dict(terminated=[True, False, True]),
        ValueError,
        "one entry per segment; got 2 lengths and 3 flags",
    ),
    "a segment of one state": (
        record,
        dict(lengths=[4, 1], discounts=[0.9, 0.8, 0.7, 0, 0]),
        ValueError,
        r"segment 1 has 1 state\(s\), but a transition needs two: .*Leave the segment out",
    ),
    "a segment of no state": (
        record,
        dict(lengths=[0, 5]),
        ValueError,
        r"segment 0 has 0 state\(s\), but a transition needs two",
    ),
    "lengths that do not add up": (
        record,
        dict(lengths=[3, 3]),
        ValueError,
        "lengths add up to 6 states, but 5 were given",
    ),
    "no lengths": (record, dict(lengths=[], terminated=[]), ValueError, "lengths add up to 0 states, but 5 were"),
    "a discount behind the end": (
        record,
        dict(discounts=[0.9, 0.8, 0.0, 0.7, 0.6]),
        ValueError,
        "nothing follows the last state of segment 1, so its discount must be 0, not 0.6",
    ),
    "a reward behind a truncation": (
        record,
        dict(rewards=[1, 2, 0, 3, 4.5]),
        ValueError,
        r"state 4 is the last of a truncated segment: no reward follows it, yet rewards\[4\] is 4.5",
    ),
    "too few actions": (
        record,
        dict(actions=[[1], [2]]),
        ValueError,
        r"actions must have one entry per state \(5\); got 2",
    ),
    "words for states": (
        record,
        dict(states=[["left"], ["right"], ["left"], ["up"], ["down"]]),
        TypeError,
        r"states must be numbers in an array of shape \(n, n_dims\): .*left",
    ),
    "objects for states": (
        record,
        dict(states=[{"x": 1}] * 5),
        TypeError,
        r"states must be numbers in an array of shape \(n, n_dims\): .*dict",
    ),
    "ragged states": (
        record,
        dict(states=[[1, 2], [3], [4, 5], [6, 7], [8, 9]]),
        TypeError,
        r"states must be numbers in an array of shape \(n, n_dims\): ",
    ),
    "words for rewards": (record, dict(rewards=["a"] * 5), TypeError, "rewards must be numbers: .*'a'"),
    "images": (
        record,
        dict(states=np.zeros((5, 8, 8, 3))),
        ValueError,
        r"states must have shape \(n, n_dims\); got \(5, 8, 8, 3\). Flatten images",
    ),
    "states of no width": (
        record,
        dict(states=np.zeros((5, 0))),
        ValueError,
        r"states must have shape \(n, n_dims\); got \(5, 0\)",
    ),
    "a number for states": (record, dict(states=3.0), ValueError, r"states must have shape \(n, n_dims\); got \(\)"),
    # the paper's chain
    "empty chain": (chain, dict(states=[], rewards=[], gammas=[]), ValueError, "a chain needs at least two .*; got 0"),
    "chain of one state": (
        chain,
        dict(states=[[1.0]], rewards=[], gammas=[]),
        ValueError,
        r"a chain needs at least two states \(one transition\); got 1",
    ),
    "chain with a reward per state": (
        chain,
        dict(rewards=[1, 2, 3]),
        ValueError,
        r"rewards must have shape \(2,\); got \(3,\)",
    ),
    "chain with a gamma missing": (chain, dict(gammas=[0.9]), ValueError, r"gammas must have shape \(2,\); got \(1,\)"),
    "chain with one gamma for all": (chain, dict(gammas=0.9), ValueError, r"gammas must have shape \(2,\); got \(\)"),
    "chain with gamma above one": (
        chain,
        dict(gammas=[0.9, 1.01]),
        ValueError,
        r"gammas must lie in \[0, 1\]; gammas\[1\] is 1.01",
    ),
    "chain with negative gamma": (
        chain,
        dict(gammas=[-0.5, 0.9]),
        ValueError,
        r"gammas must lie in \[0, 1\]; gammas\[0\] is -0.5",
    ),
    "chain with NaN gamma": (
        chain,
        dict(gammas=[0.9, NAN]),
        ValueError,
        r"gammas must be finite; gammas\[1\] is nan",
    ),
    "chain with an infinite state": (
        chain,
        dict(states=[[0.0], [INF], [2.0]]),
        ValueError,
        r"states must be finite; states\[1, 0\] is inf",
    ),
    "chain with a NaN reward": (
        chain,
        dict(rewards=[NAN, 1]),
        ValueError,
        r"rewards must be finite; rewards\[0\] is nan",
    ),
    "chain of words": (chain, dict(states=["a", "b", "c"]), TypeError, "states must be numbers .*'a'"),
    "chain of images": (chain, dict(states=IMAGES), ValueError, r"got \(3, 8, 8, 3\). Flatten images"),
    # Gymnasium-like episodes
    "no discount": (
        episodes,
        dict(gamma=None),
        ValueError,
        r"episode 0: no discount: pass gamma=… or give the episode discounts \[T\]",
    ),
    "no observations": (
        episodes,
        dict(observations=None),
        ValueError,
        r"episode 1: expected observations \[T\+1\] and rewards \[T\]",
    ),
    "no rewards": (episodes, dict(rewards=None), ValueError, r"episode 1: expected observations \[T\+1\] and rewards"),
    "one observation": (
        episodes,
        dict(observations=[[0.0, 0.0]], rewards=[]),
        ValueError,
        r"episode 1: 1 observation\(s\) make no transition: .*Leave the episode out",
    ),
    "empty episode": (
        episodes,
        dict(observations=np.zeros((0, 2)), rewards=[]),
        ValueError,
        r"episode 1: 0 observation\(s\) make no transition",
    ),
    "as many rewards as observations": (
        episodes,
        dict(rewards=[1, 2, 3]),
        ValueError,
        r"episode 1: rewards must have shape \(2,\); got \(3,\)",
    ),
    "a discount missing": (
        episodes,
        dict(discounts=[0.9]),
        ValueError,
        r"episode 1: discounts must have shape \(2,\); got \(1,\)",
    ),
    "NaN observation": (
        episodes,
        dict(observations=[[0, 0], [1, NAN], [2, 2]]),
        ValueError,
        r"episode 1: observations must be finite; .*observations\[1, 1\] is nan",
    ),
    "infinite reward in an episode": (
        episodes,
        dict(rewards=[1, INF]),
        ValueError,
        r"episode 1: rewards must be finite; .*rewards\[1\] is inf",
    ),
    "NaN gamma": (episodes, dict(gamma=NAN), ValueError, r"episode 0: discounts must be finite; .* is nan"),
    "gamma above one": (
        episodes,
        dict(gamma=1.1),
        ValueError,
        r"episode 0: the discount gamma must lie in \[0, 1\]; got 1.1",
    ),
    "negative gamma": (episodes, dict(gamma=-0.2), ValueError, r"gamma must lie in \[0, 1\]; got -0.2"),
    "discount above one in an episode": (
        episodes,
        dict(discounts=[0.9, 2.0]),
        ValueError,
        r"episode 1: the discount gamma must lie in \[0, 1\]; got 2",
    ),
    "words for observations": (
        episodes,
        dict(observations=["a", "b", "c"]),
        TypeError,
        "episode 1: observations must be numbers in an array .*'a'",
    ),
    "words for rewards in an episode": (
        episodes,
        dict(rewards=["a", "b"]),
        TypeError,
        "episode 1: rewards must be numbers: .*'a'",
    ),
    "images in an episode": (
        episodes,
        dict(observations=IMAGES),
        ValueError,
        r"episode 1: observations must have shape \(n, n_dims\); got \(3, 8, 8, 3\). Flatten images",
    ),
    "an action too many": (
        episodes,
        dict(actions=[1, 2, 3]),
        ValueError,
        "episode 1: expected 2 actions, one per reward; got 3",
    ),
    "a number for actions": (episodes, dict(actions=3), (TypeError, ValueError), "episode 1: .*actions"),
    "flags of another length": (
        episodes,
        dict(terminated=[False, False, False, False, True]),
        ValueError,
        r"episode 1: (?=.*\b2\b)(?=.*\b5\b).*(terminated|flag)",
    ),
    "no flags at all": (episodes, dict(terminated=[]), ValueError, "episode 1: .*(terminated|flag)"),
    "actions in one episode only": (
        episodes,
        dict(actions=[1, 2]),
        ValueError,
        "either every episode has actions or none has",
    ),
    "episodes of two widths": (
        episodes,
        dict(observations=[[0.0], [1.0], [2.0]]),
        ValueError,
        r"all episodes must have states of one width; got widths \[1, 2\]",
    ),
}


@pytest.mark.parametrize(("make", "changed", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused(make, changed, error, message):
    with pytest.raises(error) as caught:
        make(**changed)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_from_episodes_refuses_no_episodes():
    with pytest.raises(ValueError, match="empty data: expected at least one episode, got none"):
        Trajectories.from_episodes([], gamma=0.9)


def test_constructor_takes_a_terminal_reward():
    assert record(rewards=[1, 2, 7.0, 3, 0]).rewards[2] == 7.0


# Staying as it was made


def own_arrays():
    return {name: np.array(value) for name, value in arrays().items()}


def chain_arrays():
    return dict(
        states=np.array([[0.0], [1.0], [2.0], [3.0]]), rewards=np.array([1.0, 0, 3]), gammas=np.array([0.9, 0, 1])
    )


def episode_arrays():
    return dict(
        observations=np.array([[0.0], [1.0], [2.0]]),
        rewards=np.array([1.0, 2.0]),
        discounts=np.array([0.9, 0.8]),
        actions=np.array([3, 4]),
        terminated=np.array([False, True]),
    )


@pytest.mark.parametrize(
    ("given", "make"),
    [
        (own_arrays, lambda a: Trajectories(**a)),
        (chain_arrays, lambda a: Trajectories.from_chain(**a)),
        (episode_arrays, lambda a: Trajectories.from_episodes([a])),
    ],
    ids=["constructor", "chain", "episodes"],
)
def test_trajectories_copies_its_input(given, make):
    mine = given()
    data, untouched = make(mine), make(given())
    for array in mine.values():
        array[...] = 0 if array.dtype == bool else 77
    assert_same(data, untouched)


def ways_to_make() -> dict[str, Trajectories]:
    data = record()
    return {
        "constructor": data,
        "chain": chain(),
        "episodes": Trajectories.from_episodes([episode(actions=[1, 2])], gamma=0.9),
        "one segment": data[0],
        "slice": data[:],
        "mask": data[[True, False]],
        "sum": data + data,
        "concatenated": Trajectories.concatenate([data]),
        "fewer inputs": data.take_inputs([1]),
        "thinned": data.thin(2),
        "cut": data.cut(1),
        "values": Trajectories.from_values([[0.0], [1.0]], [1.0, 2.0], [3, 4]),
    }


@pytest.mark.parametrize("way", ways_to_make())
def test_arrays_are_read_only(way):
    data = ways_to_make()[way]
    for name in ARRAYS:
        array = getattr(data, name)
        if array is None:
            continue
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_trajectories_is_frozen():
    data = record()
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.rewards = np.zeros(5)  # type: ignore[misc]


DERIVED = ("starts", "last", "segment_of", "has_row", "has_transition")


@pytest.mark.parametrize("name", DERIVED)
def test_derived_arrays_are_read_only_and_computed_once(name):
    data = record()
    with pytest.raises(ValueError, match="read-only"):
        getattr(data, name)[:] = 0
    assert getattr(data, name) is getattr(data, name)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_trajectories_copies_hold_the_same_read_only_arrays(again):
    data = record()
    assert data.n_rows == 4 and data.last.size == 2  # cached
    copied = again(data)
    assert set(vars(copied)) == set(ARRAYS), "caches are not copied"
    assert_same(copied, data)
    with pytest.raises(ValueError, match="read-only"):
        copied.rewards[0] = 1.0


def test_trajectories_replace_computes_derived_arrays_again():
    data = record()
    assert_array_equal(data.last, [2, 4])
    changes: Any = dict(
        lengths=[2, 3], terminated=[False, True], rewards=[1, 0, 2, 3, 0], discounts=[0.9, 0, 0.9, 0.9, 0]
    )
    changed = dataclasses.replace(data, **changes)
    assert_array_equal(changed.last, [1, 4])
    assert_array_equal(changed.has_row, [True, False, True, True, True])
    assert_array_equal(changed.has_transition, [True, False, True, True, False])


def test_trajectories_takes_a_terminal_state_by_itself():
    data = sample([(2, True), (7, True)]).thin(3, 1)
    assert_array_equal(data.lengths, [1, 2])
    assert_same(dataclasses.replace(data, rewards=data.rewards), data)


# Picking segments


@pytest.fixture
def four() -> Trajectories:
    """Four segments with actions, one of each length, of which the second and last are terminated."""
    data = sample([(2, False), (3, True), (4, False), (5, True)], seed=3)
    return Trajectories(
        data.states, data.rewards, data.discounts, data.lengths, data.terminated, np.arange(28.0).reshape(14, 2)
    )


SELECTIONS = {
    "first": (0, [0]),
    "last": (-1, [3]),
    "NumPy's integer": (np.int64(2), [2]),
    "slice": (slice(1, 3), [1, 2]),
    "backwards": (slice(None, None, -1), [3, 2, 1, 0]),
    "steps": (slice(0, None, 2), [0, 2]),
    "negative slice": (slice(-2, None), [2, 3]),
    "indices": ([2, 0], [2, 0]),
    "repeated": (np.array([1, 1]), [1, 1]),
    "negative indices": ([-1, -4], [3, 0]),
    "mask": (np.array([True, False, False, True]), [0, 3]),
    "list of flags": ([False, True, False, False], [1]),
}


@pytest.mark.parametrize(("selection", "expected"), SELECTIONS.values(), ids=SELECTIONS.keys())
def test_getitem_selects_segments(four, selection, expected):
    picked = four[selection]
    places = [i for s in expected for i in segments(four)[s]]
    assert_array_equal(picked.states, four.states[places])
    assert_array_equal(picked.rewards, four.rewards[places])
    assert_array_equal(picked.discounts, four.discounts[places])
    assert_array_equal(picked.actions, four.actions[places])
    assert_array_equal(picked.lengths, four.lengths[expected])
    assert_array_equal(picked.terminated, four.terminated[expected])


@pytest.mark.parametrize("selection", [4, -5, np.int64(4)])
def test_getitem_refuses_unknown_segments(four, selection):
    with pytest.raises(IndexError, match=f"segment {selection} of 4"):
        four[selection]


@pytest.mark.parametrize("selection", [slice(2, 2), slice(9, None), np.zeros(4, dtype=bool), []], ids=str)
def test_getitem_refuses_empty_selections(four, selection):
    with pytest.raises(ValueError, match="empty data: the selection holds no segment"):
        four[selection]


def test_iter_yields_each_segment(four):
    each = list(four)
    assert [len(s) for s in each] == [2, 3, 4, 5]
    assert all(s.n_segments == 1 for s in each)
    assert_same(Trajectories.concatenate(each), four)


# Joining


def test_add_concatenates(four):
    assert_same(four[:1] + four[1:3] + four[3], four)
    assert_same(four + four[1], four[[0, 1, 2, 3, 1]])


def test_add_refuses_other_types(four):
    with pytest.raises(TypeError, match="unsupported operand"):
        four + 1


def test_concatenate_refuses_nothing():
    with pytest.raises(ValueError, match="empty data: expected at least one part to concatenate, got none"):
        Trajectories.concatenate([])


def test_add_refuses_other_widths():
    with pytest.raises(ValueError, match=r"cannot join states of different widths: got \[2, 3\]"):
        sample([(3, True)], n_dims=3) + sample([(3, True)], n_dims=2)


def test_concatenate_refuses_missing_actions(four):
    for parts in ([four, sample([(3, True)])], [sample([(3, True)]), four]):
        with pytest.raises(ValueError, match="cannot join trajectories with actions to trajectories without"):
            Trajectories.concatenate(parts)


# Fewer inputs, thinning, cutting


def test_take_inputs_selects_columns(four):
    fewer = four.take_inputs([2, 0])
    assert_array_equal(fewer.states, four.states[:, [2, 0]])
    assert fewer.n_dims == 2
    mask = four.take_inputs([False, True, False])
    assert_array_equal(mask.states, four.states[:, [1]])
    for name in ("rewards", "discounts", "lengths", "terminated", "actions"):
        assert_array_equal(getattr(fewer, name), getattr(four, name))


def test_thin_by_one_changes_nothing(four):
    assert_same(four.thin(1), four)


def test_thin_of_a_terminated_segment():
    # 0 →1 1 →2 2 →3 3 →4 4(terminal), with discounts ½; every second state from the first on: 0, 2, 4
    data = Trajectories.from_episodes(
        [dict(observations=np.arange(5.0), rewards=[1, 2, 3, 4], terminated=True, actions=[5, 6, 7, 8])], gamma=0.5
    )
    even, odd = data.thin(2), data.thin(2, 1)
    assert_array_equal(even.states[:, 0], [0, 2, 4])
    assert_array_equal(even.rewards, [1 + 0.5 * 2, 3 + 0.5 * 4, 0])
    assert_array_equal(even.discounts, [0.25, 0.25, 0])
    assert_array_equal(even.actions, [5, 7, 0])
    # 1, 3: the last kept state is paid what was still to come
    assert_array_equal(odd.states[:, 0], [1, 3])
    assert_array_equal(odd.rewards, [2 + 0.5 * 3, 4])
    assert_array_equal(odd.discounts, [0.25, 0])
    assert_array_equal(odd.terminated, [True])


def test_thin_of_a_truncated_segment():
    data = Trajectories.from_episodes([dict(observations=np.arange(5.0), rewards=[1, 2, 3, 4])], gamma=0.5)
    odd = data.thin(2, 1)
    assert_array_equal(odd.states[:, 0], [1, 3])
    assert_array_equal(odd.rewards, [2 + 0.5 * 3, 0])  # what follows state 3 says nothing about its value
    assert_array_equal(odd.discounts, [0.25, 0])
    assert_array_equal(odd.terminated, [False])


def test_thin_leaves_out_segments_without_a_row():
    data = sample([(2, False), (3, True), (7, False), (9, True)])
    thinned = data.thin(4, 1)
    # of the first segment one state is left, and it has no row; the second keeps a row that pins its value
    assert_array_equal(thinned.lengths, [1, 2, 2])
    assert_array_equal(thinned.terminated, [True, False, True])
    assert_array_equal(thinned.has_row, [True, True, False, True, True])
    assert_array_equal(data.thin(4, 3).lengths, [2])  # the others have no such state, or only one


def test_take_inputs_of_one_column(four):
    assert_array_equal(four.take_inputs(1).states, four.states[:, [1]])


@pytest.mark.parametrize(("every", "offset"), [(0, 0), (-1, 0), (2, -1), (2, 2)])
def test_thin_refuses_bad_arguments(every, offset):
    with pytest.raises(ValueError, match=r"every|offset"):
        sample([(5, True)]).thin(every, offset)


def test_thin_refuses_too_short_segments():
    data = sample([(4, False), (3, False)])
    with pytest.raises(ValueError, match="no segment is long enough to keep every 5th state from offset 0"):
        data.thin(5)


def test_cut_of_a_terminated_segment():
    data = Trajectories.from_episodes(
        [dict(observations=np.arange(6.0), rewards=[1, 2, 3, 4, 5], terminated=True)], gamma=0.5
    )
    cut = data.cut(2)
    assert_array_equal(cut.states[:, 0], [0, 1, 2, 2, 3, 4, 4, 5])
    assert_array_equal(cut.rewards, [1, 2, 0, 3, 4, 0, 5, 0])
    assert_array_equal(cut.discounts, [0.5, 0.5, 0, 0.5, 0.5, 0, 0.5, 0])
    assert_array_equal(cut.lengths, [3, 3, 2])
    assert_array_equal(cut.terminated, [False, False, True])


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("longest", [1, 2, 3, 100])
def test_cut_keeps_all_transitions(mix, longest):
    data = sample(MIXES[mix], terminal_rewards=True)
    cut = data.cut(longest)
    assert cut.n_transitions == data.n_transitions
    assert cut.lengths.max() <= longest + 1
    assert cut.terminated.sum() == data.terminated.sum()
    assert_array_equal(cut.rewards[cut.has_row], data.rewards[data.has_row])
    assert_array_equal(cut.states[cut.has_row], data.states[data.has_row])
    assert_array_equal(cut.discounts[cut.has_row], data.discounts[data.has_row])
    if longest == 100:
        assert_same(cut, data)


def test_cut_keeps_single_terminal_states():
    thinned = sample([(2, True), (7, True)]).thin(3, 1)
    assert_array_equal(thinned.lengths, [1, 2])
    assert_same(thinned.cut(1), thinned)
    assert_allclose(naive_returns(thinned.cut(1)), naive_returns(thinned))


@pytest.mark.parametrize(
    ("lengths", "terminated"),
    [
        ([2**62, 2**62, 2**62, 2**62 + 3], [True] * 4),  # add up to 3, but for the overflow
        ([1.5, 1.5], [True, True]),
        ([np.nan, 3.0], [True, True]),
        ([-1, 4], [True, True]),
        ([3], [2]),
        ([3], [np.nan]),
        (["3"], [True]),
    ],
)
def test_trajectories_refuse_lengths_that_are_none(lengths, terminated):
    with pytest.raises((ValueError, TypeError)) as error:
        Trajectories(np.zeros((3, 1)), np.zeros(3), np.zeros(3), lengths, terminated)
    assert "\n" not in str(error.value)
