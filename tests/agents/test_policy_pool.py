"""What policy iteration is made of: the regression for Q against dense algebra, its kernel, trials, and the memory."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.agents import fitted_q
from gptd_rl.agents.fitted_q import Critic, Design, QFunction, _Regression, fit_q, value_bounds
from gptd_rl.agents.multiscale import SCALES, WEIGHTS, MultiScale
from gptd_rl.agents.policy_pool import ENOUGH, KEPT, RECENT, Episode, Trial, Trials
from gptd_rl.agents.relevance import MAX_TARGETS, _minus_log_evidence, select_relevances, spread
from gptd_rl.agents.replay import Memory, Transitions
from tests.helpers import MIXES, assert_same, central_differences, sample

RHOS = (0.0, 0.3, 0.95)

every_rho = pytest.mark.parametrize("rho", RHOS)


# -------------------------------------------------------------------------------------- references


def naive_multiscale(relevances: np.ndarray, states: np.ndarray, others: np.ndarray) -> np.ndarray:
    K = np.empty((len(states), len(others)))
    for i, x in enumerate(states):
        for j, y in enumerate(others):
            d2 = sum(w * (a - b) ** 2 for w, a, b in zip(relevances, x, y, strict=True))
            K[i, j] = sum(w * np.exp(-d2 / (2 * s**2)) for w, s in zip(WEIGHTS, SCALES, strict=True))
    return K


def alike(actions: np.ndarray, others: np.ndarray, rho: float) -> np.ndarray:
    return np.where(actions[:, None] == others, 1.0, rho)


def dense_precision(features: np.ndarray, actions: np.ndarray, n_actions: int, critic: Critic) -> tuple[Any, Any]:
    """P = ΦᵀΦ + λ(R ⊗ I)⁻¹ and Φ [n, |A|·m], the weights of one action after those of the other."""
    n, m = features.shape
    Phi = np.zeros((n, n_actions * m))
    for i, a in enumerate(actions):
        Phi[i, a * m : (a + 1) * m] = features[i]
    numbers = np.arange(n_actions)
    prior = np.kron(alike(numbers, numbers, critic.action_correlation), np.eye(m))
    return Phi.T @ Phi + critic.noise_share * np.linalg.inv(prior), Phi


def bandit(n: int, n_actions: int = 3, seed: int = 0) -> Transitions:
    """Transitions that all terminate, from states of two numbers that lie apart."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-4.0, 4.0, size=(n, 2))
    actions = rng.integers(n_actions, size=n)
    over = np.ones(n, dtype=bool)
    rewards = np.sin(states[:, 0]) + 0.3 * actions
    return Transitions(states, actions, rewards, states + 1.0, over, over, np.zeros(n, dtype=np.int64))


def make_design(data: Transitions, n_actions: int, gamma: float = 0.9, subset_size: int = 500) -> Design:
    kernel = MultiScale(np.ones(data.states.shape[1]))
    return Design.of(data, n_actions, gamma, kernel, subset_size, np.random.default_rng(0))


# -------------------------------------------------------------------------------------- the regression


@every_rho
@pytest.mark.parametrize("n_actions", [1, 2, 4])
def test_coupled_equations_against_the_whole_system(rho, n_actions):
    rng = np.random.default_rng(0)
    features, actions, targets = rng.normal(size=(30, 5)), rng.integers(n_actions, size=30), rng.normal(size=30)
    critic = Critic(0.03, rho)
    w = _Regression.of(features, actions, n_actions, critic).solve(targets)
    P, Phi = dense_precision(features, actions, n_actions, critic)
    expected = np.linalg.solve(P, Phi.T @ targets).reshape(n_actions, 5).T
    assert_allclose(w, expected, rtol=1e-8, atol=1e-10)


