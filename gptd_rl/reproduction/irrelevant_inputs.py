"""Beyond the paper: relevance selection with many irrelevant inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.reproduction import gridworld, pendulum
from gptd_rl.reproduction.pendulum import OnFit, mean_squared
from gptd_rl.types import Array

KERNELS = {"I": "isotropic", "II": "ard"}

# The paper's tolerance of incomplete Cholesky factorisation.
TOLERANCE = 0.1

N_TEST_STATES = 1000

# Standard deviation of the noise on each copy of an input, as a share of the input's own.
COPY_NOISE = 0.5


@dataclass(frozen=True, eq=False)
class InputSelection:
    """One covariance fitted to data with irrelevant inputs.

    Attributes
    ----------
    seed : int
    label : {"I", "II"}
    n_relevant, n_irrelevant : int
        The relevant inputs come first.
    scaled_relevances : ndarray of shape (n_dims,)
        Relevance × variance of each input.
    mse : float
        Mean squared error at states that are not in the data.
    subset_size : int
        Number of inducing points that incomplete Cholesky factorisation selects at `TOLERANCE`.
    n_states : int
        Number of states in the data.
    """

    seed: int
    label: str
    n_relevant: int
    n_irrelevant: int
    scaled_relevances: Array
    mse: float
    subset_size: int
    n_states: int

    @property
    def ratio(self) -> float:
        """Largest relevance of an irrelevant input over the smallest of a relevant one."""
        scaled, n = self.scaled_relevances, self.n_relevant
        return float(scaled[n:].max() / scaled[:n].min())


def gridworld_selections(
    seed: int, settings: gridworld.GridworldSettings, n_irrelevant: tuple[int, ...], on_fit: OnFit
) -> Iterator[InputSelection]:
    """The gridworld with several numbers of coordinates that move at random."""
    for n in n_irrelevant:
        policy, data = gridworld.sample(seed, settings.n_transitions, settings.gamma, n)
        rng = np.random.default_rng(seed)
        states = rng.integers(1, policy.task.size, (N_TEST_STATES, 1 + n), endpoint=True).astype(float)
        truth = policy.value(states, settings.gamma)
        for label in KERNELS:
            yield _selection(seed, label, data, 1, states, truth)
            on_fit(f"gridworld, seed {seed}, {n} irrelevant, covariance {label}")


def pendulum_selections(
    seed: int, settings: pendulum.PendulumSettings, n_copies: int, on_fit: OnFit
) -> Iterator[InputSelection]:
    """The pendulum, with noisy copies of its state as further inputs."""
    agent, data = pendulum.sample(seed, settings)
    grid = pendulum.state_grid(agent, settings.n_grid)
    rng = np.random.default_rng(seed)
    noise = COPY_NOISE * data.states.std(axis=0)
    wide = replace(data, states=with_copies(data.states, n_copies, noise, rng))
    wide_grid = with_copies(grid, n_copies, noise, rng)
    for label in KERNELS:
        yield _selection(seed, label, wide, 2, wide_grid, agent.value.at(grid))
        on_fit(f"pendulum, seed {seed}, {n_copies} noisy copies, covariance {label}")


def with_copies(states: Array, n_copies: int, noise: Array, rng: np.random.Generator) -> Array:
    """States followed by `n_copies` of themselves with normal noise of standard deviation `noise`."""
    copies = np.tile(states, n_copies)
    return np.hstack([states, copies + np.tile(noise, n_copies) * rng.normal(size=copies.shape)])


def _selection(
    seed: int, label: str, data: Trajectories, n_relevant: int, states: Array, truth: Array
) -> InputSelection:
    v = gridworld.fitted(KERNELS[label], data)
    return InputSelection(
        seed=seed,
        label=label,
        n_relevant=n_relevant,
        n_irrelevant=data.n_dims - n_relevant,
        scaled_relevances=v.relevances_ * data.states.var(axis=0),
        mse=mean_squared(v.predict(states) - truth),
        subset_size=len(incomplete_cholesky(v.kernel_, data.states, tolerance=TOLERANCE)),
        n_states=len(data),
    )
