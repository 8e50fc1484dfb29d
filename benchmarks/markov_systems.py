"""Systems for the test of the Markov property: some whose states tell all, some with something hidden.

A `System` steps a batch of episodes at once. Its state may hold more than its observation does: `observe` says what
the data show. The reward may depend on the whole state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gptd_rl import Trajectories
from gptd_rl.agents.reference.dynamic_programming import solve_pendulum
from gptd_rl.envs.pendulum import PendulumSwingUp

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Start = Callable[[int, np.random.Generator], Array]
Step = Callable[[Array, np.random.Generator], tuple[Array, Array, Flags]]


def everything(states: Array) -> Array:
    """Observe the whole state."""
    return states


@dataclass(frozen=True)
class System:
    """A policy in a system, and what is seen of it.

    Attributes
    ----------
    start : callable
        (n, rng) → states [n, D].
    step : callable
        (states [n, D], rng) → (states reached, rewards of the step, whether the states reached are terminal).
    observe : callable
        states [n, D] → observations [n, d].
    n_frames : int
        Observations stacked into one; an episode starts when so many have been seen.
    """

    name: str
    gamma: float
    max_steps: int
    start: Start
    step: Step
    observe: Callable[[Array], Array] = everything
    n_frames: int = 1
    n_transitions: int = 1500

    def sample(self, seed: int, n_transitions: int | None = None) -> Trajectories:
        """Episodes until there are so many transitions; the last is cut off there."""
        rng = np.random.default_rng(seed)
        left = n_transitions or self.n_transitions
        episodes: list[dict[str, object]] = []
        while left > 0:
            for observations, rewards, terminated in self._episodes(rng, n=max(8, 2 * left // self.max_steps)):
                first = self.n_frames - 1
                n = min(len(rewards) - first, left)
                if n <= 0:
                    continue
                frames = [observations[first - lag : first - lag + n + 1] for lag in range(self.n_frames)]
                ends = terminated and first + n == len(rewards)
                rewards = rewards[first : first + n]
                episodes.append(dict(observations=np.hstack(frames), rewards=rewards, terminated=ends))
                left -= n
        return Trajectories.from_episodes(episodes, gamma=self.gamma)

    def stacked(self, n_frames: int) -> System:
        """The same with several frames in an observation."""
        return replace(self, name=f"{self.name}, {n_frames} frames", n_frames=n_frames)

    def seen(self, name: str, observe: Callable[[Array], Array]) -> System:
        """The same with other observations."""
        return replace(self, name=name, observe=observe)

    def _episodes(self, rng: np.random.Generator, n: int) -> list[tuple[Array, Array, bool]]:
        """Run n episodes side by side."""
        states = self.start(n, rng)
        seen, rewards = [self.observe(states)], []
        lengths, terminated = np.full(n, self.max_steps), np.zeros(n, dtype=bool)
        alive = np.ones(n, dtype=bool)
        for t in range(self.max_steps):
            states, reward, terminal = self.step(states, rng)
            seen.append(self.observe(states))
            rewards.append(reward)
            ends = alive & terminal
            lengths[ends], terminated[ends] = t + 1, True
            alive &= ~terminal
            if not alive.any():
                break
        O, R = np.stack(seen, axis=1), np.stack(rewards, axis=1)
        return [(O[i, : k + 1], R[i, :k], bool(terminated[i])) for i, k in enumerate(lengths)]


def columns(*which: int) -> Callable[[Array], Array]:
    """Observe some entries of the state."""
    return lambda states: states[:, list(which)]


def never(states: Array) -> Flags:
    """No state is terminal."""
    return np.zeros(len(states), dtype=bool)


# -------------------------------------------------------------------------------------- states that tell all


def ring(max_steps: int = 50) -> System:
    """A noisy walk on a circle, seen as cosine and sine, beside an input that drifts."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(-np.pi, np.pi, n), rng.normal(size=n)])

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        reached = x + np.column_stack([0.15 + 0.3 * rng.normal(size=len(x)), 0.1 * rng.normal(size=len(x))])
        return reached, np.cos(2 * x[:, 0]) + np.sin(x[:, 0]), never(x)

    def observe(x: Array) -> Array:
        return np.column_stack([np.cos(x[:, 0]), np.sin(x[:, 0]), x[:, 1]])

    return System("ring", 0.9, max_steps, start, step, observe)