@every_rho
def test_an_action_never_tried_is_like_the_others_as_far_as_they_are_correlated(rho):
    rng = np.random.default_rng(1)
    features, targets = rng.normal(size=(20, 4)), rng.normal(size=20)
    critic = Critic(0.1, rho)
    w = _Regression.of(features, np.zeros(20, dtype=np.int64), 2, critic).solve(targets)
    assert_allclose(w[:, 1], rho * w[:, 0], rtol=1e-8, atol=1e-12)
    assert_allclose(w[:, 0], np.linalg.solve(features.T @ features + 0.1 * np.eye(4), features.T @ targets), rtol=1e-8)


@every_rho
def test_with_all_states_in_the_subset_q_is_plain_regression(rho):
    data = bandit(25)
    design, critic = make_design(data, 3), Critic(0.02, rho)
    assert len(design.subset) == len(data)
    fit = fit_q(design, critic, np.random.default_rng(0))
    K = naive_multiscale(np.ones(2), data.states, data.states) * alike(data.actions, data.actions, rho)
    weights = np.linalg.solve(K + 0.02 * np.eye(25), data.rewards - fit.bounds[1])
    asked = np.random.default_rng(2).uniform(-5.0, 5.0, size=(40, 2))
    k = naive_multiscale(np.ones(2), asked, data.states)
    expected = [fit.bounds[1] + (k * alike(np.full(40, a), data.actions, rho)) @ weights for a in range(3)]
    assert_allclose(fit.q.values(asked), np.array(expected).T, rtol=1e-6, atol=1e-8)
    assert_array_equal(fit.q.greedy(asked), np.argmax(expected, axis=0))
    fitted = fit.q.values(data.states)[np.arange(25), data.actions]
    assert fit.residual == pytest.approx(np.sqrt(np.mean((fitted - data.rewards) ** 2)), rel=1e-6)


def test_what_was_never_seen_is_worth_the_most_there_can_be():
    fit = fit_q(make_design(bandit(25), 3), Critic(0.02, 0.3), np.random.default_rng(0))
    assert_allclose(fit.q.values(np.array([[1e3, 1e3]])), fit.bounds[1], rtol=1e-12)


def test_the_subset_is_no_larger_than_asked():
    data = bandit(60)
    design = make_design(data, 3, subset_size=7)
    assert design.subset.shape == (7, 2) and design.features.shape == design.ahead.shape == (60, 7)
    assert {tuple(x) for x in design.subset} <= {tuple(x) for x in data.states}
    # φᵀφ' is the kernel, between states of the subset
    again = np.array([np.flatnonzero((data.states == x).all(axis=1))[0] for x in design.subset])
    phi = design.features[again]
    assert_allclose(phi @ phi.T, design.kernel(design.subset, design.subset), atol=1e-10)


def test_a_subset_is_chosen_from_some_of_the_states_if_there_are_many(monkeypatch):
    monkeypatch.setattr(fitted_q, "MAX_CANDIDATES", 20)
    data = bandit(60)
    one, other = (
        Design.of(data, 3, 0.9, MultiScale(np.ones(2)), 500, np.random.default_rng(seed)).subset for seed in (0, 1)
    )
    assert len(one) <= 20 and len(other) <= 20
    assert {tuple(x) for x in one} != {tuple(x) for x in other}


