"""Other ways to the values of a policy from its transitions, as a competent user would set them up.

Each is a function (data, states, critic) → values. Those that learn from returns fill in what a truncated episode lacks
by their own values of its last state, in a few passes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from least_squares import discounts_of
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler
from torch import nn

from gptd_rl import GPTD, Trajectories

Array = NDArray[np.float64]
Values = Callable[[Array], Array]
Fit = Callable[[Array, Array], Values]  # (states, targets) → values

N_PASSES = 5  # of filling in truncated returns
N_SEARCHED, N_CONDITIONED = 400, 1500  # states of scikit-learn's search and of its posterior: both are of cubic cost
MOST_LENGTH_SCALES = 30  # more inputs share one: with 500 a step of the search takes minutes
NEIGHBOURS = np.array([1, 2, 4, 8, 16, 32, 64, 128])
N_STEPS, BATCH, TARGET_INTERVAL = 4000, 256, 8  # 500 targets: what they start from has a share of γ⁵⁰⁰


def gptd(data: Trajectories, states: Array, critic: Values | None) -> Array:
    """`GPTD()` with default settings."""
    return quietly(GPTD(), data).predict(states)


def gptd_around_critic(data: Trajectories, states: Array, critic: Values | None) -> Array:
    """GPTD with the agent's critic as the prior mean."""
    return quietly(GPTD(mean=critic), data).predict(states)


def quietly(v: GPTD, data: Trajectories) -> GPTD:
    """Fit without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return v.fit(data)


def critic_alone(data: Trajectories, states: Array, critic: Values | None) -> Array:
    """The agent's critic."""
    assert critic is not None
    return critic(states)


def average_return(data: Trajectories, states: Array, critic: Values | None) -> Array:
    """One number."""
    return filled_in(data, lambda x, y: lambda more: np.full(len(more), y.mean()))(states)


# ------------------------------------------------------------------------------------------ regression on returns


def returns_of(data: Trajectories) -> tuple[Array, Array]:
    """Discounted rewards until the end of each segment, and the discount there (0 if it terminated), per state."""
    returns, rest = np.zeros(len(data)), np.zeros(len(data))
    for start, last, terminated in zip(data.starts, data.last, data.terminated, strict=True):
        rest[last] = 0.0 if terminated else 1.0
        for i in range(last - 1, start - 1, -1):
            gamma = data.discounts[i]
            returns[i], rest[i] = data.rewards[i] + gamma * returns[i + 1], gamma * rest[i + 1]
    return returns, rest


def filled_in(data: Trajectories, fit: Fit) -> Values:
    """Fit returns; the lack of truncated ones is the fitted value of the last state, in `N_PASSES` passes."""
    returns, rest = returns_of(data)
    rows = usable(data, rest)
    values = fit(data.states[rows], returns[rows])
    for _ in range(N_PASSES if rest[rows].any() else 0):
        tails = np.repeat(values(data.states[data.last]), data.lengths)
        values = fit(data.states[rows], (returns + rest * tails)[rows])
    return values


def usable(data: Trajectories, rest: Array) -> NDArray[np.int64]:
    """States whose returns hold at least half of the discounts, or the better half of them if these are few."""
    inner = np.flatnonzero(data.has_transition)
    few = (rest[inner] <= 0.5).mean() < 0.1
    return inner[rest[inner] <= (np.median(rest[inner]) if few else 0.5)]


def nearest_neighbours(data: Trajectories, states: Array, critic: Values | None) -> Array:
    """Mean return of the nearest k states, inputs scaled; k is the best for left-out episodes."""
    scaler = StandardScaler().fit(data.states)
    returns, rest = returns_of(data)
    rows = usable(data, rest)
    x, y, episode = scaler.transform(data.states[rows]), returns[rows], data.segment_of[rows]
    k = best_k(x, y, episode)

    def fit(x: Array, y: Array) -> Values:
        index = NearestNeighbors().fit(scaler.transform(x))
        return lambda more: y[index.kneighbors(scaler.transform(more), min(k, len(x)), return_distance=False)].mean(1)

    return filled_in(data, fit)(states)


