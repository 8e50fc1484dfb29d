"""Instrumental GPTD: every formula densely, no bias where regression on Bellman residuals has one, and the protocol."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import instrumental
from gptd_rl.inference.exact import ExactPosterior
from gptd_rl.inference.instrumental import (
    InstrumentalPosterior,
    MomentSolution,
    MomentStatistics,
    ValueFeatures,
    WhiteFeatures,
    moment_noise,
    moment_statistics,
    summarize_moments,
)
from gptd_rl.inference.model import Model
from gptd_rl.inference.posterior import CHUNK
from gptd_rl.kernels import ARD, Constant, Isotropic, Kernel, Matern52, paper_kernel
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import build_targets
from gptd_rl.temporal.transitions import Transitions
from tests.helpers import MIXES, dense_H, row_places, sample
from tests.mdps import Drifting, Garnet, Walk

CLOSE: dict[str, Any] = dict(rtol=1e-9, atol=1e-10)
WALK = Walk(n_cells=9, gamma=0.9)
KERNELS: dict[str, Kernel] = {
    "paper": paper_kernel(ARD([0.3, 0.6, 1.1]), 1.3, 0.4),
    "no level": paper_kernel(ARD([0.3, 0.6, 1.1]), 1.3, 0.0),
    "matern": Matern52(ARD([0.3, 0.6, 1.1]), 2.0) + Constant(3.0),
}

every_mix = pytest.mark.parametrize("mix", [*MIXES])
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


def shard_of(data: Trajectories) -> Shard:
    return Shard.of(data, "stochastic")


def posterior_of(data: Trajectories, kernel: Kernel, points: np.ndarray | None = None) -> InstrumentalPosterior:
    features = WhiteFeatures.of(kernel, np.unique(data.states, axis=0) if points is None else points)
    solution = MomentSolution.of(moment_statistics(shard_of(data), features))
    noise = moment_noise(shard_of(data), features, solution)
    return InstrumentalPosterior(features, solution, noise, points is None)


def features_of_rows(data: Trajectories, features: ValueFeatures) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ψ, x and r of every transition, by a loop."""
    rows = Transitions.of(data)
    N = rows.successors.toarray()
    P = np.array([features(rows.points[[i]])[0] for i in rows.left])
    X = np.array(
        [
            p - sum((w * features(rows.points[[j]])[0] for j, w in enumerate(n) if w), 0.0)
            for p, n in zip(P, N, strict=True)
        ]
    )
    return P, X, rows.rewards


def assert_same_statistics(a: MomentStatistics, b: MomentStatistics, **close: Any) -> None:
    for name in MomentStatistics.__dataclass_fields__:
        if getattr(a, name) is None:
            assert getattr(b, name) is None, name
            continue
        assert_allclose(getattr(a, name), getattr(b, name), err_msg=name, **(CLOSE | close))


# ------------------------------------------------------------------------------------------ features


@every_kernel
def test_white_features_have_the_prior_of_the_kernel(kernel):
    """ψ(x)ᵀψ(x') is k(x, x') where both are inducing points, and ψ(x)ᵀψ(x) + unexplained is k(x, x) anywhere."""
    rng = np.random.default_rng(0)
    points, new = rng.normal(size=(8, 3)), rng.normal(size=(5, 3))
    features = WhiteFeatures.of(kernel, points)
    P = features(points)
    assert_allclose(P @ P.T, kernel(points, points), **CLOSE)
    P = features(new)
    assert_allclose((P**2).sum(axis=1) + features.inducing.residual_variance(new), kernel.diagonal(new), **CLOSE)


def test_white_features_leave_redundant_points_out():
    points = np.random.default_rng(0).normal(size=(8, 3))
    twice = WhiteFeatures.of(KERNELS["paper"], np.concatenate([points, points + 1e-9]))
    assert len(twice) == len(WhiteFeatures.of(KERNELS["paper"], points)) == 9  # and the level


# ------------------------------------------------------------------------------------------ statistics


