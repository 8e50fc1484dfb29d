"""``gptd-rl reproduce`` in its small version: claims, files, arguments and computations."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from gptd_rl.kernels import paper_kernel
import gptd_rl
from gptd_rl.cli.main import main
from gptd_rl.exceptions import InterruptedFitWarning
from gptd_rl.inference.inducing import incomplete_cholesky
from gptd_rl.kernels.metrics import ARD
from gptd_rl.kernels.stationary import SquaredExponential
from gptd_rl.progress import NoProgress
from gptd_rl.reproduction import claims, covariance, figures, gridworld, irrelevant_inputs, pendulum, tables
from gptd_rl.reproduction.paper import printed
from gptd_rl.reproduction.reproduce import STAGE, ReproductionPlan, reproduce
from gptd_rl.temporal.differences import TemporalDifference

FIGURES = {
    "pendulum": [
        "figure_1_metrics",
        "figure_2_optimal_value",
        "figure_3_value_maps",
        "figure_4_covariances",
        "pendulum_irrelevant_inputs",
    ],
    "gridworld": ["figure_5_gridworld_values", "figure_6_gridworld_spectra", "gridworld_irrelevant_inputs"],
}
TABLES = {
    "pendulum": ["pendulum_comparison", "pendulum_hyperparameters", "pendulum_results", "pendulum_irrelevant_inputs"],
    "gridworld": ["gridworld_comparison", "gridworld_results", "gridworld_irrelevant_inputs"],
}


def ignore(description: str) -> None:
    """Progress that is not shown."""


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPTD_RL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with all experiments in their small version; the terminal output is in the folder above."""
    folder = tmp_path_factory.mktemp("reproduction") / "new" / "folder"
    with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        assert main(["reproduce", "all", "--small", "--seeds", "1", "--out", str(folder)]) == 0
    (folder.parent / "terminal.txt").write_text(shown.getvalue())
    return folder


# What is written


def test_reproduce_confirms_every_claim(written: Path):
    found = json.loads((written / "claims.json").read_text())
    assert {claim["section"] for claim in found} == {"6.1", "6.2", "beyond"}
    assert len([claim for claim in found if claim["section"] == "6.1"]) == 5
    assert len([claim for claim in found if claim["section"] == "6.2"]) == 4
    assert [claim["text"] for claim in found if claim["verdict"] != "held"] == []


