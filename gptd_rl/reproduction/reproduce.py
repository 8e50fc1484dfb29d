"""Run the experiments over some seeds, and write figures, tables and the page."""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from gptd_rl.reproduction import beyond, claims, figures, gridworld, pendulum, tables
from gptd_rl.reproduction.page import Chapter, Picture, render
from gptd_rl.reproduction.pendulum import Tick
from gptd_rl.exceptions import InterruptedFitWarning

EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "pendulum": ("pendulum",),
    "gridworld": ("gridworld",),
    "all": ("pendulum", "gridworld"),
}


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes
    ----------
    experiment : {"pendulum", "gridworld", "all"}
    n_seeds : int
        Seeds 0 … n_seeds − 1.
    small : bool
        Less of everything, for a smoke run.
    """

    experiment: str = "all"
    n_seeds: int = 3
    small: bool = False

    @property
    def n_irrelevant(self) -> tuple[int, ...]:
        """Numbers of irrelevant coordinates of the gridworld."""
        return (1, 5) if self.small else (1, 5, 10, 20)

    @property
    def n_copies(self) -> int:
        """Noisy copies of the pendulum's state."""
        return 3 if self.small else 10

    @property
    def n_ticks(self) -> int:
        """Fits to be made."""
        each = dict(
            pendulum=len(pendulum.KERNELS) + len(beyond.KERNELS),
            gridworld=len(gridworld.LABELS) + len(beyond.KERNELS) * len(self.n_irrelevant),
        )
        return self.n_seeds * sum(each[name] for name in EXPERIMENTS[self.experiment])


def reproduce(plan: Plan, out: Path, tick: Tick = lambda word: None) -> list[Chapter]:
    """Run the experiments of `plan` and write what they give into the folder `out`.

    Nothing appears there before everything is done; Ctrl-C raises KeyboardInterrupt.

    Parameters
    ----------
    plan : Plan
    out : Path
        Made if it is not there.
    tick : callable
        Called after each of ``plan.n_ticks`` fits, with a word on it.

    Returns
    -------
    list of Chapter
    """
    make_writable(out)
    with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as folder:
        began = time.perf_counter()
        chapters = [_without_interruption(name, plan, Path(folder), tick) for name in EXPERIMENTS[plan.experiment]]
        facts = {"seeds": str(plan.n_seeds), "took": f"{time.perf_counter() - began:.0f} s"}
        if plan.small:
            facts["a small version"] = "fewer transitions and coarser grids than the paper's"
        _write(chapters, plan, facts, Path(folder))
        for path in sorted(Path(folder).iterdir()):
            os.replace(path, out / path.name)
    return chapters