@every_mix
@every_kernel
def test_moment_statistics_are_sums_over_transitions(mix, kernel):
    data = sample(MIXES[mix], seed=1, terminal_rewards=True)
    features = WhiteFeatures.of(kernel, data.states[::2])
    P, X, r = features_of_rows(data, features)
    losses = 1.0 - Transitions.of(data).discounts
    expected = MomentStatistics(
        np.sum([np.outer(p, p) for p in P], axis=0),
        np.sum([np.outer(p, x) for p, x in zip(P, X, strict=True)], axis=0),
        np.sum([p * y for p, y in zip(P, r, strict=True)], axis=0),
        np.sum([np.outer(x, x) for x in X], axis=0),
        np.sum([x * y for x, y in zip(X, r, strict=True)], axis=0),
        float(np.sum(r**2)),
        len(r),
        losses.sum(),
        losses.min(),
    )
    assert_same_statistics(moment_statistics(shard_of(data), features), expected)


@pytest.mark.parametrize("block", [1, 3, 7, 1000])
def test_moment_statistics_do_not_depend_on_blocks(block, monkeypatch):
    data = sample(MIXES["mixed"], seed=1)
    features = WhiteFeatures.of(KERNELS["paper"], data.states)
    whole = moment_statistics(shard_of(data), features)
    solution = MomentSolution.of(whole)
    noise = moment_noise(shard_of(data), features, solution)
    monkeypatch.setattr(instrumental, "BLOCK", block)
    assert_same_statistics(moment_statistics(shard_of(data), features), whole)
    assert_allclose(moment_noise(shard_of(data), features, solution), noise, **CLOSE)


@pytest.mark.parametrize("seed", range(4))
def test_moment_solution_is_the_same_over_any_shards(seed):
    """Segments dealt to shards at random, and long ones cut in between, give the same weights and variances."""
    data, rng = Drifting(gamma=0.9, time_limit=20).sample(300, np.random.default_rng(seed)), np.random.default_rng(seed)
    kernel = paper_kernel(ARD([0.5, 0.1]), 20.0, 60.0)
    features = WhiteFeatures.of(kernel, data.states[::7])
    whole = MomentSolution.of(moment_statistics(shard_of(data), features))
    pieces = data.cut(int(rng.integers(1, 9)))
    shard_number = rng.integers(4, size=pieces.n_segments)
    shards = [shard_of(pieces[shard_number == i]) for i in range(4) if (shard_number == i).any()]
    total = moment_statistics(shards[0], features)
    for shard in shards[1:]:
        total = total + moment_statistics(shard, features)
    found = MomentSolution.of(total)
    assert_allclose(found.weights, whole.weights, rtol=1e-8, atol=1e-8)
    assert_allclose(found.error_variance, whole.error_variance, rtol=1e-8)
    noise = sum(moment_noise(shard, features, found) for shard in shards)
    mine, theirs = (
        B @ B.T
        for B in (
            found.covariance_factor(np.asarray(noise)),
            whole.covariance_factor(moment_noise(shard_of(data), features, whole)),
        )
    )
    assert_allclose(mine, theirs, rtol=1e-8, atol=1e-8 * theirs.max())


# ------------------------------------------------------------------------------------------ solution


def naive_solution(P: np.ndarray, X: np.ndarray, r: np.ndarray, discounts: np.ndarray) -> dict[str, Any]:
    """The formulas at the head of the module, with explicit inverses and TD errors one by one."""
    G, A, b, n = P.T @ P, P.T @ X, P.T @ r, len(r)
    e, V = np.linalg.eigh(G)
    e = np.maximum(e, instrumental.FLOOR * e.max())
    slowest = max((1.0 - discounts).min(), instrumental.SLOWEST * (1.0 - discounts).mean())
    q = np.clip(np.diag(V.T @ A @ V) / e, slowest, 1.0)
    s2 = np.mean(r**2)
    for _ in range(instrumental.N_ROUNDS):
        R = instrumental.SHRINKAGE * s2 * V @ np.diag(1.0 / q) @ V.T
        inverse = np.linalg.inv(A + R)
        w = inverse @ b
        errors = r - X @ w
        hat = X @ inverse @ P.T  # rewards → predictions
        s2 = np.mean(errors**2) / (1.0 - np.clip(np.trace(hat) / n, 0.0, instrumental.MAX_LEVERAGE)) ** 2
    left_out = errors / (1.0 - np.clip(np.diag(hat), -1.0, instrumental.MAX_LEVERAGE))
    W = P.T @ np.diag(left_out**2) @ P
    return dict(
        w=w, s2=s2, R=R, W=W, inverse=inverse, left_out=left_out, covariance=inverse @ (W + R @ R.T) @ inverse.T
    )


