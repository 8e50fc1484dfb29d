"""Run the experiments over several seeds, and write figures, tables and the page."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from gptd_rl.progress import NoProgress, Progress, no_partial_fits
from gptd_rl.report.output import complete_or_nothing
from gptd_rl.reproduction import claims, figures, gridworld, irrelevant_inputs, pendulum, tables
from gptd_rl.reproduction.page import Chapter, Picture, render
from gptd_rl.reproduction.pendulum import OnFit

EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "pendulum": ("pendulum",),
    "gridworld": ("gridworld",),
    "all": ("pendulum", "gridworld"),
}
STAGE = "fits"  # of the progress


@dataclass(frozen=True)
class ReproductionPlan:
    """The experiments to run.

    Attributes
    ----------
    experiment : {"pendulum", "gridworld", "all"}
    n_seeds : int
        Seeds 0 … n_seeds − 1.
    small : bool
        Fewer transitions, coarser grids and fewer irrelevant inputs.
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
    def n_fits(self) -> int:
        """Number of models to be fitted."""
        each = dict(
            pendulum=len(pendulum.KERNELS) + len(irrelevant_inputs.KERNELS),
            gridworld=len(gridworld.LABELS) + len(irrelevant_inputs.KERNELS) * len(self.n_irrelevant),
        )
        return self.n_seeds * sum(each[name] for name in EXPERIMENTS[self.experiment])


def reproduce(plan: ReproductionPlan, out: Path, progress: Progress | None = None) -> list[Chapter]:
    """Run the experiments of `plan`, and write the results into the folder `out`.

    The files appear only once all are complete; Ctrl-C raises KeyboardInterrupt.

    Parameters
    ----------
    plan : ReproductionPlan
    out : Path
        Created if missing.
    progress : Progress, optional
        Receives ``plan.n_fits`` steps of the stage `STAGE`.

    Returns
    -------
    list of Chapter
    """
    progress = NoProgress() if progress is None else progress
    done: list[str] = []

    def on_fit(description: str) -> None:
        done.append(description)
        progress.advanced(STAGE, len(done), plan.n_fits, description)

    chapter_of = {"pendulum": pendulum_chapter, "gridworld": gridworld_chapter}
    with complete_or_nothing(out) as folder, no_partial_fits():
        progress.started(STAGE, plan.n_fits)
        began = time.perf_counter()
        chapters = [chapter_of[name](plan, folder, on_fit) for name in EXPERIMENTS[plan.experiment]]
        facts = {"seeds": str(plan.n_seeds), "duration": f"{time.perf_counter() - began:.0f} s"}
        if plan.small:
            facts["small version:"] = "fewer transitions and coarser grids than in the paper"
        _write(chapters, plan, facts, folder)
        progress.closed(STAGE)
    return chapters


def pendulum_chapter(plan: ReproductionPlan, folder: Path, on_fit: OnFit) -> Chapter:
    """Section 6.1, and the pendulum with noisy copies of its state."""
    settings = pendulum.SMALL if plan.small else pendulum.PendulumSettings()
    seeds = range(plan.n_seeds)
    results = [pendulum.run(seed, settings, on_fit) for seed in seeds]
    selections = [
        s for seed in seeds for s in irrelevant_inputs.pendulum_selections(seed, settings, plan.n_copies, on_fit)
    ]
    names = ("pendulum", "noisy copies of φ or φ̇")
    first = results[0]
    drawn = [
        (figures.draw_metrics(first), "figure_1_metrics", "Figure 1. States at distance 1 for the selected metrics."),
        (figures.draw_optimal_value(first), "figure_2_optimal_value", "Figure 2. Optimal value function."),
        (
            figures.draw_value_maps(first),
            "figure_3_value_maps",
            "Figure 3. Values, predictive variance (black is low) with the states of the data in red, and errors.",
        ),
        (figures.draw_covariances(first), "figure_4_covariances", "Figure 4. Spectrum and approximation of K."),
        (
            figures.draw_pendulum_selections(selections),
            "pendulum_irrelevant_inputs",
            "Beyond the paper. Relevance of the state and of each noisy copy; a mark for each seed.",
        ),
    ]
    return Chapter(
        "Pendulum swing-up (Section 6.1)",
        f"{settings.n_transitions} transitions under the optimal policy, from uniform start states; time step 0.05 s, "
        f"γ = {settings.gamma:g}. Hyperparameters maximise the evidence of all rewards. Errors are differences from the optimal "
        f"values, at the states of the trajectory and on a {settings.n_grid} × {settings.n_grid} grid.",
        claims.pendulum_claims(results) + claims.irrelevant_input_claims(selections, *names),
        [
            tables.pendulum_comparison(results),
            tables.hyperparameter_table(results),
            tables.pendulum_table(results),
            tables.irrelevant_inputs_table(selections, *names),
        ],
        _save(drawn, folder),
    )


def gridworld_chapter(plan: ReproductionPlan, folder: Path, on_fit: OnFit) -> Chapter:
    """Section 6.2, and the gridworld with more irrelevant coordinates."""
    settings = gridworld.SMALL if plan.small else gridworld.GridworldSettings()
    seeds = range(plan.n_seeds)
    results = [gridworld.run(seed, settings, on_fit) for seed in seeds]
    selections = [
        s for seed in seeds for s in irrelevant_inputs.gridworld_selections(seed, settings, plan.n_irrelevant, on_fit)
    ]
    names = ("gridworld", "irrelevant inputs")
    first = results[0]
    drawn = [
        (
            figures.draw_gridworld_values(first),
            "figure_5_gridworld_values",
            "Figure 5. Values: true, isotropic, and ARD after removal of y. Below: the data, and the errors.",
        ),
        (figures.draw_gridworld_spectra(first), "figure_6_gridworld_spectra", "Figure 6. Eigenvalues of K and of Q."),
        (
            figures.draw_gridworld_selections(selections),
            "gridworld_irrelevant_inputs",
            "Beyond the paper. Relevances of all inputs in all seeds; mean and range of error and subset size.",
        ),
    ]
    return Chapter(
        "Gridworld (Section 6.2)",
        f"{settings.n_transitions} transitions of the policy that walks to the middle column, γ = {settings.gamma:g}. "
        "Only x is relevant. Errors are over all cells; with more irrelevant inputs, over 1000 random ones.",
        claims.gridworld_claims(results) + claims.irrelevant_input_claims(selections, *names),
        [
            tables.gridworld_comparison(results),
            tables.gridworld_table(results),
            tables.irrelevant_inputs_table(selections, *names),
        ],
        _save(drawn, folder),
    )


def _save(drawn: Iterable[tuple[Figure, str, str]], folder: Path) -> list[Picture]:
    """Write each figure as PNG and PDF."""
    pictures = []
    for figure, name, caption in drawn:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        figure.set_layout_engine("none")  # the layout is complete, and slow to compute again
        (folder / f"{name}.png").write_bytes(buffer.getvalue())
        figure.savefig(folder / f"{name}.pdf")
        pictures.append(Picture(name, buffer.getvalue(), caption))
    return pictures


def _write(chapters: Sequence[Chapter], plan: ReproductionPlan, facts: Mapping[str, str], folder: Path) -> None:
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
