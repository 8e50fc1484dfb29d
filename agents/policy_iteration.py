"""Approximate policy iteration: collect, fit Q of the greedy policy to all data, choose a policy, act."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.agents import files
from gptd_rl.agents.base import BaseAgent
from gptd_rl.agents.history import Iteration
from gptd_rl.agents.planning import DEFAULT_TIME_LIMIT, Planning
from gptd_rl.agents.policy_pool import NewestQ, PolicyRecord
from gptd_rl.agents.replay import Experience
from gptd_rl.agents.runner import EpisodeRunner
from gptd_rl.agents.trial import simulated_returns
from gptd_rl.agents.trial_pool import TrialPool
from gptd_rl.checks import as_count
from gptd_rl.data.spaces import flat_bounds, has_one_hot
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.greedy import GreedyFit, default_kernel
from gptd_rl.exceptions import LearningError
from gptd_rl.progress import step_bar
from gptd_rl.rollouts.actions import ActionSet
from gptd_rl.rollouts.environments import open_adapter
from gptd_rl.sb3.logging import Callback, as_callback
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import Array, EnvLike

FIRST_MODEL = 200  # transitions before the first model
# The model is checked by as many new transitions at least. It is trusted unless each of the last checks shows a larger
# error of r + γV(x'), in standard deviations of V: once is what a first model may do.
MIN_CHECKED, N_CHECKS, MAX_ERROR = 20, 2, 0.3
# Transitions after which the agent explores without the model if it has found nothing to plan for: a smooth model
# takes what it has not tried for what it has tried nearby, and a door in a wall is never looked for.
MAX_UNIFORM = 1000
# As long as every reward was 0, this is the value of what was never tried; any positive number would do.
UNKNOWN_VALUE = 1.0
# While nothing is to be gained, plans are made so many times as often: what was new is not so once it is reached.
OFTEN = 5


class PolicyIteration(BaseAgent):
    """Approximate policy iteration with a Gaussian-process Q-function; no parameter needs tuning.

    Parameters
    ----------
    env : str, gymnasium.Env, gymnasium.vector.VectorEnv, Stable-Baselines3 VecEnv, or None
        Where to learn. None is for learning from data alone.
    gamma : float
        Discount, below 1.
    seed : int or None
        Seeds the environment and every choice of the agent: the same seed gives the same agent. None draws one.
    candidates : array-like of shape (n_candidates, ...), optional
        Actions to choose from, where the action space is continuous.
    model : {"gp", None}
        "gp": a Gaussian-process model of the dynamics completes every visited state with the actions not taken, and
        policies are tried in it before one is served. Where the model turns out to be wrong, or observations are
        categories (Discrete, MultiDiscrete), the agent relies on real transitions alone, as it always does with None.
    planning : Planning, optional
        Settings of planning in the model.
    action_correlation, noise_share, subset_size
        As in `GPTDQ`, for Q from real transitions alone.
    refit_every : int, optional
        Transitions between two improvements; a share of all transitions, once that is more.
    reselect_kernel : bool
        Select relevances again whenever the data have doubled. False keeps those that were selected first.
    tensorboard_log : str, optional
        Folder for TensorBoard.
    verbose : int
        1 prints the log.

    Attributes
    ----------
    estimator : GPTDQ
        Q of the newest policy, fitted to all data.
    dynamics_ : DynamicsModel or None
        The model of the dynamics, fitted to all data.
    model_errors_ : list of ModelErrors
        One-step errors of the model in new transitions, before it was fitted to them.
    served_ : Served
        The policy that `predict` follows, and why.
    history : list of Iteration
        One entry for each improvement.
    episodes : list of (int, float)
        Number of transitions at the end of each episode, and its return.
    num_timesteps : int
        Transitions made by `learn`.

    Examples
    --------
    >>> agent = PolicyIteration("gptd_rl/LatentGridworld-v0", seed=0).learn(total_timesteps=400)
    >>> agent.predict([2.0, 5.0])[0], agent.predict([9.0, 5.0])[0]  # the goal is at x = 6: right, left
    (array(1), array(0))
    """

    def __init__(
        self,
        env: EnvLike | None = None,
        *,
        gamma: float = 0.99,
        seed: int | None = 0,
        candidates: ArrayLike | None = None,
        model: str | None = "gp",
        planning: Planning | None = None,
        action_correlation: float = 0.9,
        noise_share: float = 3e-3,
        subset_size: int = 300,
        refit_every: int | None = None,
        reselect_kernel: bool = True,
        tensorboard_log: str | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            gamma=gamma,
            seed=seed,
            candidates=candidates,
            action_correlation=action_correlation,
            noise_share=noise_share,
            subset_size=subset_size,
            model=model,
            planning=planning or Planning(),
            tensorboard_log=tensorboard_log,
            verbose=verbose,
        )
        default = 100 if model is None else 125
        self.refit_every = default if refit_every is None else as_count(refit_every, "refit_every")
        self.reselect_kernel = self._planner.reselect = reselect_kernel
        self.set_env(env)

    # ---------------------------------------------------------------------------------- learning

    @one_blas_thread()
    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int = 1,
        tb_log_name: str = "PolicyIteration",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Collect and improve in turns; earlier data are kept.

        Parameters
        ----------
        total_timesteps : int
            Transitions to make.
        callback : Stable-Baselines3 callback, list of them, or function, optional
        log_interval : int
            Improvements between two lines of the log.
        tb_log_name : str
            Name of the run in TensorBoard.
        reset_num_timesteps : bool
            Count from 0.
        progress_bar : bool
            Show progress.

        Raises
        ------
        LearningError
            If the environment fails or returns nonsense. The agent has then learnt from all earlier transitions.
        """
        env, total_timesteps = self._require_env("learn"), as_count(total_timesteps, "total_timesteps")
        self._setup_logger(callback is not None, tb_log_name, reset_num_timesteps)
        self.num_timesteps = 0 if reset_num_timesteps else self.num_timesteps
        goal, listener = self.num_timesteps + total_timesteps, as_callback(callback, self)
        with open_adapter(env) as adapter, step_bar(progress_bar, "learning", total_timesteps) as advance:
            listener.on_training_start(dict(total_timesteps=goal, tb_log_name=tb_log_name, self=self), {})
            listener.on_rollout_start()
            self._set_time_limit(adapter.spec)
            runner = EpisodeRunner(adapter, self._action_set, self.pool, self.gamma, self._rng)
            try:
                self._collect(runner, goal, listener, log_interval, advance)
            except LearningError as error:
                where = f"(step {self.num_timesteps}). What was learnt until then is kept, and can be saved."
                raise LearningError(f"{error} {where}") from error.__cause__
            finally:
                if self._buffer is not None and self._n_fitted < len(self._buffer):
                    self._improve()
        listener.on_training_end()
        if not self.episodes:
            warnings.warn(
                f"no episode ended within {self.num_timesteps} steps, so no return could be measured: predict follows "
                "the newest policy. Give the environment a time limit (gymnasium.wrappers.TimeLimit).",
                stacklevel=3,
            )
        return self

    @one_blas_thread()
    def learn_offline(self, data: Trajectories) -> Self:
        """Improve the policy from data of any policy, without an environment.

        Parameters
        ----------
        data : Trajectories
            With actions as the environment takes them; its discounts are not used.
        """
        if not isinstance(data, Trajectories):
            raise TypeError(f"expected Trajectories to learn from; got {type(data).__name__}.")
        if data.actions is None:
            raise ValueError("the data have no actions: Q needs to know what was done.")
        taken = data.has_transition
        actions = self._actions or ActionSet.from_data(data.actions[taken], self.candidates)
        indices = np.zeros(len(data), dtype=np.int64)
        indices[taken] = actions.indices(data.actions[taken])
        self._remember(Experience.from_trajectories(data, indices, self._n_streams))
        self._actions = actions
        self._n_streams += 1
        self._improve(select=True)
        return self

    def _collect(
        self, runner: EpisodeRunner, goal: int, listener: Callback, log_interval: int, advance: Callable[[int], None]
    ) -> None:
        """Step through the environments until `goal`, improving on the way."""
        runner.reset(self._env_seed())
        first_stream = self._n_streams
        self._n_streams += len(runner.running)
        while self.num_timesteps < goal:
            step, new, returns = runner.step(first_stream)
            self._remember(new)
            self.num_timesteps += len(new)
            self.episodes += [(self.num_timesteps, total) for total in returns]
            advance(self.num_timesteps)
            listener.update_locals(dict(dones=step.terminated | step.truncated, rewards=step.rewards, self=self))
            if not listener.on_step():
                return
            if self._is_due():
                listener.on_rollout_end()
                self._improve()
                if self._logger is not None and len(self.history) % log_interval == 0:
                    self.history[-1].log(self._logger, self.num_timesteps)
                runner.switch_policies()
                listener.on_rollout_start()

    def _is_due(self) -> bool:
        """Whether it is time for an improvement."""
        assert self._buffer is not None
        n = len(self._buffer)
        if self._plans_in_model:
            every = max(self.refit_every, n // 10) // (1 if self._planner.has_gain else OFTEN)
            return n >= FIRST_MODEL and n - self._n_fitted >= every
        every = self.refit_every if n >= self.refit_every else max(1, self.refit_every // 4)
        return n - self._n_fitted >= max(every, n // 20)

    def _set_time_limit(self, spec: Any) -> None:
        """Steps of simulated episodes: the environment's limit, or the longest episode so far."""
        limit = None if spec is None else spec.max_episode_steps
        self._planner.time_limit = int(limit or DEFAULT_TIME_LIMIT)

    def _improve(self, select: bool = False) -> None:
        """Improve the policy with all data; `select` demands the selection of a kernel."""
        if self._plans_in_model and self._improve_in_model():
            return
        self._improve_from_transitions(select)

    @property
    def _plans_in_model(self) -> bool:
        """Whether there is a model at all: Gaussian noise around a mean does not say which category comes next."""
        return self.model == "gp" and (self.observation_space is None or not has_one_hot(self.observation_space))

    def _improve_in_model(self) -> bool:
        """Fit the model, plan and try policies in it; False if the model is not to be trusted."""
        assert self._buffer is not None and isinstance(self.pool, TrialPool)
        experience, pool, n_actions = self._buffer.experience, self.pool, self._action_set.n
        data = experience.trajectories(self.gamma, np.arange(n_actions))
        self._check_model(experience)
        self._fit_model(data)
        model, planner, starts = self.dynamics_, self._planner, experience.starts
        assert model is not None
        found_nothing = len(experience) >= MAX_UNIFORM and experience.is_uniform
        if found_nothing or not self._trusts_model():
            pool.distrust()
            return False
        pool.trusts_model = True
        explorer = None if pool.newest_q is None else pool.newest_q.sample
        known = [record for record in pool.records if record.q is not None]
        plan = planner.improve(model, starts, known, explorer, self._rng)
        for record in plan.candidates:
            record.n_transitions = record.n_transitions or len(experience)
        before = getattr(self.estimator, "greedy_", None)
        self.estimator.set_params(n_actions=n_actions)
        self.estimator.adopt(plan.fit, data)
        if plan.fit.selection is not None:
            self._selection, self._n_selected = plan.fit.selection, len(experience)
        self._n_fitted = len(experience)
        targets = plan.fit.posterior.targets
        pool.newest_q = NewestQ.of(plan.fit.posterior.mean_function, plan.explorer, targets)
        pool.has_plan = planner.has_gain and bool(np.ptp(targets) > 0.0)

        pool.is_noisy = bool(model.noise_.any())
        pool.judge(plan.candidates, self.planning.n_kept)
        pool.simulate = self._simulated_return
        self._record(experience, plan.fit, before)
        return True

    def _simulated_return(self, record: PolicyRecord, start: Array) -> float:
        """Return of a policy in the model, from one state."""
        assert self.dynamics_ is not None and record.q is not None
        limit = self._planner.time_limit
        returns, _ = simulated_returns(self.dynamics_, [record.q], [start[None]], limit, self._rng)
        return float(returns[0][0])

    def _check_model(self, experience: Experience) -> None:
        """One-step errors of the model in the transitions since its last fit."""
        if self.dynamics_ is None or len(experience) - self._n_fitted < MIN_CHECKED:
            return
        new = experience[slice(self._n_fitted, None)].trajectories(self.gamma, np.arange(self._action_set.n))
        newest = self.pool.newest_q
        self.model_errors_.append(self.dynamics_.errors(new, None if newest is None else newest.value))

    def _fit_model(self, data: Trajectories) -> None:
        if self.dynamics_ is None:
            self.dynamics_ = DynamicsModel(n_actions=self._action_set.n, bounds=self._state_bounds(), warm_start=True)
        self.dynamics_.set_params(random_state=int(self._rng.integers(2**31)))
        self.dynamics_.fit(data)

    def _state_bounds(self) -> tuple[Array, Array] | None:
        return None if self.observation_space is None else flat_bounds(self.observation_space)

    def _trusts_model(self) -> bool:
        """Whether one-step errors matter little to values, and trials agree with measured returns."""
        assert isinstance(self.pool, TrialPool)
        recent = [errors.value for errors in self.model_errors_[-N_CHECKS:]]
        is_accurate = len(recent) < N_CHECKS or min(recent) <= MAX_ERROR
        return is_accurate and not self.pool.trial_errors.is_uninformative

    def _improve_from_transitions(self, select: bool) -> None:
        """Fit Q of the greedy policy to all transitions; select a kernel if that is due, or demanded by `select`."""
        assert self._buffer is not None
        experience, n_actions = self._buffer.experience, self._action_set.n
        n, before = len(experience), getattr(self.estimator, "greedy_", None)
        doubled = n >= 2 * max(self._n_selected, self.refit_every)
        select = select or (doubled and (self.reselect_kernel or self._selection is None))
        kernel = default_kernel(experience.states) if self._selection is None else self._selection.kernel
        kernel = kernel if select else kernel.fix(*kernel.parameter_names)
        seed = int(self._rng.integers(2**31))
        mean = None if experience.rewards.any() else UNKNOWN_VALUE
        self.estimator.set_params(kernel=kernel, n_actions=n_actions, random_state=seed, mean=mean)
        self.estimator.fit(experience.trajectories(self.gamma, np.arange(n_actions)), policy="greedy")
        fit = self.estimator.greedy_
        assert fit is not None
        if fit.selection is not None:
            self._selection, self._n_selected = fit.selection, n
        posterior, self._n_fitted = fit.posterior, n
        self.pool.newest_q = NewestQ.of(
            posterior.mean_function, posterior.sample_function(self._rng), posterior.targets
        )
        self._record(experience, fit, before)

    def _record(self, experience: Experience, fit: GreedyFit, before: GreedyFit | None) -> None:
        """Append to the history."""
        returns = [total for _, total in self.episodes]
        of_model = {}
        if isinstance(self.pool, TrialPool):
            of_model = dict(
                trial_return=self.pool.incumbent.trial_return,
                model_error=self.model_errors_[-1].value if self.model_errors_ else np.nan,
                exploration=self.pool.take_exploration(),
            )
        self.history.append(
            Iteration.of(experience.states, fit, before, self._selection, returns, self.incumbent_returns, **of_model)
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the agent with its data to one file of arrays and JSON, without code."""
        return files.save(PolicyIteration, self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: EnvLike | None = None) -> Self:
        """Read a file of `save`; with an environment the agent can continue to learn."""
        return files.load(cls, path, env)
