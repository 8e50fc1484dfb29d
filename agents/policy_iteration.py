"""The agent: collect with the policy at hand, evaluate and improve it from all that was ever seen, and again."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.spaces import flatdim
from numpy.typing import ArrayLike, NDArray

from gptd_rl.agents import files as agent_files
from gptd_rl.agents.episodes import Run
from gptd_rl.agents.fitted_q import Critic, Design, Fit, QFunction, fit_q
from gptd_rl.agents.history import Iteration, plot_history
from gptd_rl.agents.multiscale import MultiScale
from gptd_rl.agents.policy_pool import Episode, Trial, Trials
from gptd_rl.agents.relevance import Selection, select_relevances, spread
from gptd_rl.agents.replay import Memory, Transitions
from gptd_rl.checks import as_count
from gptd_rl.data.spaces import as_rows
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.exceptions import LearningError
from gptd_rl.rollouts.actions import ActionSet
from gptd_rl.rollouts.collect import collect
from gptd_rl.rollouts.environments import EnvAdapter, Step, open_adapter
from gptd_rl.sb3.logging import Callback, Progress, as_callback, make_logger
from gptd_rl.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECENT = 10  # episodes whose mean return is logged
WORD = 0.1  # how far an episode may fall short of what Q promised, in standard deviations of the values


class PolicyIteration:
    """Approximate policy iteration with a Gaussian-process Q-function; nothing needs tuning.

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
    action_correlation : float
        ρ, from 0 to below 1: how alike different actions are before they were tried. 0 is the paper's δ.
    noise_share : float
        λ = σ²/v₀, noise of the targets of Q over its variance.
    subset_size : int
        Largest number of states that stand for all.
    refit_every : int
        Transitions between two improvements; a twentieth of all transitions, once that is more.
    reselect : bool
        Select relevances again whenever the data have doubled. False keeps those that `learn_from` selected from a
        batch, and updates only Q online.
    tensorboard_log : str, optional
        Folder for TensorBoard.
    verbose : int
        1 prints the log.

    Attributes
    ----------
    history : list of Iteration
        One entry for each improvement.
    episodes : list of (int, float)
        Transitions made when each episode ended, and its return.
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
        env: Any = None,
        *,
        gamma: float = 0.99,
        seed: int | None = 0,
        candidates: ArrayLike | None = None,
        action_correlation: float = 0.9,
        noise_share: float = 3e-3,
        subset_size: int = 300,
        refit_every: int = 100,
        reselect: bool = True,
        tensorboard_log: str | None = None,
        verbose: int = 0,
    ) -> None:
        if not 0.0 <= gamma < 1.0:
            raise ValueError(f"gamma must lie in [0, 1); got {gamma}. Values are sums without end otherwise.")
        self.gamma = float(gamma)
        self.seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if seed is None else int(seed)
        self.candidates = None if candidates is None else np.asarray(candidates)
        self.critic = Critic(float(noise_share), float(action_correlation))
        self.subset_size = as_count(subset_size, "subset_size")
        self.refit_every = as_count(refit_every, "refit_every")
        self.reselect, self.tensorboard_log, self.verbose = reselect, tensorboard_log, verbose
        self.history: list[Iteration] = []
        self.episodes: list[tuple[int, float]] = []
        self.num_timesteps = 0
        self.trials = Trials()
        self._rng = np.random.default_rng(self.seed)
        self._memory: Memory | None = None
        self._n_runs = 0  # unbroken runs so far: an environment that is stepped through in one call is one
        self._newest: Fit | None = None
        self._selection: Selection | None = None
        self._n_selected = self._n_fitted = 0  # transitions there were at the last selection, and improvement
        self._logger: Any = None
        self._logger_is_given = False
        self._choices: ActionSet | None = None
        self.observation_space: Any = None
        self.action_space: Any = None
        self.set_env(env)

    # ---------------------------------------------------------------------------------- environments

    def set_env(self, env: Any) -> None:
        """Learn in another environment, of the same spaces, from now on; None is none."""
        if isinstance(env, str):
            try:
                env = gym.make(env)
            except Exception as error:
                raise ValueError(f"cannot make environment {env!r}: {error}") from error
        if env is not None:
            with open_adapter(env) as source:
                choices = ActionSet.from_space(source.action_space, self.candidates)
                if self._choices is not None and choices.n != self._choices.n:
                    raise ValueError(
                        f"the environment has {choices.n} actions, but the agent learnt with {self._choices.n}."
                    )
                width = flatdim(source.observation_space)
                if self._memory is not None and width != self._memory.n_dims:
                    raise ValueError(
                        f"the environment has observations of {width} numbers, but the agent learnt from "
                        f"{self._memory.n_dims}."
                    )
                self.observation_space, self.action_space = source.observation_space, source.action_space
            self._choices = choices
        self.env = env

    def get_env(self) -> Any:
        """The environment: a Stable-Baselines3 VecEnv if that library is loaded and there is one environment."""
        if isinstance(self.env, gym.Env):
            sb3 = sys.modules.get("stable_baselines3.common.vec_env")
            if sb3 is not None:
                env = self.env
                return sb3.DummyVecEnv([lambda: env])
        return self.env

    def get_vec_normalize_env(self) -> Any:
        """The `VecNormalize` around the environment; None if there is none."""
        env = self.env
        while env is not None and not isinstance(env, gym.Env):
            if type(env).__name__ == "VecNormalize":
                return env
            env = getattr(env, "venv", None)
        return None

    # ---------------------------------------------------------------------------------- learning

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int = 1,
        tb_log_name: str = "PolicyIteration",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Collect, improve, and so on; what was learnt before is kept.

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
            If the environment fails or returns nonsense. The agent has then learnt from all that came before.
        """
        if self.env is None:
            raise ValueError("there is no environment to learn in: give one to PolicyIteration, set_env or load.")
        total_timesteps = as_count(total_timesteps, "total_timesteps")
        wanted = callback is not None or self.tensorboard_log is not None or self.verbose
        if wanted and not self._logger_is_given:
            self._logger = make_logger(self.verbose, self.tensorboard_log, tb_log_name, reset_num_timesteps)
        self.num_timesteps = 0 if reset_num_timesteps else self.num_timesteps
        told = as_callback(callback, self)
        with open_adapter(self.env) as source, Progress(progress_bar, total_timesteps) as advance:
            goal = self.num_timesteps + total_timesteps
            told.on_training_start(dict(total_timesteps=goal, tb_log_name=tb_log_name, self=self), {})
            told.on_rollout_start()
            try:
                self._roll(source, goal, told, log_interval, advance)
            finally:
                if self._memory is not None and self._n_fitted < len(self._memory):
                    self._improve()
        told.on_training_end()
        if not self.episodes:
            warnings.warn(
                f"no episode ended within {self.num_timesteps} steps, so no return could be measured: predict serves "
                "the newest policy. Give the environment a time limit (gymnasium.wrappers.TimeLimit).",
                stacklevel=2,
            )
        return self

    def learn_from(self, data: Trajectories) -> Self:
        """Improve the policy from a batch of data alone, whoever made them; they need actions.

        Parameters
        ----------
        data : Trajectories
            With actions as the environment takes them; its discounts are not used.
        """
        if not isinstance(data, Trajectories):
            raise TypeError(f"expected Trajectories to learn from; got {type(data).__name__}.")
        if data.actions is None:
            raise ValueError("the data have no actions: Q needs to know what was done.")
        left = np.setdiff1d(np.arange(len(data)), data.last)
        choices = self._choices or ActionSet.from_data(data.actions[left], self.candidates)
        numbers = np.zeros(len(data), dtype=np.int64)
        numbers[left] = choices.indices(data.actions[left])
        self._remember(Transitions.of(data, numbers, self._n_runs))
        self._choices = choices
        self._n_runs += 1
        self._improve(select=True)
        return self

    def _roll(self, source: EnvAdapter, goal: int, told: Callback, log_interval: int, advance: Any) -> None:
        """Step through the environments until `goal`, improving on the way."""
        with self._blaming_the_environment():
            states = np.array(source.flatten(source.reset(self._env_seed())), dtype=np.float64)
        runs = [self._start(state) for state in states]
        self._n_runs += len(runs)
        while self.num_timesteps < goal:
            self._check_finite("observation", states)
            actions = self._act(runs, states)
            with self._blaming_the_environment():
                step = source.step(self._spelt(actions))
            active = np.array([not run.restarting for run in runs])
            seen = Transitions.of_step(states, actions, step, self._n_runs - len(runs))
            self._check_finite("reward", seen.rewards[active, np.newaxis])
            self._check_finite("observation", seen.reached[active])
            self._remember(seen[active])
            self.num_timesteps += int(active.sum())
            states = np.array(step.states, dtype=np.float64)  # some environments use their arrays again
            self._settle(runs, step, seen.reached, states, bool(source.restart_steps))
            advance(self.num_timesteps)
            told.update_locals(dict(dones=step.terminated | step.truncated, rewards=step.rewards, self=self))
            if not told.on_step():
                return
            if self._is_due():
                told.on_rollout_end()
                self._improve()
                self._log(log_interval)
                self._hand_over(runs, states)
                told.on_rollout_start()

    def _act(self, runs: list[Run], states: Array) -> NDArray[np.int64]:
        """Greedy actions of the policy that each run follows; random ones before there is any."""
        actions = self._rng.integers(self._n_actions, size=len(runs))
        for i, run in enumerate(runs):
            if run.trial is not None and run.trial.q is not None:
                values = run.trial.q.values(states[i : i + 1])[0]
                # Ties are broken at random: where nothing is known yet all actions are alike.
                actions[i] = self._rng.choice(np.flatnonzero(values >= values.max() - 1e-9 * abs(values.max())))
        return actions

    @contextmanager
    def _blaming_the_environment(self) -> Iterator[None]:
        """Say in one line that the environment failed, and keep what was learnt."""
        try:
            yield
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise LearningError(self._sorry(f"the environment failed: {what}")) from error

    def _check_finite(self, name: str, values: Array) -> None:
        """Stop learning where the environment returned nonsense; `values` has a row for each environment."""
        if (bad := np.flatnonzero(~np.isfinite(values).all(axis=1))).size:
            value = " ".join(str(values[bad[0]].squeeze()).split())
            raise LearningError(self._sorry(f"the environment returned {name} {value}: not finite"))

    def _env_seed(self) -> int:
        """The agent's own seed for its first run, then others that follow from it."""
        if self._n_runs == 0:
            return self.seed
        return int(np.random.SeedSequence([self.seed, self._n_runs]).generate_state(1)[0] >> 1)

    def _settle(self, runs: list[Run], step: Step, reached: Array, states: Array, restarts: bool) -> None:
        """Book rewards; where an episode ended, record it and start the next with whoever is to be tried."""
        for i, run in enumerate(runs):
            if run.restarting:
                runs[i] = self._start(states[i])
                continue
            run.book(float(step.rewards[i]), 0.0 if step.terminated[i] else self.gamma)
            if step.terminated[i] or step.truncated[i]:
                self.episodes.append((self.num_timesteps, run.total))
                episode = Episode(run.total, run.start, self._keeps_word(run, reached[i]))
                if run.trial is not None:
                    self.trials.record(run.trial if run.whole else None, episode, self._value)
                runs[i] = self._start(states[i])
                runs[i].restarting = restarts

    def _hand_over(self, runs: list[Run], states: Array) -> None:
        """Let the newest policy go on where the one under way broke its word."""
        assert self._newest is not None
        for run, state in zip(runs, states, strict=True):
            if not self._keeps_word(run, state):
                run.trial, run.whole = Trial(self._newest.draw), False

    def _keeps_word(self, run: Run, state: Array) -> bool:
        """Whether an episode that came to `state` goes as the Q-function of its policy had promised."""
        return self._newest is not None and run.shortfall(state) <= WORD * float(self._newest.targets.std())

    def _start(self, state: Array) -> Run:
        """An episode that starts in `state`."""
        return Run(self._next_trial(), state)

    def _next_trial(self) -> Trial | None:
        return None if self._newest is None else self.trials.next(self._newest.q, self._newest.draw)

    def _is_due(self) -> bool:
        """Whether the policy is to be improved now."""
        n = len(self._all)
        every = self.refit_every if n >= self.refit_every else max(1, self.refit_every // 4)
        return n - self._n_fitted >= max(every, n // 20)

    def _improve(self, select: bool = False) -> None:
        """Fit Q to all that was seen; select relevances if it is time to."""
        assert self._choices is not None
        data = self._all.transitions
        before, selected = self._newest, False
        fit = self._fit(data, self._kernel(data))
        doubled = len(data) >= 2 * max(self._n_selected, self.refit_every)
        wanted = select or (doubled and (self.reselect or self._selection is None))
        if wanted and float(fit.targets.std()) > 1e-6 * (fit.bounds[1] - fit.bounds[0]):
            start = None if self._selection is None else self._selection.kernel
            self._selection = select_relevances(
                data.states, data.actions, fit.targets, self.critic.action_correlation, self._rng, start
            )
            self._n_selected, selected = len(data), True
            fit = self._fit(data, self._selection.kernel)
        self._newest, self._n_fitted = fit, len(data)
        self._note(data, fit, None if before is None else before.q, selected)

    def _fit(self, data: Transitions, kernel: MultiScale) -> Fit:
        """Fit Q, from where it was before."""
        design = Design.of(data, self._n_actions, self.gamma, kernel, self.subset_size, self._rng)
        return fit_q(design, self.critic, self._rng, None if self._newest is None else self._newest.q)

    def _kernel(self, data: Transitions) -> MultiScale:
        """The kernel selected; before that, one in which a standard deviation of each input counts as one."""
        return MultiScale(spread(data.states) ** -2.0) if self._selection is None else self._selection.kernel

    # ---------------------------------------------------------------------------------- book-keeping

    @property
    def _all(self) -> Memory:
        assert self._memory is not None
        return self._memory

    @property
    def _n_actions(self) -> int:
        assert self._choices is not None
        return self._choices.n

    def _remember(self, seen: Transitions) -> None:
        if self._memory is None:
            self._memory = Memory(Transitions.empty(seen.states.shape[1]))
        if seen.states.shape[1] != self._memory.n_dims:
            raise ValueError(f"the agent has seen states of width {self._memory.n_dims}; got {seen.states.shape[1]}.")
        self._memory.add(seen)

    def _value(self, states: Array) -> Array:
        """V of the newest greedy policy, of shape (n,)."""
        assert self._newest is not None
        return self._newest.q.values(states).max(axis=1)

    def _spelt(self, actions: NDArray[np.int64]) -> NDArray[Any]:
        """Actions as the environment takes them."""
        assert self._choices is not None
        return self._choices.actions[actions]

    def _sorry(self, message: str) -> str:
        return f"{message} (step {self.num_timesteps}). What was learnt until then is kept, and can be saved."

    def _note(self, data: Transitions, fit: Fit, before: QFunction | None, selected: bool) -> None:
        some = data.states[:: max(1, len(data) // 1000)]
        change = 1.0 if before is None else float(np.mean(before.greedy(some) != fit.q.greedy(some)))
        selection, served = self._selection, self.served_returns
        recent = [total for _, total in self.episodes[-RECENT:]]
        self.history.append(
            Iteration(
                n_transitions=len(data),
                relevances=tuple(float(w) for w in fit.q.kernel.relevances),
                signal_variance=np.nan if selection is None else selection.signal_variance,
                noise_variance=np.nan if selection is None else selection.noise_variance,
                log_evidence=np.nan if selection is None else selection.log_evidence / selection.n_targets,
                selected=selected,
                subset_size=len(fit.q.subset),
                n_sweeps=fit.n_sweeps,
                residual=fit.residual,
                policy_change=change,
                episode_return=float(np.mean(recent)) if recent else np.nan,
                served_return=float(np.mean(served)) if len(served) else np.nan,
            )
        )

    def _log(self, log_interval: int) -> None:
        if self._logger is None or len(self.history) % log_interval:
            return
        last = self.history[-1]
        self._logger.record("rollout/ep_rew_mean", last.episode_return)
        for name in ("log_evidence", "policy_change", "residual", "subset_size", "n_sweeps", "served_return"):
            self._logger.record(f"policy_iteration/{name}", getattr(last, name))
        for number, relevance in enumerate(last.relevances):
            self._logger.record(f"relevance/{number}", relevance)
        self._logger.dump(self.num_timesteps)

    @property
    def logger(self) -> Any:
        """The Stable-Baselines3 logger."""
        return self._logger

    def set_logger(self, logger: Any) -> None:
        """Log to this one."""
        self._logger, self._logger_is_given = logger, True

    # ---------------------------------------------------------------------------------- what was learnt

    @property
    def q(self) -> QFunction:
        """Q-function of the policy that `predict` serves: the champion of the trials, else the newest."""
        if self.trials.champion.q is not None:
            return self.trials.champion.q
        if self._newest is None:
            if self._memory is None:
                raise ValueError("the agent has not learnt anything yet: call learn first.")
            self._improve()  # asked by a callback before the first improvement was due
        assert self._newest is not None
        return self._newest.q

    @property
    def served_returns(self) -> Array:
        """Returns that the policy served has earned since it was chosen; those that made it champion are left out.

        There may be none yet: `measure` runs fresh episodes.
        """
        return np.array(self.trials.champion.fresh_returns)

    @property
    def relevances_(self) -> Array:
        """Relevance of each state variable for the policy served, of shape (n_dims,)."""
        return self.q.kernel.relevances

    @property
    def data(self) -> Trajectories:
        """All transitions seen, as segments."""
        if self._memory is None or self._choices is None:
            raise ValueError("the agent has not seen anything yet: call learn first.")
        return self._memory.transitions.trajectories(self.gamma, self._choices.actions)

    def q_values(self, observations: ArrayLike) -> Array:
        """What each action is worth under the policy served, of shape (n, n_actions)."""
        return self.q.values(self._states(observations)[0])

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[NDArray[Any], Any]:
        """Best actions, as in Stable-Baselines3.

        Parameters
        ----------
        observation : array of shape (...) or (n, ...), or dict or tuple of such
            One observation or a batch of n; rows of numbers, as `gymnasium.spaces.flatten` makes them, if the agent
            was loaded without an environment.
        state, episode_start, deterministic
            For agents with a memory or with dice; this one has neither.

        Returns
        -------
        actions : ndarray
            One action, or n.
        state : object
            As given.
        """
        states, single = self._states(observation)
        actions = self._spelt(self.q.greedy(states))
        return (np.asarray(actions[0]) if single else actions), state

    def measure(self, n_episodes: int = 20, seed: int | None = None) -> Array:
        """Undiscounted returns of fresh episodes of the policy served, of shape (n_episodes,)."""
        if self.env is None:
            raise ValueError("there is no environment to measure in: give one to PolicyIteration, set_env or load.")
        data = collect(self.env, self, n_episodes=n_episodes, gamma=self.gamma, seed=seed)
        return np.asarray(np.bincount(data.segment_of, weights=data.rewards), dtype=np.float64)

    def value_model(self, **options: Any) -> GPTDQ:
        """Q of the policy served with honest error bars: a `GPTDQ` fitted to all transitions, off-policy.

        Parameters
        ----------
        **options
            Of `GPTDQ`; the system is taken for deterministic unless ``noise`` says otherwise.
        """
        if self._memory is None or self._choices is None:
            raise ValueError("the agent has not seen anything yet: call learn first.")
        if self._choices.is_continuous:
            actions: NDArray[Any] = self._choices.actions
            options.setdefault("candidates", actions)
        else:
            actions = np.arange(self._n_actions)  # GPTDQ counts from 0
            options.setdefault("n_actions", self._n_actions)
        data, q = self._memory.transitions.trajectories(self.gamma, actions), self.q

        def policy(states: Array) -> NDArray[Any]:
            return np.asarray(actions[q.greedy(states)])

        policy.batched = True  # type: ignore[attr-defined]
        return GPTDQ(**dict(noise="deterministic") | options).fit(data, policy=policy)

    def plot_history(self) -> Figure:
        """Draw returns, relevances, evidence and policy change against the transitions made."""
        return plot_history(self.history, self.episodes)

    def _states(self, observation: Any) -> tuple[Array, bool]:
        """Observations as rows of numbers, and whether it was a single one."""
        n_dims = self.q.subset.shape[1]
        if self.observation_space is None:
            rows = np.asarray(observation, dtype=np.float64)
            single = rows.ndim == 1
            rows = np.atleast_2d(rows)
        else:
            rows, single = as_rows(self.observation_space, observation)
        if rows.ndim != 2 or rows.shape[1] != n_dims:
            raise ValueError(f"expected observations of {n_dims} numbers each; got {rows.shape}.")
        if not np.isfinite(rows).all():
            raise ValueError("expected finite observations, got some that are not.")
        return rows, single

    # ---------------------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the agent with all it has seen and learnt to one file, in which there is no code."""
        return agent_files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: Any = None) -> Self:
        """Read what `save` wrote; with an environment it can go on learning."""
        return agent_files.load(cls, path, env)
