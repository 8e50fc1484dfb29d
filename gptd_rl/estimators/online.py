"""The online estimator of V: the sparse posterior after every single transition, with a kernel that is given."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.checks import (
    as_count,
    as_floats,
    as_indices,
    as_numbers,
    as_states,
    check_finite,
    is_count,
    is_positive,
    is_within,
    one_line,
)
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.checks import NOISES
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.estimators.params import Parameters
from gptd_rl.estimators.predictions import StatePredictions
from gptd_rl.estimators.storage import SaveAndLoad, storable
from gptd_rl.exceptions import NotFittedError
from gptd_rl.inference.growing import GrowingPosterior
from gptd_rl.inference.online import OnlinePosterior
from gptd_rl.inference.online_instrumental import OnlineInstrumentalPosterior
from gptd_rl.kernels import Kernel, registry
from gptd_rl.temporal.targets import Noise
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, IntArray


class Transition(NamedTuple):
    """One step of the policy; if both flags are set, termination wins."""

    state: ArrayLike
    reward: float
    next_state: ArrayLike
    discount: float
    terminated: bool = False
    truncated: bool = False


@storable
class OnlineGPTD(StatePredictions, Parameters, SaveAndLoad):
    """Gaussian-process temporal-difference learning of V, one transition at a time, with a kernel that is given.

    Parameters
    ----------
    kernel : Kernel
        The prior covariance of V; `from_batch` takes it from a fitted model.
    noise_variance : float
        σ², of the noise σ²HHᵀ or σ²I. With ``bootstrap=True`` the variance of TD errors is estimated, and this is taken
        for it only as long as all rewards are 0.
    noise : {"stochastic", "deterministic"}
        As in `GPTD`; ``bootstrap=True`` is for stochastic systems.
    bootstrap : bool
        Whether values come from single transitions by instruments, recursive LSTD with the regulariser and intervals of
        ``GPTD(bootstrap=True)``, instead of from returns. An update costs O(m²); the first mean after an update O(m³),
        the first standard deviation or interval O(n·m²) with a history and O(m³) without.
    tolerance : float
        ε: a state enters the dictionary if its residual variance exceeds this share of its prior variance.
    max_size : int, optional
        Size at which the dictionary stops growing.
    keep_history : bool
        Whether to keep all n states seen, in O(n·n_dims) memory. A state that enters the dictionary is then compared
        with each of them, in O(n·m) time, and the posterior is exactly the batch one. Without them memory is O(m²), and
        the posterior is approximate to ε: of the variance of each earlier state, that much at most goes unused. With
        ``bootstrap=True``, intervals then take TD errors from weights known before each transition.
    forgetting : float
        λ: the weight of all data is multiplied by this before each new row, for a policy that changes. The prior is not
        forgotten; below 1, each update therefore costs O(m³), unless ``bootstrap=True`` with a history.

    Attributes
    ----------
    dictionary_ : ndarray of shape (m, n_dims)
        Inducing points.
    n_transitions_ : int
        Transitions taken in.
    n_dims_ : int
        Width of a state.

    Examples
    --------
    >>> from gptd_rl import Isotropic
    >>> from gptd_rl.kernels import paper_kernel
    >>> v = OnlineGPTD(paper_kernel(Isotropic(0.1, n_dims=1), signal_variance=10.0), noise_variance=1e-3)
    >>> for x in range(5):  # a corridor: one step costs 1, the end is terminal
    ...     v = v.update(Transition([x], -1.0, [x + 1], discount=1.0, terminated=x == 4))
    >>> v.predict([[2.0]]).round(1)
    array([-3.])
    """

    def __init__(
        self,
        kernel: Kernel,
        noise_variance: float,
        *,
        noise: Noise = "stochastic",
        bootstrap: bool = False,
        tolerance: float = 1e-3,
        max_size: int | None = None,
        keep_history: bool = True,
        forgetting: float = 1.0,
    ) -> None:
        _expect(isinstance(kernel, Kernel), "kernel must be a kernel object", type(kernel), TypeError)
        _expect(is_positive(noise_variance), "noise_variance must be positive and finite", noise_variance)
        _expect(is_within(noise_variance, 1e-100, 1e100), "noise_variance must be within 1e±100", noise_variance)
        _expect(noise in NOISES, f"noise must be one of {', '.join(map(repr, NOISES))}", noise)
        _expect(isinstance(bootstrap, bool | np.bool_), "bootstrap must be True or False", bootstrap)
        whose = "bootstrap=True estimates the noise of a stochastic system: leave noise='stochastic'"
        _expect(not bootstrap or noise == "stochastic", whose, noise)
        _expect(is_within(tolerance, 0.0, 1.0), "tolerance is a share of v₀ and must lie between 0 and 1", tolerance)
        _expect(
            is_within(forgetting, 0.0, np.nextafter(1.0, 2.0)),
            "forgetting must lie in (0, 1], where 1 forgets nothing",
            forgetting,
        )
        _expect(max_size is None or is_count(max_size), "max_size must be 1 or more, or None for no limit", max_size)
        _expect(kernel.n_dims is not None, "the kernel must read the state", kernel)
        self.kernel, self.noise_variance = kernel, noise_variance
        self.noise, self.bootstrap = noise, bootstrap
        self.tolerance, self.max_size = tolerance, max_size
        self.keep_history, self.forgetting = keep_history, forgetting
        assert kernel.n_dims is not None
        self._begin(np.arange(kernel.n_dims), kernel.n_dims)

    def set_params(self, **params: Any) -> Self:
        """Change the constructor's arguments; learning begins anew, since what was learnt depends on them."""
        self._check_names(params)
        new = type(self)(**self.get_params(deep=False) | params)  # refuses what makes no sense
        super().set_params(**params)
        if params:
            same_width = len(self._columns) == len(new._columns)
            self._begin(*((self._columns, self.n_dims_) if same_width else (new._columns, new.n_dims_)))
        return self

    def _begin(self, inputs: IntArray, n_dims: int) -> None:
        """Begin with no data, of which only the columns `inputs` are used."""
        self._columns, self.n_dims_, self.n_transitions_ = inputs, n_dims, 0
        self.n_features_in_ = n_dims
        self._chosen: list[Array] = []
        self._running_state: Array | None = None
        limits = self.tolerance, self.max_size, self.keep_history, self.forgetting
        self.posterior_: GrowingPosterior
        if self.bootstrap:
            self.posterior_ = OnlineInstrumentalPosterior(self.kernel, self.noise_variance, *limits)
        else:
            self.posterior_ = OnlinePosterior(self.kernel, self.noise_variance, self.noise, *limits)

    @classmethod
    def from_batch(cls, v: GPTD, *, data: Trajectories | None = None, **options: Any) -> Self:
        """The paper's hybrid: model selection on a batch, updates online.

        Parameters
        ----------
        v : GPTD
            A fitted model, of which the kernel, the noise and the inputs in use are taken. If it bootstraps, so does
            the new one, unless `bootstrap` says otherwise.
        data : Trajectories, optional
            Taken in first: what `v` was fitted to, to go on from there. Without, online learning starts from the prior.
        **options
            `bootstrap`, `tolerance`, `max_size`, `keep_history` and `forgetting`.
        """
        _expect(isinstance(v, GPTD), "from_batch expects a fitted GPTD", type(v), TypeError)
        if not hasattr(v, "kernel_"):
            raise NotFittedError("this GPTD has not been fitted yet: call fit(data) first.")
        _expect(v.mean_ is None or v.mean_ == 0, "OnlineGPTD has no prior mean", v.mean_)
        options.setdefault("bootstrap", v.bootstrap_)
        options.setdefault("noise", "stochastic" if options["bootstrap"] else v.noise)
        new = cls(v.kernel_, v.thinning_ * v.noise_variance_, **options)
        new._begin(v.inputs_, v.n_dims_)
        return new if data is None else new.update(data)

    @property
    def dictionary_(self) -> Array:
        """Inducing points, of shape (m, n_dims)."""
        return np.array(self._chosen).reshape(-1, self.n_dims_)

    def _describe_fit(self) -> str:
        return f"{self.n_transitions_} transitions, {len(self._chosen)} states in the dictionary"

    # ---------------------------------------------------------------------------------- learning

    @one_blas_thread()
    def update(self, data: Transition | Trajectories) -> Self:
        """Take in one transition, or whole segments; input that is refused changes nothing.

        Interrupted (Ctrl-C) within segments, it keeps what it had learnt before them.

        Parameters
        ----------
        data : Transition or Trajectories
            A transition goes on with the running segment if it starts where that one stands. If not, the running
            segment counts as truncated and a new one begins; so it does with each segment of `Trajectories`.
        """
        if isinstance(data, Trajectories):
            self._check_width(data.n_dims)
            return self._become(self._copy()._update_segments(data))
        _expect(isinstance(data, Transition), "update expects a Transition or Trajectories", type(data), TypeError)
        state = _finite("state", data.state, (self.n_dims_,))
        reward = float(_finite("reward", data.reward, ()))
        next_state = _finite("next_state", data.next_state, (self.n_dims_,))
        discount = float(_finite("discount", data.discount, ()))
        _expect(0.0 <= discount <= 1.0, "discount must lie in [0, 1]", discount)
        if self._running_state is None or not np.array_equal(self._running_state, state):
            self._start(state)
        self._step(reward, discount, next_state)
        if data.terminated or data.truncated:
            self._stop(data.terminated)
        return self

    def _copy(self) -> Self:
        """A copy that learns by itself: an interrupt in the middle of many updates leaves this one as it was."""
        new = copy.copy(self)
        new.posterior_, new._chosen = copy.deepcopy(self.posterior_), list(self._chosen)
        return new

    def _update_segments(self, data: Trajectories) -> Self:
        for first, last, terminated in zip(data.starts, data.last, data.terminated, strict=True):
            self._start(data.states[first])
            for i in range(first, last):
                self._step(data.rewards[i], data.discounts[i], data.states[i + 1])
            self._stop(terminated, data.rewards[last])
        return self

    def _start(self, state: Array) -> None:
        self.posterior_.start(state[self._columns])
        self._note(state)

    def _step(self, reward: float, discount: float, next_state: Array) -> None:
        self.posterior_.step(reward, discount, next_state[self._columns])
        self._note(next_state)
        self.n_transitions_ += 1

    def _stop(self, terminated: bool, reward: float = 0.0) -> None:
        self.posterior_.stop(terminated, reward)
        self._running_state = None

    def _note(self, state: Array) -> None:
        """Keep the state of the running segment, and with all inputs if it joined the dictionary."""
        self._running_state = state.copy()
        if len(self.posterior_.inducing_points) > len(self._chosen):
            self._chosen.append(state.copy())

    # ---------------------------------------------------------------------------------- checks

    def _check_states(self, states: ArrayLike) -> Array:
        if not self._chosen:
            raise NotFittedError("this OnlineGPTD has seen no transition yet: call update(…) first.")
        x = as_states(states, name="states")
        self._check_width(x.shape[1])
        return x

    def _check_width(self, width: int) -> None:
        if width != self.n_dims_:
            raise ValueError(f"states must have {self.n_dims_} columns; got {width}. A single state is [[x1, x2, …]].")

    # ---------------------------------------------------------------------------------- files

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The model as plain data and arrays, for `storage`."""
        params = self.get_params(deep=False) | dict(kernel=registry.describe(self.kernel))
        learnt, arrays = self.posterior_.to_arrays()
        header = dict(learnt, params=params, n_dims=self.n_dims_, n_transitions=self.n_transitions_)
        arrays |= dict(theta=self.kernel.theta, inputs=self._columns, dictionary=self.dictionary_)
        if self._running_state is not None:
            arrays["running_state"] = self._running_state
        return header, arrays

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The model again."""
        params, n_dims = header["params"], as_count(header["n_dims"], "n_dims")
        kernel, theta = registry.build(params["kernel"]), arrays["theta"]
        if np.shape(theta) != kernel.theta.shape or np.isnan(theta).any():
            raise ValueError(f"theta must be {len(kernel.theta)} numbers")
        if not np.array_equal(theta, kernel.theta):  # logarithms and back would round
            kernel = kernel.with_theta(theta)
        new = cls(**dict(params, kernel=kernel))
        inputs, dictionary = arrays["inputs"], as_numbers(arrays["dictionary"], (None, n_dims), "dictionary")
        if len(inputs) != kernel.n_dims:
            raise ValueError(f"the kernel has {kernel.n_dims} dimensions, and there are {len(inputs)} inputs")
        new._begin(as_indices(inputs, n_dims, "inputs"), n_dims)
        new.n_transitions_, new._chosen = as_count(header["n_transitions"], "n_transitions", 0), list(dictionary)
        if "running_state" in arrays:
            new._running_state = as_numbers(arrays["running_state"], (n_dims,), "running_state")
        running = None if new._running_state is None else new._running_state[new._columns]
        new.posterior_.restore(dictionary[:, new._columns], running, header, arrays)
        return new


def _finite(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """A copy of `value` as floats of this shape; one number may have any shape."""
    array = as_floats(value, name, "made of numbers")
    if array.size == 1 == np.prod(shape):
        array = array.reshape(shape)
    _expect(array.shape == shape, f"{name} must have shape {shape}, flattened if need be", array.shape)
    bad = array[~np.isfinite(array)]
    if bad.size:
        raise ValueError(f"{name} must be finite; it holds {bad[0]}. Leave this transition out.")
    check_finite(array, name)
    return array


def _expect(holds: bool, what: str, came: object, error: type[Exception] = ValueError) -> None:
    if not holds:
        raise error(f"{what}; got {one_line(repr(came))}.")
