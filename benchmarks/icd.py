"""How many inducing points does a kernel need? The centre and right of the figure of K in Section 6.1, measured.

    python benchmarks/icd.py                     about half a minute
    python benchmarks/icd.py --out icd.png       also a picture
    python benchmarks/icd.py --small             a smoke run

Incomplete Cholesky factorisation chooses states until no other keeps more than a tolerance of its prior variance
unexplained. The better the kernel knows what matters, the fewer it takes. As in the paper, K is the *whole* kernel, its
bias b included; the sparse method of this project keeps b as a regressor of its own, and needs no state for it. The
hyperparameters are those that the evidence selects. Covariances: (I) isotropic, (II) ARD, (III) factor analysis.

The paper's pendulum took about 175, 140 and 80 of 1000 states at the tolerance 0.1. Only the order of the three can be
compared: the paper does not say how its inputs were scaled. Its hyperparameters are in the last table beside the ones
found here. That its σ² was larger by far explains little of the difference: see `--noise-variance 0.05`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tasks import task_named

from gptd_rl import GPTD, Trajectories
from gptd_rl.inference.inducing import Subset, incomplete_cholesky
from gptd_rl.kernels import Kernel

Array = NDArray[np.float64]

NAMES = {"isotropic": "I", "ard": "II", "factor": "III"}
TOLERANCES = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
SIZES = (5, 10, 20, 40, 80, 160, 320)

# v₀, σ², b and Ω of the paper's Section 6.1; III by its eigenvalues and directions
DIRECTIONS = np.array([[0.58, 0.81], [-0.81, 0.58]])
PAPER = {
    "isotropic": (18.19, 0.05, 0.11, 7.48 * np.eye(2)),
    "ard": (15.95, 0.05, 0.10, np.diag([3.62, 6.63])),
    "factor": (10.82, 0.08, 0.10, DIRECTIONS.T @ np.diag([13.91, 0.36]) @ DIRECTIONS),
}


@dataclass(frozen=True, eq=False)
class Curve:
    """One kernel on one task."""

    task: str
    kernel: str
    subset: Subset
    errors: Array  # ‖K − K̃‖_F after 0, 1, … m states
    hyperparameters: tuple[float, float, float, Array]  # v₀, σ², b, Ω

    @property
    def label(self) -> str:
        """As the paper numbers them."""
        return NAMES[self.kernel]

    def error_at(self, size: int) -> float:
        """‖K − K̃‖_F with the first `size` states, or nan if so many were never chosen."""
        return float(self.errors[size]) if size < len(self.errors) else np.nan


def measure(name: str, data: Trajectories, kernel: str, noise_variance: float | None) -> Curve:
    """Fit, choose states, and measure what they leave out."""
    v = GPTD(kernel=kernel, objective="marginal_likelihood", noise_variance=noise_variance).fit(data)
    subset = incomplete_cholesky(v.kernel_, data.states)
    errors = approximation_errors(v.kernel_, data.states, subset.indices[: max(SIZES)])
    found = v.kernel_.signal_variance, v.noise_variance_, v.kernel_.bias, v.kernel_.metric.matrix
    return Curve(name, kernel, subset, errors, found)


def approximation_errors(kernel: Kernel, states: Array, chosen: Iterable[int]) -> Array:
    """‖K − K̃‖_F after each of the states chosen, by elimination in the dense matrix."""
    left = kernel(states)
    errors = [np.linalg.norm(left)]
    for pivot in chosen:
        row = left[pivot] / np.sqrt(left[pivot, pivot])
        left -= np.multiply.outer(row, row)
        errors.append(np.linalg.norm(left))
    return np.array(errors)


# -------------------------------------------------------------------------------------- tables


def table(
    title: str, first: str, rows: Sequence[float], curves: Sequence[Curve], cell: Callable[[Curve, float], str]
) -> str:
    """Markdown, one column per curve."""
    heads = [f"{c.task} {c.label}" for c in curves]
    lines = ["", f"**{title}**", "", f"| {first} | " + " | ".join(heads) + " |", "|---:|" + "---:|" * len(heads)]
    lines += [f"| {row:g} | " + " | ".join(cell(c, row) for c in curves) + " |" for row in rows]
    return "\n".join(lines)


def hyperparameter_table(curves: Sequence[Curve]) -> str:
    """What was selected, beside what the paper found."""
    lines = [
        "",
        "**Hyperparameters**",
        "",
        "| | v₀ | σ² | b | Ω | v₀, σ², b, Ω in the paper |",
        "|---|---|---|---|---|---|",
    ]
    for c in curves:
        known = written(PAPER[c.kernel], ", ") if c.task == "pendulum" else ""
        lines.append(f"| {c.task} {c.label} | {written(c.hyperparameters, ' | ')} | {known} |")
    return "\n".join(lines)


def written(hyperparameters: tuple[float, float, float, Array], between: str) -> str:
    """v₀, σ², b, and Ω by its distinct entries."""
    *variances, omega = hyperparameters
    a, b, c = omega[0, 0], omega[1, 1], omega[0, 1]
    matrix = f"{a:.3g}·I" if a == b and not c else f"diag({a:.3g}, {b:.3g})" + (f", off {c:.3g}" if c else "")
    return between.join([*(f"{x:.3g}" for x in variances), matrix])


# -------------------------------------------------------------------------------------- picture


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Both curves of each task; kernels differ by dashes and by marks, for print in grey."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    styles = {
        "isotropic": dict(color="black", ls="-", marker="o"),
        "ard": dict(color="0.35", ls="--", marker="s"),
        "factor": dict(color="0.6", ls=":", marker="^"),
    }
    words = {"isotropic": "I: isotropic", "ard": "II: ARD", "factor": "III: factor analysis"}
    tasks = list(dict.fromkeys(c.task for c in curves))
    figure, grid = plt.subplots(len(tasks), 2, figsize=(9, 3.2 * len(tasks)), layout="constrained", squeeze=False)
    for task, (left, right) in zip(tasks, grid, strict=True):
        for c in (c for c in curves if c.task == task):
            style: dict[str, Any] = dict(label=words[c.kernel], lw=1.8, ms=5, mfc="white", **styles[c.kernel])
            largest = c.subset.largest_residuals
            tolerances = np.geomspace(max(largest[-1], 1e-4), 100.0, 200)
            sizes = [c.subset.size_at(t) for t in tolerances]
            left.plot(tolerances, sizes, markevery=25, **style)
            right.plot(c.errors, markevery=max(1, len(c.errors) // 8), **style)
        left.set(xscale="log", xlabel="tolerance", ylabel="states chosen", title=f"{task}: size of the subset")
        left.invert_xaxis()
        right.set(yscale="log", xlabel="states chosen", ylabel="‖K − K̃‖ (Frobenius)")
        right.set(title=f"{task}: what it leaves out", ylim=(1e-3, None))
        for ax in (left, right):
            ax.grid(color="0.9")
            ax.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the data, for a smoke run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise-variance", type=float, help="hold σ² at this value; selected like the rest by default")
    parser.add_argument("--out", type=Path, help="also write a picture to this file")
    args = parser.parse_args()

    plans: dict[str, Sequence[str]] = {"pendulum": tuple(NAMES), "gridworld": ("isotropic", "ard")}
    curves = []
    for name, kernels in plans.items():
        task = task_named(name)
        data = task.sample(np.random.default_rng(args.seed), task.n_transitions // (10 if args.small else 1))
        n_distinct = len(np.unique(data.states, axis=0))
        print(f"- {task.name}: {data}, {n_distinct} distinct states of {len(data)}", flush=True)
        curves += [measure(task.name, data, kernel, args.noise_variance) for kernel in kernels]

    print(table("States chosen", "tolerance", TOLERANCES, curves, lambda c, t: f"{c.subset.size_at(t)}"))
    print(table("‖K − K̃‖_F", "states", SIZES, curves, lambda c, m: shown(c.error_at(int(m)))))
    print(hyperparameter_table(curves))
    if args.out:
        draw(curves, args.out)
        print(f"\npicture: {args.out}")


def shown(number: float) -> str:
    """Three digits; a dash where there is no number."""
    return "–" if np.isnan(number) else f"{number:.3g}"


if __name__ == "__main__":
    main()