@pytest.mark.parametrize("mdp", [WALK, Drifting(gamma=0.9)], ids=["terminated", "truncated"])
def test_moment_solution_is_the_dense_formula(mdp):
    data = mdp.sample(200, np.random.default_rng(0))
    found = posterior_of(data, paper_kernel(Isotropic(0.3, data.n_dims), 20.0, 60.0), data.states[::9])
    rows = Transitions.of(data)
    expected = naive_solution(*features_of_rows(data, found.features), rows.discounts)
    assert_allclose(found.solution.weights, expected["w"], rtol=1e-7, atol=1e-7)
    assert_allclose(found.solution.error_variance, expected["s2"], rtol=1e-8)
    assert_allclose(found.noise, expected["W"], rtol=1e-6, atol=1e-6 * expected["W"].max())
    P = found.features(data.states)
    assert_allclose(found.mean(data.states), P @ expected["w"], rtol=1e-7, atol=1e-7)
    unexplained = found.features.residual_variance(data.states)
    variance = np.diag(P @ expected["covariance"] @ P.T) + unexplained
    assert_allclose(found.variance(data.states), variance, rtol=1e-6)


def test_moment_noise_holds_errors_of_transitions_left_out():
    """δ_t/(1 − h_t) is the error of row t under weights that never saw it, R as it is: really leave each out."""
    data = WALK.sample(60, np.random.default_rng(1))
    features = WhiteFeatures.of(paper_kernel(Isotropic(0.3, 1), 20.0, 60.0), WALK.cells[::2])
    P, X, r = features_of_rows(data, features)
    expected = naive_solution(P, X, r, Transitions.of(data).discounts)
    M, b = P.T @ X + expected["R"], P.T @ r
    for t in range(len(r)):
        w = np.linalg.solve(M - np.outer(P[t], X[t]), b - P[t] * r[t])
        assert_allclose(r[t] - X[t] @ w, expected["left_out"][t], rtol=1e-6, atol=1e-8)


def test_moment_solution_in_other_units():
    """Rewards times c and a kernel times c² give values times c."""
    data, c = WALK.sample(200, np.random.default_rng(0)), 37.0
    scaled = Trajectories(data.states, c * data.rewards, data.discounts, data.lengths, data.terminated)
    mine = posterior_of(data, paper_kernel(Isotropic(0.3, 1), 20.0, 60.0))
    theirs = posterior_of(scaled, paper_kernel(Isotropic(0.3, 1), c**2 * 20.0, c**2 * 60.0))
    assert_allclose(theirs.mean(WALK.cells), c * mine.mean(WALK.cells), rtol=1e-7)
    assert_allclose(theirs.variance(WALK.cells), c**2 * mine.variance(WALK.cells), rtol=1e-6)


@pytest.mark.parametrize("data", [sample(MIXES["mixed"]), sample([(2, False)]), sample([(3, True)])], ids=len)
def test_moment_solution_of_rewards_that_are_all_zero(data):
    """Nothing is ever paid: the value is 0."""
    silent = Trajectories(data.states, 0.0 * data.rewards, data.discounts, data.lengths, data.terminated)
    found = posterior_of(silent, KERNELS["paper"])
    assert_allclose(found.mean(data.states), 0.0, atol=1e-9)
    assert np.isfinite(found.variance(data.states)).all()


def test_moment_solution_without_any_loss():
    """γ = 1, and the transitions at hand enter no terminal state: no q of 0 to divide by."""
    data = sample([(9, False), (7, False)], gamma=1.0)
    features = WhiteFeatures.of(KERNELS["paper"], data.states)
    found = MomentSolution.of(summarize_moments(Transitions.of(data), features))
    assert np.isfinite(found.weights).all() and np.isfinite(found.error_variance)


# ------------------------------------------------------------------------------------------ no bias

# Four states on a ring that jump two ways, or end: rows are probabilities in quarters, the last column is the end.
QUARTERS = np.array([[0, 2, 1, 0, 1], [1, 0, 2, 1, 0], [0, 0, 1, 3, 0], [2, 1, 0, 0, 1]])
PAID = np.array([1.0, -2.0, 0.5, 3.0])


def expected_data(gamma: float) -> Trajectories:
    """Each state left four times, to each successor as often as its probability says; the end pays one more."""
    episodes = []
    for s, quarters in enumerate(QUARTERS):
        for following, times in enumerate(quarters):
            at_end = following == 4
            episode = dict(observations=[[float(s)], [float(following)]], rewards=[PAID[s] + at_end], terminated=at_end)
            episodes += [episode] * int(times)
    return Trajectories.from_episodes(episodes, gamma=gamma)


