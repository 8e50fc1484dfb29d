"""What the cart pole's swing-up is worth to a planner that knows the dynamics; `control_tasks` takes its level from it.

    python benchmarks/cartpole_reference.py

From each start the cross-entropy method plans the first 50 forces; then a linear-quadratic regulator balances the pole.
Both choose from the five forces. The plan is that of the largest reward within 90 steps, regulator included.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.linalg import solve_discrete_are

from gptd_rl.envs.cartpole import MAX_EPISODE_STEPS, CartPoleSwingUp
from gptd_rl.types import Array

HORIZON, BALANCED = 50, 40  # steps that are planned, and that the regulator adds when plans are compared
N_PLANS, N_ELITE, N_ROUNDS = 400, 40, 25


def regulator(task: CartPoleSwingUp) -> Array:
    """Gains k of the force −kᵀx that balances the pole in the middle of the rail, of shape (4,)."""
    h, still = 1e-5, np.zeros(4)
    # x' = Ax + Bu, by central differences
    A = (task.advance(h * np.eye(4), still) - task.advance(-h * np.eye(4), still)).T / (2 * h)  # [4, 4]
    B = (task.advance(np.zeros((1, 4)), np.array([h])) - task.advance(np.zeros((1, 4)), np.array([-h]))).T / (2 * h)
    R = np.array([[0.001]])
    P = solve_discrete_are(A, B, np.diag([10.0, 0.1, 10.0, 0.1]), R)
    gains: Array = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)[0]
    return gains


def balance(task: CartPoleSwingUp, states: Array, gains: Array) -> Array:
    """Indices of the forces closest to the regulator's, of shape (n,)."""
    shares = np.clip(-states @ gains / task.max_force, -1, 1)
    assert task.n_forces is not None
    return np.rint((shares + 1) / 2 * (task.n_forces - 1))


def returns(task: CartPoleSwingUp, states: Array, plans: Array, n_steps: int, gains: Array) -> Array:
    """Sums of rewards of plans [n, HORIZON], followed by the regulator, from states [n, 4]."""
    totals, alive = np.zeros(len(states)), np.ones(len(states), dtype=bool)
    for t in range(n_steps):
        actions = plans[:, t] if t < plans.shape[1] else balance(task, states, gains)
        totals += alive * task.rewards(states)
        states = task.advance(states, task.forces(actions))
        alive &= ~task.is_terminal(states)
    return totals


def plan(task: CartPoleSwingUp, start: Array, gains: Array, rng: np.random.Generator) -> Array:
    """Best actions found from one start of shape (4,), an array of shape (HORIZON,)."""
    assert task.n_forces is not None
    starts, actions = np.tile(start, (N_PLANS, 1)), np.arange(task.n_forces)
    p = np.full((HORIZON, task.n_forces), 1 / task.n_forces)
    best, largest = np.zeros(HORIZON), -np.inf
    for _ in range(N_ROUNDS):
        draws = rng.random((N_PLANS, HORIZON, 1)) > np.cumsum(p, axis=1)  # [N_PLANS, HORIZON, n_forces]
        plans = np.minimum(draws.sum(axis=2), task.n_forces - 1)
        totals = returns(task, starts, plans, HORIZON + BALANCED, gains)
        elite = np.argsort(-totals)[:N_ELITE]
        if totals[elite[0]] > largest:
            best, largest = plans[elite[0]], totals[elite[0]]
        chosen = (plans[elite, :, np.newaxis] == actions).mean(axis=0)  # [HORIZON, n_forces]
        p = 0.02 / task.n_forces + 0.98 * (0.3 * p + 0.7 * chosen)
    return best


def reference_returns(n: int, seed: int = 0) -> Array:
    """Returns of n episodes of the planner, of shape (n,)."""
    task, rng = CartPoleSwingUp(), np.random.default_rng(seed)
    gains, starts = regulator(task), task.sample_states(n, rng)
    plans = np.stack([plan(task, start, gains, rng) for start in starts])
    return returns(task, starts, plans, MAX_EPISODE_STEPS, gains)


def main() -> None:
    """Print the mean return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = reference_returns(args.starts, args.seed)
    print(f"{found.mean():.1f} ± {found.std(ddof=1) / np.sqrt(len(found)):.1f}, least {found.min():.1f}")


if __name__ == "__main__":
    main()
