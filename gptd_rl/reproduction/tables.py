"""Tables of the results over the seeds, and comparisons with the paper's numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gptd_rl.report.numbers import number
from gptd_rl.reproduction.claims import Claim
from gptd_rl.reproduction.gridworld import GridworldFit, GridworldResult
from gptd_rl.reproduction.gridworld import LABELS as GRIDWORLD_LABELS
from gptd_rl.reproduction.irrelevant_inputs import TOLERANCE, InputSelection
from gptd_rl.reproduction.paper import printed
from gptd_rl.reproduction.pendulum import KERNELS, PendulumFit, PendulumResult


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
        if math.isnan(self.std):
            return number(self.mean)
        return f"{number(self.mean, self.std)} ± {number(self.std, digits=2)}"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        std = None if math.isnan(self.std) else self.std
        return dict(values=list(self.values), mean=self.mean, std=std)


Cell = str | Spread


@dataclass(frozen=True)
class Table:
    """A table; `name` is that of its files."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: str = ""  # class on the page

    @property
    def shown_rows(self) -> list[tuple[str, ...]]:
        """The rows as text; a sentence in the last column is not repeated if it is the same as in the row above."""
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


def as_printed(x: float) -> str:
    """A number of the paper, with all of its digits."""
    return f"{x:g}".replace("-", "−") if abs(x) >= 1e-3 else number(x, digits=1)


def claims_table(claims: Sequence[Claim]) -> Table:
    """All claims with their verdicts."""
    rows = tuple((c.section, c.text, c.verdict, c.count) for c in claims)
    return Table("claims", "Claims", ("section", "claim", "verdict", "seeds"), rows)


@dataclass(frozen=True)
class PaperComparison:
    """A quantity of the paper beside ours.

    Attributes
    ----------
    quantity : str
    paper : str
        As printed in the paper.
    ours : Spread
    reason : str
        A sentence on the difference.
    """

    quantity: str
    paper: str
    ours: Spread
    reason: str


def comparison_table(task: str, section: str, comparisons: Iterable[PaperComparison]) -> Table:
    """The paper's numbers and ours, side by side."""
    title = f"{task.capitalize()}: comparison with the paper (Section {section})"
    rows = tuple((c.quantity, c.paper, c.ours, c.reason) for c in comparisons)
    columns = ("quantity", "paper", "here", "reason for the difference")
    return Table(f"{task}_comparison", title, columns, rows, kind="comparison")


# -------------------------------------------------------------------------------------- pendulum


def hyperparameter_table(results: Sequence[PendulumResult]) -> Table:
    """Selected hyperparameters, with the eigendecomposition of Ω: s₁, s₂ and u₁."""
    header = ("covariance", "v₀", "σ²", "b", "s₁", "s₂", "u₁ (φ)", "u₁ (φ̇)")
    rows = []
    for label in KERNELS:
        fits = [result.fits[label] for result in results]
        rows.append(
            (
                label,
                Spread.of(f.kernel.signal_variance for f in fits),
                Spread.of(f.noise_variance for f in fits),
                Spread.of(f.kernel.bias for f in fits),
                *(Spread.of(f.kernel.metric.eigenvalues[i] for f in fits) for i in (0, 1)),
                *("any" if label == "I" else Spread.of(f.kernel.metric.directions[0, i] for f in fits) for i in (0, 1)),
            )
        )
    title = "Pendulum: hyperparameters, with Ω by its eigenvalues s and its first eigenvector u₁"
    return Table("pendulum_hyperparameters", title, header, tuple(rows))


def pendulum_table(results: Sequence[PendulumResult]) -> Table:
    """Errors, evidence, subset sizes and seconds."""
    tolerance = printed()["pendulum"]["subset_tolerance"]
    columns: dict[str, Callable[[PendulumFit], float]] = {
        "MSE, trajectory": lambda f: f.trajectory_mse,
        "MSE, grid": lambda f: f.grid_mse,
        "evidence": lambda f: f.evidence,
        f"subset at {tolerance:g}": lambda f: f.spectrum.subset.size_at(tolerance),
        "seconds": lambda f: f.seconds,
    }
    rows: list[tuple[Cell, ...]] = [
        (label, *(Spread.of(read(result.fits[label]) for result in results) for read in columns.values()))
        for label in KERNELS
    ]
    return Table("pendulum_results", "Pendulum: results", ("covariance", *columns), tuple(rows))


