"""The classic-control systems as batched functions of the state, for rollouts of V^π from any state.

Gymnasium's environments choose their start states and step one by one. These restart from any observation, thousands at
a time, without a time limit; `tests/benchmarks/test_evaluate.py` compares them with Gymnasium's own, step by step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gptd_rl.envs.pendulum import PendulumSwingUp
from gptd_rl.types import Array

Step = tuple[Array, Array, NDArray[np.bool_]]


class System(ABC):
    """A deterministic system whose state can be read off an observation."""

    @abstractmethod
    def states_of(self, observations: Array) -> Array:
        """States with these `observations`."""

    @abstractmethod
    def observe(self, states: Array) -> NDArray[np.float32]:
        """Observations of states."""

    @abstractmethod
    def step(self, states: Array, actions: NDArray) -> Step:
        """Next states, rewards, and whether the next states are terminal."""


class CartPole(System):
    """Gymnasium's CartPole-v1: (x, ẋ, θ, θ̇), Euler steps of 20 ms."""

    def states_of(self, observations: Array) -> Array:
        return observations.astype(np.float64)

    def observe(self, states: Array) -> NDArray[np.float32]:
        return states.astype(np.float32)

    def step(self, states: Array, actions: NDArray) -> Step:
        x, x_dot, theta, theta_dot = states.T
        force = np.where(actions == 1, 10.0, -10.0)
        cos, sin = np.cos(theta), np.sin(theta)
        push = (force + 0.05 * theta_dot**2 * sin) / 1.1
        theta_acc = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        x_acc = push - 0.05 * theta_acc * cos / 1.1
        following = np.stack(
            [x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc], axis=1
        )
        fallen = (np.abs(following[:, 0]) > 2.4) | (np.abs(following[:, 2]) > 12 * np.pi / 180)
        return following, np.ones(len(states)), fallen


class Acrobot(System):
    """Gymnasium's Acrobot-v1: two angles and their speeds, one Runge–Kutta step of 0.2 s."""

    LIMITS = np.array([4 * np.pi, 9 * np.pi])

    def states_of(self, observations: Array) -> Array:
        cos1, sin1, cos2, sin2, speed1, speed2 = observations.astype(np.float64).T
        return np.stack([np.arctan2(sin1, cos1), np.arctan2(sin2, cos2), speed1, speed2], axis=1)

    def observe(self, states: Array) -> NDArray[np.float32]:
        a, b, speed1, speed2 = states.T
        return np.stack([np.cos(a), np.sin(a), np.cos(b), np.sin(b), speed1, speed2], axis=1).astype(np.float32)

    def step(self, states: Array, actions: NDArray) -> Step:
        torque, dt = actions.astype(np.float64) - 1.0, 0.2
        k1 = self._derivative(states, torque)
        k2 = self._derivative(states + dt / 2 * k1, torque)
        k3 = self._derivative(states + dt / 2 * k2, torque)
        k4 = self._derivative(states + dt * k3, torque)
        following = states + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        following[:, :2] = (following[:, :2] + np.pi) % (2 * np.pi) - np.pi
        following[:, 2:] = np.clip(following[:, 2:], -self.LIMITS, self.LIMITS)
        a, b = following[:, 0], following[:, 1]
        up = -np.cos(a) - np.cos(a + b) > 1.0
        return following, np.where(up, 0.0, -1.0), up

    @staticmethod
    def _derivative(states: Array, torque: Array) -> Array:
        # masses and lengths 1, centres of mass at 0.5, moments of inertia 1
        theta1, theta2, dtheta1, dtheta2 = states.T
        cos2, sin2 = np.cos(theta2), np.sin(theta2)
        d1 = 0.25 + (1.0 + 0.25 + cos2) + 2.0
        d2 = 0.25 + 0.5 * cos2 + 1.0
        phi2 = 0.5 * 9.8 * np.cos(theta1 + theta2 - np.pi / 2)
        phi1 = -0.5 * dtheta2**2 * sin2 - dtheta2 * dtheta1 * sin2 + 1.5 * 9.8 * np.cos(theta1 - np.pi / 2) + phi2
        ddtheta2 = (torque + d2 / d1 * phi1 - 0.5 * dtheta1**2 * sin2 - phi2) / (1.25 - d2**2 / d1)
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return np.stack([dtheta1, dtheta2, ddtheta1, ddtheta2], axis=1)


