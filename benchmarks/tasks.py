"""Policy-evaluation tasks whose V^π is known: what the benchmarks of model selection are run on.

Each task samples trajectories of a fixed policy and tells the true value of any state, in closed form, by dynamic
programming, or by rolling out (once where nothing is random, many times where something is).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gptd_rl import Trajectories
from gptd_rl.agents.reference.dynamic_programming import solve_pendulum
from gptd_rl.envs.pendulum import PendulumSwingUp

Array = NDArray[np.float64]
Step = Callable[[Array, np.random.Generator], tuple[Array, Array, NDArray[np.bool_]]]


@dataclass(frozen=True)
class Task:
    """A policy in a system: how it starts, how it steps, how many steps are sampled, and what is true.

    Attributes
    ----------
    step : callable
        (states [n, D], rng) → (states reached, rewards of the step, whether the states reached are terminal), batched.
    start : callable
        (n, rng) → states [n, D].
    max_steps : int
        Length at which an episode is truncated.
    value : callable or None
        states → V^π; None: roll out, `n_rollouts` times.
    """

    name: str
    kind: str
    gamma: float
    n_transitions: int
    max_steps: int
    start: Callable[[int, np.random.Generator], Array]
    step: Step
    value: Callable[[Array], Array] | None = None
    n_rollouts: int = 400

    def sample(self, rng: np.random.Generator, n_transitions: int | None = None) -> Trajectories:
        """Episodes until there are `n_transitions`; the last is cut off there."""
        left = n_transitions or self.n_transitions
        episodes = []
        while left > 0:
            episodes.append(self._episode(rng, min(self.max_steps, left)))
            left -= len(episodes[-1]["rewards"])
        return Trajectories.from_episodes(episodes, gamma=self.gamma)

    def truth(self, states: Array, rng: np.random.Generator) -> Array:
        """V^π at `states`, of shape (n,)."""
        if self.value is not None:
            return self.value(states)
        x = np.repeat(states, self.n_rollouts, axis=0)
        returns, alive = np.zeros(len(x)), np.ones(len(x), dtype=bool)
        for t in range(int(np.ceil(np.log(1e-4) / np.log(self.gamma)))):
            x, rewards, terminal = self.step(x, rng)
            returns += np.where(alive, self.gamma**t * rewards, 0.0)
            alive &= ~terminal
            if not alive.any():
                break
        return returns.reshape(len(states), -1).mean(axis=1)

    def test_states(self, rng: np.random.Generator, n: int = 200) -> Array:
        """States that fresh episodes of the policy pass through."""
        fresh = self.sample(rng, max(self.n_transitions, 3 * n))
        inner = np.flatnonzero(fresh.discounts > 0)
        return fresh.states[rng.choice(inner, n, replace=False)]

    def _episode(self, rng: np.random.Generator, n_steps: int) -> dict[str, Any]:
        x = self.start(1, rng)
        states, rewards, terminated = [x[0]], [], False
        while len(rewards) < n_steps and not terminated:
            x, reward, terminal = self.step(x, rng)
            states.append(x[0])
            rewards.append(reward[0])
            terminated = bool(terminal[0])
        return dict(observations=np.array(states), rewards=np.array(rewards), terminated=terminated)


def gridworld() -> Task:
    """The paper's: straight to the middle column, y at random. The returns hold no noise."""

    def start(n: int, rng: np.random.Generator) -> Array:
        columns = np.array([1, 2, 3, 4, 5, 7, 8, 9, 10, 11])
        return np.column_stack([rng.choice(columns, n), rng.integers(1, 12, n)]).astype(float)

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        reached = x + np.column_stack([np.sign(6 - x[:, 0]), rng.choice([-1, 1], len(x))])
        reached[:, 1] = reached[:, 1].clip(1, 11)
        return reached, -np.ones(len(x)), reached[:, 0] == 6

    def value(x: Array) -> Array:
        return -(1 - 0.99 ** np.abs(x[:, 0] - 6)) / 0.01

    return Task("gridworld", "deterministic returns, many short episodes", 0.99, 500, 100, start, step, value)


