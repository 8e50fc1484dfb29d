"""Section 6.2: a gridworld in which only x is relevant, and the relevance that is selected for y."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gptd_rl.agents import TowardsMiddle
from gptd_rl.rollouts.collect import collect
from gptd_rl.envs import LatentGridworld, LatentGridworldEnv
from gptd_rl.reproduction.covariance import descending_eigenvalues, reward_covariance
from gptd_rl.reproduction.pendulum import OnFit, mean_squared
from gptd_rl.estimators.gptd import GPTD
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.kernels.metrics import ARD
from gptd_rl.kernels import Kernel, paper_kernel
from gptd_rl.types import Array

WITHOUT = "II without y"
LABELS = ("I", "II", WITHOUT)


@dataclass(frozen=True)
class GridworldSettings:
    """Sizes of the experiment, those of the paper by default; γ is not in the paper."""

    n_transitions: int = 500
    gamma: float = 0.99


SMALL = GridworldSettings(n_transitions=200)


@dataclass(frozen=True, eq=False)
class GridworldFit:
    """One covariance after model selection.

    Attributes
    ----------
    label : {"I", "II", "II without y"}
    relevances : ndarray of shape (2,)
        Of x and y.
    noise_variance, complexity, data_fit, evidence : float
    values : ndarray of shape (size, size)
        Posterior mean in every cell, a row for each y.
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
class GridworldResult:
    """One sample of transitions, and the fit of each covariance."""

    seed: int
    data: Trajectories
    truth: Array  # [size, size]
    fits: Mapping[str, GridworldFit]

    @property
    def visits(self) -> Array:
        """Number of visits of each cell, of shape (size, size), a row for each y."""
        edges = np.arange(len(self.truth) + 1) + 0.5
        return np.histogram2d(self.data.states[:, 1], self.data.states[:, 0], bins=(edges, edges))[0]


def run(seed: int, settings: GridworldSettings, on_fit: OnFit) -> GridworldResult:
    """Sample transitions of the policy that walks to the middle column, and fit I, II and II without y."""
    policy, data = sample(seed, settings.n_transitions, settings.gamma)
    cells = all_cells(policy.task.size)
    truth = policy.value(cells, settings.gamma)
    I, II = (fitted(kernel, data) for kernel in ("isotropic", "ard"))
    models = {"I": (I, [0, 1]), "II": (II, [0, 1]), WITHOUT: (without_y(II, data), [0])}
    fits = {}
    for label, (v, inputs) in models.items():
        fits[label] = measure(label, v, data.take_inputs(inputs), cells[:, inputs], truth)
        on_fit(f"gridworld, seed {seed}, covariance {label}")
    return GridworldResult(seed, data, truth.reshape(policy.task.size, -1), fits)


def sample(seed: int, n_transitions: int, gamma: float, n_irrelevant: int = 1) -> tuple[TowardsMiddle, Trajectories]:
    """The policy, and transitions under it."""
    policy = TowardsMiddle(LatentGridworld(n_irrelevant=n_irrelevant))
    env = LatentGridworldEnv(n_irrelevant=n_irrelevant)
    return policy, collect(env, policy, n_transitions=n_transitions, gamma=gamma, seed=seed)


def all_cells(size: int) -> Array:
    """Every (x, y), of shape (size², 2), x varying fastest."""
    axis = np.arange(1.0, size + 1)
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def fitted(kernel: str | Kernel, data: Trajectories, noise_variance: float | None = None) -> GPTD:
    """Model with hyperparameters selected by the evidence."""
    v = GPTD(kernel=kernel, objective="marginal_likelihood", method="exact", noise_variance=noise_variance)
    return v.fit(data)


def without_y(v: GPTD, data: Trajectories) -> GPTD:
    """The model without y, all other hyperparameters unchanged.

    So does the paper: its table has the same relevance of x and the same data fit with and without y.
    """
    kernel = paper_kernel(ARD(v.relevances_[:1]), v.kernel_.signal_variance, v.kernel_.bias)
    kernel = kernel.fix(*kernel.parameter_names)
    return fitted(kernel, data.take_inputs([0]), v.noise_variance_)


def measure(label: str, v: GPTD, data: Trajectories, cells: Array, truth: Array) -> GridworldFit:
    """Errors of a model over all cells, and its spectra; `data` and `cells` have the inputs of the model."""
    values = v.predict(cells)
    return GridworldFit(
        label=label,
        relevances=np.pad(v.relevances_, (0, 2 - data.n_dims)),
        noise_variance=v.noise_variance_,
        complexity=v.complexity_,
        data_fit=v.data_fit_,
        evidence=v.log_marginal_likelihood_,
        values=values.reshape(2 * (round(np.sqrt(len(cells))),)),
        mse=mean_squared(values - truth),
        eigenvalues_K=descending_eigenvalues(v.kernel_(data.states)),
        eigenvalues_Q=descending_eigenvalues(reward_covariance(v.kernel_, v.noise_variance_, data)),
    )