# Quantities that the paper gives for each covariance: name, key in paper.json, ours, key in PENDULUM_REASONS.
PENDULUM_QUANTITIES: tuple[tuple[str, str, Callable[[PendulumFit], float], str], ...] = (
    ("v₀", "signal_variance", lambda f: f.kernel.signal_variance, "scale"),
    ("σ²", "noise_variance", lambda f: f.noise_variance, "noise"),
    ("b", "bias", lambda f: f.kernel.bias, "bias"),
)
PENDULUM_ERRORS: tuple[tuple[str, str, Callable[[PendulumFit], float], str], ...] = (
    ("MSE at the trajectory's states", "trajectory_mse", lambda f: f.trajectory_mse, "returns"),
    ("MSE on the grid", "grid_mse", lambda f: f.grid_mse, "order"),
)
# Relevances and components of the first direction: name, covariance, index, ours, key in paper.json and reason.
PENDULUM_METRICS: tuple[tuple[str, str, int, Callable[[PendulumFit], float], str], ...] = (
    ("h", "I", 0, lambda f: f.kernel.metric.relevances[0], "eigenvalues"),
    ("a₁ (φ)", "II", 0, lambda f: f.kernel.metric.relevances[0], "eigenvalues"),
    ("a₂ (φ̇)", "II", 1, lambda f: f.kernel.metric.relevances[1], "eigenvalues"),
    ("s₁", "III", 0, lambda f: f.kernel.metric.eigenvalues[0], "eigenvalues"),
    ("s₂", "III", 1, lambda f: f.kernel.metric.eigenvalues[1], "eigenvalues"),
    ("u₁ along φ", "III", 0, lambda f: f.kernel.metric.directions[0, 0], "direction"),
    ("u₁ along φ̇", "III", 1, lambda f: f.kernel.metric.directions[0, 1], "direction"),
)
PENDULUM_REASONS = {
    "scale": "The scale of V depends on the time step and the discount, which the paper does not give (here 0.05 s and "
    "0.99).",
    "noise": "The returns are deterministic here, and σ² decreases to {noise_share} of their variance; the lower "
    "bound is 10⁻⁶.",
    "bias": "√b is the prior standard deviation of the mean of V: {level:.0f} here, where V* is {mean_value} on "
    "average; the paper's b keeps that mean near 0.",
    "eigenvalues": "The paper does not give the scale of its inputs; here they are in rad and rad/s.",
    "direction": "The direction depends on the units of φ̇ and on the pendulum's constants, which the paper does not "
    "give.",
    "returns": "The models follow the returns; their own mean squared difference from V* is {returns_mse}, since V* "
    "has jumps, which its grid smooths.",
    "order": "The samples differ, so only the order compares: on average {best} is best here, III in the paper.",
    "subset": "The size depends on the length scales relative to the range of the data, which differ; the order "
    "compares.",
    "seconds": "The paper's were measured on a 1.5 GHz PC, ours on this machine.",
    "episodes": "Start states are uniform over the state space here; the paper does not give its own.",
}


def pendulum_comparison(results: Sequence[PendulumResult]) -> Table:
    """The paper's numbers for the pendulum beside ours, with a sentence on each difference."""
    paper = printed()["pendulum"]
    tolerance = paper["subset_tolerance"]
    reasons = {key: text.format(**_pendulum_facts(results)) for key, text in PENDULUM_REASONS.items()}

    def spread(read: Callable[[PendulumFit], float], *labels: str) -> Spread:
        return Spread.of(read(result.fits[label]) for result in results for label in labels)

    def by_covariance(
        quantities: Iterable[tuple[str, str, Callable[[PendulumFit], float], str]],
    ) -> Iterator[PaperComparison]:
        for name, key, read, reason in quantities:
            for label in KERNELS:
                yield PaperComparison(
                    f"{name}, {label}", as_printed(paper[key][label]), spread(read, label), reasons[reason]
                )

    subset = (f"subset at {tolerance:g}", "subset_size", lambda f: f.spectrum.subset.size_at(tolerance), "subset")
    low, high = paper["seconds"]
    episodes = Spread.of(int(result.data.terminated.sum()) for result in results)
    comparisons = [
        *by_covariance(PENDULUM_QUANTITIES),
        *(
            PaperComparison(f"{name}, {label}", as_printed(paper[key][label][i]), spread(read, label), reasons[key])
            for name, label, i, read, key in PENDULUM_METRICS
        ),
        *by_covariance([*PENDULUM_ERRORS, subset]),
        PaperComparison(
            "seconds for a fit", f"{low}–{high}", spread(lambda f: f.seconds, *KERNELS), reasons["seconds"]
        ),
        PaperComparison("terminated episodes", f"about {paper['episodes']}", episodes, reasons["episodes"]),
    ]
    return comparison_table("pendulum", paper["section"], comparisons)


