"""What the estimators of V and of Q have in common: parameters, model selection, what is learnt, what is asked of it.

`GPTD` and `GPTDQ` add what users call: `fit` and `predict` of states, or of states and actions.
"""

from __future__ import annotations

import inspect
import os
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from gptd_rl.checks import as_states
from gptd_rl.data.actions import Actions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.engines import Problem, open_problem, reopen_problem
from gptd_rl.exceptions import InterruptedFitWarning, NotFittedError, RelevanceWarning
from gptd_rl.inference import exact, sparse
from gptd_rl.inference.model import Model
from gptd_rl.inference.sparse import Variance
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.progress import Watch, watch
from gptd_rl.selection import thinning
from gptd_rl.selection.scales import Scales
from gptd_rl.selection.search import Plan, Task, compare
from gptd_rl.selection.thinning import Trial
from gptd_rl.sharding.sources import Sources
from gptd_rl.temporal.means import Mean, check_mean, evaluate_mean, subtract_mean
from gptd_rl.temporal.targets import Noise
from gptd_rl.types import Array

Posterior = exact.Posterior | sparse.Posterior

KERNELS = ("isotropic", "ard", "factor", "auto")
NOISES = ("stochastic", "deterministic")
OBJECTIVES = ("auto", "marginal_likelihood", "thinned", "loo", "leave_one_episode_out")
METHODS = ("auto", "exact", "sparse")
VARIANCES = ("projected_process", "subset_of_regressors")


@dataclass(frozen=True, eq=False)
class Pruning:
    """What `GPTD.prune` removed, and what it did to the evidence (the paper's "(II) without y")."""

    kept: NDArray[np.int64]
    removed: NDArray[np.int64]
    before: exact.Evidence
    after: exact.Evidence

    def __str__(self) -> str:
        removed = ", ".join(str(i) for i in self.removed) or "none"
        rows = [f"inputs removed: {removed}", f"{'':<8} {'evidence':>12} {'complexity':>12} {'data fit':>10}"]
        for name, e in (("before", self.before), ("after", self.after)):
            rows.append(f"{name:<8} {e.log_likelihood:>12.2f} {e.complexity:>12.2f} {e.data_fit:>10.2f}")
        return "\n".join(rows)