def ornstein_uhlenbeck(n_dims: int, max_steps: int) -> System:
    """Independent Ornstein–Uhlenbeck inputs, paid by a product of them."""
    rho = np.linspace(0.7, 0.95, n_dims)

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.normal(size=(n, n_dims))

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        return rho * x + np.sqrt(1 - rho**2) * rng.normal(size=x.shape), x[:, 0] * x[:, 1], never(x)

    return System(f"{n_dims}-D Ornstein–Uhlenbeck, runs of {max_steps}", 0.9, max_steps, start, step)


def ruin() -> System:
    """Gambler's ruin: undiscounted, terminal at both ends, paid at one."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.integers(1, 20, (n, 1)).astype(float)

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        reached = x + np.where(rng.random(x.shape) < 0.48, 1.0, -1.0)
        return reached, (reached[:, 0] >= 20).astype(float), (reached[:, 0] <= 0) | (reached[:, 0] >= 20)

    return System("gambler's ruin", 1.0, 400, start, step)


def grid(size: int, p: float, gamma: float) -> System:
    """A walk to the middle column that errs with probability 1 − p; y walks at random."""
    middle = (size + 1) // 2

    def start(n: int, rng: np.random.Generator) -> Array:
        x = rng.integers(1, size, n)
        return np.column_stack([x + (x >= middle), rng.integers(1, size + 1, n)]).astype(float)

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        towards = np.where(rng.random(len(x)) < p, 1, -1) * np.sign(middle - x[:, 0])
        reached = (x + np.column_stack([towards, rng.choice([-1, 1], len(x))])).clip(1, size)
        return reached, -np.ones(len(x)), reached[:, 0] == middle

    return System(f"{size} × {size} grid", gamma, 200, start, step)


def walk() -> System:
    """A walk between two ends, paid by where it is."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.random((n, 1))

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        reached = x + 0.1 * rng.normal(size=x.shape)
        return reached, np.sin(6 * x[:, 0]), (reached[:, 0] < 0) | (reached[:, 0] > 1)

    return System("walk", 0.95, 300, start, step)


def drift(max_steps: int) -> System:
    """x' = 0.9x + noise paid x², beside an input that drifts slowly and does not matter."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.normal(size=(n, 2)) * [0.9, 1.0]

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        return x * [0.9, 0.995] + rng.normal(size=x.shape) * [0.4, 0.1], x[:, 0] ** 2, never(x)

    return System(f"drift, runs of {max_steps}", 0.9, max_steps, start, step)


def random_chain(n_states: int = 20) -> System:
    """A random finite chain whose states are scattered in the unit square: V has no shape, rewards are noisy."""
    rng = np.random.default_rng(7)
    points, P = rng.random((n_states, 2)), rng.dirichlet(np.full(n_states, 0.3), n_states).cumsum(axis=1)
    rewards = rng.normal(size=n_states)

    def number(x: Array) -> NDArray[np.int64]:
        return np.abs(x[:, None] - points).sum(axis=2).argmin(axis=1)

    def start(n: int, rng: np.random.Generator) -> Array:
        return points[rng.integers(n_states, size=n)]

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        i = number(x)
        j = (rng.random(len(x))[:, None] > P[i]).sum(axis=1).clip(0, n_states - 1)
        return points[j], rewards[i] + 0.5 * rng.normal(size=len(x)), never(x)

    return System("random chain", 0.9, 100, start, step)


def changing_noise() -> System:
    """Noise that is ten times larger on one side, and rewards with heavy tails."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.normal(size=(n, 1))

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        scale = 0.05 + 0.45 * (x > 0)
        return 0.9 * x + scale * rng.normal(size=x.shape), x[:, 0] + rng.standard_t(4, size=len(x)), never(x)

    return System("changing noise", 0.9, 100, start, step)


