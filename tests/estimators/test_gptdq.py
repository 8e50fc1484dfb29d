"""Q over pairs of a state and an action: against H and K written out, regression by action, and MDPs with known Q."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import gptd_rl
from gptd_rl import (
    ARD,
    GPTD,
    GPTDQ,
    FactorAnalysis,
    Isotropic,
    Trajectories,
    linalg,
)
from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.state_actions import query_policy, to_state_actions
from gptd_rl.estimators import engines, sparse_engine
from gptd_rl.exceptions import NotFittedError
from gptd_rl.inference import exact
from gptd_rl.inference.model import Model
from gptd_rl.kernels import ActionDelta, Kernel, Product, paper_kernel, stationary
from gptd_rl.kernels import base as kernels
from gptd_rl.temporal import targets as observations
from gptd_rl.temporal.targets import build_targets
from tests.helpers import (
    MIXES,
    NOISES,
    assert_gradient,
    assert_same,
    central_differences,
    dense_H,
    naive_kernel,
    row_places,
    sample,
    segments,
)

RHOS = (0.0, 0.3)
CLOSE: Any = dict(rtol=1e-9, atol=1e-9)

every_noise = pytest.mark.parametrize("noise", NOISES)
every_rho = pytest.mark.parametrize("rho", RHOS)


# -------------------------------------------------------------------------------------- references, by loops


def ties(states: np.ndarray, others: np.ndarray, rho: float) -> np.ndarray:
    return np.array([[1.0 if x[-1] == y[-1] else rho for y in others] for x in states]).reshape(len(states), -1)


def action_kernel(kernel: Kernel, n_actions: int, rho: float = 0.0) -> Product:
    return kernel * ActionDelta(n_actions, rho)


def naive_action_kernel(kernel: Any, states: np.ndarray, others: np.ndarray) -> np.ndarray:
    over_states, delta = kernel.parts
    return naive_kernel(over_states, states[:, :-1], others[:, :-1]) * ties(states, others, delta.correlation)


@dataclass(frozen=True)
class Dense:
    """r = HQ + η with H, K and Σ written out."""

    model: Model
    pairs: Trajectories
    noise: str

    @property
    def H(self) -> np.ndarray:
        return dense_H(self.pairs)

    @property
    def covariance_of_rewards(self) -> np.ndarray:
        H, s2 = self.H, self.model.noise_variance
        Sigma = s2 * (H @ H.T if self.noise == "stochastic" else np.eye(len(H)))
        return H @ self.K(self.pairs.states, self.pairs.states) @ H.T + Sigma

    def K(self, states: np.ndarray, others: np.ndarray) -> np.ndarray:
        kernel = self.model.kernel
        if kernel.n_categorical:
            return naive_action_kernel(kernel, states, others)
        return naive_kernel(kernel, states, others)

    @property
    def rewards(self) -> np.ndarray:
        return self.pairs.rewards[row_places(self.pairs)]

    @property
    def log_likelihood(self) -> float:
        C, r = self.covariance_of_rewards, self.rewards
        return float(-0.5 * (np.linalg.slogdet(C)[1] + r @ np.linalg.solve(C, r) + len(r) * np.log(2 * np.pi)))

    def mean(self, asked: np.ndarray) -> np.ndarray:
        k = self.H @ self.K(self.pairs.states, asked)
        return k.T @ np.linalg.solve(self.covariance_of_rewards, self.rewards)

    def covariance(self, asked: np.ndarray) -> np.ndarray:
        k = self.H @ self.K(self.pairs.states, asked)
        return self.K(asked, asked) - k.T @ np.linalg.solve(self.covariance_of_rewards, k)


def naive_pairs(data: Trajectories, n_actions: int, policy: Any = None) -> list[tuple[list[tuple], bool]]:
    """Pieces as lists of (x, a, reward, discount), and whether they are terminated: the rules of `pairs` as a loop."""
    pieces = []
    assert data.actions is not None
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        piece: list[tuple] = []
        for i in places[:-1]:
            x, a, following = data.states[i], int(data.actions[i]), i + 1
            at_end = following == places[-1]
            if i > places[0] and policy is not None and policy(x) != a:
                pieces.append(([*piece, (x, policy(x), 0.0, 0.0)], False))
                piece = []
            if at_end and not terminated and policy is None:
                pieces.append(([*piece, (x, a, 0.0, 0.0)], False))
            elif at_end and not terminated:
                last = (data.states[following], policy(data.states[following]), 0.0, 0.0)
                pieces.append(([*piece, (x, a, data.rewards[i], data.discounts[i]), last], False))
            elif at_end:
                pins = [(data.states[following], b, 0.0, 0.0) for b in range(n_actions)]
                pieces.append(([*piece, (x, a, data.rewards[i], 0.0), *pins], True))
            else:
                piece.append((x, a, data.rewards[i], data.discounts[i]))
    return [(piece, terminated) for piece, terminated in pieces if terminated or len(piece) > 1]


# -------------------------------------------------------------------------------------- data


def with_actions(data: Trajectories, n_actions: int = 3, seed: int = 0) -> Trajectories:
    actions = np.random.default_rng(seed).integers(n_actions, size=len(data))
    actions[data.last] = 0
    return Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)


def logged(mix: str, seed: int = 0, *, repeated: bool = False) -> Trajectories:
    return with_actions(sample(MIXES[mix], seed, n_dims=2, repeated=repeated), seed=seed)


def towards(x: np.ndarray) -> int:
    """A policy for random states."""
    return int(x[0] > 0) + int(x[1] > 0)


MODEL = Model(paper_kernel(ARD([0.6, 1.1]), 1.3, 0.4), 0.2)


def held(rho: float = 0.0, **options: Any) -> GPTDQ:
    """An estimator with nothing left to select: quick, and the same formulas."""
    kernel = MODEL.kernel.fix(*MODEL.kernel.parameter_names)
    defaults: dict[str, Any] = dict(n_actions=3, action_correlation=rho, noise_variance=MODEL.noise_variance)
    return GPTDQ(kernel, **(dict(objective="marginal_likelihood") | defaults | options))


def model_of_pairs(rho: float, n_actions: int = 3) -> Model:
    return replace(MODEL, kernel=action_kernel(MODEL.kernel, n_actions, rho))


ASKED = np.random.default_rng(9).normal(size=(5, 2))
TRIED = np.array([0, 1, 2, 1, 0])
ASKED_PAIRS = np.column_stack([ASKED, TRIED])
ALL_PAIRS = np.array([[*x, a] for x in ASKED for a in range(3)])


@pytest.fixture
def sparsely(monkeypatch):
    """No memory for all pairs of states: the sparse method, with every distinct pair in its subset if there is room."""
    for module in (engines, sparse_engine):
        monkeypatch.setattr(module, "available_bytes", lambda: 1000)


# -------------------------------------------------------------------------------------- the kernel

METRICS: dict[str, Any] = {
    "isotropic": Isotropic(0.7, 2),
    "ard": ARD([0.6, 1.1]),
    "factor": FactorAnalysis([0.3, 0.6], [0.8, -0.5]),
}


def labelled(n: int, seed: int, n_actions: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.normal(size=(n, 2)), rng.integers(n_actions, size=n)])


@every_rho
@pytest.mark.parametrize("metric", METRICS)
def test_the_kernel_is_the_one_of_states_times_a_tie(metric, rho, monkeypatch):
    monkeypatch.setattr(kernels, "TILE", 4)
    kernel = action_kernel(paper_kernel(METRICS[metric], 1.3, 0.4), 3, rho)
    X, Y = labelled(11, 0), labelled(7, 1)
    K = naive_action_kernel(kernel, X, Y)
    assert_allclose(kernel(X, Y), K, rtol=1e-12)
    assert_allclose(kernel(X, Y, out=np.full((11, 9), np.nan)[:, :7]), K, rtol=1e-12)
    assert_allclose(kernel.paired(X[:7], Y), np.diag(K[:7]), rtol=1e-12)
    square = naive_action_kernel(kernel, X, X)
    assert_allclose(kernel(X), square, rtol=1e-12)
    assert_allclose(kernel.diagonal(X), np.diag(square), rtol=1e-12)
    assert_allclose(np.tril(kernel.lower(X)), np.tril(square), rtol=1e-12)
    assert_allclose(np.tril(kernel.lower(X, np.full((11, 11), np.nan))), np.tril(square), rtol=1e-12)
    assert np.linalg.eigvalsh(square).min() > -1e-12


@every_rho
@pytest.mark.parametrize("metric", METRICS)
def test_the_kernel_contracts_its_own_derivatives(metric, rho, monkeypatch):
    monkeypatch.setattr(kernels, "TILE", 4)
    kernel = action_kernel(paper_kernel(METRICS[metric], 1.3, 0.4), 3, rho)
    X, Y, rng = labelled(11, 0), labelled(7, 1), np.random.default_rng(2)
    A, a = rng.normal(size=(11, 7)), rng.normal(size=7)
    symmetric = rng.normal(size=(11, 11))
    symmetric += symmetric.T

    def slopes(f: Any) -> np.ndarray:
        return central_differences(lambda theta: f(kernel.with_theta(theta)), kernel.theta)

    wanted = slopes(lambda k: (A * naive_action_kernel(k, X, Y)).sum())
    assert_allclose(kernel.contract(A, X, Y), wanted, rtol=1e-6, atol=1e-8)
    wanted = slopes(lambda k: (symmetric * naive_action_kernel(k, X, X)).sum())
    assert_allclose(kernel.contract_lower(np.tril(symmetric), X), wanted, rtol=1e-6, atol=1e-8)
    wanted = slopes(lambda k: a @ np.diag(naive_action_kernel(k, X[:7], Y)))
    assert_allclose(kernel.contract_paired(a, X[:7], Y), wanted, rtol=1e-6, atol=1e-8)
    wanted = slopes(lambda k: a @ k.diagonal(Y))
    assert_allclose(kernel.contract_diagonal(a, Y), wanted, rtol=1e-6, atol=1e-8)
    over = kernel(X, Y)
    assert_allclose(kernel.contract(A, X, Y, over), kernel.contract(A, X, Y), rtol=1e-12)


def test_nothing_is_computed_between_different_actions(monkeypatch):
    computed = []
    exponent = stationary._StationaryPairs.exponent

    def counting(self: Any, *arguments: Any) -> Any:
        tile = exponent(self, *arguments)
        computed.append(tile.size)
        return tile

    monkeypatch.setattr(stationary._StationaryPairs, "exponent", counting)
    X, Y = labelled(60, 0), labelled(40, 1)
    n, m = np.bincount(X[:, -1].astype(int)), np.bincount(Y[:, -1].astype(int))
    kernel = action_kernel(paper_kernel(ARD([1.0, 1.0])), 3)
    for compute, size in [
        (lambda: kernel(X, Y), n @ m),
        (lambda: kernel.contract(np.ones((60, 40)), X, Y), n @ m),
        (lambda: kernel.lower(X), n @ n),
        (lambda: kernel.contract_lower(np.ones((60, 60)), X), n @ n),
    ]:
        computed.clear()
        compute()
        assert 0 < sum(computed) <= size < 0.5 * len(X) * len(Y if size == n @ m else X)


def test_actions_that_do_not_meet_have_nothing_in_common():
    kernel = action_kernel(paper_kernel(ARD([1.0, 1.0])), 2)
    X, Y = labelled(5, 0, n_actions=1), labelled(4, 1, n_actions=1)
    Y[:, -1] = 1
    assert_array_equal(kernel(X, Y), 0.0)
    assert_array_equal(kernel.contract(np.ones((5, 4)), X, Y), 0.0)


@pytest.mark.parametrize("rho", [-0.1, 1.0, float("nan")])
def test_a_correlation_of_actions_lies_below_1(rho):
    with pytest.raises(ValueError, match=r"action_correlation must lie in \[0, 1\)"):
        ActionDelta(2, rho)


# -------------------------------------------------------------------------------------- pairs


@pytest.mark.parametrize("policy", [None, towards], ids=["on", "off"])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", range(3))
def test_pairs_by_the_rules(mix, policy, seed):
    data = logged(mix, seed)
    expected = naive_pairs(data, 3, policy)
    pairs = to_state_actions(data, DiscreteActions(3), policy)
    if not expected:
        assert pairs is None
        return
    assert pairs is not None
    rows = list(itertools.chain(*(piece for piece, _ in expected)))
    assert_array_equal(pairs.states, [[*x, a] for x, a, _, _ in rows])
    assert_array_equal(pairs.rewards, [r for _, _, r, _ in rows])
    assert_array_equal(pairs.discounts, [g for _, _, _, g in rows])
    assert_array_equal(pairs.lengths, [len(piece) for piece, _ in expected])
    assert_array_equal(pairs.terminated, [terminated for _, terminated in expected])
    if (pairs.lengths > 1).all():  # they are as good as any that users make
        assert_same(Trajectories(pairs.states, pairs.rewards, pairs.discounts, pairs.lengths, pairs.terminated), pairs)


def test_data_of_the_policy_itself_are_not_cut():
    data = sample(MIXES["mixed"], 1, n_dims=2)
    actions = np.array([towards(x) for x in data.states])
    data = Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)
    on, off = to_state_actions(data, DiscreteActions(3)), to_state_actions(data, DiscreteActions(3), towards)
    assert on is not None and off is not None
    assert off.n_segments == data.n_segments
    assert_array_equal(off.lengths - on.lengths, ~data.terminated)  # the last action is known now
    assert off.n_rows == on.n_rows + (~data.terminated).sum()


def test_continuous_actions_are_columns():
    data = sample([(3, True), (3, False)], n_dims=1)
    actions = np.arange(12.0).reshape(6, 2)
    data = Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)
    pairs = to_state_actions(data, ContinuousActions((2,)))
    assert pairs is not None
    assert_array_equal(pairs.lengths, [3, 2])
    x = data.states[:, 0]
    expected = [[x[0], 0, 1], [x[1], 2, 3], [x[2], 2, 3], [x[3], 6, 7], [x[4], 8, 9]]  # the last action is pinned
    assert_array_equal(pairs.states, expected)
    again = to_state_actions(
        data, ContinuousActions((2,)), lambda state: actions[np.flatnonzero(x == state[0])[0]] * (1 + 1e-9)
    )
    assert again is not None
    assert_array_equal(again.lengths, [3, 3], err_msg="rounding is no other action")


class Predicts:
    """A policy as in Stable-Baselines3."""

    def predict(self, observations: np.ndarray, deterministic: bool = False) -> tuple[np.ndarray, None]:
        assert deterministic
        return np.array([towards(x) for x in observations]), None


def on_batches(states: np.ndarray) -> np.ndarray:
    return (states > 0).sum(axis=1)


on_batches.batched = True  # type: ignore[attr-defined]


def test_policies_of_every_kind_are_one():
    for policy in (towards, Predicts(), on_batches):
        assert_array_equal(query_policy(policy, ASKED), [towards(x) for x in ASKED])
    assert len(query_policy(towards, ASKED[:0])) == 0


# -------------------------------------------------------------------------------------- posterior and evidence


@every_rho
@every_noise
@pytest.mark.parametrize("policy", [None, towards], ids=["on", "off"])
@pytest.mark.parametrize("mix", ["terminated", "truncated", "mixed"])
def test_posterior_and_evidence_are_those_of_H_and_K(mix, policy, noise, rho):
    data = logged(mix)
    q = held(rho, noise=noise).fit(data, policy=policy)
    pairs = to_state_actions(data, DiscreteActions(3), policy)
    assert pairs is not None
    dense = Dense(model_of_pairs(rho), pairs, noise)
    mean, std = q.predict(ASKED, TRIED, return_std=True)
    assert_allclose(mean, dense.mean(ASKED_PAIRS), **CLOSE)
    assert_allclose(std**2, np.diag(dense.covariance(ASKED_PAIRS)), **CLOSE)
    assert_allclose(q.log_marginal_likelihood_, dense.log_likelihood, **CLOSE)
    values, stds = q.q_values(ASKED, return_std=True)
    assert values.shape == stds.shape == (5, 3)
    assert_allclose(values.reshape(-1), dense.mean(ALL_PAIRS), **CLOSE)
    assert_array_equal(q.greedy_actions(ASKED), values.argmax(axis=1))
    assert_allclose(q.posterior_.covariance(ALL_PAIRS), dense.covariance(ALL_PAIRS), **CLOSE)


def test_three_pairs_by_hand():
    """x=0 → x=1 by action 1 (reward 2), then the end by action 0 (reward 3): all numbers written out."""
    episode = dict(observations=[[0.0], [1.0], [5.0]], actions=[1, 0], rewards=[2.0, 3.0], terminated=True)
    data = Trajectories.from_episodes([episode], gamma=0.5)
    kernel = paper_kernel(Isotropic(2.0, 1), 4.0, 1.0, fixed=("v0", "b", "h"))
    # pairs (0, 1), (1, 0), (5, 0), (5, 1); only (1, 0) and (5, 0), (0, 1) and (5, 1) correlate
    far, mid = 4.0 * np.exp(-25.0) + 1.0, 4.0 * np.exp(-16.0) + 1.0
    K = np.array([[5.0, 0.0, 0.0, far], [0.0, 5.0, mid, 0.0], [0.0, mid, 5.0, 0.0], [far, 0.0, 0.0, 5.0]])
    H = np.array([[1.0, -0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    r = np.array([2.0, 3.0, 0.0, 0.0])
    # asked: (0, 1), (1, 0) and (1, 1), which was never tried
    k = np.column_stack([K[:, 0], K[:, 1], [4.0 * np.exp(-1.0) + 1.0, 0.0, 0.0, mid]])
    for noise, Sigma in [("stochastic", 0.1 * H @ H.T), ("deterministic", 0.1 * np.eye(4))]:
        q = GPTDQ(kernel, noise_variance=0.1, noise=noise).fit(data)  # type: ignore[arg-type]
        assert q.actions_ == DiscreteActions(2)
        S = H @ K @ H.T + Sigma
        mean, std = q.predict([[0.0], [1.0], [1.0]], [1, 0, 1], return_std=True)
        assert_allclose(mean, k.T @ H.T @ np.linalg.solve(S, r), rtol=1e-10)
        assert_allclose(std**2, 5.0 - np.diag(k.T @ H.T @ np.linalg.solve(S, H @ k)), rtol=1e-10)


def test_terminated_data_are_regression_by_action():
    """σ²HHᵀ, all terminated, δ: a Gaussian process on the returns of each action, which knows nothing of the others."""
    data = logged("terminated", seed=4)
    q = held().fit(data)
    for action in range(3):
        x, y = [], []
        for places in segments(data):
            following = 0.0
            for i in reversed(places[:-1]):
                following = data.rewards[i] + data.discounts[i] * following if i < places[-2] else data.rewards[i]
                if data.actions is not None and data.actions[i] == action:
                    x.append(data.states[i])
                    y.append(following)
            x.append(data.states[places[-1]])  # terminal
            y.append(0.0)
        X, Y = np.array(x), np.array(y)
        S = naive_kernel(MODEL.kernel, X, X) + MODEL.noise_variance * np.eye(len(X))
        k = naive_kernel(MODEL.kernel, X, ASKED)
        mean, std = q.predict(ASKED, np.full(5, action), return_std=True)
        assert_allclose(mean, k.T @ np.linalg.solve(S, Y), **CLOSE)
        assert_allclose(std**2, 1.7 - np.diag(k.T @ np.linalg.solve(S, k)), **CLOSE)


@every_rho
@every_noise
@pytest.mark.parametrize("policy", [None, towards], ids=["on", "off"])
@pytest.mark.parametrize("mix", ["terminated", "mixed"])
@pytest.mark.parametrize("repeated", [False, True])
def test_gradient_of_the_evidence(mix, policy, noise, rho, repeated):
    pairs = to_state_actions(logged(mix, repeated=repeated), DiscreteActions(3), policy)
    assert pairs is not None
    seen = build_targets(pairs, noise)

    def objective(model: Model) -> tuple[float, np.ndarray]:
        value, gradient = exact.evidence_and_gradient(model, seen)
        return -value.log_likelihood, gradient

    model = model_of_pairs(rho)
    assert_gradient(objective, model)
    assert_allclose(-objective(model)[0], Dense(model, pairs, noise).log_likelihood, **CLOSE)
    assert_allclose(exact.evidence(model, seen).log_likelihood, -objective(model)[0], rtol=1e-12)


def test_each_action_is_factorised_by_itself(monkeypatch):
    pairs = to_state_actions(logged("terminated", repeated=True), DiscreteActions(3))
    assert pairs is not None
    seen, model = build_targets(pairs, "stochastic"), model_of_pairs(0.0)
    counts = np.bincount(seen.states[:, -1].astype(int))
    assert seen.n_rows > len(seen.states), "repeated pairs are merged"
    sizes = []
    cholesky = linalg.cholesky

    def counting(build: Any) -> np.ndarray:
        L = cholesky(build)
        sizes.append(len(L))
        return L

    monkeypatch.setattr(linalg, "cholesky", counting)
    value, _ = exact.evidence_and_gradient(model, seen, np.empty((len(seen.states),) * 2))
    assert sizes == counts.tolist()
    posterior = exact.ExactPosterior.condition(model, seen)
    dense = Dense(model, pairs, "stochastic")
    assert_allclose(value.log_likelihood, dense.log_likelihood, **CLOSE)
    assert_allclose(posterior.evidence(model).log_likelihood, dense.log_likelihood, **CLOSE)
    assert_allclose(posterior.variance(ASKED_PAIRS), np.diag(dense.covariance(ASKED_PAIRS)), **CLOSE)
    L = np.tril(posterior.L)
    assert_allclose(np.tril(L @ L.T), np.tril(exact.covariance(model, seen)), **CLOSE)


@every_noise
@pytest.mark.parametrize("policy", [None, towards], ids=["on", "off"])
def test_places_without_a_target_are_left_out(noise, policy, monkeypatch):
    pairs = to_state_actions(logged("truncated"), DiscreteActions(3), policy)
    assert pairs is not None
    whole = build_targets(pairs, noise)
    monkeypatch.setattr(observations, "MIN_EMPTY_ROWS", 1)
    packed = build_targets(pairs, noise)
    assert whole.operator.n_targets == len(pairs) and packed.operator.n_targets == pairs.n_rows
    model = model_of_pairs(0.0)
    assert_gradient(
        lambda m: (-exact.evidence(m, packed).log_likelihood, exact.evidence_and_gradient(m, packed)[1]), model
    )
    for mine, theirs in itertools.pairwise(exact.ExactPosterior.condition(model, seen) for seen in (whole, packed)):
        assert_allclose(mine.mean(ASKED_PAIRS), theirs.mean(ASKED_PAIRS), **CLOSE)
        assert_allclose(mine.variance(ASKED_PAIRS), theirs.variance(ASKED_PAIRS), **CLOSE)
        interval = mine.interval_variance(ASKED_PAIRS), theirs.interval_variance(ASKED_PAIRS)
        assert_allclose(*interval, **CLOSE)


def test_a_correlation_lends_to_actions_that_were_never_tried():
    data = logged("terminated")
    apart, tied = held(0.0, n_actions=4).fit(data), held(0.3, n_actions=4).fit(data)
    untried = np.full(5, 3)
    terminal_only = [q.predict(ASKED, untried, return_std=True) for q in (apart, tied)]
    assert terminal_only[1][1].max() < terminal_only[0][1].max()
    far = np.full((1, 2), 1e3)
    assert_allclose(held(0.0, n_actions=4).fit(data[[0]]).predict(far, [3], return_std=True)[1] ** 2, 1.7, rtol=0.3)


# -------------------------------------------------------------------------------------- the sparse method


@every_rho
@every_noise
@pytest.mark.parametrize("policy", [None, towards], ids=["on", "off"])
def test_a_subset_of_all_pairs_is_exact(policy, noise, rho, sparsely, monkeypatch):
    data = logged("mixed")
    q = held(rho, noise=noise).fit(data, policy=policy)
    assert q.method_ == "sparse" and q.exact_
    pairs = to_state_actions(data, DiscreteActions(3), policy)
    assert pairs is not None
    dense = Dense(model_of_pairs(rho), pairs, noise)
    mean, std = q.predict(ASKED, TRIED, return_std=True)
    tight: Any = dict(rtol=1e-7, atol=1e-7)
    assert_allclose(mean, dense.mean(ASKED_PAIRS), **tight)
    assert_allclose(std**2, np.diag(dense.covariance(ASKED_PAIRS)), **tight)
    assert_allclose(q.posterior_.covariance(ALL_PAIRS), dense.covariance(ALL_PAIRS), **tight)
    assert_allclose(q.log_marginal_likelihood_, dense.log_likelihood, **tight)
    monkeypatch.undo()
    whole = held(rho, noise=noise).fit(data, policy=policy)
    assert whole.method_ == "exact"
    assert_allclose(q.confidence_interval(ASKED, TRIED), whole.confidence_interval(ASKED, TRIED), **tight)


@every_rho
@every_noise
@pytest.mark.parametrize("bias", [0.4, 0.0])
@pytest.mark.usefixtures("sparsely")
def test_gradient_of_the_bound(noise, rho, bias):
    data = with_actions(sample([(20, False), (15, True), (25, True)], n_dims=2))
    kernel = paper_kernel(ARD([0.6, 1.1]), 1.3, bias, fixed=("v0", "a1", "a2", "b") if bias else ("v0", "a1", "a2"))
    q = GPTDQ(
        kernel,
        n_actions=3,
        action_correlation=rho,
        noise=noise,
        noise_variance=0.2,
        subset_size=12,
        objective="marginal_likelihood",
    ).fit(data, policy=towards)
    assert not q.exact_ and q.inducing_points_ is not None and q.inducing_points_.shape == (12, 3)
    free = np.isfinite(q.theta_)
    bound, gradient = q.log_marginal_likelihood(eval_gradient=True)

    def at(free_theta: np.ndarray) -> float:
        theta = q.theta_.copy()
        theta[free] = free_theta
        return q.log_marginal_likelihood(theta)

    assert_allclose(gradient[free], central_differences(at, q.theta_[free]), rtol=1e-5, atol=1e-6)
    pairs = to_state_actions(data, DiscreteActions(3), towards)
    assert pairs is not None
    model = Model(action_kernel(kernel, 3, rho), 0.2)
    assert bound < Dense(model, pairs, noise).log_likelihood
    covariance = q.posterior_.covariance(ALL_PAIRS)
    assert_allclose(np.diag(covariance), q.q_values(ASKED, return_std=True)[1].reshape(-1) ** 2, rtol=1e-8)


# -------------------------------------------------------------------------------------- MDPs whose Q is known


@dataclass(frozen=True)
class Table:
    """A random MDP of a few states, laid out on a line; some actions of some states end it."""

    n_states: int = 8
    n_actions: int = 3
    gamma: float = 0.9
    slip: float = 0.0  # how often a step goes to a state at random
    seed: int = 0

    @property
    def P(self) -> np.ndarray:
        """Of shape (n_states, n_actions, n_states + 1), the last one terminal."""
        rng = np.random.default_rng(self.seed)
        P = np.zeros((self.n_states, self.n_actions, self.n_states + 1))
        for x, a in np.ndindex(*P.shape[:2]):
            P[x, a, rng.integers(self.n_states + 1)] = 1.0
        return (1.0 - self.slip) * P + self.slip / (self.n_states + 1)

    @property
    def r(self) -> np.ndarray:
        return np.random.default_rng(self.seed + 1).normal(size=(self.n_states, self.n_actions))

    def value(self, policy: np.ndarray) -> np.ndarray:
        """Q^π of shape (n_states, n_actions) for π of the same shape."""
        n = self.n_states * self.n_actions
        onwards = np.einsum("xay,yb->xayb", self.P[:, :, :-1], policy).reshape(n, n)
        return np.linalg.solve(np.eye(n) - self.gamma * onwards, self.r.reshape(-1)).reshape(self.r.shape)

    def sample(self, n: int, seed: int, behaviour: np.ndarray, time_limit: int = 12) -> Trajectories:
        rng = np.random.default_rng(seed)
        episodes, n_done, P, r = [], 0, self.P, self.r
        while n_done < n:
            states: list[int] = [int(rng.integers(self.n_states))]
            actions: list[int] = []
            rewards: list[float] = []
            while states[-1] < self.n_states and len(actions) < time_limit:
                x = states[-1]
                actions.append(int(rng.choice(self.n_actions, p=behaviour[x])))
                rewards.append(r[x, actions[-1]])
                states.append(int(rng.choice(self.n_states + 1, p=P[x, actions[-1]])))
            n_done += len(actions)
            terminated = states[-1] == self.n_states
            episodes.append(
                dict(observations=np.array(states)[:, None], actions=actions, rewards=rewards, terminated=terminated)
            )
        return Trajectories.from_episodes(episodes, gamma=self.gamma)

    @property
    def everywhere(self) -> tuple[np.ndarray, np.ndarray]:
        """All states and actions, as columns."""
        x, a = np.indices((self.n_states, self.n_actions)).reshape(2, -1)
        return x[:, None].astype(float), a


UNIFORM = np.full((8, 3), 1.0 / 3.0)
CHOICE = np.array([0, 1, 2, 2, 1, 0, 1, 2])
TABULAR = paper_kernel(Isotropic(50.0, 1), 100.0, 1.0, fixed=("v0", "b", "h"))  # states know nothing of each other


def chosen(x: np.ndarray) -> int:
    return int(CHOICE[min(int(x[0]), 7)])


@every_noise
@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_another_policy_is_evaluated_exactly_where_the_system_is_deterministic(noise, method, monkeypatch):
    if method == "sparse":
        for module in (engines, sparse_engine):
            monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    mdp = Table()
    data = mdp.sample(600, 0, UNIFORM)
    x, a = mdp.everywhere
    truth = mdp.value(np.eye(3)[CHOICE])
    q = GPTDQ(TABULAR, noise=noise, noise_variance=1e-6, objective="marginal_likelihood").fit(data, policy=chosen)
    assert q.method_ == method
    assert_allclose(q.predict(x, a), truth.reshape(-1), atol=1e-3)
    # … and what the uniform policy, which made the data, is worth is something else
    assert np.abs(truth - mdp.value(UNIFORM)).max() > 0.5
    lower, upper = q.confidence_interval(x, a)
    assert ((lower - 1e-3 < truth.reshape(-1)) & (truth.reshape(-1) < upper + 1e-3)).all()
    # one step of policy improvement, as by the true Q
    assert_array_equal(q.greedy_actions(np.arange(8.0)[:, None]), truth.argmax(axis=1))


def test_policy_iteration_finds_the_optimum():
    """The greedy policy is a policy that `fit` takes: the same data, evaluated for better and better ones."""
    mdp = Table()
    data = mdp.sample(600, 0, UNIFORM)
    best = np.eye(3)[CHOICE]
    for _ in range(10):
        best = np.eye(3)[mdp.value(best).argmax(axis=1)]
    q = GPTDQ(TABULAR, noise_variance=1e-6, objective="marginal_likelihood").fit(data)
    for policy in ("itself", "its method"):
        improved = q
        for _ in range(8):
            improved = clone(improved).fit(data, policy=improved if policy == "itself" else improved.greedy_actions)
        x, a = mdp.everywhere
        assert_allclose(improved.predict(x, a), mdp.value(best).reshape(-1), atol=1e-3)


def test_a_model_is_selected_for_another_policy():
    """Nothing held: θ is chosen by the evidence of cut data, and Q is near the truth between the states, too."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(20):  # x' = 0.8x ± 0.3, rewarded by −x² and a cost of going up; a second input means nothing
        x: Any = [rng.uniform(-1, 1)]
        actions = rng.integers(2, size=10)
        for a in actions:
            x.append(0.8 * x[-1] + (0.3 if a else -0.3))
        rewards = -(np.array(x[:-1]) ** 2) - 0.5 * actions
        episodes.append(dict(observations=np.column_stack([x, rng.normal(size=11)]), actions=actions, rewards=rewards))
    data = Trajectories.from_episodes(episodes, gamma=0.8)

    def value(x: float, action: int) -> float:  # of going up ever after
        total, discount = 0.0, 1.0
        for _ in range(100):
            total += discount * (-(x**2) - 0.5 * action)
            x, action, discount = 0.8 * x + (0.3 if action else -0.3), 1, 0.8 * discount
        return total

    places = np.linspace(-1, 1, 15)
    truth = np.array([[value(s, a) for a in (0, 1)] for s in places])
    for policy, good in ((lambda x: 1, True), (None, False)):  # without it, Q is that of going anywhere
        q = GPTDQ("ard", noise="deterministic", n_restarts=0).fit(data, policy=policy)
        error = np.sqrt(np.mean((q.q_values(np.column_stack([places, np.zeros(15)])) - truth) ** 2))
        assert (error < 0.02 * truth.std()) == good
        assert q.relevances_.argmax() == 0


