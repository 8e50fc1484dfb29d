"""Vector environments: many copies of one `Dynamics`, stepped together by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import check_number
from gptd_rl.envs.dynamics import Dynamics, ObservationArray, check_options, checked_actions
from gptd_rl.envs.rendering import Canvas, check_render_mode
from gptd_rl.types import Array, BoolArray


class DynamicsVectorEnv(VectorEnv[ObservationArray, NDArray[Any], NDArray[Any]]):
    """Gymnasium vector environment with given dynamics.

    Parameters
    ----------
    num_envs : int
    max_episode_steps : int, optional
        Steps after which an episode is truncated; −1 for never, None for the registered number, as in
        `gymnasium.make`.
    render_mode : {"rgb_array"}, optional
    autoreset_mode : AutoresetMode or {"NextStep", "SameStep", "Disabled"}
        How ended episodes restart. Disabled: the caller restarts them by `reset(options={"reset_mask": ended})`.
    **constants
        Arguments of the dynamics.

    Notes
    -----
    All environments share one random generator. A seed, or a list of one seed per environment, determines all random
    numbers; they differ from those of single environments.
    """

    metadata = {
        "render_modes": ["rgb_array"],
        "render_fps": 20,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    dynamics_class: ClassVar[type[Dynamics]]
    default_max_episode_steps: ClassVar[int]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **constants: Any,
    ) -> None:
        check_number("num_envs", num_envs, minimum=1, integer=True)
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.num_envs = num_envs
        self.dynamics = self.dynamics_class(**constants)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.max_episode_steps = self._time_limit(max_episode_steps)
        self.render_mode = render_mode
        self.metadata = {
            **self.metadata,
            "render_fps": self.dynamics.render_fps,
            "autoreset_mode": self.autoreset_mode,
        }
        self.single_observation_space = self.dynamics.observation_space
        self.single_action_space = self.dynamics.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._states = np.empty((0, self.dynamics.n_state_dims))  # [num_envs, n_state_dims] once reset
        self._actions: NDArray[Any] | None = None
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[ObservationArray, dict[str, Any]]:
        """Start episodes in all environments or in some.

        Parameters
        ----------
        seed : int or sequence of num_envs ints, optional
        options : dict, optional
            `"reset_mask"`, a bool array of shape (num_envs,): the environments to restart while the others continue.
            `"state"`, of shape (n_restarted, n_state_dims): the states to start in.

        Returns
        -------
        observations : ndarray of shape (num_envs, n_observation_dims)
        info : dict
            Empty.
        """
        super().reset(seed=self._one_seed(seed))
        check_options(options, ("state", "reset_mask"))
        options = options or {}
        restart = self._checked_mask(options.get("reset_mask"))
        if not restart.all():
            self._require_reset()
        self._restart(restart, options.get("state"))
        return self.dynamics.observe(self._states), {}

    def step(self, actions: NDArray[Any]) -> tuple[ObservationArray, Array, BoolArray, BoolArray, dict[str, Any]]:
        """Take one step in every environment.

        Parameters
        ----------
        actions : ndarray of shape (num_envs, ...)

        Returns
        -------
        observations : ndarray of shape (num_envs, n_observation_dims)
        rewards : ndarray of shape (num_envs,)
        terminated : ndarray of shape (num_envs,)
        truncated : ndarray of shape (num_envs,)
        info : dict
            If an episode ended in mode SAME_STEP, `info["final_obs"]` is an object array of shape (num_envs,) with
            the last observations, and None elsewhere.
        """
        self._require_reset()
        restart = self._ended
        if restart.any() and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"the episodes of environments {np.flatnonzero(restart).tolist()} are over: restart "
                'them by reset(options={"reset_mask": terminated | truncated}).'
            )
        self._actions = checked_actions(self.action_space, actions)
        self._states, rewards, terminated = self.dynamics.step(self._states, self._actions, self.np_random)
        self._elapsed += 1
        truncated = self._elapsed >= self.max_episode_steps
        if restart.any():  # NEXT_STEP: this step restarts the episode and is no transition
            rewards[restart], terminated[restart], truncated[restart] = 0.0, False, False
            self._restart(restart)
        self._ended = terminated | truncated
        observations = self.dynamics.observe(self._states)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and self._ended.any():
            info = _final_info(observations, self._ended)
            self._restart(self._ended)
            return self.dynamics.observe(self._states), rewards, terminated, truncated, info
        return observations, rewards, terminated, truncated, {}

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Pictures of the present states.

        Returns
        -------
        tuple of num_envs ndarrays of shape (height, width, 3), or None without a render mode
        """
        if self.render_mode is None:
            gym.logger.warn("render() does nothing: make the environment with a render_mode.")
            return None
        self._require_reset()
        return tuple(self._draw(i).pixels() for i in range(self.num_envs))

    def _draw(self, i: int) -> Canvas:
        if self._actions is None or self._elapsed[i] == 0:
            return self.dynamics.draw(self._states[i], None)
        return self.dynamics.draw(self._states[i], self._actions[i])

    def _restart(self, restart: BoolArray, given: ArrayLike | None = None) -> None:
        """Start new episodes where `restart` is True, in given or random states."""
        n = int(np.count_nonzero(restart))
        starts = self.dynamics.start_states(n, self.np_random, given)
        if n == self.num_envs:
            self._states = starts
        else:
            self._states[restart] = starts
        self._elapsed[restart] = 0
        self._ended = self._ended & ~restart

    def _require_reset(self) -> None:
        if len(self._states) == 0:
            raise ResetNeeded("no episode is under way: call reset() for all environments first.")

    def _time_limit(self, max_episode_steps: int | None) -> float:
        if max_episode_steps is None:
            return self.default_max_episode_steps
        if max_episode_steps == -1:
            return np.inf
        check_number("max_episode_steps", max_episode_steps, minimum=1, integer=True)
        return max_episode_steps

    def _one_seed(self, seed: int | Sequence[int] | None) -> int | None:
        """Seed of the shared generator, combined from one seed per environment if necessary."""
        if seed is None or isinstance(seed, int):
            return seed
        seeds = np.asarray(seed)
        if seeds.shape != (self.num_envs,) or seeds.dtype.kind not in "iu" or (seeds < 0).any():
            raise ValueError(f"seed: expected an integer >= 0 for each of {self.num_envs} environments, got {seed!r}.")
        return int(np.random.SeedSequence(seeds.tolist()).generate_state(1, np.uint64)[0])

    def _checked_mask(self, mask: object) -> BoolArray:
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        array = np.asarray(mask)
        if array.shape != (self.num_envs,) or array.dtype != np.bool_:
            raise ValueError(f"reset option 'reset_mask': expected {self.num_envs} booleans, got {mask!r}.")
        return array


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = [m.value for m in AutoresetMode]
        raise ValueError(f"autoreset_mode: expected one of {known}, got {mode!r}.") from None


def _final_info(observations: ObservationArray, ended: BoolArray) -> dict[str, Any]:
    """Last observations of the episodes that ended, in the form of SyncVectorEnv."""
    final = np.full(len(ended), None, dtype=object)
    for i in np.flatnonzero(ended):
        final[i] = observations[i]
    return {"final_obs": final, "_final_obs": ended, "final_info": {}, "_final_info": ended.copy()}
