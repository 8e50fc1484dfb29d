"""Equivariance and batch-invariance: a prediction depends on its state and the data, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.testing import assert_allclose

from gptd_rl import ARD, GPTD, GPTDQ, Calibrated, DynamicsModel, FactorAnalysis, Isotropic, OnlineGPTD, Trajectories
from gptd_rl.kernels import Constant, Matern32, Matern52, SquaredExponential, paper_kernel
from tests.adversarial.harness import Attack, Category, pick
from tests.estimators.test_edited_files import DATA, MODELS
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


def batch(models: list[Callable[[np.ndarray], Any]], rng: np.random.Generator) -> None:
    """A prediction in a batch is the same prediction alone."""
    predict = pick(rng, models)
    states = rng.normal(size=(int(rng.integers(2, 40)), N_DIMS)) * pick(rng, SCALES)
    states[0] = rng.normal(size=N_DIMS)
    i = pick(rng, [0, int(rng.integers(len(states)))])
    together, alone = predict(states), predict(states[i : i + 1])
    for a, b in zip(together, alone, strict=True):
        assert_allclose(a[i], b[0], rtol=1e-6, atol=1e-9, err_msg="a prediction depends on its company")


METHODS: list[dict[str, Any]] = [
    dict(method="exact", bootstrap=False),
    dict(method="exact", bootstrap=True),
    dict(method="sparse", subset_size=60, bootstrap=False),
    dict(method="sparse", subset_size=60, bootstrap=True),
]


def fitted(kernel: Any, noise_variance: float, data: Trajectories, options: dict[str, Any]) -> GPTD:
    """A model of a given kernel and noise: nothing is selected."""
    fixed = kernel.fix(*kernel.parameter_names)
    quick: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0, random_state=0)
    return GPTD(fixed, noise_variance=noise_variance, **(quick | options)).fit(data)


def random_options(rng: np.random.Generator) -> dict[str, Any]:
    options = pick(rng, METHODS)
    return options if options["bootstrap"] else options | dict(noise=pick(rng, NOISES))


def assert_same(
    one: GPTD, other: GPTD, x: np.ndarray, moved: np.ndarray, unit: float = 1.0, loose: float = 1.0
) -> None:
    """`other` predicts at `moved` what `one` predicts at `x`, in units of `unit`."""
    mean, std = one.predict(x, return_std=True)
    mean_of_other, std_of_other = other.predict(moved, return_std=True)
    assert_allclose(mean_of_other / unit, mean, rtol=1e-6 * loose, atol=1e-6 * loose)
    assert_allclose((std_of_other / unit) ** 2, std**2, rtol=1e-5 * loose, atol=1e-7 * loose)
    for a, b in zip(one.confidence_interval(x), other.confidence_interval(moved), strict=True):
        assert_allclose(b / unit, a, rtol=1e-5 * loose, atol=1e-5 * loose)


def order(rng: np.random.Generator) -> None:
    """The order of episodes does not matter."""
    data, kernel, options = random_data(rng), random_kernel(rng), random_options(rng)
    x = rng.normal(size=(4, N_DIMS))
    one = fitted(kernel, 0.1, data, options)
    other = fitted(kernel, 0.1, data[rng.permutation(data.n_segments)], options)
    # Instruments amplify rounding errors: features of nearly equal states are nearly dependent.
    assert_same(one, other, x, x, loose=100.0 if options["bootstrap"] else 1.0)


def units(rng: np.random.Generator) -> None:
    """Rewards in other units: the mean and the standard deviation in other units."""
    data, options, unit = random_data(rng), random_options(rng), float(10.0 ** rng.uniform(-20, 20))
    seed, x = int(rng.integers(2**31)), rng.normal(size=(4, N_DIMS))
    scaled = Trajectories(data.states, unit * data.rewards, data.discounts, data.lengths, data.terminated)
    one = fitted(random_kernel(np.random.default_rng(seed)), 0.1, data, options)
    other = fitted(random_kernel(np.random.default_rng(seed), unit), 0.1 * unit**2, scaled, options)
    # As above.
    assert_same(one, other, x, x, unit, loose=100.0 if options["bootstrap"] else 1.0)


def origin(rng: np.random.Generator) -> None:
    """States with another origin: the same values."""
    data, kernel, options = random_data(rng), random_kernel(rng), random_options(rng)
    x, shift = rng.normal(size=(4, N_DIMS)), rng.normal(size=N_DIMS) * pick(rng, [1.0, 100.0, 1e4])
    moved = Trajectories(data.states + shift, data.rewards, data.discounts, data.lengths, data.terminated)
    assert_same(fitted(kernel, 0.1, data, options), fitted(kernel, 0.1, moved, options), x, x + shift, loose=10.0)


def predictors() -> list[Callable[[np.ndarray], Any]]:
    """Predictions of each fitted model: arrays with a row for each state."""
    models: list[Any] = [make() for make in MODELS.values()]
    models += [Calibrated(GPTD("isotropic", n_restarts=0), n_folds=2).fit(DATA), recalibrated()]
    data = sample([(8, True), (9, False), (7, True)], 4, n_dims=N_DIMS)
    for seed in range(6):
        kernel = random_kernel(np.random.default_rng(seed))
        quick: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
        models.append(GPTD(kernel.fix(*kernel.parameter_names), noise_variance=0.1, **quick).fit(data))
        models.append(OnlineGPTD(paper_kernel(Isotropic(0.3, N_DIMS), 2.0), 0.1, tolerance=0.01).update(data))
    return [_predictor(model) for model in models]


def recalibrated() -> Calibrated:
    """Intervals whose scale depends on the state."""
    rng = np.random.default_rng(8)
    v = Calibrated(GPTD("isotropic", n_restarts=0), n_folds=2).fit(DATA)
    return v.recalibrate(rng.normal(size=(40, N_DIMS)), rng.normal(size=40))


def _predictor(model: Any) -> Callable[[np.ndarray], Any]:
    if isinstance(model, GPTD | OnlineGPTD):
        return lambda x: (*model.predict(x, return_std=True), *model.confidence_interval(x))
    if isinstance(model, Calibrated):
        return lambda x: (model.predict(x), *model.confidence_interval(x))
    if isinstance(model, GPTDQ):
        return lambda x: (
            *model.q_values(x, return_std=True),
            model.greedy_actions(x),
            *model.predict(x, np.ones(len(x), dtype=int), return_std=True),
            *model.confidence_interval(x, np.ones(len(x), dtype=int)),
        )
    return partial(_outcomes, model)


def _outcomes(model: DynamicsModel, x: np.ndarray) -> Any:
    o = model.predict(x, np.zeros(len(x), dtype=int), return_std=True)
    return o.next_states, o.rewards, o.terminated, o.next_state_std, o.reward_std


def prepare(folder: Path) -> Attack:
    models = predictors()

    def attack(rng: np.random.Generator) -> str | None:
        pick(rng, [lambda: batch(models, rng)] * 3 + [lambda: order(rng), lambda: units(rng), lambda: origin(rng)])()
        return None

    return attack


CATEGORY = Category("equivariance and batches", prepare, 0.07)
