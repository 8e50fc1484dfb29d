"""Single environments: a batch of one `Dynamics`."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from gptd_rl.envs.dynamics import Dynamics, ObservationArray, check_options, checked_actions
from gptd_rl.envs.rendering import Window, check_render_mode
from gptd_rl.types import Array


class DynamicsEnv(gym.Env[ObservationArray, Any]):
    """Gymnasium environment with given dynamics.

    Parameters
    ----------
    render_mode : {"rgb_array", "human"}, optional
    **constants
        Arguments of the dynamics.
    """

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 20}
    dynamics_class: ClassVar[type[Dynamics]]

    def __init__(self, *, render_mode: str | None = None, **constants: Any) -> None:
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.dynamics = self.dynamics_class(**constants)
        self.metadata = {**self.metadata, "render_fps": self.dynamics.render_fps}
        self.render_mode = render_mode
        self.observation_space = cast(gym.Space[ObservationArray], self.dynamics.observation_space)
        self.action_space = self.dynamics.action_space
        self._states: Array | None = None  # [1, n_state_dims]
        self._action: NDArray[Any] | None = None
        self._terminated = False
        self._window = Window()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObservationArray, dict[str, Any]]:
        """Start an episode.

        Parameters
        ----------
        seed : int, optional
        options : dict, optional
            `{"state": [...]}` starts in that state, of shape (n_state_dims,).

        Returns
        -------
        observation : ndarray of shape (n_observation_dims,)
        info : dict
            Empty.
        """
        super().reset(seed=seed)
        check_options(options, ("state",))
        given = (options or {}).get("state")
        self._states = self.dynamics.start_states(1, self.np_random, None if given is None else [given])
        self._action = None
        self._terminated = False
        return self._show(self._states), {}

    def step(self, action: Any) -> tuple[ObservationArray, float, bool, bool, dict[str, Any]]:
        """Take one step.

        Parameters
        ----------
        action : int or ndarray
            Member of the action space.

        Returns
        -------
        observation : ndarray of shape (n_observation_dims,)
        reward : float
        terminated : bool
        truncated : bool
            Always False: `gymnasium.make` adds the time limit (`max_episode_steps`).
        info : dict
            Empty.
        """
        if self._states is None or self._terminated:
            raise ResetNeeded("no episode is under way: call reset() before step().")
        self._action = checked_actions(self.action_space, action)
        self._states, rewards, terminated = self.dynamics.step(self._states, self._action[np.newaxis], self.np_random)
        self._terminated = bool(terminated[0])
        return self._show(self._states), float(rewards[0]), self._terminated, False, {}

    def _show(self, states: Array) -> ObservationArray:
        """Observation of the state; in mode "human" the window shows it, too."""
        if self.render_mode == "human":
            self.render()
        observation: ObservationArray = self.dynamics.observe(states)[0]
        return observation

    def render(self) -> NDArray[np.uint8] | None:
        """Picture of the present state.

        Returns
        -------
        ndarray of shape (height, width, 3) or None
            The picture in mode `"rgb_array"`; in mode `"human"` it goes to a window.
        """
        if self.render_mode is None:
            gym.logger.warn("render() does nothing: make the environment with a render_mode.")
            return None
        if self._states is None:
            raise ResetNeeded("nothing to draw yet: call reset() before render().")
        pixels = self.dynamics.draw(self._states[0], self._action).pixels()
        if self.render_mode == "rgb_array":
            return pixels
        self._window.show(pixels, self.metadata["render_fps"])
        return None

    def close(self) -> None:
        """Close the window, if one is open."""
        self._window.close()