def _pendulum_facts(results: Sequence[PendulumResult]) -> dict[str, object]:
    """Numbers that `PENDULUM_REASONS` mention."""
    fits = [fit for result in results for fit in result.fits.values()]
    shares = [fit.noise_variance / result.scale.return_variance for result in results for fit in result.fits.values()]
    grid_mse = {label: statistics.fmean(result.fits[label].grid_mse for result in results) for label in KERNELS}
    return dict(
        noise_share=number(max(shares), digits=1),
        level=math.sqrt(statistics.fmean(f.kernel.bias for f in fits)),
        mean_value=number(statistics.fmean(float(result.truth.mean()) for result in results), digits=2),
        returns_mse=Spread.of(result.returns_mse for result in results),
        best=min(grid_mse, key=lambda label: grid_mse[label]),
    )


# -------------------------------------------------------------------------------------- gridworld


def gridworld_table(results: Sequence[GridworldResult]) -> Table:
    """The paper's table: hyperparameters, complexity, data fit, their sum, and the error."""
    columns: dict[str, Callable[[GridworldFit], float]] = {
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
        (label, *(Spread.of(read(result.fits[label]) for result in results) for read in columns.values()))
        for label in GRIDWORLD_LABELS
    ]
    return Table("gridworld_results", "Gridworld: results", ("covariance", *columns), tuple(rows))


# Quantities of the paper's table: name, key in paper.json, index there, covariances, ours, key in GRIDWORLD_REASONS.
GRIDWORLD_QUANTITIES: tuple[tuple[str, str, int | None, tuple[str, ...], Callable[[GridworldFit], float], str], ...] = (
    ("h", "relevances", 0, ("I",), lambda f: f.relevances[0], "units"),
    ("a₁ (x)", "relevances", 0, ("II",), lambda f: f.relevances[0], "units"),
    ("a₂ (y)", "relevances", 1, ("II",), lambda f: f.relevances[1], "bound"),
    ("complexity", "complexity", None, GRIDWORLD_LABELS, lambda f: f.complexity, "complexity"),
    ("data fit", "data_fit", None, GRIDWORLD_LABELS, lambda f: f.data_fit, "data_fit"),
    ("L", "negative_log_likelihood", None, GRIDWORLD_LABELS, lambda f: f.complexity + f.data_fit, "sum"),
    ("MSE", "mse", None, ("I", "II"), lambda f: f.mse, "mse"),
)
GRIDWORLD_REASONS = {
    "units": "The paper does not give the scale of its inputs; here they range from 1 to 11.",
    "bound": "Below the paper's bound: the lower bound of the search is 10⁻⁸ / variance of the input.",
    "complexity": "The lower bound of σ² determines its level, and is not in the paper; the order compares.",
    "data_fit": "Its level depends on σ². In both, removing y with the other hyperparameters unchanged keeps the fit.",
    "sum": "The negative log likelihood without its constant, as in the paper; lower is better.",
    "mse": "σ² is at most {noise} here, since the returns are deterministic; {share:.0%} of the squared error of I is "
    "in cells that the data do not visit.",
}


def gridworld_comparison(results: Sequence[GridworldResult]) -> Table:
    """The paper's numbers for the gridworld beside ours, with a sentence on each difference."""
    paper = printed()["gridworld"]
    errors = [(result.fits["I"].values - result.truth) ** 2 for result in results]
    unvisited = sum(float(e[result.visits == 0].sum()) for e, result in zip(errors, results, strict=True))
    noise = max(f.noise_variance for result in results for f in result.fits.values())
    facts = dict(noise=number(noise, digits=2), share=unvisited / sum(float(e.sum()) for e in errors))
    return comparison_table(
        "gridworld",
        paper["section"],
        (
            PaperComparison(
                f"{name}, {label}",
                as_printed(paper[key][label] if i is None else paper[key][label][i]),
                Spread.of(read(result.fits[label]) for result in results),
                GRIDWORLD_REASONS[reason].format(**facts),
            )
            for name, key, i, labels, read, reason in GRIDWORLD_QUANTITIES
            for label in labels
        ),
    )


# -------------------------------------------------------------------------------------- irrelevant inputs


def irrelevant_inputs_table(selections: Sequence[InputSelection], task: str, unit: str) -> Table:
    """Relevance ratio, error and subset size by the number of irrelevant inputs."""
    rows = []
    for n in sorted({s.n_irrelevant for s in selections}):
        for label in ("I", "II"):
            chosen = [s for s in selections if (s.label, s.n_irrelevant) == (label, n)]
            ratio: Cell = "–" if label == "I" else Spread.of(s.ratio for s in chosen)
            sizes = Spread.of(s.subset_size for s in chosen)
            n_states = Spread.of(s.n_states for s in chosen)
            rows.append((str(n), label, ratio, Spread.of(s.mse for s in chosen), sizes, n_states))
    header = (
        unit,
        "covariance",
        "largest irrelevant / smallest relevant relevance",
        "MSE",
        f"subset at {TOLERANCE:g}",
        "states in the data",
    )
    return Table(f"{task}_irrelevant_inputs", f"Beyond the paper: {task} with {unit}", header, tuple(rows))
