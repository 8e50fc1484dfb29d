"""Sums and products of kernels."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl.inference.features import KernelSplit
from gptd_rl.kernels import (
    ARD,
    ActionDelta,
    Constant,
    FactorAnalysis,
    Isotropic,
    Kernel,
    Matern32,
    Matern52,
    MultiScale,
    Product,
    SquaredExponential,
    Sum,
)
from tests.kernels.checks import KernelChecks, make_states, naive_matrix

SE = SquaredExponential(ARD([0.3, 0.6, 1.1]), 1.3)
ROUGH = Matern32(Isotropic(0.7, 3), 0.8)
TURNED = Matern52(FactorAnalysis([0.3, 0.6, 1.1], [0.8, -0.5, 0.2]), 2.0)
LEVEL, DELTA, ALIKE = Constant(0.4), ActionDelta(3), ActionDelta(3, 0.5)

KERNELS: dict[str, Kernel] = {
    "sum": SE + ROUGH,
    "product": SE * ROUGH,
    "two levels": SE + LEVEL + Constant(2.0),
    "Q": (SE + LEVEL) * DELTA,
    "Q with correlated actions": (SE + LEVEL) * ALIKE,
    "V + A": ROUGH + SE * DELTA,
    "V + level of each action": SE + LEVEL * DELTA,
    "V + correlated actions": SE + ALIKE,
    "product + level": SE * ROUGH + LEVEL,
    "sum * kernel": (SE + LEVEL) * ROUGH,
    "nested": ((SE + LEVEL) * (TURNED + Constant(2.0)) + LEVEL) * ALIKE,
    "scaled": LEVEL * TURNED,
    "three": SE + ROUGH * TURNED + MultiScale(ARD([0.1, 0.2, 0.3])) * DELTA,
    "same kernel twice": SE + SE,
    "levels only": LEVEL + Constant(2.0) * Constant(3.0),
}


class TestCompositions(KernelChecks):
    @pytest.fixture(params=KERNELS)
    def kernel(self, request) -> Kernel:
        return KERNELS[request.param]


def test_sums_and_products_are_dissolved():
    assert len((SE + (ROUGH + LEVEL)).parts) == 3
    assert len(((SE * ROUGH) * LEVEL).parts) == 3
    assert [type(part) for part in ((SE + LEVEL) * DELTA).parts] == [Sum, ActionDelta]
    assert [type(part) for part in (SE * ROUGH + LEVEL).parts] == [Product, Constant]


def test_parameter_names():
    assert (SE + LEVEL).parameter_names == ("v0", "b", "a1", "a2", "a3")
    assert ((SE + LEVEL) * DELTA).parameter_names == ("v0", "b", "a1", "a2", "a3")
    assert (SE + ROUGH).parameter_names == ("k1.v0", "k2.v0", "a1", "a2", "a3", "h")
    assert (ROUGH + SE * DELTA).parameter_names == ("k1.v0", "k2.v0", "h", "a1", "a2", "a3")
    assert ((SE + ROUGH) * DELTA).parameter_names == (SE + ROUGH).parameter_names
    names = (SE + ROUGH * TURNED + LEVEL).parameter_names  # numbers from the outermost sum inwards
    assert names[:4] == ("v0", "k2.k1.v0", "k2.k2.v0", "b")


def test_fix_refuses_a_shared_name_in_one_line():
    message = r"^'v0' is a parameter of several kernels: name one of k1\.v0, k2\.v0\.$"
    with pytest.raises(ValueError, match=message):
        (SE + ROUGH).fix("v0")
    held = (SE + ROUGH).fix("k2.v0")
    assert_array_equal(held.is_free, [True, False, True, True, True, True])
    assert held.parts[1].fixed == {"v0"}


def test_a_sum_of_variance_zero_has_relevances():
    assert_array_equal((SquaredExponential(ARD([1.0, 2.0]), 0.0) + Constant(1.0)).relevances, [0.0, 0.0])


def test_relevances():
    """Of a sum by the share of each part in the variance, of a product the sum."""
    expected = (1.3 * np.array([0.3, 0.6, 1.1]) + 0.8 * 0.7) / 2.1
    assert_allclose((SE + ROUGH + LEVEL).relevances, expected)
    assert_allclose((SE * ROUGH * LEVEL).relevances, np.array([0.3, 0.6, 1.1]) + 0.7)


def test_blocks_of_independent_actions():
    pairs = make_states(20, 0, DELTA)
    actions = pairs[:, -1]
    for kernel in ((SE + LEVEL) * DELTA, SE * DELTA + ROUGH * DELTA):
        assert [set(actions[rows]) for rows in kernel.blocks(pairs)] == [{0.0}, {1.0}, {2.0}]
    for kernel in ((SE + LEVEL) * ALIKE, ROUGH + SE * DELTA, SE * DELTA + LEVEL):
        assert len(kernel.blocks(pairs)) == 1


def test_split_of_a_product_with_a_sum_has_an_infinite_term_for_each():
    """(SE + Constant)·Matern32: Constant·Matern32 has infinite rank, and shares its parameters with SE·Matern32."""
    split = KernelSplit.of((SE + LEVEL) * ROUGH)
    assert split.n_explicit == 0
    assert len(split.inducing_places) == 9  # of seven parameters, two twice
    assert sorted(set(split.inducing_places.tolist())) == list(range(7))


def test_split_of_the_kernel_of_q_has_a_level_for_each_action():
    split = KernelSplit.of((SE + LEVEL) * ALIKE)
    assert split.n_explicit == 3
    assert_allclose(split.weight_covariance, 0.4 * (0.5 * np.eye(3) + 0.5))
    pairs = make_states(9, 0, ALIKE)
    assert_allclose(split.inducing(pairs, pairs), naive_matrix(SE * ALIKE, pairs, pairs), rtol=1e-10)


def test_split_leaves_out_levels_of_variance_zero():
    split = KernelSplit.of(SE + Constant(0.0))
    assert split.n_explicit == 0
    assert_array_equal(split.gradient(np.ones(4), np.zeros((0, 0))), [1, 0, 1, 1, 1])


def test_attributes_of_the_only_part_that_has_them():
    kernel = (SE + LEVEL) * DELTA
    assert (kernel.metric, kernel.signal_variance, kernel.bias) == (SE.metric, 1.3, 0.4)
    with pytest.raises(AttributeError, match=r"^2 of the combined kernels have metric: ask one of kernel\.parts\.$"):
        _ = (SE + ROUGH).metric


def test_labels():
    assert (SE + LEVEL).label == "ard"
    assert (ROUGH + SE * DELTA).label == "Matern32(isotropic) + ard"
    assert (ROUGH * SE).label == "Matern32(isotropic) · ard"


def test_repr_reads_like_the_code():
    one, other = "SquaredExponential(ARD([1.0]), signal_variance=1.0)", "Matern32(ARD([2.0]), signal_variance=3.0)"
    a, b = SquaredExponential(ARD([1.0])), Matern32(ARD([2.0]), 3.0)
    assert repr(a + b) == f"{one} + {other}"
    assert repr(a * b + Constant(0.5)) == f"{one} * {other} + Constant(0.5)"
    assert repr((a + Constant(0.5, fixed=["b"])) * ActionDelta(2)) == (
        f"({one} + Constant(0.5, fixed=['b'])) * ActionDelta(2)"
    )


BAD = {
    "different widths": (
        lambda: SE + SquaredExponential(ARD([1.0])),
        ValueError,
        "kernels of different widths cannot be combined: got [1, 3] dimensions.",
    ),
    "different widths in a product": (
        lambda: (SE + LEVEL) * Matern52(Isotropic(1.0, 2)),
        ValueError,
        "kernels of different widths cannot be combined: got [2, 3] dimensions.",
    ),
    "a number added": (
        lambda: SE + 3,  # type: ignore[operator]
        TypeError,
        "unsupported operand type(s) for +: 'SquaredExponential' and 'int'",
    ),
    "a number multiplied": (
        lambda: SE * 3.0,  # type: ignore[operator]
        TypeError,
        "unsupported operand type(s) for *: 'SquaredExponential' and 'float'",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_combinations_are_refused_in_one_line(make, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make()
