"""Random data and the naive dense reference: the paper's formulas as plain loops, for tests to compare with.

Nothing here imports the code it judges, except `Trajectories` (to make data) and the classes of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.kernels import paper_kernel
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic

NOISES = ("stochastic", "deterministic")

# (number of states, terminated) of each segment
MIXES: dict[str, list[tuple[int, bool]]] = {
    "terminated": [(6, True), (2, True), (9, True)],
    "truncated": [(7, False), (2, False), (8, False)],
    "mixed": [(5, False), (6, True), (2, True), (5, False)],
    "one truncated": [(9, False)],
    "one transition": [(2, True)],
    "one truncated transition": [(2, False)],
}

METRICS: dict[str, Callable[[], Any]] = {
    "isotropic": lambda: Isotropic(0.7, 3),
    "ard": lambda: ARD([0.3, 0.6, 1.1]),
    "factor 1": lambda: FactorAnalysis([0.3, 0.6, 1.1], [0.8, -0.5, 0.2]),
    "factor 2": lambda: FactorAnalysis([0.2, 0.5, 0.4], [[0.8, -0.1], [-0.5, 0.4], [0.2, 0.7]]),
}


def vary_one(*factors: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Cases in which at most one factor differs from its first value, for factors that do not interact.

    A factor of tuples stands for several parameters that do.
    """
    values = [list(factor) for factor in factors]
    cases = [[options[0] for options in values]]
    for i, options in enumerate(values):
        cases += [[*cases[0][:i], option, *cases[0][i + 1 :]] for option in options[1:]]
    return [tuple(x for part in case for x in (part if isinstance(part, tuple) else (part,))) for case in cases]


def first(name: str, names: Iterable[str]) -> list[str]:
    """All names, `name` before the others."""
    return [name, *(other for other in names if other != name)]


def every_mix_or_metric(mixes: Iterable[str], metrics: Iterable[str]) -> pytest.MarkDecorator:
    """Every mix with the ARD metric, and every metric with the mixed segments.

    The ends of segments act through F and the metric through the contraction with ∂K/∂Ω: their product adds nothing.
    """
    pairs = [(mix, "ard") for mix in mixes] + [("mixed", metric) for metric in metrics if metric != "ard"]
    return pytest.mark.parametrize(("mix", "metric"), pairs, ids=[f"{mix}-{metric}" for mix, metric in pairs])


def make_model(metric: str, signal_variance=1.3, bias=0.4, noise_variance=0.2, fixed=()) -> Model:
    return Model(paper_kernel(METRICS[metric](), signal_variance, bias, fixed), noise_variance)


# Data


def sample(
    kinds: Sequence[tuple[int, bool]],
    seed: int = 0,
    *,
    n_dims: int = 3,
    repeated: bool = False,
    gamma: float | None = None,
    terminal_rewards: bool = False,
) -> Trajectories:
    """Random trajectories, segment by segment; a discount of its own for each step unless `gamma` is given.

    With `repeated`, states are drawn from a handful of points, so that most of them are visited again. With
    `terminal_rewards`, terminal states are pinned to something else than zero, as `thin` does.
    """
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(4, n_dims))
    parts = []
    for length, terminated in kinds:
        states = points[rng.integers(len(points), size=length)] if repeated else rng.normal(size=(length, n_dims))
        rewards, discounts = rng.normal(size=length), rng.uniform(0.5, 1.0, size=length)
        if gamma is not None:
            discounts[:] = gamma
        if not (terminated and terminal_rewards):
            rewards[-1] = 0.0
        discounts[-1] = 0.0
        parts.append((states, rewards, discounts))
    states, rewards, discounts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    lengths, flags = (np.array(column) for column in zip(*kinds, strict=True))
    return Trajectories(states, rewards, discounts, lengths, flags)