class Pendulum(System):
    """Gymnasium's Pendulum-v1: angle from upright and speed, torque within ± 2."""

    def states_of(self, observations: Array) -> Array:
        cos, sin, speed = observations.astype(np.float64).T
        return np.stack([np.arctan2(sin, cos), speed], axis=1)

    def observe(self, states: Array) -> NDArray[np.float32]:
        angle, speed = states.T
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)

    def step(self, states: Array, actions: NDArray) -> Step:
        angle, speed = states.T
        torque = np.clip(actions.reshape(len(states)), -2.0, 2.0)
        folded = (angle + np.pi) % (2 * np.pi) - np.pi
        rewards = -(folded**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        return np.stack([angle + speed * 0.05, speed], axis=1), rewards, np.zeros(len(states), dtype=bool)


class SwingUp(System):
    """Our PendulumSwingUp-v0, which is made of batched functions anyway."""

    task = PendulumSwingUp()

    def states_of(self, observations: Array) -> Array:
        return observations.astype(np.float64)

    def observe(self, states: Array) -> NDArray[np.float32]:
        return self.task.observe(states)

    def step(self, states: Array, actions: NDArray) -> Step:
        return self.task.step(states, actions, np.random.default_rng(0))  # nothing in it is random


class MountainCar(System):
    """Gymnasium's MountainCarContinuous-v0: position and velocity of a car that is too weak for the hill."""

    def states_of(self, observations: Array) -> Array:
        return observations.astype(np.float64)

    def observe(self, states: Array) -> NDArray[np.float32]:
        return states.astype(np.float32)

    def step(self, states: Array, actions: NDArray) -> Step:
        position, velocity = states.T
        action = actions.reshape(len(states)).astype(np.float64)
        velocity = velocity + np.clip(action, -1.0, 1.0) * 0.0015 - 0.0025 * np.cos(3 * position)
        velocity = np.clip(velocity, -0.07, 0.07)
        position = np.clip(position + velocity, -1.2, 0.6)
        velocity = np.where((position == -1.2) & (velocity < 0), 0.0, velocity)
        terminal = (position >= 0.45) & (velocity >= 0.0)
        return np.stack([position, velocity], axis=1), 100.0 * terminal - 0.1 * action**2, terminal


class TwoTanks(System):
    """A pump (off, slow, fast) fills tank 1, a valve (closed, half, open) lets it flow into tank 2, which leaks.

    Observed are the levels and the wanted level of tank 2, which stays the same in an episode. Tanks must not overflow.
    """

    def states_of(self, observations: Array) -> Array:
        return observations.astype(np.float64)

    def observe(self, states: Array) -> NDArray[np.float32]:
        return states.astype(np.float32)

    def step(self, states: Array, actions: NDArray) -> Step:
        first, second, wanted = states.T
        pump, valve = actions.T
        flow = 0.06 * valve * np.sqrt(first)
        rewards = 1.0 - 10.0 * (second - wanted) ** 2 - 0.1 * pump
        first = np.clip(first + 0.03 * pump - flow, 0.0, None)
        second = np.clip(second + flow - 0.05 * np.sqrt(second), 0.0, None)
        terminal = (first > 1.0) | (second > 1.0)
        return np.stack([first, second, wanted], axis=1), rewards - 10.0 * terminal, terminal


SYSTEMS: dict[str, System] = {
    "CartPole-v1": CartPole(),
    "Acrobot-v1": Acrobot(),
    "Pendulum-v1": Pendulum(),
    "gptd_rl/PendulumSwingUp-v0": SwingUp(),
    "MountainCarContinuous-v0": MountainCar(),
    "gptd_benchmarks/TwoTanks-v0": TwoTanks(),
}


def rolled_out_values(
    system: System,
    act: Callable[[NDArray[np.float32]], NDArray],
    observations: Array,
    gamma: float,
    n_rollouts: int,
    tolerance: float = 1e-4,
) -> tuple[Array, Array]:
    """V^π by rolling out from each observation, `n_rollouts` times, until γᵗ < `tolerance`.

    Returns
    -------
    mean, error : ndarray of shape (n,)
        The average return, and its standard error.
    """
    states = np.repeat(system.states_of(observations), n_rollouts, axis=0)
    returns, running = np.zeros(len(states)), np.arange(len(states))
    for t in range(int(np.ceil(np.log(tolerance) / np.log(gamma)))):
        states, rewards, terminal = system.step(states, act(system.observe(states)))
        returns[running] += gamma**t * rewards
        states, running = states[~terminal], running[~terminal]
        if not len(running):
            break
    by_state = returns.reshape(len(observations), n_rollouts)
    spread = by_state.std(axis=1, ddof=1) if n_rollouts > 1 else np.zeros(len(observations))
    return by_state.mean(axis=1), spread / np.sqrt(n_rollouts)
