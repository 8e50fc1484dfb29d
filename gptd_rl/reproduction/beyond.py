"""Beyond the paper: many more inputs that do not matter, and whether the covariance still finds those that do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gptd_rl.reproduction import gridworld, pendulum
from gptd_rl.reproduction.pendulum import Tick, mean_squared
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

KERNELS = {"I": "isotropic", "II": "ard"}

# The paper's tolerance of incomplete Cholesky factorisation.
TOLERANCE = 0.1

N_TEST_STATES = 1000

# Standard deviation of the noise on each copy of an input, as a share of the input's own.
COPY_NOISE = 0.5


@dataclass(frozen=True, eq=False)
class Trial:
    """One covariance on data with inputs that do not matter.

    Attributes
    ----------
    seed : int
    label : {"I", "II"}
    n_relevant, n_irrelevant : int
        The inputs that matter come first.
    strengths : ndarray of shape (n_dims,)
        Relevance × variance of each input.
    mse : float
        Mean squared error at states that were not in the data.
    subset_size : int
        States that incomplete Cholesky factorisation takes at `TOLERANCE`.
    n_states : int
        States that it takes them from.
    """

    seed: int
    label: str
    n_relevant: int
    n_irrelevant: int
    strengths: Array
    mse: float
    subset_size: int
    n_states: int

    @property
    def ratio(self) -> float:
        """Strength of the strongest input that does not matter, as a share of the weakest that does."""
        return float(self.strengths[self.n_relevant :].max() / self.strengths[: self.n_relevant].min())


def gridworld_trials(
    seed: int, settings: gridworld.Settings, n_irrelevant: tuple[int, ...], tick: Tick
) -> Iterator[Trial]:
    """The gridworld with more and more coordinates that move at random."""
    for n in n_irrelevant:
        policy, data = gridworld.sample(seed, settings.n_transitions, settings.gamma, n)
        rng = np.random.default_rng(seed)
        states = rng.integers(1, policy.task.size, (N_TEST_STATES, 1 + n), endpoint=True).astype(float)
        truth = policy.value(states, settings.gamma)
        for label in KERNELS:
            yield _trial(seed, label, data, 1, states, truth)
            tick(f"gridworld, seed {seed}, {n} irrelevant, covariance {label}")


def pendulum_trials(seed: int, settings: pendulum.Settings, n_copies: int, tick: Tick) -> Iterator[Trial]:
    """The pendulum whose state is followed by noisy copies of itself."""
    agent, data = pendulum.sample(seed, settings)
    grid = pendulum.state_grid(agent, settings.n_grid)
    rng = np.random.default_rng(seed)
    noise = COPY_NOISE * data.states.std(axis=0)
    wide = replace(data, states=with_copies(data.states, n_copies, noise, rng))
    wide_grid = with_copies(grid, n_copies, noise, rng)
    for label in KERNELS:
        yield _trial(seed, label, wide, 2, wide_grid, agent.value.at(grid))
        tick(f"pendulum, seed {seed}, {n_copies} noisy copies, covariance {label}")


def with_copies(states: Array, n_copies: int, noise: Array, rng: np.random.Generator) -> Array:
    """States, and beside them `n_copies` of themselves with normal noise of standard deviation `noise`."""
    copies = np.tile(states, n_copies)
    return np.hstack([states, copies + np.tile(noise, n_copies) * rng.normal(size=copies.shape)])


def _trial(seed: int, label: str, data: Trajectories, n_relevant: int, states: Array, truth: Array) -> Trial:
    v = gridworld.fitted(KERNELS[label], data)
    return Trial(
        seed=seed,
        label=label,
        n_relevant=n_relevant,
        n_irrelevant=data.n_dims - n_relevant,
        strengths=v.relevances_ * data.states.var(axis=0),
        mse=mean_squared(v.predict(states) - truth),
        subset_size=len(incomplete_cholesky(v.kernel_, data.states, tolerance=TOLERANCE)),
        n_states=len(data),
    )
