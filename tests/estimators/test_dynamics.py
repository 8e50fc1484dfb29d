"""The dynamics model on systems that are known: errors, calibration, angles, walls, ends, simulation, files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import gptd_rl
from gptd_rl import DynamicsModel, Trajectories
from gptd_rl.exceptions import NotFittedError
from tests.systems import System, bent, straight, transitions

BENT = System(bent)
NOISY = System(bent, noise=(0.03, 0.1), reward=lambda x, a: x[:, 0] + a)
GOAL = System(straight, ends=lambda x: x[:, 0] > 0.6, reward=lambda x, a: -np.ones(len(x)), end_reward=-3.0)
PIT = System(straight, ends=lambda x: np.abs(x[:, 1]) > 0.7, reward=lambda x, a: np.ones(len(x)), end_reward=-5.0)


def parts(data: Trajectories) -> tuple[Any, ...]:
    """States, actions, next states, rewards and ends of single transitions."""
    assert data.actions is not None
    return data.states[::2], data.actions[::2], data.states[1::2], data.rewards[::2], data.terminated


@pytest.fixture(scope="module")
def smooth() -> DynamicsModel:
    return DynamicsModel().fit(BENT.sample(300, 0))


@pytest.fixture(scope="module")
def noisy() -> DynamicsModel:
    return DynamicsModel().fit(NOISY.sample(600, 0))


@pytest.fixture(scope="module")
def goal() -> DynamicsModel:
    return DynamicsModel().fit(GOAL.sample(400, 0))


# -------------------------------------------------------------------------------------- errors and calibration


@pytest.mark.parametrize("step", [straight, bent])
def test_predict_of_noiseless_dynamics_is_nearly_exact(step):
    model = DynamicsModel().fit(System(step).sample(300, 0))
    errors = model.errors(System(step).sample(300, 1))
    assert errors.relative.shape == (3,)
    assert errors.relative.max() < 1e-3
    assert errors.termination == 0.0
    assert not model.noise_.any()
    assert model.sample_residuals(5, np.random.default_rng(0)) is None


def test_noise_is_recovered(noisy):
    assert_allclose(noisy.noise_[:2], [0.03, 0.1], rtol=0.15)
    assert noisy.noise_[2] == 0.0  # the reward is a function of state and action


def test_intervals_of_predict_hold_the_outcomes_and_halved_ones_do_not(noisy):
    x, a, reached, *_ = parts(NOISY.sample(600, 1))
    outcome = noisy.predict(x, a, return_std=True)
    z = np.abs(outcome.next_states - reached) / outcome.next_state_std
    share, halved = (z < 1.96).mean(axis=0), (z < 0.98).mean(axis=0)
    assert ((share > 0.9) & (share < 0.99)).all()
    assert (halved < 0.9).all()  # the control
    assert 0.9 < noisy.errors(NOISY.sample(600, 2)).coverage <= 1.0


def test_uncertainty_grows_away_from_the_data(smooth):
    near, far = (smooth.predict(x, [0], return_std=True) for x in ([[0.0, 0.0]], [[4.0, 4.0]]))
    assert far.next_state_std[0, 1] > 10 * near.next_state_std[0, 1]


def test_irrelevant_noisy_inputs_do_not_hurt():
    def step(x, a):
        return np.column_stack([bent(x[:, :2], a), x[:, 2:]])

    system = System(step, low=(-1.0,) * 4, high=(1.0,) * 4, noise=(0.0, 0.0, 0.5, 0.5))
    model = DynamicsModel().fit(system.sample(300, 0))
    errors = model.errors(system.sample(200, 1))
    assert errors.relative[[0, 1, 4]].max() < 0.01
    assert (model.noise_ > 0).tolist() == [False, False, True, True, False]


def test_errors_in_values_are_those_of_r_plus_gamma_v(smooth, noisy):
    def value(x):
        return x[:, 1]

    data = System(straight).sample(50, 3)  # other dynamics than the model's
    x, a, reached, rewards, _ = parts(data)
    outcome = smooth.predict(x, a)
    real, predicted = rewards + 0.9 * reached[:, 1], outcome.rewards + 0.9 * outcome.next_states[:, 1]
    expected = np.median(np.abs(real - predicted)) / x[:, 1].std()
    assert expected > 0.05
    assert smooth.errors(data, value).value == pytest.approx(expected)
    assert np.isnan(smooth.errors(data).value)
    assert noisy.errors(NOISY.sample(300, 3), value).value < 0.03  # noise alone is no error


def test_constant_rewards_and_inputs_are_no_noise():
    data = System(bent, reward=lambda x, a: np.full(len(x), -0.1)).sample(150, 0)
    model = DynamicsModel().fit(data)
    assert not model.noise_.any()
    assert_allclose(model.predict([[0.1, 0.1]], [1]).rewards, -0.1, rtol=1e-12)


# -------------------------------------------------------------------------------------- angles, circles, walls


def test_an_angle_wraps():
    def turn(x, a):
        angle = x[:, 0] + 0.3 * x[:, 1]
        return np.column_stack([(angle + np.pi) % (2 * np.pi) - np.pi, x[:, 1] + 0.2 * np.sin(x[:, 0]) + 0.1 * a])

    system = System(turn, low=(-np.pi, -1.0), high=(np.pi, 1.0))
    model = DynamicsModel(bounds=([-np.pi, -9.0], [np.pi, 9.0])).fit(system.sample(300, 0))
    assert model.errors(system.sample(200, 1)).relative.max() < 2e-3
    reached = model.predict([[3.1, 0.9], [-3.1, -0.9]], [0, 0]).next_states
    assert_allclose(reached[:, 0], [3.37 - 2 * np.pi, 2 * np.pi - 3.37], atol=1e-3)


def test_cosine_and_sine_stay_on_the_circle():
    rng = np.random.default_rng(0)
    phi, spin, a = rng.uniform(-np.pi, np.pi, size=200), rng.uniform(-1.0, 1.0, size=200), rng.integers(2, size=200)
    then = phi + 0.3 * spin
    x, reached = (
        np.column_stack([np.cos(p), np.sin(p), s]) for p, s in ((phi, spin), (then, spin + 0.2 * np.sin(phi) + 0.1 * a))
    )
    model = DynamicsModel().fit(transitions(x[:150], a[:150], reached[:150], 0.0))
    found = model.predict(x[150:], a[150:]).next_states
    assert_allclose((found[:, :2] ** 2).sum(axis=1), 1.0, rtol=1e-12)
    assert_allclose(found, reached[150:], atol=5e-3)


def hits_wall(n: int, seed: int, low: float = -1.0):
    """A point mass (y, x, v): x stops at −1, and v is 0 then; y drifts along the wall."""
    rng = np.random.default_rng(seed)
    x, a = rng.uniform([-1.0, low, -0.5], [1.0, 1.0, 0.5], size=(n, 3)), rng.integers(2, size=n)
    reached = np.column_stack([0.9 * x[:, 0], x[:, 1] + 0.4 * x[:, 2], x[:, 2] + 0.1 * a - 0.05])
    stopped = reached[:, 1] < -1.0
    reached[stopped, 1:] = [-1.0, 0.0]
    return x, a, reached, stopped


BOUNDS = ([-5.0, -1.0, -5.0], [5.0, 5.0, 5.0])


@pytest.mark.parametrize("bounds", [None, BOUNDS])
def test_a_wall_stops_and_sets_the_speed_to_zero(bounds):
    x, a, reached, stopped = hits_wall(500, 0)
    assert stopped.sum() >= 10
    model = DynamicsModel(bounds=bounds).fit(transitions(x, a, reached, 0.0))
    x, a, reached, stopped = hits_wall(2000, 1)
    assert stopped.sum() > 20
    assert_allclose(model.predict(x, a).next_states, reached, atol=1e-3)


def test_one_row_at_a_known_bound_is_enough_and_fixes_nothing_else():
    x, a, reached, stopped = hits_wall(400, 0)
    first = np.flatnonzero(stopped)[0]
    kept = ~stopped | (np.arange(400) == first)
    model = DynamicsModel(bounds=BOUNDS).fit(transitions(x[kept], a[kept], reached[kept], 0.0))
    x, a, reached, stopped = hits_wall(2000, 1)
    found = model.predict(x[stopped], a[stopped]).next_states
    assert_allclose(found[:, 1], -1.0, atol=1e-12)
    assert_allclose(found[:, 2], 0.0, atol=1e-12)
    assert_allclose(found[:, 0], reached[stopped, 0], atol=1e-3)  # y goes on along the wall


def test_states_are_clipped_to_bounds():
    def clipped(x, a):
        return np.column_stack([x[:, 0], np.clip(x[:, 1] + 0.4 * (a - 0.5), -1.0, 1.0)])

    model = DynamicsModel(bounds=([-9.0, -1.0], [9.0, 1.0])).fit(System(clipped).sample(300, 0))
    x, a, reached, *_ = parts(System(clipped).sample(300, 1))
    assert_allclose(model.predict(x, a).next_states, reached, atol=1e-3)


# -------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("system", [GOAL, PIT], ids=["sought", "feared"])
def test_ends_and_rewards_on_ending(system):
    model = DynamicsModel().fit(system.sample(400, 0))
    assert model.terminations_ is not None
    assert (model.terminations_.is_sought == (system is GOAL)).all()
    x, a, _, rewards, ended = parts(system.sample(600, 1))
    assert 0.05 < ended.mean() < 0.6
    outcome = model.predict(x, a)
    assert (outcome.terminated == ended).mean() > 0.97
    right = outcome.terminated == ended
    assert_allclose(outcome.rewards[right], rewards[right], atol=1e-6)
    assert model.errors(system.sample(600, 1)).termination == pytest.approx((~right).mean())


def test_without_ends_nothing_is_terminal(smooth):
    assert smooth.terminations_ is None
    assert not smooth.outcomes(np.random.default_rng(0).normal(size=(50, 2))).terminated.any()


def test_ends_alone_are_terminal():
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(40, 2)), rng.integers(2, size=40)
    model = DynamicsModel().fit(transitions(x, a, straight(x, a), -1.0, True))
    assert model.predict(x, a).terminated.all()


def test_sought_ends_lie_within_the_range_of_known_ones(goal):
    ends, asked = goal.terminations_, np.random.default_rng(5).uniform(-3.0, 3.0, size=(400, 2))
    certain, possible = ends.both(asked)
    assert_array_equal(ends(asked), certain)
    within = ((asked >= ends.low) & (asked <= ends.high)).all(axis=1)
    assert_array_equal(certain, possible & within)
    assert certain.any() and (possible & ~certain).any()
    assert ((ends.ended >= ends.low) & (ends.ended <= ends.high)).all()


def test_who_explores_takes_possible_ends_for_ends(goal):
    model, ends = goal.snapshot(), goal.terminations_
    model.terminations_ = replace(ends, high=np.array([0.9, 9.0]))  # as if none beyond had been reached
    data = model.complete()
    doubtful = data.may_end & (data.discounts > 0)
    assert doubtful.any() and not doubtful[:400][np.arange(400), parts(GOAL.sample(400, 0))[1]].any()
    assert_array_equal(data.cautious_discounts(1.0), data.discounts)
    assert_array_equal(data.cautious_discounts(-1.0), np.where(data.may_end, 0.0, data.discounts))


# -------------------------------------------------------------------------------------- complete


def test_complete_keeps_what_was_done_and_adds_the_difference_of_predictions(noisy):
    x, a, reached, rewards, _ = parts(NOISY.sample(600, 0))
    data, rows = noisy.complete(), np.arange(600)
    assert data.n_actions == 2 and len(data) == 600 and data.gamma == 0.9
    assert_array_equal(data.next_states[rows, a], reached)
    assert_array_equal(data.rewards[rows, a], rewards)
    assert_array_equal(data.reward_std[rows, a], 0.0)
    predicted = noisy.outcomes(x).next_states
    inside = (np.abs(data.next_states) < [1.05, 1.2]).all(axis=(1, 2))  # nothing is clipped
    assert inside.sum() > 300
    difference = predicted[rows, 1 - a] - predicted[rows, a]
    assert_allclose((data.next_states[rows, 1 - a] - reached)[inside], difference[inside], atol=1e-10)
    assert_array_equal(data.discounts, 0.9)
    assert len(data.terminal_states) == 0


def test_complete_keeps_terminal_states_and_gives_rewards_on_ending_to_ends_only(goal):
    _, a, reached, _, ended = parts(GOAL.sample(400, 0))
    data, rows = goal.complete(), np.arange(400)
    assert_array_equal(data.terminal_states, reached[ended][-200:])
    assert_array_equal(data.discounts[rows, a], np.where(ended, 0.0, 0.9))
    others = data.discounts[rows, 1 - a] == 0.0
    assert_allclose(data.rewards[rows, 1 - a], np.where(others, -3.0, -1.0), atol=1e-6)


def test_complete_does_not_hand_on_a_reward_on_ending():
    """Left and right of a goal line, which only action 1 crosses: the other action costs what a step costs."""
    rng = np.random.default_rng(0)
    x, a = rng.uniform(0.0, 1.0, size=(300, 1)), rng.integers(2, size=300)
    reached = x + 0.3 * (2 * a[:, None] - 1)
    ended = reached[:, 0] > 1.0
    rewards = np.where(ended, 10.0, -1.0 + 0.5 * x[:, 0])
    data = DynamicsModel().fit(transitions(x, a, reached, rewards, ended)).complete()
    assert_allclose(data.rewards[ended, 0], -1.0 + 0.5 * x[ended, 0], atol=1e-3)


def test_complete_of_rows_stopped_at_a_wall_is_the_prediction_for_the_others():
    x, a, reached, stopped = hits_wall(500, 0)
    model = DynamicsModel(bounds=BOUNDS).fit(transitions(x, a, reached, 0.0))
    data, rows = model.complete(), np.flatnonzero(stopped)
    expected = model.outcomes(x[rows]).next_states[np.arange(len(rows)), 1 - a[rows]]
    assert_allclose(data.next_states[rows, 1 - a[rows]], expected, atol=1e-12)


def test_complete_adds_predicted_states(smooth):
    more = np.random.default_rng(1).uniform(-1.0, 1.0, size=(20, 2))
    data, outcome = smooth.complete(states=more), smooth.outcomes(more)
    assert len(data) == 320 and data.n_real == 300
    assert_array_equal(data.states[300:], more)
    assert_allclose(data.next_states[300:], outcome.next_states)
    assert_allclose(data.rewards[300:], outcome.rewards)
    assert (data.reward_std[300:] > 0).all()
    assert ((data.reward_std[:300] > 0).sum(axis=1) == 1).all()  # of the action not taken
    other = smooth.complete(BENT.sample(30, 4))
    assert_array_equal(other.states, BENT.sample(30, 4).states[::2])


def test_doubt_is_the_standard_deviation_of_the_posterior(smooth, noisy):
    x = np.random.default_rng(1).uniform(-2.0, 2.0, size=(60, 2))
    for output in (smooth.outputs_[1], smooth.outputs_[2], noisy.outputs_[1]):
        for action in (0, 1):
            actions = np.full(60, action)
            variance = output.posterior.variance(np.column_stack([x, actions]))
            assert_allclose(output.doubt(x, actions), np.sqrt(variance), rtol=1e-3)


# -------------------------------------------------------------------------------------- simulate


class Agent:
    def predict(self, states, deterministic=False):
        return (states[:, 0] > 0).astype(int), None


def by_sign(x):
    return int(x[0] > 0)


@pytest.mark.parametrize("policy", [by_sign, Agent()], ids=["callable", "predict"])
def test_simulate_iterates_predict(goal, policy):
    starts = np.array([[0.5, 0.9], [-0.9, -0.5], [0.0, 0.2]])
    data = goal.simulate(policy, starts, 12)
    assert data.n_segments == 3
    for i, start in enumerate(starts):
        rewards: list[float] = []
        x, states, ended = start, [start], False
        while not ended and len(rewards) < 12:
            outcome = goal.predict(x[None], [by_sign(x)])
            x, ended = outcome.next_states[0], bool(outcome.terminated[0])
            states.append(x)
            rewards.append(outcome.rewards[0])
        segment = data[i]
        assert_allclose(segment.states, states, atol=1e-10)
        assert_allclose(segment.rewards[:-1], rewards, atol=1e-10)
        assert bool(segment.terminated[0]) == ended
        assert segment.n_transitions == (len(rewards) if ended else 12)
    assert data.terminated.any() and not data.terminated.all()
    assert_allclose(data.discounts[data.has_transition], 0.9)


def test_simulate_with_noise_is_determined_by_its_seed(noisy):
    one, same, other = (noisy.simulate(None, np.zeros((4, 2)), 5, seed=seed).states for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.01


def test_the_mean_of_simulated_steps_is_the_predicted_one(noisy):
    n = 3000
    reached = noisy.simulate(lambda x: 1, np.zeros((n, 2)), 1).states[1::2]
    expected = noisy.predict([[0.0, 0.0]], [1]).next_states[0]
    assert_allclose(reached.mean(axis=0), expected, atol=5 * 0.1 / np.sqrt(n))
    assert_allclose(reached.std(axis=0), noisy.noise_[:2], rtol=0.1)


@pytest.mark.parametrize("action", [2, -1, 0.5, np.nan])
def test_simulate_refuses_unknown_actions(smooth, action):
    with pytest.raises(ValueError, match=r"^the policy must choose among the 2 actions 0 to 1 of the model\.$"):
        smooth.simulate(lambda x: action, [[0.0, 0.0]], 3)


def test_simulate_takes_another_discount_and_needs_a_start(smooth):
    assert smooth.simulate(None, [[0.0, 0.0]], 2, gamma=0.5).discounts[0] == 0.5
    with pytest.raises(ValueError, match="at least one state"):
        smooth.simulate(None, np.zeros((0, 2)), 2)
    with pytest.raises(ValueError, match="n_steps must be a whole number of at least 1; got 0"):
        smooth.simulate(None, [[0.0, 0.0]], 0)


# -------------------------------------------------------------------------------------- files, parameters, warm starts


def answers(model: DynamicsModel) -> list[np.ndarray]:
    x = np.random.default_rng(9).uniform(-1.0, 1.0, size=(40, model.n_dims_))
    a = np.arange(40) % model.n_actions_
    out = model.predict(x, a, return_std=True)
    assert out.next_state_std is not None and out.reward_std is not None
    simulated = model.simulate(None, x[:5], 6, seed=3)
    return [out.next_states, out.rewards, out.terminated, out.next_state_std, out.reward_std, simulated.states]


@pytest.mark.parametrize("name", ["smooth", "noisy", "goal", "wall"])
def test_a_saved_model_is_the_same(name, request, tmp_path):
    if name == "wall":
        x, a, reached, _ = hits_wall(300, 0)
        model = DynamicsModel(bounds=BOUNDS, n_actions=2).fit(transitions(x, a, reached, 0.0))
        assert model.walls_
    else:
        model = request.getfixturevalue(name)
    loaded = gptd_rl.load(model.save(tmp_path / "model.npz"))
    assert isinstance(loaded, DynamicsModel)
    for mine, theirs in zip(answers(loaded), answers(model), strict=True):
        assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)
    assert_allclose(loaded.complete().next_states, model.complete().next_states, atol=1e-10)
    assert loaded.get_params().keys() == model.get_params().keys()


def test_an_unfitted_model_says_so(tmp_path):
    for ask in (
        lambda m: m.save(tmp_path / "model.npz"),
        lambda m: m.predict([[0.0]], [0]),
        lambda m: m.complete(),
        lambda m: m.simulate(None, [[0.0]], 2),
        lambda m: m.errors(BENT.sample(20, 0)),
    ):
        with pytest.raises(NotFittedError, match=r"call fit\(data\) first"):
            ask(DynamicsModel())


def test_parameters_clone_and_repr(smooth):
    model = DynamicsModel(bounds=([-1.0, -np.inf], [1.0, np.inf]), max_rows=50, random_state=3)
    copy = clone(model)
    assert copy.get_params()["max_rows"] == 50 and copy.random_state == 3
    assert "max_rows=50" in repr(copy) and "subset_size" not in repr(copy)
    assert "fitted to 300 transitions of 2 state variables" in repr(smooth)
    assert not hasattr(clone(smooth), "outputs_")


def test_fits_are_determined_by_random_state():
    data = NOISY.sample(200, 0)
    one, same, other = (answers(DynamicsModel(max_rows=100, random_state=seed).fit(data))[0] for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-6


def test_warm_start_keeps_kernels_until_the_data_double():
    model = DynamicsModel(warm_start=True).fit(NOISY.sample(100, 0))

    def theta():
        selection = model.outputs_[1].selection
        assert selection is not None
        return selection.kernel.theta

    first = theta()
    model.fit(NOISY.sample(199, 1))
    assert_array_equal(theta(), first)
    assert len(model.transitions_) == 199
    model.fit(NOISY.sample(200, 1))
    assert np.abs(theta() - first).max() > 1e-6


def test_warm_start_begins_anew_for_states_of_another_width():
    model = DynamicsModel(warm_start=True).fit(BENT.sample(60, 0))
    x, a, reached, _ = hits_wall(60, 0)
    assert model.fit(transitions(x, a, reached, 0.0)).n_dims_ == 3
    model.set_params(bounds=([-np.pi, -5.0, -5.0], [np.pi, 5.0, 5.0])).fit(transitions(x, a, reached, 0.0))
    assert model.space_.angles == (0,)


def test_snapshot_outlives_the_next_fit():
    model = DynamicsModel().fit(BENT.sample(60, 0))
    before, kept = answers(model), model.snapshot()
    model.fit(NOISY.sample(60, 1))
    for mine, theirs in zip(answers(kept), before, strict=True):
        assert_array_equal(mine, theirs)


# -------------------------------------------------------------------------------------- bad input


def test_fit_refuses_what_it_cannot_learn_from():
    x, a, reached, *_ = parts(BENT.sample(20, 0))
    good = transitions(x, a, reached, 0.0)
    cases: list[tuple[Any, Any, str]] = [
        ({}, Trajectories(good.states, good.rewards, good.discounts, good.lengths, good.terminated), "have no actions"),
        ({}, transitions(x, a + 0.5, reached, 0.0), "needs numbered actions; got float64"),
        ({}, transitions(x, a * 1.0, reached, 0.0), "needs numbered actions; got float64"),
        (dict(n_actions=1), good, r"unknown action: .* is 1, but the 1 actions are 0 to 0"),
        ({}, transitions(x, a - 3, reached, 0.0), "unknown action"),
        (dict(n_actions=0), good, "n_actions must be a whole number of at least 1; got 0"),
        (dict(bounds=([0.0], [1.0])), good, "bounds must be two arrays of 2 numbers each; got 1 and 1"),
        (dict(bounds=([1.0, 1.0], [0.0, 2.0])), good, "bounds must be ordered; bounds of input 0 are 1 and 0"),
        (dict(max_rows=0), good, "max_rows must be a whole number of at least 1; got 0"),
        (dict(subset_size=1.5), good, "subset_size must be"),
        ({}, Trajectories.from_values(x, a, a), "have no transition"),
    ]
    for options, data, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            DynamicsModel(**options).fit(data)
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="expected Trajectories; got list"):
        DynamicsModel().fit([good])  # type: ignore[arg-type]


def test_a_fitted_model_refuses_other_states_and_actions(smooth):
    with pytest.raises(ValueError, match="knows states of 2 numbers; got 3"):
        smooth.predict(np.zeros((1, 3)), [0])
    with pytest.raises(ValueError, match=r"states must be finite; states\[0, 1\] is nan"):
        smooth.predict([[0.0, np.nan]], [0])
    with pytest.raises(ValueError, match=r"unknown action: .* is 2, but the 2 actions are 0 to 1"):
        smooth.predict([[0.0, 0.0]], [2])
    with pytest.raises(ValueError, match="one action for each of 1 states; got 2"):
        smooth.predict([[0.0, 0.0]], [0, 1])
    x, a, reached, _ = hits_wall(20, 0)
    with pytest.raises(ValueError, match="knows states of 2 numbers; got 3"):
        smooth.complete(transitions(x, a, reached, 0.0))
    with pytest.raises(ValueError, match="knows 2 actions; got 4"):
        smooth.errors(transitions(x[:, :2], a + 2, reached[:, :2], 0.0))
