"""Systems with finitely many states under a fixed policy: grids and chains, whose V^π a linear solve gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from systems import Array, System, Transition

RIGHT_LEFT_UP_DOWN = ((1, 0), (-1, 0), (0, 1), (0, -1))
Cell = tuple[int, int]


def finite(P: Array, rewards: Array, terminal: Array, points: Array, gamma: float) -> System:
    """Markov chain with `rewards` [s, s] for going from state i to state j; a state is seen as its point.

    V = Σ_j P_ij(R_ij + γV_j), where terminal states are worth 0. Runs start in any other state alike.
    """
    inner = np.flatnonzero(~terminal)
    cumulative = np.cumsum(P, axis=1)
    V = np.zeros(len(P))
    inside = P[np.ix_(inner, inner)]
    V[inner] = np.linalg.solve(np.eye(len(inner)) - gamma * inside, (P * rewards).sum(axis=1)[inner])

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.choice(inner, (n, 1)).astype(float)

    def step(x: Array, rng: np.random.Generator) -> Transition:
        i = x[:, 0].astype(int)
        j = (cumulative[i] < rng.random((len(x), 1)) * cumulative[i, -1:]).sum(axis=1)
        return j[:, None].astype(float), rewards[i, j], terminal[j]

    def at(table: Array) -> Callable[[Array], Array]:
        return lambda x: table[x[:, 0].astype(int)]

    return System(gamma, start, step, "stochastic", at(V), at(points.astype(float)))


def grid(
    width: int,
    height: int,
    weights: tuple[float, float, float, float],
    payoffs: Mapping[Cell, float],
    gamma: float,
    walls: frozenset[Cell] = frozenset(),
    step_reward: float = -1.0,
) -> System:
    """Steps right, left, up, down with probabilities `weights`; walls and borders hold; cells with `payoffs` end it."""
    cells = [(i, j) for i in range(width) for j in range(height) if (i, j) not in walls]
    number = {cell: k for k, cell in enumerate(cells)}
    P = np.zeros((len(cells), len(cells)))
    for k, (i, j) in enumerate(cells):
        for weight, (di, dj) in zip(weights, RIGHT_LEFT_UP_DOWN, strict=True):
            P[k, number.get((i + di, j + dj), k)] += weight
    terminal = np.array([cell in payoffs for cell in cells])
    rewards = step_reward + np.array([payoffs.get(cell, 0.0) for cell in cells])
    return finite(P, np.tile(rewards, (len(cells), 1)), terminal, np.array(cells), gamma)


def slippery_grid(gamma: float = 0.9) -> System:
    """Five by five, towards the far corner, with a pit in the middle."""
    return grid(5, 5, (0.35, 0.15, 0.35, 0.15), {(4, 4): 5.0, (2, 2): -5.0}, gamma)


def two_rooms(gamma: float = 0.95) -> System:
    """Two rooms with a door: neighbours on the two sides of the wall differ much in value."""
    walls = frozenset((4, j) for j in range(5) if j != 2)
    return grid(9, 5, (0.4, 0.2, 0.2, 0.2), dict.fromkeys([(8, j) for j in range(5)], 10.0), gamma, walls)


def ruin(gamma: float = 0.99, size: int = 20, win: float = 0.48) -> System:
    """Gambler's ruin: bets of 1 until nothing is left, or `size`, which pays 10."""
    P = np.eye(size + 1, k=1) * win + np.eye(size + 1, k=-1) * (1 - win)
    rewards = np.zeros((size + 1, size + 1))
    rewards[:, size] = 10.0
    fortune = np.arange(size + 1)
    return finite(P, rewards, (fortune == 0) | (fortune == size), fortune[:, None], gamma)


def gridworld() -> System:
    """The paper's: straight to the middle column, y at random. The returns hold no noise."""
    gamma = 0.99

    def step(x: Array, rng: np.random.Generator) -> Transition:
        reached = x + np.column_stack([np.sign(6 - x[:, 0]), rng.choice([-1, 1], len(x))])
        reached[:, 1] = reached[:, 1].clip(1, 11)
        return reached, -np.ones(len(x)), reached[:, 0] == 6

    def value(x: Array) -> Array:
        return -(1 - gamma ** np.abs(x[:, 0] - 6)) / (1 - gamma)

    return System(gamma, _outside_the_middle, step, "deterministic", value)


def random_grid(gamma: float = 0.95) -> System:
    """The same grid under a policy that steps away from the middle four times in ten: repeated states, much noise."""
    P = np.zeros((11, 11))  # over columns 1 … 11; the middle one is terminal
    for i in range(11):
        if i != 5:
            towards = int(np.sign(5 - i))
            P[i, i + towards] += 0.6
            P[i, min(max(i - towards, 0), 10)] += 0.4
    V = np.linalg.solve(np.eye(11) - gamma * P, np.where(np.arange(11) == 5, 0.0, -1.0))

    def step(x: Array, rng: np.random.Generator) -> Transition:
        towards = np.where(rng.random(len(x)) < 0.6, 1, -1) * np.sign(6 - x[:, 0])
        reached = (x + np.column_stack([towards, rng.choice([-1, 1], len(x))])).clip(1, 11)
        return reached, -np.ones(len(x)), reached[:, 0] == 6

    return System(gamma, _outside_the_middle, step, "stochastic", lambda x: V[x[:, 0].astype(int) - 1])


def _outside_the_middle(n: int, rng: np.random.Generator) -> Array:
    columns = np.array([1, 2, 3, 4, 5, 7, 8, 9, 10, 11])
    return np.column_stack([rng.choice(columns, n), rng.integers(1, 12, n)]).astype(float)
