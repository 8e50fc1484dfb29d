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
from gptd_rl.agents.policy_pool import NewestQ
from gptd_rl.agents.replay import Experience
from gptd_rl.agents.runner import EpisodeRunner
from gptd_rl.checks import as_count
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.greedy import default_kernel
from gptd_rl.exceptions import LearningError
from gptd_rl.progress import step_bar
from gptd_rl.rollouts.actions import ActionSet
from gptd_rl.rollouts.environments import open_adapter
from gptd_rl.sb3.logging import Callback, as_callback
from gptd_rl.threads import one_blas_thread
from gptd_rl.types import EnvLike


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
    action_correlation, noise_share, subset_size
        As in `GPTDQ`.
    refit_every : int
        Transitions between two improvements; a twentieth of all transitions, once that is more.
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
        action_correlation: float = 0.9,
        noise_share: float = 3e-3,
        subset_size: int = 300,
        refit_every: int = 100,
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
            tensorboard_log=tensorboard_log,
            verbose=verbose,
        )
        self.refit_every = as_count(refit_every, "refit_every")
        self.reselect_kernel = reselect_kernel
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
        every = self.refit_every if n >= self.refit_every else max(1, self.refit_every // 4)
        return n - self._n_fitted >= max(every, n // 20)

    def _improve(self, select: bool = False) -> None:
        """Fit Q of the greedy policy to all data; select a kernel if that is due, or demanded by `select`."""
        assert self._buffer is not None
        experience, n_actions = self._buffer.experience, self._action_set.n
        n, before = len(experience), getattr(self.estimator, "greedy_", None)
        doubled = n >= 2 * max(self._n_selected, self.refit_every)
        select = select or (doubled and (self.reselect_kernel or self._selection is None))
        kernel = default_kernel(experience.states) if self._selection is None else self._selection.kernel
        kernel = kernel if select else kernel.fix(*kernel.parameter_names)
        seed = int(self._rng.integers(2**31))
        self.estimator.set_params(kernel=kernel, n_actions=n_actions, random_state=seed)
        self.estimator.fit(experience.trajectories(self.gamma, np.arange(n_actions)), policy="greedy")
        fit = self.estimator.greedy_
        assert fit is not None
        if fit.selection is not None:
            self._selection, self._n_selected = fit.selection, n
        posterior, self._n_fitted = fit.posterior, n
        self.pool.newest_q = NewestQ.of(
            posterior.mean_function, posterior.sample_function(self._rng), posterior.targets
        )
        returns = [total for _, total in self.episodes]
        self.history.append(
            Iteration.of(experience.states, fit, before, self._selection, returns, self.incumbent_returns)
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the agent with its data to one file of arrays and JSON, without code."""
        return files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: EnvLike | None = None) -> Self:
        """Read a file of `save`; with an environment the agent can continue to learn."""
        return files.load(cls, path, env)