def best_k(x: Array, y: Array, episode: NDArray[np.int64], n_folds: int = 5, n_asked: int = 400) -> int:
    """The k with the smallest squared error at left-out episodes."""
    rng = np.random.default_rng(0)
    fold = rng.permutation(episode.max() + 1)[episode] % min(n_folds, len(np.unique(episode)))
    losses = np.zeros(len(NEIGHBOURS))
    for f in np.unique(fold) if len(np.unique(fold)) > 1 else []:
        kept, left = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
        left = rng.choice(left, min(n_asked, len(left)), replace=False)
        most = min(int(NEIGHBOURS[-1]), len(kept))
        near = NearestNeighbors().fit(x[kept]).kneighbors(x[left], most, return_distance=False)
        means = np.cumsum(y[kept][near], axis=1) / np.arange(1, most + 1)
        losses += ((means[:, np.minimum(NEIGHBOURS, most) - 1] - y[left][:, None]) ** 2).sum(axis=0)
    return int(NEIGHBOURS[losses.argmin()]) if losses.any() else 16


def sklearn_gpr(data: Trajectories, states: Array, critic: Values | None) -> Array:
    """scikit-learn's regression on returns: inputs scaled, a length scale each, noise; evenly chosen states."""
    scaler = StandardScaler().fit(data.states)
    returns, rest = returns_of(data)
    rows = usable(data, rest)
    spread = np.ones(data.n_dims) if data.n_dims <= MOST_LENGTH_SCALES else 1.0
    kernel = ConstantKernel(1.0) * RBF(spread, (1e-2, 1e4)) + WhiteKernel(0.1, (1e-8, 1e2))
    few = evenly(rows, N_SEARCHED)
    searched = regression(kernel, scaler.transform(data.states[few]), returns[few], optimizer="fmin_l_bfgs_b")

    def fit(x: Array, y: Array) -> Values:
        chosen = evenly(np.arange(len(x)), N_CONDITIONED)
        model = regression(searched.kernel_, scaler.transform(x[chosen]), y[chosen], optimizer=None)
        return lambda more: model.predict(scaler.transform(more))

    return filled_in(data, fit)(states)


def regression(kernel: Any, x: Array, y: Array, optimizer: str | None) -> GaussianProcessRegressor:
    """A fitted regression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianProcessRegressor(kernel, optimizer=optimizer, normalize_y=True, random_state=0).fit(x, y)


def evenly(rows: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """At most n of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(n, len(rows))).round().astype(np.int64)]


# ------------------------------------------------------------------------------------------ temporal differences


def neural_td(data: Trajectories, states: Array, critic: Values | None) -> Array:
    """Fitted evaluation with a neural network: Adam on TD errors against a target network, until that has converged.

    Inputs are standardised, rewards scaled so that values are of order 1, the step size falls to a tenth.
    """
    torch.manual_seed(0)
    scaler, i = StandardScaler().fit(data.states), np.flatnonzero(data.has_transition)
    returns, _ = returns_of(data)
    centre, unit = float(returns[i].mean()), float(returns[i].std()) + 1e-9

    def inputs(x: Array) -> torch.Tensor:
        return torch.as_tensor(scaler.transform(x), dtype=torch.float32)

    # V = centre + unit·net, so rewards are r − centre + γ·centre.
    discounts = discounts_of(data)
    scaled = (data.rewards[i] - centre + discounts * centre) / unit
    rewards, gammas = (torch.as_tensor(part, dtype=torch.float32) for part in (scaled, discounts))
    now, following = inputs(data.states[i]), inputs(data.states[i + 1])
    net = nn.Sequential(nn.Linear(now.shape[1], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.1, N_STEPS)
    for step in range(N_STEPS):
        if step % TARGET_INTERVAL == 0:
            frozen = copy.deepcopy(net)
            with torch.no_grad():
                targets = rewards + gammas * frozen(following)[:, 0]
        rows = torch.randint(len(i), (BATCH,))
        loss = ((net(now[rows])[:, 0] - targets[rows]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return centre + unit * net(inputs(states))[:, 0].numpy().astype(np.float64)


CONTESTANTS: dict[str, Callable[[Trajectories, Array, Values | None], Array]] = {
    "GPTD()": gptd,
    "GPTD around the critic": gptd_around_critic,
    "critic": critic_alone,
    "nearest neighbours": nearest_neighbours,
    "scikit-learn GPR": sklearn_gpr,
    "neural TD": neural_td,
    "average return": average_return,
}
