"""The estimator of V that users hold: fit it to sampled transitions, predict it anywhere, with error bars."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from gptd_rl.data.actions import NO_ACTIONS
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.base import Estimator
from gptd_rl.estimators.importances import Importances, importances
from gptd_rl.estimators.predictions import StatePredictions
from gptd_rl.estimators.storage import storable
from gptd_rl.inference.cross_validation import left_out_values
from gptd_rl.inference.exact import ExactPosterior
from gptd_rl.temporal.means import terminal_rows
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, DataLike, IntArray


@storable
class GPTD(Estimator, StatePredictions):
    """Gaussian-process temporal-difference learning of V, which selects its own kernel.

    Parameters
    ----------
    kernel : {"isotropic", "ard", "factor", "auto"} or Kernel
        The paper's three variants; "factor" tries every rank from 1 to n_dims − 1, "auto" tries all variants; the
        best objective wins. A kernel object of `gptd_rl.kernels`, composed or not, is where the search starts, and may
        hold some of its parameters fixed.
    mean : float or callable, optional
        Prior mean m of V, 0 by default: V(x) = m(x) + f(x) with a Gaussian process f. A function, such as the critic of
        an agent, takes states of shape (n, n_dims), pruned inputs included, and returns values of shape (n,). At
        terminal states m is 0. The evidence is that of the rewards r − H m.
    noise : {"stochastic", "deterministic"}
        σ²HHᵀ, right for any system, or σ²I, for deterministic systems only: it is biased elsewhere, and its evidence
        does not tell.
    bootstrap : {"auto", True, False}
        Whether V is learnt from single transitions, by instruments: r = V(x) − γV(x') plus a TD error that no function
        of the present state predicts. That needs fewer data than returns where these are noisy, and is not biased
        where segments were cut off. False is the paper: returns. "auto", with ``objective="auto"`` and
        ``noise="stochastic"``, bootstraps if returns are noisy and nothing speaks against the Markov property
        (`gptd_rl.markov_test`); a deterministic system is left to the paper. Where the states are not Markov, whole
        returns are used, and bootstrapped only where segments were cut off. See `gptd_rl.inference.instrumental`.
    objective : {"auto", "marginal_likelihood", "thinned", "loo", "leave_one_episode_out"}
        What model selection optimises. "auto" is the evidence, as in the paper, where the system is deterministic; the
        evidence of instrumented rewards where values bootstrap; else the thinned evidence: neighbouring returns share
        their noise, and the plain evidence mistakes what merely identifies an episode for a relevant input. The other
        objectives are of returns, also if ``bootstrap=True``.
    thinning : int, optional
        τ for ``objective="thinned"``; the effective horizon 1/(1−γ) by default.
    method : {"auto", "exact", "sparse"}
        How the posterior is held: exactly, with all pairs of distinct states, or sparsely, with inducing points. "auto"
        is exact up to some thousand distinct states; `method_` says which it was.
    subset_size : int
        Largest number of inducing points in the sparse method.
    tolerance : float, optional
        Stop adding inducing points when no state has a residual variance above this share of its prior variance; by
        default σ²/v₀ divided by the number of rewards, which is less than they can tell, and 1e-7 at most.
    sparse_variance : {"projected_process", "subset_of_regressors"}
        The sparse posterior variance: the second leaves the residual variance out, and is too small far from the
        inducing points.
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
    n_jobs : int, optional
        Starts of the search that run at the same time, through joblib; −1 for all cores.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel selected; ``kernel_.metric`` has Ω, its eigenvalues and directions.
    bootstrap_ : bool
        Whether V was learnt from single transitions by instruments.
    trace_decay_ : float or None
        λ of the instruments: 0 if V bootstraps at every step, 1 if only where segments were cut off; None as in the
        paper, which takes the values behind them as unknown.
    markov_test_ : MarkovTest or None
        The test that "auto" asked whether to bootstrap; None if it did not have to.
    noise_variance_ : float
        σ²; predictions use ``thinning_ * noise_variance_``. If V bootstraps, the variance of TD errors as the selection
        saw it; predictions use the errors themselves.
    thinning_ : int
        τ; 1 is the paper.
    theta_ : ndarray
        [log v₀, log b, log σ², metric…], named by `parameter_names_`.
    relevances_ : ndarray of shape (n_dims,)
        Diagonal of Ω: how fast V bends along an input, small where it is linear; 0 for inputs that were pruned.
    importances_ : Importances
        Share of the variance of V over visited states that is lost when an input is unknown, with its interval.
    log_marginal_likelihood_, complexity_, data_fit_ : float
        Evidence of all rewards at `theta_`, and its parts ½ log det Q and ½ rᵀQ⁻¹r; of the instrumented rewards if V
        bootstraps.
    comparison_ : Comparison
        The variants tried; ``print(v.comparison_)`` is a table.
    thinning_trials_ : list of Trial
        For ``objective="auto"``: each τ tried, the relevances it selects and its leave-one-episode-out error; only the
        largest τ where that one was enough to decide.
    inputs_ : ndarray
        The state variables in use.
    method_ : {"exact", "sparse"}
        How the posterior is held.
    exact_ : bool
        Whether nothing was approximated: by the sparse method, if the subset holds every distinct state.
    inducing_points_ : ndarray of shape (m, n_inputs) or None
        Inducing points of the sparse method.
    data_ : Trajectories
        What was fitted, with rewards r − H m; in the sparse method a sample of it.
    mean_ : None, float or callable
        The prior mean in use.

    Examples
    --------
    >>> import numpy as np
    >>> from gptd_rl import Trajectories
    >>> steps = np.arange(6.0)  # a corridor: one step costs 1, the end is terminal
    >>> episode = dict(observations=steps[:, None], rewards=-np.ones(5), terminated=True)
    >>> v = GPTD().fit(Trajectories.from_episodes([episode], gamma=1.0))
    >>> v.predict([[2.0]]).round(1)
    array([-3.])
    """

    @one_blas_thread()
    def fit(
        self, data: DataLike, *, gamma: float | None = None, executor: Any = None, progress_bar: bool = False
    ) -> Self:
        """Select a model for `data` and condition it on them.

        Interrupted (Ctrl-C), it conditions the best model found so far on the data, and warns. Interrupted once more,
        or before it found a model, it raises KeyboardInterrupt and leaves the last fit as it was.

        Parameters
        ----------
        data : Trajectories, path, Minari dataset, or an iterable of these
            Transitions sampled under the policy to be evaluated. Several are shards of one whole; paths are of files
            that `Trajectories.save` wrote, or ids of Minari datasets. Shards are loaded when they are needed.
        gamma : float, optional
            Discount, for Minari datasets that do not keep it.
        executor : concurrent.futures.Executor or Dask client, optional
            Maps over the shards in the sparse method; threads of its own by default. The result is the same.
        progress_bar : bool
            Show how the search goes.
        """
        self._check_parameters()
        return self._fit(self._open(data, gamma, executor, NO_ACTIONS), progress_bar=progress_bar)

    @one_blas_thread()
    def partial_fit(self, data: DataLike, *, gamma: float | None = None, executor: Any = None) -> Self:
        """Condition the model on further data; θ, and the inducing points of the sparse method, stay as they are.

        The first call fits. Interrupted later (Ctrl-C), it leaves the model as it was. For single transitions at a time
        there is `gptd_rl.OnlineGPTD`.

        Parameters
        ----------
        data, gamma, executor
            As in `fit`: whole segments.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(data, gamma=gamma, executor=executor)
        return self._add(data, gamma, executor)

    @property
    def importances_(self) -> Importances:
        """Total effects of the inputs on V; computed when they are asked for first."""
        self._check_fitted()
        if self._importances is None or self._importances[0] is not self.posterior_:
            data = self.data_
            rows = data.has_transition if data.has_transition.any() else np.ones(len(data), dtype=bool)
            found = importances(self.predict, data.states[rows], data.segment_of[rows], self.random_state)
            self._importances = self.posterior_, found
        return self._importances[1]

    _importances: tuple[Any, Importances] | None = None  # of a posterior

    def condition(
        self,
        data: DataLike,
        *,
        inducing_points: int | None = None,
        gamma: float | None = None,
        executor: Any = None,
    ) -> Self:
        """Return a copy with the same θ that is conditioned on `data` instead, without model selection.

        The copy has the kernel, noise, thinning, inputs and prior mean of this model, and its inducing points if the
        method is sparse. `comparison_` and `thinning_trials_` are not copied.

        Parameters
        ----------
        data, gamma, executor
            As in `fit`; states must have the same width.
        inducing_points : int, optional
            Choose up to this many inducing points from `data`, at the kernel of this model; the variance of targets
            that they leave out is added to the noise. By default those of this model are kept; an exact model stays
            exact as long as `method` would hold so many data exactly.

        Returns
        -------
        GPTD
        """
        return self._condition(data, gamma, executor, inducing_points)

    @one_blas_thread()
    def predict_left_out(self, data: Trajectories, fold: IntArray, *, n_jobs: int | None = None) -> Array:
        """Values of the states of `data`, each learnt without the fold of its segment; θ stays as it is.

        The sparse method takes one pass, with its inducing points as they are; the exact one conditions again for each
        fold.

        Parameters
        ----------
        data : Trajectories
        fold : ndarray of shape (n_segments,)
            The fold of each segment: at least two.
        n_jobs : int, optional
            Folds at the same time, through joblib.

        Returns
        -------
        values : ndarray of shape (n_states,)
            0 at terminal states.
        """
        self._check_fitted()
        names = np.unique(fold)
        if len(fold) != data.n_segments or len(names) < 2:
            raise ValueError(f"fold must name one of two folds or more for each of {data.n_segments} segments.")
        if isinstance(self.posterior_, ExactPosterior):
            values = np.empty(len(data))
            for name in names:
                out = np.flatnonzero(fold == name)
                test = data[out]
                found = self.condition(data[np.flatnonzero(fold != name)]).predict(test.states)
                values[np.isin(data.segment_of, out)] = found
        else:
            x = self._check_states(data.states)
            rest = self._subtract_mean(data, self.mean_, None, self.actions_).take_inputs(self._columns)
            values = self._prior_mean(x) + left_out_values(self.posterior_, rest, fold, n_jobs)
        values[terminal_rows(data)] = 0.0
        return values
