"""The dynamics model on systems that are known: errors, calibration, angles, parameters, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from gptd_rl import DynamicsModel, Trajectories
from tests.estimators.dynamics.cases import BENT, NOISY, answers, hits_wall, parts
from tests.systems import System, bent, straight, transitions


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


# -------------------------------------------------------------------------------------- angles, circles


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


# -------------------------------------------------------------------------------------- parameters, warm starts


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
