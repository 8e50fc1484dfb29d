"""Systems under a fixed policy whose V^π is known in closed form, by quadrature or by rollouts.

A system steps batches of *states*. What a learner sees are *observations*, a function of the state: the state itself
where the system is Markov in it, less where it is not. V is a function of what is seen: the expected discounted return
given the observation, E[return | observation], the state being distributed as in a long run of the system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from scipy.stats import norm

from gptd_rl.agents.reference.dynamic_programming import solve_pendulum
from gptd_rl.envs.pendulum import PendulumSwingUp

Array = NDArray[np.float64]
Transition = tuple[Array, Array, NDArray[np.bool_]]
RewardNoise = Callable[[Array, np.random.Generator], Array]
Nature = Literal["deterministic", "stochastic", "non-Markov"]

TOLERANCE = 1e-4  # what is left of γ^t where a rollout stops


@dataclass(frozen=True)
class System:
    """A policy in a system, with the value that is true.

    Attributes
    ----------
    start : callable
        (n, rng) → states [n, d].
    step : callable
        (states [n, d], rng) → (states reached, rewards of the step, whether the states reached are terminal).
    nature : {"deterministic", "stochastic", "non-Markov"}
        Whether the return of an observation is certain; random; or random and not all that the past tells about it is
        in the observation.
    value : callable or None
        states [n, d] → V^π of what is seen of them [n]; None: roll out, `n_rollouts` times from each.
    observe : callable
        states [n, d] → observations [n, D].
    """

    gamma: float
    start: Callable[[int, np.random.Generator], Array]
    step: Callable[[Array, np.random.Generator], Transition]
    nature: Nature = "stochastic"
    value: Callable[[Array], Array] | None = None
    observe: Callable[[Array], Array] = np.asarray
    n_rollouts: int = 400

    def truth(self, states: Array, rng: np.random.Generator) -> Array:
        """V^π of what is seen of `states`, of shape (n,)."""
        if self.value is not None:
            return self.value(states)
        return self.rolled_out(states, rng, self.n_rollouts).mean(axis=1)

    def rolled_out(self, states: Array, rng: np.random.Generator, n_rollouts: int) -> Array:
        """Discounted returns of fresh runs from each state, of shape (n, n_rollouts)."""
        x = np.repeat(states, n_rollouts, axis=0)
        returns, alive = np.zeros(len(x)), np.arange(len(x))
        for t in range(int(np.ceil(np.log(TOLERANCE) / np.log(self.gamma)))):
            x, rewards, terminal = self.step(x, rng)
            returns[alive] += self.gamma**t * rewards
            alive, x = alive[~terminal], x[~terminal]
            if not len(alive):
                break
        return returns.reshape(len(states), n_rollouts)


def never(states: Array) -> NDArray[np.bool_]:
    """No state is terminal."""
    return np.zeros(len(states), dtype=bool)


def linear_gaussian(
    A: ArrayLike,
    noise: ArrayLike,
    quadratic: ArrayLike,
    gamma: float,
    linear: ArrayLike = 0.0,
    seen: ArrayLike | None = None,
    reward_noise: RewardNoise | None = None,
) -> System:
    """x' = Ax + N(0, diag(noise²)), paid xᵀCx + cᵀx, started in its stationary distribution N(0, Σ).

    V(x) = xᵀPx + pᵀx + γ tr(P S)/(1−γ) with P = C + γAᵀPA and p = (I − γAᵀ)⁻¹c. Seen through M, o = Mx, the state is
    x | o ~ N(Ko, Σ − KMΣ) with K = ΣMᵀ(MΣMᵀ)⁻¹, and V(o) = E[V(x) | o]. Noise of a sensor is a state with a zero row
    in A.

    Parameters
    ----------
    A : (d, d), or (d,) for a diagonal
    noise : (d,), standard deviations
    quadratic : C, (d, d), or (d,) for a diagonal
    linear : c, (d,)
    seen : M, (D, d); all by default
    reward_noise : callable, optional
        (states, rng) → noise of mean 0 that is added to rewards.
    """
    A, C = (np.diag(m) if np.ndim(m) == 1 else np.asarray(m) for m in (A, quadratic))
    d = len(A)
    c, S = np.broadcast_to(linear, d).astype(float), np.diag(np.square(noise))
    M = np.eye(d) if seen is None else np.asarray(seen, dtype=float)
    P = linalg.solve_discrete_lyapunov(np.sqrt(gamma) * A.T, (C + C.T) / 2)
    p = np.linalg.solve(np.eye(d) - gamma * A.T, c)
    stationary = linalg.solve_discrete_lyapunov(A, S)
    K = np.linalg.solve(M @ stationary @ M.T, M @ stationary).T  # [d, D]
    left = stationary - K @ M @ stationary
    level = gamma * np.trace(P @ S) / (1 - gamma) + np.trace(P @ left)
    factor = linalg.sqrtm(stationary).real

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.normal(size=(n, d)) @ factor

    def step(x: Array, rng: np.random.Generator) -> Transition:
        reached = x @ A.T + rng.normal(size=x.shape) * noise
        rewards = np.einsum("ni,ij,nj->n", x, C, x) + x @ c
        if reward_noise is not None:
            rewards = rewards + reward_noise(x, rng)
        return reached, rewards, never(x)

    def value(x: Array) -> Array:
        mean = x @ M.T @ K.T
        return np.einsum("ni,ij,nj->n", mean, P, mean) + mean @ p + level

    return System(gamma, start, step, "stochastic" if seen is None else "non-Markov", value, lambda x: x @ M.T)


def spiral(gamma: float = 0.95) -> System:
    """x' = Ax turns inwards from anywhere in a square, paid −x₁² − 0.2x₂²; nothing is random but the start."""
    angle = 0.3
    A = 0.97 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    C = -np.diag([1.0, 0.2])
    P = linalg.solve_discrete_lyapunov(np.sqrt(gamma) * A.T, C)

    def step(x: Array, rng: np.random.Generator) -> Transition:
        return x @ A.T, np.einsum("ni,ij,nj->n", x, C, x), never(x)

    def value(x: Array) -> Array:
        return np.einsum("ni,ij,nj->n", x, P, x)

    return System(gamma, lambda n, rng: rng.uniform(-1, 1, (n, 2)), step, "deterministic", value)


