"""The paper's claims as conditions on what was computed, one verdict for each seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gptd_rl.reproduction import gridworld, pendulum
from gptd_rl.reproduction.beyond import Trial
from gptd_rl.reproduction.gridworld import WITHOUT
from gptd_rl.reproduction.paper import printed

# How large s₁/s₂ must be for one direction to dominate; the paper's is 39.
DOMINANT = 10.0

# Errors are alike if the largest is at most so many times the smallest; the paper's are within 1.13.
ALIKE = 1.5

# The fit is kept if ½rᵀQ⁻¹r grows by no more than this, in nats.
KEPT = 0.5

# y is irrelevant if its relevance is below this share of x's.
IRRELEVANT = 1e-5

# Among many inputs, each that does not matter must stay below this share of each that does.
OVERLOOKED = 1e-2


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and in which seeds it came out.

    Attributes
    ----------
    section : str
        Where the paper says it, or "beyond".
    text : str
    held : tuple of bool
        For each seed.
    """

    section: str
    text: str
    held: tuple[bool, ...]

    @property
    def count(self) -> str:
        """In how many seeds it held."""
        return f"{sum(self.held)} of {len(self.held)}"

    @property
    def verdict(self) -> str:
        """Whether it held in every seed."""
        return "held" if all(self.held) else "not held"

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(section=self.section, text=self.text, held=list(self.held), verdict=self.verdict)


def pendulum_claims(runs: Sequence[pendulum.Run]) -> list[Claim]:
    """Claims (a) to (e) of Section 6.1."""
    tolerance = printed()["pendulum"]["subset_tolerance"]

    def evidence(run: pendulum.Run) -> bool:
        return run.fits["III"].evidence > max(run.fits["I"].evidence, run.fits["II"].evidence)

    def grid_error(run: pendulum.Run) -> bool:
        return run.fits["III"].grid_mse < min(run.fits["I"].grid_mse, run.fits["II"].grid_mse)

    def direction(run: pendulum.Run) -> bool:
        metric = run.fits["III"].kernel.metric
        s, (u, _) = metric.eigenvalues, metric.directions
        return s[0] >= DOMINANT * s[1] and u[0] * u[1] > 0

    def subset(run: pendulum.Run) -> bool:
        first, second, third = (run.fits[k].covariance.subset.size_at(tolerance) for k in pendulum.KERNELS)
        return first > second > third

    def alike(run: pendulum.Run) -> bool:
        errors = [f.trajectory_mse for f in run.fits.values()]
        return max(errors) <= ALIKE * min(errors)

    conditions = [
        ("(a) III has the highest evidence", evidence),
        ("(b) III has the smallest error on the grid", grid_error),
        (f"(c) III finds one dominant direction (s₁ ≥ {DOMINANT:g}·s₂), both components of the same sign", direction),
        (f"(d) subset sizes at tolerance {tolerance:g} fall from I to II to III", subset),
        (f"(e) errors at the trajectory's states are alike (within a factor of {ALIKE:g})", alike),
    ]
    return [Claim("6.1", text, tuple(bool(holds(run)) for run in runs)) for text, holds in conditions]


def gridworld_claims(runs: Sequence[gridworld.Run]) -> list[Claim]:
    """Claims of Section 6.2."""

    def irrelevant(run: gridworld.Run) -> bool:
        x, y = run.fits["II"].relevances
        return y < IRRELEVANT * x

    def better(run: gridworld.Run) -> bool:
        I, II = run.fits["I"], run.fits["II"]
        return II.data_fit < I.data_fit and II.complexity < I.complexity

    def without(run: gridworld.Run) -> bool:
        II, less = run.fits["II"], run.fits[WITHOUT]
        return less.data_fit <= II.data_fit + KEPT and less.complexity < II.complexity

    def error(run: gridworld.Run) -> bool:
        return run.fits["II"].mse < run.fits["I"].mse

    conditions = [
        (f"(f) y's relevance is below {IRRELEVANT:g} of x's", irrelevant),
        ("(g) II fits better than I and is less complex", better),
        (f"(h) removing y keeps the fit (to {KEPT:g} nats) and lowers the complexity", without),
        ("(i) the error of II is smaller than that of I", error),
    ]
    return [Claim("6.2", text, tuple(bool(holds(run)) for run in runs)) for text, holds in conditions]


def beyond_claims(trials: Sequence[Trial], what: str, unit: str) -> list[Claim]:
    """That II still tells what matters, and gains by it; one set of claims for each number of irrelevant inputs."""
    claims = []
    for n in sorted({t.n_irrelevant for t in trials}):
        first, second = ([t for t in trials if (t.label, t.n_irrelevant) == (k, n)] for k in ("I", "II"))
        found = tuple(t.ratio < OVERLOOKED for t in second)
        pairs = list(zip(first, second, strict=True))
        gained = tuple(b.mse < a.mse and b.subset_size < a.subset_size for a, b in pairs)
        among = f"{what} with {unit} ({n})"
        claims += [
            Claim("beyond", f"{among}: II keeps each below {OVERLOOKED:g} of the relevance of what matters", found),
            Claim("beyond", f"{among}: II has a smaller error and a smaller subset than I", gained),
        ]
    return claims
