"""A fitted model in one file: arrays and a JSON header, no code in it, nothing unpickled on the way back.

The file is a NumPy archive. It holds the data, θ and the constructor's arguments; the posterior is computed again on
loading, which costs one factorisation and keeps the file small. Of a sparse model it holds the statistics, and a sample
of the data for pictures.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gptd_rl.data import files as archive
from gptd_rl.data.actions import NO_ACTIONS, Actions, ContinuousActions, DiscreteActions, NoActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.action_kernels import action_kernel
from gptd_rl.estimators.base import Estimator
from gptd_rl.estimators.engines import Exact
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.inference import sparse
from gptd_rl.inference.model import Model
from gptd_rl.kernels.metrics import ARD, FactorAnalysis, Isotropic, Metric
from gptd_rl.kernels.stationary import SquaredExponential

FORMAT = "gptd-rl model"
VERSION = 2  # 2 added sparse models
ESTIMATORS: dict[str, type[Estimator]] = dict(GPTD=GPTD, GPTDQ=GPTDQ)
SCALARS = ("prior_trace", "n_rows", "log_jacobian")
ARRAYS = ("states", "rewards", "discounts", "lengths", "terminated", "actions")


def save(v: Estimator, path: str | os.PathLike[str]) -> Path:
    """Write a fitted `v` to `path`, atomically: the file is whole or as it was before."""
    path = Path(path)
    if callable(v.mean_):
        raise ValueError("the prior mean is a function, and a file holds no code: only a number can be saved as mean.")
    arrays = {name: getattr(v.data_, name) for name in ARRAYS if getattr(v.data_, name) is not None}
    params = v.get_params() | dict(mean=v.mean_)
    if isinstance(params["kernel"], SquaredExponential):
        params["kernel"] = _describe(params["kernel"])
    header = dict(
        format=FORMAT,
        version=VERSION,
        estimator=type(v).__name__,
        actions=_describe_actions(v.actions_),
        params=params,
        kernel=_describe(v.kernel_),
        noise_is_fixed=v.model_.noise_is_fixed,
        thinning=v.thinning_,
        exact=v.exact_,
    )
    if isinstance(v.posterior_, sparse.Posterior):
        arrays |= _take_apart(v.posterior_)
        seen = v.posterior_.solution.statistics
        header["statistics"] = {name: getattr(seen, name) for name in SCALARS}
    text = json.dumps(header, default=lambda array: array.tolist())  # NumPy's numbers are numbers
    learnt: dict[str, Any] = dict(header=np.array(text), theta=v.theta_, inputs=v._columns)
    return archive.write(path, learnt | arrays)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model that `GPTD.save` or `GPTDQ.save` wrote.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    GPTD or GPTDQ
        Fitted: it predicts what the saved one did. `comparison_` and `thinning_trials_` are not kept.
    """
    path = Path(path)
    try:
        header, arrays = _read(path)
        if header["version"] <= VERSION:
            return _fitted(header, arrays)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}.") from None
    except archive.UNREADABLE as error:
        raise ValueError(f"{path} is not a gptd-rl model, or was cut off while it was copied ({error}).") from None
    raise ValueError(
        f"{path} has format version {header['version']}, this release reads up to {VERSION}: upgrade gptd-rl."
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and arrays of the file at `path`."""
    arrays = archive.read(path)
    header = json.loads(str(arrays.pop("header")))
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}")
    return header, arrays


def _fitted(header: dict[str, Any], arrays: dict[str, Any]) -> Estimator:
    params = header["params"]
    if isinstance(params["kernel"], dict):
        params["kernel"] = _rebuild(params["kernel"])
    v: Estimator = ESTIMATORS[header.get("estimator", "GPTD")](**params)
    v.mean_ = v.mean
    actions = _rebuild_actions(header.get("actions", {}))
    data = Trajectories._trusted(**{name: arrays.get(name) for name in ARRAYS})
    template = Model(action_kernel(_rebuild(header["kernel"]), actions), 1.0, header["noise_is_fixed"])
    model, inputs, every = template.with_theta(arrays["theta"]), arrays["inputs"], header["thinning"]
    if "statistics" in header:
        posterior = _put_together(model.with_noise(every * model.noise_variance), arrays, header["statistics"], v)
        v._set(posterior, data, inputs, model, every, header["exact"], actions)
    else:
        v._adopt(Exact(data, v.noise, inputs, actions), model, every)
    return v


def _take_apart(posterior: sparse.Posterior) -> dict[str, Any]:
    """Arrays of a sparse posterior: of size m×m, however many data there were."""
    seen = posterior.solution.statistics
    return dict(subset=posterior.subset, gram=seen.gram, hidden=seen.hidden, noise_moments=posterior.noise_moments)


def _put_together(model: Model, arrays: dict[str, Any], scalars: dict[str, Any], v: Estimator) -> sparse.Posterior:
    seen = sparse.Statistics(arrays["gram"], arrays["hidden"], **scalars)
    solution = sparse.Solution.of(model, sparse.Basis(model.kernel, arrays["subset"], whitened=True), seen)
    return sparse.Posterior(solution, arrays["noise_moments"], v.variance)


def _describe_actions(actions: Actions) -> dict[str, Any]:
    return {} if isinstance(actions, NoActions) else {type(actions).__name__: asdict(actions)}  # type: ignore[call-overload]


def _rebuild_actions(description: dict[str, Any]) -> Actions:
    if "DiscreteActions" in description:
        return DiscreteActions(**description["DiscreteActions"])
    if "ContinuousActions" in description:
        return ContinuousActions(tuple(description["ContinuousActions"]["shape"]))
    return NO_ACTIONS


def _describe(kernel: SquaredExponential) -> dict[str, Any]:
    metric = kernel.metric
    return dict(
        metric=type(metric).__name__,
        n_dims=metric.n_dims,
        rank=metric.rank if isinstance(metric, FactorAnalysis) else 0,
        theta=[None if np.isneginf(t) else float(t) for t in kernel.theta],
        fixed=sorted(kernel.fixed),
    )


def _rebuild(description: dict[str, Any]) -> SquaredExponential:
    D, rank = description["n_dims"], description["rank"]
    metrics: dict[str, Metric] = dict(
        Isotropic=Isotropic(1.0, D), ARD=ARD(np.ones(D)), FactorAnalysis=FactorAnalysis(np.ones(D), np.ones((D, rank)))
    )
    kernel = SquaredExponential(metrics[description["metric"]], fixed=description["fixed"])
    return kernel.with_theta(np.array([-np.inf if t is None else t for t in description["theta"]]))
