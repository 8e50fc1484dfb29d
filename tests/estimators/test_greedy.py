"""Fitted Q iteration: against plain regression and value iteration, and the selection of its kernel."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import Trajectories
from gptd_rl.estimators import greedy
from gptd_rl.estimators.greedy import MAX_TARGETS, default_kernel, fit_greedy, select_kernel, value_bounds
from gptd_rl.inference.by_action import ActionPrior, QFunction
from gptd_rl.kernels import ARD, Isotropic, MultiScale, SquaredExponential

every_rho = pytest.mark.parametrize("rho", [0.0, 0.3, 0.95])


# -------------------------------------------------------------------------------------- references


def naive_multiscale(relevances: np.ndarray, states: np.ndarray, others: np.ndarray) -> np.ndarray:
    scales = (8.0, 4.0, 2.0, 1.0, 0.5)
    K = np.empty((len(states), len(others)))
    for i, x in enumerate(states):
        for j, y in enumerate(others):
            d2 = sum(w * (a - b) ** 2 for w, a, b in zip(relevances, x, y, strict=True))
            K[i, j] = sum(s / sum(scales) * np.exp(-d2 / (2 * s**2)) for s in scales)
    return K


def between(actions: np.ndarray, others: np.ndarray, rho: float) -> np.ndarray:
    return np.where(actions[:, None] == others, 1.0, rho)


def as_pairs(states, actions, rewards, next_states, terminated, gamma) -> Trajectories:
    """Each transition as a segment of its own, in pairs [x, a]."""
    n = len(rewards)
    x = np.stack([states, next_states], axis=1).reshape(2 * n, -1)
    a, r, g = (np.stack([v, np.zeros(n)], axis=1).ravel() for v in (actions, rewards, np.full(n, gamma)))
    return Trajectories(np.column_stack([x, a]), r, g, np.full(n, 2), np.broadcast_to(terminated, n))


def bandit(n: int, n_actions: int = 3, seed: int = 0) -> Trajectories:
    """Transitions that all terminate, from states of two numbers that lie apart."""
    rng = np.random.default_rng(seed)
    states, actions = rng.uniform(-4.0, 4.0, size=(n, 2)), rng.integers(n_actions, size=n)
    return as_pairs(states, actions, np.sin(states[:, 0]) + 0.3 * actions, states + 1.0, True, 0.9)


def held(n_dims: int) -> Any:
    kernel = MultiScale(ARD(np.ones(n_dims)))
    return kernel.fix(*kernel.parameter_names)


def fit(pairs: Trajectories, prior: ActionPrior, n_inducing: int = 500, **options: Any) -> greedy.GreedyFit:
    rng = np.random.default_rng(options.pop("seed", 0))
    kernel = options.pop("kernel", held(pairs.n_dims - 1))
    return fit_greedy(pairs, prior, kernel, n_inducing=n_inducing, rng=rng, **options)


# -------------------------------------------------------------------------------------- regression


@every_rho
def test_fit_greedy_with_all_states_inducing_is_plain_regression(rho):
    pairs = bandit(25)
    x, actions, rewards = pairs.states[::2, :2], pairs.states[::2, 2].astype(int), pairs.rewards[::2]
    found = fit(pairs, ActionPrior(3, 0.02, rho))
    high = value_bounds(rewards, 0.9)[1]
    assert len(found.posterior.inducing_points) == 25
    K = naive_multiscale(np.ones(2), x, x) * between(actions, actions, rho)
    weights = np.linalg.solve(K + 0.02 * np.eye(25), rewards - high)
    asked = np.random.default_rng(2).uniform(-5.0, 5.0, size=(40, 2))
    k = naive_multiscale(np.ones(2), asked, x)
    expected = [high + (k * between(np.full(40, a), actions, rho)) @ weights for a in range(3)]
    q = found.posterior.mean_function
    assert_allclose(q(asked), np.array(expected).T, rtol=1e-6, atol=1e-8)
    assert_array_equal(q.greedy(asked), np.argmax(expected, axis=0))
    fitted = q(x)[np.arange(25), actions]
    assert found.residual == pytest.approx(np.sqrt(np.mean((fitted - rewards) ** 2)), rel=1e-6)


def test_fit_greedy_is_optimistic_far_from_the_data():
    pairs = bandit(25)
    found = fit(pairs, ActionPrior(3, 0.02, 0.3))
    high = value_bounds(pairs.rewards[::2], 0.9)[1]
    assert_allclose(found.posterior.q_values(np.array([[1e3, 1e3]])), high, rtol=1e-12)


def test_fit_greedy_takes_no_more_inducing_points_than_asked():
    pairs = bandit(60)
    points = fit(pairs, ActionPrior(3, 0.02, 0.3), n_inducing=7).posterior.inducing_points
    assert points.shape == (7, 2)
    assert {tuple(x) for x in points} <= {tuple(x) for x in pairs.states[::2, :2]}


def test_inducing_points_are_chosen_from_a_subsample_of_many_states(monkeypatch):
    monkeypatch.setattr(greedy, "MAX_CANDIDATES", 20)
    one, other = (fit(bandit(60), ActionPrior(3, 0.02, 0.3), seed=seed).posterior.inducing_points for seed in (0, 1))
    assert len(one) <= 20 and len(other) <= 20
    assert {tuple(x) for x in one} != {tuple(x) for x in other}


# -------------------------------------------------------------------------------------- iterations


N_STATES, N_ACTIONS = 6, 3


def tabular(ends: str, gamma: float = 0.8) -> tuple[Trajectories, np.ndarray, np.ndarray, np.ndarray]:
    """A random deterministic MDP, each state and action tried twice: data, next states, rewards, terminal ones.

    A third of the transitions end an episode, by being 'terminated' or 'truncated'.
    """
    rng = np.random.default_rng(0)
    reached = rng.integers(N_STATES, size=(N_STATES, N_ACTIONS))
    rewards = rng.normal(size=(N_STATES, N_ACTIONS))
    done = rng.random((N_STATES, N_ACTIONS)) < 1 / 3
    assert done.any() and not done.all()
    x, a = (np.tile(i.ravel(), 2) for i in np.indices((N_STATES, N_ACTIONS)))
    hot = np.eye(N_STATES)
    terminated = done if ends == "terminated" else np.zeros_like(done)
    pairs = as_pairs(hot[x], a, rewards[x, a], hot[reached[x, a]], terminated[x, a], gamma)
    return pairs, reached, rewards, terminated


def optimal_q(reached: np.ndarray, rewards: np.ndarray, terminated: np.ndarray, gamma: float) -> np.ndarray:
    Q = np.zeros_like(rewards)
    for _ in range(2000):
        Q = rewards + gamma * ~terminated * Q.max(axis=1)[reached]
    return Q


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_fit_greedy_finds_the_optimal_q_of_a_small_mdp(ends, rho, monkeypatch):
    pairs, reached, rewards, terminated = tabular(ends)
    truth = optimal_q(reached, rewards, terminated, 0.8)
    found = fit(pairs, ActionPrior(N_ACTIONS, 1e-9, rho))
    assert_allclose(found.posterior.q_values(np.eye(N_STATES)), truth, atol=0.02 * truth.std())
    assert 1 < found.n_iterations < 100
    assert found.residual < 1e-3
    other = optimal_q(reached, rewards, ~terminated, 0.8)
    assert np.abs(other - truth).max() > 0.5  # ends matter here
    monkeypatch.setattr(greedy, "CONVERGED", 1e-12)
    exact = fit(pairs, ActionPrior(N_ACTIONS, 1e-9, rho))
    assert_allclose(exact.posterior.q_values(np.eye(N_STATES)), truth, atol=1e-6)
    x, a = pairs.states[::2, :-1].argmax(axis=1), pairs.states[::2, -1].astype(int)
    assert_allclose(exact.posterior.targets, truth[x, a], atol=1e-6)


def test_fit_greedy_may_start_from_another_q():
    pairs, *_ = tabular("terminated")
    prior = ActionPrior(N_ACTIONS, 1e-9, 0.3)
    first = fit(pairs, prior)
    q = first.posterior.mean_function
    again = fit(pairs, prior, start=q)
    assert again.n_iterations < first.n_iterations
    assert_allclose(again.posterior.q_values(np.eye(N_STATES)), q(np.eye(N_STATES)), atol=0.02)
    lost = QFunction(q.kernel, q.inducing_points, 1e6 * np.ones_like(q.weights), 1e9)
    assert fit(pairs, prior, start=lost).n_iterations <= first.n_iterations  # it is clipped to the bounds


def test_iterations_are_limited(monkeypatch):
    monkeypatch.setattr(greedy, "MAX_ITERATIONS", 3)
    monkeypatch.setattr(greedy, "CONVERGED", 0.0)
    pairs, *_ = tabular("truncated", gamma=0.99)
    assert fit(pairs, ActionPrior(N_ACTIONS, 1e-3, 0.3)).n_iterations == 3


@pytest.mark.parametrize(
    ("rewards", "bounds"),
    [
        ([-1.0, -1.0], (-10.0, 0.0)),
        ([-2.0, 3.0], (-20.0, 30.0)),
        ([1.0, 2.0], (0.0, 20.0)),
        ([0.0, 0.0], (0.0, 0.0)),
    ],
)
def test_value_bounds_are_those_of_the_extreme_rewards_for_ever(rewards, bounds):
    assert value_bounds(np.array(rewards), 0.9) == pytest.approx(bounds)


def test_targets_are_clipped_where_q_exceeds_the_bounds():
    rng = np.random.default_rng(5)
    n = 60
    states = rng.uniform(-2.0, 2.0, size=(n, 1))
    rewards = np.sign(states[:, 0]) * rng.uniform(0.9, 1.0, size=n)
    pairs = as_pairs(states, rng.integers(2, size=n), rewards, 1.3 * states, False, 0.9)
    posterior = fit(pairs, ActionPrior(2, 1e-3, 0.3)).posterior
    low, high = value_bounds(rewards, 0.9)
    values = posterior.q_values(1.3 * states).max(axis=1)
    assert values.max() > high or values.min() < low
    y = posterior.targets
    assert ((y >= rewards + 0.9 * low - 1e-9) & (y <= rewards + 0.9 * high + 1e-9)).all()


@pytest.mark.parametrize("reward", [0.0, 1.0, -1.0])
def test_fit_greedy_of_a_single_transition(reward):
    pairs = as_pairs(np.zeros((1, 2)), np.zeros(1), np.array([reward]), np.ones((1, 2)), False, 0.9)
    posterior = fit(pairs, ActionPrior(2, 1e-3, 0.8), kernel=default_kernel(np.zeros((1, 2)))).posterior
    assert np.isfinite(posterior.q_values(np.zeros((1, 2)))).all()
    assert np.isfinite(posterior.sample_function(np.random.default_rng(0))(np.zeros((1, 2)))).all()


# -------------------------------------------------------------------------------------- selecting the kernel


PRIOR = ActionPrior(2, 3e-3, 0.8)


def one_of_many(n: int, n_dims: int = 11, relevant: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, actions = rng.normal(size=(n, n_dims)), rng.integers(2, size=n)
    return x, actions, np.sin(2.0 * x[:, relevant]) + 0.5 * actions + 0.05 * rng.normal(size=n)


def select(x: np.ndarray, actions: np.ndarray, y: np.ndarray, kernel: Any = None, seed: int = 0) -> Any:
    kernel = default_kernel(x) if kernel is None else kernel
    return select_kernel(kernel, x, actions, y, PRIOR, np.random.default_rng(seed))


def test_select_kernel_finds_the_one_relevant_input():
    x, actions, y = one_of_many(150)
    selection = select(x, actions, 100.0 * y - 500.0)
    relevances = selection.kernel.relevances * x.var(axis=0)
    assert relevances.argmax() == 4
    assert relevances[4] == pytest.approx(1.0)  # one standard deviation is a distance of one
    assert np.delete(relevances, 4).max() < 0.05
    assert_allclose(selection.kernel.diagonal(x[:3]), 1.0)
    assert selection.noise_variance < 0.1 * np.var(100.0 * y)
    assert selection.evidence.n_rows == 150


def test_select_kernel_maximises_the_evidence_of_regression():
    """The evidence at the maximum, by dense algebra, and lower nearby."""
    x, actions, y = one_of_many(60, n_dims=3, relevant=1)
    found = select(x, actions, y)
    scale = np.exp(np.linspace(-3.0, 3.0, 61))

    def log_evidence(relevances, v0, noise):
        S = v0 * naive_multiscale(relevances, x, x) * between(actions, actions, 0.8) + noise * np.eye(60)
        centred = y - y.mean()
        return -0.5 * (centred @ np.linalg.solve(S, centred) + np.linalg.slogdet(S)[1] + 60 * np.log(2 * np.pi))

    # Relevances come out normalised: the factor that was taken out is where the evidence is the reported one.
    values = [log_evidence(c * found.kernel.relevances, found.signal_variance, found.noise_variance) for c in scale]
    assert max(values) == pytest.approx(found.evidence.log_likelihood, abs=0.5)
    best = scale[int(np.argmax(values))] * found.kernel.relevances
    for factor in (0.7, 1.4):
        assert log_evidence(best, factor * found.signal_variance, found.noise_variance) < max(values) + 0.1
        assert log_evidence(best, found.signal_variance, factor * found.noise_variance) < max(values) + 0.1


def test_select_kernel_reports_the_evidence_in_units_of_the_targets():
    """Ten times the targets, density a tenth for each."""
    x, actions, y = one_of_many(60, n_dims=3, relevant=1)
    one, ten = (select(x, actions, c * y) for c in (1.0, 10.0))
    change = one.evidence.log_likelihood - 60 * np.log(10.0)
    assert ten.evidence.log_likelihood == pytest.approx(change, abs=0.02)
    assert ten.signal_variance == pytest.approx(100.0 * one.signal_variance, rel=0.05)
    assert ten.noise_variance == pytest.approx(100.0 * one.noise_variance, rel=0.05)
    assert_allclose(ten.kernel.relevances, one.kernel.relevances, rtol=0.05)


def test_select_kernel_rescales_relevances_with_their_inputs():
    x, actions, y = one_of_many(80, n_dims=3, relevant=1)
    c = np.array([1024.0, 0.25, 1.0])
    one, other = select(x, actions, y).kernel, select(x * c, actions, y).kernel
    assert_allclose(other.relevances, one.relevances / c**2, rtol=1e-5)
    assert_allclose(other(x * c, x[:5] * c), one(x, x[:5]), rtol=1e-5)


def test_select_kernel_ignores_an_input_that_never_varies():
    x, actions, y = one_of_many(80, n_dims=3, relevant=1)
    x[:, 2] = 7.0
    relevances = select(x, actions, y).kernel.relevances
    assert np.isfinite(relevances).all() and relevances[:2].argmax() == 1


def test_select_kernel_starts_from_the_given_parameters():
    x, actions, y = one_of_many(100, n_dims=4, relevant=1)
    first = select(x, actions, y)
    again = select(x, actions, y, first.kernel)
    assert again.evidence.log_likelihood >= first.evidence.log_likelihood - 1e-3 * abs(first.evidence.log_likelihood)
    assert again.kernel.relevances.argmax() == 1


def test_select_kernel_subsamples_many_targets():
    x, actions, y = one_of_many(MAX_TARGETS + 100, n_dims=2, relevant=1)
    one, same, other = (select(x, actions, y, seed=seed).evidence for seed in (0, 0, 1))
    assert one.n_rows == MAX_TARGETS
    assert one.log_likelihood == same.log_likelihood != other.log_likelihood


def test_select_kernel_leaves_fixed_parameters_alone():
    x, actions, y = one_of_many(60, n_dims=3, relevant=1)
    kernel = MultiScale(ARD([0.5, 1.0, 2.0])).fix("a1")
    found = select(x, actions, y, kernel).kernel
    assert found.relevances[0] == pytest.approx(0.5)
    assert not np.allclose(found.relevances[1:], [1.0, 2.0])


@pytest.mark.parametrize("kernel", [SquaredExponential(ARD([1.0, 1.0, 1.0])), MultiScale(Isotropic(1.0, 3))])
def test_select_kernel_takes_any_kernel(kernel):
    x, actions, y = one_of_many(60, n_dims=3, relevant=1)
    found = select(x, actions, y, kernel).kernel
    assert type(found) is type(kernel) and type(found.metric) is type(kernel.metric)
    assert (found.relevances * x.var(axis=0)).max() == pytest.approx(1.0)


def test_fit_greedy_selects_free_parameters_only():
    x, actions, y = one_of_many(80, n_dims=3, relevant=1)
    pairs = as_pairs(x, actions, y, x, True, 0.9)
    assert fit(pairs, PRIOR).selection is None
    found = fit(pairs, PRIOR, kernel=default_kernel(x))
    assert found.selection is not None and found.kernel is found.selection.kernel
    assert found.kernel.relevances.argmax() == 1


def test_fit_greedy_selects_nothing_from_equal_targets():
    x, actions, _ = one_of_many(30, n_dims=3, relevant=1)
    pairs = as_pairs(x, actions, np.ones(30), x, True, 0.0)
    assert fit(pairs, PRIOR, kernel=default_kernel(x)).selection is None