@every_rho
def test_draws_have_the_mean_and_the_covariance_of_the_posterior(rho):
    """w ~ N(P⁻¹Φᵀy, σ²P⁻¹) with σ the residual; seen through Q at the subset."""
    rng = np.random.default_rng(3)
    states = np.repeat([[0.0], [1.0]], 4, axis=0)
    actions = np.array([0, 0, 0, 1, 1, 0, 0, 0])
    over = np.ones(8, dtype=bool)
    data = Transitions(states, actions, rng.normal(size=8), states, over, over, np.zeros(8, dtype=np.int64))
    design, critic, n_draws = make_design(data, 2), Critic(0.5, rho), 4000
    fits = [fit_q(design, critic, rng) for _ in range(n_draws)]
    assert len(design.subset) == 2
    # Q(x, a) = μ + φ(x)ᵀw_a
    back = np.linalg.inv(np.linalg.cholesky(design.kernel(design.subset, design.subset)))
    drawn = np.array([(back @ (f.draw.values(design.subset) - f.bounds[1])).T.ravel() for f in fits])
    P, Phi = dense_precision(design.features, actions, 2, critic)
    mean = np.linalg.solve(P, Phi.T @ (data.rewards - fits[0].bounds[1]))
    whitened = (drawn - mean) @ np.linalg.cholesky(P) / fits[0].residual  # N(0, I)
    assert np.abs(whitened.mean(axis=0)).max() < 4.5 / np.sqrt(n_draws)
    assert np.abs(np.cov(whitened.T) - np.eye(4)).max() < 4.5 * np.sqrt(2.0 / n_draws)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0.0, 0.5), "noise_share must be positive; got 0"),
        ((-1.0, 0.5), "noise_share must be positive; got -1"),
        ((np.nan, 0.5), "noise_share must be positive; got nan"),
        ((0.1, 1.0), r"action_correlation must lie in \[0, 1\); got 1"),
        ((0.1, -0.1), r"action_correlation must lie in \[0, 1\); got -0.1"),
        ((0.1, np.nan), r"action_correlation must lie in \[0, 1\); got nan"),
    ],
)
def test_critics_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Critic(*options)


# -------------------------------------------------------------------------------------- sweeps


N_STATES, N_ACTIONS = 6, 3


def tabular(ends: str, seed: int = 0) -> tuple[Transitions, np.ndarray, np.ndarray, np.ndarray]:
    """A random deterministic MDP, each state and action tried twice: data, next states, rewards, and what terminates.

    A third of the transitions end an episode, by being 'terminated' or 'truncated'.
    """
    rng = np.random.default_rng(seed)
    reached = rng.integers(N_STATES, size=(N_STATES, N_ACTIONS))
    rewards = rng.normal(size=(N_STATES, N_ACTIONS))
    over = rng.random((N_STATES, N_ACTIONS)) < 1 / 3
    assert over.any() and not over.all()
    x, a = (np.tile(i.ravel(), 2) for i in np.indices((N_STATES, N_ACTIONS)))
    hot = np.eye(N_STATES)
    terminated = over if ends == "terminated" else np.zeros_like(over)
    data = Transitions(
        hot[x], a, rewards[x, a], hot[reached[x, a]], terminated[x, a], over[x, a], np.zeros(len(x), dtype=np.int64)
    )
    return data, reached, rewards, terminated


def optimal_q(reached: np.ndarray, rewards: np.ndarray, terminated: np.ndarray, gamma: float) -> np.ndarray:
    Q = np.zeros_like(rewards)
    for _ in range(2000):
        Q = rewards + gamma * ~terminated * Q.max(axis=1)[reached]
    return Q


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_q_of_a_small_mdp_is_the_optimal_one(ends, rho, monkeypatch):
    data, reached, rewards, terminated = tabular(ends)
    truth = optimal_q(reached, rewards, terminated, 0.8)
    design, critic = make_design(data, N_ACTIONS, gamma=0.8), Critic(1e-9, rho)
    fit = fit_q(design, critic, np.random.default_rng(0))
    assert_allclose(fit.q.values(np.eye(N_STATES)), truth, atol=0.02 * truth.std())
    assert 1 < fit.n_sweeps < 100
    assert fit.residual < 1e-3
    other = optimal_q(reached, rewards, ~terminated, 0.8)
    assert np.abs(other - truth).max() > 0.5  # ends matter here
    monkeypatch.setattr(fitted_q, "SETTLED", 1e-12)
    exact = fit_q(design, critic, np.random.default_rng(0))
    assert_allclose(exact.q.values(np.eye(N_STATES)), truth, atol=1e-6)
    x = data.states.argmax(axis=1)
    assert_allclose(exact.targets, truth[x, data.actions], atol=1e-6)


