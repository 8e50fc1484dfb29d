"""The two minimisers on functions whose minimum is known, with bounds that bind."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize

from gptd_rl.selection.optimise import Optimum, lbfgs, quasi_newton

MINIMISERS = {
    "lbfgs": lambda f, start, lower, upper: lbfgs(f, start, lower, upper),
    "quasi_newton": lambda f, start, lower, upper: quasi_newton(f, start, lower, upper, np.eye(len(start))),
}
FREE = np.full(2, 50.0)


@pytest.fixture(params=MINIMISERS)
def minimise(request):
    return MINIMISERS[request.param]


class Counted:
    """A function that remembers where it was asked."""

    def __init__(self, f):
        self.f, self.asked = f, []

    def __call__(self, x):
        self.asked.append(x.copy())
        return self.f(x)


def quadratic(A, centre):
    def f(x):
        d = x - centre
        return 0.5 * d @ A @ d, A @ d

    return f


def rosenbrock(x):
    return optimize.rosen(x), optimize.rosen_der(x)


def coupled(n: int = 5, seed: int = 0):
    """A quadratic with strong coupling, its matrix and its unconstrained minimum."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(n, n))
    A = B @ B.T + 0.3 * np.eye(n)
    centre = rng.normal(scale=2.0, size=n)
    return quadratic(A, centre), A, centre


def true_minimum(A, centre, lower, upper):
    """Minimum of a quadratic in a box: bounded least squares on its root, to all digits."""
    root = np.linalg.cholesky(A).T
    return optimize.lsq_linear(root, root @ centre, bounds=(lower, upper), tol=1e-14, method="bvls").x


def test_free_minimum(minimise):
    f, _, centre = coupled()
    found = minimise(f, np.zeros(5), np.full(5, -50.0), np.full(5, 50.0))
    assert_allclose(found.value, 0.0, atol=2e-3)
    assert_allclose(found.x, centre, atol=0.2)


@pytest.mark.parametrize("seed", range(6))
def test_minimum_in_a_box(minimise, seed):
    f, A, centre = coupled(seed=seed)
    lower, upper = np.full(5, -1.0), np.full(5, 1.0)
    best = true_minimum(A, centre, lower, upper)
    found = minimise(f, np.zeros(5), lower, upper)
    binding = (best == lower) | (best == upper)
    assert binding.any()  # else the test shows nothing
    assert_allclose(found.value, f(best)[0], atol=2e-3)
    assert_allclose(found.x[binding], best[binding], atol=1e-6)
    assert ((found.x >= lower) & (found.x <= upper)).all()


@pytest.mark.parametrize("seed", range(6))
def test_minimum_from_a_corner(minimise, seed):
    """Bounds that bind at the start but not at the end must be let go of."""
    f, A, centre = coupled(seed=seed)
    lower, upper = np.full(5, -1.0), np.full(5, 1.0)
    best = true_minimum(A, centre, lower, upper)
    for start in (lower, upper):
        assert_allclose(minimise(f, start, lower, upper).value, f(best)[0], atol=2e-3)


def test_rosenbrock(minimise):
    found = minimise(rosenbrock, np.array([-1.2, 1.0]), -FREE, FREE)
    assert_allclose(found.value, 0.0, atol=5e-3)


def test_rosenbrock_with_a_bound_that_binds(minimise):
    """With x ≤ 0.5 the minimum is (0.5, 0.25), at 0.25."""
    found = minimise(rosenbrock, np.array([-1.2, 1.0]), -FREE, np.array([0.5, 50.0]))
    assert_allclose(found.x, [0.5, 0.25], atol=0.02)
    assert_allclose(found.value, 0.25, atol=5e-3)


def test_every_question_is_within_the_bounds(minimise):
    f, _, _ = coupled(seed=1)
    counted = Counted(f)
    lower, upper = np.full(5, -0.5), np.full(5, 0.7)
    found = minimise(counted, np.full(5, 30.0), lower, upper)  # the start is brought inside first
    asked = np.array(counted.asked)
    assert ((asked >= lower) & (asked <= upper)).all()
    assert found.n_evaluations == len(asked)


def test_value_belongs_to_x(minimise):
    f, _, _ = coupled(seed=2)
    found = minimise(f, np.zeros(5), np.full(5, -1.0), np.full(5, 1.0))
    assert isinstance(found, Optimum)
    assert_allclose(found.value, f(found.x)[0])


def test_equal_bounds_hold_a_parameter(minimise):
    f, A, centre = coupled(seed=3)
    lower, upper = np.full(5, -50.0), np.full(5, 50.0)
    lower[[1, 3]] = upper[[1, 3]] = [0.3, -0.4]
    found = minimise(f, np.zeros(5), lower, upper)
    assert_array_equal(found.x[[1, 3]], [0.3, -0.4])
    free = [0, 2, 4]
    held = np.array([0.3, -0.4]) - centre[[1, 3]]
    best = np.zeros(5)
    best[[1, 3]] = [0.3, -0.4]
    best[free] = centre[free] - np.linalg.solve(A[np.ix_(free, free)], A[np.ix_(free, [1, 3])] @ held)
    assert_allclose(found.value, f(best)[0], atol=2e-3)


def test_nothing_to_move(minimise):
    f, _, _ = coupled()
    point = np.full(5, 0.5)
    found = minimise(f, np.zeros(5), point, point)
    assert_array_equal(found.x, point)
    assert_allclose(found.value, f(point)[0])


def test_minimum_at_the_start(minimise):
    f, _, centre = coupled()
    found = minimise(f, centre, np.full(5, -50.0), np.full(5, 50.0))
    assert_array_equal(found.x, centre)
    assert found.n_evaluations <= 2