@pytest.mark.parametrize("seed", range(2))
def test_intervals_cover_in_a_stochastic_system(seed):
    mdp = Table(slip=0.3)
    data = mdp.sample(600, seed, UNIFORM, time_limit=60)
    assert data.terminated.mean() > 0.9
    x, a = mdp.everywhere
    truth = mdp.value(UNIFORM).reshape(-1)
    q = GPTDQ(TABULAR, objective="marginal_likelihood").fit(data)
    lower, upper = q.confidence_interval(x, a)
    assert np.mean((lower < truth) & (truth < upper)) >= 0.85
    assert np.mean(upper - lower) < 3.0 * truth.std(), "wide enough is not the same as endless"
    wide, narrow = q.confidence_interval(x, a, level=0.99), q.confidence_interval(x, a, level=0.5)
    assert (wide[0] < lower).all() and (narrow[0] > lower).all()


@dataclass(frozen=True)
class Linear:
    """x' = 0.8x + a with reward −x² − 0.3a², under a = −kx: Q is a quadratic."""

    k: float = 0.4
    gamma: float = 0.9

    def sample(self, n_episodes: int, seed: int) -> Trajectories:
        rng = np.random.default_rng(seed)
        episodes = []
        for _ in range(n_episodes):
            x, actions = [rng.uniform(-1, 1)], rng.uniform(-1, 1, size=10)
            for a in actions:
                x.append(0.8 * x[-1] + a)
            rewards = -(np.array(x[:-1]) ** 2) - 0.3 * actions**2
            episodes.append(dict(observations=x, actions=actions[:, None], rewards=rewards))
        return Trajectories.from_episodes(episodes, gamma=self.gamma)

    def value(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        p = (1.0 + 0.3 * self.k**2) / (1.0 - self.gamma * (0.8 - self.k) ** 2)  # V = −px²
        return -(x**2) - 0.3 * a**2 - self.gamma * p * (0.8 * x + a) ** 2


def test_continuous_actions():
    system = Linear()
    candidates = np.linspace(-1, 1, 21)
    q = GPTDQ(noise="deterministic", candidates=candidates, n_restarts=0).fit(
        system.sample(15, 0), policy=lambda x: -0.4 * x
    )
    assert q.actions_ == ContinuousActions((1,))
    assert q.relevances_.shape == q.action_relevances_.shape == (1,)
    x, a = np.meshgrid(np.linspace(-1, 1, 9), candidates, indexing="ij")
    truth = system.value(x, a)
    values = q.q_values(x[:, :1])
    assert np.sqrt(np.mean((values - truth) ** 2)) < 0.05 * truth.std()
    assert_allclose(values, q.predict(x.reshape(-1, 1), a.reshape(-1)).reshape(x.shape), rtol=1e-9)
    greedy = q.greedy_actions(x[:, :1])
    assert greedy.shape == (9, 1)
    assert np.abs(greedy[:, 0] - candidates[truth.argmax(axis=1)]).max() < 0.11  # one candidate off at most
    assert q.sample(x[:, :1], n=2, seed=0).shape == (2, 9, 21)


# -------------------------------------------------------------------------------------- draws


@every_rho
@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_draws_have_the_mean_and_covariance_of_the_posterior(method, rho, monkeypatch):
    data = logged("mixed")
    if method == "sparse":
        for module in (engines, sparse_engine):
            monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    q = held(rho, subset_size=10 if method == "sparse" else 500).fit(data)
    assert q.method_ == method
    n, states = 40_000, ASKED[:3]
    draws = q.sample(states, n, seed=1)
    assert draws.shape == (n, 3, 3)
    flat = draws.reshape(n, -1)
    mean, std = (moment.reshape(-1) for moment in q.q_values(states, return_std=True))
    assert_allclose(flat.mean(axis=0), mean, atol=5 * std.max() / np.sqrt(n))
    covariance = q.posterior_.covariance(ALL_PAIRS[:9])
    assert_allclose(np.diag(covariance), std**2, rtol=1e-8)
    assert_allclose(np.cov(flat.T), covariance, atol=6 * std.max() ** 2 * np.sqrt(2 / n))
    different = ALL_PAIRS[:9, None, -1] != ALL_PAIRS[:9, -1]
    if method == "exact":
        assert np.abs(covariance[different]).max() > 1e-3, "the data tie what the prior does not"


def test_draws_are_repeatable():
    q = held().fit(logged("mixed"))
    assert_array_equal(q.sample(ASKED, 2, seed=3), q.sample(ASKED, 2, seed=np.random.default_rng(3)))
    assert np.abs(q.sample(ASKED, 1, seed=3) - q.sample(ASKED, 1, seed=4)).max() > 1e-3
    assert q.sample(ASKED[:0], 2).shape == (2, 0, 3)


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_draws_of_what_is_certain_are_what_it_is(method, monkeypatch):
    """Without noise the posterior has no width left, to rounding: drawing from it must not fail."""
    if method == "sparse":
        for module in (engines, sparse_engine):
            monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    mdp, tabular = Table(), dict(noise_variance=1e-9, objective="marginal_likelihood")
    q = GPTDQ(TABULAR, **tabular).fit(mdp.sample(600, 0, UNIFORM), policy=chosen)  # type: ignore[arg-type]
    assert q.method_ == method
    draws = q.sample(np.arange(8.0)[:, None], 3, seed=0)
    assert_allclose(draws, np.tile(mdp.value(np.eye(3)[CHOICE]), (3, 1, 1)), atol=1e-2)


def test_draws_where_the_variance_is_rounding():
    """A long lengthscale and no noise: what the posterior leaves open is less than what its subtraction can tell."""
    steps = np.linspace(0.0, 1.0, 30)
    episode = dict(observations=steps, actions=np.zeros(29, int), rewards=-np.ones(29), terminated=True)
    kernel = paper_kernel(Isotropic(0.5, 1), 100.0, 100.0, fixed=("v0", "b", "h"))
    q = GPTDQ(kernel, noise_variance=1e-13, objective="marginal_likelihood")
    q.fit(Trajectories.from_episodes([episode], gamma=1.0))
    states = np.linspace(0.0, 1.0, 200)[:, None]
    draws = q.sample(states, 2, seed=0)
    assert_allclose(draws[:, :, 0], np.tile(q.q_values(states)[:, 0], (2, 1)), atol=1e-3)


# -------------------------------------------------------------------------------------- data of every kind


def test_shards_are_the_data(tmp_path):
    data = logged("mixed")
    parts = [data[:2], data[2:]]
    paths = [part.save(tmp_path / f"{i}.npz") for i, part in enumerate(parts)]
    whole = GPTDQ("isotropic", objective="marginal_likelihood", noise_floor=1e-2, n_restarts=0).fit(
        data, policy=towards
    )
    for shards in (parts, paths, iter(parts)):
        q = GPTDQ("isotropic", objective="marginal_likelihood", noise_floor=1e-2, n_restarts=0).fit(
            shards, policy=towards
        )
        assert q.actions_ == whole.actions_
        assert_allclose(q.q_values(ASKED), whole.q_values(ASKED), rtol=1e-9)


def test_a_shard_without_a_transition_is_left_out():
    data = logged("mixed")
    short = with_actions(sample([(2, False)], n_dims=2))
    assert_allclose(held().fit([short, data]).q_values(ASKED), held().fit(data).q_values(ASKED), rtol=1e-12)


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_further_data(method, monkeypatch):
    first, second = logged("mixed", 0), logged("mixed", 5)
    if method == "sparse":
        for module in (engines, sparse_engine):
            monkeypatch.setattr(module, "available_bytes", lambda: 1000)
    q = held().partial_fit(first, policy=towards).partial_fit(second, policy=towards)
    assert q.method_ == method
    if method == "exact":
        assert_allclose(q.q_values(ASKED), held().fit(first + second, policy=towards).q_values(ASKED), **CLOSE)
    else:
        assert q.log_marginal_likelihood_ != held().fit(first, policy=towards).log_marginal_likelihood_


def test_pruning_leaves_the_action_alone():
    mdp = Table()
    data = mdp.sample(80, 0, UNIFORM)
    beside = np.random.default_rng(0).normal(size=(len(data), 1))
    data = replace(data, states=np.column_stack([data.states, beside]))
    q = GPTDQ("ard", noise="deterministic", n_restarts=0, noise_floor=1e-3).fit(data, policy=chosen)
    assert q.relevances_.shape == (2,) and q.n_dims_ == 2
    pruned = q.prune(threshold=min(10.0, 0.99 * (q.relevances_ * data.states.std(axis=0) ** 2)[0]))
    assert_array_equal(pruned.inputs_, [0])
    assert_array_equal(pruned.pruning_.removed, [1])
    assert pruned.relevances_[1] == 0.0
    x = np.array([[3.0, -7.0], [3.0, 7.0]])
    low, high = pruned.q_values(x)
    assert_allclose(low, high, rtol=1e-12)
    assert pruned.q_values(x).shape == (2, 3)


# -------------------------------------------------------------------------------------- keeping


def boxed() -> GPTDQ:
    return GPTDQ("isotropic", candidates=np.array([-1.0, 1.0]), noise="deterministic", n_restarts=0).fit(
        Linear().sample(4, 0)
    )


KEPT = {
    "exact": lambda: held().fit(logged("mixed")),
    "correlated": lambda: held(0.3).fit(logged("mixed"), policy=towards),
    "sparse": lambda: held(0.3, method="sparse", subset_size=6).fit(logged("mixed")),
    "selected": lambda: GPTDQ("factor", n_restarts=0, noise_floor=1e-2, max_rank=1).fit(logged("mixed")),
    "box": boxed,
}


@pytest.mark.parametrize("name", KEPT)
def test_save_and_load(name, tmp_path):
    q = KEPT[name]()
    path = q.save(tmp_path / "q.gptd")
    for loaded in (gptd_rl.load(path), GPTDQ.load(path)):
        assert type(loaded) is GPTDQ
        x = ASKED[:, : q.n_dims_]
        tight: Any = dict(rtol=1e-12, atol=1e-12)
        for mine, theirs in zip(q.q_values(x, return_std=True), loaded.q_values(x, return_std=True), strict=True):
            assert_allclose(theirs, mine, **tight)
        assert_array_equal(loaded.greedy_actions(x), q.greedy_actions(x))
        assert_allclose(loaded.sample(x, 2, seed=0), q.sample(x, 2, seed=0), rtol=1e-6, atol=1e-6)
        a = q.greedy_actions(x)
        assert_allclose(loaded.confidence_interval(x, a), q.confidence_interval(x, a), **tight)
        assert loaded.actions_ == q.actions_ and loaded.parameter_names_ == q.parameter_names_
        assert_array_equal(loaded.relevances_, q.relevances_)
        assert_array_equal(loaded.action_relevances_, q.action_relevances_)
        assert_allclose(loaded.log_marginal_likelihood_, q.log_marginal_likelihood_, rtol=1e-12)
        told, asked = loaded.get_params(), q.get_params()
        assert told.keys() == asked.keys()
        for name in told.keys() - {"kernel"}:
            assert np.array_equal(told[name], asked[name]), name
    with pytest.raises(ValueError, match=r"holds a GPTDQ, not a GPTD: gptd_rl\.load reads all"):
        GPTD.load(path)


def test_V_is_still_read_as_V(tmp_path):
    v = GPTD("isotropic", objective="marginal_likelihood", n_restarts=0, noise_floor=1e-2).fit(logged("mixed"))
    path = v.save(tmp_path / "v.gptd")
    assert type(gptd_rl.load(path)) is type(GPTD.load(path)) is GPTD
    with pytest.raises(ValueError, match="holds a GPTD, not a GPTDQ"):
        GPTDQ.load(path)


def test_habits_of_scikit_learn():
    q = GPTDQ("isotropic", candidates=np.array([1.0, 2.0]), noise_floor=1e-3)
    assert repr(q) == "GPTDQ(kernel='isotropic', candidates=array([1., 2.]), noise_floor=0.001)"
    assert repr(clone(q)) == repr(q)
    assert q.set_params(candidates=None, n_actions=4) is q
    assert q.get_params()["n_actions"] == 4 and q.candidates is None
    with pytest.raises(ValueError, match="GPTDQ has no parameter 'nactions'"):
        q.set_params(nactions=3)


def test_the_greedy_policy_can_be_rolled_out():
    import gymnasium as gym

    env = gym.make("CartPole-v1")
    data = gptd_rl.collect(env, None, n_transitions=60, gamma=0.9, seed=0)
    q = GPTDQ("isotropic", objective="marginal_likelihood", n_restarts=0).fit(data)
    more = gptd_rl.collect(env, q.greedy_actions, n_transitions=20, gamma=0.9, seed=1)
    assert more.actions is not None
    inside = np.setdiff1d(np.arange(len(more)), more.last)
    assert_array_equal(more.actions[inside], q.greedy_actions(more.states[inside]))


# -------------------------------------------------------------------------------------- bad input


def replaced(actions: Any) -> Trajectories:
    return replace(logged("mixed"), actions=actions)


N = len(logged("mixed"))


@pytest.mark.parametrize(
    ("options", "data", "error", "message"),
    [
        (dict(), sample(MIXES["mixed"]), ValueError, r"no actions, and Q needs them"),
        (dict(n_actions=3), sample(MIXES["mixed"]), ValueError, r"no actions, and Q needs them"),
        (
            dict(n_actions=2),
            logged("mixed"),
            ValueError,
            r"unknown action: actions\[\d+\] is 2, but the 2 actions are 0 to 1",
        ),
        (dict(), replaced(np.full(N, -1)), ValueError, r"actions\[0\] is -1"),
        (
            dict(n_actions=3),
            replaced(np.full(N, 0.5)),
            ValueError,
            r"whole numbers; actions\[0\] is 0.5.*Leave n_actions out",
        ),
        (
            dict(),
            replaced(np.zeros((N, 2), int)),
            ValueError,
            r"shape \(n,\), one number each; got .*Number the combin",
        ),
        (dict(), replaced(np.full(N, "left")), TypeError, r"actions must be numbers"),
        (dict(n_actions=2), replaced(np.full(N, "left")), TypeError, r"whole numbers; got <U4"),
        (dict(), replaced(np.full(N, np.nan)), ValueError, r"actions must be finite; actions\[0\] is \[nan\]"),
        (dict(n_actions=2), replaced(np.full(N, np.nan)), ValueError, r"whole numbers; actions\[0\] is nan"),
        (dict(n_actions=0), logged("mixed"), ValueError, r"n_actions must be a whole number of 1 or more; got 0"),
        (dict(n_actions=2.5), logged("mixed"), ValueError, r"n_actions must be a whole number.*got 2.5"),
        (dict(n_actions=2, candidates=[0.0]), logged("mixed"), ValueError, r"give one of them"),
        (dict(action_correlation=1.0), logged("mixed"), ValueError, r"must lie in \[0, 1\); got 1.0"),
        (dict(action_correlation=0.1), replaced(np.full(N, 0.5)), ValueError, r"for discrete actions"),
        (dict(kernel="cubic"), logged("mixed"), ValueError, r"kernel must be one of"),
        (
            dict(kernel=paper_kernel(ARD(np.ones(3)))),
            logged("mixed"),
            ValueError,
            r"3 dimensions; got .* width 2",
        ),
        (dict(), logged("one truncated transition"), ValueError, r"no transition is left.*policy=…"),
        (
            dict(),
            [logged("mixed"), sample(MIXES["mixed"], n_dims=2)],
            ValueError,
            r"shard 2 of 2: the data have no act",
        ),
        (dict(), "nowhere.npz", FileNotFoundError, r"nowhere"),
        (dict(), 5, TypeError, r"fit expects Trajectories"),
    ],
)
def test_bad_data_and_arguments(options, data, error, message):
    with pytest.raises(error, match=message) as caught:
        GPTDQ(**options).fit(data)
    assert "\n" not in str(caught.value)


def test_thinned_data_are_refused():
    with pytest.raises(ValueError, match="thinned data"):
        held().fit(logged("terminated").thin(2))


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        (5, TypeError, r"expected a policy with predict.*got int"),
        (lambda x: 7, ValueError, r"unknown action: actions\[0\] is 7"),
        (lambda x: 0.5, ValueError, r"whole numbers"),
        (lambda x: [0, 1], ValueError, r"shape \(n,\)"),
    ],
)
def test_bad_policies(policy, error, message):
    with pytest.raises(error, match=message):
        held().fit(logged("mixed"), policy=policy)