def make_writable(out: Path) -> None:
    """Make the folder `out` if it is not there; raises OSError where nothing can be written to it."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out):
        pass


def _without_interruption(name: str, plan: Plan, folder: Path, tick: Tick) -> Chapter:
    """One experiment; a fit that Ctrl-C cut short, which would keep the best model so far, ends it all."""
    chapter = {"pendulum": pendulum_chapter, "gridworld": gridworld_chapter}[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", InterruptedFitWarning)
        try:
            return chapter(plan, folder, tick)
        except InterruptedFitWarning:
            raise KeyboardInterrupt from None


def pendulum_chapter(plan: Plan, folder: Path, tick: Tick) -> Chapter:
    """Section 6.1, and the pendulum among noisy copies of its state."""
    settings = pendulum.SMALL if plan.small else pendulum.Settings()
    seeds = range(plan.n_seeds)
    runs = [pendulum.run(seed, settings, tick) for seed in seeds]
    trials = [t for seed in seeds for t in beyond.pendulum_trials(seed, settings, plan.n_copies, tick)]
    beyond_words = ("pendulum", "noisy copies of φ or φ̇")
    first = runs[0]
    drawn = [
        (figures.draw_metrics(first), "figure_1_metrics", "Figure 1. States at distance 1, as selected."),
        (figures.draw_optimal_value(first), "figure_2_optimal_value", "Figure 2. Optimal value function."),
        (
            figures.draw_value_maps(first),
            "figure_3_value_maps",
            "Figure 3. Values, predictive variance (black is low) with the states of the data in red, and errors.",
        ),
        (figures.draw_covariances(first), "figure_4_covariances", "Figure 4. Properties of K for each covariance."),
        (
            figures.draw_pendulum_beyond(trials),
            "beyond_pendulum",
            "Beyond the paper. Relevance of the state and of each noisy copy of it; a mark for each seed.",
        ),
    ]
    return Chapter(
        "Pendulum swing-up (Section 6.1)",
        f"{settings.n_transitions} transitions under the optimal policy, from uniform starts; time step 0.05 s, "
        f"γ = {settings.gamma:g}. Hyperparameters maximise the evidence of all rewards. Errors are against the optimal "
        f"values, at the states of the trajectory and on a {settings.n_grid} × {settings.n_grid} grid.",
        claims.pendulum_claims(runs) + claims.beyond_claims(trials, *beyond_words),
        [
            tables.pendulum_beside_paper(runs),
            tables.hyperparameter_table(runs),
            tables.pendulum_table(runs),
            tables.beyond_table(trials, *beyond_words),
        ],
        _save(drawn, folder),
    )


def gridworld_chapter(plan: Plan, folder: Path, tick: Tick) -> Chapter:
    """Section 6.2, and the gridworld with many more coordinates that do not matter."""
    settings = gridworld.SMALL if plan.small else gridworld.Settings()
    seeds = range(plan.n_seeds)
    runs = [gridworld.run(seed, settings, tick) for seed in seeds]
    trials = [t for seed in seeds for t in beyond.gridworld_trials(seed, settings, plan.n_irrelevant, tick)]
    beyond_words = ("gridworld", "irrelevant dimensions")
    first = runs[0]
    drawn = [
        (
            figures.draw_gridworld_values(first),
            "figure_5_gridworld_values",
            "Figure 5. Values: true, isotropic, and ARD after removal of y. Below: the data, and the errors.",
        ),
        (figures.draw_gridworld_spectra(first), "figure_6_gridworld_spectra", "Figure 6. Eigenvalues of K and of Q."),
        (
            figures.draw_gridworld_beyond(trials),
            "beyond_gridworld",
            "Beyond the paper. Relevances of all inputs in all seeds; error and subset size, from least to most.",
        ),
    ]
    return Chapter(
        "Gridworld (Section 6.2)",
        f"{settings.n_transitions} transitions of the policy that walks to the middle column, γ = {settings.gamma:g}. "
        "Only x matters. Errors are over all cells; beyond the paper, over 1000 random ones.",
        claims.gridworld_claims(runs) + claims.beyond_claims(trials, *beyond_words),
        [
            tables.gridworld_beside_paper(runs),
            tables.gridworld_table(runs),
            tables.beyond_table(trials, *beyond_words),
        ],
        _save(drawn, folder),
    )


def _save(drawn: Iterable[tuple[Figure, str, str]], folder: Path) -> list[Picture]:
    """Write each figure as PNG and PDF."""
    pictures = []
    for figure, name, caption in drawn:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        figure.set_layout_engine("none")  # it is laid out now, and that takes its time
        (folder / f"{name}.png").write_bytes(buffer.getvalue())
        figure.savefig(folder / f"{name}.pdf")
        pictures.append(Picture(name, buffer.getvalue(), caption))
    return pictures


def _write(chapters: Sequence[Chapter], plan: Plan, facts: Mapping[str, str], folder: Path) -> None:
    """Write tables, claims and the page."""
    all_claims = [claim for chapter in chapters for claim in chapter.claims]
    (folder / "claims.md").write_text(tables.claims_table(all_claims).markdown(), encoding="utf-8")
    _write_json(folder / "claims.json", [claim.as_json() for claim in all_claims])
    for table in (t for chapter in chapters for t in chapter.tables):
        (folder / f"{table.name}.md").write_text(table.markdown(), encoding="utf-8")
        _write_json(folder / f"{table.name}.json", table.as_json())
    command = f"gptd-rl reproduce {plan.experiment} --seeds {plan.n_seeds}" + (" --small" if plan.small else "")
    (folder / "index.html").write_text(render(chapters, command, facts), encoding="utf-8")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