def assert_same(a: Trajectories, b: Trajectories) -> None:
    for name in ("states", "rewards", "discounts", "lengths", "terminated"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert (a.actions is None) == (b.actions is None)
    if a.actions is not None:
        np.testing.assert_array_equal(a.actions, b.actions)


# H and what belongs to it, by loops


def segments(data: Trajectories) -> list[range]:
    out, start = [], 0
    for length in data.lengths:
        out.append(range(start, start + int(length)))
        start += int(length)
    return out


def dense_H(data: Trajectories) -> np.ndarray:
    """One row V(x_i) − γ_i V(x_{i+1}) per transition, and V(x_L) per terminal state."""
    rows = []
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        for i in places[:-1]:
            row = np.zeros(len(data))
            row[i], row[i + 1] = 1.0, -data.discounts[i]
            rows.append(row)
        if terminated:
            row = np.zeros(len(data))
            row[places[-1]] = 1.0
            rows.append(row)
    return np.array(rows)


def row_places(data: Trajectories) -> np.ndarray:
    """The state that each row of H belongs to."""
    places = []
    for segment, terminated in zip(segments(data), data.terminated, strict=True):
        places += list(segment) if terminated else list(segment[:-1])
    return np.array(places)


def naive_returns(data: Trajectories) -> np.ndarray:
    y = np.zeros(len(data))
    for places in segments(data):
        following = 0.0
        for i in reversed(places):
            following = y[i] = data.rewards[i] + data.discounts[i] * following
    return y


def naive_null_vectors(data: Trajectories) -> np.ndarray:
    """Z, one column per truncated segment."""
    columns = []
    for places, terminated in zip(segments(data), data.terminated, strict=True):
        if terminated:
            continue
        z = np.zeros(len(data))
        z[places[-1]] = 1.0
        for i in reversed(places[:-1]):
            z[i] = data.discounts[i] * z[i + 1]
        columns.append(z)
    return np.array(columns).T.reshape(len(data), len(columns))


# The Gaussian process, densely


def naive_kernel(kernel: Any, states: np.ndarray, others: np.ndarray) -> np.ndarray:
    Omega = kernel.metric.matrix
    K = np.empty((len(states), len(others)))
    for i, x in enumerate(states):
        d = x - others
        K[i] = kernel.signal_variance * np.exp(-0.5 * (d @ Omega * d).sum(axis=1)) + kernel.bias
    return K


@dataclass(frozen=True)
class Reference:
    """r = H V + η, with Σ = σ²HHᵀ or σ²I, as the paper writes it."""

    model: Model
    data: Trajectories
    H: np.ndarray
    K: np.ndarray
    Q: np.ndarray
    rewards: np.ndarray  # of the rows

    @classmethod
    def of(cls, model: Model, data: Trajectories, noise: str) -> Reference:
        H = dense_H(data)
        K = naive_kernel(model.kernel, data.states, data.states)
        Sigma = model.noise_variance * (H @ H.T if noise == "stochastic" else np.eye(len(H)))
        return cls(model, data, H, K, H @ K @ H.T + Sigma, data.rewards[row_places(data)])

    @property
    def complexity(self) -> float:
        sign, log_det = np.linalg.slogdet(self.Q)
        assert sign == 1
        return 0.5 * log_det

    @property
    def data_fit(self) -> float:
        return float(0.5 * self.rewards @ np.linalg.solve(self.Q, self.rewards))

    @property
    def log_likelihood(self) -> float:
        return -(self.complexity + self.data_fit + 0.5 * len(self.rewards) * np.log(2 * np.pi))

    def mean(self, states: np.ndarray) -> np.ndarray:
        k = naive_kernel(self.model.kernel, self.data.states, states)
        return k.T @ self.H.T @ np.linalg.solve(self.Q, self.rewards)

    def covariance(self, states: np.ndarray) -> np.ndarray:
        k = naive_kernel(self.model.kernel, self.data.states, states)
        prior = naive_kernel(self.model.kernel, states, states)
        return prior - k.T @ self.H.T @ np.linalg.solve(self.Q, self.H @ k)

    def variance(self, states: np.ndarray) -> np.ndarray:
        return np.diag(self.covariance(states))

    def martingale_variance(self, states: np.ndarray) -> np.ndarray:
        """k** − 2aᵀk* + aᵀKa + Σ δ²u², state by state, with mean = aᵀV + uᵀη."""
        td_errors = self.rewards - self.H @ self.mean(self.data.states)
        out = []
        for x in states:
            k = naive_kernel(self.model.kernel, self.data.states, x[None])[:, 0]
            u = np.linalg.solve(self.Q, self.H @ k)  # weight of each reward
            a = self.H.T @ u
            prior = self.model.kernel.diagonal(x[None])[0]
            out.append(prior - 2 * a @ k + a @ self.K @ a + td_errors**2 @ u**2)
        return np.array(out)

    def interval_variance(self, states: np.ndarray) -> np.ndarray:
        return np.maximum(self.martingale_variance(states), self.variance(states))


def central_differences(f: Callable[[np.ndarray], float], x: np.ndarray, h: float = 1e-5) -> np.ndarray:
    slopes = []
    for i in range(len(x)):
        ahead, behind = x.copy(), x.copy()
        ahead[i] += h
        behind[i] -= h
        slopes.append((f(ahead) - f(behind)) / (2 * h))
    return np.array(slopes)


def assert_gradient(objective: Callable[[Model], tuple[float, np.ndarray]], model: Model, rtol=1e-6, atol=None) -> None:
    """Compare the gradient with central differences; `atol` covers the rounding of the differences themselves."""
    value, gradient = objective(model)
    numeric = central_differences(lambda theta: objective(model.with_theta(theta))[0], model.theta)
    atol = 1e-8 * max(1.0, abs(value)) if atol is None else atol
    np.testing.assert_allclose(gradient, numeric, rtol=rtol, atol=atol)