def test_policies_that_do_not_answer_as_they_should():
    class Forgets:
        def predict(self, states: np.ndarray, deterministic: bool) -> np.ndarray:
            return np.zeros(len(states), int)

    def short(states: np.ndarray) -> np.ndarray:
        return np.zeros(len(states) - 1, int)

    short.batched = True  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"predict must return \(actions, state\)"):
        held().fit(logged("mixed"), policy=Forgets())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"asked in \d+ states and gave actions of shape"):
        held().fit(logged("mixed"), policy=short)


@pytest.fixture(scope="module")
def fitted() -> GPTDQ:
    return held().fit(logged("mixed"))


@pytest.mark.parametrize("ask_for", ["predict", "confidence_interval"])
@pytest.mark.parametrize(
    ("states", "actions", "error", "message"),
    [
        (ASKED, [0, 1, 2, 3, 0], ValueError, r"unknown action: actions\[3\] is 3"),
        (ASKED, [0, 1], ValueError, r"one action for each of 5 states; got 2"),
        (ASKED, [0.5] * 5, ValueError, r"whole numbers"),
        (ASKED, np.zeros((5, 2)), ValueError, r"shape \(n,\)"),
        (ASKED, 1, ValueError, r"shape \(n,\)"),
        (np.zeros((5, 3)), TRIED, ValueError, r"states must have 2 columns, as in fit; got shape \(5, 3\)"),
        (np.full((5, 2), np.nan), TRIED, ValueError, r"states must be finite"),
    ],
)
def test_bad_questions(ask_for, states, actions, error, message, fitted):
    with pytest.raises(error, match=message):
        getattr(fitted, ask_for)(states, actions)


