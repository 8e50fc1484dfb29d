"""The state of an agent, and the methods that Stable-Baselines3's agents have: environments, logger, predict."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import flatdim
from numpy.typing import ArrayLike, NDArray

from gptd_rl.agents.history import Iteration, plot_history
from gptd_rl.agents.lookahead import q_function
from gptd_rl.agents.planning import Planner, Planning
from gptd_rl.agents.policy_pool import PolicyPool, PolicyRecord, StateValues
from gptd_rl.agents.replay import Experience, ReplayBuffer
from gptd_rl.agents.trial_pool import Served, TrialPool
from gptd_rl.checks import as_count, is_within, one_line
from gptd_rl.data.spaces import as_rows
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.estimators.dynamics.outcomes import ModelErrors
from gptd_rl.estimators.gptdq import GPTDQ
from gptd_rl.inference.by_action import ActionPrior
from gptd_rl.rollouts.actions import ActionSet
from gptd_rl.rollouts.collect import collect
from gptd_rl.rollouts.environments import open_adapter
from gptd_rl.sb3.logging import make_logger
from gptd_rl.selection.regression import KernelSelection
from gptd_rl.types import Array, EnvLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BaseAgent(ABC):
    """An agent that keeps all its transitions and acts greedily by the Q-function of its incumbent policy.

    Parameters are explained in `PolicyIteration`.
    """

    def __init__(
        self,
        *,
        gamma: float,
        seed: int | None,
        candidates: ArrayLike | None,
        action_correlation: float,
        noise_share: float,
        subset_size: int,
        model: str | None,
        planning: Planning,
        tensorboard_log: str | None,
        verbose: int,
    ) -> None:
        if not (is_within(gamma, -1.0, 1.0) and gamma >= 0.0):
            raise ValueError(f"gamma must lie in [0, 1); got {one_line(gamma)}. Values are infinite sums otherwise.")
        self.gamma = float(gamma)
        drawn = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        self.seed = drawn if seed is None else as_count(seed, "seed", 0)
        self.candidates = None if candidates is None else np.asarray(candidates)
        prior = ActionPrior(1, float(noise_share), float(action_correlation))
        self.noise_share, self.action_correlation = prior.noise_share, prior.correlation
        self.subset_size = as_count(subset_size, "subset_size")
        if model not in ("gp", None):
            raise ValueError(f"model must be 'gp' or None; got {one_line(repr(model))}.")
        self.model, self.planning = model, planning
        self.tensorboard_log, self.verbose = tensorboard_log, verbose
        self.estimator = GPTDQ(
            action_correlation=self.action_correlation,
            noise_share=self.noise_share,
            subset_size=self.subset_size,
            warm_start=True,
        )
        self.history: list[Iteration] = []
        self.episodes: list[tuple[int, float]] = []
        self.pool = PolicyPool() if model is None else TrialPool()
        self.dynamics_: DynamicsModel | None = None
        self.model_errors_: list[ModelErrors] = []
        self._planner = Planner(planning)
        self._preliminary: tuple[int, StateValues] | None = None  # transitions, and Q before the first improvement
        self.env = self.observation_space = self.action_space = cast(Any, None)
        self._actions: ActionSet | None = None
        self._buffer: ReplayBuffer | None = None
        self._selection: KernelSelection | None = None
        # Transitions made, and at the last selection of a kernel, and at the last fit.
        self.num_timesteps = self._n_selected = self._n_fitted = 0
        self._n_streams = 0  # environments that were reset so far, and batches
        self._rng = np.random.default_rng(self.seed)
        self._logger, self._logger_is_given = cast(Any, None), False

    @abstractmethod
    def _simulated_return(self, record: PolicyRecord, start: Array) -> float:
        """Return of a policy in the model of the dynamics, from one state."""

    @abstractmethod
    def _improve(self, select: bool = False) -> None:
        """Fit Q to all data; `select` demands the selection of a kernel."""

    # ---------------------------------------------------------------------------------- environments

    def set_env(self, env: EnvLike | None) -> None:
        """Learn in another environment of the same spaces from now on; None is none."""
        if isinstance(env, str):
            try:
                env = gym.make(env)
            except Exception as error:
                raise ValueError(f"cannot make environment {env!r}: {one_line(error)}") from error
        if env is not None:
            with open_adapter(env) as adapter:
                actions = ActionSet.from_space(adapter.action_space, self.candidates)
                width = flatdim(adapter.observation_space)
                if self._actions is not None and actions.n != self._actions.n:
                    raise ValueError(
                        f"the environment has {actions.n} actions, but the agent learnt with {self._actions.n}."
                    )
                if self._buffer is not None and width != self._buffer.n_dims:
                    raise ValueError(
                        f"the environment has observations of {width} numbers, but the agent learnt from "
                        f"{self._buffer.n_dims}."
                    )
                self.observation_space, self.action_space = adapter.observation_space, adapter.action_space
            self._actions = actions
        self.env = env

    def get_env(self) -> Any:
        """The environment: a Stable-Baselines3 VecEnv if that library is loaded and there is one environment."""
        sb3 = sys.modules.get("stable_baselines3.common.vec_env")
        if sb3 is None or not isinstance(self.env, gym.Env):
            return self.env
        env = self.env
        return sb3.DummyVecEnv([lambda: env])

    def get_vec_normalize_env(self) -> Any:
        """The `VecNormalize` around the environment; None if there is none."""
        env = self.env
        while env is not None and not isinstance(env, gym.Env):
            if type(env).__name__ == "VecNormalize":
                return env
            env = getattr(env, "venv", None)
        return None

    def _require_env(self, purpose: str) -> Any:
        if self.env is None:
            raise ValueError(f"there is no environment to {purpose} in: give one to PolicyIteration, set_env or load.")
        return self.env

    def _env_seed(self) -> int:
        """The agent's own seed for the first call of `learn`, then others that follow from it."""
        if self._n_streams == 0:
            return self.seed
        return int(np.random.SeedSequence([self.seed, self._n_streams]).generate_state(1)[0] >> 1)

    # ---------------------------------------------------------------------------------- logging

    @property
    def logger(self) -> Any:
        """The Stable-Baselines3 logger."""
        return self._logger

    def set_logger(self, logger: Any) -> None:
        """Log to this one."""
        self._logger, self._logger_is_given = logger, True

    def _setup_logger(self, is_needed: bool, name: str, restart: bool) -> None:
        if (is_needed or self.tensorboard_log is not None or self.verbose) and not self._logger_is_given:
            self._logger = make_logger(self.verbose, self.tensorboard_log, name, restart)

    # ---------------------------------------------------------------------------------- data

    @property
    def data(self) -> Trajectories:
        """All transitions, as segments."""
        if self._buffer is None or self._actions is None:
            raise ValueError("the agent has not seen anything yet: call learn first.")
        return self._buffer.experience.trajectories(self.gamma, self._actions.actions)

    def _remember(self, new: Experience) -> None:
        if self._buffer is None:
            self._buffer = ReplayBuffer.empty(new.states.shape[1])
        if new.states.shape[1] != self._buffer.n_dims:
            raise ValueError(f"the agent has seen states of width {self._buffer.n_dims}; got {new.states.shape[1]}.")
        self._buffer.add(new)

    # ---------------------------------------------------------------------------------- acting

    @property
    def q(self) -> StateValues:
        """Q-function of the policy that `predict` follows: the incumbent of the pool, or the newest policy."""
        if self.pool.incumbent.q is not None:
            return self.pool.incumbent.q
        if self.pool.newest_q is None:
            return self._preliminary_q()
        return self.pool.newest_q.mean

    def _preliminary_q(self) -> StateValues:
        """Q from the transitions so far, before the first improvement was due: asking changes nothing."""
        if self._buffer is None:
            raise ValueError("the agent has not learnt anything yet: call learn first.")
        n, actions = len(self._buffer), np.arange(self._action_set.n)
        if self._preliminary is None or self._preliminary[0] != n:
            q = GPTDQ(**self.estimator.get_params(deep=False) | dict(n_actions=len(actions), random_state=self.seed))
            q.fit(self._buffer.experience.trajectories(self.gamma, actions), policy="greedy")
            assert q.greedy_ is not None
            self._preliminary = n, q.greedy_.posterior.mean_function
        return self._preliminary[1]

    @property
    def incumbent_returns(self) -> Array:
        """Returns of the incumbent policy since its selection; there may be none yet: `evaluate` runs episodes."""
        return np.array(self.pool.incumbent.returns_since_selection)

    @property
    def served_(self) -> Served:
        """The policy that `predict` follows, and why it is this one."""
        values, record = self.q, self.pool.incumbent
        return Served.of(record, values, self.pool)

    @property
    def relevances_(self) -> Array:
        """Relevance of each state variable for the incumbent policy, of shape (n_dims,)."""
        return np.asarray(q_function(self.q).kernel.relevances)

    def q_values(self, observations: ArrayLike) -> Array:
        """Q of every action under the policy that `predict` follows, of shape (n, n_actions)."""
        return self.q(self._states(observations)[0])

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
            Ignored; accepted for compatibility with Stable-Baselines3.

        Returns
        -------
        actions : ndarray
            One action, or n.
        state : object
            As given.
        """
        states, single = self._states(observation)
        actions = self._action_set.actions[self.q.greedy(states)]
        return (np.asarray(actions[0]) if single else actions), state

    def evaluate(self, n_episodes: int = 20, seed: int | None = None) -> Array:
        """Undiscounted returns of new episodes of the incumbent policy, of shape (n_episodes,)."""
        data = collect(self._require_env("evaluate"), self, n_episodes=n_episodes, gamma=self.gamma, seed=seed)
        return np.asarray(np.bincount(data.segment_of, weights=data.rewards), dtype=np.float64)

    def plot_history(self) -> Figure:
        """Draw returns, relevances, evidence and policy change against the number of transitions."""
        return plot_history(self.history, self.episodes)

    @property
    def _action_set(self) -> ActionSet:
        assert self._actions is not None
        return self._actions

    def _states(self, observation: Any) -> tuple[Array, bool]:
        """Observations as rows of numbers, and whether there was a single one."""
        n_dims = q_function(self.q).inducing_points.shape[1]
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
