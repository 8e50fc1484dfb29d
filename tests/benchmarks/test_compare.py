"""The benchmark of comparisons: a small one runs, and the stored one holds what it says."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "compare.json"


def test_compare_measures_coverage_and_width(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    small = ["--population", "40", "--repeats", "15", "--state-repeats", "1", "--truth", "500", "--starts", "20"]
    command = [sys.executable, "benchmarks/compare.py", *small, "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(figures.read_text())
    assert len(rows) == 5 and all(row["half_width"] > 0 for row in rows)
    shown = subprocess.run([*command, "--from-json"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.count("\n") == 7 and shown.stdout.splitlines() == done.stdout.splitlines()[-7:]


def test_compare_results() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert len(rows) == 10
    for row in rows:
        assert abs(row["bias"]) < 3.5, row
        # Unlike agents gain nothing by pairing, and with few starts its intervals are cautious.
        widest = 1.25 if row["n_starts"] < 100 else 1.15
        assert row["half_width"] <= widest * row["unpaired_half_width"], row
        assert row["n_starts"] < 100 or 0.92 <= row["coverage"] <= 0.98, row
        assert row["states_missed"] is None or row["states_missed"] <= 0.17, row  # of a few repeats
