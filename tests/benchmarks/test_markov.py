"""The benchmark of the test of the Markov property: a small one runs, and the stored one is what the README says."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "markov.json"


def test_markov_measures_size_and_power(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    systems = ("ring", "noisy sensor", "MountainCar, deterministic", "delayed reward, 2 frames")
    command = [sys.executable, "benchmarks/markov.py", "--datasets", "4", "--json", str(figures), "--systems", *systems]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "of 4 on target" in done.stdout  # how many, four data sets cannot tell
    rows = json.loads(figures.read_text())
    assert [row["system"] for row in rows] == list(systems)
    assert [row["at_1_percent"] for row in rows] == [0.0, 1.0, 0.0, 0.0]


def test_markov_results_have_every_group() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    count = {group: sum(row["group"] == group for row in rows) for group in {row["group"] for row in rows}}
    assert count == {"tells all": 15, "hides something": 9, "V jumps": 4, "frames stacked": 4}
    assert all(row["n_datasets"] == 100 for row in rows)
    assert min(row["at_1_percent"] for row in rows if row["group"] == "hides something") >= 0.95
    assert max(row["at_1_percent"] for row in rows if row["group"] != "hides something") <= 0.05