def test_other_bad_questions(fitted, monkeypatch):
    for asking in (
        lambda q: q.predict(ASKED, TRIED),
        lambda q: q.q_values(ASKED),
        lambda q: q.greedy_actions(ASKED),
        lambda q: q.sample(ASKED),
        lambda q: q.confidence_interval(ASKED, TRIED),
        lambda q: q.save("nowhere"),
    ):
        with pytest.raises(NotFittedError, match="this GPTDQ has not been fitted yet"):
            asking(GPTDQ())
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        fitted.confidence_interval(ASKED, TRIED, level=95)
    with pytest.raises(ValueError, match="n must be a whole number of 1 or more; got 0"):
        fitted.sample(ASKED, 0)
    monkeypatch.setattr("gptd_rl.estimators.predictions.available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"joint sample over 5 states and 3 actions needs .* fewer states at a time"):
        fitted.sample(ASKED)


def test_continuous_actions_need_candidates_to_choose_from():
    q = boxed().set_params(candidates=None)
    for asking in (q.q_values, q.greedy_actions, q.sample):
        with pytest.raises(ValueError, match=r"candidates=\[…\]"):
            asking(ASKED[:, :1])
    with pytest.raises(ValueError, match=r"actions must have shape \(n, 1\), as in fit; got \(5, 2\)"):
        q.predict(ASKED[:, :1], np.zeros((5, 2)))


def test_a_failed_fit_leaves_the_last_one_in_place(fitted):
    before = fitted.q_values(ASKED)
    with pytest.raises(ValueError, match="no actions"):
        fitted.fit(sample(MIXES["mixed"]))
    assert_array_equal(fitted.q_values(ASKED), before)


def test_online_learning_is_of_V():
    with pytest.raises(TypeError, match="expects a fitted GPTD"):
        gptd_rl.OnlineGPTD.from_batch(held().fit(logged("mixed")))  # type: ignore[arg-type]
