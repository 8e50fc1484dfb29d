"""Sizes of errors, where the truth is known up to noise: their distribution is found, with few groups and with many."""

import numpy as np
import pytest

from gptd_rl.inference.error_sizes import ErrorSizes


def draw(kind: str, n: int, rng: np.random.Generator):
    if kind == "normal":
        return rng.standard_normal(n)
    if kind == "bias":  # all of the same size
        return 1.0 + 0.1 * rng.standard_normal(n)
    return np.where(rng.random(n) < 0.15, 5.0, 0.1) * rng.standard_normal(n)  # mostly small


def held(kind: str, noise: float, n_groups: int, level: float) -> float:
    """Share of other errors within the quantile, averaged over data sets of groups whose errors are alike."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(25):
        errors = np.repeat(draw(kind, n_groups, rng), 4)
        errors = np.where(rng.random(4 * n_groups) < 0.5, errors, draw(kind, 4 * n_groups, rng))
        n = len(errors)
        seen = errors + noise * rng.standard_normal(n)
        sizes = ErrorSizes.of(seen, np.ones(n), np.full(n, noise), np.arange(n) // 4)
        shares.append(np.mean(np.abs(draw(kind, 4000, rng)) <= sizes.quantile(level)))
    return float(np.mean(shares))


@pytest.mark.parametrize("kind", ["normal", "bias", "mixed"])
@pytest.mark.parametrize("n_groups", [10, 40])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_intervals_hold_their_level_where_the_truth_is_known(kind, n_groups, level):
    # Of errors that are nearly all of one size, the grid of sizes tells no more than whether they are inside.
    assert held(kind, 0.0, n_groups, level) == pytest.approx(level, abs=0.12 if kind == "bias" else 0.07)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_noise_of_the_truth_does_not_widen_intervals(noise):
    for level, tolerance in ((0.5, 0.1), (0.95, 0.04)):
        assert held("normal", noise, 40, level) == pytest.approx(level, abs=tolerance)


def test_scales_matter_and_units_do_not():
    rng = np.random.default_rng(1)
    scales = np.exp(rng.normal(size=200))
    errors, zeros, groups = scales * rng.standard_normal(200), np.zeros(200), np.arange(200)
    right = ErrorSizes.of(errors, scales, zeros, groups)
    wrong = ErrorSizes.of(errors, np.ones(200), zeros, groups)
    assert right.log_evidence > wrong.log_evidence + 10.0
    assert right.quantile(0.95) == pytest.approx(1.96, rel=0.25)
    large = ErrorSizes.of(1e6 * errors, scales, zeros, groups)
    assert large.quantile(0.95) == pytest.approx(1e6 * right.quantile(0.95))


def test_quantiles_increase_and_probability_is_their_inverse():
    rng = np.random.default_rng(2)
    sizes = ErrorSizes.of(rng.standard_normal(80), np.ones(80), np.full(80, 0.5), np.arange(80))
    levels = np.linspace(0.05, 0.99, 30)
    quantiles = [sizes.quantile(level) for level in levels]
    assert (np.diff(quantiles) >= 0).all() and quantiles[0] > 0
    for level, q in zip(levels, quantiles, strict=True):
        assert sizes.probability(q) == pytest.approx(level, abs=0.03)


@pytest.mark.parametrize("errors", [np.zeros(10), np.full(10, 1e-300), np.full(10, 1e60)])
def test_extreme_errors(errors):
    sizes = ErrorSizes.of(errors, np.ones(10), np.zeros(10), np.arange(10))
    assert np.isfinite(sizes.quantile(0.95)) and sizes.quantile(0.95) > 0


def test_one_group_gives_a_wide_interval():
    errors = np.array([1.0, 0.8, 1.2, 0.9])
    one, four = (
        ErrorSizes.of(errors, np.ones(4), np.zeros(4), groups) for groups in (np.zeros(4, dtype=np.int64), np.arange(4))
    )
    assert one.quantile(0.95) > 1.5 * four.quantile(0.95) > 1.2
