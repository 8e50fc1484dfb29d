"""The paper's claims as conditions on the computed results, with one verdict for each seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gptd_rl.report.numbers import number
from gptd_rl.reproduction.gridworld import WITHOUT, GridworldResult
from gptd_rl.reproduction.irrelevant_inputs import InputSelection
from gptd_rl.reproduction.paper import printed
from gptd_rl.reproduction.pendulum import KERNELS, PendulumResult

Result = TypeVar("Result")

# Smallest s₁/s₂ of a dominant direction; the paper's is 39.
DOMINANT = 10.0

# Largest ratio of similar errors; the paper's is 1.13.
SIMILAR = 1.5

# Largest increase of ½rᵀQ⁻¹r of an unchanged data fit, in nats.
UNCHANGED = 0.5

# Largest relevance of an irrelevant y, as a share of x's.
IRRELEVANT = 1e-5

# Largest relevance of any irrelevant input, as a share of the smallest of a relevant one.
SEPARATED = 1e-2


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and the seeds in which it holds.

    Attributes
    ----------
    section : str
        Section of the paper, or "beyond".
    text : str
    held : tuple of bool
        For each seed.
    """

    section: str
    text: str
    held: tuple[bool, ...]

    @property
    def count(self) -> str:
        """Number of seeds in which it holds."""
        return f"{sum(self.held)} of {len(self.held)}"

    @property
    def verdict(self) -> str:
        """Whether it holds in every seed."""
        return "held" if all(self.held) else "not held"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(section=self.section, text=self.text, held=list(self.held), verdict=self.verdict)


def pendulum_claims(results: Sequence[PendulumResult]) -> list[Claim]:
    """Claims (a) to (e) of Section 6.1."""
    tolerance = printed()["pendulum"]["subset_tolerance"]

    def evidence(result: PendulumResult) -> bool:
        return result.fits["III"].evidence > max(result.fits["I"].evidence, result.fits["II"].evidence)

    def grid_error(result: PendulumResult) -> bool:
        return result.fits["III"].grid_mse < min(result.fits["I"].grid_mse, result.fits["II"].grid_mse)

    def direction(result: PendulumResult) -> bool:
        metric = result.fits["III"].kernel.metric
        s, (u, _) = metric.eigenvalues, metric.directions
        return s[0] >= DOMINANT * s[1] and u[0] * u[1] > 0

    def subset(result: PendulumResult) -> bool:
        first, second, third = (result.fits[k].spectrum.subset.size_at(tolerance) for k in KERNELS)
        return first > second > third

    def similar(result: PendulumResult) -> bool:
        errors = [f.trajectory_mse for f in result.fits.values()]
        return max(errors) <= SIMILAR * min(errors)

    conditions = {
        "(a) III has the highest evidence": evidence,
        "(b) III has the smallest error on the grid": grid_error,
        f"(c) III has one dominant direction (s₁ ≥ {DOMINANT:g}·s₂), both components of the same sign": direction,
        f"(d) subset sizes at tolerance {tolerance:g} decrease from I to II to III": subset,
        f"(e) errors at the trajectory's states are similar (within a factor of {SIMILAR:g})": similar,
    }
    return _verdicts("6.1", conditions, results)


def gridworld_claims(results: Sequence[GridworldResult]) -> list[Claim]:
    """Claims (f) to (i) of Section 6.2."""

    def irrelevant(result: GridworldResult) -> bool:
        x, y = result.fits["II"].relevances
        return y < IRRELEVANT * x

    def better(result: GridworldResult) -> bool:
        I, II = result.fits["I"], result.fits["II"]
        return II.data_fit < I.data_fit and II.complexity < I.complexity

    def without_y(result: GridworldResult) -> bool:
        II, without = result.fits["II"], result.fits[WITHOUT]
        return without.data_fit <= II.data_fit + UNCHANGED and without.complexity < II.complexity

    def error(result: GridworldResult) -> bool:
        return result.fits["II"].mse < result.fits["I"].mse

    conditions = {
        f"(f) y's relevance is below {number(IRRELEVANT, digits=1)} of x's": irrelevant,
        "(g) II fits the data better than I and is less complex": better,
        f"(h) removing y keeps the data fit (to {UNCHANGED:g} nats) and lowers the complexity": without_y,
        "(i) the error of II is smaller than that of I": error,
    }
    return _verdicts("6.2", conditions, results)


def irrelevant_input_claims(selections: Sequence[InputSelection], task: str, unit: str) -> list[Claim]:
    """That II separates relevant from irrelevant inputs, and has smaller errors, by the number of irrelevant inputs."""
    claims = []
    for n in sorted({s.n_irrelevant for s in selections}):
        first, second = ([s for s in selections if (s.label, s.n_irrelevant) == (k, n)] for k in ("I", "II"))
        separated = tuple(s.ratio < SEPARATED for s in second)
        pairs = list(zip(first, second, strict=True))
        better = tuple(b.mse < a.mse and b.subset_size < a.subset_size for a, b in pairs)
        where = f"{task} with {unit} ({n})"
        text = f"{where}: their relevances in II are below {SEPARATED:g} of the relevant inputs'"
        claims += [
            Claim("beyond", text, separated),
            Claim("beyond", f"{where}: II has a smaller error and a smaller subset than I", better),
        ]
    return claims


def _verdicts(
    section: str, conditions: Mapping[str, Callable[[Result], bool]], results: Sequence[Result]
) -> list[Claim]:
    return [Claim(section, text, tuple(bool(holds(r)) for r in results)) for text, holds in conditions.items()]
