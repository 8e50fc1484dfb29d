"""Contestants for V: this project's `GPTD`, and what the field uses instead.

Rivals are given what they need to do well: LSTD has the kernel that GPTD selected, and a ridge and λ chosen on
left-out segments; the returns of truncated runs are completed by a constant value instead of 0.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from least_squares import LAMBDAS, Features, Rows, fitted_evaluation, kernel_features, lstd, radial_features
from numpy.typing import NDArray
from scipy.spatial import KDTree
from scipy.stats import norm, t
from scores import LEVELS, Prediction

from gptd_rl import GPTD, Trajectories
from gptd_rl.temporal.differences import TemporalDifference

Array = NDArray[np.float64]

GPR_SELECTION, GPR_SIZE = 1000, 1500  # returns that scikit-learn selects its kernel on, and conditions on


@dataclass(frozen=True)
class Case:
    """Data, the states asked about, and the default GPTD of these data, which is fitted once."""

    data: Trajectories
    states: Array

    @cached_property
    def default(self) -> GPTD:
        """`GPTD()`, fitted."""
        return fitted(GPTD(), self.data)

    @cached_property
    def features(self) -> Features:
        """Whitened features of the kernel that the default GPTD selected."""
        v = self.default
        features = kernel_features(v.kernel_, self.data.states[:, v.inputs_])
        return lambda x: features(x[:, v.inputs_])


Contestant = Callable[[Case], Prediction]


def fitted(v: GPTD, data: Trajectories) -> GPTD:
    """The model after `fit`, which may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return v.fit(data)


def predicted(v: GPTD, states: Array) -> Prediction:
    """Mean and confidence intervals."""
    intervals = [v.confidence_interval(states, level) for level in LEVELS]
    note = getattr(v, "bootstrap_", "")
    return Prediction(v.predict(states), intervals, f"bootstrap={note}" if note != "" else f"τ={v.thinning_}")


def default_gptd(case: Case) -> Prediction:
    """`GPTD()`."""
    return predicted(case.default, case.states)


def gptd(**options: Any) -> Contestant:
    """GPTD with options."""
    return lambda case: predicted(fitted(GPTD(**options), case.data), case.states)


def kernel_lstd(*lambdas: float) -> Contestant:
    """LSTD(λ) on the features of the kernel that GPTD selected."""

    def run(case: Case) -> Prediction:
        rows = Rows.of(case.data, case.features)
        return Prediction(case.features(case.states) @ lstd(rows, lambdas))

    return run


def radial_lstd(case: Case) -> Prediction:
    """LSTD on 50 radial basis functions."""
    features = radial_features(case.data.states)
    return Prediction(features(case.states) @ lstd(Rows.of(case.data, features)))


def kernel_fitted_evaluation(case: Case) -> Prediction:
    """Kernel ridge regression of r + γV(x') on 200 radial basis functions, repeated."""
    features = radial_features(case.data.states, 200)
    return Prediction(features(case.states) @ fitted_evaluation(Rows.of(case.data, features)))


def completed_returns(data: Trajectories) -> tuple[Array, float]:
    """Discounted returns, and the constant c that follows truncations: the mean of the returns so completed."""
    H = TemporalDifference.of(data)
    y, z = H.returns(data.rewards), H.null_vectors()
    rows = data.has_transition
    c = float(y[rows].mean() / (1 - z[rows].mean()))
    return y + c * z, c


def constant(case: Case) -> Prediction:
    """Mean return, whatever the state."""
    return Prediction(np.full(len(case.states), completed_returns(case.data)[1]))


def monte_carlo(case: Case) -> Prediction:
    """Mean return of the ten nearest states, inputs standardised; error bars from their spread."""
    rows = case.data.has_transition
    x, (y, _) = case.data.states[rows], completed_returns(case.data)
    scale = x.std(axis=0) + 1e-12
    k = min(10, len(x))
    near = y[rows][KDTree(x / scale).query(case.states / scale, k)[1]]
    mean, deviation = near.mean(axis=1), near.std(axis=1, ddof=1) / np.sqrt(k)
    half = [t.ppf(0.5 + level / 2, k - 1) * deviation for level in LEVELS]
    return Prediction(mean, [(mean - h, mean + h) for h in half])


def sklearn_gpr(case: Case) -> Prediction:
    """GP regression on evenly chosen returns, ARD kernel and white noise, inputs and returns standardised."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    scale = case.data.states.std(axis=0) + 1e-12
    x, (y, _) = case.data.states / scale, completed_returns(case.data)
    some, more = (np.linspace(0, len(x) - 1, min(n, len(x))).astype(int) for n in (GPR_SELECTION, GPR_SIZE))
    kernel = ConstantKernel() * RBF(np.ones(x.shape[1])) + WhiteKernel()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        selected = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x[some], y[some]).kernel_
    model = GaussianProcessRegressor(selected, normalize_y=True, optimizer=None).fit(x[more], y[more])
    mean, std = model.predict(case.states / scale, return_std=True)
    noise = selected.k2.noise_level * model._y_train_std**2
    deviation = np.sqrt(np.maximum(std**2 - noise, 0))
    half = [norm.ppf(0.5 + level / 2) * deviation for level in LEVELS]
    return Prediction(mean, [(mean - h, mean + h) for h in half])


DEFAULT = "GPTD"
FIELD: dict[str, Contestant] = {
    DEFAULT: default_gptd,
    "GPTD returns": gptd(bootstrap=False),
    "LSTD": kernel_lstd(0.0),
    "LSTD(0.9)": kernel_lstd(0.9),
    "LSTD(λ)": kernel_lstd(*LAMBDAS),
    "LSTD radial": radial_lstd,
    "fitted": kernel_fitted_evaluation,
    "sklearn GPR": sklearn_gpr,
    "Monte Carlo": monte_carlo,
    "constant": constant,
}
# not run by default
VARIANTS: dict[str, Contestant] = {
    "GPTD bootstrap": gptd(bootstrap=True),
    "GPTD evidence": gptd(objective="marginal_likelihood"),
    "GPTD thinned": gptd(objective="thinned"),
    "GPTD LOO": gptd(objective="loo"),
    "GPTD LOEO": gptd(objective="leave_one_episode_out"),
}
KERNEL_OF_GPTD = ("LSTD", "LSTD(0.9)", "LSTD(λ)")

if "bootstrap" not in inspect.signature(GPTD).parameters:
    del FIELD["GPTD returns"], VARIANTS["GPTD bootstrap"]
