"""Small Markov chains whose value is known exactly: what the estimator is measured against.

Each gives ``sample(n, rng)``, n transitions as `Trajectories`, and ``value(states)``, the true V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy import linalg

from gptd_rl import Trajectories
from gptd_rl.types import Array


class MDP(Protocol):
    """What a test asks of a chain: data, and the truth."""

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories: ...

    def value(self, states: Array) -> Array: ...


Step = Callable[[Array], tuple[Array, float, bool]]  # state → next state, reward, whether that state is terminal


def roll_out(
    n: int, start: Callable[[], Array], step: Step, gamma: float, time_limit: int | None = None
) -> Trajectories:
    """Exactly `n` transitions: episodes end in a terminal state, at the time limit, or where the data end."""
    episodes = []
    n_done = 0
    while n_done < n:
        states, terminated = [start()], False
        rewards: list[float] = []
        limit = min(n - n_done, time_limit or n)
        while not terminated and len(rewards) < limit:
            state, reward, terminated = step(states[-1])
            states.append(state)
            rewards.append(reward)
        n_done += len(rewards)
        episodes.append(dict(observations=np.array(states), rewards=np.array(rewards), terminated=terminated))
    return Trajectories.from_episodes(episodes, gamma=gamma)


@dataclass(frozen=True)
class Walk:
    """A drunkard on a line of cells 0…n_cells+1, both ends terminal: each step costs 1, the right end pays."""

    n_cells: int = 19
    p_right: float = 0.5
    gamma: float = 0.95
    prize: float = 10.0

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        def start() -> Array:
            return np.array([float(rng.integers(1, self.n_cells + 1))])

        def step(x: Array) -> tuple[Array, float, bool]:
            reached = x + (1.0 if rng.random() < self.p_right else -1.0)
            at_end = bool(reached[0] in (0.0, self.n_cells + 1.0))
            return reached, -1.0 + (self.prize if reached[0] > self.n_cells else 0.0), at_end

        return roll_out(n, start, step, self.gamma)

    def value(self, states: Array) -> Array:
        n = self.n_cells
        P = np.diag(np.full(n - 1, self.p_right), 1) + np.diag(np.full(n - 1, 1.0 - self.p_right), -1)
        r = np.full(n, -1.0)
        r[-1] += self.p_right * self.prize
        inside = np.linalg.solve(np.eye(n) - self.gamma * P, r)
        return np.concatenate([[0.0], inside, [0.0]])[np.asarray(states)[:, 0].astype(int)]

    @property
    def cells(self) -> Array:
        """All states that are not terminal."""
        return np.arange(1.0, self.n_cells + 1)[:, None]


@dataclass(frozen=True)
class Drifting:
    """x is a stationary AR(1) process, rewarded by −x²; beside it an input that drifts slowly and means nothing.

    Episodes are cut off by a time limit: nothing terminates. ``V(x) = −x²/(1−γφ²) − const``.
    """

    phi: float = 0.8
    gamma: float = 0.95
    time_limit: int = 50
    drift: float = 0.02  # of the second input a step; it starts anywhere in N(0, 1); 0 leaves the input out

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        kick = np.sqrt(1.0 - self.phi**2)  # keeps the variance of x at 1

        def start() -> Array:
            return rng.normal(size=2 if self.drift else 1)

        def step(x: Array) -> tuple[Array, float, bool]:
            reached = x.copy()
            reached[0] = self.phi * x[0] + kick * rng.normal()
            reached[1:] += self.drift * rng.normal()
            return reached, -float(x[0] ** 2), False

        return roll_out(n, start, step, self.gamma, self.time_limit)

    def value(self, states: Array) -> Array:
        a = 1.0 / (1.0 - self.gamma * self.phi**2)
        const = self.gamma * a * (1.0 - self.phi**2) / (1.0 - self.gamma)
        return -a * np.asarray(states)[:, 0] ** 2 - const


@dataclass(frozen=True)
class Garnet:
    """A random finite chain over points of the unit square: each leads to one of its neighbours, two points end it."""

    n_points: int = 60
    n_neighbours: int = 5
    gamma: float = 0.9
    seed: int = 0
    points: Array = field(init=False, repr=False)
    P: Array = field(init=False, repr=False)  # zero rows at terminal points
    r: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        points = rng.random((self.n_points, 2))
        P = np.zeros((self.n_points, self.n_points))
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        for i in range(2, self.n_points):  # the first two are terminal
            P[i, np.argsort(distances[i])[1 : self.n_neighbours + 1]] = rng.dirichlet(np.ones(self.n_neighbours))
        r = np.where(np.arange(self.n_points) < 2, 0.0, np.sin(3.0 * points[:, 0]) + points[:, 1] - 1.0)
        for name, value in (("points", points), ("P", P), ("r", r)):
            object.__setattr__(self, name, value)

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        def start() -> Array:
            return np.array([float(rng.integers(2, self.n_points))])

        def step(state: Array) -> tuple[Array, float, bool]:
            i = int(state[0])
            j = int(rng.choice(self.n_points, p=self.P[i]))
            return np.array([float(j)]), float(self.r[i]), j < 2

        numbered = roll_out(n, start, step, self.gamma, time_limit=40)
        return Trajectories(
            self.points[numbered.states[:, 0].astype(int)],
            numbered.rewards,
            numbered.discounts,
            numbered.lengths,
            numbered.terminated,
        )

    def value(self, states: Array) -> Array:
        V = np.linalg.solve(np.eye(self.n_points) - self.gamma * self.P, self.r)
        nearest = np.linalg.norm(np.asarray(states)[:, None] - self.points, axis=2).argmin(axis=1)
        return V[nearest]


@dataclass(frozen=True)
class Gridworld:
    """The paper's: a step towards the middle column costs 1, y walks at random and means nothing."""

    size: int = 11
    gamma: float = 0.99

    @property
    def middle(self) -> int:
        return (self.size + 1) // 2

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        columns = rng.integers(1, self.size, size=n)  # starts outside the middle, more than enough of them
        columns += columns >= self.middle
        distances = np.abs(columns - self.middle)
        n_episodes = int(np.searchsorted(np.cumsum(distances), n)) + 1
        columns, distances = columns[:n_episodes], distances[:n_episodes]
        terminated = np.ones(n_episodes, dtype=bool)
        if surplus := int(distances.sum()) - n:
            distances[-1] -= surplus
            terminated[-1] = False
        steps = np.arange(self.middle)
        x = columns[:, None] + np.sign(self.middle - columns)[:, None] * steps
        y = rng.integers(1, self.size + 1, size=(n_episodes, self.middle))
        for t in steps[1:]:
            y[:, t] = np.clip(y[:, t - 1] + rng.choice([-1, 1], size=n_episodes), 1, self.size)
        moves = steps < distances[:, None]  # False at the last state of each episode
        visited = steps <= distances[:, None]
        return Trajectories(
            np.column_stack([x[visited], y[visited]]),
            np.where(moves, -1.0, 0.0)[visited],
            np.where(moves, self.gamma, 0.0)[visited],
            distances + 1,
            terminated,
        )

    def value(self, states: Array) -> Array:
        distance = np.abs(np.asarray(states)[:, 0] - self.middle)
        return -(1.0 - self.gamma**distance) / (1.0 - self.gamma)

    @property
    def cells(self) -> Array:
        """All states, terminal ones included."""
        axis = np.arange(1.0, self.size + 1)
        return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