def test_sweeps_may_start_from_another_q():
    data, *_ = tabular("terminated")
    design, critic = make_design(data, N_ACTIONS, gamma=0.8), Critic(1e-9, 0.3)
    first = fit_q(design, critic, np.random.default_rng(0))
    again = fit_q(design, critic, np.random.default_rng(0), first.q)
    assert again.n_sweeps < first.n_sweeps
    assert_allclose(again.q.values(np.eye(N_STATES)), first.q.values(np.eye(N_STATES)), atol=0.02)
    lost = QFunction(first.q.kernel, first.q.subset, 1e6 * np.ones_like(first.q.weights), 1e9)
    assert fit_q(design, critic, np.random.default_rng(0), lost).n_sweeps <= first.n_sweeps  # it is brought to bounds


def test_sweeps_come_to_an_end(monkeypatch):
    monkeypatch.setattr(fitted_q, "MAX_SWEEPS", 3)
    monkeypatch.setattr(fitted_q, "SETTLED", 0.0)
    data, *_ = tabular("truncated")
    assert fit_q(make_design(data, N_ACTIONS, gamma=0.99), Critic(1e-3, 0.3), np.random.default_rng(0)).n_sweeps == 3


@pytest.mark.parametrize(
    ("rewards", "bounds"),
    [
        ([-1.0, -1.0], (-10.0, 0.0)),
        ([-2.0, 3.0], (-20.0, 30.0)),
        ([1.0, 2.0], (0.0, 20.0)),
        ([0.0, 0.0], (0.0, 0.0)),
    ],
)
def test_values_lie_between_those_of_the_extreme_rewards_for_ever(rewards, bounds):
    assert value_bounds(np.array(rewards), 0.9) == pytest.approx(bounds)


def test_targets_stay_within_bounds_where_q_does_not():
    rng = np.random.default_rng(5)
    n = 60
    states = rng.uniform(-2.0, 2.0, size=(n, 1))
    flags = np.zeros(n, dtype=bool)
    rewards = np.sign(states[:, 0]) * rng.uniform(0.9, 1.0, size=n)
    data = Transitions(
        states, rng.integers(2, size=n), rewards, 1.3 * states, flags, flags, np.zeros(n, dtype=np.int64)
    )
    fit = fit_q(make_design(data, 2, gamma=0.9), Critic(1e-3, 0.3), np.random.default_rng(0))
    low, high = fit.bounds
    assert (low, high) == value_bounds(rewards, 0.9)
    ahead = fit.q.values(data.reached).max(axis=1)
    assert ahead.max() > high or ahead.min() < low  # so there was something to do
    assert ((fit.targets >= rewards + 0.9 * low - 1e-9) & (fit.targets <= rewards + 0.9 * high + 1e-9)).all()


@pytest.mark.parametrize("reward", [0.0, 1.0, -1.0])
def test_a_single_transition_gives_a_q(reward):
    over = np.zeros(1, dtype=bool)
    data = Transitions(
        np.zeros((1, 2)), over.astype(np.int64), np.array([reward]), np.ones((1, 2)), over, over, over.astype(np.int64)
    )
    fit = fit_q(make_design(data, 2), Critic(1e-3, 0.8), np.random.default_rng(0))
    assert np.isfinite(fit.q.values(np.zeros((1, 2)))).all()
    assert np.isfinite(fit.draw.values(np.zeros((1, 2)))).all()


# -------------------------------------------------------------------------------------- the kernel


def test_multiscale_is_the_sum_of_its_five_scales():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 3)), 3.0 * rng.normal(size=(5, 3))
    relevances = np.array([0.3, 2.0, 0.0])
    kernel = MultiScale(relevances)
    assert_allclose(kernel(x, y), naive_multiscale(relevances, x, y), rtol=1e-10)
    assert_allclose(kernel(x, y), kernel(y, x).T, rtol=1e-12)
    x[:, 2] += 9.0  # what has no relevance changes nothing
    assert_allclose(kernel(x, y), naive_multiscale(relevances, x, y), rtol=1e-10)


def test_multiscale_is_symmetric_and_positive_definite_with_ones_on_the_diagonal():
    x = np.random.default_rng(1).normal(size=(40, 2))
    kernel = MultiScale(np.array([1.0, 0.5]))
    K = kernel(x, x)
    assert_allclose(K, K.T, atol=1e-14)
    assert_allclose(np.diagonal(K), 1.0, atol=1e-12)
    assert_array_equal(kernel.diagonal(x), np.ones(40))
    assert np.linalg.eigvalsh(K).min() > 0
    assert (K <= 1.0 + 1e-12).all()