class Estimator:
    """Model selection and inference for a value function of states, or of pairs of a state and an action.

    Parameters and attributes are explained where users meet them, in `GPTD` and in `GPTDQ`.
    """

    def __init__(
        self,
        kernel: str | SquaredExponential = "ard",
        *,
        mean: Mean = None,
        noise: Noise = "stochastic",
        objective: str = "auto",
        thinning: int | None = None,
        method: str = "auto",
        subset_size: int = 500,
        tolerance: float | None = None,
        variance: Variance = "projected_process",
        noise_variance: float | None = None,
        noise_floor: float = 1e-6,
        n_restarts: int = 1,
        max_rank: int | None = None,
        warm_start: bool = False,
        random_state: int | None = 0,
        progress_bar: bool = False,
    ) -> None:
        self.kernel = kernel
        self.mean = mean
        self.noise = noise
        self.objective = objective
        self.thinning = thinning
        self.method = method
        self.subset_size = subset_size
        self.tolerance = tolerance
        self.variance = variance
        self.noise_variance = noise_variance
        self.noise_floor = noise_floor
        self.n_restarts = n_restarts
        self.max_rank = max_rank
        self.warm_start = warm_start
        self.random_state = random_state
        self.progress_bar = progress_bar

    # ---------------------------------------------------------------------------------- fitting

    def _open(self, data: Any, gamma: float | None, executor: Any, actions: Actions) -> Problem:
        """Look at `data` and decide how to hold them."""
        problem = open_problem(
            self._subtract_mean(data, self.mean, gamma, actions),
            self.noise,
            method=self.method,
            subset_size=self.subset_size,
            tolerance=self.tolerance,
            variance=self.variance,
            gamma=gamma,
            executor=executor,
            actions=actions,
        )
        n_coordinates = problem.n_dims - actions.n_categorical
        if isinstance(self.kernel, SquaredExponential) and self.kernel.metric.n_dims != n_coordinates:
            raise ValueError(
                f"the kernel has {self.kernel.metric.n_dims} dimensions; got states of width {n_coordinates}."
            )
        return problem

    def _add(self, data: Any, gamma: float | None, executor: Any) -> Self:
        """Condition the model on further data."""
        problem = self._problem("add to")
        data = self._subtract_mean(data, self.mean_, gamma, self.actions_)
        problem, posterior = problem.with_more(data, gamma, executor, self.posterior_, self.thinning_)
        self._adopt(problem, self.model_, self.thinning_, posterior)
        return self

    def _condition(self, data: Any, gamma: float | None, executor: Any, inducing_points: int | None) -> Self:
        """A copy with the same θ, conditioned on other data."""
        self._check_fitted()
        if inducing_points is not None and not is_count(inducing_points):
            raise ValueError(f"inducing_points must be a whole number of 1 or more; got {inducing_points!r}.")
        problem = reopen_problem(
            self._subtract_mean(data, self.mean_, gamma, self.actions_),
            self.noise,
            self.model_,
            subset=self.subset_ if inducing_points is None else None,
            inputs=self._columns,
            n_dims=self.data_.n_dims,
            method=self.method if inducing_points is None else "sparse",
            subset_size=inducing_points or self.subset_size,
            tolerance=self.tolerance,
            variance=self.variance,
            gamma=gamma,
            executor=executor,
            actions=self.actions_,
        )
        copy = type(self)(**self.get_params())
        copy.mean_ = self.mean_
        copy._adopt(problem, self.model_, self.thinning_)
        return copy

    def _subtract_mean(self, data: Any, mean: Mean, gamma: float | None, actions: Actions) -> Any:
        """The data with rewards r − H m."""
        if mean is None or (not callable(mean) and mean == 0):
            return data

        def change(part: Trajectories) -> Trajectories:
            return subtract_mean(part, self._mean_of_rows(mean, actions), self._n_terminal(actions))

        return change(data) if isinstance(data, Trajectories) else Sources.of(data, gamma).changed(change)

    def _mean_of_rows(self, mean: Mean, actions: Actions) -> Mean:
        """A prior mean as a function of what the kernel takes: states here, pairs in `GPTDQ`."""
        return mean

    def _n_terminal(self, actions: Actions) -> int:
        """Rows of a terminal state at the end of a terminated segment."""
        return 1

    def _prior_mean(self, rows: Array) -> Array:
        """M at checked states or pairs, of shape (m,)."""
        return evaluate_mean(self._mean_of_rows(self.mean_, self.actions_), rows)

    def _fit(self, problem: Problem, every: int | None) -> Self:
        """Select a model for `problem`; `every` is the thinning, chosen by the objective if None."""
        warm = self.model_ if self.warm_start and hasattr(self, "model_") else None
        trials: list[Trial] = []
        with watch(self.progress_bar) as report, problem.reporting_to(report):
            plan = self._plan(warm, problem.actions, report)
            if every is None:
                every, near, trials = self._choose_thinning(problem.contiguous_sample, plan)
                plan = replace(plan, near=near)
            name = self.objective if self.objective in ("loo", "leave_one_episode_out") else "thinned"
            # The task is handed over: its buffer must be gone when the posterior takes its own.
            comparison = compare(self.kernel, problem.task(name, every), problem.scales, plan)
            if comparison.interrupted:
                warnings.warn("interrupted: this is the best model found so far.", InterruptedFitWarning, stacklevel=3)
            self._adopt(problem, comparison.best.model, every)
        self.mean_: Mean = self.mean
        self.comparison_, self.thinning_trials_ = comparison, trials
        return self

    def _adopt(self, problem: Problem, model: Model, every: int, posterior: Posterior | None = None) -> None:
        """Condition `model` on the data, unless that was done, and set what users read."""
        posterior = problem.condition(model, every) if posterior is None else posterior
        self._set(posterior, problem.data, problem.inputs, model, every, problem.is_exact, problem.actions)
        self.problem_: Problem | None = problem

    def _set(
        self,
        posterior: Posterior,
        data: Trajectories,
        inputs: NDArray[np.int64],
        model: Model,
        every: int,
        is_exact: bool,
        actions: Actions,
    ) -> None:
        """Set what users read."""
        self.problem_ = None
        self.posterior_, self.data_, self.model_, self.thinning_ = posterior, data, model, every
        self.exact_, self.method_ = is_exact, "exact" if posterior.subset is None else "sparse"
        self.kernel_, self.noise_variance_ = model.kernel, model.noise_variance
        self.theta_, self.parameter_names_ = model.theta, model.parameter_names
        self.actions_, self.n_dims_ = actions, data.n_dims - actions.n_columns
        self._columns, self.inputs_ = inputs, inputs[inputs < self.n_dims_]
        self.relevances_ = self._relevances()[: self.n_dims_]
        self.evidence_ = posterior.evidence(model)
        self.log_marginal_likelihood_ = self.evidence_.log_likelihood
        self.complexity_, self.data_fit_ = self.evidence_.complexity, self.evidence_.data_fit

    def _relevances(self) -> Array:
        """Diagonal of Ω for every coordinate of a state or pair, 0 for those that were pruned."""
        n_coordinates = self.data_.n_dims - self.actions_.n_categorical
        relevances = np.zeros(n_coordinates)
        relevances[self._columns[self._columns < n_coordinates]] = self.kernel_.metric.relevances
        return relevances

    def _problem(self, purpose: str) -> Problem:
        if self.problem_ is None:
            raise ValueError(f"a sparse model that was loaded from a file has no data to {purpose}: fit it again.")
        return self.problem_

    @property
    def subset_(self) -> Array | None:
        """The states that stand for all others in the sparse method, of shape (m, n_inputs)."""
        self._check_fitted()
        return self.posterior_.subset

    def _plan(self, warm: Model | None, actions: Actions, report: Watch | None) -> Plan:
        return Plan(
            noise_floor=self.noise_floor,
            n_restarts=self.n_restarts,
            noise_variance=self.noise_variance,
            seed=self.random_state,
            max_rank=self.max_rank,
            warm=warm,
            report=report,
            n_categorical=actions.n_categorical,
            wrap_kernel=partial(action_kernel, actions=actions),
        )

    def _choose_thinning(self, data: Trajectories, plan: Plan) -> tuple[int, Model | None, list[Trial]]:
        """The thinning, the model that came with its choice, if any, and what was tried."""
        if self.objective == "thinned":
            horizon = min(thinning.horizon(data), max(thinning.candidates(data)))
            return self.thinning or max(1, round(horizon)), None, []
        if self.objective != "auto" or self.noise == "deterministic":
            return 1, None, []

        def select(part: Trajectories, every: int) -> Model:
            scales = Scales.of(part, plan.n_categorical)
            kernel = "ard" if self.kernel in ("factor", "auto") else self.kernel
            tried = compare(kernel, Task.of(part, self.noise, "thinned", every, scales), scales, plan)
            if tried.interrupted:  # what was found so far is of a small part of the data
                raise KeyboardInterrupt
            return tried.best.model

        chosen, trials = thinning.choose(data, self.noise, select)
        if chosen is None:
            return 1, None, trials
        spread = Scales.of(data, plan.n_categorical).spread ** 2
        plain, ours = (int(np.argmax(t.relevances * spread)) for t in (trials[0], chosen))
        if plain != ours:
            warnings.warn(
                f"the plain evidence calls input {plain} the most relevant, left-out episodes say input {ours}: "
                f"thinning by τ = {chosen.thinning} (see thinning_trials_).",
                RelevanceWarning,
                stacklevel=4,
            )
        return chosen.thinning, chosen.model, trials

    def prune(self, threshold: float = 1e-3) -> Self:
        """Leave out the inputs that do not matter, and fit again.

        Parameters
        ----------
        threshold : float
            An input goes if moving it by one standard deviation changes ½d² by less than half of this.

        Returns
        -------
        GPTD or GPTDQ
            A fitted model of its own that takes states of the same width; ``print(pruned.pruning_)`` shows both
            evidences.
        """
        self._check_fitted()
        problem = self._problem("fit a smaller model to")
        spread = np.ones(self.n_dims_)
        spread[self.inputs_] = problem.scales.spread[: len(self.inputs_)]
        strength = self.relevances_ * spread**2
        keep = strength >= min(threshold, strength.max())
        kept = np.flatnonzero(keep & np.isin(np.arange(self.n_dims_), self.inputs_))
        pruned = type(self)(**self.get_params() | dict(mean=self.mean_))
        if isinstance(self.kernel, SquaredExponential) and len(kept) < len(self.inputs_):
            raise ValueError(
                "a kernel object fixes the number of inputs, so its model cannot be pruned: "
                "use data.take_inputs(…) and a kernel of that width, or kernel='ard'."
            )
        of_actions = np.setdiff1d(self._columns, self.inputs_)  # always kept
        pruned._fit(problem.with_inputs(np.concatenate([kept, of_actions])), self.thinning_)
        removed = np.setdiff1d(self.inputs_, kept)
        pruned.pruning_ = Pruning(kept, removed, self.evidence_, pruned.evidence_)
        return pruned

    pruning_: Pruning

    # ---------------------------------------------------------------------------------- asking

    def _moments(self, rows: Array, return_std: bool) -> Array | tuple[Array, Array]:
        """Posterior mean at checked states or pairs and, if asked, the standard deviation, both of shape (m,)."""
        x = rows[:, self._columns]
        mean = self._prior_mean(rows) + self.posterior_.mean(x)
        return (mean, np.sqrt(self.posterior_.variance(x))) if return_std else mean

    def _interval(self, rows: Array, level: float) -> tuple[Array, Array]:
        """Interval at checked states or pairs, two arrays of shape (m,)."""
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1; got {level}.")
        x = rows[:, self._columns]
        mean = self._prior_mean(rows) + self.posterior_.mean(x)
        variance = np.maximum(self.posterior_.martingale_variance(x), self.posterior_.variance(x))
        half = norm.ppf(0.5 + 0.5 * level) * np.sqrt(variance)
        return mean - half, mean + half

    @overload
    def log_marginal_likelihood(self, theta: ArrayLike | None = ..., eval_gradient: Literal[False] = ...) -> float: ...

    @overload
    def log_marginal_likelihood(
        self, theta: ArrayLike | None = ..., *, eval_gradient: Literal[True]
    ) -> tuple[float, Array]: ...

    def log_marginal_likelihood(
        self, theta: ArrayLike | None = None, eval_gradient: bool = False
    ) -> float | tuple[float, Array]:
        """Evidence of all rewards, or the sparse bound on it, at `theta` (`theta_` if None), and its gradient if asked.

        Parameters
        ----------
        theta : array-like of shape (n_parameters,), optional
            In the order of `parameter_names_`; logarithms, but factor loadings as they are.
        eval_gradient : bool
        """
        self._check_fitted()
        model = self.model_
        if theta is not None:
            values = np.asarray(theta, dtype=np.float64)
            if values.shape != self.theta_.shape:
                raise ValueError(
                    f"theta must have shape {self.theta_.shape} ({self.parameter_names_}); got {values.shape}."
                )
            model = model.with_theta(values)
        problem = self._problem("judge θ by")
        if not eval_gradient:
            return problem.evidence(model, self.subset_).log_likelihood
        value, gradient = problem.evidence_and_gradient(model, self.subset_)
        return value.log_likelihood, -gradient

    # ---------------------------------------------------------------------------------- keeping

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted model to `path`: arrays and JSON, no code; read it back by `gptd_rl.load`."""
        from gptd_rl.estimators.storage import save

        self._check_fitted()
        return save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; it must be of this class."""
        from gptd_rl.estimators.storage import load

        model = load(path)
        if not isinstance(model, cls):
            raise ValueError(f"{path} holds a {type(model).__name__}, not a {cls.__name__}: gptd_rl.load reads both.")
        return model

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments; `deep` is for scikit-learn, there is nothing deeper."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change the constructor's arguments."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {sorted(self.get_params())}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{n}={v!r}" for n, v in self.get_params().items() if not np.array_equal(v, defaults[n].default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    # ---------------------------------------------------------------------------------- checking

    def _check_parameters(self) -> None:
        if not isinstance(self.kernel, SquaredExponential):
            _check_choice("kernel", self.kernel, KERNELS, "or a SquaredExponential kernel")
        check_mean(self.mean)
        _check_choice("noise", self.noise, NOISES)
        _check_choice("objective", self.objective, OBJECTIVES)
        _check_choice("method", self.method, METHODS)
        _check_choice("variance", self.variance, VARIANCES)
        if not is_count(self.subset_size):
            raise ValueError(f"subset_size must be a whole number of 1 or more; got {self.subset_size!r}.")
        if self.tolerance is not None and not _is_share(self.tolerance):
            raise ValueError(f"tolerance is a share of the prior variance, from 0 to below 1; got {self.tolerance!r}.")
        if self.thinning is not None and not (self.objective == "thinned" and is_count(self.thinning)):
            raise ValueError(f"thinning={self.thinning} needs objective='thinned' and a whole number of 1 or more.")
        for name in ("noise_variance", "noise_floor"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive; got {value}.")
        if self.max_rank is not None and self.max_rank < 1:
            raise ValueError(f"max_rank must be 1 or more, or None for n_dims − 1; got {self.max_rank}.")
        if self.n_restarts < 0:
            raise ValueError(f"n_restarts must be 0 or more; got {self.n_restarts}.")

    def _check_fitted(self) -> None:
        if not hasattr(self, "posterior_"):
            raise NotFittedError(f"this {type(self).__name__} has not been fitted yet: call fit(data) first.")

    def _check_states(self, states: ArrayLike) -> Array:
        """States with all inputs, of shape (m, n_dims)."""
        self._check_fitted()
        x = as_states(states, name="states")
        if x.shape[1] != self.n_dims_:
            raise ValueError(
                f"states must have {self.n_dims_} columns, as in fit; got shape {x.shape}. "
                "A single state is [[x1, x2, …]]."
            )
        return x


def is_count(value: object) -> bool:
    """Whether it is a whole number of 1 or more."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _is_share(value: object) -> bool:
    return isinstance(value, float | int | np.number) and bool(0.0 <= value < 1.0)


def _check_choice(name: str, value: object, allowed: tuple[str, ...], besides: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, allowed))} {besides}".rstrip() + f"; got {value!r}."
        )
