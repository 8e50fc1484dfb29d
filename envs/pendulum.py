"""The swing-up of the underpowered pendulum of Deisenroth et al. (2009) from any state, in episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import check_number
from gptd_rl.envs.batched import DynamicsVectorEnv
from gptd_rl.envs.dynamics import Dynamics, ObservationArray, checked_observations
from gptd_rl.envs.rendering import BLUE, GREEN, GREY, INK, RED, Canvas
from gptd_rl.envs.single import DynamicsEnv
from gptd_rl.types import Array, BoolArray

MAX_EPISODE_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class PendulumSwingUp(Dynamics):
    """Swing an underpowered pendulum up and bring it almost to rest there.

    The state is (φ, φ̇), the angle from upright in [−π, π), clockwise positive, and the angular
    speed. With torque u, m l² φ̈ = −μ φ̇ + m g l sin φ + u. Leaving a state earns the reward
    exp(−φ² − 0.2 φ̇²) − 1 of the state *left*, so that V(x) = r(x) + γ V(x′) as in Deisenroth's
    recursion; actions have no cost. The episode terminates in a state with
    ``|φ| ≤ goal_angle`` and ``|φ̇| ≤ goal_speed``. Start states are uniform over the rest of the state space.

    Parameters
    ----------
    mass, length, gravity, friction : float
        m in kg, l in m, g in m/s², μ in kg m²/s.
    max_torque : float
        Largest size of the torque u in N m. Less than m g l is too little to lift the pendulum straight up.
    max_speed : float
        Speeds are clipped to ± this, in rad/s, after each sub-step.
    dt : float
        Seconds per step, during which the torque is constant.
    substeps : int
        Steps of the classical fourth-order Runge–Kutta method in each `dt`.
    goal_angle, goal_speed : float
        Half the extents of the terminal region, in rad and rad/s.
    angle_weight, speed_weight : float
        Weights 1 and 0.2 of φ² and φ̇² in the reward.
    n_torques : int or None
        Number of torques to choose from, evenly spaced over ± `max_torque`: the action is an index.
        None: the action is an array of shape (1,) in [−1, 1], the torque as a share of `max_torque`.
    observation : {"angle", "cos_sin"}
        Observe (φ, φ̇), or (cos φ, sin φ, φ̇).
    """

    mass: float = 1.0
    length: float = 1.0
    gravity: float = 9.81
    friction: float = 0.05
    max_torque: float = 5.0
    max_speed: float = 7.0
    dt: float = 0.05
    substeps: int = 2
    goal_angle: float = 0.1
    goal_speed: float = 0.5
    angle_weight: float = 1.0
    speed_weight: float = 0.2
    n_torques: int | None = 5
    observation: Literal["angle", "cos_sin"] = "angle"

    def __post_init__(self) -> None:
        for name in ("mass", "length", "max_torque", "max_speed", "dt", "goal_angle", "goal_speed"):
            check_number(name, getattr(self, name), above=0.0)
        for name in ("gravity", "friction", "angle_weight", "speed_weight"):
            check_number(name, getattr(self, name), minimum=0.0)
        check_number("substeps", self.substeps, minimum=1, integer=True)
        if self.n_torques is not None:
            check_number("n_torques (or None)", self.n_torques, minimum=2, integer=True)
        if self.observation not in ("angle", "cos_sin"):
            raise ValueError(f"observation: expected 'angle' or 'cos_sin', got {self.observation!r}.")
        if self.goal_angle >= np.pi:
            raise ValueError(f"goal_angle: expected less than pi, got {self.goal_angle!r}.")

    @property
    def n_state_dims(self) -> int:
        """Number of entries of a state: φ and φ̇."""
        return 2

    @property
    def observation_space(self) -> spaces.Box:
        """Space of one observation."""
        angles = [np.pi] if self.observation == "angle" else [1.0, 1.0]
        high = np.array([*angles, self.max_speed], dtype=np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self) -> spaces.Discrete | spaces.Box:
        """Space of one action: the index of a torque, or the share of the largest torque."""
        if self.n_torques is not None:
            return spaces.Discrete(self.n_torques)
        return spaces.Box(-1.0, 1.0, shape=(1,), dtype=np.float32)

    @property
    def render_fps(self) -> int:
        """Frames per second of a film in real time."""
        return max(1, round(1 / self.dt))

    def sample_states(self, n: int, rng: np.random.Generator) -> Array:
        """States drawn uniformly outside the terminal region, of shape (n, 2)."""
        high = np.array([np.pi, self.max_speed])
        states = rng.uniform(-high, high, size=(n, 2))
        while (terminal := self.is_terminal(states)).any():
            states[terminal] = rng.uniform(-high, high, size=(np.count_nonzero(terminal), 2))
        return states

    def may_start(self, states: Array) -> BoolArray:
        """Whether states of shape (n, 2) are in the state space and not terminal."""
        angles, speeds = states.T
        inside = (angles >= -np.pi) & (angles < np.pi) & (np.abs(speeds) <= self.max_speed)
        allowed: BoolArray = inside & ~self.is_terminal(states)
        return allowed

    def is_terminal(self, states: Array) -> BoolArray:
        """Whether states of shape (n, 2) end the episode."""
        angles, speeds = np.abs(states).T
        terminal: BoolArray = (angles <= self.goal_angle) & (speeds <= self.goal_speed)
        return terminal

    def rewards(self, states: Array) -> Array:
        """Rewards for leaving states of shape (n, 2)."""
        angles, speeds = states.T
        weighted = self.angle_weight * angles**2 + self.speed_weight * speeds**2
        rewards: Array = np.expm1(-weighted)
        return rewards

    def torques(self, actions: ArrayLike) -> Array:
        """Torques of actions, an array of shape (n,)."""
        shares = np.asarray(actions, dtype=np.float64).reshape(-1)
        if self.n_torques is not None:
            shares = 2 * shares / (self.n_torques - 1) - 1
        return self.max_torque * shares

    def advance(self, states: Array, torques: Array) -> Array:
        """States reached from states of shape (n, 2) by torques of shape (n,) held for one step."""
        angles, speeds = states.T
        h = self.dt / self.substeps
        for _ in range(self.substeps):
            # Runge–Kutta for φ̈ = f(φ, φ̇), the stages of φ put in terms of those of φ̇
            f1 = self.accelerations(angles, speeds, torques)
            f2 = self.accelerations(angles + h / 2 * speeds, speeds + h / 2 * f1, torques)
            f3 = self.accelerations(angles + h / 2 * speeds + h**2 / 4 * f1, speeds + h / 2 * f2, torques)
            f4 = self.accelerations(angles + h * speeds + h**2 / 2 * f2, speeds + h * f3, torques)
            angles = angles + h * speeds + h**2 / 6 * (f1 + f2 + f3)
            speeds = speeds + h / 6 * (f1 + 2 * f2 + 2 * f3 + f4)
            speeds = np.clip(speeds, -self.max_speed, self.max_speed)
        return np.stack([wrap_angles(angles), speeds], axis=1)

    def accelerations(self, angles: Array, speeds: Array, torques: Array) -> Array:
        """Angular accelerations φ̈, all arrays being of shape (n,)."""
        inertia = self.mass * self.length**2
        weight = self.mass * self.gravity * self.length
        return (weight * np.sin(angles) - self.friction * speeds + torques) / inertia

    def step(self, states: Array, actions: NDArray[Any], rng: np.random.Generator) -> tuple[Array, Array, BoolArray]:
        """States reached, rewards of the states left, and whether the states reached are terminal.

        Parameters
        ----------
        states : ndarray of shape (n, 2)
        actions : ndarray of shape (n,) or (n, 1)
            Indices of torques, or shares of the largest torque.
        rng : numpy.random.Generator
            Not used: only start states are random.

        Returns
        -------
        states : ndarray of shape (n, 2)
        rewards : ndarray of shape (n,)
        terminated : ndarray of shape (n,)
        """
        reached = self.advance(states, self.torques(actions))
        return reached, self.rewards(states), self.is_terminal(reached)

    def observe(self, states: Array) -> ObservationArray:
        """ObservationArray of states of shape (n, 2), an array of shape (n, 2) or (n, 3)."""
        if self.observation == "angle":
            return states.astype(np.float32)
        angles, speeds = states.T
        return np.stack([np.cos(angles), np.sin(angles), speeds], axis=1).astype(np.float32)

    def states_of(self, observations: ArrayLike) -> Array:
        """States of shape (n, 2) behind observations of shape (n, 2) or (n, 3)."""
        n_dims = self.observation_space.shape[0]
        seen = checked_observations(observations, n_dims)
        angles = seen[:, 0] if n_dims == 2 else np.arctan2(seen[:, 1], seen[:, 0])
        return np.stack([wrap_angles(angles), seen[:, -1]], axis=1)

    def draw(self, state: Array, action: NDArray[Any] | None) -> Canvas:
        """Picture of the rod, the goal, and the torque as an arrow.

        Parameters
        ----------
        state : ndarray of shape (2,)
        action : ndarray, optional

        Returns
        -------
        Canvas
        """
        l = self.length
        canvas = Canvas(3 * l, 3 * l, origin=(-1.5 * l, -1.5 * l), scale=150 / l)
        goal = [_on_circle(a, 1.4 * l) for a in np.linspace(-1, 1, 9) * self.goal_angle]
        canvas.polygon([(0.0, 0.0), *goal], GREEN)
        circle = [_on_circle(a, l) for a in np.linspace(-np.pi, np.pi, 73)]
        canvas.path(circle, 0.01 * l, GREY)
        tip = _on_circle(float(state[0]), l)
        canvas.path([(0.0, 0.0), tip], 0.07 * l, INK)
        canvas.disc(tip, 0.14 * l, BLUE)
        if action is not None:
            self._draw_torque(canvas, float(self.torques(action[np.newaxis])[0]))
        canvas.disc((0.0, 0.0), 0.08 * l, INK)
        return canvas

    def _draw_torque(self, canvas: Canvas, torque: float) -> None:
        """Draw an arrow around the pivot, with a length proportional to the torque."""
        if torque == 0:
            return
        radius, end = 0.35 * self.length, 2.0 * torque / self.max_torque
        arc = [_on_circle(a, radius) for a in np.linspace(0.0, end, 25)]
        canvas.path(arc, 0.04 * self.length, RED)
        ahead = end + np.copysign(0.3, torque)
        point = [(end, 1.25), (end, 0.75), (ahead, 1.0)]
        canvas.polygon([_on_circle(a, factor * radius) for a, factor in point], RED)


def wrap_angles(angles: Array) -> Array:
    """Angles shifted by whole turns into [−π, π); those inside are returned unchanged."""
    turns = np.floor((angles + np.pi) / (2 * np.pi))
    wrapped = np.maximum(angles - 2 * np.pi * turns, -np.pi)
    return np.where(wrapped < np.pi, wrapped, -np.pi)  # rounding may reach either end


def _on_circle(angle: float, radius: float) -> tuple[float, float]:
    return radius * np.sin(angle), radius * np.cos(angle)


class PendulumSwingUpEnv(DynamicsEnv):
    """One pendulum: `gymnasium.make("gptd_rl/PendulumSwingUp-v0", **constants)`.

    Parameters
    ----------
    render_mode : {"rgb_array", "human"}, optional
    **constants
        Arguments of `PendulumSwingUp`.
    """

    dynamics_class = PendulumSwingUp


class PendulumSwingUpVectorEnv(DynamicsVectorEnv):
    """Many pendulums: `gymnasium.make_vec("gptd_rl/PendulumSwingUp-v0", num_envs, **constants)`.

    Parameters
    ----------
    num_envs : int
    max_episode_steps, render_mode, autoreset_mode
        As for `DynamicsVectorEnv`.
    **constants
        Arguments of `PendulumSwingUp`.
    """

    dynamics_class = PendulumSwingUp
    default_max_episode_steps = MAX_EPISODE_STEPS
