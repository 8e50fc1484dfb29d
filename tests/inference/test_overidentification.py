"""Overidentifying restrictions against naive loops, and what makes them hold where V is misfit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from gptd_rl import Trajectories
from gptd_rl.inference import overidentification as oi
from gptd_rl.inference.witnesses import Instruments, Steps
from gptd_rl.types import Array
from tests.helpers import MIXES, sample
from tests.mdps import Drifting

DATA = Drifting().sample(400, np.random.default_rng(0))


def prepared(data: Trajectories) -> tuple[Steps, Instruments, oi.Regressions, oi.Neighbours]:
    steps = Steps.of(data)
    instruments = Instruments.of(steps)
    regressions = oi.Regressions.of(oi.instrument_statistics(data, instruments))
    return steps, instruments, regressions, oi.Neighbours.of(steps, instruments, regressions)


@pytest.mark.parametrize("mix", MIXES)
def test_instrument_statistics_are_sums_over_steps(mix: str):
    data = sample(MIXES[mix], seed=3, n_dims=2)
    steps = Steps.of(data)
    instruments = Instruments.of(steps)
    gram: Array = 0.0 * oi.instrument_statistics(data, instruments).gram
    for t in range(len(steps)):
        psi = instruments.features(steps.states[t : t + 1])[0]
        after = instruments.features(steps.next_states[t : t + 1])[0]
        change = steps.changes[t] / instruments.change_scale
        u = np.r_[change, change * (steps.states[t] - instruments.centre) / instruments.scale]
        row = np.r_[psi, psi - steps.discounts[t] * after, u, steps.rewards[t]]
        gram += np.outer(row, row)
    known = oi.instrument_statistics(data, instruments)
    assert_allclose(known.gram, gram, atol=1e-10)
    assert known.n_steps == data.n_transitions
    by_segment = [oi.instrument_statistics(segment, instruments) for segment in data]
    total = sum(by_segment[1:], by_segment[0])
    assert_allclose(total.gram, gram, atol=1e-10)
    assert total.n_steps == known.n_steps


def test_regressions_are_penalised_least_squares():
    steps, instruments, regressions, _ = prepared(DATA)
    psi, n = instruments.features(steps.states), len(steps)
    x = psi - steps.discounts[:, None] * instruments.features(steps.next_states)
    G, identity = psi.T @ psi, np.eye(psi.shape[1])
    penalties = np.full(len(G), oi.VALUE_PENALTY * np.trace(G) / len(G))
    penalties[len(instruments.points)] *= oi.LEVEL_PENALTY
    w = np.linalg.solve(psi.T @ x + np.diag(penalties), psi.T @ steps.rewards)
    assert_allclose(regressions.value_weights, w, rtol=1e-6)

    y = instruments.witnesses(steps)[:, 0]
    scores = []
    for penalty in oi.PENALTIES * np.trace(G) / len(G):
        hat = psi @ np.linalg.solve(G + penalty * identity, psi.T)
        scores.append(np.sum((y - hat @ y) ** 2) / (1 - np.trace(hat) / n) ** 2)
    best = oi.PENALTIES[np.argmin(scores)] * np.trace(G) / len(G)
    assert_allclose(regressions.shares[0], min(scores) / np.sum(y**2), rtol=1e-6)
    expected = y - psi @ np.linalg.solve(G + best * identity, psi.T @ y)
    witnesses, errors = regressions.residuals(steps, instruments)
    assert_allclose(witnesses[:, 0], expected, atol=1e-6)
    td_errors = steps.rewards - x @ w
    assert_allclose(errors, td_errors - psi @ regressions.error_weights, atol=1e-6)
    assert np.sum(errors**2) < np.sum(td_errors**2)


def test_neighbours_are_nearest_and_not_of_the_recent_past():
    steps, instruments, _, neighbours = prepared(DATA)
    z = instruments.along_axes(steps.states)
    expected = []
    for t in range(len(steps)):
        distance = np.linalg.norm(z - z[t], axis=1)
        near_in_time = (steps.stretch == steps.stretch[t]) & (np.abs(steps.number - steps.number[t]) <= oi.LAG)
        distance[near_in_time] = np.inf
        expected.append(neighbours.errors[np.argsort(distance)[: oi.N_NEIGHBOURS]].mean())
    assert_allclose(neighbours.errors_near(steps, instruments), expected, atol=1e-12)


def test_neighbours_may_be_absent():
    steps, instruments, _, neighbours = prepared(Drifting().sample(15, np.random.default_rng(0)))
    assert_array_equal(neighbours.errors_near(steps, instruments), np.zeros(15))


def test_restrictions_are_sums_over_steps():
    parts = prepared(DATA)
    a = oi.products(*parts)
    known = oi.restrictions(DATA, *parts[1:])
    assert_allclose(known.g, a.sum(axis=0), atol=1e-10)
    assert_allclose(known.S, a.T @ a, atol=1e-10)
    by_segment = [oi.restrictions(segment, *parts[1:]) for segment in DATA]
    total = sum(by_segment[1:], by_segment[0])
    assert_allclose(total.g, known.g, atol=1e-10)
    assert total.n_past == known.n_past == len(DATA) - 2 * DATA.n_segments


def test_overidentification_test_is_hotellings_where_all_steps_carry_alike():
    rng = np.random.default_rng(0)
    a = np.where(rng.random((500, 1)) < 0.55, 1.0, -1.0)
    steps = Steps.of(DATA)
    found = oi.OveridentificationTest.of(oi.Restrictions.of(a, steps), np.array([0]), a)
    t = a.sum() / np.sqrt(500)
    assert_allclose([found.statistic, found.dof, found.n_effective], [t**2, 1, 500])
    assert_allclose(found.pvalue, stats.f.sf(t**2 * 499 / 500, 1, 499))


def test_overidentification_test_counts_dependent_witnesses_once():
    a = np.random.default_rng(0).normal(size=(300, 2))
    steps = Steps.of(DATA)
    twice = np.column_stack([a, a @ [1.0, 2.0]])
    once = oi.OveridentificationTest.of(oi.Restrictions.of(a, steps), np.arange(2), a)
    again = oi.OveridentificationTest.of(oi.Restrictions.of(twice, steps), np.arange(3), twice)
    assert again.dof == once.dof == 2
    assert_allclose([again.statistic, again.pvalue, again.n_effective], [once.statistic, once.pvalue, once.n_effective])


def test_overidentification_test_of_few_effective_steps_says_nothing():
    a = np.zeros((300, 2))
    a[:2] = [[1.0, 0.0], [1.0, 2.0]]
    found = oi.OveridentificationTest.of(oi.Restrictions.of(a, Steps.of(DATA)), np.arange(2), a)
    assert found.dof == 2
    assert found.pvalue == 1.0
    assert oi.OveridentificationTest.of(oi.Restrictions.of(a, Steps.of(DATA)), np.arange(0), a).pvalue == 1.0


def test_regressions_leave_out_what_the_state_explains():
    rng = np.random.default_rng(0)
    speed = rng.normal(size=600).cumsum() * 0.1
    place = np.r_[0.0, np.cumsum(speed)[:-1]]  # its change is the speed a step ago, which x_{t−1} and x_t tell
    states = np.column_stack([place, np.r_[0.0, place[:-1]]])  # two frames: the first change follows from them
    data = Trajectories.from_episodes([dict(observations=states, rewards=place[:-1])], gamma=0.9)
    _, _, regressions, _ = prepared(data)
    assert regressions.shares[0] < 1e-3
    assert not regressions.counted[0]


def test_overidentification_test_counts_no_more_steps_than_it_says():
    a = np.random.default_rng(0).normal(0.1, 1.0, size=(3 * oi.MOST_STEPS, 1))
    known = oi.Restrictions(a.sum(axis=0), a.T @ a, len(a))
    found = oi.OveridentificationTest.of(known, np.array([0]), a)
    assert_allclose(found.statistic, a.sum() ** 2 / (a**2).sum() / 3)  # as of a third of the steps
    half = oi.OveridentificationTest.of(known, np.array([0]), a[::2])  # how evenly steps carry is known from a sample
    assert_allclose(half.n_effective, found.n_effective, rtol=0.1)
