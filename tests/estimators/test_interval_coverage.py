"""Do intervals of bootstrapped values hold the truth as often as they say, kernels selected by the data themselves?

The unit is the data set (`tests.calibration`). Each system and level is tested two-sidedly against the level, at 1 %
over all of them by Bonferroni; intervals that are too wide, too narrow or shifted must be rejected by the same tests.
200 data sets each are in ``benchmarks/results/coverage.json``. Two of eight systems are rejected there: the random
chain below, and ruin without discount, where shrinkage pulls values towards 0 by one standard deviation (95 % intervals
hold 82 %).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gptd_rl import ARD, GPTD
from gptd_rl.kernels import paper_kernel
from gptd_rl.types import Array
from tests.calibration import LEVELS, SETTINGS, coverages, p_value, standard_errors

SYSTEMS = ("walk", "uphill walk", "line", "ring")
N_SETS = 40
OVERALL = 0.01
CONTROLS = {
    "1.5 times too wide": dict(width=1.5),
    "1.5 times too narrow": dict(width=1.0 / 1.5),
    "shifted by one standard deviation": dict(shift=1.0),
}

every_control = pytest.mark.parametrize("change", CONTROLS.values(), ids=CONTROLS.keys())


@pytest.fixture(scope="module")
def errors() -> dict[str, Array]:
    """(truth − mean)/std, data sets as rows."""
    return {
        name: standard_errors(SETTINGS[name], lambda: GPTD(bootstrap=True, n_restarts=0), N_SETS) for name in SYSTEMS
    }


def rejected(errors: dict[str, Array], **change: float) -> dict[tuple[str, float], float]:
    """Mean coverage of the systems and levels at which a t-test over data sets rejects."""
    shares = {(name, level): coverages(e, level, **change) for name, e in errors.items() for level in LEVELS}
    return {key: float(s.mean()) for key, s in shares.items() if p_value(s, key[1]) < OVERALL / len(shares)}


def binomial_p_values(errors: dict[str, Array], **change: float) -> list[float]:
    """One state of each data set, drawn at random, over all systems: independent hits and misses."""
    rng = np.random.default_rng(0)
    drawn = np.concatenate([e[np.arange(len(e)), rng.integers(e.shape[1], size=len(e))] for e in errors.values()])
    hits = [int(coverages(drawn[:, None], level, **change).sum()) for level in LEVELS]
    return [stats.binomtest(k, len(drawn), level).pvalue for k, level in zip(hits, LEVELS, strict=True)]


def test_intervals_hold_the_truth_as_often_as_they_say(errors):
    assert rejected(errors) == {}


@every_control
def test_intervals_that_do_not_are_rejected(errors, change):
    found = rejected(errors, **change)
    assert len({name for name, _ in found}) >= 2
    assert {level for _, level in found} == set(LEVELS)


def test_intervals_hold_one_state_of_each_data_set(errors):
    assert min(binomial_p_values(errors)) > OVERALL / len(LEVELS)


@every_control
def test_intervals_that_do_not_hold_one_state_are_rejected(errors, change):
    assert min(binomial_p_values(errors, **change)) < OVERALL / len(LEVELS)


# In a random chain the values of neighbours differ more than a few instruments show: the kernel becomes too smooth.


@pytest.mark.xfail(reason="kernel too smooth for a random chain: 95 % intervals hold 77 % (200 data sets)")
def test_intervals_hold_the_values_of_a_random_chain():
    errors = standard_errors(SETTINGS["garnet"], lambda: GPTD(bootstrap=True, n_restarts=0), N_SETS)
    assert rejected({"garnet": errors}) == {}


def test_intervals_hold_the_values_of_a_random_chain_under_a_rough_kernel():
    kernel = paper_kernel(ARD([30.0, 30.0]), fixed=("v0", "b", "a1", "a2"))
    errors = standard_errors(SETTINGS["garnet"], lambda: GPTD(kernel, bootstrap=True), N_SETS)
    assert rejected({"garnet": errors}) == {}
    assert rejected({"garnet": errors}, width=1.5) and rejected({"garnet": errors}, width=1.0 / 1.5)
