"""The kernels of finite rank: the constant and the comparison of actions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl.kernels import ActionDelta, Constant, Kernel
from tests.kernels.checks import KernelChecks

KERNELS: dict[str, Kernel] = {
    "constant": Constant(0.4),
    "independent actions": ActionDelta(3),
    "correlated actions": ActionDelta(3, 0.5),
}


class TestFiniteRank(KernelChecks):
    @pytest.fixture(params=KERNELS)
    def kernel(self, request):
        return KERNELS[request.param]


def test_constant_by_hand():
    assert_array_equal(Constant(0.4)(np.zeros((2, 1)), np.ones((3, 7))), np.full((2, 3), 0.4))
    assert Constant(0.4).parameter_names == ("b",)
    assert (Constant().rank, Constant().n_dims, Constant().width) == (1, None, None)


def test_constant_of_zero_stays_zero():
    kernel = Constant(0.0)
    assert_array_equal(kernel.theta, [-np.inf])
    assert kernel.with_theta(kernel.theta).bias == 0.0
    assert_array_equal(kernel.is_free, [False])


@pytest.mark.parametrize("bias", [-1.0, np.nan, np.inf])
def test_constant_refuses_what_is_no_variance(bias):
    with pytest.raises(ValueError, match=r"^bias must be finite and not negative; got .*\.$"):
        Constant(bias)


def test_action_delta_by_hand():
    pairs = np.array([[5.0, 0.0], [6.0, 2.0], [7.0, 0.0]])  # [x, a]
    assert_array_equal(ActionDelta(3)(pairs), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    assert_array_equal(ActionDelta(3, 0.5)(pairs), [[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]])
    assert_array_equal(ActionDelta(3).basis(pairs), [[1, 0, 0], [0, 0, 1], [1, 0, 0]])
    assert_array_equal(ActionDelta(2, 0.5).weight_covariance, [[1, 0.5], [0.5, 1]])
    assert ActionDelta(3).parameter_names == ()


def test_action_delta_is_block_diagonal_if_actions_are_independent():
    pairs = np.array([[5.0, 2.0], [6.0, 0.0], [7.0, 2.0]])
    assert [rows.tolist() for rows in ActionDelta(3).blocks(pairs)] == [[1], [0, 2]]
    assert [rows.tolist() for rows in ActionDelta(3, 0.5).blocks(pairs)] == [[0, 1, 2]]


@pytest.mark.parametrize("correlation", [-0.1, 1.0, np.nan])
def test_action_delta_refuses_other_correlations(correlation):
    with pytest.raises(ValueError, match=r"^action_correlation must lie in \[0, 1\); got .*\.$"):
        ActionDelta(3, correlation)


def test_repr_is_short():
    assert repr(Constant(1 / 3)) == "Constant(0.3333)"
    assert repr(Constant(2, fixed=["b"])) == "Constant(2.0, fixed=['b'])"
    assert repr(ActionDelta(3)) == "ActionDelta(3)"
    assert repr(ActionDelta(3, 0.5)) == "ActionDelta(3, correlation=0.5)"
