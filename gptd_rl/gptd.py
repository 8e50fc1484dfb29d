"""The estimator that users hold: fit a value function to sampled transitions, predict it anywhere, with error bars."""

from __future__ import annotations

import inspect
import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from gptd_rl import exact, sparse, thinning
from gptd_rl.kernels import SquaredExponential
from gptd_rl.model import Model
from gptd_rl.observations import Noise
from gptd_rl.problems import Problem, open_problem
from gptd_rl.progress import Watch, watch
from gptd_rl.scales import Scales
from gptd_rl.selection import Plan, Task, compare
from gptd_rl.sparse import Variance
from gptd_rl.thinning import Trial
from gptd_rl.trajectories import Array, Trajectories, as_states

Posterior = exact.Posterior | sparse.Posterior

KERNELS = ("isotropic", "ard", "factor", "auto")
NOISES = ("stochastic", "deterministic")
OBJECTIVES = ("auto", "marginal_likelihood", "thinned", "loo", "leave_one_episode_out")
METHODS = ("auto", "exact", "sparse")
VARIANCES = ("projected_process", "subset_of_regressors")


class NotFittedError(ValueError, AttributeError):
    """Raised when a model is asked before it was fitted."""


class InterruptedFitWarning(UserWarning):
    """Model selection was interrupted; the model is the best one found until then."""


class RelevanceWarning(UserWarning):
    """The plain evidence and the prediction of left-out episodes disagree on which input matters most."""


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


