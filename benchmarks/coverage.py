"""How often do intervals hold the true value? Small stochastic systems with known V, many data sets each.

    python -m benchmarks.coverage --sets 200 --json benchmarks/results/coverage.json

The unit is the data set: values within one share their noise. Each row gives the mean share of states inside the 50, 80
and 95 % interval with the standard error over data sets, the p-values of two-sided t-tests against the levels, and the
mean and root mean square of (truth − mean)/std. The file has p-values of controls, too, which a test must reject: the
same intervals 1.5 times too wide, too narrow, and shifted by one standard deviation.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gptd_rl import ARD, GPTD
from gptd_rl.exceptions import RelevanceWarning
from gptd_rl.kernels import paper_kernel
from tests.calibration import LEVELS, SETTINGS, coverages, p_value, standard_errors

ROUGH = paper_kernel(ARD([30.0, 30.0]), fixed=("v0", "b", "a1", "a2"))

ESTIMATORS: dict[str, Callable[[], GPTD]] = {
    "instruments": lambda: GPTD(bootstrap=True, n_restarts=0),
    "returns": lambda: GPTD(bootstrap=False, n_restarts=0),
    "instruments, rough kernel": lambda: GPTD(ROUGH, bootstrap=True),  # for garnet
}
CONTROLS: dict[str, dict[str, float]] = {
    "1.5 too wide": dict(width=1.5),
    "1.5 too narrow": dict(width=1.0 / 1.5),
    "shifted by one std": dict(shift=1.0),
}


def measure(name: str, estimator: Callable[[], GPTD], n_sets: int) -> dict[str, Any]:
    """Coverages of one setting."""
    errors = standard_errors(SETTINGS[name], estimator, n_sets)
    shares = [coverages(errors, level) for level in LEVELS]
    return dict(
        sets=n_sets,
        coverage=[round(float(s.mean()), 4) for s in shares],
        standard_error=[round(float(s.std(ddof=1) / np.sqrt(n_sets)), 4) for s in shares],
        p_value=[float(f"{p_value(s, level):.2g}") for s, level in zip(shares, LEVELS, strict=True)],
        mean_error_in_stds=round(float(errors.mean()), 3),
        rms_error_in_stds=round(float(np.sqrt((errors**2).mean())), 3),
        controls={
            control: [float(f"{p_value(coverages(errors, level, **change), level):.2g}") for level in LEVELS]
            for control, change in CONTROLS.items()
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--estimators", nargs="+", default=["instruments"], choices=list(ESTIMATORS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RelevanceWarning)
    results: dict[str, Any] = dict(levels=LEVELS)
    if options.json and options.json.exists():  # rows that are not measured now stay
        results |= json.loads(options.json.read_text())
    print("| estimator | system | 50 % | 80 % | 95 % | p-values | bias, rms in stds |\n|---|---|---|---|---|---|---|")
    for estimator in options.estimators:
        rows = results.setdefault(estimator, {})
        for name in options.settings:
            row = rows[name] = measure(name, ESTIMATORS[estimator], options.sets)
            shares = (f"{c:.3f} ± {e:.3f}" for c, e in zip(row["coverage"], row["standard_error"], strict=True))
            tests = " ".join(f"{p:.1g}" for p in row["p_value"])
            errors = f"{row['mean_error_in_stds']:.2f}, {row['rms_error_in_stds']:.2f}"
            print(f"| {estimator} | {name} | {' | '.join(shares)} | {tests} | {errors} |", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