# What quasi_newton promises beside


def test_with_the_true_curvature_one_step_is_enough():
    f, A, centre = coupled()
    counted = Counted(f)
    start = centre + 0.5
    found = quasi_newton(counted, start, np.full(5, -50.0), np.full(5, 50.0), A)
    assert_allclose(found.x, centre, atol=1e-10)
    assert len(counted.asked) == 2


def test_with_the_true_curvature_bounds_cost_little():
    f, A, centre = coupled(seed=1)
    lower, upper = np.full(5, -1.0), np.full(5, 1.0)
    found = quasi_newton(f, np.zeros(5), lower, upper, A)
    assert_allclose(found.value, f(true_minimum(A, centre, lower, upper))[0], atol=2e-3)
    assert found.n_evaluations <= 15


def test_a_good_curvature_saves_evaluations():
    f, A, _ = coupled(n=12, seed=4)
    bounds = np.full(12, -50.0), np.full(12, 50.0)
    good = quasi_newton(f, np.zeros(12), *bounds, 1.2 * A)
    blind = lbfgs(f, np.zeros(12), *bounds)
    assert good.n_evaluations < 0.5 * blind.n_evaluations
    assert good.value < 2e-3


def test_steps_are_no_longer_than_a_factor_of_twenty():
    counted = Counted(quadratic(np.eye(2), np.array([40.0, 0.0])))
    found = quasi_newton(counted, np.zeros(2), -FREE, FREE, np.eye(2))
    steps = np.abs(np.diff(counted.asked, axis=0)).max(axis=1)
    assert steps.max() <= 3.0 + 1e-12
    assert_allclose(found.x, [40, 0], atol=0.1)


def test_evaluations_are_counted_and_limited():
    counted = Counted(rosenbrock)
    found = quasi_newton(counted, np.array([-1.2, 1.0]), -FREE, FREE, np.eye(2), max_evaluations=7)
    assert len(counted.asked) == found.n_evaluations == 7
    assert found.value <= rosenbrock(np.array([-1.2, 1.0]))[0]
    assert_allclose(found.value, min(rosenbrock(x)[0] for x in counted.asked))


def test_iterations_of_lbfgs_are_limited():
    start = np.array([-1.2, 1.0])
    few, many = lbfgs(rosenbrock, start, -FREE, FREE, max_iterations=3), lbfgs(rosenbrock, start, -FREE, FREE)
    assert many.value < few.value < rosenbrock(start)[0]


def test_tolerance_is_in_units_of_the_function():
    f, _, _ = coupled(seed=5)
    bounds = np.full(5, -50.0), np.full(5, 50.0)
    rough, fine = (quasi_newton(f, np.zeros(5), *bounds, np.eye(5), tolerance=t) for t in (1e-1, 1e-10))
    assert rough.n_evaluations < fine.n_evaluations
    assert fine.value < 1e-9


def test_curvature_is_learnt_and_handed_on():
    f, A, _ = coupled(n=3, seed=6)
    guess = np.eye(3)
    found = quasi_newton(f, np.zeros(3), np.full(3, -50.0), np.full(3, 50.0), guess, tolerance=1e-12)
    assert_allclose(found.curvature, A, rtol=0.05, atol=0.05)
    assert_array_equal(guess, np.eye(3))  # the guess itself is left alone


def test_curvature_stays_positive_definite_where_the_function_is_concave():
    def f(x):
        return float(np.cos(x).sum()), -np.sin(x)

    found = quasi_newton(f, np.array([0.3, -0.2]), -FREE, FREE, np.eye(2))  # starts on a hilltop
    assert (np.linalg.eigvalsh(found.curvature) > 0).all()
    assert_allclose(found.value, -2.0, atol=2e-3)
    assert_allclose(np.abs(found.x), np.pi, atol=0.1)


def test_a_much_too_long_step_is_shortened():
    """Curvature guessed a million times too small: each step overshoots, and is taken back."""
    f, _, _ = coupled(seed=7)
    found = quasi_newton(f, np.zeros(5), np.full(5, -50.0), np.full(5, 50.0), 1e-6 * np.eye(5), max_evaluations=500)
    assert_allclose(found.value, 0.0, atol=2e-3)


def test_a_search_cut_short_hands_back_the_best_it_saw():
    f, _, centre = coupled(seed=7)
    start = centre + 0.1
    found = quasi_newton(f, start, np.full(5, -50.0), np.full(5, 50.0), 1e-6 * np.eye(5), max_evaluations=2)
    assert found.n_evaluations == 2  # the start, and one step that was much too long
    assert_array_equal(found.x, start)
    assert found.value == f(start)[0]


def test_infinite_values_are_walked_around():
    """A covariance that cannot be factored counts as infinitely bad, and the search goes on."""

    def f(x):
        if x[0] > 1.5:
            return np.inf, np.zeros(2)
        return quadratic(np.eye(2), np.array([1.0, 0.0]))(x)

    found = quasi_newton(f, np.array([-3.0, 0.5]), -FREE, FREE, 0.1 * np.eye(2))
    assert_allclose(found.x, [1, 0], atol=0.1)


def test_quasi_newton_copes_with_gradients_that_have_no_squares():
    def f(x: np.ndarray) -> tuple[float, np.ndarray]:
        return 1e250 * float((x - 1.0) @ (x - 1.0)), 2e250 * (x - 1.0)

    found = quasi_newton(f, np.zeros(3), np.full(3, -5.0), np.full(3, 5.0), np.eye(3))
    assert np.isfinite(found.x).all() and found.value <= f(np.zeros(3))[0]
