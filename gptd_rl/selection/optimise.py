"""Minimising an objective of a few parameters whose evaluations are expensive.

Two tools. `lbfgs`, SciPy's, explores from a start on a small sample of the data. `quasi_newton` converges, and goes on
with ever more of it: it is given the curvature (the Fisher information of the sample, then what the last search
learnt) and needs a handful of evaluations where L-BFGS, which has to find the curvature out, needs dozens.

Neither looks at the size of the objective, only at its differences: the units of the rewards do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # its submodules are imported at first use

from gptd_rl.types import Array

Function = Callable[[Array], tuple[float, Array]]

# A slope below this is rounding; its sign must not decide whether a parameter leaves its bound.
NO_SLOPE = 1e-6


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a search ended."""

    x: Array
    value: float
    n_evaluations: int
    curvature: Array  # second derivatives there, as far as the search learnt them; empty if it does not tell


def lbfgs(
    f: Function,
    start: Array,
    lower: Array,
    upper: Array,
    max_iterations: int = 200,
    scale: float = 1.0,
    tolerance: float = 1e-4,
) -> Optimum:
    """L-BFGS-B within bounds, of `f` divided by `scale`: its first step is as long as its gradient is steep.

    Stops when two steps in a row improve `f` by less than `tolerance`: a difference, which no constant added to `f`
    changes, so that the units of the rewards do not matter.
    """
    values = [np.inf]

    def scaled(x: Array) -> tuple[float, Array]:
        value, gradient = f(x)
        return value / scale, np.where(np.abs(gradient) < NO_SLOPE, 0.0, gradient / scale)

    def stop_if_flat(intermediate_result: Any) -> None:
        values.append(scale * float(intermediate_result.fun))
        if len(values) > 3 and values[-3] - values[-1] < 2.0 * tolerance:
            raise StopIteration

    result = scipy.optimize.minimize(
        scaled,
        np.clip(start, lower, upper),
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(lower, upper),
        callback=stop_if_flat,
        options=dict(maxiter=max_iterations, ftol=0.0, gtol=1e-3, maxcor=20),
    )
    return Optimum(result.x, scale * float(result.fun), int(result.nfev), np.empty((0, 0)))


def quasi_newton(
    f: Function,
    start: Array,
    lower: Array,
    upper: Array,
    curvature: Array,
    tolerance: float = 1e-3,
    max_evaluations: int = 100,
) -> Optimum:
    """Projected BFGS within bounds, from a given guess of the second derivatives.

    Stops when the quadratic model promises less than `tolerance` of improvement. The objective is in nats, so the
    tolerance has a meaning: differences of a thousandth of a nat decide nothing.

    Parameters
    ----------
    f : callable
        x → (value, gradient).
    start, lower, upper : ndarray of shape (n,)
    curvature : ndarray of shape (n, n)
        Second derivatives at the start; updated on the way, and handed back with the optimum.
    """
    x = np.clip(start, lower, upper)
    B = curvature
    value, g = f(x)
    n_evaluations = 1
    while n_evaluations < max_evaluations:
        free = ~(((x <= lower) & (g > 0)) | ((x >= upper) & (g < 0)))
        step = np.zeros_like(x)
        step[free] = -np.linalg.solve(B[np.ix_(free, free)], g[free])
        with np.errstate(over="ignore"):
            promise = -0.5 * float(g @ step)
        if promise < tolerance:
            break
        length = min(1.0, 3.0 / np.abs(step).max())  # θ is logarithmic: a factor of 20 at once is enough
        while True:
            x_new = np.clip(x + length * step, lower, upper)
            value_new, g_new = f(x_new)
            n_evaluations += 1
            expected = float(g @ (x_new - x))
            if value_new <= value + 1e-4 * expected or n_evaluations >= max_evaluations:
                break
            # minimum of the parabola through both values and the slope here
            bend = value_new - value - expected
            length *= float(np.clip(-0.5 * expected / bend, 0.1, 0.5)) if np.isfinite(bend) else 0.1
        if not value_new < value:  # no better, or not a number
            break
        B = _bfgs_update(B, x_new - x, g_new - g)
        x, value, g = x_new, value_new, g_new
    return Optimum(x, value, n_evaluations, B)


def _bfgs_update(B: Array, s: Array, y: Array) -> Array:
    """BFGS with Powell's damping, which keeps B positive definite whatever the curvature along s is."""
    Bs = B @ s
    sBs, sy = float(s @ Bs), float(s @ y)
    if sBs <= 0.0:
        return B
    if sy < 0.2 * sBs:
        blend = 0.8 * sBs / (sBs - sy)
        y = blend * y + (1.0 - blend) * Bs
        sy = float(s @ y)
    with np.errstate(over="ignore", invalid="ignore"):  # gradients of 1e200 have no squares
        updated = B - np.multiply.outer(Bs, Bs) / sBs + np.multiply.outer(y, y) / sy
    return updated if np.isfinite(updated).all() else B
