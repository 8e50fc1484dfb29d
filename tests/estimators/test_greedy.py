"""Fitted Q iteration: against plain regression and value iteration, and the selection of its kernel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTDQ, Trajectories
from gptd_rl import load as load_model
from gptd_rl.estimators import greedy
from gptd_rl.estimators.greedy import MAX_TARGETS, default_kernel, fit_greedy, select_kernel
from gptd_rl.inference.by_action import ActionPrior, QFunction
from gptd_rl.kernels import ARD, ActionDelta, Isotropic, MultiScale, SquaredExponential
from gptd_rl.temporal.returns import value_bounds

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
    high = rewards.max()  # every one of them ended
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
    high = pairs.rewards[::2].max()  # every one of them ended
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
    again = fit(pairs, prior, start=first)
    assert again.n_iterations < first.n_iterations
    assert_allclose(again.posterior.q_values(np.eye(N_STATES)), q(np.eye(N_STATES)), atol=0.02)
    far_off = QFunction(q.kernel, q.inducing_points, 1e6 * np.ones_like(q.weights), 1e9)
    lost = replace(first, posterior=replace(first.posterior, mean_function=far_off))
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


@pytest.mark.parametrize(
    ("rewards", "ends", "bounds"),
    [
        ([0.0, 0.0, 1.0], [False, False, True], (0.0, 1.0)),  # a goal is reached once
        ([0.5, 0.0, 1.0], [False, False, True], (0.0, 5.0)),
        ([-1.0, -1.0, 0.0], [False, False, True], (-10.0, 0.0)),
        ([0.0, 0.0, -100.0], [False, False, True], (-100.0, 0.0)),
        ([2.0], [True], (0.0, 2.0)),
    ],
)
def test_rewards_on_ending_are_received_once(rewards, ends, bounds):
    assert value_bounds(np.array(rewards), 0.9, np.array(ends)) == pytest.approx(bounds)


def test_value_bounds_without_a_discount():
    ends = np.array([False, True])
    assert value_bounds(np.array([0.0, 3.0]), 1.0, ends) == (0.0, 3.0)
    assert value_bounds(np.array([1.0, 3.0]), 1.0, ends) == (0.0, np.inf)


def test_a_prior_mean_above_all_rewards_makes_untried_actions_look_good():
    steps = np.arange(6.0)[:, None]
    episode = dict(observations=steps, actions=np.zeros(5, dtype=np.int64), rewards=np.zeros(5), terminated=False)
    data = Trajectories.from_episodes([episode], gamma=0.9)
    kernel = MultiScale(ARD([1.0])).fix("a1")
    q = GPTDQ(kernel, n_actions=2, mean=1.0, action_correlation=0.0).fit(data, policy="greedy").q_values(steps[:5])
    assert (q[:, 1] > 0.95).all()  # never tried
    assert (q[:, 0] < q[:, 1]).all()


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


# -------------------------------------------------------------------------------------- GPTDQ


GAMMA = 0.8


def corridor(n_episodes: int = 25, seed: int = 0) -> Trajectories:
    """Random walks in cells 0…4 with an irrelevant coordinate; a step costs 1, the last cell is terminal."""
    rng, episodes = np.random.default_rng(seed), []
    for _ in range(n_episodes):
        x: list[float] = [float(rng.integers(4))]
        actions: list[int] = []
        while x[-1] < 4 and len(actions) < 8:
            actions.append(int(rng.integers(2)))
            x.append(max(0.0, x[-1] + (1 if actions[-1] else -1)))
        observations = np.column_stack([x, rng.normal(size=len(x))])
        episodes.append(
            dict(observations=observations, actions=actions, rewards=-np.ones(len(actions)), terminated=x[-1] == 4)
        )
    return Trajectories.from_episodes(episodes, GAMMA)


def cells() -> np.ndarray:
    return np.column_stack([np.arange(4.0), np.zeros(4)])


def optimal_values() -> np.ndarray:
    """Q of the cells 0…3, of shape (4, 2): walk on, or step back first."""
    V = -(1 - GAMMA ** np.arange(4, 0, -1)) / (1 - GAMMA)
    return np.column_stack([-1.0 + GAMMA * V[[0, 0, 1, 2]], -1.0 + GAMMA * np.append(V[1:], 0.0)])


def greedy_fit(q: GPTDQ) -> greedy.GreedyFit:
    assert q.greedy_ is not None
    return q.greedy_


@pytest.fixture(scope="module")
def q() -> GPTDQ:
    """Fitted to the greedy policy of the corridor; not to be changed."""
    return GPTDQ(noise_share=1e-4).fit(corridor(), policy="greedy")


def test_gptdq_fit_greedy_finds_the_optimal_policy(q):
    assert_array_equal(q.greedy_actions(cells()), np.ones(4))
    assert_allclose(q.q_values(cells()), optimal_values(), atol=0.15)
    assert q.relevances_.shape == (2,) and q.relevances_.argmax() == 0
    assert q.method_ == "sparse" and q.n_dims_ == 2 and q.inducing_points_.shape[1] == 2
    assert q.data_.n_dims == 3 and q.data_.n_transitions == corridor().n_transitions
    assert np.isfinite([q.log_marginal_likelihood_, q.complexity_, q.data_fit_]).all()


def test_gptdq_fit_greedy_answers_as_other_fits_do(q):
    x, actions = np.repeat(cells(), 2, axis=0), np.tile([0, 1], 4)
    mean, std = q.predict(x, actions, return_std=True)
    assert_allclose(mean.reshape(4, 2), q.q_values(cells()), rtol=1e-10)
    assert (std > 0).all()
    lower, upper = q.confidence_interval(x, actions)
    assert (lower < mean).all() and (mean < upper).all()
    assert_allclose(0.5 * (lower + upper), mean, rtol=1e-9)
    samples = q.sample(cells(), n=2000, seed=0)
    assert samples.shape == (2000, 4, 2)
    assert_allclose(samples.mean(axis=0).ravel(), mean, atol=5 * std.max() / np.sqrt(2000))
    assert_allclose(samples.std(axis=0).ravel(), std, rtol=0.1)
    prior = q.kernel_(np.column_stack([x, actions]))
    assert_allclose(np.diagonal(prior), q.posterior_.signal_variance)


def test_gptdq_fit_greedy_is_reproducible_by_its_random_state(q):
    again = GPTDQ(noise_share=1e-4).fit(corridor(), policy="greedy")
    assert_array_equal(again.q_values(cells()), q.q_values(cells()))


@pytest.mark.parametrize("fitted", ["free", "held"])
def test_gptdq_fit_greedy_survives_the_file(q, tmp_path, fitted):
    if fitted == "held":
        kernel = MultiScale(ARD([0.5, 1e-3])).fix("a1", "a2")
        q = GPTDQ(kernel, n_actions=2, mean=-1.5, action_correlation=0.5).fit(corridor(), policy="greedy")
    again = load_model(q.save(tmp_path / "q.gptd"))
    assert type(again) is GPTDQ
    assert again.get_params(deep=False).keys() == q.get_params(deep=False).keys()
    for name in ("n_actions", "mean", "action_correlation", "noise_share", "subset_size"):
        assert getattr(again, name) == getattr(q, name), name
    assert_array_equal(again.q_values(cells()), q.q_values(cells()))
    x, actions = cells(), np.ones(4, dtype=int)
    for ours, theirs in zip(again.confidence_interval(x, actions), q.confidence_interval(x, actions), strict=True):
        assert_allclose(ours, theirs, rtol=1e-9)
    assert_array_equal(again.relevances_, q.relevances_)
    assert_array_equal(greedy_fit(again).posterior.targets, greedy_fit(q).posterior.targets)
    assert (greedy_fit(again).selection is None) == (fitted == "held")
    found, kept = greedy_fit(again).selection, greedy_fit(q).selection
    if found is not None and kept is not None:
        assert found.evidence == kept.evidence
    one, other = (greedy_fit(m).posterior.sample_function(np.random.default_rng(0))(cells()) for m in (again, q))
    assert_allclose(one, other, rtol=1e-9)


def test_gptdq_fit_greedy_continues_with_warm_start():
    q = GPTDQ(noise_share=1e-4, warm_start=True, random_state=0).fit(corridor(), policy="greedy")
    first, kernel = greedy_fit(q).n_iterations, greedy_fit(q).kernel
    q.set_params(kernel=kernel.fix(*kernel.parameter_names)).fit(corridor(), policy="greedy")
    assert greedy_fit(q).n_iterations < first
    assert greedy_fit(q).selection is None
    assert_array_equal(q.relevances_, kernel.relevances)


def test_gptdq_fit_greedy_takes_a_prior_mean():
    low, high = (GPTDQ(mean=mean).fit(corridor(), policy="greedy") for mean in (-3.0, None))
    far = np.array([[1e4, 0.0]])
    assert_allclose(low.q_values(far), -3.0)
    assert_allclose(high.q_values(far), 0.0, atol=1e-12)


def test_gptdq_fit_greedy_takes_data_in_parts(q, tmp_path):
    data = corridor()
    half = data.n_segments // 2
    paths = [part.save(tmp_path / f"{i}.npz") for i, part in enumerate((data[:half], data[half:]))]
    parts = GPTDQ(noise_share=1e-4).fit(paths, policy="greedy")
    assert_array_equal(parts.q_values(cells()), q.q_values(cells()))


def test_gptdq_fit_of_another_policy_forgets_the_greedy_fit():
    q = GPTDQ(n_restarts=0).fit(corridor(), policy="greedy")
    assert q.greedy_ is not None
    q.fit(corridor(), policy=lambda x: 1)
    assert q.greedy_ is None
    assert q.prune().greedy_ is None


def _continuous() -> Trajectories:
    data = corridor()
    return Trajectories(
        data.states, data.rewards, data.discounts, data.lengths, data.terminated, 0.5 + np.asarray(data.actions)
    )


def _undiscounted() -> Trajectories:
    data = corridor()
    return Trajectories(data.states, data.rewards, np.sign(data.discounts), data.lengths, data.terminated, data.actions)


BAD: dict[str, tuple[Any, str]] = {
    "policy": (lambda: GPTDQ().fit(corridor(), policy="best"), "policy must be 'greedy' or a policy.* got 'best'"),
    "kernel": (lambda: GPTDQ("factor").fit(corridor(), policy="greedy"), "takes kernel='ard' or a kernel object"),
    "width": (
        lambda: GPTDQ(MultiScale(ARD([1.0]))).fit(corridor(), policy="greedy"),
        "the kernel has 1 dimensions; got states of width 2",
    ),
    "pairs": (
        lambda: GPTDQ(MultiScale(ARD([1.0, 1.0])) * ActionDelta(2)).fit(corridor(), policy="greedy"),
        "takes a kernel of states",
    ),
    "mean": (lambda: GPTDQ(mean=lambda x, a: x[:, 0]).fit(corridor(), policy="greedy"), "a number as prior mean"),
    "noise": (lambda: GPTDQ(noise_share=0.0).fit(corridor(), policy="greedy"), "noise_share must be positive; got 0"),
    "continuous": (lambda: GPTDQ().fit(_continuous(), policy="greedy"), "needs discrete actions"),
    "discount": (lambda: GPTDQ().fit(_undiscounted(), policy="greedy"), "needs a discount below 1; got 1"),
    "actions": (
        lambda: GPTDQ(n_actions=2).fit(replace(corridor(), actions=None), policy="greedy"),
        "the data have no actions",
    ),
    "prune": (lambda: GPTDQ().fit(corridor(), policy="greedy").prune(), "fit of the greedy policy has bootstrapped"),
    "evidence": (
        lambda: GPTDQ().fit(corridor(), policy="greedy").log_marginal_likelihood(),
        "fit of the greedy policy has bootstrapped targets",
    ),
    "partial_fit": (
        lambda: GPTDQ().fit(corridor(), policy="greedy").partial_fit(corridor()),
        "fit of the greedy policy has bootstrapped targets",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_gptdq_fit_greedy_refuses_bad_input_in_one_line(name):
    do, message = BAD[name]
    with pytest.raises(ValueError, match=message) as error:
        do()
    assert "\n" not in str(error.value)