def ring(gamma: float = 0.95, turn: float = 0.2, noise: float = 0.3, reward_noise: float = 0.0) -> System:
    """An angle that turns noisily, paid cos θ + ½ sin 2θ, seen as (cos θ, sin θ) beside an input that only drifts.

    With m_k = e^{ik·turn − k²noise²/2} it is E[e^{ikθ_t}] = e^{ikθ₀}·m_kᵗ, and so
    V = Re[e^{iθ}/(1 − γm₁)] + ½ Im[e^{2iθ}/(1 − γm₂)].
    """
    m1, m2 = (np.exp(1j * k * turn - (k * noise) ** 2 / 2) for k in (1, 2))

    def start(n: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(-np.pi, np.pi, n), rng.normal(size=n)])

    def step(x: Array, rng: np.random.Generator) -> Transition:
        reached = x * [1.0, 0.99] + rng.normal(size=x.shape) * [noise, 0.14] + [turn, 0.0]
        rewards = np.cos(x[:, 0]) + np.sin(2 * x[:, 0]) / 2 + reward_noise * rng.normal(size=len(x))
        return reached, rewards, never(x)

    def value(x: Array) -> Array:
        once = np.exp(1j * x[:, 0])
        return (once / (1 - gamma * m1)).real + (once**2 / (1 - gamma * m2)).imag / 2

    def observe(x: Array) -> Array:
        return np.column_stack([np.cos(x[:, 0]), np.sin(x[:, 0]), x[:, 1]])

    return System(gamma, start, step, "stochastic", value, observe)


def quadrature(breaks: tuple[float, ...] = ()) -> tuple[Array, Array]:
    """Nodes and weights on (0, 1), Gauss–Legendre in each panel between the `breaks`."""
    node, weight = np.polynomial.legendre.leggauss(120)
    panels = list(zip([0.0, *breaks], [*breaks, 1.0], strict=True))
    nodes = np.concatenate([a + (b - a) * (node + 1) / 2 for a, b in panels])
    return nodes, np.concatenate([(b - a) / 2 * weight for a, b in panels])