class GPTD:
    """Gaussian-process temporal-difference learning of V, which selects its own kernel.

    Parameters
    ----------
    kernel : {"isotropic", "ard", "factor", "auto"} or SquaredExponential
        The paper's three variants; "factor" tries every rank from 1 to n_dims − 1, "auto" tries all variants; the
        best objective wins. A kernel object is where the search starts, and may hold some of its parameters fixed.
    noise : {"stochastic", "deterministic"}
        σ²HHᵀ, right for any system, or σ²I, for deterministic systems only: it is biased elsewhere, and its evidence
        does not tell.
    objective : {"auto", "marginal_likelihood", "thinned", "loo", "leave_one_episode_out"}
        What model selection optimises. "auto" is the evidence, as in the paper, where the system is deterministic,
        and the thinned evidence where it is not: neighbouring returns share their noise there, and the plain evidence
        mistakes what merely identifies an episode for a relevant input.
    thinning : int, optional
        τ for ``objective="thinned"``; the effective horizon 1/(1−γ) by default.
    method : {"auto", "exact", "sparse"}
        How the posterior is held: exactly, with all pairs of distinct states, or sparsely, where `subset_size` states
        stand for all. "auto" is exact up to some thousand distinct states; `method_` says which it was.
    subset_size : int
        Largest number of states that stand for all in the sparse method.
    tolerance : float, optional
        Fewer do if no state keeps more than this share of its prior variance v₀ unexplained; by default σ²/v₀ divided
        by the number of rewards, which is less than they can tell, and 1e-7 at most.
    variance : {"projected_process", "subset_of_regressors"}
        The sparse posterior variance: the second forgets what lies beyond the subset, and is too sure far from it.
    noise_variance : float, optional
        Hold σ² at this value.
    noise_floor : float
        Smallest σ² to consider, as a share of the variance of the returns.
    n_restarts : int
        Random starts of the search beside the three that are laid out by the scales of the data.
    max_rank : int, optional
        Largest rank of factor analysis to try.
    warm_start : bool
        Start the search from the last fit, too.
    random_state : int, optional
        Seed of the random starts.
    progress_bar : bool
        Show how the search goes.

    Attributes
    ----------
    kernel_ : SquaredExponential
        The kernel selected; ``kernel_.metric`` has Ω, its eigenvalues and directions.
    noise_variance_ : float
        σ²; predictions use ``thinning_ * noise_variance_``.
    thinning_ : int
        τ; 1 is the paper.
    theta_ : ndarray
        [log v₀, log b, log σ², metric…], named by `parameter_names_`.
    relevances_ : ndarray of shape (n_dims,)
        Diagonal of Ω; 0 for inputs that were pruned.
    log_marginal_likelihood_, complexity_, data_fit_ : float
        Evidence of all rewards at `theta_`, and its parts ½ log det Q and ½ rᵀQ⁻¹r.
    comparison_ : Comparison
        The variants tried; ``print(v.comparison_)`` is a table.
    thinning_trials_ : list of Trial
        For ``objective="auto"``: each τ tried, the relevances it selects and its leave-one-episode-out error; only the
        largest τ where that one showed the system to be deterministic.
    inputs_ : ndarray
        The state variables in use.
    method_ : {"exact", "sparse"}
        How the posterior is held.
    exact_ : bool
        Whether nothing was approximated: by the sparse method, if the subset holds every distinct state.
    subset_ : ndarray of shape (m, n_inputs) or None
        The states that stand for all others in the sparse method.
    data_ : Trajectories
        What was fitted; in the sparse method a sample of it.

    Examples
    --------
    >>> import numpy as np
    >>> steps = np.arange(6.0)  # a corridor: one step costs 1, the end is terminal
    >>> episode = dict(observations=steps[:, None], rewards=-np.ones(5), terminated=True)
    >>> v = GPTD().fit(Trajectories.from_episodes([episode], gamma=1.0))
    >>> v.predict([[2.0]]).round(1)
    array([-3.])
    """

    def __init__(
        self,
        kernel: str | SquaredExponential = "ard",
        *,
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

    def fit(self, data: Any, *, gamma: float | None = None, executor: Any = None) -> Self:
        """Select a model for `data` and condition it on them.

        Interrupted (Ctrl-C) while it searches, it keeps the best model found so far, and warns.

        Parameters
        ----------
        data : Trajectories, path, Minari dataset, or an iterable of these
            Transitions sampled under the policy to be evaluated. Several are shards of one whole; paths are of files
            that `Trajectories.save` wrote, or ids of Minari datasets. Shards are loaded when they are needed.
        gamma : float, optional
            Discount, for Minari datasets that do not keep it.
        executor : concurrent.futures.Executor or Dask client, optional
            Who passes over the shards in the sparse method; threads of its own by default. The result is the same.
        """
        self._check_parameters()
        problem = open_problem(
            data,
            self.noise,
            method=self.method,
            subset_size=self.subset_size,
            tolerance=self.tolerance,
            variance=self.variance,
            gamma=gamma,
            executor=executor,
        )
        if isinstance(self.kernel, SquaredExponential) and self.kernel.metric.n_dims != problem.n_dims:
            raise ValueError(
                f"the kernel has {self.kernel.metric.n_dims} dimensions; got states of width {problem.n_dims}."
            )
        return self._fit(problem, every=None)

    def partial_fit(self, data: Any, *, gamma: float | None = None, executor: Any = None) -> Self:
        """Condition the model on further data; θ, and the subset of the sparse method, stay as they are.

        The first call fits. For single transitions at a time there is `gptd_rl.OnlineGPTD`.

        Parameters
        ----------
        data, gamma, executor
            As in `fit`: whole segments.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(data, gamma=gamma, executor=executor)
        problem = self._problem("add to")
        problem, posterior = problem.with_more(data, gamma, executor, self.posterior_, self.thinning_)
        self._adopt(problem, self.model_, self.thinning_, posterior)
        return self

    def _fit(self, problem: Problem, every: int | None) -> Self:
        """Select a model for `problem`; `every` is the thinning, chosen by the objective if None."""
        warm = self.model_ if self.warm_start and hasattr(self, "model_") else None
        trials: list[Trial] = []
        with watch(self.progress_bar) as report, problem.reporting_to(report):
            plan = self._plan(warm, report)
            if every is None:
                every, near, trials = self._choose_thinning(problem.excerpt, plan)
                plan = replace(plan, near=near)
            name = self.objective if self.objective in ("loo", "leave_one_episode_out") else "thinned"
            # The task is handed over: its buffer must be gone when the posterior takes its own.
            comparison = compare(self.kernel, problem.task(name, every), problem.scales, plan)
            if comparison.interrupted:
                warnings.warn("interrupted: this is the best model found so far.", InterruptedFitWarning, stacklevel=3)
            self._adopt(problem, comparison.best.model, every)
        self.comparison_, self.thinning_trials_ = comparison, trials
        return self

    def _adopt(self, problem: Problem, model: Model, every: int, posterior: Posterior | None = None) -> None:
        """Condition `model` on the data, unless that was done, and set what users read."""
        posterior = problem.condition(model, every) if posterior is None else posterior
        self._set(posterior, problem.data, problem.inputs, model, every, problem.is_exact)
        self.problem_: Problem | None = problem

    def _set(
        self,
        posterior: Posterior,
        data: Trajectories,
        inputs: NDArray[np.int64],
        model: Model,
        every: int,
        is_exact: bool,
    ) -> None:
        """Set what users read."""
        self.problem_ = None
        self.posterior_, self.data_, self.inputs_, self.model_, self.thinning_ = posterior, data, inputs, model, every
        self.exact_, self.method_ = is_exact, "exact" if posterior.subset is None else "sparse"
        self.kernel_, self.noise_variance_ = model.kernel, model.noise_variance
        self.theta_, self.parameter_names_ = model.theta, model.parameter_names
        self.n_dims_ = data.n_dims
        self.relevances_ = np.zeros(data.n_dims)
        self.relevances_[inputs] = model.kernel.metric.relevances
        self.evidence_ = posterior.evidence(model)
        self.log_marginal_likelihood_ = self.evidence_.log_likelihood
        self.complexity_, self.data_fit_ = self.evidence_.complexity, self.evidence_.data_fit

    def _problem(self, purpose: str) -> Problem:
        if self.problem_ is None:
            raise ValueError(f"a sparse model that was loaded from a file has no data to {purpose}: fit it again.")
        return self.problem_

    @property
    def subset_(self) -> Array | None:
        """The states that stand for all others in the sparse method, of shape (m, n_inputs)."""
        self._check_fitted()
        return self.posterior_.subset

    def _plan(self, warm: Model | None, report: Watch | None) -> Plan:
        return Plan(
            noise_floor=self.noise_floor,
            n_restarts=self.n_restarts,
            noise_variance=self.noise_variance,
            seed=self.random_state,
            max_rank=self.max_rank,
            warm=warm,
            report=report,
        )

    def _choose_thinning(self, data: Trajectories, plan: Plan) -> tuple[int, Model | None, list[Trial]]:
        """The thinning, the model that came with its choice, if any, and what was tried."""
        if self.objective == "thinned":
            horizon = min(thinning.horizon(data), max(thinning.candidates(data)))
            return self.thinning or max(1, round(horizon)), None, []
        if self.objective != "auto" or self.noise == "deterministic":
            return 1, None, []

        def select(part: Trajectories, every: int) -> Model:
            scales = Scales.of(part)
            kernel = "ard" if self.kernel in ("factor", "auto") else self.kernel
            tried = compare(kernel, Task.of(part, self.noise, "thinned", every, scales), scales, plan)
            if tried.interrupted:  # what was found so far is of a small part of the data
                raise KeyboardInterrupt
            return tried.best.model

        chosen, trials = thinning.choose(data, self.noise, select)
        if chosen is None:
            return 1, None, trials
        spread = Scales.of(data).spread ** 2
        plain, ours = (int(np.argmax(t.relevances * spread)) for t in (trials[0], chosen))
        if plain != ours:
            warnings.warn(
                f"the plain evidence calls input {plain} the most relevant, left-out episodes say input {ours}: "
                f"thinning by τ = {chosen.thinning} (see thinning_trials_).",
                RelevanceWarning,
                stacklevel=4,
            )
        return chosen.thinning, chosen.model, trials

    def prune(self, threshold: float = 1e-3) -> GPTD:
        """Leave out the inputs that do not matter, and fit again.

        Parameters
        ----------
        threshold : float
            An input goes if moving it by one standard deviation changes ½d² by less than half of this.

        Returns
        -------
        GPTD
            A fitted model of its own that takes states of the same width; ``print(pruned.pruning_)`` shows both
            evidences.
        """
        self._check_fitted()
        problem = self._problem("fit a smaller model to")
        spread = np.ones(self.n_dims_)
        spread[self.inputs_] = problem.scales.spread
        strength = self.relevances_ * spread**2
        keep = strength >= min(threshold, strength.max())
        kept = np.flatnonzero(keep & np.isin(np.arange(self.n_dims_), self.inputs_))
        pruned = GPTD(**self.get_params())
        if isinstance(self.kernel, SquaredExponential) and len(kept) < len(self.inputs_):
            raise ValueError(
                "a kernel object fixes the number of inputs, so its model cannot be pruned: "
                "use data.take_inputs(…) and a kernel of that width, or kernel='ard'."
            )
        pruned._fit(problem.with_inputs(kept), self.thinning_)
        removed = np.setdiff1d(self.inputs_, kept)
        pruned.pruning_ = Pruning(kept, removed, self.evidence_, pruned.evidence_)
        return pruned

    pruning_: Pruning

    # ---------------------------------------------------------------------------------- predicting

    @overload
    def predict(self, states: ArrayLike, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def predict(self, states: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...

    def predict(self, states: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Posterior mean of V and, if asked, its standard deviation under the model (paper eqs. 9 and 10).

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        return_std : bool
            The paper's posterior, which takes the residuals of the returns for independent. In a stochastic system they
            are not: `confidence_interval` is the honest one.

        Returns
        -------
        mean : ndarray of shape (m,)
        std : ndarray of shape (m,)
            Only if `return_std`.
        """
        x = self._check_states(states)
        mean = self.posterior_.mean(x)
        return (mean, np.sqrt(self.posterior_.variance(x))) if return_std else mean

    def confidence_interval(self, states: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval that holds V(x) with probability `level`, with the noise correlated as it is in a Markov chain.

        Its variance is what the prior leaves open plus the sampling noise Σ_t δ_t² u_t² of the TD errors δ_t, and
        never less than the posterior's.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        level : float

        Returns
        -------
        lower, upper : ndarray of shape (m,)
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1; got {level}.")
        x = self._check_states(states)
        mean = self.posterior_.mean(x)
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
        from gptd_rl.storage import save

        self._check_fitted()
        return save(self, path)

    def get_params(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change the constructor's arguments."""
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"GPTD has no parameter {name!r}; it has {sorted(self.get_params())}.")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{n}={v!r}" for n, v in self.get_params().items() if v != defaults[n].default]
        return f"GPTD({', '.join(changed)})"

    # ---------------------------------------------------------------------------------- checking

    def _check_parameters(self) -> None:
        if not isinstance(self.kernel, SquaredExponential):
            _check_choice("kernel", self.kernel, KERNELS, "or a SquaredExponential kernel")
        _check_choice("noise", self.noise, NOISES)
        _check_choice("objective", self.objective, OBJECTIVES)
        _check_choice("method", self.method, METHODS)
        _check_choice("variance", self.variance, VARIANCES)
        if not _is_count(self.subset_size):
            raise ValueError(f"subset_size must be a whole number of 1 or more; got {self.subset_size!r}.")
        if self.tolerance is not None and not _is_share(self.tolerance):
            raise ValueError(f"tolerance is a share of the prior variance, from 0 to below 1; got {self.tolerance!r}.")
        if self.thinning is not None and not (self.objective == "thinned" and _is_count(self.thinning)):
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
            raise NotFittedError("this GPTD has not been fitted yet: call fit(data) first.")

    def _check_states(self, states: ArrayLike) -> Array:
        self._check_fitted()
        x = as_states(states, name="states")
        if x.shape[1] != self.n_dims_:
            raise ValueError(
                f"states must have {self.n_dims_} columns, as in fit; got shape {x.shape}. "
                "A single state is [[x1, x2, …]]."
            )
        return x[:, self.inputs_]


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _is_share(value: object) -> bool:
    return isinstance(value, float | int | np.number) and bool(0.0 <= value < 1.0)


def _check_choice(name: str, value: object, allowed: tuple[str, ...], besides: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, allowed))} {besides}".rstrip() + f"; got {value!r}."
        )
