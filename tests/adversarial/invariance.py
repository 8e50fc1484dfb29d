"""Equivariance and batch-invariance: a prediction depends on its state and the data, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.testing import assert_allclose

from gptd_rl import ARD, GPTD, GPTDQ, FactorAnalysis, Isotropic, OnlineGPTD, Trajectories
from gptd_rl.inference.exact import ExactPosterior
from gptd_rl.inference.model import Model
from gptd_rl.kernels import Constant, Matern32, Matern52, SquaredExponential, paper_kernel
from gptd_rl.temporal.targets import build_targets
from tests.adversarial.harness import Attack, Category, pick
from tests.estimators.test_edited_files import MODELS
from tests.helpers import NOISES, sample

N_DIMS = 3
# Company of a query: neighbours, the same state again, and states far away.
SCALES = [0.0, 1e-8, 1.0, 1.0, 1e3, 1e6, 1e9, 1e15, 1e60]


def random_data(rng: np.random.Generator) -> Trajectories:
    kinds = [(int(rng.integers(2, 9)), bool(rng.random() < 0.6)) for _ in range(rng.integers(1, 5))]
    return sample([(5, True), *kinds], int(rng.integers(2**31)), n_dims=N_DIMS, repeated=bool(rng.random() < 0.2))


def random_kernel(rng: np.random.Generator, unit: float = 1.0) -> Any:
    a = 10.0 ** rng.uniform(-2, 1, size=N_DIMS)
    metric = pick(rng, [Isotropic(float(a[0]), N_DIMS), ARD(a), FactorAnalysis(a, rng.normal(size=(N_DIMS, 2)))])
    kind = pick(rng, [SquaredExponential, Matern32, Matern52])
    return kind(metric, unit**2 * 10.0 ** rng.uniform(-1, 2)) + Constant(unit**2 * 10.0 ** rng.uniform(-1, 1))


def batch(fitted: list[Callable[[np.ndarray], Any]], rng: np.random.Generator) -> None:
    """A prediction in a batch is the same prediction alone."""
    predict = pick(rng, fitted)
    states = rng.normal(size=(int(rng.integers(2, 40)), N_DIMS)) * pick(rng, SCALES)
    states[0] = rng.normal(size=N_DIMS)
    i = pick(rng, [0, int(rng.integers(len(states)))])
    together, alone = predict(states), predict(states[i : i + 1])
    for a, b in zip(together, alone, strict=True):
        assert_allclose(a[i], b[0], rtol=1e-6, atol=1e-9, err_msg="a prediction depends on its company")


def posterior(kernel: Any, noise_variance: float, data: Trajectories, noise: Any) -> ExactPosterior:
    return ExactPosterior.condition(Model(kernel, noise_variance), build_targets(data, noise))


def order(rng: np.random.Generator) -> None:
    """The order of episodes does not matter."""
    data, kernel, noise = random_data(rng), random_kernel(rng), pick(rng, NOISES)
    x = rng.normal(size=(4, N_DIMS))
    one = posterior(kernel, 0.1, data, noise)
    other = posterior(kernel, 0.1, data[rng.permutation(data.n_segments)], noise)
    assert_allclose(other.mean(x), one.mean(x), rtol=1e-6, atol=1e-6)
    assert_allclose(other.variance(x), one.variance(x), rtol=1e-5, atol=1e-7)


def units(rng: np.random.Generator) -> None:
    """Rewards in other units: the mean and the standard deviation in other units."""
    data, noise, unit = random_data(rng), pick(rng, NOISES), float(10.0 ** rng.uniform(-20, 20))
    seed, x = int(rng.integers(2**31)), rng.normal(size=(4, N_DIMS))
    scaled = Trajectories(data.states, unit * data.rewards, data.discounts, data.lengths, data.terminated)
    one = posterior(random_kernel(np.random.default_rng(seed)), 0.1, data, noise)
    other = posterior(random_kernel(np.random.default_rng(seed), unit), 0.1 * unit**2, scaled, noise)
    assert_allclose(other.mean(x) / unit, one.mean(x), rtol=1e-6, atol=1e-6)
    assert_allclose(other.variance(x) / unit**2, one.variance(x), rtol=1e-5, atol=1e-7)


def origin(rng: np.random.Generator) -> None:
    """States with another origin: the same values."""
    data, kernel, noise = random_data(rng), random_kernel(rng), pick(rng, NOISES)
    x, shift = rng.normal(size=(4, N_DIMS)), rng.normal(size=N_DIMS) * pick(rng, [1.0, 100.0, 1e4])
    moved = Trajectories(data.states + shift, data.rewards, data.discounts, data.lengths, data.terminated)
    one, other = posterior(kernel, 0.1, data, noise), posterior(kernel, 0.1, moved, noise)
    assert_allclose(other.mean(x + shift), one.mean(x), rtol=1e-5, atol=1e-5)
    assert_allclose(other.variance(x + shift), one.variance(x), rtol=1e-4, atol=1e-6)


def predictors() -> list[Callable[[np.ndarray], Any]]:
    """Predictions of each fitted model: arrays with a row for each state."""
    models = [make() for make in MODELS.values()]
    data = sample([(8, True), (9, False), (7, True)], 4, n_dims=N_DIMS)
    for seed in range(6):
        kernel = random_kernel(np.random.default_rng(seed))
        quick: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
        models.append(GPTD(kernel.fix(*kernel.parameter_names), noise_variance=0.1, **quick).fit(data))
        models.append(OnlineGPTD(paper_kernel(Isotropic(0.3, N_DIMS), 2.0), 0.1, tolerance=0.01).update(data))
    return [_predictor(model) for model in models]


def _predictor(model: Any) -> Callable[[np.ndarray], Any]:
    if isinstance(model, GPTD | OnlineGPTD):
        return lambda x: (*model.predict(x, return_std=True), *model.confidence_interval(x))
    if isinstance(model, GPTDQ):
        return lambda x: (*model.q_values(x, return_std=True), model.greedy_actions(x))
    return lambda x: (lambda o: (o.next_states, o.rewards))(model.predict(x, np.zeros(len(x), dtype=int)))


def prepare(folder: Path) -> Attack:
    fitted = predictors()

    def attack(rng: np.random.Generator) -> str | None:
        pick(rng, [lambda: batch(fitted, rng)] * 3 + [lambda: order(rng), lambda: units(rng), lambda: origin(rng)])()
        return None

    return attack


CATEGORY = Category("equivariance and batches", prepare, 0.07)
