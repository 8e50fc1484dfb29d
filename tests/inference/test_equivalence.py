"""The agent's regression of Q and its evidence are those of the core: same numbers, two pieces of code.

Committed before the agent's code is replaced by the core's, and kept afterwards.
"""

from __future__ import annotations

import numpy as np
import pytest

from gptd_rl.agents import fitted_q, multiscale, relevance
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference import exact, sparse
from gptd_rl.inference.model import Model
from gptd_rl.kernels.metrics import ARD
from gptd_rl.kernels.stationary import ActionKernel
from gptd_rl.temporal.shards import Shard
from gptd_rl.temporal.targets import build_targets

RELEVANCES = np.array([0.7, 2.1, 0.3])


def regression_data(n: int = 40, n_actions: int = 3, seed: int = 0):
    """States, actions and targets of a regression y = Q(x, a) + noise."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.integers(n_actions, size=n), rng.normal(size=n)


def as_pinned_states(states, actions, targets) -> Trajectories:
    """Regression targets as trajectories: terminated segments of one state, whose only row is V(x) = y."""
    n = len(targets)
    return Trajectories._trusted(
        states=np.column_stack([states, actions]),
        rewards=targets,
        discounts=np.zeros(n),
        lengths=np.ones(n, dtype=np.int64),
        terminated=np.ones(n, dtype=bool),
        actions=None,
    )


@pytest.fixture
def one_scale(monkeypatch):
    """MultiScale with a single lengthscale of 1 is a squared exponential."""
    monkeypatch.setattr(multiscale, "SCALES", np.array([1.0]))
    monkeypatch.setattr(multiscale, "WEIGHTS", np.array([1.0]))


@pytest.mark.usefixtures("one_scale")
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_agent_evidence_equals_core_evidence(rho):
    x, actions, y = regression_data()
    v0, noise = 1.7, 0.3
    alike = np.where(actions[:, None] == actions, 1.0, rho)
    theta = np.log([*RELEVANCES, v0, noise])
    value, gradient = relevance._minus_log_evidence(theta, x, y, alike)

    kernel = ActionKernel(ARD(RELEVANCES), v0, 0.0, n_actions=3, action_correlation=rho)
    seen = build_targets(as_pinned_states(x, actions, y), "stochastic")
    evidence, core_gradient = exact.evidence_and_gradient(Model(kernel, noise), seen)

    np.testing.assert_allclose(value, -evidence.log_likelihood, rtol=1e-11)
    by_v0, _, by_noise, *by_relevance = core_gradient
    np.testing.assert_allclose(gradient, [*by_relevance, by_v0, by_noise], rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("one_scale")
@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_agent_q_equals_sparse_posterior_on_product_basis(rho):
    x, actions, y = regression_data()
    n_actions, noise_share, m = 3, 0.05, 12
    kernel = multiscale.MultiScale(RELEVANCES)
    Z = x[:m]
    L = np.linalg.cholesky(kernel(Z, Z))
    features = np.linalg.solve(L, kernel(Z, x)).T
    critic = fitted_q.Critic(noise_share, rho)
    w = fitted_q._Regression.of(features, actions, n_actions, critic).solve(y)
    asked = np.random.default_rng(1).normal(size=(20, 3))
    q = np.linalg.solve(L, kernel(Z, asked)).T @ w

    core = ActionKernel(ARD(RELEVANCES), 1.0, 0.0, n_actions=n_actions, action_correlation=rho)
    basis = sparse.Basis(core, np.vstack([np.column_stack([Z, np.full(m, a)]) for a in range(n_actions)]))
    statistics = sparse.statistics(Shard.of(as_pinned_states(x, actions, y), "stochastic"), basis)
    solution = sparse.Solution.of(Model(core, noise_share), basis, statistics)
    for a in range(n_actions):
        pairs = np.column_stack([asked, np.full(len(asked), a)])
        np.testing.assert_allclose(basis.features(pairs) @ solution.weights, q[:, a], rtol=1e-9, atol=1e-10)
