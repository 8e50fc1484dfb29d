"""The swing-up of a pole on a cart, the benchmark of Deisenroth & Rasmussen (2011, PILCO), in episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from gptd_rl.checks import check_number
from gptd_rl.envs.batched import DynamicsVectorEnv
from gptd_rl.envs.dynamics import Dynamics, ObservationArray, checked_observations
from gptd_rl.envs.pendulum import wrap_angles
from gptd_rl.envs.rendering import BLUE, GREEN, GREY, INK, RED, Canvas
from gptd_rl.envs.single import DynamicsEnv
from gptd_rl.types import Array, BoolArray

MAX_EPISODE_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class CartPoleSwingUp(Dynamics):
    """Swing a pole up by pushing its cart, and balance it above the middle of the rail.

    The state is (x, ẋ, θ, θ̇): position and speed of the cart, angle of the pole from upright in [−π, π), clockwise
    positive, and its angular speed. The pole is a uniform rod. Leaving a state earns the reward exp(−d²/2σ²) of the
    state *left*, where d is the distance from the tip of the pole to its place when it stands upright in the middle of
    the rail. The episode terminates where the rail ends; no reward is negative, so an early end is never good. It
    starts near rest in the middle of the rail, with the pole hanging down.

    Masses, length, friction, largest force and reward are PILCO's; its rail has no ends, and its steps take 0.1 s.

    Parameters
    ----------
    cart_mass, pole_mass, length, gravity, friction : float
        M and m in kg, l in m, g in m/s², b in kg/s.
    max_force : float
        Largest size of the force u in N.
    rail : float
        Largest distance of x from 0 in m. A cart that gets there stops, and the episode is over.
    max_speed, max_spin : float
        ẋ and θ̇ are clipped to ± this, in m/s and rad/s, after each sub-step.
    dt : float
        Seconds per step, during which the force is constant.
    substeps : int
        Steps of the classical fourth-order Runge–Kutta method in each `dt`.
    reward_width : float
        σ in m.
    start_spread : float
        Each entry of the start state is uniform within ± this around (0, 0, π, 0).
    n_forces : int or None
        Number of forces to choose from, evenly spaced over ± `max_force`: the action is an index.
        None: the action is an array of shape (1,) in [−1, 1], the force as a share of `max_force`.
    observation : {"cos_sin", "angle"}
        Observe (x, ẋ, cos θ, sin θ, θ̇), or (x, ẋ, θ, θ̇).
    """

    cart_mass: float = 0.5
    pole_mass: float = 0.5
    length: float = 0.6
    gravity: float = 9.82
    friction: float = 0.1
    max_force: float = 10.0
    rail: float = 2.4
    max_speed: float = 10.0
    max_spin: float = 25.0
    dt: float = 0.05
    substeps: int = 4
    reward_width: float = 0.25
    start_spread: float = 0.1
    n_forces: int | None = 5
    observation: Literal["angle", "cos_sin"] = "cos_sin"

    def __post_init__(self) -> None:
        positive = ("cart_mass", "pole_mass", "length", "max_force", "rail", "max_speed", "max_spin", "dt")
        for name in (*positive, "reward_width"):
            check_number(name, getattr(self, name), above=0.0)
        for name in ("gravity", "friction", "start_spread"):
            check_number(name, getattr(self, name), minimum=0.0)
        check_number("substeps", self.substeps, minimum=1, integer=True)
        if self.n_forces is not None:
            check_number("n_forces (or None)", self.n_forces, minimum=2, integer=True)
        if self.observation not in ("angle", "cos_sin"):
            raise ValueError(f"observation: expected 'angle' or 'cos_sin', got {self.observation!r}.")
        if self.start_spread >= min(self.rail, self.max_speed, self.max_spin):
            raise ValueError(
                f"start_spread: expected less than rail, max_speed and max_spin, got {self.start_spread!r}."
            )

    @property
    def n_state_dims(self) -> int:
        """Number of entries of a state: x, ẋ, θ and θ̇."""
        return 4

    @property
    def observation_space(self) -> spaces.Box:
        """Space of one observation."""
        angles = [np.pi] if self.observation == "angle" else [1.0, 1.0]
        high = np.array([self.rail, self.max_speed, *angles, self.max_spin], dtype=np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self) -> spaces.Discrete | spaces.Box:
        """Space of one action: the index of a force, or the share of the largest force."""
        if self.n_forces is not None:
            return spaces.Discrete(self.n_forces)
        return spaces.Box(-1.0, 1.0, shape=(1,), dtype=np.float32)

    @property
    def render_fps(self) -> int:
        """Frames per second of a film in real time."""
        return max(1, round(1 / self.dt))

    def sample_states(self, n: int, rng: np.random.Generator) -> Array:
        """States around rest in the middle of the rail with the pole hanging down, of shape (n, 4)."""
        states = rng.uniform(-self.start_spread, self.start_spread, size=(n, 4))
        states[:, 2] = wrap_angles(states[:, 2] + np.pi)
        return states

    def may_start(self, states: Array) -> BoolArray:
        """Whether states of shape (n, 4) are in the state space and not terminal."""
        positions, speeds, angles, spins = states.T
        inside = (np.abs(speeds) <= self.max_speed) & (np.abs(spins) <= self.max_spin)
        allowed: BoolArray = inside & (angles >= -np.pi) & (angles < np.pi) & (np.abs(positions) < self.rail)
        return allowed

    def is_terminal(self, states: Array) -> BoolArray:
        """Whether states of shape (n, 4) are at an end of the rail."""
        terminal: BoolArray = np.abs(states[:, 0]) >= self.rail
        return terminal

    def rewards(self, states: Array) -> Array:
        """Rewards for leaving states of shape (n, 4)."""
        positions, _, angles, _ = states.T
        across, below = positions + self.length * np.sin(angles), self.length * (1 - np.cos(angles))
        rewards: Array = np.exp(-(across**2 + below**2) / (2 * self.reward_width**2))
        return rewards

    def forces(self, actions: ArrayLike) -> Array:
        """Forces of actions, an array of shape (n,)."""
        shares = np.asarray(actions, dtype=np.float64).reshape(-1)
        if self.n_forces is not None:
            shares = 2 * shares / (self.n_forces - 1) - 1
        return self.max_force * shares

    def advance(self, states: Array, forces: Array) -> Array:
        """States reached from states of shape (n, 4) by forces of shape (n,) held for one step."""
        limits = np.array([self.rail, self.max_speed, np.inf, self.max_spin])
        h = self.dt / self.substeps
        running = ~self.is_terminal(states)[:, np.newaxis]
        for _ in range(self.substeps):
            # classical Runge–Kutta
            f1 = self.derivatives(states, forces)  # [n, 4]
            f2 = self.derivatives(states + h / 2 * f1, forces)
            f3 = self.derivatives(states + h / 2 * f2, forces)
            f4 = self.derivatives(states + h * f3, forces)
            moved = np.clip(states + h / 6 * (f1 + 2 * f2 + 2 * f3 + f4), -limits, limits)
            states = np.where(running, moved, states)
            running = ~self.is_terminal(states)[:, np.newaxis]
        reached = states.copy()
        reached[:, 2] = wrap_angles(reached[:, 2])
        return reached

    def derivatives(self, states: Array, forces: Array) -> Array:
        """Time derivatives (ẋ, ẍ, θ̇, θ̈) of states of shape (n, 4) under forces of shape (n,)."""
        _, speeds, angles, spins = states.T
        sin, cos = np.sin(angles), np.cos(angles)
        # (M + m)ẍ + ½ml(θ̈ cos θ − θ̇² sin θ) = u − bẋ and ⅔lθ̈ + ẍ cos θ = g sin θ
        pushes = forces - self.friction * speeds + self.pole_mass * self.length / 2 * spins**2 * sin
        inertia = self.cart_mass + self.pole_mass * (1 - 0.75 * cos**2)
        pulls = (pushes - 0.75 * self.pole_mass * self.gravity * sin * cos) / inertia
        turns = 1.5 / self.length * (self.gravity * sin - pulls * cos)
        return np.stack([speeds, pulls, spins, turns], axis=1)

    def step(self, states: Array, actions: NDArray[Any], rng: np.random.Generator) -> tuple[Array, Array, BoolArray]:
        """States reached, rewards of the states left, and whether the states reached are terminal.

        Parameters
        ----------
        states : ndarray of shape (n, 4)
        actions : ndarray of shape (n,) or (n, 1)
            Indices of forces, or shares of the largest force.
        rng : numpy.random.Generator
            Not used: only start states are random.

        Returns
        -------
        states : ndarray of shape (n, 4)
        rewards : ndarray of shape (n,)
        terminated : ndarray of shape (n,)
        """
        reached = self.advance(states, self.forces(actions))
        return reached, self.rewards(states), self.is_terminal(reached)

    def observe(self, states: Array) -> ObservationArray:
        """Observations of states of shape (n, 4), an array of shape (n, 4) or (n, 5)."""
        if self.observation == "angle":
            return states.astype(np.float32)
        positions, speeds, angles, spins = states.T
        return np.stack([positions, speeds, np.cos(angles), np.sin(angles), spins], axis=1).astype(np.float32)

    def states_of(self, observations: ArrayLike) -> Array:
        """States of shape (n, 4) behind observations of shape (n, 4) or (n, 5)."""
        n_dims = self.observation_space.shape[0]
        seen = checked_observations(observations, n_dims)
        angles = seen[:, 2] if n_dims == 4 else np.arctan2(seen[:, 3], seen[:, 2])
        return np.stack([seen[:, 0], seen[:, 1], wrap_angles(angles), seen[:, -1]], axis=1)

    def draw(self, state: Array, action: NDArray[Any] | None) -> Canvas:
        """Picture of the rail, the cart, the pole, the goal of its tip, and the force as an arrow.

        Parameters
        ----------
        state : ndarray of shape (4,)
        action : ndarray, optional

        Returns
        -------
        Canvas
        """
        x, l = float(state[0]), self.length
        width, height = 2 * self.rail + l, 3 * l
        canvas = Canvas(width, height, origin=(-width / 2, -1.5 * l), scale=600 / width)
        canvas.disc((0.0, l), self.reward_width, GREEN)
        canvas.path([(-self.rail, 0.0), (self.rail, 0.0)], 0.03 * l, GREY)
        canvas.rectangle((x - 0.3 * l, -0.15 * l), 0.6 * l, 0.3 * l, INK)
        tip = x + l * float(np.sin(state[2])), l * float(np.cos(state[2]))
        canvas.path([(x, 0.0), tip], 0.08 * l, BLUE)
        if action is not None and (force := float(self.forces(action[np.newaxis])[0])):
            start, end = x + np.copysign(0.3 * l, force), x + np.copysign(0.3 * l, force) + l * force / self.max_force
            canvas.path([(start, 0.0), (end, 0.0)], 0.06 * l, RED)
            ahead = end + np.copysign(0.15 * l, force)
            canvas.polygon([(end, 0.1 * l), (end, -0.1 * l), (ahead, 0.0)], RED)
        return canvas


class CartPoleSwingUpEnv(DynamicsEnv):
    """One cart: `gymnasium.make("gptd_rl/CartPoleSwingUp-v0", **constants)`.

    Parameters
    ----------
    render_mode : {"rgb_array", "human"}, optional
    **constants
        Arguments of `CartPoleSwingUp`.
    """

    dynamics_class = CartPoleSwingUp


class CartPoleSwingUpVectorEnv(DynamicsVectorEnv):
    """Many carts: `gymnasium.make_vec("gptd_rl/CartPoleSwingUp-v0", num_envs, **constants)`.

    Parameters
    ----------
    num_envs : int
    max_episode_steps, render_mode, autoreset_mode
        As for `DynamicsVectorEnv`.
    **constants
        Arguments of `CartPoleSwingUp`.
    """

    dynamics_class = CartPoleSwingUp
    default_max_episode_steps = MAX_EPISODE_STEPS
