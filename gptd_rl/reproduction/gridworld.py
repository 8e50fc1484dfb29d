"""Section 6.2: a gridworld in which only x matters, and what the covariance makes of y."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gptd_rl.agents import TowardsMiddle
from gptd_rl.rollouts.collect import collect
from gptd_rl.envs import LatentGridworld, LatentGridworldEnv
from gptd_rl.reproduction.covariance import descending_eigenvalues, reward_covariance
from gptd_rl.reproduction.pendulum import Tick, mean_squared
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.types import Array

WITHOUT = "II without y"
LABELS = ("I", "II", WITHOUT)


@dataclass(frozen=True)
class Settings:
    """Sizes of the experiment, the paper's by default; γ is not in the paper."""

    n_transitions: int = 500
    gamma: float = 0.99


SMALL = Settings(n_transitions=200)


@dataclass(frozen=True, eq=False)
class Fit:
    """One covariance after model selection.

    Attributes
    ----------
    label : {"I", "II", "II without y"}
    relevances : ndarray of shape (2,)
        Of x and y.
    noise_variance, complexity, data_fit, evidence : float
    values : ndarray of shape (size, size)
        The posterior mean in every cell, a row for each y.
    mse : float
        Mean squared error over all cells.
    eigenvalues_K, eigenvalues_Q : ndarray
        Largest first.
    """

    label: str
    relevances: Array
    noise_variance: float
    complexity: float
    data_fit: float
    evidence: float
    values: Array
    mse: float
    eigenvalues_K: Array
    eigenvalues_Q: Array


@dataclass(frozen=True, eq=False)
class Run:
    """One sample of transitions, and what each covariance makes of it."""

    seed: int
    data: Trajectories
    truth: Array  # [size, size]
    fits: Mapping[str, Fit]

    @property
    def visits(self) -> Array:
        """How often each cell is in the data, of shape (size, size), a row for each y."""
        edges = np.arange(len(self.truth) + 1) + 0.5
        return np.histogram2d(self.data.states[:, 1], self.data.states[:, 0], bins=(edges, edges))[0]


def run(seed: int, settings: Settings, tick: Tick) -> Run:
    """Sample transitions of the policy that walks to the middle, and fit I, II and II without y."""
    policy, data = sample(seed, settings.n_transitions, settings.gamma)
    cells = all_cells(policy.task.size)
    truth = policy.value(cells, settings.gamma)
    I, II = (fitted(kernel, data) for kernel in ("isotropic", "ard"))
    fits = {}
    for label, v in zip(LABELS, (I, II, II.prune()), strict=True):
        fits[label] = measure(label, v, data, cells, truth)
        tick(f"gridworld, seed {seed}, covariance {label}")
    return Run(seed, data, truth.reshape(policy.task.size, -1), fits)


def sample(seed: int, n_transitions: int, gamma: float, n_irrelevant: int = 1) -> tuple[TowardsMiddle, Trajectories]:
    """The policy, and transitions under it."""
    policy = TowardsMiddle(LatentGridworld(n_irrelevant=n_irrelevant))
    env = LatentGridworldEnv(n_irrelevant=n_irrelevant)
    return policy, collect(env, policy, n_transitions=n_transitions, gamma=gamma, seed=seed)


def all_cells(size: int) -> Array:
    """Every (x, y), of shape (size², 2), x running fastest."""
    axis = np.arange(1.0, size + 1)
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def fitted(kernel: str, data: Trajectories) -> GPTD:
    """Model whose hyperparameters the evidence selected."""
    return GPTD(kernel=kernel, objective="marginal_likelihood", method="exact").fit(data)


def measure(label: str, v: GPTD, data: Trajectories, cells: Array, truth: Array) -> Fit:
    """What a model says of all cells, and the spectra behind it."""
    values = v.predict(cells)
    used = data.take_inputs(v.inputs_)
    return Fit(
        label=label,
        relevances=v.relevances_,
        noise_variance=v.noise_variance_,
        complexity=v.complexity_,
        data_fit=v.data_fit_,
        evidence=v.log_marginal_likelihood_,
        values=values.reshape(2 * (round(np.sqrt(len(cells))),)),
        mse=mean_squared(values - truth),
        eigenvalues_K=descending_eigenvalues(v.kernel_(used.states)),
        eigenvalues_Q=descending_eigenvalues(reward_covariance(v.kernel_, v.noise_variance_, used)),
    )
