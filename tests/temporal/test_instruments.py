"""Instruments: orthonormal functions of the present state alone, and the moments of rewards that they give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.temporal.instruments import (
    N_COMPONENTS,
    ROWS_PER_INSTRUMENT,
    Moments,
    instrumented_targets,
    instruments,
)
from gptd_rl.temporal.transitions import Transitions
from tests.helpers import sample

MANY = [(60, True), (80, False), (100, True), (60, False)]


def states_of(n: int, n_dims: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, n_dims)) * np.arange(1.0, n_dims + 1) + 3.0


def projector(Q: np.ndarray) -> np.ndarray:
    return Q @ Q.T


def naive_values(transitions: Transitions, V: np.ndarray) -> np.ndarray:
    """V(x) − Σ_j w_j V(x'_j), row by row."""
    N = transitions.successors.toarray()
    return np.array(
        [
            V[left] - sum(w * v for w, v in zip(row, V, strict=True))
            for left, row in zip(transitions.left, N, strict=True)
        ]
    )


# ------------------------------------------------------------------------------------------ Q


@pytest.mark.parametrize("n", [1, 2, 11, 24, 100, 400])
@pytest.mark.parametrize("n_dims", [1, 3, 10])
def test_instruments_are_orthonormal_and_few(n, n_dims):
    Q = instruments(states_of(n, n_dims))
    assert Q.shape[0] == n
    assert 1 <= Q.shape[1] <= max(1, n // ROWS_PER_INSTRUMENT)
    assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), atol=1e-12)


@pytest.mark.parametrize("n", [1, 5, 2 * ROWS_PER_INSTRUMENT - 1])
def test_instruments_of_few_rows_are_the_constant(n):
    assert_allclose(np.abs(instruments(states_of(n))), 1.0 / np.sqrt(n))


def test_instruments_span_polynomials_of_degree_two():
    """What Q must express: residuals of 1, x, x² and products after projection on Q are rounding."""
    x = states_of(600)
    Q = instruments(x)
    wanted = np.column_stack([np.ones(len(x)), x, x**2, x[:, 0] * x[:, 1], x[:, 1] * x[:, 2]])
    assert_allclose(wanted - Q @ (Q.T @ wanted), 0.0, atol=1e-8)
    assert Q.shape[1] > 10, "and the radial basis functions beside them"
    assert Q.shape[1] <= 1 + 3 + 6 + N_COMPONENTS


def test_instruments_express_a_bump_that_polynomials_do_not():
    x = np.random.default_rng(0).normal(size=(600, 1))
    bump = np.exp(-2.0 * (x[:, 0] - 1.0) ** 2)
    Q, P = instruments(x), np.linalg.qr(np.column_stack([np.ones(600), x, x**2]))[0]
    left_by_Q, left_by_P = (np.linalg.norm(bump - B @ (B.T @ bump)) / np.linalg.norm(bump) for B in (Q, P))
    assert left_by_Q < 0.05 < 0.3 < left_by_P


@pytest.mark.parametrize("scale", [[1.0, 1.0, 1.0], [2.0**20, 0.25, 4.0], [1e-6, -3.0, 1e5]])
@pytest.mark.parametrize("shift", [0.0, 7.3])
def test_instruments_span_the_same_for_inputs_in_other_units(scale, shift):
    x, factors = states_of(400), np.array(scale)
    moved = (x + shift) * factors
    assert_allclose(projector(instruments(moved)), projector(instruments(x)), atol=1e-7)


@pytest.mark.parametrize("scale", [1e-13, 1e-20, 1e13])
def test_instruments_of_inputs_in_very_small_or_large_units(scale):
    x = states_of(400)
    assert_allclose(projector(instruments(scale * x)), projector(instruments(x)), atol=1e-7)


@pytest.mark.parametrize(("n", "n_dims"), [(600, 3), (100, 4), (100, 10), (60, 10)])
def test_instruments_span_does_not_depend_on_the_order_of_inputs(n, n_dims):
    """Nor where rows are too few for all of them."""
    x = states_of(n, n_dims)
    assert_allclose(projector(instruments(x[:, ::-1])), projector(instruments(x)), atol=1e-7)


def test_instruments_see_every_input_where_rows_are_few():
    """Not the first inputs only: much of each is left in their span."""
    x = states_of(100, 10)
    Q, centred = instruments(x), x - x.mean(axis=0)
    seen = np.linalg.norm(Q.T @ centred, axis=0) / np.linalg.norm(centred, axis=0)
    assert seen.min() > 0.5


def test_instruments_give_equal_states_equal_values():
    """They are functions of the state: a repeated state has one row of Z, so of Q."""
    points, visits = states_of(40), np.random.default_rng(0).integers(40, size=500)
    Q = instruments(points[visits])
    for i in range(40):
        rows = Q[visits == i]
        assert_allclose(rows, np.tile(rows[:1], (len(rows), 1)), atol=1e-12)


@pytest.mark.parametrize("n_points", [2, 3, 6])
@pytest.mark.parametrize("n_dims", [1, 2])
def test_instruments_are_no_more_than_distinct_states(n_points, n_dims):
    """Functions of so many states: a further one would be made of rounding errors."""
    points, visits = states_of(n_points, n_dims), np.random.default_rng(0).integers(n_points, size=500)
    assert instruments(points[visits]).shape[1] == n_points


