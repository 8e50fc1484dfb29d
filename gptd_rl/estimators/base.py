"""What the estimators of V and of Q have in common: parameters, model selection, learnt attributes, predictions.

`GPTD` and `GPTDQ` add what users call: `fit` and `predict` of states, or of states and actions.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import as_floats, as_states, check_number, is_count, is_positive, one_line
from gptd_rl.data.actions import Actions, DiscreteActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators import checks
from gptd_rl.estimators.engines import Engine
from gptd_rl.estimators.fitted import FittedModel, arrays_of, fitted_from
from gptd_rl.estimators.markov import MarkovTest
from gptd_rl.estimators.params import Parameters
from gptd_rl.estimators.planning import Plan, carry_out, make_plan
from gptd_rl.estimators.predictions import Predictions
from gptd_rl.estimators.pruning import InputPruning
from gptd_rl.estimators.sparse_engine import (
    CANDIDATES_PER_POINT,
    SparseEngine,
    SparseOptions,
    make_engine,
    remake_engine,
)
from gptd_rl.estimators.storage import SaveAndLoad
from gptd_rl.exceptions import InterruptedFitWarning
from gptd_rl.inference.model import Model
from gptd_rl.inference.sparse import SparseVariance
from gptd_rl.kernels import ActionDelta, Kernel
from gptd_rl.kernels import registry as kernel_registry
from gptd_rl.progress import fit_progress
from gptd_rl.selection.thinning import ThinningResult
from gptd_rl.selection.variants import Comparison, SearchOptions
from gptd_rl.sharding.sources import Sources
from gptd_rl.temporal.means import Mean, evaluate_mean, subtract_mean
from gptd_rl.temporal.targets import Noise
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, DataLike


class Estimator(Predictions, Parameters, InputPruning, SaveAndLoad):
    """Model selection and inference for a value function of states, or of pairs of a state and an action.

    Parameters and attributes are explained where users meet them, in `GPTD` and in `GPTDQ`.
    """

    comparison_: Comparison
    thinning_trials_: list[ThinningResult]
    markov_test_: MarkovTest | None

    def __init__(
        self,
        kernel: str | Kernel = "ard",
        *,
        mean: Mean = None,
        noise: Noise = "stochastic",
        bootstrap: bool | str = "auto",
        objective: str = "auto",
        thinning: int | None = None,
        method: str = "auto",
        subset_size: int = 500,
        tolerance: float | None = None,
        sparse_variance: SparseVariance = "projected_process",
        noise_variance: float | None = None,
        noise_floor: float = 1e-6,
        n_restarts: int = 1,
        max_rank: int | None = None,
        warm_start: bool = False,
        random_state: int | None = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.mean = mean
        self.noise = noise
        self.bootstrap = bootstrap
        self.objective = objective
        self.thinning = thinning
        self.method = method
        self.subset_size = subset_size
        self.tolerance = tolerance
        self.sparse_variance = sparse_variance
        self.noise_variance = noise_variance
        self.noise_floor = noise_floor
        self.n_restarts = n_restarts
        self.max_rank = max_rank
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs

    # ---------------------------------------------------------------------------------- fitting

    def _open(self, data: DataLike, gamma: float | None, executor: Any, actions: Actions) -> Engine:
        """Look at `data` and decide how to hold them."""
        engine = make_engine(
            self._subtract_mean(data, self.mean, gamma, actions),
            self.noise,
            method=self.method,
            options=self._sparse_options(self.subset_size),
            gamma=gamma,
            executor=executor,
            actions=actions,
        )
        checks.check_kernel_width(self.kernel, engine.n_dims - actions.n_categorical, actions)
        return engine

    def _sparse_options(self, subset_size: int) -> SparseOptions:
        return SparseOptions(subset_size, self.tolerance, self.sparse_variance)

    def _fit(
        self,
        engine: Engine,
        plan: Plan | None = None,
        kernel: str | Kernel | None = None,
        progress_bar: bool = False,
        reopen: Callable[[], Engine] | None = None,
    ) -> Self:
        """Select a model for the data of `engine`; the plan is made from the data and the parameters if None.

        If the plan is to bootstrap, the engine of `reopen` takes the place of `engine`, if there is one.
        """
        kernel = self.kernel if kernel is None else kernel
        new = copy.copy(self)
        with fit_progress(progress_bar) as progress, engine.reporting_to(progress):
            options = self._search_options(engine.actions, None if progress is None else progress.evaluated)
            plan = make_plan(self, engine.contiguous_sample, kernel, options) if plan is None else plan
            engine, plan, comparison = carry_out(plan, self._problem, engine, kernel, options, reopen)
            new.mean_, new._amplification = self.mean, plan.amplification
            model = comparison.best.model.amplified(plan.amplification)
            try:
                new._adopt(engine, model, plan.thinning, plan.trace_decay)
            except KeyboardInterrupt:  # the model is found, and only its posterior is missing
                comparison.interrupted = True
                new._adopt(engine, model, plan.thinning, plan.trace_decay)
        new.comparison_, new.thinning_trials_, new.markov_test_ = comparison, plan.trials, plan.markov_test
        if comparison.interrupted:
            warnings.warn("interrupted: this is the best model found so far.", InterruptedFitWarning, stacklevel=4)
        return self._become(new)

    def _problem(self, engine: Engine, plan: Plan) -> Any:
        """What model selection optimises."""
        if plan.trace_decay == 0.0 and self.objective == "auto":
            return engine.moments
        name = self.objective if self.objective in ("loo", "leave_one_episode_out") else "thinned"
        return engine.selection_problem(name, plan.thinning)

    def _search_options(self, actions: Actions, report: Any) -> SearchOptions:
        warm = self.model_ if self.warm_start and hasattr(self, "model_") else None
        delta = ActionDelta(actions.n, actions.correlation) if isinstance(actions, DiscreteActions) else None
        return SearchOptions(
            noise_floor=self.noise_floor,
            n_restarts=self.n_restarts,
            noise_variance=self.noise_variance,
            seed=self.random_state,
            max_rank=self.max_rank,
            warm=warm,
            report=report,
            actions=delta,
            n_jobs=self.n_jobs,
        )

    def _add(self, data: DataLike, gamma: float | None, executor: Any) -> Self:
        """Condition the model on further data."""
        engine = self._engine("add to")
        data = self._subtract_mean(data, self.mean_, gamma, self.actions_)
        engine, posterior = engine.with_more(data, gamma, executor, self.posterior_, self.model_, self.thinning_)
        new = copy.copy(self)
        new._adopt(engine, self.model_, self.thinning_, self.trace_decay_, posterior)
        return self._become(new)

    def _condition(self, data: DataLike, gamma: float | None, executor: Any, inducing_points: int | None) -> Self:
        """A copy with the same θ, conditioned on other data."""
        self._check_fitted()
        if inducing_points is not None and not is_count(inducing_points):
            raise ValueError(f"inducing_points must be a whole number of 1 or more; got {inducing_points!r}.")
        options = self._sparse_options(inducing_points or self.subset_size)
        if inducing_points is not None:
            options = replace(options, n_candidates=CANDIDATES_PER_POINT * inducing_points)
        engine = remake_engine(
            self._subtract_mean(data, self.mean_, gamma, self.actions_),
            self.noise,
            self.model_,
            inducing_points=self.inducing_points_ if inducing_points is None else None,
            inputs=self._columns,
            n_dims=self.data_.n_dims,
            method=self.method if inducing_points is None else "sparse",
            options=options,
            gamma=gamma,
            executor=executor,
            actions=self.actions_,
        )
        new = type(self)(**self.get_params(deep=False))
        new.mean_, new._amplification = self.mean_, self._amplification
        model = self.model_
        if inducing_points is not None and self.trace_decay_ is None and isinstance(engine, SparseEngine):
            # θ was selected without these points: what they cannot express is noise to them.
            model = model.with_noise(model.noise_variance + engine.residual_variance(model) / self.thinning_)
        new._adopt(engine, model, self.thinning_, self.trace_decay_)
        return new

    def _adopt(
        self, engine: Engine, model: Model, every: int, trace_decay: float | None, posterior: Any = None
    ) -> None:
        """Condition `model` on the data, unless that was done, and set the learnt attributes."""
        if posterior is None:
            posterior = engine.condition(model, every, trace_decay)
        if trace_decay is None:
            evidence = posterior.evidence(model)
        elif trace_decay == 0.0:
            evidence = engine.moments.objective.evidence(model)
        else:
            evidence = engine.evidence(model, posterior.inducing_points)
        self._set(
            FittedModel(posterior, engine.data, engine.inputs, model, every, engine.is_exact, engine.actions, evidence)
        )
        self.engine_: Engine | None = engine

    def _set(self, fitted: FittedModel) -> None:
        """Set the learnt attributes."""
        model, actions = fitted.model, fitted.actions
        self.engine_ = None
        self.posterior_, self.data_, self.model_ = fitted.posterior, fitted.data, model
        self.thinning_, self.exact_ = fitted.thinning, fitted.is_exact
        self.trace_decay_: float | None = fitted.posterior.trace_decay
        self.bootstrap_ = self.trace_decay_ == 0.0
        self.method_ = "exact" if fitted.posterior.inducing_points is None else "sparse"
        self.kernel_: Any = model.kernel
        self.noise_variance_ = model.noise_variance
        self.theta_, self.parameter_names_ = model.theta, model.parameter_names
        self.actions_, self.n_dims_ = actions, fitted.data.n_dims - actions.n_columns
        self.n_features_in_ = self.n_dims_
        self._columns, self.inputs_ = fitted.inputs, fitted.inputs[fitted.inputs < self.n_dims_]
        self.relevances_ = self._relevances()[: self.n_dims_]
        self.evidence_ = fitted.evidence
        self.log_marginal_likelihood_ = self.evidence_.log_likelihood
        self.complexity_, self.data_fit_ = self.evidence_.complexity, self.evidence_.data_fit

    def _relevances(self) -> Array:
        """Relevance of every coordinate of a state or pair, 0 for those that were pruned."""
        n_coordinates = self.data_.n_dims - self.actions_.n_categorical
        relevances = np.zeros(n_coordinates)
        if self.kernel_.n_dims is not None:
            relevances[self._columns[self._columns < n_coordinates]] = self.kernel_.relevances
        return relevances

    def _engine(self, purpose: str) -> Engine:
        if self.engine_ is None:
            raise ValueError(f"a sparse model that was loaded from a file has no data to {purpose}: fit it again.")
        return self.engine_

    @property
    def inducing_points_(self) -> Array | None:
        """Inducing points of the sparse method, of shape (m, n_inputs); None if the method is exact."""
        self._check_fitted()
        points: Array | None = self.posterior_.inducing_points
        return points

    # ---------------------------------------------------------------------------------- prior mean

    def _subtract_mean(self, data: DataLike, mean: Mean, gamma: float | None, actions: Actions) -> Any:
        """The data with rewards r − H m."""
        if mean is None or (not callable(mean) and mean == 0):
            return data

        def change(part: Trajectories) -> Trajectories:
            return subtract_mean(part, self._mean_of_rows(mean, actions), self._n_terminal(actions))

        return change(data) if isinstance(data, Trajectories) else Sources.of(data, gamma).map(change)

    def _mean_of_rows(self, mean: Mean, actions: Actions) -> Mean:
        """A prior mean as a function of rows of the data: states here, pairs in `GPTDQ`."""
        return mean

    def _n_terminal(self, actions: Actions) -> int:
        """Rows of a terminal state at the end of a terminated segment."""
        return 1

    def _prior_mean(self, rows: Array) -> Array:
        """Prior mean at checked states or pairs, of shape (m,)."""
        return evaluate_mean(self._mean_of_rows(self.mean_, self.actions_), rows)

    mean_: Mean = None
    _amplification: float = 1.0  # of the prior variance that was selected, off-policy

    # ---------------------------------------------------------------------------------- evidence

    @overload
    def log_marginal_likelihood(self, theta: ArrayLike | None = ..., eval_gradient: Literal[False] = ...) -> float: ...

    @overload
    def log_marginal_likelihood(
        self, theta: ArrayLike | None = ..., *, eval_gradient: Literal[True]
    ) -> tuple[float, Array]: ...

    @one_blas_thread()
    def log_marginal_likelihood(
        self, theta: ArrayLike | None = None, eval_gradient: bool = False
    ) -> float | tuple[float, Array]:
        """Evidence of all rewards, or the sparse bound on it, at `theta` (`theta_` if None), and its gradient if asked.

        If the model bootstraps, it is the evidence of the instrumented rewards, which selected θ.

        Parameters
        ----------
        theta : array-like of shape (n_parameters,), optional
            In the order of `parameter_names_`; logarithms, but factor loadings as they are.
        eval_gradient : bool
        """
        self._check_fitted()
        model = self.model_
        if theta is not None:
            values = as_floats(theta, "theta")
            if values.shape != self.theta_.shape:
                raise ValueError(
                    f"theta must have shape {self.theta_.shape} ({self.parameter_names_}); got {values.shape}."
                )
            with np.errstate(over="ignore"):  # what is infinite is refused
                model = model.with_theta(values)
            if not is_positive(model.noise_variance):
                raise ValueError(f"theta must hold the logarithm of a positive noise variance; got {one_line(values)}.")
        engine = self._engine("judge θ by")
        if self.bootstrap_:
            objective = engine.moments.objective.refine(model)
            value, gradient = objective(model) if eval_gradient else (-objective.evidence(model).log_likelihood, None)
            return -value if gradient is None else (-value, -gradient)
        if not eval_gradient:
            return engine.evidence(model, self.inducing_points_).log_likelihood
        found, gradient = engine.evidence_and_gradient(model, self.inducing_points_)
        return found.log_likelihood, -gradient

    # ---------------------------------------------------------------------------------- files

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as plain data and arrays, for `storage`."""
        if callable(self.mean_):
            raise ValueError("the prior mean is a function, and a file holds no code: only a number can be saved.")
        params = self.get_params(deep=False) | dict(mean=self.mean_)
        if isinstance(params["kernel"], Kernel):
            params["kernel"] = kernel_registry.describe(params["kernel"])
        header, arrays = arrays_of(
            FittedModel(
                self.posterior_,
                self.data_,
                self._columns,
                self.model_,
                self.thinning_,
                self.exact_,
                self.actions_,
                self.evidence_,
            )
        )
        return dict(header, params=params, amplification=self._amplification), arrays

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The fitted model again."""
        v = cls._unfitted(header)
        v.mean_, v._amplification = v.mean, header.get("amplification", 1.0)
        check_number("amplification", v._amplification, above=0.0)
        fitted, engine = fitted_from(header, arrays, v.noise, v.sparse_variance)
        v._set(fitted)
        v.engine_ = engine
        return v

    @classmethod
    def _unfitted(cls, header: dict[str, Any]) -> Self:
        """An estimator with the parameters of a saved one."""
        params = header["params"]
        if isinstance(params["kernel"], dict):
            params["kernel"] = kernel_registry.build(params["kernel"])
        v = cls(**params)
        v._check_parameters()
        return v

    # ---------------------------------------------------------------------------------- checks

    def _describe_fit(self) -> str:
        if not hasattr(self, "posterior_"):
            return ""
        n, dims = self.data_.n_transitions, self.n_dims_
        evidence = getattr(self, "log_marginal_likelihood_", np.nan)
        return f"fitted: {self.method_}, {n} transitions, {dims} inputs, log evidence {evidence:.1f}"

    def _check_parameters(self) -> None:
        checks.check_parameters(self)

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
