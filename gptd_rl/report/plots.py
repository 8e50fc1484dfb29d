"""Pictures. Each function takes axes or makes them, returns them, and computes nothing that the model does not give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from gptd_rl.estimators.gptd import GPTD

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_value(
    v: GPTD, inputs: tuple[int, int] = (0, 1), *, std: bool = False, n: int = 100, ax: Axes | None = None
) -> Axes:
    """Map of the value function, or of its standard deviation, along two inputs.

    The other inputs are held at their medians. Circles are the states of the data.

    Parameters
    ----------
    v : GPTD
        Fitted.
    inputs : tuple of 2 ints
        Inputs along the axes.
    std : bool
        Draw the standard deviation instead of the mean.
    n : int
        Points along each axis.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    ax = _axes(ax)
    states = v.data_.states
    low, high = states[:, inputs].min(axis=0), states[:, inputs].max(axis=0)
    along = [np.linspace(lo, hi, n) for lo, hi in zip(low, high, strict=True)]
    grid = np.tile(np.median(states, axis=0), (n * n, 1))
    grid[:, inputs] = np.stack(np.meshgrid(*along), axis=-1).reshape(-1, 2)
    mean, deviation = v.predict(grid, return_std=True)
    picture = ax.pcolormesh(*along, (deviation if std else mean).reshape(n, n), cmap="cividis", shading="nearest")
    ax.plot(*states[:, inputs].T, "o", mfc="none", mec="red", ms=3, mew=0.5, alpha=0.6)
    ax.set(xlabel=f"input {inputs[0]}", ylabel=f"input {inputs[1]}")
    ax.figure.colorbar(picture, ax=ax, label="standard deviation of V" if std else "V")
    return ax


def plot_section(
    v: GPTD, input: int = 0, *, level: float = 0.95, n: int = 200, at: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Value along one input, with the confidence interval as a band.

    Parameters
    ----------
    v : GPTD
        Fitted.
    input : int
        The input along the axis.
    level : float
        Level of the interval.
    n : int
        Points along the axis.
    at : array-like of shape (n_dims,), optional
        Values of the other inputs; their medians by default.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    ax = _axes(ax)
    states = v.data_.states
    x = np.linspace(states[:, input].min(), states[:, input].max(), n)
    grid = np.tile(np.median(states, axis=0) if at is None else np.asarray(at, dtype=float), (n, 1))
    grid[:, input] = x
    lower, upper = v.confidence_interval(grid, level)
    ax.fill_between(x, lower, upper, color="0.8", label=f"{level:.0%} interval")
    ax.plot(x, v.predict(grid), color="C0", label="V")
    ax.set(xlabel=f"input {input}", ylabel="value")
    ax.legend(frameon=False)
    return ax


def plot_relevances(v: GPTD, names: list[str] | None = None, *, ax: Axes | None = None) -> Axes:
    """Bars of the relevances, each by the squared spread of its input, on a logarithmic axis.

    Parameters
    ----------
    v : GPTD
        Fitted.
    names : list of str, optional
        Names of the inputs.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes
    """
    ax = _axes(ax)
    strength = v.relevances_ * v.data_.states.var(axis=0)
    names = names or [f"input {i}" for i in range(len(strength))]
    ax.barh(names, np.maximum(strength, 1e-8), color="C0")
    ax.set(xscale="log", xlim=(1e-8, None), xlabel="relevance × variance of the input")
    ax.invert_yaxis()
    return ax


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    return plt.subplots(layout="constrained")[1]
