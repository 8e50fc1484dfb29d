"""Single transitions: every row against a loop over the segments."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.transitions import Transitions
from tests.helpers import MIXES, dense_H, row_places, sample, segments

CASES = {
    **{name: sample(kinds, seed=1) for name, kinds in MIXES.items()},
    "undiscounted": sample(MIXES["mixed"], seed=2, gamma=1.0),
    "one discount": sample(MIXES["mixed"], seed=3, gamma=0.9),
    "nothing follows": sample(MIXES["mixed"], seed=3, gamma=0.0),
    "repeated states": sample(MIXES["mixed"], seed=4, repeated=True),
    "terminal rewards": sample(MIXES["mixed"], seed=5, terminal_rewards=True),
    "regression targets": Trajectories.from_values(np.random.default_rng(6).normal(size=(5, 3)), np.arange(5.0)),
    "targets and runs": sample([(1, True), (4, False), (1, True), (3, True)], seed=7, terminal_rewards=True),
}

every_case = pytest.mark.parametrize("data", CASES.values(), ids=CASES.keys())


def naive(data: Trajectories) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """E and N as dense matrices over the states of `data`, rewards, and which rows are the first of a segment."""
    E, N, rewards, is_first = [], [], [], []
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        last = places[-1]
        is_target = terminated and (len(places) == 1 or data.rewards[last] != 0.0)
        for i in places:
            if i == last and not is_target:
                continue
            leaves, follows = np.zeros(len(data)), np.zeros(len(data))
            leaves[i] = 1.0
            into_terminal = i + 1 == last and terminated and not is_target
            if i != last and not into_terminal:
                follows[i + 1] = data.discounts[i]
            E.append(leaves)
            N.append(follows)
            rewards.append(data.rewards[i])
            is_first.append(i == places[0])
    return np.array(E), np.array(N), np.array(rewards), np.array(is_first)


@every_case
def test_transitions_of_trajectories_are_those_of_a_loop(data):
    E, N, rewards, is_first = naive(data)
    found = Transitions.of(data)
    assert len(found) == len(rewards)
    assert_array_equal(found.points, data.states)
    assert_array_equal(np.eye(len(data))[found.left], E)
    assert_array_equal(found.successors.toarray(), N)
    assert_array_equal(found.rewards, rewards)
    assert_array_equal(found.is_first, is_first)
    assert_array_equal(found.states, E @ data.states)
    assert_allclose(found.discounts, N.sum(axis=1))


@every_case
def test_transitions_stores_no_weight_of_zero(data):
    """A stored zero would keep a terminal state among the points of a selection."""
    assert (Transitions.of(data).successors.data > 0.0).all()


@every_case
def test_transitions_difference_is_H_where_terminal_values_are_zero(data):
    """The rows of H that are not V(x_L) = 0, for any V that obeys those."""
    values = np.random.default_rng(0).normal(size=len(data))
    is_zero = (data.lengths > 1) & data.terminated & (data.rewards[data.last] == 0.0)
    values[data.last[is_zero]] = 0.0
    kept = ~np.isin(row_places(data), data.last[is_zero])
    assert_allclose(Transitions.of(data).difference(values), (dense_H(data) @ values)[kept], atol=1e-14)


@every_case
@pytest.mark.parametrize("width", [(), (4,)], ids=["vector", "matrix"])
def test_transitions_difference_and_its_transpose(data, width):
    E, N, *_ = naive(data)
    found, rng = Transitions.of(data), np.random.default_rng(0)
    values, rows = rng.normal(size=(len(data), *width)), rng.normal(size=(len(found), *width))
    forth, back = found.difference(values), found.difference_transposed(rows)
    assert_allclose(forth, (E - N) @ values, atol=1e-13)
    assert_allclose(back, (E - N).T @ rows, atol=1e-13)
    assert_allclose(np.vdot(rows, forth), np.vdot(back, values), rtol=1e-12)


SELECTIONS = {
    "slice": slice(2, 6),
    "last": slice(-1, None),
    "all": slice(None),
    "numbers": np.array([5, 0, 3]),
    "twice": np.array([1, 1, 4]),
    "none": slice(0, 0),
}


@pytest.mark.parametrize("rows", SELECTIONS.values(), ids=SELECTIONS.keys())
@pytest.mark.parametrize("case", ["mixed", "repeated states", "targets and runs", "nothing follows"])
def test_transitions_select_keeps_rows_and_no_other_points(rows, case):
    data = CASES[case]
    E, N, rewards, is_first = (array[rows] for array in naive(data))
    found = Transitions.of(data).select(rows)
    value = np.sin(data.states).sum(axis=1)  # a function of the state
    assert_allclose(found.difference(np.sin(found.points).sum(axis=1)), (E - N) @ value, atol=1e-14)
    assert_array_equal(found.rewards, rewards)
    assert_array_equal(found.is_first, is_first)
    assert_array_equal(found.states, E @ data.states)
    assert_allclose(found.discounts, N.sum(axis=1))
    assert_array_equal(found.points, data.states[(E + N).any(axis=0)])


def test_transitions_select_twice_is_select_once():
    whole = Transitions.of(CASES["mixed"])
    once, twice = whole.select(np.array([7, 2, 4])), whole.select(slice(2, 9)).select(np.array([5, 0, 2]))
    for name in ("points", "left", "rewards", "is_first"):
        assert_array_equal(getattr(once, name), getattr(twice, name))
    assert_array_equal(once.successors.toarray(), twice.successors.toarray())


def test_transitions_of_pairs_weigh_every_action_of_the_policy():
    """Q(x, a) − γ Σ_a' π(a'|x') Q(x', a'), by a loop over steps and actions; actions of probability 0 are left out."""
    rng = np.random.default_rng(0)
    lengths, terminated = np.array([4, 3]), np.array([True, False])
    states = np.column_stack([rng.normal(size=(7, 2)), rng.integers(3, size=7)])
    probabilities = rng.dirichlet(np.ones(3), size=7)
    probabilities[1] = [0.0, 0.25, 0.75]
    actions = np.stack([probabilities, np.tile(np.arange(3.0), (7, 1))], axis=2)  # [n, 3 choices, weight and action]
    rewards, discounts = rng.normal(size=7), rng.uniform(0.5, 1.0, size=7)
    rewards[[3, 6]] = discounts[[3, 6]] = 0.0
    data = Trajectories(states, rewards, discounts, lengths, terminated, policy_actions=actions)

    def q(pairs: np.ndarray) -> np.ndarray:
        return np.sin(pairs[:, 0]) + pairs[:, 1] ** 2 + np.cos(5.0 * pairs[:, 2])

    expected = []
    for i, goes_on in ((0, 1), (1, 1), (2, 0), (4, 1), (5, 1)):  # the third enters the terminal state
        following = sum(p * q(np.array([[*states[i + 1, :2], a]]))[0] for a, p in enumerate(probabilities[i + 1]))
        expected.append(q(states[[i]])[0] - goes_on * discounts[i] * following)
    found = Transitions.of(data)
    assert_allclose(found.difference(q(found.points)), expected, rtol=1e-12)
    assert_allclose(found.discounts, discounts[[0, 1, 2, 4, 5]] * [1, 1, 0, 1, 1])
    assert found.successors.nnz == 2 + 3 + 3 + 3
