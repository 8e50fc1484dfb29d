"""Markov chains solved by hand: with hardly any noise the values must come out, terminated or truncated."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.exact import ExactPosterior
from gptd_rl.inference.model import Model
from gptd_rl.kernels import paper_kernel
from gptd_rl.kernels.metrics import Isotropic
from gptd_rl.temporal.targets import build_targets
from tests.helpers import NOISES

GAMMA = 0.9
TINY = 1e-8
CORRIDOR: np.ndarray = np.arange(6.0)[:, None]  # 0 → 1 → … → 5, where the chain ends; each step costs 1
# V(i) = −(1 + γ + … ) over the 5−i steps that are left
CORRIDOR_VALUES = -np.array([4.0951, 3.439, 2.71, 1.9, 1.0, 0.0])

every_noise = pytest.mark.parametrize("noise", NOISES)
merged_or_not = pytest.mark.parametrize("merge", [True, False], ids=["merged", "unmerged"])


def posterior(episodes, noise, *, merge=True, gamma=GAMMA, relevance=0.1, prior=100.0, noise_variance=TINY):
    data = Trajectories.from_episodes(episodes, gamma=gamma)
    model = Model(paper_kernel(Isotropic(relevance, data.n_dims), prior, prior), noise_variance)
    return ExactPosterior.condition(model, build_targets(data, noise, merge=merge))


def walk(*states, terminated=False):
    """The corridor walked from state to state."""
    return dict(observations=CORRIDOR[list(states)], rewards=-np.ones(len(states) - 1), terminated=terminated)


@every_noise
def test_posterior_of_terminated_corridor(noise):
    found = posterior([walk(0, 1, 2, 3, 4, 5, terminated=True)], noise)
    assert_allclose(found.mean(CORRIDOR), CORRIDOR_VALUES, atol=1e-3)
    assert (np.sqrt(found.variance(CORRIDOR)) < 1e-3).all()
    assert (np.sqrt(found.interval_variance(CORRIDOR)) < 1e-2).all()


@every_noise
def test_posterior_of_undiscounted_corridor(noise):
    found = posterior([walk(0, 1, 2, 3, 4, 5, terminated=True)], noise, gamma=1.0)
    assert_allclose(found.mean(CORRIDOR), [-5, -4, -3, -2, -1, 0], atol=1e-3)


@every_noise
def test_posterior_with_varying_discounts(noise):
    episode = walk(0, 1, 2, 3, terminated=True) | dict(discounts=[0.5, 1.0, 0.2])
    found = posterior([episode], noise)
    # V(3) = 0, V(2) = −1, V(1) = −1 + 1·V(2) = −2, V(0) = −1 + 0.5·V(1) = −2
    assert_allclose(found.mean(CORRIDOR[:4]), [-2, -2, -1, 0], atol=1e-3)


@every_noise
@merged_or_not
def test_posterior_joins_truncated_and_terminated_walks(noise, merge):
    """0 → 3 is cut off. That state 3 is worth −1.9, not 0, is known from another run."""
    found = posterior([walk(0, 1, 2, 3), walk(3, 4, 5, terminated=True)], noise, merge=merge)
    assert_allclose(found.mean(CORRIDOR), CORRIDOR_VALUES, atol=2e-3)
    assert (np.sqrt(found.variance(CORRIDOR)) < 1e-2).all()


@every_noise
def test_posterior_leaves_the_end_of_a_truncated_walk_open(noise):
    """With nothing else known, values may shift along (γ³, γ², γ, 1) as far as the prior lets them."""
    states = 3.0 * CORRIDOR[:4]
    episode = dict(observations=states, rewards=-np.ones(3))
    cut, ended = (
        posterior([episode | dict(terminated=flag)], noise, relevance=1.0, prior=10.0) for flag in (False, True)
    )
    assert_allclose(ended.mean(states)[-1], 0.0, atol=1e-3)
    assert (np.sqrt(ended.variance(states)) < 1e-3).all()
    assert (np.sqrt(cut.variance(states)) > 0.5).all()
    # The rewards are explained all the same ...
    mean = cut.mean(states)
    assert_allclose(mean[:-1] - GAMMA * mean[1:], -1.0, atol=1e-3)
    # ... and what is open is one direction only, the null vector of H.
    spread = np.sqrt(cut.variance(states))
    assert_allclose(spread / spread[-1], [GAMMA**3, GAMMA**2, GAMMA, 1.0], rtol=1e-3)


@every_noise
@merged_or_not
def test_posterior_of_an_endless_cycle(noise, merge):
    """Left and right by turns, for a reward on the left: V_l = 1/(1−γ²), V_r = γ/(1−γ²)."""
    places = np.array([[0.0], [1.0]])
    episode = dict(observations=places[np.arange(30) % 2], rewards=np.arange(29) % 2 == 0)
    found = posterior([episode], noise, merge=merge)
    expected = np.array([1.0, GAMMA]) / (1 - GAMMA**2)
    assert_allclose(found.mean(places), expected, rtol=1e-3)
    assert (np.sqrt(found.variance(places)) < 1e-2).all()


@every_noise
@merged_or_not
def test_posterior_of_a_self_loop(noise, merge):
    """V = r/(1−γ), from a single transition of a state into itself."""
    episode = dict(observations=[[3.0], [3.0]], rewards=[2.0])
    found = posterior([episode], noise, merge=merge, prior=1e3)
    assert_allclose(found.mean(np.array([[3.0]])), [20.0], rtol=1e-3)


@every_noise
def test_posterior_does_not_link_truncated_walks_to_the_next(noise):
    """The same two runs in either order, and in one record or two, leave the same values."""
    runs = [walk(0, 1, 2), walk(4, 5, terminated=True)]
    one, other = posterior(runs, noise), posterior(runs[::-1], noise)
    assert_allclose(one.mean(CORRIDOR), other.mean(CORRIDOR), atol=1e-5)
    # Were there a row from state 2 into state 4, V(2) would be known to equal 0·… + γV(4).
    assert np.sqrt(one.variance(CORRIDOR[[2]])) > 0.01


# Distant states: nothing is learnt from one about another, K = v₀I
APART: np.ndarray = 100.0 * np.arange(4.0)[:, None]
SHY = Model(paper_kernel(Isotropic(1.0, 1), signal_variance=100.0, bias=0.0), noise_variance=0.01)


@merged_or_not
def test_posterior_mean_without_generalisation_is_monte_carlo(merge):
    """With σ²HHᵀ, the value of a state is the average return of all its visits, drawn to 0 by σ²/v₀ visits."""
    rng = np.random.default_rng(0)
    episodes, visits = [], [[], [], [], [0.0] * 20]
    for _ in range(20):
        path = [*rng.integers(3, size=5), 3]
        rewards = rng.normal(size=5)
        episodes.append(dict(observations=APART[path], rewards=rewards, terminated=True))
        following = 0.0
        for state, reward in zip(path[-2::-1], rewards[::-1], strict=True):
            following = reward + GAMMA * following
            visits[state].append(following)
    data = Trajectories.from_episodes(episodes, gamma=GAMMA)
    found = ExactPosterior.condition(SHY, build_targets(data, "stochastic", merge=merge))
    counts = np.array([len(v) for v in visits])
    assert_allclose(found.mean(APART), [np.sum(v) for v in visits] / (counts + 1e-4), rtol=1e-8, atol=1e-9)
    assert_allclose(found.variance(APART), 0.01 / (counts + 1e-4), rtol=1e-8)


@merged_or_not
def test_posterior_mean_with_deterministic_noise_minimises_bellman_residuals(merge):
    """With σ²I, the values minimise Σ(r − V + γV')² + (σ²/v₀)‖V‖²."""
    rng = np.random.default_rng(1)
    episodes, rows, right = [], [], []
    for _ in range(10):
        path = [*rng.integers(3, size=4), 3]
        rewards = rng.normal(size=4)
        episodes.append(dict(observations=APART[path], rewards=rewards, terminated=True))
        for here, there, reward in zip(path[:-1], path[1:], rewards, strict=True):
            rows.append(np.eye(4)[here] - GAMMA * np.eye(4)[there])
            right.append(reward)
        rows.append(np.eye(4)[3])
        right.append(0.0)
    R = np.array(rows)
    normal = R.T @ R + 1e-4 * np.eye(4)
    data = Trajectories.from_episodes(episodes, gamma=GAMMA)
    found = ExactPosterior.condition(SHY, build_targets(data, "deterministic", merge=merge))
    assert_allclose(found.mean(APART), np.linalg.solve(normal, R.T @ right), rtol=1e-8, atol=1e-9)
    assert_allclose(found.variance(APART), 0.01 * np.diag(np.linalg.inv(normal)), rtol=1e-8)


def test_posterior_of_a_stochastic_chain():
    """A random walk on 0…5 with both ends terminal and 1 for the right end: V(i) solves a linear system."""
    rng = np.random.default_rng(0)
    step = np.zeros((6, 6))
    for i in range(1, 5):
        step[i, i - 1] = step[i, i + 1] = 0.5
    reward = step[:, 5]
    values = np.linalg.solve(np.eye(6) - GAMMA * step, reward)
    episodes = []
    for _ in range(2000):
        path = [int(rng.integers(1, 5))]
        while 0 < path[-1] < 5:
            path.append(path[-1] + (1 if rng.random() < 0.5 else -1))
        rewards = [float(state == 5) for state in path[1:]]
        episodes.append(dict(observations=np.array(path, dtype=float), rewards=rewards, terminated=True))
    found = posterior(episodes, "stochastic", relevance=1.0, noise_variance=0.1)
    assert_allclose(found.mean(CORRIDOR), values, atol=0.02)
    # The noise of returns is shared along an episode: the interval that knows it is the wider one.
    inner = CORRIDOR[1:5]
    assert found.interval_variance(inner).mean() > 2 * found.variance(inner).mean()
    assert (np.abs(found.mean(inner) - values[1:5]) < 3 * np.sqrt(found.interval_variance(inner))).all()
