"""Stochastic systems with actions: a behaviour policy that makes the data, a target policy, and the target's Q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.spatial import KDTree
from scipy.stats import norm, poisson
from systems import TOLERANCE, Array, Transition, interval_walk, never, quadrature

from gptd_rl.agents.reference.dynamic_programming import solve_pendulum
from gptd_rl.envs.pendulum import PendulumSwingUp

Actions = NDArray[Any]
Policy = Callable[[Array], Actions]


@dataclass(frozen=True)
class StochasticPolicy:
    """Policy over numbered actions that tells their probabilities.

    Attributes
    ----------
    action_probabilities : callable
        states [n, D] → [n, n_actions].
    """

    action_probabilities: Callable[[Array], Array]
    batched = True

    def sample(self, states: Array, rng: np.random.Generator) -> Actions:
        """One action for each state."""
        cumulative = np.cumsum(self.action_probabilities(states), axis=1)
        return (cumulative < rng.random((len(states), 1)) * cumulative[:, -1:]).sum(axis=1)

    def __call__(self, states: Array) -> Actions:
        """One action for each state; the same for the same batch."""
        return self.sample(np.asarray(states), np.random.default_rng(0))

    def predict(self, states: Array, deterministic: bool = False) -> tuple[Actions, None]:
        """As `__call__`, in the form of Stable-Baselines3: samples, because the policy is stochastic."""
        return self(states), None


def batched(rule: Policy) -> Policy:
    """Mark a function as a policy of many states at a time."""
    rule.batched = True  # type: ignore[attr-defined]
    return rule


@dataclass(frozen=True)
class DecisionSystem:
    """A system with actions, the policy that acts in it and the policy that is to be evaluated.

    Attributes
    ----------
    start : callable
        (n, rng) → states [n, d].
    step : callable
        (states [n, d], actions [n], rng) → (states reached, rewards, whether the states reached are terminal).
    behaviour : StochasticPolicy, or callable of (states, rng) where actions are continuous
    target : StochasticPolicy, or a deterministic function of states with the attribute `batched`
    n_actions : int or None
        None if actions are continuous.
    q : callable or None
        (states, actions) → Q of the target [n]; None: by rollouts.
    """

    gamma: float
    start: Callable[[int, np.random.Generator], Array]
    step: Callable[[Array, Actions, np.random.Generator], Transition]
    behaviour: Any
    target: Any
    n_actions: int | None
    q: Callable[[Array, Actions], Array] | None = None

    def act(self, states: Array, rng: np.random.Generator) -> Actions:
        """Actions of the behaviour policy."""
        policy = self.behaviour
        return policy.sample(states, rng) if isinstance(policy, StochasticPolicy) else policy(states, rng)

    def truth(self, states: Array, actions: Actions, rng: np.random.Generator, n_rollouts: int = 200) -> Array:
        """Q of the target policy, of shape (n,)."""
        if self.q is not None:
            return self.q(states, actions)
        return self.rolled_out(states, actions, rng, n_rollouts).mean(axis=1)

    def rolled_out(self, states: Array, actions: Actions, rng: np.random.Generator, n_rollouts: int) -> Array:
        """Discounted returns of `actions` and the target policy from then on, of shape (n, n_rollouts)."""
        x, a = np.repeat(states, n_rollouts, axis=0), np.repeat(actions, n_rollouts, axis=0)
        returns, alive = np.zeros(len(x)), np.arange(len(x))
        for t in range(int(np.ceil(np.log(TOLERANCE) / np.log(self.gamma)))):
            x, rewards, terminal = self.step(x, a, rng)
            returns[alive] += self.gamma**t * rewards
            alive, x = alive[~terminal], x[~terminal]
            if not len(alive):
                break
            a = self.target.sample(x, rng) if isinstance(self.target, StochasticPolicy) else self.target(x)
        return returns.reshape(len(states), n_rollouts)

    def target_probabilities(self, states: Array) -> Array:
        """Probabilities of numbered actions under the target policy, of shape (n, n_actions)."""
        if isinstance(self.target, StochasticPolicy):
            return self.target.action_probabilities(states)
        assert self.n_actions is not None
        return np.eye(self.n_actions)[self.target(states)]


def uniform(n_actions: int) -> StochasticPolicy:
    """All actions alike."""
    return StochasticPolicy(lambda x: np.full((len(x), n_actions), 1 / n_actions))


# ------------------------------------------------------------------------------------------ finitely many states


def finite_decisions(
    P: Array,
    rewards: Array,
    points: Array,
    gamma: float,
    behaviour: Array,
    target: Array,
    terminal: Array | None = None,
) -> DecisionSystem:
    """MDP with P and `rewards` of shape (s, a, s), states that are `points` (s, D), and policies as tables (s, a).

    V = Σ_a π(R̄ + γPV) is a linear solve, and Q = R̄ + γPV. A `target` of zeros and ones is a deterministic function.
    """
    n, n_actions, _ = P.shape
    ends = np.zeros(n, dtype=bool) if terminal is None else terminal
    mean_rewards = (P * rewards).sum(axis=2)
    inside = P * ~ends
    P_target, r_target = np.einsum("sa,sat->st", target, inside), (target * mean_rewards).sum(axis=1)
    Q = mean_rewards + gamma * inside @ np.linalg.solve(np.eye(n) - gamma * P_target, r_target)
    cumulative, tree, inner = np.cumsum(P, axis=2), KDTree(points), np.flatnonzero(~ends)
    points = points.astype(float)

    def number(x: Array) -> NDArray[np.int64]:
        return tree.query(x)[1]

    def step(x: Array, actions: Actions, rng: np.random.Generator) -> Transition:
        i = number(x)
        limit = rng.random((len(x), 1)) * cumulative[i, actions, -1:]
        j = (cumulative[i, actions] < limit).sum(axis=1)
        return points[j], rewards[i, actions, j], ends[j]

    certain = bool(np.isin(target, (0.0, 1.0)).all())
    return DecisionSystem(
        gamma,
        lambda n, rng: points[rng.choice(inner, n)],
        step,
        StochasticPolicy(lambda x: behaviour[number(x)]),
        batched(lambda x: target[number(x)].argmax(axis=1))
        if certain
        else StochasticPolicy(lambda x: target[number(x)]),
        n_actions,
        lambda x, actions: Q[number(x), actions],
    )


def slippery_grid(gamma: float = 0.95, size: int = 6) -> DecisionSystem:
    """Right to the border, then up to the goal; one step in five slips; a pit is near. States are coordinates."""
    cells = [(i, j) for i in range(size) for j in range(size)]
    number = {cell: k for k, cell in enumerate(cells)}
    moves = ((1, 0), (-1, 0), (0, 1), (0, -1))
    following = np.array([[number.get((i + di, j + dj), number[i, j]) for di, dj in moves] for i, j in cells])
    P = np.zeros((len(cells), 4, len(cells)))
    for k, reached in enumerate(following):
        for a in range(4):
            np.add.at(P[k, a], reached, 0.05)
            P[k, a, reached[a]] += 0.8
    payoffs = np.zeros(len(cells))
    payoffs[number[size - 1, size - 1]], payoffs[number[3, 2]] = 10.0, -5.0
    target = np.eye(4)[[0 if i < size - 1 else 2 for i, _ in cells]]
    rewards = np.broadcast_to(payoffs - 1.0, P.shape)
    return finite_decisions(P, rewards, np.array(cells), gamma, 0.4 * target + 0.15, target, payoffs != 0)


def inventory(gamma: float = 0.95, capacity: int = 20) -> DecisionSystem:
    """A stock, orders of 0 to 4, demand of two a day (Poisson). Target: order up to eight. Data: random orders."""
    stock, n_orders = np.arange(capacity + 1), 5
    P, rewards = np.zeros((2, capacity + 1, n_orders, capacity + 1))
    for s in stock:
        for a in range(n_orders):
            full = min(s + a, capacity)
            left = np.arange(full + 1)
            P[s, a, left] = poisson.pmf(full - left, 2.0)
            P[s, a, 0] = poisson.sf(full - 1, 2.0)
            rewards[s, a, left] = 3.0 * (full - left) - (full - s) - 0.2 * left
    target = np.eye(n_orders)[(8 - stock).clip(0, n_orders - 1)]
    behaviour = np.tile([0.35, 0.2, 0.15, 0.15, 0.15], (capacity + 1, 1))
    return finite_decisions(P, rewards, stock[:, None], gamma, behaviour, target)


def queue(gamma: float = 0.95, capacity: int = 15) -> DecisionSystem:
    """Serve slowly, or fast at a cost. The target is stochastic: the longer the queue, the more likely it is fast."""
    n, arrival, service = np.arange(capacity + 1), 0.45, (0.4, 0.7)
    P = np.zeros((capacity + 1, 2, capacity + 1))
    for k in n:
        for a, served in enumerate(service):
            gone = served if k else 0.0
            P[k, a, max(k - 1, 0)] += gone * (1 - arrival)
            P[k, a, k] += gone * arrival + (1 - gone) * (1 - arrival)
            P[k, a, min(k + 1, capacity)] += (1 - gone) * arrival
    rewards = np.broadcast_to(-0.2 * n[:, None, None] - np.array([0.0, 1.0])[:, None], P.shape)
    fast = 1 / (1 + np.exp(-(n - 5) / 1.5))
    behaviour = np.full((capacity + 1, 2), 0.5)
    return finite_decisions(P, rewards, n[:, None], gamma, behaviour, np.column_stack([1 - fast, fast]))


def random_mdp(gamma: float = 0.9, n: int = 12) -> DecisionSystem:
    """Random transitions and rewards, one-hot states, a random stochastic target, and data of random actions."""
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.full(n, 0.3), size=(n, 3))
    rewards = np.broadcast_to(rng.normal(size=(n, 3, 1)), P.shape)
    return finite_decisions(P, rewards, np.eye(n), gamma, np.full((n, 3), 1 / 3), rng.dirichlet([0.7] * 3, n))


# ------------------------------------------------------------------------------------------ continuous states


def pushed_walk(gamma: float = 0.95, covered: bool = True) -> DecisionSystem:
    """A noisy walk on (0, 1) with pushes left, none, right; the target keeps to where it pays, the data push anywhere.

    If not `covered`, nothing was ever pushed left in the right half, as the target does.
    """
    noise, breaks = 0.1, (0.2, 0.35)

    def target(x: Array) -> Actions:
        return np.where(x[:, 0] < breaks[0], 2, np.where(x[:, 0] > breaks[1], 0, 1))

    def moved(x: Array, actions: Actions) -> Array:
        return x + 0.06 * (actions - 1)

    def reward(x: Array) -> Array:
        return np.sin(6 * x)

    def closed_loop(x: Array) -> Array:
        return moved(x.ravel(), target(x.reshape(-1, 1))).reshape(x.shape)

    nodes, weights = quadrature(breaks)
    V = interval_walk(gamma, noise, closed_loop, reward, breaks=breaks).value(nodes[:, None])

    def step(x: Array, actions: Actions, rng: np.random.Generator) -> Transition:
        reached = moved(x, actions[:, None]) + noise * rng.normal(size=x.shape)
        return reached, reward(x[:, 0]), (reached[:, 0] < 0) | (reached[:, 0] > 1)

    def q(x: Array, actions: Actions) -> Array:
        p = norm.pdf(nodes, moved(x[:, 0], actions)[:, None], noise)
        return reward(x[:, 0]) + gamma * p @ (weights * V)

    def not_left(x: Array) -> Array:
        return np.where(x > 0.5, [0.0, 0.5, 0.5], 1 / 3)

    behaviour = uniform(3) if covered else StochasticPolicy(not_left)
    return DecisionSystem(gamma, lambda n, rng: rng.random((n, 1)), step, behaviour, batched(target), 3, q)


def linear_quadratic(gamma: float = 0.9) -> DecisionSystem:
    """x' = Ax + Ba + noise, paid −xᵀCx − Ra²; target a = −kᵀx, data of a weaker gain and much noise.

    V = −xᵀPx − γ tr(PS)/(1−γ) with P = C + Rkkᵀ + γ(A − Bkᵀ)ᵀP(A − Bkᵀ), and Q(x, a) = −xᵀCx − Ra² + γE[V(x')].
    """
    A, B, C, R = np.array([[1.0, 0.2], [0.0, 0.95]]), np.array([0.0, 0.4]), np.diag([1.0, 0.1]), 0.1
    k, weak, S = np.array([0.6, 0.8]), np.array([0.4, 0.5]), np.diag([0.05, 0.2]) ** 2
    closed = A - np.outer(B, k)
    P = linalg.solve_discrete_lyapunov(np.sqrt(gamma) * closed.T, C + R * np.outer(k, k))

    def cost(x: Array, M: Array) -> Array:
        return np.einsum("ni,ij,nj->n", x, M, x)

    def moved(x: Array, a: Array) -> Array:
        return x @ A.T + a[:, None] * B

    def step(x: Array, a: Actions, rng: np.random.Generator) -> Transition:
        reached = moved(x, a) + rng.normal(size=x.shape) * np.sqrt(np.diag(S))
        return reached, -cost(x, C) - R * a**2, never(x)

    def q(x: Array, a: Actions) -> Array:
        ahead = cost(moved(x, a), P) + np.trace(P @ S) / (1 - gamma)  # γ/(1−γ) at x', and 1 for the step to it
        return -cost(x, C) - R * a**2 - gamma * ahead

    return DecisionSystem(
        gamma,
        lambda n, rng: rng.normal(size=(n, 2)),
        step,
        lambda x, rng: -x @ weak + 0.7 * rng.normal(size=len(x)),
        batched(lambda x: -x @ k),
        None,
        q,
    )


@cache
def _swing_up() -> tuple[Any, PendulumSwingUp]:
    return solve_pendulum(gamma=0.99), PendulumSwingUp()


def noisy_pendulum(gamma: float = 0.97) -> DecisionSystem:
    """Swing-up with five torques and a random disturbance of them; data: the target's action half of the time."""

    def target(x: Array) -> Actions:
        return _swing_up()[0].predict(np.asarray(x, dtype=np.float32))[0]

    def step(x: Array, actions: Actions, rng: np.random.Generator) -> Transition:
        system = _swing_up()[1]
        reached = system.advance(x, system.torques(actions) + 3.0 * rng.normal(size=len(x)))
        return reached, system.rewards(x), system.is_terminal(reached)

    behaviour = StochasticPolicy(lambda x: 0.5 * np.eye(5)[target(x)] + 0.1)
    start = lambda n, rng: _swing_up()[1].sample_states(n, rng)  # noqa: E731
    return DecisionSystem(gamma, start, step, behaviour, batched(target), 5)