def test_the_slope_of_multiscale_by_finite_differences():
    kernel, h = MultiScale(np.array([1.0])), 1e-5
    distances = np.array([0.3, 1.0, 2.5, 7.0])  # d, and ½d² a little off

    def at(half_squares):
        return kernel(np.zeros((1, 1)), np.sqrt(2.0 * half_squares)[:, None])[0]

    half_squares = 0.5 * distances**2
    K, slope = kernel.with_slope(np.zeros((1, 1)), distances[:, None])
    assert_allclose(K[0], kernel(np.zeros((1, 1)), distances[:, None])[0], rtol=1e-14)
    assert_allclose(slope[0], -(at(half_squares + h) - at(half_squares - h)) / (2 * h), rtol=1e-6)


# -------------------------------------------------------------------------------------- relevances


@every_rho
def test_the_gradient_of_the_evidence_by_finite_differences(rho):
    rng = np.random.default_rng(0)
    x, y, actions = rng.normal(size=(25, 3)), rng.normal(size=25), rng.integers(2, size=25)
    tied = alike(actions, actions, rho)
    theta = np.log([0.5, 2.0, 0.1, 1.5, 0.05])
    value, gradient = _minus_log_evidence(theta, x, y, tied)
    S = 1.5 * naive_multiscale(np.array([0.5, 2.0, 0.1]), x, x) * tied + 0.05 * np.eye(25)
    _, log_det = np.linalg.slogdet(S)
    dense = 0.5 * y @ np.linalg.solve(S, y) + 0.5 * log_det + 12.5 * np.log(2 * np.pi)
    assert value == pytest.approx(dense, rel=1e-10)
    numeric = central_differences(lambda t: _minus_log_evidence(t, x, y, tied)[0], theta)
    assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-6)