@pytest.mark.parametrize("experiment", ["pendulum", "gridworld"])
def test_reproduce_writes_figures_and_tables(written: Path, experiment: str):
    for name in FIGURES[experiment]:
        assert (written / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (written / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in TABLES[experiment]:
        content = json.loads((written / f"{name}.json").read_text())
        assert all(list(row) == content["columns"] for row in content["rows"])
        assert f"## {content['title']}" in (written / f"{name}.md").read_text()


def test_reproduce_leaves_no_temporary_files(written: Path):
    assert [path.name for path in written.iterdir() if path.name.startswith(".")] == []


class Links(HTMLParser):
    """What a page refers to, and whether each tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_needs_no_network(written: Path):
    text = (written / "index.html").read_text()
    page = Links()
    page.feed(text)
    assert page.open == []
    pictures = [source for source in page.sources if source.startswith("data:image/png;base64,")]
    assert len(pictures) == sum(map(len, FIGURES.values()))
    for source in set(page.sources) - set(pictures):
        assert (written / source).is_file(), source
    assert "46.36" in text and "−2378.2" in text  # the paper's numbers
    assert "gptd-rl reproduce all --seeds 1 --small" in text


def test_reproduce_prints_claims_and_page(written: Path):
    shown = (written.parent / "terminal.txt").read_text()
    assert "(i) the error of II is smaller than that of I" in shown
    assert "1 of 1" in shown
    assert f"page: {written / 'index.html'}" in shown


@pytest.fixture(scope="module")
def two_gridworlds() -> list[gridworld.GridworldResult]:
    fits: list[str] = []
    results = [gridworld.run(seed, gridworld.SMALL, fits.append) for seed in (0, 1)]
    assert len(fits) == 6
    return results


def test_gridworld_table_has_mean_and_standard_deviation(two_gridworlds: list[gridworld.GridworldResult]):
    first, second = two_gridworlds
    assert not np.array_equal(first.data.states[:20], second.data.states[:20])
    for row in tables.gridworld_table(two_gridworlds).as_json()["rows"]:
        a, b = row["MSE"]["values"]
        np.testing.assert_allclose(row["MSE"]["mean"], (a + b) / 2)
        np.testing.assert_allclose(row["MSE"]["std"], abs(a - b) / np.sqrt(2))
    assert all(claim.count == "2 of 2" for claim in claims.gridworld_claims(two_gridworlds))


def test_without_y_keeps_all_other_hyperparameters(two_gridworlds: list[gridworld.GridworldResult]):
    for result in two_gridworlds:
        full, without = result.fits["II"], result.fits[gridworld.WITHOUT]
        assert (without.relevances[1], without.noise_variance) == (0.0, full.noise_variance)
        np.testing.assert_allclose(without.relevances[0], full.relevances[0], rtol=1e-12)
        # As in the paper's table: the same data fit. The margin of the complexity is far above rounding errors.
        np.testing.assert_allclose(without.data_fit, full.data_fit, atol=0.01)
        assert without.complexity < full.complexity - 0.5


def test_reproduce_reports_each_fit(tmp_path: Path):
    steps: list[tuple[str, int, int]] = []

    class Recorded(NoProgress):
        def advanced(self, stage: str, done: int, total: int = 0, note: str = "") -> None:
            steps.append((stage, done, total))

    plan = ReproductionPlan("gridworld", 1, small=True)
    reproduce(plan, tmp_path, Recorded())
    assert steps == [(STAGE, i, plan.n_fits) for i in range(1, plan.n_fits + 1)]


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["reproduce", "cartpole"], "'cartpole'"),
        (["reproduce"], "experiment"),
        (["reproduce", "all", "--seeds", "0"], "1 or more, got '0'"),
        (["reproduce", "all", "--seeds", "-2"], "1 or more"),
        (["reproduce", "all", "--seeds", "many"], "'many'"),
        (["paint"], "'paint'"),
        ([], "COMMAND"),
    ],
)
def test_main_prints_one_line_for_bad_arguments(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and word in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_reproduce_to_an_unwritable_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("mine")
    assert main(["reproduce", "all", "--small", "--out", str(tmp_path / name)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and "cannot write to" in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_reproduce_leaves_nothing_after_an_interrupt(tmp_path: Path):
    class Stop(NoProgress):
        def advanced(self, stage: str, done: int, total: int = 0, note: str = "") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(ReproductionPlan("gridworld", 1, small=True), tmp_path / "out", Stop())
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "out"])


def test_reproduce_discards_an_interrupted_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    def interrupted(kernel: str, data: gptd_rl.Trajectories, noise_variance: float | None = None) -> gptd_rl.GPTD:
        warnings.warn("the best model so far", InterruptedFitWarning, stacklevel=2)
        return gptd_rl.GPTD()

    monkeypatch.setattr(gridworld, "fitted", interrupted)
    assert main(["reproduce", "gridworld", "--small", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "gptd-rl: interrupted, nothing was written\n"
    assert list(tmp_path.iterdir()) == []


def test_main_prints_the_version():
    done = subprocess.run(
        [sys.executable, "-m", "gptd_rl.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"gptd-rl {gptd_rl.__version__}\n"


@pytest.mark.parametrize("experiment", ["pendulum", "gridworld", "all"])
def test_plan_counts_the_fits(experiment: str):
    parts = {
        "pendulum": 3 + 2,
        "gridworld": 3 + 2 * 4,
    }
    expected = sum(parts.values()) if experiment == "all" else parts[experiment]
    assert ReproductionPlan(experiment, n_seeds=2).n_fits == 2 * expected


# What is computed


def test_approximation_errors_by_elimination():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(60, 2))
    kernel = paper_kernel(ARD([2.0, 0.5]), 3.0, 5.0)
    K = kernel(states)
    subset = incomplete_cholesky(kernel, states, tolerance=1e-3)
    sizes, errors = covariance.approximation_errors(K, subset)
    for size, error in zip(sizes.astype(int), errors, strict=True):
        chosen = subset.indices[:size]
        part = K[:, chosen] @ np.linalg.solve(K[np.ix_(chosen, chosen)], K[chosen])
        np.testing.assert_allclose(error, np.linalg.norm(K - part), rtol=1e-6, atol=1e-8)


def test_reward_covariance_gives_the_complexity():
    _, data = gridworld.sample(0, 60, 0.9)
    v = gridworld.fitted("isotropic", data)
    Q = covariance.reward_covariance(v.kernel_, v.noise_variance_, data)
    H = TemporalDifference.of(data).sparse().toarray()
    S = v.kernel_(data.states) + v.noise_variance_ * np.eye(len(data))
    np.testing.assert_allclose(Q, H @ S @ H.T, atol=1e-10)
    np.testing.assert_allclose(0.5 * np.linalg.slogdet(Q)[1], v.complexity_, rtol=1e-5)


def test_with_copies_adds_noise_to_the_copies_only():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(4000, 2)) * [1.0, 10.0]
    wide = irrelevant_inputs.with_copies(states, 3, np.array([0.1, 2.0]), rng)
    assert wide.shape == (4000, 8)
    np.testing.assert_array_equal(wide[:, :2], states)
    np.testing.assert_allclose((wide[:, 2:] - np.tile(states, 3)).std(axis=0), np.tile([0.1, 2.0], 3), rtol=0.05)


def test_pendulum_grid_and_maps_agree():
    settings = pendulum.PendulumSettings(n_transitions=60, shape=(40, 40), n_grid=9)
    result = pendulum.run(0, settings, ignore)
    top = result.agent.value.grid.task.max_speed
    np.testing.assert_allclose(result.grid.reshape(9, 9, 2)[2, :, 0], np.linspace(-np.pi, np.pi, 9))
    np.testing.assert_allclose(result.grid.reshape(9, 9, 2)[:, 2, 1], np.linspace(-top, top, 9))
    fit = result.fits["II"]
    np.testing.assert_allclose(fit.grid_mse, np.mean((fit.mean - result.truth) ** 2))


def test_claim_is_held_only_in_every_seed():
    claim = claims.Claim("6.1", "so", (True, False, True))
    assert (claim.verdict, claim.count) == ("not held", "2 of 3")
    assert claims.Claim("6.1", "so", (True, True)).verdict == "held"


def test_spread():
    spread = tables.Spread.of([1.0, 2.0, 3.0])
    assert str(spread) == "2.0 ± 1.0"
    assert spread.as_json() == dict(values=[1.0, 2.0, 3.0], mean=2.0, std=1.0)
    single = tables.Spread.of([0.25])
    assert str(single) == "0.250" and math.isnan(single.std)
    assert single.as_json()["std"] is None


def test_table_does_not_repeat_a_sentence():
    rows = (("a", "Why."), ("b", "Why."), ("c", "So."), ("d", "1"), ("e", "1"))
    table = tables.Table("t", "T", ("name", "on the difference"), rows)
    assert [row[-1] for row in table.shown_rows] == ["Why.", "", "So.", "1", "1"]
    assert table.as_json()["rows"][1]["on the difference"] == "Why."


def test_printed_has_a_section_for_every_number():
    assert {key: part["section"] for key, part in printed().items() if key != "source"} == {
        "pendulum": "6.1",
        "gridworld": "6.2",
    }


def test_figures_make_axes_or_take_them():
    ax = figures.plot_metric(ARD([4.0, 1.0]), "II", 2.0)
    (ellipse,) = ax.patches
    assert (ellipse.width, ellipse.height) == (1.0, 2.0)  # type: ignore[attr-defined]
    own = Figure().subplots()
    line = np.arange(3.0)
    assert figures.plot_lines({"I": (line, line)}, ax=own) is own
