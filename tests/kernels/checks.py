"""What every kernel must do, simple or composed, against a double loop over its formula."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl.kernels
from gptd_rl.inference.features import KernelSplit
from gptd_rl.kernels import (
    ActionDelta,
    Angles,
    Constant,
    DataScale,
    Guess,
    Kernel,
    Matern32,
    Matern52,
    MultiScale,
    Product,
    SquaredExponential,
    Sum,
    base,
    registry,
)
from tests.helpers import central_differences

N_ACTIONS = 3

# C(u) with u = ½d², as the literature writes it.
PROFILES: dict[type[Kernel], Callable[[float], float]] = {
    SquaredExponential: lambda u: np.exp(-u),
    Matern32: lambda u: (1 + np.sqrt(3 * 2 * u)) * np.exp(-np.sqrt(3 * 2 * u)),
    Matern52: lambda u: (1 + np.sqrt(5 * 2 * u) + 5 * 2 * u / 3) * np.exp(-np.sqrt(5 * 2 * u)),
    MultiScale: lambda u: sum(length * np.exp(-u / length**2) for length in (8.0, 4.0, 2.0, 1.0, 0.5)) / 15.5,
}

SCALE = DataScale(4.0, -3.0, np.array([0.5, 1.0, 20.0]), np.zeros(3, dtype=bool))


def by_hand(x: np.ndarray, angles: tuple[int, ...]) -> np.ndarray:
    """A state with the cosine and sine of each angle."""
    return np.array([f(x[i]) for i in range(len(x)) for f in ((np.cos, np.sin) if i in angles else (float,))])


def naive(kernel: Any, x: np.ndarray, z: np.ndarray) -> float:
    """k(x, z) of two states, part by part."""
    if isinstance(kernel, Sum):
        return sum(naive(part, x, z) for part in kernel.parts)
    if isinstance(kernel, Product):
        return float(np.prod([naive(part, x, z) for part in kernel.parts]))
    if isinstance(kernel, Constant):
        return kernel.bias
    if isinstance(kernel, ActionDelta):
        return 1.0 if x[-1] == z[-1] else kernel.correlation
    if isinstance(kernel, Angles):
        return naive(kernel.kernel, *(by_hand(y[: kernel.n_dims], kernel.angles) for y in (x, z)))
    d = (x - z)[: kernel.n_dims]
    return kernel.signal_variance * PROFILES[type(kernel)](0.5 * d @ kernel.metric.matrix @ d)


def naive_matrix(kernel: Any, states: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.array([[naive(kernel, x, z) for z in others] for x in states]).reshape(len(states), len(others))


def make_states(n: int, seed: int, kernel: Kernel, loc: float = 0.0) -> np.ndarray:
    """Three inputs, and an action if the kernel reads one."""
    rng = np.random.default_rng(seed)
    states = rng.normal(loc, size=(n, 3))
    return np.column_stack([states, rng.integers(N_ACTIONS, size=n)]) if kernel.n_categorical else states


def assert_slope(gradient: np.ndarray, value: Callable[[Any], float], kernel: Kernel) -> None:
    numeric = central_differences(lambda theta: value(kernel.with_theta(theta)), kernel.theta)
    assert gradient.shape == kernel.theta.shape
    assert_allclose(gradient, numeric.reshape(gradient.shape), rtol=1e-6, atol=1e-8)


def _sum_of_weight_covariance(kernel: Any, A: np.ndarray, theta: np.ndarray) -> float:
    return float((A * kernel.with_theta(theta).weight_covariance).sum())


class KernelChecks:
    """Tests of a fixture `kernel`, which subclasses provide, over three inputs and perhaps an action."""

    @pytest.fixture
    def X(self, kernel) -> np.ndarray:
        return make_states(11, 0, kernel)

    @pytest.fixture
    def Z(self, kernel) -> np.ndarray:
        return make_states(7, 1, kernel, loc=1.0)

    # Values

    def test_call_is_the_double_loop(self, kernel, X, Z):
        assert_allclose(kernel(X, Z), naive_matrix(kernel, X, Z), rtol=1e-10, atol=1e-14)
        assert_allclose(kernel(X), naive_matrix(kernel, X, X), rtol=1e-10, atol=1e-14)
        memory = np.full((11, 9), np.nan)  # a part of a larger array, as features write it
        kernel(X, Z, out=memory[:, :7])
        assert_array_equal(memory[:, :7], kernel(X, Z))

    def test_call_without_states_is_empty(self, kernel, X):
        assert kernel(X, X[:0]).shape == (11, 0)
        assert kernel(X[:0], X).shape == (0, 11)
        assert kernel.lower(X[:0]).shape == (0, 0)

    def test_matrix_is_positive_semidefinite(self, kernel):
        states = make_states(40, 2, kernel)
        K = kernel(np.concatenate([states, states[:5]]))
        assert_allclose(K, K.T, rtol=1e-12, atol=1e-14)
        assert np.linalg.eigvalsh(0.5 * (K + K.T)).min() >= -1e-12 * np.trace(K)

    def test_diagonal_is_that_of_the_matrix(self, kernel, X):
        assert_allclose(kernel.diagonal(X), np.diag(naive_matrix(kernel, X, X)), rtol=1e-12)

    @pytest.mark.parametrize("tile", [1, 3, 11, 256])
    def test_lower_is_the_lower_triangle(self, kernel, X, tile, monkeypatch):
        monkeypatch.setattr(base, "TILE", tile)
        expected = np.tril(naive_matrix(kernel, X, X))
        assert_allclose(np.tril(kernel.lower(X)), expected, rtol=1e-10, atol=1e-14)
        scratch = np.full((11, 11), np.nan)
        assert kernel.lower(X, scratch) is scratch
        assert_allclose(np.tril(scratch), expected, rtol=1e-10, atol=1e-14)

    @pytest.mark.parametrize("block", [1, 2, 32])
    def test_paired_is_the_diagonal_of_the_matrix(self, kernel, X, Z, block, monkeypatch):
        monkeypatch.setattr(base, "DIAGONAL_BLOCK", block)
        expected = np.diag(naive_matrix(kernel, X[:7], Z))
        assert_allclose(kernel.paired(X[:7], Z), expected, rtol=1e-10, atol=1e-14)

    def test_values_far_from_the_origin(self, kernel, X, Z):
        """Distances of states near 10⁶ lose no digits to their squares."""
        shift = np.where(np.arange(X.shape[1]) < 3, 2.0**20, 0.0)
        expected = kernel(X, Z)
        assert_allclose(kernel(X + shift, Z + shift), expected, rtol=1e-6)
        assert_allclose(kernel.paired(X[:7] + shift, Z + shift), np.diag(expected[:7]), rtol=1e-6)

    def test_values_do_not_depend_on_the_others_in_the_batch(self, kernel, X):
        """Not even on a state at 10⁹: distances between the other states keep their digits."""
        far = X[:1] + np.where(np.arange(X.shape[1]) < 3, 1e9, 0.0)
        together = kernel(np.concatenate([X, far]))
        assert_allclose(together[:-1, :-1], kernel(X), rtol=1e-9)
        assert_allclose(together[-1, -1], kernel.diagonal(far)[0], rtol=1e-9)
        lower = kernel.lower(np.concatenate([X, far]))
        assert_allclose(np.tril(lower[:-1, :-1]), np.tril(kernel(X)), rtol=1e-9)

    def test_blocks_are_apart(self, kernel, X):
        blocks = kernel.blocks(X)
        assert_array_equal(np.sort(np.concatenate(blocks)), np.arange(len(X)))
        K = naive_matrix(kernel, X, X)
        for rows in blocks:
            assert_array_equal(np.delete(K[rows], rows, axis=1), 0.0)

    # Parameters

    def test_theta_there_and_back(self, kernel, X, Z):
        theta = kernel.theta + np.linspace(-0.2, 0.3, len(kernel.theta))
        moved = kernel.with_theta(theta)
        assert type(moved) is type(kernel)
        assert_allclose(moved.theta, theta)
        assert_allclose(moved(X, Z), naive_matrix(moved, X, Z), rtol=1e-10, atol=1e-14)
        assert_allclose(kernel.with_theta(kernel.theta)(X, Z), kernel(X, Z), rtol=1e-12)

    def test_parameters_have_names_of_their_own(self, kernel):
        names = kernel.parameter_names
        assert len(set(names)) == len(names) == len(kernel.theta) == len(kernel.is_log) == len(kernel.is_free)
        assert 0 <= kernel.n_amplitudes <= len(names)

    def test_amplitudes_scale_the_kernel(self, kernel, X, Z):
        """Amplitudes are logarithms that lead θ, on which the kernel depends multilinearly."""
        assert kernel.is_log[: kernel.n_amplitudes].all()
        for i in range(kernel.n_amplitudes):
            values = []
            for factor in (1.0, 2.0, 3.0):
                theta = kernel.theta
                theta[i] += np.log(factor)
                values.append(kernel.with_theta(theta)(X, Z))
            assert_allclose(values[2] - values[1], values[1] - values[0], rtol=1e-8, atol=1e-12)

    def test_fix_holds_one_parameter(self, kernel):
        for i, name in enumerate(kernel.parameter_names):
            held = kernel.fix(name)
            assert held.fixed == {name}
            assert_array_equal(held.is_free, np.arange(len(kernel.theta)) != i)
            assert held.with_theta(held.theta).fixed == {name}
            assert_allclose(held.theta, kernel.theta)
        assert kernel.fix().fixed == kernel.fixed == frozenset()

    def test_fix_refuses_unknown_names_in_one_line(self, kernel):
        with pytest.raises(ValueError, match=r"^fixed names \['a9', 'nonsense'\], but the parameters are \(.*\)\.$"):
            kernel.fix("nonsense", "a9")

    @pytest.mark.parametrize("relevance", [0.1, 1.0, 5.0])
    def test_initial_parameters_lie_within_the_bounds(self, kernel, relevance):
        space = kernel.space(SCALE)
        guess = Guess(relevance, SCALE.return_variance, SCALE.return_variance + SCALE.mean_return**2)
        first = kernel.initial(SCALE, guess, np.random.default_rng(0))
        n = len(kernel.theta)
        assert [len(a) for a in (space.lower, space.upper, space.unit, space.linear_below)] == [n] * 4
        assert (space.lower < space.upper).all()
        assert (space.lower <= first.theta).all() and (first.theta <= space.upper).all()
        assert first.parameter_names == kernel.parameter_names

    def test_roughness_has_its_gradient(self, kernel):
        value, gradient = kernel.roughness(SCALE)
        assert value >= 0.0
        assert_slope(gradient, lambda k: k.roughness(SCALE)[0], kernel)

    def test_take_inputs_is_the_kernel_where_the_others_are_equal(self, kernel, X, Z):
        inputs = np.array([0, 2])
        some = kernel.take_inputs(inputs)
        assert some.n_dims in (2, None)
        X, Z = X.copy(), Z.copy()
        X[:, 1] = Z[:, 1] = 0.7
        columns = np.delete(np.arange(X.shape[1]), 1)
        assert_allclose(some(X[:, columns], Z[:, columns]), kernel(X, Z), rtol=1e-10)

    # Derivatives

    def test_contract(self, kernel, X, Z):
        A = np.random.default_rng(3).normal(size=(len(X), len(Z)))
        before = A.copy()
        assert_slope(kernel.contract(A, X, Z), lambda k: float((A * naive_matrix(k, X, Z)).sum()), kernel)
        assert_allclose(kernel.contract(A, X, Z, kernel(X, Z)), kernel.contract(A, X, Z), rtol=1e-12, atol=1e-12)
        assert_array_equal(A, before)

    @pytest.mark.parametrize("tile", [3, 256])
    def test_contract_lower(self, kernel, X, tile, monkeypatch):
        monkeypatch.setattr(base, "TILE", tile)
        A = np.random.default_rng(3).normal(size=(len(X), len(X)))
        A += A.T
        lower = np.where(np.tri(len(X), dtype=bool), A, np.nan)  # only the lower triangle is read ...
        before = lower.copy()
        assert_slope(kernel.contract_lower(lower, X), lambda k: float((A * naive_matrix(k, X, X)).sum()), kernel)
        assert_array_equal(lower, before)  # ... and nothing written

    @pytest.mark.parametrize("block", [2, 32])
    def test_contract_paired(self, kernel, X, Z, block, monkeypatch):
        monkeypatch.setattr(base, "DIAGONAL_BLOCK", block)
        a = np.random.default_rng(3).normal(size=len(Z))
        expected = lambda k: float(a @ [naive(k, x, z) for x, z in zip(X, Z, strict=False)])  # noqa: E731
        assert_slope(kernel.contract_paired(a, X[: len(Z)], Z), expected, kernel)

    def test_contract_diagonal(self, kernel, X):
        a = np.random.default_rng(3).normal(size=len(X))
        assert_slope(kernel.contract_diagonal(a, X), lambda k: float(a @ [naive(k, x, x) for x in X]), kernel)

    # Terms, and those of finite rank

    def test_terms_add_up_to_the_kernel(self, kernel, X, Z):
        terms = kernel.terms()
        assert_allclose(sum(naive_matrix(term, X, Z) for term, _ in terms), naive_matrix(kernel, X, Z), rtol=1e-12)
        theta = kernel.theta + np.linspace(-0.2, 0.3, len(kernel.theta))
        for term, places in terms:
            assert_allclose(term.theta, kernel.theta[places])
        moved = [term.with_theta(theta[places]) for term, places in terms]
        expected = naive_matrix(kernel.with_theta(theta), X, Z)
        assert_allclose(sum(naive_matrix(term, X, Z) for term in moved), expected, rtol=1e-12)

    def test_terms_of_finite_rank_have_a_basis(self, kernel, X, Z):
        for term, _ in kernel.terms():
            if term.rank is None:
                continue
            C = term.weight_covariance
            assert C.shape == (term.rank, term.rank)
            assert_allclose(term.basis(X) @ C @ term.basis(Z).T, naive_matrix(term, X, Z), rtol=1e-12)
            A = np.random.default_rng(3).normal(size=C.shape)
            A += A.T
            numeric = central_differences(partial(_sum_of_weight_covariance, term, A), term.theta)
            assert_allclose(term.contract_weight_covariance(A), numeric.reshape(-1), rtol=1e-6, atol=1e-8)

    def test_split_is_the_kernel(self, kernel, X, Z):
        """k = g + ΦCΦᵀ, and the gradient of a function of all three."""
        if all(term.rank is not None for term, _ in kernel.terms()):
            with pytest.raises(
                ValueError, match=r"^the sparse method needs a kernel with a part of infinite rank.*\.$"
            ):
                KernelSplit.of(kernel)
            return
        split = KernelSplit.of(kernel)
        Phi, Phi2, C = split.basis(X), split.basis(Z), split.weight_covariance
        assert Phi.shape == (11, split.n_explicit) and C.shape == (split.n_explicit,) * 2
        assert_allclose(split.inducing(X, Z) + Phi @ C @ Phi2.T, naive_matrix(kernel, X, Z), rtol=1e-10)
        A = np.random.default_rng(3).normal(size=(len(X), len(Z)))
        gradient = split.gradient(split.inducing.contract(A, X, Z), Phi.T @ A @ Phi2)
        assert_slope(gradient, lambda k: float((A * naive_matrix(k, X, Z)).sum()), kernel)

    # Storage, and what users see

    def test_describe_and_build(self, kernel, X, Z):
        held = kernel.fix(*kernel.parameter_names[:1])
        again = registry.build(registry.describe(held))
        assert type(again) is type(kernel)
        assert again.parameter_names == kernel.parameter_names and again.fixed == held.fixed
        assert_array_equal(again(X, Z), kernel(X, Z))

    def test_kernels_are_frozen(self, kernel):
        for field in dataclasses.fields(kernel):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(kernel, field.name, None)

    def test_repr_builds_the_kernel(self, kernel, X, Z):
        """With the numbers of these tests, which have few digits."""
        again = eval(repr(kernel), vars(gptd_rl.kernels) | {c.__name__: c for c in PROFILES})
        assert type(again) is type(kernel)
        assert_array_equal(again(X, Z), kernel(X, Z))
        assert "fixed" not in repr(kernel)
        for name in kernel.parameter_names[:1]:
            assert repr(kernel.fix(name)).count("fixed=['") == 1

    def test_states_of_another_width_are_refused_in_one_line(self, kernel, X):
        if kernel.n_dims is None:
            return
        width = 3 + kernel.n_categorical
        wide = np.column_stack([X, X])
        for call in (
            lambda: kernel(X[:, :2]),
            lambda: kernel(X, wide),
            lambda: kernel.lower(wide),
            lambda: kernel.contract(np.eye(11), X, wide),
            lambda: kernel.contract_lower(np.eye(11), X[:, :2]),
        ):
            with pytest.raises(ValueError, match=rf"^the kernel has {width} dimensions; got states of width \d\.$"):
                call()
