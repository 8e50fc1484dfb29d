"""Kernels of angles, by cosine and sine."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, GPTDQ, OnlineGPTD, Trajectories
from gptd_rl.inference.features import KernelSplit
from gptd_rl.kernels import (
    ARD,
    ActionDelta,
    Angles,
    Constant,
    DataScale,
    FactorAnalysis,
    Isotropic,
    Kernel,
    Matern32,
    Matern52,
    MultiScale,
    SquaredExponential,
    registry,
)
from tests.kernels.checks import KernelChecks, by_hand, make_states

SE = SquaredExponential(ARD([0.3, 0.6, 1.1, 0.4]), 1.3)  # one angle among three inputs
ROUGH = Matern32(Isotropic(0.7, 5), 0.8)  # two angles
TURNED = Matern52(FactorAnalysis([0.3, 0.6, 1.1, 0.2], [0.8, -0.5, 0.2, 0.4]), 2.0)
PLAIN = SquaredExponential(ARD([0.3, 0.6, 1.1]))
LEVEL, DELTA, ALIKE = Constant(0.4), ActionDelta(3), ActionDelta(3, 0.5)

KERNELS: dict[str, Kernel] = {
    "first": Angles(SE, (0,)),
    "last": Angles(SE, (2,)),
    "two": Angles(ROUGH, (0, 2)),
    "all": Angles(MultiScale(ARD([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])), (0, 1, 2)),
    "none": Angles(PLAIN, ()),
    "factor": Angles(TURNED, (1,)),
    "of a sum": Angles(SE + LEVEL, (1,)),
    "of a product": Angles(SE * TURNED, (0,)),
    "Q": Angles(SE, (0,)) * DELTA,
    "Q with a level": (Angles(SE, (1,)) + LEVEL) * ALIKE,
    "of a sum, with actions": Angles(SE + LEVEL, (2,)) * DELTA,
    "V + A": PLAIN + Angles(ROUGH, (1, 2)) * DELTA,
}


class TestAngles(KernelChecks):
    @pytest.fixture(params=KERNELS)
    def kernel(self, request) -> Kernel:
        return KERNELS[request.param]

    def test_values_far_from_the_origin(self, kernel, X, Z):
        """As for other kernels, but angles move by whole turns."""
        shift = np.where(np.arange(X.shape[1]) < 3, 2 * np.pi * 2.0**17, 0.0)
        expected = kernel(X, Z)
        assert_allclose(kernel(X + shift, Z + shift), expected, rtol=1e-6)
        assert_allclose(kernel.paired(X[:7] + shift, Z + shift), np.diag(expected[:7]), rtol=1e-6)

    def test_descriptions_are_plain_json(self, kernel, X):
        again = registry.build(json.loads(json.dumps(registry.describe(kernel))))
        assert_array_equal(again(X), kernel(X))


def test_equal_to_the_inner_kernel_at_states_encoded_by_hand():
    kernel = Angles(ROUGH, (0, 2))
    X, Z = make_states(11, 0, kernel), make_states(7, 1, kernel)
    E, F = (np.array([by_hand(x, (0, 2)) for x in states]) for states in (X, Z))
    assert E.shape == (11, 5) and kernel.n_dims == 3
    assert_allclose(kernel.encode(X), E, rtol=1e-15)
    assert_array_equal(kernel.encode(X)[:, 2], X[:, 1])
    assert_allclose(kernel(X, Z), ROUGH(E, F), rtol=1e-12)
    assert_allclose(kernel.lower(X), ROUGH.lower(E), rtol=1e-12)
    A = np.random.default_rng(2).normal(size=(11, 7))
    assert_allclose(kernel.contract(A, X, Z), ROUGH.contract(A, E, F), rtol=1e-12)


def test_encode_reads_the_inputs_and_leaves_states_alone():
    states = np.array([[0, 5, 2], [1, 6, 0]])  # integers, with an action
    encoded = Angles(PLAIN, (0,)).encode(states)
    assert_allclose(encoded, [[1.0, 0.0, 5.0], [np.cos(1.0), np.sin(1.0), 6.0]])
    assert encoded.flags.c_contiguous
    assert_array_equal(states, [[0, 5, 2], [1, 6, 0]])


@pytest.mark.parametrize("angle", [0, 1, 2])
def test_a_turn_changes_nothing(angle):
    kernel = Angles(SE, (angle,))
    X, Z = make_states(11, 0, kernel), make_states(7, 1, kernel)
    turned = X.copy()
    turned[:, angle] += 2 * np.pi * np.random.default_rng(2).integers(-5, 6, size=11)
    assert_allclose(kernel(turned, Z), kernel(X, Z), rtol=1e-12)
    moved = X.copy()
    moved[:, (angle + 1) % 3] += 2 * np.pi
    assert abs(kernel(moved, Z) - kernel(X, Z)).max() > 0.1


def test_parameters_are_those_of_the_inner_kernel():
    kernel = Angles(TURNED.fix("a2"), (1,))
    assert_array_equal(kernel.theta, TURNED.theta)
    assert kernel.parameter_names == TURNED.parameter_names and kernel.n_amplitudes == 1
    assert_array_equal(kernel.is_log, TURNED.is_log)
    assert kernel.fixed == {"a2"} and kernel.label == TURNED.label
    assert_array_equal(kernel.is_free, TURNED.fix("a2").is_free)


def test_relevance_of_an_angle_is_the_larger_of_its_two():
    assert_array_equal(Angles(SE, (0,)).relevances, [0.6, 1.1, 0.4])
    assert_array_equal(Angles(SE, (1,)).relevances, [0.3, 1.1, 0.4])
    assert_array_equal(Angles(SE, (2,)).relevances, [0.3, 0.6, 1.1])
    assert_allclose((Angles(SE, (1,)) * DELTA + LEVEL).relevances, [0.3, 1.1, 0.4])


@pytest.mark.parametrize("inner", [SE, MultiScale(ARD([0.3, 0.6, 1.1, 0.4])), TURNED])
@pytest.mark.parametrize("is_constant", [False, True])
def test_bounds_and_guesses_are_for_the_scale_of_the_coordinates(inner, is_constant):
    """Cosine and sine of an angle that goes around have a variance of ½ each."""
    scale = DataScale(
        4.0, -3.0, np.array([0.5, 1.0 if is_constant else 2.0, 20.0]), np.array([False, is_constant, False])
    )
    std = 1.0 if is_constant else np.sqrt(0.5)
    coordinates = DataScale(
        4.0, -3.0, np.array([0.5, std, std, 20.0]), np.array([False, is_constant, is_constant, False])
    )
    kernel = Angles(inner, (1,))
    space, expected = kernel.space(scale), inner.space(coordinates)
    for name in ("lower", "upper", "unit", "linear_below"):
        assert_array_equal(getattr(space, name), getattr(expected, name))
    assert kernel.roughness(scale)[0] == inner.roughness(coordinates)[0]


def test_take_inputs_renumbers_the_angles():
    kernel: Any = Angles(SquaredExponential(ARD([1.0, 2.0, 3.0, 4.0, 5.0])), (0, 2))  # φ, x, ψ
    for inputs, angles, a in (
        ([0, 1], (0,), [1.0, 2.0, 3.0]),
        ([1, 2], (1,), [3.0, 4.0, 5.0]),
        ([0, 2], (0, 1), [1.0, 2.0, 4.0, 5.0]),
        ([2, 1], (0,), [4.0, 5.0, 3.0]),
        ([1], (), [3.0]),
    ):
        some = kernel.take_inputs(np.array(inputs))
        assert (some.n_dims, some.angles) == (len(inputs), angles)
        assert_array_equal(some.kernel.metric.a, a)


def test_levels_inside_have_weights_of_their_own():
    """The sparse method sees Angles(k + b) as Angles(k) + b."""
    split = KernelSplit.of(Angles(SE + LEVEL, (0,)))
    assert split.n_explicit == 1
    assert split.inducing.n_dims == 3


def outside(angles: str, n_coordinates: int, n_inputs: int) -> str:
    coordinates = f"{n_coordinates} coordinates of the inner kernel with two for each angle"
    return f"angles {angles} are no inputs: {coordinates} are {n_inputs} inputs, numbered from 0."


BAD = {
    "out of range": (
        lambda: Angles(SE, (3,)),
        ValueError,
        outside("[3]", 4, 3),
    ),
    "negative": (
        lambda: Angles(SE, (-1, 0)),
        ValueError,
        outside("[-1]", 4, 2),
    ),
    "too many": (
        lambda: Angles(SquaredExponential(ARD([1.0])), (0, 1)),
        ValueError,
        outside("[0, 1]", 1, 0),
    ),
    "twice": (lambda: Angles(SE, (1, 0, 1)), ValueError, "angles must name each input once; got [0, 1, 1]."),
    "a number": (
        lambda: Angles(SE, 0),  # type: ignore[arg-type]
        TypeError,
        "angles must be a tuple of input numbers, such as (0, 2); got 0.",
    ),
    "no integer": (
        lambda: Angles(SE, (0.5,)),  # type: ignore[arg-type]
        TypeError,
        "angles must be a tuple of input numbers, such as (0, 2); got (0.5,).",
    ),
    "a metric": (
        lambda: Angles(ARD([1.0, 1.0]), (0,)),  # type: ignore[arg-type]
        TypeError,
        "Angles needs a kernel over the coordinates; got ARD([1.0, 1.0]).",
    ),
    "no inputs": (
        lambda: Angles(LEVEL, ()),
        ValueError,
        "Angles needs a kernel that reads inputs; Constant(0.4) reads none.",
    ),
    "actions inside": (
        lambda: Angles(SE * DELTA, (0,)),
        ValueError,
        "Angles cannot hold a kernel of actions: write Angles(kernel, angles) * ActionDelta(n_actions).",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused_in_one_line(make, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        make()


# A wheel that turns by STEP at a time, with the reward cos φ + sin 3φ: the discounted sum of e^{ik(φ + t STEP)} over t
# is e^{ikφ}/(1 − γe^{ik STEP}). The second input is noise.

STEP, GAMMA = 0.4, 0.8
GRID = np.column_stack([np.linspace(-np.pi, np.pi, 101), np.zeros(101)])


def wheel(n: int = 12, length: int = 12, seed: int = 0) -> Trajectories:
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        turned = rng.uniform(0.0, 2 * np.pi) + STEP * np.arange(length + 1)
        phi = (turned + np.pi) % (2 * np.pi) - np.pi
        states = np.column_stack([phi, rng.normal(size=length + 1)])
        actions = rng.integers(2, size=length)
        episodes.append(dict(observations=states, rewards=np.cos(phi[:-1]) + np.sin(3 * phi[:-1]), actions=actions))
    return Trajectories.from_episodes(episodes, gamma=GAMMA)


def true_value(states: np.ndarray) -> np.ndarray:
    once, thrice = (np.exp(1j * k * states[:, 0]) / (1.0 - GAMMA * np.exp(1j * k * STEP)) for k in (1, 3))
    return np.asarray(once.real + thrice.imag)


def error(v: GPTD) -> float:
    return float(np.sqrt(np.mean((v.predict(GRID) - true_value(GRID)) ** 2)))


def round_kernel() -> Kernel:
    return Angles(SquaredExponential(ARD([1.0, 1.0, 1.0])), (0,)) + Constant()


@pytest.fixture(scope="module", params=["exact", "sparse"])
def v(request) -> GPTD:
    return GPTD(round_kernel(), noise="deterministic", method=request.param, subset_size=40).fit(wheel())


def test_fits_a_wheel_better_than_ard(v):
    plain = GPTD("ard", noise="deterministic", method=v.method_, subset_size=40).fit(wheel())
    assert error(v) < min(0.1 * error(plain), 1e-4)
    assert v.predict(GRID[:1])[0] == pytest.approx(v.predict(GRID[-1:])[0], abs=1e-6)
    assert v.parameter_names_ == ("v0", "b", "noise", "a1", "a2", "a3")
    assert v.relevances_.shape == (2,) and v.relevances_[0] > 10 * v.relevances_[1]


def test_saved_and_loaded_predicts_the_same(v, tmp_path):
    again = GPTD.load(v.save(tmp_path / "v.npz"))
    assert again.kernel_.parts[0].angles == (0,)
    assert_array_equal(again.theta_, v.theta_)
    assert_allclose(again.predict(GRID), v.predict(GRID), rtol=1e-9)


def test_pruned_keeps_the_angle(v):
    pruned = v.prune(0.01)
    assert_array_equal(pruned.inputs_, [0])
    assert pruned.kernel_.parts[0].angles == (0,) and pruned.kernel_.parts[0].kernel.n_dims == 2
    assert error(pruned) < 0.01


def test_learns_online(v):
    online = OnlineGPTD.from_batch(v, tolerance=1e-6)
    online.update(wheel(seed=1))
    assert_allclose(online.predict(GRID), true_value(GRID), atol=0.05)


def test_learns_q():
    q = GPTDQ(round_kernel(), noise="deterministic", method="exact").fit(wheel(24))
    assert_allclose(q.q_values(GRID), np.column_stack([true_value(GRID)] * 2), atol=0.1)
