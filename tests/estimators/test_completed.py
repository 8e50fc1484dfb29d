"""Q of the greedy policy from completed transitions: value iteration by hand, softness, the smoother, files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTDQ, DynamicsModel, Trajectories
from gptd_rl import load as load_model
from gptd_rl.estimators import completed, greedy
from gptd_rl.estimators.completed import CompletedFit, CompletedProblem, soften, solve_completed
from gptd_rl.exceptions import NotFittedError
from gptd_rl.kernels import ARD, MultiScale, SquaredExponential
from tests.systems import System, bent, cells, corridor, corridor_q, transitions

SHARP = SquaredExponential(ARD([9.0])).fix("v0", "a1")  # cells hardly know of each other


@pytest.fixture(scope="module")
def corridor_model() -> DynamicsModel:
    model = DynamicsModel(n_actions=3, bounds=([0.0], [6.0])).fit(corridor())
    outcome = model.outcomes(cells())
    reached = np.maximum(cells() + np.array([-1.0, 0.0, 1.0]), 0.0)
    assert_allclose(outcome.next_states[..., 0], reached, atol=1e-6)  # an exact model
    assert_array_equal(outcome.terminated, reached == 6.0)
    return model


@pytest.fixture
def converged(monkeypatch):
    """Iterate until nothing changes."""
    monkeypatch.setattr(greedy, "CONVERGED", 1e-9)
    monkeypatch.setattr(completed, "CONVERGED", 1e-6)


def some_pairs_missing() -> Trajectories:
    """The corridor with one action in each cell: left in odd ones, right in even ones, and stay at the end."""
    data = corridor(1)
    assert data.actions is not None
    x, a = data.states[::2, 0], data.actions[::2]
    return data[np.flatnonzero(a == np.where(x % 2 == 0, 2, 0))]


# -------------------------------------------------------------------------------------- value iteration by hand


@pytest.mark.usefixtures("converged")
@pytest.mark.parametrize("kernel", [SHARP, "ard"])
def test_gptdq_with_an_exact_model_is_value_iteration(corridor_model, kernel):
    q = GPTDQ(kernel, noise_share=1e-6).fit(corridor(), policy="greedy", model=corridor_model)
    assert isinstance(q.greedy_, CompletedFit)
    assert_allclose(q.q_values(cells()), corridor_q(), atol=5e-3)
    assert_array_equal(q.greedy_actions(cells()), 2)


@pytest.mark.usefixtures("converged")
def test_gptdq_without_a_model_is_value_iteration():
    q = GPTDQ(SHARP, noise_share=1e-6).fit(corridor(), policy="greedy")
    assert_allclose(q.q_values(cells()), corridor_q(), atol=5e-3)


@pytest.mark.usefixtures("converged")
@pytest.mark.parametrize("softness", [0.1, 0.5, 1.0])
def test_gptdq_with_softness_is_the_fixed_point_of_the_soft_backup(corridor_model, softness):
    q = GPTDQ(SHARP, noise_share=1e-6, softness=softness).fit(corridor(), policy="greedy", model=corridor_model)
    truth = corridor_q(softness)
    assert np.abs(truth - corridor_q()).max() > 0.05
    assert_allclose(q.q_values(cells()), truth, atol=5e-3)


@pytest.mark.usefixtures("converged")
def test_a_model_knows_what_actions_never_tried_lead_to(corridor_model):
    data = some_pairs_missing()
    q = GPTDQ(SHARP, noise_share=1e-6, n_actions=3).fit(data, policy="greedy", model=corridor_model)
    assert_allclose(q.q_values(cells()), corridor_q(), atol=5e-3)
    without = GPTDQ(SHARP, noise_share=1e-6, n_actions=3).fit(data, policy="greedy")
    assert np.abs(without.q_values(cells()) - corridor_q()).max() > 1.0


def test_soften_is_between_the_largest_and_the_mean():
    q = np.array([[1.0, 3.0], [0.0, -4.0]])
    assert_allclose(soften(q, 0.0), [3.0, 0.0])
    assert_allclose(soften(q, 1.0), [2.0, -2.0])
    assert_allclose(soften(q, 0.25), [2.75, -0.5])


# -------------------------------------------------------------------------------------- the smoother


def valley(n: int = 120):
    ends = System(bent, ends=lambda x: x[:, 0] > 0.8, reward=lambda x, a: -1.0 - x[:, 1] ** 2)
    data = ends.sample(n, 0)
    return data, DynamicsModel().fit(data)


def test_differences_of_actions_are_smoothed_differences_of_targets():
    _, model = valley()
    kernel = MultiScale(ARD([2.0, 2.0])).fix("a1", "a2")
    completed_data, share = model.complete(), 0.01
    fit, selection = solve_completed(completed_data, kernel, 40, 0.1, share, "smallest", np.random.default_rng(0))
    assert selection is None and fit.values is not None and fit.states is not None
    n, k = len(completed_data), len(completed_data.terminal_states)
    assert k > 0 and fit.states.shape == (n + k, 2)
    # Φ = K_nm L⁻ᵀ, S = Φ(ΦᵀΦ + λI)⁻¹Φᵀ
    Z = fit.posterior.inducing_points
    Phi = np.linalg.solve(np.linalg.cholesky(kernel(Z, Z)), kernel(Z, fit.states)).T
    S = Phi @ np.linalg.inv(Phi.T @ Phi + share * np.eye(len(Z))) @ Phi.T
    y = completed_data.rewards + completed_data.discounts * fit.values
    y = np.concatenate([y, np.zeros((k, 2))])
    q = fit.posterior.q_values(fit.states)
    assert_allclose(q[:, 1] - q[:, 0], S @ (y[:, 1] - y[:, 0]), atol=1e-6)
    mu = fit.posterior.mean_function.prior_mean
    assert_allclose(q, mu + S @ (y - mu), atol=1e-6)
    assert mu == pytest.approx(y.min(), rel=1e-2)


def test_solutions_are_fixed_points_within_the_bounds_of_the_rewards():
    _, model = valley()
    kernel, rng = MultiScale(ARD([2.0, 2.0])), np.random.default_rng(0)
    problem = CompletedProblem.of(model.complete(), kernel, 60, rng)
    settings: Any = dict(softness=0.1, noise_share=0.01, prior_mean="smallest")
    fit = problem.solve(**settings)
    assert fit.values is not None
    low, high = problem.bounds
    assert (low, high) == (pytest.approx(problem.data.rewards.min() / (1 - 0.9)), 0.0)
    assert (fit.values >= low).all() and (fit.values <= high).all()
    again = problem.solve(**settings, values=fit.values)
    assert again.n_iterations < fit.n_iterations
    assert again.values is not None
    assert_allclose(again.values, fit.values, atol=0.05 * fit.values.std())
    assert_array_equal(fit.values[problem.data.discounts == 0.0], 0.0)


@pytest.mark.parametrize(("prior_mean", "expected"), [("largest", 0.0), (-2.5, -2.5)])
def test_far_from_the_data_q_is_the_prior_mean(prior_mean, expected):
    _, model = valley()
    problem = CompletedProblem.of(model.complete(), MultiScale(ARD([2.0, 2.0])), 40, np.random.default_rng(0))
    fit = problem.solve(softness=0.0, noise_share=0.01, prior_mean=prior_mean)
    assert_allclose(fit.posterior.q_values(np.array([[1e4, 1e4]])), expected, atol=1e-9)


def test_caution_lowers_values_where_rewards_are_unknown():
    _, model = valley()
    far = np.random.default_rng(1).uniform(-4.0, -2.0, size=(20, 2))
    problem = CompletedProblem.of(model.complete(states=far), MultiScale(ARD([2.0, 2.0])), 60, np.random.default_rng(0))
    settings: Any = dict(softness=0.0, noise_share=0.01, prior_mean="smallest")
    bold, cautious = (problem.solve(**settings, caution=c).posterior.q_values(far) for c in (0.0, 3.0))
    assert cautious.mean() < bold.mean()


def test_gptdq_selects_the_relevant_input():
    rng = np.random.default_rng(0)
    x, a = rng.uniform(-1.0, 1.0, size=(200, 3)), rng.integers(2, size=200)
    reached = np.clip(x + 0.3 * (a[:, None] - 0.5) * [0.0, 1.0, 0.0], -1.0, 1.0)
    data = transitions(x, a, reached, np.cos(3.0 * x[:, 1]))
    model = DynamicsModel().fit(data)
    q = GPTDQ(subset_size=80).fit(data, policy="greedy", model=model)
    assert q.greedy_ is not None and q.greedy_.selection is not None
    assert q.relevances_.argmax() == 1
    asked = np.array([[0.3, -0.7, 0.1], [-0.5, 0.7, 0.8]])
    assert_array_equal(q.greedy_actions(asked), [1, 0])  # to the middle


# -------------------------------------------------------------------------------------- the estimator


@pytest.mark.parametrize("kernel", [SHARP, "ard"])
def test_a_fit_with_a_model_can_be_saved(corridor_model, tmp_path, kernel):
    q = GPTDQ(kernel, softness=0.2, mean=-3.0).fit(corridor(), policy="greedy", model=corridor_model)
    loaded = load_model(q.save(tmp_path / "q.npz"))
    assert isinstance(loaded.greedy_, CompletedFit) and loaded.softness == 0.2 and loaded.mean == -3.0
    for mine, theirs in zip(loaded.q_values(cells(), True), q.q_values(cells(), True), strict=True):
        assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
    assert_allclose(loaded.sample(cells(), 3, seed=0), q.sample(cells(), 3, seed=0), atol=1e-6)
    assert (loaded.greedy_.selection is None) == (q.greedy_.selection is None) == (kernel is SHARP)
    assert loaded.log_marginal_likelihood_ == pytest.approx(q.log_marginal_likelihood_, rel=1e-8)


def test_adopt_makes_the_estimator_of_a_fit_that_was_made_elsewhere(corridor_model):
    data = corridor()
    q = GPTDQ(SHARP, n_actions=3).fit(data, policy="greedy", model=corridor_model)
    assert q.greedy_ is not None
    other = GPTDQ(SHARP, n_actions=3).adopt(q.greedy_, data)
    assert_array_equal(other.q_values(cells()), q.q_values(cells()))
    assert other.greedy_ is q.greedy_


def test_fits_with_a_model_are_deterministic(corridor_model):
    one, same = (GPTDQ().fit(corridor(), policy="greedy", model=corridor_model).q_values(cells()) for _ in range(2))
    assert_array_equal(one, same)


@pytest.mark.parametrize("softness", [-0.1, 1.1, np.nan, "much", None])
def test_softness_is_a_share(softness):
    with pytest.raises(ValueError, match=r"^softness must lie in \[0, 1\]; got .*\.$"):
        GPTDQ(softness=softness).fit(corridor(), policy="greedy")


def test_a_wrong_model_is_refused(corridor_model):
    data: Any = corridor()
    cases: list[tuple[Any, Any, Any, type[Exception], str]] = [
        ({}, "greedy", DynamicsModel(), NotFittedError, r"has not been fitted yet: call fit\(data\) first"),
        ({}, "greedy", GPTDQ(), TypeError, "model must be a fitted DynamicsModel; got GPTDQ"),
        (dict(n_actions=4), "greedy", corridor_model, ValueError, "1 state variables and 3 actions, .* have 1 and 4"),
        ({}, None, corridor_model, ValueError, "a model is for policy='greedy'"),
        ({}, lambda x: 1, corridor_model, ValueError, "a model is for policy='greedy'"),
        ({}, "best", corridor_model, ValueError, "policy must be 'greedy'"),
        (dict(action_correlation=0.5), "greedy", corridor_model, ValueError, "no correlation of actions"),
        (dict(noise_share=0.0), "greedy", corridor_model, ValueError, "noise_share must be positive; got 0"),
        (dict(kernel="isotropic"), "greedy", corridor_model, ValueError, "takes kernel='ard' or a kernel object"),
        (dict(kernel=SquaredExponential(ARD([1.0, 1.0]))), "greedy", corridor_model, ValueError, "has 2 dimensions"),
    ]
    for options, policy, model, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            GPTDQ(**options).fit(data, policy=policy, model=model)
        assert "\n" not in str(caught.value)
    wide = transitions(np.zeros((3, 2)), np.array([0, 1, 2]), np.ones((3, 2)), 0.0)
    with pytest.raises(ValueError, match="1 state variables and 3 actions, the data have 2 and 3"):
        GPTDQ().fit(wide, policy="greedy", model=corridor_model)


def test_a_discount_of_one_is_refused(corridor_model):
    x = cells()
    endless = transitions(x, np.arange(6) % 3, x, -1.0, False, 1.0)
    with pytest.raises(ValueError, match="needs a discount below 1; got 1"):
        GPTDQ().fit(endless, policy="greedy", model=corridor_model)