def jumping_reward() -> System:
    """A walk paid on one side of a line only: reward and value jump."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.normal(size=(n, 2))

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        reached = 0.95 * x + 0.2 * rng.normal(size=x.shape)
        return reached, (x.sum(axis=1) > 0).astype(float), never(x)

    return System("jumping reward", 0.9, 60, start, step)


# -------------------------------------------------------------------------------------- control


def cartpole() -> System:
    """A hand-made balancing policy that errs one step in four."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.uniform(-0.05, 0.05, (n, 4))

    def step(s: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        x, x_dot, angle, spin = s.T
        right = (angle + 0.5 * spin + 0.05 * x + 0.1 * x_dot > 0) ^ (rng.random(len(s)) < 0.25)
        cos, sin = np.cos(angle), np.sin(angle)
        push = (np.where(right, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
        spin_rate = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed_rate = push - 0.05 * spin_rate * cos / 1.1
        reached = s + 0.02 * np.column_stack([x_dot, speed_rate, spin, spin_rate])
        return reached, np.ones(len(s)), (np.abs(reached[:, 0]) > 2.4) | (np.abs(reached[:, 2]) > 0.2095)

    return System("CartPole", 0.97, 400, start, step)


def acrobot() -> System:
    """Gymnasium's Acrobot under a policy that pumps with the second link and errs one step in five."""

    def derivative(s: Array, torque: Array) -> Array:
        t1, t2, w1, w2 = s.T
        d1 = 0.25 + (1 + 0.25 + np.cos(t2)) + 2
        d2 = 0.25 + 0.5 * np.cos(t2) + 1
        phi2 = 0.5 * 9.8 * np.cos(t1 + t2 - np.pi / 2)
        phi1 = -0.5 * w2**2 * np.sin(t2) - w2 * w1 * np.sin(t2) + 1.5 * 9.8 * np.cos(t1 - np.pi / 2) + phi2
        a2 = (torque + d2 / d1 * phi1 - 0.5 * w1**2 * np.sin(t2) - phi2) / (1.25 - d2**2 / d1)
        return np.column_stack([w1, w2, -(d2 * a2 + phi1) / d1, a2])

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.uniform(-0.1, 0.1, (n, 4))

    def step(s: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        best, random = np.sign(s[:, 3]), rng.integers(-1, 2, len(s)).astype(float)
        torque = np.where(rng.random(len(s)) < 0.2, random, best)
        h = 0.2
        k1 = derivative(s, torque)
        k2 = derivative(s + h / 2 * k1, torque)
        k3 = derivative(s + h / 2 * k2, torque)
        k4 = derivative(s + h * k3, torque)
        reached = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        reached[:, :2] = (reached[:, :2] + np.pi) % (2 * np.pi) - np.pi
        reached[:, 2] = reached[:, 2].clip(-4 * np.pi, 4 * np.pi)
        reached[:, 3] = reached[:, 3].clip(-9 * np.pi, 9 * np.pi)
        high = -np.cos(reached[:, 0]) - np.cos(reached[:, 0] + reached[:, 1]) > 1
        return reached, -np.ones(len(s)), high

    return System("Acrobot", 0.98, 300, start, step, _acrobot_view)


def _acrobot_view(s: Array) -> Array:
    return np.column_stack([np.cos(s[:, 0]), np.sin(s[:, 0]), np.cos(s[:, 1]), np.sin(s[:, 1]), s[:, 2:] / [4, 8]])


def pendulum() -> System:
    """Gymnasium's Pendulum under a policy that pumps energy and adds noise."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.uniform([-np.pi, -1], [np.pi, 1], (n, 2))

    def step(s: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        angle, speed = s.T
        torque = (np.tanh(4 * speed * np.cos(angle) - 2 * np.sin(angle)) + rng.normal(size=len(s))).clip(-2, 2)
        cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
        faster = (speed + 0.05 * (15 * np.sin(angle) + 3 * torque)).clip(-8, 8)
        wrapped = (angle + 0.05 * faster + np.pi) % (2 * np.pi) - np.pi
        return np.column_stack([wrapped, faster]), -cost, never(s)

    def observe(s: Array) -> Array:
        return np.column_stack([np.cos(s[:, 0]), np.sin(s[:, 0]), s[:, 1]])

    return System("Pendulum", 0.95, 200, start, step, observe)


@cache
def _swing_up() -> tuple[PendulumSwingUp, Array]:
    """The paper's pendulum, and the optimal action in the cells of a fine grid."""
    system, agent = PendulumSwingUp(), solve_pendulum(gamma=0.99)
    angles, speeds = np.linspace(-np.pi, np.pi, 401), np.linspace(-7, 7, 401)
    states = np.stack(np.meshgrid(angles, speeds, indexing="ij"), axis=-1).reshape(-1, 2)
    return system, agent.predict(states.astype(np.float32))[0].reshape(401, 401)


def swing_up(errors: float) -> System:
    """The paper's pendulum under the optimal policy, which errs at random in a share of steps. V jumps."""
    system, best = _swing_up()

    def start(n: int, rng: np.random.Generator) -> Array:
        return system.sample_states(n, rng)

    def step(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        i, j = np.rint((x / [np.pi, 7] + 1) * 200).astype(int).clip(0, 400).T
        actions = np.where(rng.random(len(x)) < errors, rng.integers(0, 5, len(x)), best[i, j])
        reached = system.advance(x, system.torques(actions))
        return reached, system.rewards(x), system.is_terminal(reached)

    name = f"swing-up, {errors:.0%} errors" if errors else "swing-up, deterministic"
    return System(name, 0.99, 200, start, step)


def mountain_car(errors: float) -> System:
    """Gymnasium's MountainCar under the policy that pushes where it is going. V jumps where a swing more is needed."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return np.column_stack([rng.uniform(-1.1, 0.4, n), rng.uniform(-0.04, 0.04, n)])

    def step(s: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        push = np.where(s[:, 1] >= 0, 1.0, -1.0)
        push = np.where(rng.random(len(s)) < errors, rng.integers(-1, 2, len(s)), push)
        speed = (s[:, 1] + 0.001 * push - 0.0025 * np.cos(3 * s[:, 0])).clip(-0.07, 0.07)
        place = (s[:, 0] + speed).clip(-1.2, 0.6)
        speed = np.where(place <= -1.2, np.maximum(speed, 0.0), speed)
        return np.column_stack([place, speed]), -np.ones(len(s)), place >= 0.5

    name = f"MountainCar, {errors:.0%} errors" if errors else "MountainCar, deterministic"
    return System(name, 0.99, 200, start, step)


# -------------------------------------------------------------------------------------- something hidden


def delayed_reward() -> System:
    """An Ornstein–Uhlenbeck input whose reward comes a step late."""

    def start(n: int, rng: np.random.Generator) -> Array:
        x = rng.normal(size=(n, 2))
        x[:, 1] = x[:, 0]
        return x

    def step(s: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        x, before = s.T
        return np.column_stack([0.8 * x + 0.6 * rng.normal(size=len(x)), x]), np.sin(2 * before), never(s)

    return System("delayed reward", 0.9, 100, start, step, columns(0))


def noisy_sensor() -> System:
    """An AR(1) process seen through noise: rewards follow what is hidden."""

    def start(n: int, rng: np.random.Generator) -> Array:
        return rng.normal(size=(n, 2)) * [1.0, 0.7] + 0.0

    def step(s: Array, rng: np.random.Generator) -> tuple[Array, Array, Flags]:
        x = 0.9 * s[:, 0] + 0.44 * rng.normal(size=len(s))
        return np.column_stack([x, 0.7 * rng.normal(size=len(s))]), s[:, 0], never(s)

    return System("noisy sensor", 0.9, 100, start, step, lambda s: s.sum(axis=1, keepdims=True))


def markov_systems() -> list[System]:
    """Fifteen systems whose observations tell all."""
    return [
        ring(),
        ornstein_uhlenbeck(2, 50),
        ornstein_uhlenbeck(3, 8),
        ruin(),
        grid(11, 0.6, 0.95),
        grid(5, 0.55, 0.99),
        walk(),
        drift(200),
        drift(1500),
        random_chain(),
        changing_noise(),
        jumping_reward(),
        cartpole(),
        acrobot(),
        pendulum(),
    ]


def hidden_systems() -> list[System]:
    """Nine that hide something; the last four are those where V jumps, without their speeds."""
    return [
        cartpole().seen("CartPole without velocities", columns(0, 2)),
        acrobot().seen("Acrobot without velocities", lambda s: _acrobot_view(s)[:, :4]),
        pendulum().seen("Pendulum without velocity", lambda s: np.column_stack([np.cos(s[:, 0]), np.sin(s[:, 0])])),
        delayed_reward(),
        noisy_sensor(),
        *(system.seen(f"{system.name}, without speed", columns(0)) for system in jumping_systems()),
    ]


def jumping_systems() -> list[System]:
    """Those where V jumps, and nothing is hidden."""
    return [swing_up(0.0), swing_up(0.1), mountain_car(0.0), mountain_car(0.1)]


def stacked_systems() -> list[System]:
    """The hidden ones with frames stacked: where two frames tell all, where three nearly do."""
    car, arm, pole, delayed = hidden_systems()[:4]
    return [car.stacked(2), pole.stacked(2), delayed.stacked(2), arm.stacked(3)]
