"""Tables: what was computed over the seeds, and the paper's numbers beside ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gptd_rl.reproduction import gridworld, pendulum
from gptd_rl.reproduction.beyond import TOLERANCE, Trial
from gptd_rl.reproduction.claims import Claim
from gptd_rl.reproduction.paper import printed


@dataclass(frozen=True)
class Spread:
    """One number for each seed, shown as mean ± standard deviation."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """From any iterable."""
        return cls(tuple(map(float, values)))

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Standard deviation over the seeds, nan if there is only one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def __str__(self) -> str:
        return number(self.mean) if math.isnan(self.std) else f"{number(self.mean)} ± {number(self.std, 2)}"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        std = None if math.isnan(self.std) else self.std
        return dict(values=list(self.values), mean=self.mean, std=std)


Cell = str | Spread


@dataclass(frozen=True)
class Table:
    """A table with a name for its files and a title for its readers."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def shown_rows(self) -> list[tuple[str, ...]]:
        """The rows as text; a sentence that is the same as in the row above is not said twice."""
        rows = [tuple(map(str, row)) for row in self.rows]
        above = ["", *(row[-1] for row in rows[:-1])]
        pairs = zip(rows, above, strict=True)
        return [(*row[:-1], "") if row[-1].endswith(".") and row[-1] == last else row for row, last in pairs]

    def markdown(self) -> str:
        """As Markdown, with the title as a heading."""
        lines = [self.columns, ("---",) * len(self.columns), *self.shown_rows]
        cells = ["| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines]
        return "\n".join([f"## {self.title}", "", *cells, ""])

    def as_json(self) -> dict[str, Any]:
        """Plain data, each seed's numbers included."""

        def plain(cell: Cell) -> Any:
            return cell.as_json() if isinstance(cell, Spread) else cell

        rows = [dict(zip(self.columns, map(plain, row), strict=True)) for row in self.rows]
        return dict(title=self.title, columns=list(self.columns), rows=rows)


def number(x: float, digits: int = 3) -> str:
    """A few digits, whole numbers from 100 on, powers of ten where it is tiny; 0 as it is."""
    if x == 0 or not math.isfinite(x):
        return f"{x:g}"
    if abs(x) >= 100:
        return f"{x:.0f}"
    return f"{x:.{digits}g}" if abs(x) >= 1e-3 else f"{x:.{digits - 1}e}"


def as_printed(x: float) -> str:
    """A number of the paper, with all of its digits."""
    return f"{x:g}"


def claims_table(claims: Sequence[Claim]) -> Table:
    """Every claim with its verdict."""
    rows = tuple((c.section, c.text, c.verdict, c.count) for c in claims)
    return Table("claims", "Claims", ("section", "claim", "verdict", "seeds in which it held"), rows)


# -------------------------------------------------------------------------------------- pendulum


def hyperparameter_table(runs: Sequence[pendulum.Run]) -> Table:
    """What model selection found, with the eigendecomposition of Ω: s₁, s₂ and u₁."""
    heads = ("covariance", "v₀", "σ²", "b", "s₁", "s₂", "u₁ (φ)", "u₁ (φ̇)")
    rows = []
    for label in pendulum.KERNELS:
        fits = [run.fits[label] for run in runs]
        rows.append(
            (
                label,
                Spread.of(f.kernel.signal_variance for f in fits),
                Spread.of(f.noise_variance for f in fits),
                Spread.of(f.kernel.bias for f in fits),
                *(Spread.of(f.kernel.metric.eigenvalues[i] for f in fits) for i in (0, 1)),
                *(Spread.of(f.kernel.metric.directions[0, i] for f in fits) for i in (0, 1) if label != "I"),
                *(("any",) * 2 if label == "I" else ()),
            )
        )
    title = "Pendulum: hyperparameters, with Ω by its eigenvalues s and its first eigenvector u₁"
    return Table("pendulum_hyperparameters", title, heads, tuple(rows))


def pendulum_table(runs: Sequence[pendulum.Run]) -> Table:
    """Errors, evidence, subset sizes and seconds."""
    tolerance = printed()["pendulum"]["subset_tolerance"]
    columns: dict[str, Callable[[pendulum.Fit], float]] = {
        "MSE, trajectory": lambda f: f.trajectory_mse,
        "MSE, grid": lambda f: f.grid_mse,
        "evidence": lambda f: f.evidence,
        f"subset at {tolerance:g}": lambda f: f.covariance.subset.size_at(tolerance),
        "seconds": lambda f: f.seconds,
    }
    rows: list[tuple[Cell, ...]] = [
        (label, *(Spread.of(read(run.fits[label]) for run in runs) for read in columns.values()))
        for label in pendulum.KERNELS
    ]
    return Table("pendulum_results", "Pendulum: results", ("covariance", *columns), tuple(rows))


def pendulum_beside_paper(runs: Sequence[pendulum.Run]) -> Table:
    """The paper's numbers beside ours, with a sentence on each difference."""
    paper = printed()["pendulum"]
    tolerance = paper["subset_tolerance"]
    rows: list[tuple[Cell, ...]] = []

    def add(quantity: str, key: str, read: Callable[[pendulum.Fit], float], why: str) -> None:
        for label in pendulum.KERNELS:
            ours = Spread.of(read(run.fits[label]) for run in runs)
            rows.append((f"{quantity}, {label}", as_printed(paper[key][label]), ours, why))

    share = max(f.noise_variance / run.scales.variance for run in runs for f in run.fits.values())
    level = statistics.fmean(float(run.truth.mean()) for run in runs)
    biases = statistics.fmean(f.kernel.bias for run in runs for f in run.fits.values())
    rest = Spread.of(run.returns_mse for run in runs)
    grid = {label: statistics.fmean(run.fits[label].grid_mse for run in runs) for label in pendulum.KERNELS}
    best = min(grid, key=lambda label: grid[label])
    scale = "V's scale depends on the time step and the discount, which the paper does not give (here 0.05 s and 0.99)."
    units = "The paper does not say how its inputs were scaled; here they are rad and rad/s."
    add("v₀", "signal_variance", lambda f: f.kernel.signal_variance, scale)
    why = f"Our returns hold no noise, and σ² goes down to {share:.0e} of their variance; 1e-6 is the least it may."
    add("σ²", "noise_variance", lambda f: f.noise_variance, why)
    why = (
        f"√b says how far from 0 the level of V may lie: {math.sqrt(biases):.0f} here, where V* is {level:.0f} on "
        "average; the paper's b holds that level near 0."
    )
    add("b", "bias", lambda f: f.kernel.bias, why)
    for label, names in {"I": ["h"], "II": ["a₁ (φ)", "a₂ (φ̇)"], "III": ["s₁", "s₂"]}.items():
        for i, name in enumerate(names):
            metrics = [run.fits[label].kernel.metric for run in runs]
            ours = Spread.of((m.eigenvalues if label == "III" else m.relevances)[i] for m in metrics)
            rows.append((f"{name}, {label}", as_printed(paper["eigenvalues"][label][i]), ours, units))
    why = "We think the slant differs with the units of φ̇ and the pendulum's constants, which the paper does not give."
    for i, name in enumerate(["φ", "φ̇"]):
        ours = Spread.of(run.fits["III"].kernel.metric.directions[0, i] for run in runs)
        rows.append((f"u₁ along {name}, III", as_printed(paper["direction"]["III"][i]), ours, why))
    why = (
        "The models mostly follow the returns; their own mean squared distance from V* is "
        f"{rest}, for V* jumps and a grid of states blurs the jumps."
    )
    add("MSE at the trajectory's states", "trajectory_mse", lambda f: f.trajectory_mse, why)
    why = f"The samples differ, so only the order compares: on average {best} is best here; III in the paper."
    add("MSE on the grid", "grid_mse", lambda f: f.grid_mse, why)
    why = "The number depends on the lengthscales beside the range of the data, which differ; the order compares."
    add(f"subset at {tolerance:g}", "subset_size", lambda f: f.covariance.subset.size_at(tolerance), why)
    low, high = paper["seconds"]
    seconds = Spread.of(f.seconds for run in runs for f in run.fits.values())
    rows.append(("seconds for a fit", f"{low}–{high}", seconds, "Theirs on a 1.5 GHz PC, ours on this machine."))
    episodes = Spread.of(int(run.data.terminated.sum()) for run in runs)
    why = "Starts are uniform over the state space here; the paper does not say how its episodes began."
    rows.append(("episodes completed", f"about {paper['episodes']}", episodes, why))
    return beside("pendulum", paper["section"], rows)


def beside(what: str, section: str, rows: Sequence[tuple[Cell, ...]]) -> Table:
    """The paper's numbers and ours, side by side."""
    title = f"{what.capitalize()}: the paper's numbers (Section {section}) beside ours"
    columns = ("quantity", "paper", "here", "on the difference")
    return Table(f"{what}_beside_paper", title, columns, tuple(rows))


# -------------------------------------------------------------------------------------- gridworld


def gridworld_table(runs: Sequence[gridworld.Run]) -> Table:
    """The paper's table: hyperparameters, complexity, data fit, their sum, and the error."""
    columns: dict[str, Callable[[gridworld.Fit], float]] = {
        "relevance of x": lambda f: f.relevances[0],
        "relevance of y": lambda f: f.relevances[1],
        "σ²": lambda f: f.noise_variance,
        "complexity": lambda f: f.complexity,
        "data fit": lambda f: f.data_fit,
        "L = complexity + data fit": lambda f: f.complexity + f.data_fit,
        "evidence": lambda f: f.evidence,
        "MSE": lambda f: f.mse,
    }
    rows: list[tuple[Cell, ...]] = [
        (label, *(Spread.of(read(run.fits[label]) for run in runs) for read in columns.values()))
        for label in gridworld.LABELS
    ]
    return Table("gridworld_results", "Gridworld: results", ("covariance", *columns), tuple(rows))


def gridworld_beside_paper(runs: Sequence[gridworld.Run]) -> Table:
    """The paper's numbers beside ours, with a sentence on each difference."""
    paper = printed()["gridworld"]
    rows: list[tuple[Cell, ...]] = []

    def add(quantity: str, label: str, known: float, read: Callable[[gridworld.Fit], float], why: str) -> None:
        rows.append((f"{quantity}, {label}", as_printed(known), Spread.of(read(run.fits[label]) for run in runs), why))

    why = "The paper does not say how its inputs were scaled; here they run from 1 to 11."
    add("h", "I", paper["relevances"]["I"][0], lambda f: f.relevances[0], why)
    add("a₁ (x)", "II", paper["relevances"]["II"][0], lambda f: f.relevances[0], why)
    why = "Below the paper's bound: the search ends at the least relevance it may take, 1e-8 per variance of the input."
    add("a₂ (y)", "II", paper["relevances"]["II"][1], lambda f: f.relevances[1], why)
    why = "The least σ² that the search may take sets its level, and is not in the paper; the order compares."
    for label in gridworld.LABELS:
        add("complexity", label, paper["complexity"][label], lambda f: f.complexity, why)
    why = "When y is removed, the other parameters are selected anew here, so the fit may become better."
    for label in gridworld.LABELS:
        add("data fit", label, paper["data_fit"][label], lambda f: f.data_fit, why)
    why = "The sum of the two, without the constant, as the paper prints it; smaller is better."
    for label in gridworld.LABELS:
        add("L", label, paper["negative_log_likelihood"][label], lambda f: f.complexity + f.data_fit, why)
    errors = [(run.fits["I"].values - run.truth) ** 2 for run in runs]
    unvisited = sum(float(e[run.visits == 0].sum()) for e, run in zip(errors, runs, strict=True))
    share = unvisited / sum(float(e.sum()) for e in errors)
    noise = max(f.noise_variance for run in runs for f in run.fits.values())
    why = (
        f"σ² is {number(noise, 2)} at most here, for the returns hold no noise; {share:.0%} of the squared error of I "
        "lies in cells that the data never visited."
    )
    for label in ("I", "II"):
        add("MSE", label, paper["mse"][label], lambda f: f.mse, why)
    return beside("gridworld", paper["section"], rows)


# -------------------------------------------------------------------------------------- beyond the paper


def beyond_table(trials: Sequence[Trial], what: str, unit: str) -> Table:
    """Relevance ratio, error and subset size by the number of inputs that do not matter."""
    rows = []
    for n in sorted({t.n_irrelevant for t in trials}):
        for label in ("I", "II"):
            some = [t for t in trials if (t.label, t.n_irrelevant) == (label, n)]
            ratio: Cell = "–" if label == "I" else Spread.of(t.ratio for t in some)
            sizes = Spread.of(t.subset_size for t in some)
            n_states = Spread.of(t.n_states for t in some)
            rows.append((str(n), label, ratio, Spread.of(t.mse for t in some), sizes, n_states))
    columns = (
        unit,
        "covariance",
        "largest relevance of what does not matter / smallest of what does",
        "MSE",
        f"subset at {TOLERANCE:g}",
        "states in the data",
    )
    return Table(f"{what}_beyond", f"Beyond the paper: {what} with {unit}", columns, tuple(rows))