@dataclass(frozen=True)
class Spiral:
    """A deterministic linear system ``x' = Ax`` that spirals inwards, rewarded by ``−xᵀCx``: ``V = −xᵀPx``."""

    gamma: float = 0.95
    time_limit: int = 25

    @property
    def A(self) -> Array:
        angle = 0.3
        return 0.97 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    @property
    def C(self) -> Array:
        return np.diag([1.0, 0.2])

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        def step(x: Array) -> tuple[Array, float, bool]:
            return self.A @ x, -float(x @ self.C @ x), False

        return roll_out(n, lambda: rng.uniform(-1.0, 1.0, size=2), step, self.gamma, self.time_limit)

    def value(self, states: Array) -> Array:
        P = linalg.solve_discrete_lyapunov(np.sqrt(self.gamma) * self.A.T, self.C)  # P = C + γAᵀPA
        x = np.asarray(states)
        return -np.einsum("ni,ij,nj->n", x, P, x)


@dataclass(frozen=True)
class Ring:
    """An angle that turns and diffuses, seen as its cosine and sine, rewarded by the cosine; runs are cut off.

    E[exp(iθ')] = c·exp(iθ) with c = exp(i·turn − ½·noise²), so ``V = Re(exp(iθ) / (1 − γc))``.
    """

    turn: float = 0.3
    noise: float = 0.5
    gamma: float = 0.9
    time_limit: int = 25

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        runs = -(-n // self.time_limit)
        steps = self.turn + self.noise * rng.normal(size=(runs, self.time_limit))
        angles = np.cumsum(np.column_stack([rng.uniform(-np.pi, np.pi, runs), steps]), axis=1)
        return cut_runs(np.stack([np.cos(angles), np.sin(angles)], axis=2), np.cos(angles), self.gamma)

    def value(self, states: Array) -> Array:
        c = np.exp(1j * self.turn - 0.5 * self.noise**2)
        x = np.asarray(states)
        return np.asarray(((x[:, 0] + 1j * x[:, 1]) / (1.0 - self.gamma * c)).real)


@dataclass(frozen=True)
class Saddle:
    """Two independent stationary AR(1) processes, rewarded by their product: ``V = x·y / (1 − γφ²)``."""

    phi: float = 0.8
    gamma: float = 0.9
    time_limit: int = 25

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        runs = -(-n // self.time_limit)
        x = rng.normal(size=(runs, self.time_limit + 1, 2))
        for t in range(self.time_limit):
            x[:, t + 1] = self.phi * x[:, t] + np.sqrt(1.0 - self.phi**2) * x[:, t + 1]
        return cut_runs(x, x.prod(axis=2), self.gamma)

    def value(self, states: Array) -> Array:
        return np.asarray(states).prod(axis=1) / (1.0 - self.gamma * self.phi**2)


def cut_runs(states: Array, rewards: Array, gamma: float) -> Trajectories:
    """Truncated runs of equal length, of states [runs, T + 1, n_dims] and rewards [runs, T + 1], whose last is void."""
    n_runs, length, n_dims = states.shape
    discounts = np.full((n_runs, length), gamma)
    discounts[:, -1] = 0.0
    paid = np.where(discounts > 0.0, rewards, 0.0)
    flags = np.zeros(n_runs, dtype=bool)
    return Trajectories(states.reshape(-1, n_dims), paid.ravel(), discounts.ravel(), np.full(n_runs, length), flags)


def rmse(estimate: Array, truth: Array) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((estimate - truth) ** 2)))