@pytest.mark.parametrize("value", [0.0, 5.0, 1e6])
def test_instruments_ignore_a_constant_input(value):
    x = states_of(400, 2)
    beside = np.column_stack([x, np.full(len(x), value)])
    Q, expected = instruments(beside), instruments(x)
    assert np.isfinite(Q).all()
    assert_allclose(Q.T @ Q, np.eye(Q.shape[1]), atol=1e-12)
    polynomial = np.column_stack([np.ones(len(x)), x, x**2])
    assert_allclose(polynomial - Q @ (Q.T @ polynomial), 0.0, atol=1e-8)
    assert Q.shape[1] == expected.shape[1]


def test_instruments_of_one_constant_state():
    Q = instruments(np.full((200, 2), 4.0))
    assert_allclose(np.abs(Q), 1.0 / np.sqrt(200))


def test_instruments_of_labels_are_a_set_for_each_label():
    """Rows of one label see only the functions of that label: QQᵀ is block diagonal, and every block is full."""
    x, labels = states_of(600, 2), np.arange(600) % 3
    Q = instruments(np.column_stack([x, labels]), n_categorical=1)
    P = projector(Q)
    assert_allclose(P[labels[:, None] != labels], 0.0, atol=1e-10)
    for label in range(3):
        here = np.flatnonzero(labels == label)
        wanted = np.column_stack([np.ones(len(here)), x[here], x[here] ** 2])
        assert_allclose(P[np.ix_(here, here)] @ wanted, wanted, atol=1e-8)
    assert Q.shape[1] <= 600 // ROWS_PER_INSTRUMENT


def test_instruments_of_labels_do_not_depend_on_their_names():
    x, labels = states_of(600, 2), np.arange(600) % 3
    named = instruments(np.column_stack([x, labels]), n_categorical=1)
    renamed = instruments(np.column_stack([x, np.array([7.0, -1.0, 100.0])[labels]]), n_categorical=1)
    assert_allclose(projector(renamed), projector(named), atol=1e-8)


# ------------------------------------------------------------------------------------------ y and F


def shuffled_futures(data: Trajectories) -> Transitions:
    """The same states and rewards, but each is followed by what followed another."""
    whole = Transitions.of(data)
    order = np.random.default_rng(0).permutation(len(whole))
    return replace(whole, successors=whole.successors[order])


def test_instruments_know_nothing_of_the_future():
    data = sample(MANY, seed=1)
    before, after = instrumented_targets(Transitions.of(data)), instrumented_targets(shuffled_futures(data))
    assert_array_equal(after.y, before.y)
    V = np.sin  # but F does
    moved = after.operator.rmatvec(V(after.states[:, 0])) - before.operator.rmatvec(V(before.states[:, 0]))
    assert np.abs(moved).max() > 0.1


@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
@pytest.mark.parametrize("terminal_rewards", [False, True], ids=["terminal", "targets"])
def test_instrumented_targets_are_projections_of_rewards_and_differences(repeated, terminal_rewards):
    data = sample(MANY, seed=1, repeated=repeated, terminal_rewards=terminal_rewards)
    transitions = Transitions.of(data)
    Q, found = instruments(transitions.states), instrumented_targets(transitions)
    assert_allclose(found.y, Q.T @ transitions.rewards)
    assert found.operator.n_targets == found.n_rows == Q.shape[1]
    assert found.n_merged_rows == 0 and found.within_visit_ss == 0.0 and found.log_jacobian == 0.0
    assert len(np.unique(found.states, axis=0)) == len(found.states)
    for f in (lambda x: np.sin(x).sum(axis=1), lambda x: np.ones(len(x)), lambda x: x[:, 0] ** 3):
        expected = Q.T @ naive_values(transitions, f(transitions.points))  # Qᵀ(V(x) − γV(x'))
        assert_allclose(found.operator.rmatvec(f(found.states)), expected, atol=1e-11)


def test_instrumented_targets_merge_repeated_states():
    data = sample(MANY, seed=1, repeated=True)
    assert len(instrumented_targets(Transitions.of(data)).states) == len(np.unique(data.states, axis=0)) == 4


def test_instrumented_targets_leave_terminal_states_out():
    """Nothing depends on the value there, so nothing may be learnt about it."""
    data = sample([(40, True)] * 8, seed=1)
    found = instrumented_targets(Transitions.of(data))
    terminal = data.states[data.last]
    assert len(found.states) == len(data) - 8
    assert not (found.states[:, None] == terminal).all(axis=2).any()


def test_instrumented_targets_of_one_transition():
    """One instrument, the constant: y = ±r and F = ±(e − γe')."""
    data = sample([(2, False)], seed=1)
    found = instrumented_targets(Transitions.of(data))
    sign = np.sign(found.y[0] * data.rewards[0])
    assert_allclose(sign * found.y, data.rewards[:1])
    value = found.states[:, 0]
    expected = data.states[0, 0] - data.discounts[0] * data.states[1, 0]
    assert_allclose(sign * found.operator.rmatvec(value), [expected])


def test_moments_operator_is_its_matrix():
    rng = np.random.default_rng(0)
    F, V, w = rng.normal(size=(7, 3)), rng.normal(size=7), rng.normal(size=3)
    K, A = (B @ B.T for B in (rng.normal(size=(7, 7)), rng.normal(size=(3, 3))))
    found = Moments(F)
    assert found.n_targets == 3
    assert_allclose(found.rmatvec(V), F.T @ V)
    assert_allclose(found.matvec(w), F @ w)
    assert_allclose(found.project_covariance(np.tril(K)), F.T @ K @ F)  # lower triangles, as other operators take
    assert_allclose(found.pull_back(np.tril(A)), F @ A @ F.T)