def random_gridworld() -> Task:
    """The same grid under a policy that steps away from the middle four times in ten: repeated states, much noise."""
    base = gridworld()

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        towards = np.where(rng.random(len(x)) < 0.6, 1, -1) * np.sign(6 - x[:, 0])
        reached = (x + np.column_stack([towards, rng.choice([-1, 1], len(x))])).clip(1, 11)
        return reached, -np.ones(len(x)), reached[:, 0] == 6

    def value(x: Array) -> Array:
        P = np.zeros((11, 11))  # over columns 1 … 11; the middle one is terminal
        for i in range(11):
            if i != 5:
                towards = int(np.sign(5 - i))
                P[i, i + towards] += 0.6
                P[i, min(max(i - towards, 0), 10)] += 0.4
        cost = np.where(np.arange(11) == 5, 0.0, -1.0)
        return np.linalg.solve(np.eye(11) - 0.95 * P, cost)[x[:, 0].astype(int) - 1]

    return Task("random grid", "stochastic, terminated, repeated states", 0.95, 800, 200, base.start, step, value)


def pendulum(max_steps: int = 200) -> Task:
    """The paper's: swing-up under the optimal policy. Nothing is random but the start."""
    agent, system = solve_pendulum(gamma=0.99), PendulumSwingUp()
    torques = system.torques(np.arange(5))

    def start(n: int, rng: np.random.Generator) -> Array:
        return system.sample_states(n, rng)

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        actions, _ = agent.predict(x.astype(np.float32))
        reached = system.advance(x, torques[actions])
        return reached, system.rewards(x), system.is_terminal(reached)

    name, kind = ("pendulum", "terminated") if max_steps == 200 else ("short pendulum", "truncated")
    return Task(name, f"deterministic, {kind}", 0.99, 1000, max_steps, start, step, None, 1)


def cartpole() -> Task:
    """A hand-made balancing policy that errs one step in four: few long episodes, a slowly drifting cart."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.uniform(-0.05, 0.05, (n, 4))

    def step(s: Array, rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        x, x_dot, angle, spin = s.T
        right = (angle + 0.5 * spin + 0.05 * x + 0.1 * x_dot > 0) ^ (rng.random(len(s)) < 0.25)
        cos, sin = np.cos(angle), np.sin(angle)
        push = (np.where(right, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
        spin_rate = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed_rate = push - 0.05 * spin_rate * cos / 1.1
        reached = s + 0.02 * np.column_stack([x_dot, speed_rate, spin, spin_rate])
        return reached, np.ones(len(s)), (np.abs(reached[:, 0]) > 2.4) | (np.abs(reached[:, 2]) > 0.2095)

    return Task("noisy cartpole", "stochastic, few long episodes", 0.97, 1500, 400, start, step)


def walk() -> Task:
    """A stochastic walk between two ends, paid by where it is."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.random((n, 1))

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        reached = x + 0.1 * rng.normal(size=x.shape)
        return reached, np.sin(6 * x[:, 0]), (reached[:, 0] < 0) | (reached[:, 0] > 1)

    return Task("walk", "stochastic, many terminated episodes", 0.95, 1000, 300, start, step, None, 2000)


def drift(n_segments: int = 5) -> Task:
    """A continuing process x' = 0.9x + noise paid x², beside an input that drifts slowly and does not matter."""
    gamma, rho, sigma = 0.9, 0.9, 0.4

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.normal(size=(n, 2)) * [sigma / np.sqrt(1 - rho**2), 1.0]

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        reached = x * [rho, 0.995] + rng.normal(size=x.shape) * [sigma, 0.1]
        return reached, x[:, 0] ** 2, np.zeros(len(x), dtype=bool)

    def value(x: Array) -> Array:
        curvature = 1 / (1 - gamma * rho**2)  # V = A x² + B
        return curvature * x[:, 0] ** 2 + gamma * curvature * sigma**2 / (1 - gamma)

    name = "drift" if n_segments > 1 else "one long run"
    kind = "stochastic, truncated" + ("" if n_segments > 1 else ", a single segment")
    return Task(name, kind, gamma, 1000, 1000 // n_segments, start, step, value)


def all_tasks() -> list[Task]:
    """Deterministic and stochastic, few and many episodes, terminated and truncated."""
    return [
        gridworld(),
        pendulum(),
        pendulum(max_steps=15),
        random_gridworld(),
        walk(),
        cartpole(),
        drift(),
        drift(n_segments=1),
    ]