def interval_walk(
    gamma: float,
    noise: float,
    mean: Callable[[Array], Array] = np.asarray,
    reward: Callable[[Array], Array] = np.zeros_like,
    payoff: float = 0.0,
    breaks: tuple[float, ...] = (),
) -> System:
    """x' ~ N(mean(x), noise²) on (0, 1), paid reward(x), and `payoff` for leaving at 1; leaving ends the episode.

    V = r̄ + γ∫ p(x'|x) V(x') dx' by Gauss–Legendre quadrature (Nyström's method), in panels between the `breaks`, where
    mean or reward jump.
    """
    y, w = quadrature(breaks)

    def expected_reward(x: Array) -> Array:
        return reward(x) + payoff * norm.sf(1.0, mean(x), noise)

    def transition(x: Array) -> Array:
        return norm.pdf(y, mean(x)[:, None], noise) * w  # [n, nodes]

    at_nodes = np.linalg.solve(np.eye(len(y)) - gamma * transition(y), expected_reward(y))

    def step(x: Array, rng: np.random.Generator) -> Transition:
        reached = mean(x) + noise * rng.normal(size=x.shape)
        right = reached[:, 0] > 1
        return reached, reward(x[:, 0]) + payoff * right, right | (reached[:, 0] < 0)

    def value(x: Array) -> Array:
        return expected_reward(x[:, 0]) + gamma * transition(x[:, 0]) @ at_nodes

    return System(gamma, lambda n, rng: rng.random((n, 1)), step, "stochastic", value)


def walk(gamma: float = 0.95) -> System:
    """A walk between two ends, paid by where it is."""
    return interval_walk(gamma, 0.1, reward=lambda x: np.sin(6 * x))


def cliff(gamma: float = 0.95) -> System:
    """A policy that pushes to the side it is on; only the right end pays. V jumps in the middle."""
    return interval_walk(gamma, 0.05, lambda x: x + 0.06 * np.sign(x - 0.5), payoff=10.0, breaks=(0.5,))


@cache
def _swing_up() -> tuple[Any, PendulumSwingUp]:
    return solve_pendulum(gamma=0.99), PendulumSwingUp()


def pendulum(random_actions: float = 0.0) -> System:
    """The paper's swing-up under the optimal policy; a share of the actions may be drawn at random instead."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return _swing_up()[1].sample_states(n, rng)

    def step(x: Array, rng: np.random.Generator) -> Transition:
        agent, system = _swing_up()
        actions, _ = agent.predict(x.astype(np.float32))
        if random_actions:
            actions = np.where(rng.random(len(x)) < random_actions, rng.integers(0, 5, len(x)), actions)
        reached = system.advance(x, system.torques(actions))
        return reached, system.rewards(x), system.is_terminal(reached)

    if random_actions:
        return System(0.99, start, step, "stochastic", n_rollouts=200)
    return System(0.99, start, step, "deterministic", n_rollouts=1)


def cartpole() -> System:
    """A hand-made balancing policy that errs one step in four: a slowly drifting cart."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.uniform(-0.05, 0.05, (n, 4))

    def step(s: Array, rng: np.random.Generator) -> Transition:
        x, x_dot, angle, spin = s.T
        right = (angle + 0.5 * spin + 0.05 * x + 0.1 * x_dot > 0) ^ (rng.random(len(s)) < 0.25)
        cos, sin = np.cos(angle), np.sin(angle)
        push = (np.where(right, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
        spin_rate = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed_rate = push - 0.05 * spin_rate * cos / 1.1
        reached = s + 0.02 * np.column_stack([x_dot, speed_rate, spin, spin_rate])
        return reached, np.ones(len(s)), (np.abs(reached[:, 0]) > 2.4) | (np.abs(reached[:, 2]) > 0.2095)

    return System(0.97, start, step, "stochastic")
