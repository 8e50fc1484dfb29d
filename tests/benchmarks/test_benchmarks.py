"""The benchmarks run: a small one each, so that they do not rot."""

import json
import subprocess
import sys
from pathlib import Path

from numpy.testing import assert_allclose

ROOT = Path(__file__).resolve().parents[2]


def test_exact_measures_the_same_problem_everywhere(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = "--sizes 120:2 --repeats 1 --peers scikit-learn --transitions 400 --json"
    command = [sys.executable, "benchmarks/exact.py", *options.split(), str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in ("One evaluation", "One whole fit", "Peak memory", "Repeated states", "Targets"):
        assert part in done.stdout

    read = json.loads(figures.read_text())
    (size,) = read["sizes"]
    rows = size["rows"]
    assert set(rows) == {"LAPACK floor", "gptd-rl", "scikit-learn"}
    # scikit-learn starts once and may stop early; this project must not be worse by more than it calls the same
    assert rows["gptd-rl"]["fit"]["value"] > rows["scikit-learn"]["fit"]["value"] - 1.0
    assert_allclose(rows["gptd-rl"]["first"]["gradient"], rows["scikit-learn"]["first"]["gradient"], atol=1e-4)
    for repeated in read["repeated"]:  # merging is exact
        assert_allclose(repeated["prefix_merged"], repeated["prefix_dense"], rtol=1e-6)


def test_sparse_measures_and_fits(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = "--sizes 3000 --m 40 --dims 2 --repeats 1 --peers --json"
    command = [sys.executable, "benchmarks/sparse.py", *options.split(), str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in ("One bound + gradient", "per state", "Whole fits"):
        assert part in done.stdout
    (fit,) = json.loads(figures.read_text())["fits"]
    assert fit["rmse"] < 0.1  # V spreads by more than 1
    assert fit["nlpd"] < 0.3  # the noise alone makes 0.215


def test_sparse_says_which_libraries_are_absent() -> None:
    options = ["--sizes", "300", "--m", "10", "--dims", "2", "--repeats", "1", "--parts", "evaluations", "--peers"]
    command = [sys.executable, "benchmarks/sparse.py", *options, "GPflow SGPR"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "GPflow SGPR, n=300: " in done.stdout  # measured, or left out with a reason


def test_subsets_shrink_from_kernel_to_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/icd.py", "--small"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tolerance" in done.stdout


def test_threads_measures_every_setting(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = "--cases exact:20 sparse:30 --settings default --rows 20 --busy 1 --repeats 1 --least 0.01 --json"
    command = [sys.executable, "benchmarks/threads.py", *options.split(), str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(figures.read_text())
    assert [row["case"] for row in read["fits"] + read["threshold"]] == ["exact:20", "sparse:30", "matrix:20"]
    assert [set(row["times"]) for row in read["fits"]] == [{"one thread", "default"}] * 2
    assert set(read["threshold"][0]["times"]) == {"one thread", "unlimited"}
    assert read["worst"] == max(
        row["times"]["default"]["processor"] / row["times"]["one thread"]["processor"] for row in read["fits"]
    )


def test_imports_measures_both_libraries(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "benchmarks/imports.py", "--repeats", "2", "--slowest", "3", "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(figures.read_text())
    assert_allclose(read["ratio"], read["seconds"]["gptd_rl"] / read["seconds"]["sklearn.gaussian_process"], rtol=0.1)
    assert set(read["seconds"]) >= {"gptd_rl", "sklearn.gaussian_process"}


def test_fits_counts_what_it_measures(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = "--sizes 60 --seeds 1 --repeats 1 --irrelevant 3 --grids 1 --problems 2 --json"
    command = [sys.executable, "benchmarks/fits.py", *options.split(), str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(figures.read_text())
    assert [row["task"] for row in read["fits"]] == ["walk", "noisy cartpole", "random grid", "drift", "one long run"]
    assert all(row["evaluations"] > 0 for row in read["fits"])
    assert read["irrelevant"] == {"3": 1}
    assert set(read["units"].values()) == {0}


def test_coverage_measures_intervals_and_controls(tmp_path: Path) -> None:
    shares = tmp_path / "coverage.json"
    options = "--sets 4 --settings walk ring --json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.coverage",
        *options.split(),
        str(shares),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| instruments | walk |" in done.stdout
    read = json.loads(shares.read_text())["instruments"]
    assert set(read) == {"walk", "ring"}
    low, middle, high = read["walk"]["coverage"]
    assert 0.0 <= low <= middle <= high <= 1.0
    assert set(read["walk"]["controls"]) == {"1.5 too wide", "1.5 too narrow", "shifted by one std"}
