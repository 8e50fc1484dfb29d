"""The estimator of Q that users hold: what each action is worth in each state, with error bars, to choose by."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gptd_rl.data.logged_pairs import logged_pairs
from gptd_rl.data.state_actions import batched_policy, to_state_actions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.action_coverage import warn_of_uncovered_actions
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.greedy_q import GreedyQ
from gptd_rl.estimators.pairs import in_pairs
from gptd_rl.estimators.planning import OFF_POLICY_AMPLIFICATION, Plan
from gptd_rl.estimators.storage import storable
from gptd_rl.inference.sparse import SparseVariance
from gptd_rl.kernels import Kernel
from gptd_rl.sharding.sources import Sources
from gptd_rl.temporal.means import Mean
from gptd_rl.temporal.targets import Noise
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, DataLike, Policy


@storable
class GPTDQ(GreedyQ):
    """Gaussian-process temporal-difference learning of Q, the value of actions, which selects its own kernel.

    Q is to pairs of a state and an action what V is to states, so everything is as in `GPTD`, with the covariance

        k([x, a], [x', a']) = k(x, x') · δ(a, a')        discrete actions
        k([x, a], [x', a']) = k with a metric over [x, a]        continuous actions

    With δ each action has a value function of its own, which shares θ with the others. What ties them together are the
    data: ``r = Q(x, a) − γQ(x', a')``. An action that was never tried keeps its prior: mean 0, and a large deviation.

    Parameters
    ----------
    kernel : {"isotropic", "ard", "factor", "auto"} or Kernel
        As in `GPTD`. A kernel object is over states if actions are discrete, and over [x, a] if they are continuous.
        One that reads discrete actions itself, such as ``k1 + k2 * ActionDelta(n)``, is taken as it is; any other is
        multiplied by δ(a, a').
    n_actions : int, optional
        Number of discrete actions, numbered from 0. By default actions are discrete if they are integers, and there are
        as many as the data show.
    candidates : array-like of shape (n_candidates, ...), optional
        Continuous actions to choose from: for `q_values`, `greedy_actions` and `sample`.
    action_correlation : float
        ρ, from 0 to below 1, instead of the 0 in δ for two discrete actions that differ. With a little of it what is
        learnt of one action is a first guess for the others; with none, K is block diagonal, and cheap.
    noise_share : float
        λ = σ²/v₀, noise variance of bootstrapped targets over prior variance of Q, in a fit of the greedy policy.
    softness : float
        ε of the soft backup (1−ε) max Q + ε mean Q, from 0 to 1, in a fit of the greedy policy with a model.
    mean : float or callable, optional
        Prior mean of Q, as in `GPTD`. A function takes states of shape (n, n_dims) and the actions taken there, in the
        form in which the data hold them, of shape (n, ...). For the greedy policy a number; by default the largest
        value that the rewards allow, so that actions never tried look good; with a model the smallest target.
    noise : {"stochastic", "deterministic"}
        As in `GPTD`: σ²HHᵀ, or σ²I for deterministic systems.
    bootstrap : {"auto", True, False}
        As in `GPTD`; "auto" always bootstraps for another policy than the one that made the data.
    objective, thinning, method, subset_size, tolerance, sparse_variance
        As in `GPTD`, for pairs instead of states: `subset_size` counts pairs.
    noise_variance, noise_floor, n_restarts, max_rank
        As in `GPTD`.
    warm_start, random_state, n_jobs
        As in `GPTD`.

    Attributes
    ----------
    actions_ : DiscreteActions or ContinuousActions
        What the actions are.
    relevances_ : ndarray of shape (n_dims,)
        Diagonal of Ω for the state variables; 0 for those that were pruned.
    action_relevances_ : ndarray of shape (n_action_dims,)
        Diagonal of Ω for continuous actions; empty for discrete ones.
    data_ : Trajectories
        What was fitted, in pairs: states are [x, a]. In the sparse method a sample of it.
    inducing_points_ : ndarray of shape (m, n_inputs + n_columns) or None
        Inducing points of the sparse method, which are pairs.
    kernel_, noise_variance_, thinning_, theta_, parameter_names_, log_marginal_likelihood_, complexity_, data_fit_
        As in `GPTD`.
    comparison_, thinning_trials_, inputs_, method_, exact_
        As in `GPTD`.
    greedy_ : GreedyFit or None
        Result of fitted Q iteration, if the greedy policy was fitted: its `posterior` has `sample_function` for
        Thompson sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from gptd_rl import Trajectories
    >>> rng = np.random.default_rng(0)  # a corridor whose end is terminal: 1 walks on, 0 stays; one step costs 1
    >>> episodes = []
    >>> for _ in range(20):
    ...     actions = rng.permutation([1, 1, 1, 1, 0, 0])
    ...     x = np.concatenate([[0], np.cumsum(actions)])
    ...     end = np.flatnonzero(x == 4)[0]
    ...     episodes.append(
    ...         dict(observations=x[: end + 1], actions=actions[:end], rewards=-np.ones(end), terminated=True)
    ...     )
    >>> data = Trajectories.from_episodes(episodes, gamma=1.0)
    >>> q = GPTDQ().fit(data, policy=lambda x: 1)  # the value of walking on, whatever these walks did
    >>> q.predict([[1.0], [1.0]], actions=[1, 0]).round(1)
    array([-3., -4.])
    >>> q.greedy_actions([[1.0], [2.0]])
    array([1, 1])
    """

    def __init__(
        self,
        kernel: str | Kernel = "ard",
        *,
        n_actions: int | None = None,
        candidates: ArrayLike | None = None,
        action_correlation: float = 0.0,
        noise_share: float = 3e-3,
        softness: float = 0.0,
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
        super().__init__(
            kernel,
            mean=mean,
            noise=noise,
            bootstrap=bootstrap,
            objective=objective,
            thinning=thinning,
            method=method,
            subset_size=subset_size,
            tolerance=tolerance,
            sparse_variance=sparse_variance,
            noise_variance=noise_variance,
            noise_floor=noise_floor,
            n_restarts=n_restarts,
            max_rank=max_rank,
            warm_start=warm_start,
            random_state=random_state,
            n_jobs=n_jobs,
        )
        self.n_actions = n_actions
        self.candidates = candidates
        self.action_correlation = action_correlation
        self.noise_share = noise_share
        self.softness = softness

    # ---------------------------------------------------------------------------------- fitting

    @one_blas_thread()
    def fit(
        self,
        data: DataLike,
        *,
        policy: Policy | GPTDQ | str = None,
        model: DynamicsModel | None = None,
        gamma: float | None = None,
        executor: Any = None,
        progress_bar: bool = False,
    ) -> Self:
        """Select a model for `data` and condition it on them.

        Parameters
        ----------
        data : Trajectories, path, Minari dataset, or an iterable of these
            With actions; otherwise as in `GPTD.fit`.
        policy : object with `action_probabilities` or `predict`, callable, GPTDQ, or "greedy", optional
            The policy to evaluate: anything that `collect` takes; it is asked about states as the data hold them. By
            default the one that made the data. A stochastic policy over discrete actions should have a method
            ``action_probabilities(states)``, of shape (n, n_actions): Q(x', ·) is then averaged over them. One that
            answers differently when it is asked again is asked several times. "greedy" is the policy that is greedy
            with respect to Q itself (see Notes).
        model : DynamicsModel, optional
            For ``policy="greedy"``: a fitted model of the dynamics, which completes every transition with the outcomes
            of the actions not taken.
        gamma, executor, progress_bar
            As in `GPTD.fit`.

        Notes
        -----
        Data that another policy made are used for all they tell: each transition is
        ``r = Q(x, a) − γ Σ_a' π(a'|x') Q(x', a')`` plus a TD error, whoever acted. Instruments make that right in
        stochastic systems, too. Where the data never took π's actions nearby, Q keeps its prior, all values that lead
        there are uncertain, and `fit` warns with the share of such transitions.

        ``bootstrap=False`` learns from runs as long as the data went on as π would have, cut where they did not; that
        is biased where transitions are stochastic (the double-sampling problem of Bellman residuals).

        Recurrent policies cannot be asked about single states, and are not meant here.

        For ``policy="greedy"`` Q is fitted to the bootstrapped targets r + γ max Q(x', ·) by fitted Q iteration, with
        discounts below 1 and discrete actions. The kernel is "ard", the multi-scale kernel with one relevance per input
        selected by the evidence of the targets, or a kernel of states whose free parameters are selected; v₀ and σ²
        follow from the residuals and `noise_share`. `subset_size` counts inducing states, which all actions share.
        ``warm_start=True`` continues from the last Q and kernel. Standard deviations and intervals take the targets as
        given: those of a policy's values come from ``fit(data, policy=q.greedy_actions)``.

        With a model every state has a target for every action, all actions share one matrix, and smoothing errors of V
        cancel from the differences between actions (see `completed`).
        """
        self._check_parameters()
        data = data if isinstance(data, Trajectories) else Sources.of(data, gamma)
        actions = self._find_actions(data)
        if isinstance(policy, str):
            return self._fit_greedy(data, actions, policy, model)
        if model is not None:
            raise ValueError("a model is for policy='greedy': another policy is evaluated from real transitions alone.")
        logged = partial(self._open, gamma=gamma, executor=executor, actions=actions)
        if self._bootstraps(policy):
            engine = logged(in_pairs(data, actions, policy, logged_pairs))
            amplification = 1.0 if policy is None else OFF_POLICY_AMPLIFICATION
            self._fit(engine, Plan(0.0, amplification=amplification), progress_bar=progress_bar)
            warn_of_uncovered_actions(self.kernel_, engine, policy)
            return self
        engine = logged(in_pairs(data, actions, policy, to_state_actions))
        return self._fit(
            engine,
            progress_bar=progress_bar,
            reopen=lambda: logged(in_pairs(data, actions, policy, logged_pairs)),
        )

    def _bootstraps(self, policy: Any) -> bool:
        """Whether Q bootstraps in any case: if asked for, and off-policy, where returns are those of another policy."""
        off_policy = policy is not None and self.objective == "auto" and self.noise == "stochastic"
        return off_policy if self.bootstrap == "auto" else bool(self.bootstrap)  # NumPy's True is one, too

    @one_blas_thread()
    def partial_fit(
        self, data: DataLike, *, policy: Policy | GPTDQ = None, gamma: float | None = None, executor: Any = None
    ) -> Self:
        """Condition the model on further data; θ, and the inducing points of the sparse method, stay as they are.

        The first call fits.

        Parameters
        ----------
        data, policy, gamma, executor
            As in `fit`: whole segments, and the same policy, unless Q is to be a mixture.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(data, policy=policy, gamma=gamma, executor=executor)
        return self._add(self._pairs(data, policy, gamma), gamma, executor)

    def condition(
        self,
        data: DataLike,
        *,
        policy: Policy | GPTDQ = None,
        inducing_points: int | None = None,
        gamma: float | None = None,
        executor: Any = None,
    ) -> Self:
        """Return a copy with the same θ that is conditioned on `data` instead, without model selection.

        Parameters
        ----------
        data, policy, gamma, executor
            As in `fit`.
        inducing_points : int, optional
            As in `GPTD.condition`.

        Returns
        -------
        GPTDQ
        """
        return self._condition(self._pairs(data, policy, gamma), gamma, executor, inducing_points)

    def _pairs(self, data: DataLike, policy: Policy | GPTDQ, gamma: float | None) -> Trajectories | Sources:
        """Pairs in the form in which this fitted model takes them."""
        return in_pairs(data, self._space, policy, logged_pairs if self.bootstrap_ else to_state_actions, gamma)

    # ---------------------------------------------------------------------------------- predicting

    @overload
    def predict(self, states: ArrayLike, actions: ArrayLike, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def predict(self, states: ArrayLike, actions: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...

    @one_blas_thread()
    def predict(self, states: ArrayLike, actions: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Posterior mean of Q and, if asked, its standard deviation under the model.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        actions : array-like of shape (m, ...)
            One for each state.
        return_std : bool
            As in `GPTD.predict`: in a stochastic system `confidence_interval` is the honest one.

        Returns
        -------
        mean : ndarray of shape (m,)
        std : ndarray of shape (m,)
            Only if `return_std`.
        """
        return self._moments(self._check_pairs(states, actions), return_std)

    @one_blas_thread()
    def confidence_interval(self, states: ArrayLike, actions: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Interval that holds Q(x, a) with probability `level`; see `GPTD.confidence_interval`.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        actions : array-like of shape (m, ...)
        level : float

        Returns
        -------
        lower, upper : ndarray of shape (m,)
        """
        return self._interval(self._check_pairs(states, actions), level)

    @overload
    def q_values(self, states: ArrayLike, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def q_values(self, states: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...

    @one_blas_thread()
    def q_values(self, states: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Posterior mean of Q for every action, or for every one of the `candidates`.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        return_std : bool

        Returns
        -------
        mean : ndarray of shape (m, n_actions)
        std : ndarray of shape (m, n_actions)
            Only if `return_std`.
        """
        pairs, shape = self._all_pairs(states)
        answer = self._moments(pairs, return_std)
        if isinstance(answer, tuple):
            return answer[0].reshape(shape), answer[1].reshape(shape)
        return answer.reshape(shape)

    @batched_policy
    def greedy_actions(self, states: ArrayLike) -> NDArray[Any]:
        """The action with the largest posterior mean of Q in each state, the first of several.

        This method is a policy: ``collect(env, q.greedy_actions, …)``, ``fit(data, policy=q.greedy_actions)``.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)

        Returns
        -------
        actions : ndarray of shape (m, ...)
            Numbers of discrete actions; else the best of the `candidates`.
        """
        best = self.q_values(states).argmax(axis=1)
        return self._space.decode(self._choices()[best])

    @one_blas_thread()
    def sample(self, states: ArrayLike, n: int = 1, seed: int | np.random.Generator | None = None) -> Array:
        """Joint posterior samples of Q over all these states and all actions.

        Acting greedily in one sample at a time is Thompson sampling.

        Parameters
        ----------
        states : array-like of shape (m, n_dims)
        n : int
            Number of samples.
        seed : int or Generator, optional

        Returns
        -------
        values : ndarray of shape (n, m, n_actions)
        """
        pairs, shape = self._all_pairs(states)
        values = self._sample(pairs, n, seed, f"{shape[0]} states and {shape[1]} actions")
        return values.reshape(n, *shape)