def true_values(gamma: float) -> np.ndarray:
    P = QUARTERS / 4.0
    return np.linalg.solve(np.eye(4) - gamma * P[:, :4], PAID + P[:, 4])


def repeated(known: MomentStatistics, times: float) -> MomentStatistics:
    """Statistics of the same transitions so many times over."""
    sums = {
        name: times * getattr(known, name) for name in MomentStatistics.__dataclass_fields__ if name != "present_cross"
    }
    return MomentStatistics(**(sums | dict(smallest_loss=known.smallest_loss)))


RING: np.ndarray = np.arange(4.0)[:, None]
ROUGH_RING = paper_kernel(Isotropic(9.0, 1), 30.0, 30.0)  # states hardly correlate, as in a table


@pytest.mark.parametrize("gamma", [0.5, 0.9, 1.0])
def test_instrumental_values_are_consistent_where_bellman_residuals_are_not(gamma):
    data, truth = expected_data(gamma), true_values(gamma)
    features = WhiteFeatures.of(ROUGH_RING, RING)
    known = moment_statistics(shard_of(data), features)
    errors = []
    for times in (1e1, 1e3, 1e5):
        weights = MomentSolution.of(repeated(known, times)).weights
        errors.append(np.abs(features(RING) @ weights - truth).max())
    assert errors[2] < 1e-3
    assert_allclose(errors[1] / errors[2], 100.0, rtol=0.05)  # shrinkage alone is left, which falls like 1/n
    # Least squares of r − V(x) + γV(x'), the limit of σ²I noise, stays where it is.
    visited = np.eye(5)[data.states[:, 0].astype(int)]
    biased = np.linalg.lstsq(dense_H(data) @ visited, data.rewards[row_places(data)], rcond=None)[0][:4]
    assert np.abs(biased - truth).max() > 0.2
    model = Model(ROUGH_RING, 1e-6)
    regression = ExactPosterior.condition(model, build_targets(data, "deterministic")).mean(RING)
    assert_allclose(regression, biased, atol=1e-2)


def test_instrumental_intervals_shrink_with_the_root_of_the_data():
    data, features = expected_data(0.9), WhiteFeatures.of(ROUGH_RING, RING)
    known = moment_statistics(shard_of(data), features)
    stds = []
    for times in (1e3, 4e3):
        solution = MomentSolution.of(repeated(known, times))
        noise = times * moment_noise(shard_of(data), features, solution)
        stds.append(np.sqrt(InstrumentalPosterior(features, solution, noise, True).variance(RING)))
    assert_allclose(stds[0] / stds[1], 2.0, rtol=0.02)


def test_instrumental_values_of_a_chain_sampled_for_long():
    """The sampled walk, not its expectation: within a few of its own standard deviations of the truth."""
    walk = Walk(n_cells=5, gamma=0.95, p_right=0.6)
    found = posterior_of(walk.sample(20_000, np.random.default_rng(0)), paper_kernel(Isotropic(0.5, 1), 20.0, 40.0))
    errors, std = found.mean(walk.cells) - walk.value(walk.cells), np.sqrt(found.variance(walk.cells))
    assert np.abs(errors).max() < 0.5
    assert np.abs(errors / std).max() < 3.5
    assert std.max() < 0.3


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_instrumental_values_without_noise_are_the_returns(gamma):
    """A corridor walked to its end: V(i) = −(1 + γ + …) exactly, with next to no error bar."""
    steps = np.arange(8.0)
    episode = dict(observations=steps[:, None], rewards=-np.ones(7), terminated=True)
    data = Trajectories.from_episodes([episode] * 10, gamma=gamma)
    found = posterior_of(data, paper_kernel(Isotropic(0.1, 1), 20.0, 20.0))
    expected = -np.array([sum(gamma**k for k in range(7 - i)) for i in range(7)])
    assert_allclose(found.mean(steps[:7, None]), expected, atol=1e-3)
    assert (np.sqrt(found.variance(steps[:7, None])) < 1e-2).all()


# ------------------------------------------------------------------------------------------ protocol


GARNET = Garnet(n_points=30, seed=1)
DATA = GARNET.sample(300, np.random.default_rng(0))
KERNEL = paper_kernel(ARD([3.0, 3.0]), 4.0, 9.0)
POSTERIORS = {"all states": posterior_of(DATA, KERNEL), "few points": posterior_of(DATA, KERNEL, GARNET.points[:6])}