def one_of_many(n: int, n_dims: int = 11, relevant: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, actions = rng.normal(size=(n, n_dims)), rng.integers(2, size=n)
    return x, actions, np.sin(2.0 * x[:, relevant]) + 0.5 * actions + 0.05 * rng.normal(size=n)


def test_the_one_input_that_matters_is_found_among_many():
    x, actions, y = one_of_many(150)
    selection = select_relevances(x, actions, 100.0 * y - 500.0, 0.8, np.random.default_rng(0))
    relevances = selection.kernel.relevances * spread(x) ** 2
    assert relevances.argmax() == 4
    assert relevances[4] >= 1.0 - 1e-9  # it never counts less
    assert np.delete(relevances, 4).max() < 0.05 * relevances[4]
    assert selection.noise_variance < 0.1 * np.var(100.0 * y)
    assert selection.n_targets == 150


def test_evidence_is_that_of_the_targets_as_they_are():
    """In the units of the targets: ten times the targets, density a tenth for each."""
    x, actions, y = one_of_many(60, n_dims=3, relevant=1)
    one, ten = (select_relevances(x, actions, c * y, 0.8, np.random.default_rng(0)) for c in (1.0, 10.0))
    assert ten.log_evidence == pytest.approx(one.log_evidence - 60 * np.log(10.0), abs=1e-3)
    assert ten.signal_variance == pytest.approx(100.0 * one.signal_variance, rel=1e-3)
    assert ten.noise_variance == pytest.approx(100.0 * one.noise_variance, rel=1e-3)
    assert_allclose(ten.kernel.relevances, one.kernel.relevances, rtol=1e-3)


def test_rescaling_an_input_rescales_its_relevance():
    x, actions, y = one_of_many(80, n_dims=3, relevant=1)
    c = np.array([1024.0, 0.25, 1.0])
    one = select_relevances(x, actions, y, 0.8, np.random.default_rng(0)).kernel
    other = select_relevances(x * c, actions, y, 0.8, np.random.default_rng(0)).kernel
    assert_allclose(other.relevances, one.relevances / c**2, rtol=1e-6)
    assert_allclose(other(x * c, x[:5] * c), one(x, x[:5]), rtol=1e-6)


def test_an_input_that_never_varies_does_no_harm():
    x, actions, y = one_of_many(80, n_dims=3, relevant=1)
    x[:, 2] = 7.0
    relevances = select_relevances(x, actions, y, 0.8, np.random.default_rng(0)).kernel.relevances
    assert np.isfinite(relevances).all() and relevances[:2].argmax() == 1


def test_relevances_climb_from_where_they_start():
    x, actions, y = one_of_many(100, n_dims=4, relevant=1)
    first = select_relevances(x, actions, y, 0.8, np.random.default_rng(0))
    again = select_relevances(x, actions, y, 0.8, np.random.default_rng(0), first.kernel)
    assert again.log_evidence >= first.log_evidence - 1e-3 * abs(first.log_evidence)
    assert again.kernel.relevances.argmax() == 1


def test_of_many_targets_some_are_drawn():
    x, actions, y = one_of_many(MAX_TARGETS + 100, n_dims=2, relevant=1)
    one, same, other = (select_relevances(x, actions, y, 0.8, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one.n_targets == MAX_TARGETS
    assert one.log_evidence == same.log_evidence != other.log_evidence


# -------------------------------------------------------------------------------------- trials


def nothing(starts: np.ndarray) -> np.ndarray:
    return np.zeros(len(starts))


def first_number(starts: np.ndarray) -> np.ndarray:
    return starts[:, 0]


def episode(total: float, start: float = 0.0, kept_word: bool = True) -> Episode:
    return Episode(total, np.array([start]), kept_word)


def policy() -> Any:
    """Trials never look into a Q-function, they only tell one from another."""
    return object()


def record(trials: Trials, trial: Trial | None, *totals: float, value: Any = nothing) -> None:
    for total in totals:
        trials.record(trial, episode(total), value)


def test_the_newest_serves_while_all_earn_the_same():
    trials = Trials()
    for _ in range(10):
        record(trials, Trial(policy()), -5.0)
        assert trials.champion is trials.newest
    assert trials.newest.fresh_returns == [-5.0] * RECENT


def test_the_newest_serves_while_differences_may_be_luck():
    rng = np.random.default_rng(0)
    served = []
    for _ in range(40):
        trials = Trials()
        for _ in range(12):
            record(trials, Trial(policy()), *rng.normal(size=3))
        served.append(trials.champion is trials.newest)
    assert np.mean(served) > 0.7


def test_a_policy_that_earns_much_more_becomes_champion():
    trials, rng, good = Trials(), np.random.default_rng(0), Trial(policy())
    for _ in range(3):
        record(trials, Trial(policy()), rng.normal(0.0, 1.0))
    record(trials, good, *rng.normal(100.0, 1.0, size=4))
    for _ in range(RECENT):  # newer ones are no better than the first
        record(trials, Trial(policy()), rng.normal(0.0, 1.0))
    assert trials.champion is good
    assert trials.champion.q is good.q


def test_a_champion_that_loses_its_luck_gives_way_to_the_newest():
    trials, good = Trials(), Trial(policy())
    for _ in range(3):
        record(trials, Trial(policy()), 0.0, 1.0)
    record(trials, good, 100.0, 101.0, 99.0)
    for _ in range(RECENT):
        record(trials, Trial(policy()), 0.0, 1.0)
    assert trials.champion is good
    record(trials, good, *[-500.0] * 6)
    assert trials.champion is trials.newest


def test_episodes_that_made_a_champion_are_not_counted_for_it():
    trials, good = Trials(), Trial(policy())
    for _ in range(6):
        record(trials, Trial(policy()), 0.0)
    record(trials, good, 100.0, 90.0)
    for _ in range(RECENT):
        record(trials, Trial(policy()), 1.0)
    assert trials.champion is good
    assert good.fresh_returns == []
    record(trials, good, 80.0, 70.0)
    assert trials.champion is good
    assert good.fresh_returns == [80.0, 70.0]
    assert good.mean == 85.0


def test_fresh_returns_of_the_newest_once_it_serves_again():
    trials, good = Trials(), Trial(policy())
    for _ in range(3):
        record(trials, Trial(policy()), 0.0, 1.0)
    record(trials, good, 100.0, 101.0, 99.0)
    for _ in range(RECENT):
        record(trials, Trial(policy()), 0.0, 1.0)
    record(trials, good, *[-500.0] * 6)
    assert trials.champion is trials.newest and trials.newest.fresh_returns == []
    record(trials, Trial(policy()), 2.0)
    record(trials, Trial(policy()), 3.0)
    assert trials.champion is trials.newest
    assert trials.newest.fresh_returns == [2.0, 3.0]


def test_the_newest_is_judged_by_its_last_few_episodes_and_by_those_of_changed_policies():
    trials = Trials()
    record(trials, Trial(policy()), 1.0)
    record(trials, None, *[float(i) for i in range(2, 9)])
    assert [e.total for e in trials.newest.episodes] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert len(trials.tried) == 1


def test_who_is_tried_again_is_not_the_newest():
    trials, old = Trials(), Trial(policy())
    record(trials, old, 1.0, 2.0, 3.0)
    assert len(trials.tried) == 1 and trials.tried[0] is old
    assert [e.total for e in old.episodes] == [1.0, 2.0, 3.0]
    assert [e.total for e in trials.newest.episodes] == [1.0]


def test_a_leader_by_luck_of_one_episode_is_tried_again():
    trials, lucky = Trials(), Trial(policy())
    record(trials, Trial(policy()), 0.0)
    record(trials, lucky, 10.0)
    record(trials, Trial(policy()), 0.0)
    for n in range(1, ENOUGH):
        assert len(lucky.episodes) == n
        assert trials.next(policy(), policy()) is lucky
        record(trials, lucky, 10.0)
    assert lucky not in [trials.next(policy(), policy()) for _ in range(4)]


def test_a_leader_that_broke_its_word_is_not_tried_again():
    trials, mean, draw = Trials(), policy(), policy()
    trials.record(Trial(policy()), episode(10.0, kept_word=False), nothing)
    assert [trials.next(mean, draw).q for _ in range(4)] == [draw] * 4  # nothing goes as promised: explore
    trials.record(Trial(policy()), episode(0.0, kept_word=True), nothing)
    chosen = [trials.next(mean, draw).q for _ in range(4)]
    assert chosen.count(mean) == chosen.count(draw) == 2  # some explore anyway


def test_before_the_first_episode_a_draw_is_tried():
    mean, draw = policy(), policy()
    assert Trials().next(mean, draw).q is draw


def test_a_policy_that_is_still_the_newest_goes_on_in_its_trial():
    trials, mean = Trials(), policy()
    trial = trials.next(mean, mean)
    record(trials, trial, *[0.0] * ENOUGH)
    assert trial in [trials.next(mean, policy()) for _ in range(2)]


def test_lucky_starts_make_no_champion():
    """Returns are the value of the start, and the one policy only ever starts well."""
    trials, lucky = Trials(), Trial(policy())
    plain = Trials()
    others = [Trial(policy()) for _ in range(8)]
    starts = np.random.default_rng(0).uniform(0.0, 10.0, size=8)

    def run(trials: Trials, value: Any) -> None:
        for trial, start in zip(others, starts, strict=True):
            trials.record(Trial(trial.q), episode(start, start), value)
        for start in (99.0, 100.0, 101.0):
            trials.record(lucky, episode(start, start), value)
        for trial, start in zip(others, starts, strict=True):
            trials.record(Trial(trial.q), episode(start, start), value)

    run(trials, first_number)
    assert trials.champion is trials.newest
    lucky.episodes.clear()
    run(plain, nothing)
    assert plain.champion is lucky  # if nobody knows about starts


def test_merit_is_seen_through_the_luck_of_starts():
    trials, rng, good = Trials(), np.random.default_rng(0), Trial(policy())
    for _ in range(8):
        start = rng.uniform(0.0, 1000.0)
        trials.record(Trial(policy()), episode(start + rng.normal(), start), first_number)
    for _ in range(4):
        start = rng.uniform(0.0, 1000.0)
        trials.record(good, episode(start + 30.0 + rng.normal(), start), first_number)
    for _ in range(RECENT):
        start = rng.uniform(0.0, 1000.0)
        trials.record(Trial(policy()), episode(start + rng.normal(), start), first_number)
    assert trials.champion is good


def test_bad_policies_are_forgotten_and_the_champion_is_not():
    trials, good = Trials(), Trial(policy())
    for _ in range(3):
        record(trials, Trial(policy()), 0.0)
    record(trials, good, *[100.0] * 3)
    for i in range(2 * KEPT):
        record(trials, Trial(policy()), float(i % 3))
    assert len(trials.tried) <= KEPT + 1
    assert good in trials.tried and trials.champion is good


# -------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("mix", MIXES)
def test_trajectories_survive_being_taken_apart(mix):
    data = sample(MIXES[mix], seed=2, gamma=0.9)
    actions = np.random.default_rng(0).integers(3, size=len(data))
    data = Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)
    seen = Transitions.of(data, actions)
    assert len(seen) == data.n_transitions
    assert seen.ended.sum() == data.n_segments and seen.terminated.sum() == data.terminated.sum()
    assert (seen.ended | ~seen.terminated).all()
    again = seen.trajectories(0.9, np.arange(3))
    assert again.actions is not None
    left = np.ones(len(data), dtype=bool)
    left[data.last] = False
    assert_array_equal(again.states, data.states)
    assert_array_equal(again.lengths, data.lengths)
    assert_array_equal(again.terminated, data.terminated)
    assert_array_equal(again.rewards[left], data.rewards[left])
    assert_array_equal(again.actions[left], actions[left])


def interleaved(pairs: int) -> tuple[Transitions, list[dict[str, Any]]]:
    """Two environments side by side, step by step, and their episodes: first those of the first."""
    lengths = {0: [(3, True), (2, False), (9, False)], 1: [(1, True), (4, True), (9, False)]}
    memory, episodes = Memory(Transitions.empty(2)), []
    places = dict.fromkeys(lengths, (0, 0))
    whole: dict[tuple[int, int], dict[str, Any]] = {}
    for _ in range(pairs):
        for run in lengths:
            number, step = places[run]
            length, terminates = lengths[run][number]
            x, reached = np.array([[run, 100.0 * number + step]]), np.array([[run, 100.0 * number + step + 1]])
            over, action, reward = step + 1 == length, (run + step) % 2, 10.0 * run + step
            memory.add(
                Transitions(
                    x,
                    np.array([action]),
                    np.array([reward]),
                    reached,
                    np.array([over and terminates]),
                    np.array([over]),
                    np.array([run]),
                )
            )
            e = whole.setdefault((run, number), dict(observations=[x[0]], actions=[], rewards=[], terminated=False))
            e["observations"].append(reached[0])
            e["actions"].append(5 + action)
            e["rewards"].append(reward)
            e["terminated"] = over and terminates
            places[run] = (number + 1, 0) if over else (number, step + 1)
    episodes = [whole[key] for key in sorted(whole)]
    assert len(memory) == 2 * pairs
    return memory.transitions, episodes


@pytest.mark.parametrize("pairs", [1, 3, 5, 8])
def test_runs_side_by_side_are_told_apart(pairs):
    seen, episodes = interleaved(pairs)
    assert len(seen) == 2 * pairs
    assert_same(seen.trajectories(0.9, np.array([5, 6])), Trajectories.from_episodes(episodes, 0.9))


def test_memory_grows():
    seen, _ = interleaved(3)
    memory = Memory(seen)
    memory.add(seen)
    assert len(memory) == 12
    assert_array_equal(memory.transitions.rewards, np.tile(seen.rewards, 2))
    memory.add(seen)
    assert len(memory) == len(memory.transitions) == 18
    assert len(Transitions.empty(4)) == 0 and Transitions.empty(4).states.shape == (0, 4)