both = pytest.mark.parametrize("found", POSTERIORS.values(), ids=POSTERIORS.keys())


def new_states(n: int) -> np.ndarray:
    return np.random.default_rng(5).random((n, 2))


@both
def test_instrumental_posterior_covariance_has_the_variance_on_its_diagonal(found):
    x = new_states(40)
    C = found.covariance(x)
    assert_allclose(np.diag(C), found.variance(x), rtol=1e-9)
    assert_allclose(C, C.T, atol=1e-10)
    assert np.linalg.eigvalsh(C).min() > -1e-10 * C.max()
    assert_array_equal(found.interval_variance(x), found.variance(x))


@both
def test_instrumental_posterior_samples_have_its_moments(found):
    x, n = new_states(4), 20_000
    samples = found.sample(x, n, np.random.default_rng(0))
    mean, C = found.mean(x), found.covariance(x)
    assert samples.shape == (n, 4)
    assert (np.abs(samples.mean(axis=0) - mean) < 5.0 * np.sqrt(np.diag(C) / n)).all()
    spread = np.sqrt((np.outer(np.diag(C), np.diag(C)) + C**2) / n)
    assert (np.abs(np.cov(samples.T) - C) < 5.0 * spread).all()


@both
def test_instrumental_posterior_is_batch_invariant(found):
    x = new_states(CHUNK + 40)
    mean, variance = found.mean(x), found.variance(x)
    for i in (0, 1, CHUNK - 1, CHUNK, len(x) - 1):
        assert_allclose(found.mean(x[[i]]), mean[[i]], rtol=1e-10)
        assert_allclose(found.variance(x[[i]]), variance[[i]], rtol=1e-9)
    assert found.mean(x[:0]).shape == found.variance(x[:0]).shape == (0,)


def test_instrumental_posterior_far_from_all_data_is_the_prior():
    """Where the features say nothing, what they leave out is all of the prior; the level is known."""
    far = np.full((1, 2), 1e3)
    found = POSTERIORS["few points"]
    assert_allclose(found.variance(far), 4.0 + (found.weight_factor[-1] ** 2).sum() * 9.0, rtol=1e-9)


@both
def test_instrumental_posterior_conditioned_on_more_has_the_statistics_of_both(found):
    more = GARNET.sample(200, np.random.default_rng(7))
    later = found.condition_on(more)
    whole = moment_statistics(shard_of(DATA + more), found.features)
    assert_same_statistics(later.solution.statistics, whole, rtol=1e-8)
    expected = MomentSolution.of(whole)
    assert_allclose(later.solution.weights, expected.weights, rtol=1e-7, atol=1e-8)
    noise = found.noise + moment_noise(shard_of(more), found.features, expected)  # each with the errors of its time
    assert_allclose(later.noise, noise, rtol=1e-7, atol=1e-8 * noise.max())
    x = new_states(9)
    assert_allclose(later.mean(x), replace(found, solution=expected, noise=noise).mean(x), rtol=1e-7)
    assert later.variance(x).mean() < found.variance(x).mean()
    assert_array_equal(found.solution.statistics.n_rows, 300)  # what it was


def test_instrumental_posterior_knows_its_inducing_points():
    assert POSTERIORS["all states"].inducing_points is None
    points = POSTERIORS["few points"].inducing_points
    assert points is not None
    assert_array_equal(points, GARNET.points[:6])
    assert all(found.trace_decay == 0.0 for found in POSTERIORS.values())


def test_solve_by_threads_of_one_solution(monkeypatch):
    """SciPy changes the pivots while it solves: no two calls may share them."""
    data = WALK.sample(300, np.random.default_rng(0))
    solution = posterior_of(data, paper_kernel(Isotropic(0.3, 1), 20.0, 60.0)).solution
    given = []

    def lu_solve(lu: tuple[np.ndarray, np.ndarray], right: np.ndarray) -> np.ndarray:
        given.append(lu[1])
        return original(lu, right)

    original = scipy.linalg.lu_solve
    monkeypatch.setattr(scipy.linalg, "lu_solve", lu_solve)
    right = np.random.default_rng(0).normal(size=(len(solution.weights), 200))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: solution.solve(right), range(50)))
    assert_array_equal(found, np.broadcast_to(found[0], np.shape(found)))
    assert not any(np.shares_memory(a, b) for i, a in enumerate(given) for b in [*given[:i], solution.lu[1]])
