"""Selection by instrumented rewards: the evidence densely, gradients by differences, and what a fit respects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.inference.model import Model
from gptd_rl.kernels import (
    ARD,
    ActionDelta,
    Constant,
    DataScale,
    Isotropic,
    Kernel,
    Matern32,
    Matern52,
    SquaredExponential,
    paper_kernel,
)
from gptd_rl.selection import moments
from gptd_rl.selection.moments import FixedMomentEvidence, MomentEvidence, MomentPrior, MomentProblem
from gptd_rl.selection.objectives import MarginalLikelihood
from gptd_rl.selection.scales import measure_scale
from gptd_rl.temporal.instruments import instrumented_targets
from gptd_rl.temporal.targets import LinearTargets
from gptd_rl.temporal.transitions import Transitions
from tests.helpers import METRICS, assert_gradient, make_model, naive_kernel, sample
from tests.mdps import Drifting, Garnet, rmse

MIXED = [(30, True), (25, False), (40, True), (35, False)]
KERNELS: dict[str, Kernel] = {
    **{name: paper_kernel(metric(), 1.3, 0.4) for name, metric in METRICS.items()},
    "no level": paper_kernel(ARD([0.3, 0.6, 1.1]), 1.3, 0.0, fixed=("b",)),
    "matern 3/2": Matern32(ARD([0.3, 0.6, 1.1]), 1.3) + Constant(0.4),
    "matern 5/2": Matern52(Isotropic(0.7, 3), 1.3) + Constant(0.4),
    "sum": SquaredExponential(ARD([0.3, 0.6, 1.1]), 1.3) + Matern52(Isotropic(2.0, 3), 0.5) + Constant(0.4),
    "product": SquaredExponential(ARD([0.3, 0.6, 1.1]), 1.3) * Matern52(Isotropic(0.2, 3), fixed=("v0",))
    + Constant(0.4),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


def targets_of(repeated: bool = False, seed: int = 1) -> LinearTargets:
    return instrumented_targets(Transitions.of(sample(MIXED, seed=seed, repeated=repeated)))


def pairs_data(seed: int = 1) -> Trajectories:
    """States with an action in their last column."""
    data = sample(MIXED, seed=seed)
    states = data.states.copy()
    states[:, 2] = np.random.default_rng(seed).integers(3, size=len(data))
    return Trajectories(states, data.rewards, data.discounts, data.lengths, data.terminated)


def naive_evidence(kernel: Kernel, noise_variance: float, targets: LinearTargets) -> float:
    """log N(y; 0, FᵀKF + σ²I)."""
    operator: Any = targets.operator
    S = operator.F.T @ kernel(targets.states, targets.states) @ operator.F + noise_variance * np.eye(len(targets.y))
    y = targets.y
    return float(-0.5 * (np.linalg.slogdet(S)[1] + y @ np.linalg.solve(S, y) + len(y) * np.log(2.0 * np.pi)))


# ------------------------------------------------------------------------------------------ values


@every_kernel
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "repeated"])
def test_moment_evidence_is_exact_where_all_states_are_inducing(kernel, repeated):
    seen, model = targets_of(repeated), Model(kernel, 0.2)
    fixed = FixedMomentEvidence(seen, seen.states)
    value, gradient = fixed(model)
    assert_allclose(-value, naive_evidence(kernel, 0.2, seen), rtol=1e-8)
    expected, slope = MarginalLikelihood(seen)(model)
    assert_allclose(value, expected, rtol=1e-8)
    assert_allclose(gradient, slope, rtol=1e-6, atol=1e-7)
    assert_allclose(fixed.evidence(model).log_likelihood, -value, rtol=1e-12)


def test_moment_evidence_by_a_kernel_in_a_double_loop():
    """The kernel, too, from its formula."""
    seen, model = targets_of(), make_model("factor 1")
    operator: Any = seen.operator
    S = operator.F.T @ naive_kernel(model.kernel, seen.states, seen.states) @ operator.F + 0.2 * np.eye(len(seen.y))
    found = MomentEvidence(seen).evidence(model)
    assert_allclose(found.complexity, 0.5 * np.linalg.slogdet(S)[1], rtol=1e-8)
    assert_allclose(found.data_fit, 0.5 * seen.y @ np.linalg.solve(S, seen.y), rtol=1e-8)
    assert found.n_rows == len(seen.y)


def test_moment_evidence_chooses_points_that_lose_nothing():
    """A smooth kernel over 1 200 states: the points it selects give the evidence of all states."""
    data = Drifting(gamma=0.9).sample(1200, np.random.default_rng(0))
    seen, kernel = instrumented_targets(Transitions.of(data)), paper_kernel(ARD([0.5, 0.05]), 20.0, 60.0)
    found = MomentEvidence(seen).evidence(Model(kernel, 4.0))
    assert_allclose(found.log_likelihood, naive_evidence(kernel, 4.0, seen), rtol=1e-5)


# ------------------------------------------------------------------------------------------ gradients


@every_kernel
@pytest.mark.parametrize("n_points", [5, 40])
def test_moment_evidence_gradient(kernel, n_points):
    seen = targets_of()
    assert_gradient(FixedMomentEvidence(seen, seen.states[:n_points]), Model(kernel, 0.2), atol=1e-6)


@pytest.mark.parametrize("noise_variance", [1e-4, 10.0])
def test_moment_evidence_gradient_with_little_and_much_noise(noise_variance):
    seen = targets_of()
    model = make_model("ard", noise_variance=noise_variance)
    assert_gradient(FixedMomentEvidence(seen, seen.states[:20]), model, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("correlation", [0.0, 0.4])
@pytest.mark.parametrize("n_points", [12, 200])
def test_moment_evidence_of_a_kernel_over_actions(correlation, n_points):
    seen = instrumented_targets(Transitions.of(pairs_data()), n_categorical=1)
    kernel = paper_kernel(ARD([0.4, 0.9]), 1.3, 0.4) * ActionDelta(3, correlation)
    fixed = FixedMomentEvidence(seen, seen.states[:n_points])
    assert_gradient(fixed, Model(kernel, 0.2), atol=1e-6)
    if n_points >= len(seen.states):
        assert_allclose(-fixed(Model(kernel, 0.2))[0], naive_evidence(kernel, 0.2, seen), rtol=1e-8)


@pytest.mark.parametrize("metric", METRICS)
def test_moment_prior_gradient(metric):
    scale = DataScale(2.5, 0.0, np.array([0.5, 1.0, 3.0]), np.zeros(3, dtype=bool))
    assert_gradient(MomentPrior(scale, 0.7, 2.0), make_model(metric))


def test_moment_prior_by_hand():
    # Σ a·spread²/2 / 1.5 + ½ (log(σ²/expected)/spread)²
    scale = DataScale(2.0, 0.0, np.array([1.0, 3.0]), np.zeros(2, dtype=bool))
    model = Model(paper_kernel(ARD([0.5, 2.0])), noise_variance=0.6)
    value, _ = MomentPrior(scale, 0.6, 2.0)(model)
    assert_allclose(value, 0.5 * (0.5 * 1 + 2.0 * 9) / 1.5)
    more, _ = MomentPrior(scale, 0.6, 2.0)(model.with_noise(0.6 * np.exp(1.0)))
    assert_allclose(more - value, 0.5 / 2.0**2)


# ------------------------------------------------------------------------------------------ search


def test_moment_problem_takes_a_part_of_very_many_transitions(monkeypatch):
    monkeypatch.setattr(moments, "MAX_ROWS", 100)
    transitions = Transitions.of(sample([(60, True)] * 5, seed=1))
    scale = measure_scale(sample([(60, True)] * 5, seed=1))
    problem = MomentProblem.of(transitions, scale)
    assert len(problem.transitions) == 100
    assert len(transitions) == 295
    kept = {tuple(x) for x in problem.transitions.states}
    assert kept <= {tuple(x) for x in transitions.states}


def test_moment_search_ends_at_a_minimum_for_the_noise_of_td_errors(monkeypatch):
    """The second search knows the TD errors of the first result, and leaves no slope."""
    priors: list[MomentPrior] = []

    def recorded(*args: Any) -> MomentPrior:
        priors.append(MomentPrior(*args))
        return priors[-1]

    monkeypatch.setattr(moments, "MomentPrior", recorded)
    data = Garnet(n_points=30, seed=1).sample(600, np.random.default_rng(0))
    problem = MomentProblem.of(Transitions.of(data), measure_scale(data))
    found = problem.search([Model(paper_kernel(ARD([10.0, 10.0]), 1.0, 1.0), 0.1)], 1e-6)
    first, second = priors
    assert first.noise_spread > second.noise_spread
    errors = problem._error_variance(found.model)  # of values that differ little from the first ones
    assert_allclose(np.log([second.noise_variance / errors, found.model.noise_variance / errors]), 0.0, atol=0.5)
    fixed = problem.objective.refine(found.model)
    (value, slope), (penalty, push) = fixed(found.model), second(found.model)
    assert_allclose(found.value, value + penalty, rtol=1e-9)
    assert_allclose(slope + push, 0.0, atol=0.02)  # nats per unit of a logarithm


def test_moment_search_gives_the_same_with_threads():
    data = Garnet(n_points=30, seed=1).sample(300, np.random.default_rng(0))
    one, two = (GPTD("ard", bootstrap=True, n_jobs=n).fit(data) for n in (None, 2))
    assert_array_equal(one.theta_, two.theta_)


def test_moments_find_the_input_that_matters():
    """The other one drifts, which identifies the episode: returns take that for relevance."""
    task = Drifting(gamma=0.95, drift=0.05, time_limit=50)

    def share_of_the_drifting(v: GPTD, data: Trajectories) -> float:
        strength = v.relevances_ * data.states.var(axis=0)
        return float(strength[1] / strength.sum())

    shares, fooled = [], []
    for seed in range(3):
        data = task.sample(2000, np.random.default_rng(seed))
        shares.append(share_of_the_drifting(GPTD("ard", bootstrap=True, n_restarts=0).fit(data), data))
        returns = GPTD("ard", bootstrap=False, objective="marginal_likelihood", n_restarts=0)
        fooled.append(share_of_the_drifting(returns.fit(data[:10]), data[:10]))
    assert max(shares) < 0.05
    assert min(fooled) > 0.5


# ------------------------------------------------------------------------------------------ other units

UNITS = {"halves": (2.0**-1, 0.0), "many": (2.0**10, 0.0), "odd": (3.7, -11.0), "tiny": (1e-9, 0.0), "huge": (1e9, 5e9)}
GARNET = Garnet(n_points=40, seed=2)


def in_units(data: Trajectories, reward_unit: float, input_unit: Any, shift: Any) -> Trajectories:
    states = data.states * np.asarray(input_unit) + np.asarray(shift)
    return Trajectories(states, reward_unit * data.rewards, data.discounts, data.lengths, data.terminated)


@pytest.fixture(scope="module")
def fitted() -> tuple[Trajectories, GPTD]:
    data = GARNET.sample(400, np.random.default_rng(0))
    return data, GPTD("ard", bootstrap=True).fit(data)


def assert_equivariant(before: GPTD, after: GPTD, unit: float, x: np.ndarray, moved: np.ndarray, rtol: float) -> None:
    for mine, theirs in zip(before.predict(x, return_std=True), after.predict(moved, return_std=True), strict=True):
        assert_allclose(theirs / unit, mine, rtol=rtol, atol=rtol * np.abs(mine).max())


@pytest.mark.parametrize(("unit", "rtol"), [(2.0**-3, 1e-8), (2.0**20, 1e-8), (-4.0, 1e-8), (3.7, 1e-8), (1e-6, 1e-8)])
def test_fit_is_equivariant_in_rewards(unit, rtol, fitted):
    data, before = fitted
    after = GPTD("ard", bootstrap=True).fit(in_units(data, unit, 1.0, 0.0))
    x = GARNET.points
    mine, theirs = before.predict(x), after.predict(x)
    assert_allclose(theirs / unit, mine, rtol=rtol, atol=rtol * np.abs(mine).max())
    std, other = (v.predict(x, return_std=True)[1] for v in (before, after))
    assert_allclose(other / abs(unit), std, rtol=rtol)


@pytest.mark.parametrize("name", UNITS)
def test_fit_is_equivariant_in_inputs(name, fitted):
    unit, shift = UNITS[name]
    data, before = fitted
    after = GPTD("ard", bootstrap=True).fit(in_units(data, 1.0, unit, shift))
    assert_equivariant(before, after, 1.0, GARNET.points, GARNET.points * unit + shift, 1e-8)


def test_fit_is_equivariant_in_inputs_of_different_units(fitted):
    data, before = fitted
    unit, shift = np.array([1e4, 0.3]), np.array([-2e4, 1.0])
    after = GPTD("ard", bootstrap=True).fit(in_units(data, 1.0, unit, shift))
    assert_equivariant(before, after, 1.0, GARNET.points, GARNET.points * unit + shift, 1e-8)


def test_fit_with_mirrored_inputs(fitted):
    """States are sorted, so others become inducing points: equal to the tolerance of the search only."""
    data, before = fitted
    after = GPTD("ard", bootstrap=True).fit(in_units(data, 1.0, -1.0, 0.0))
    assert_equivariant(before, after, 1.0, GARNET.points, -GARNET.points, 1e-3)


def test_fit_says_evidence_in_units_of_the_rewards(fitted):
    """A density of k moments scales by c⁻ᵏ."""
    data, before = fitted
    after = GPTD("ard", bootstrap=True).fit(in_units(data, 1024.0, 1.0, 0.0))
    k = before.evidence_.n_rows
    difference = before.log_marginal_likelihood_ - after.log_marginal_likelihood_
    assert_allclose(difference, k * np.log(1024.0), rtol=1e-8)
    assert_allclose(after.comparison_.best.objective - before.comparison_.best.objective, difference, rtol=1e-6)


@pytest.mark.parametrize("relevant", [0, 9])
def test_moments_find_the_input_that_matters_wherever_it_stands(relevant):
    """100 transitions, ten inputs: too few for an instrument each."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(101, 10))
    for t in range(100):
        x[t + 1] = 0.6 * x[t] + 0.8 * x[t + 1]
    rewards = 2.0 * x[:-1, relevant] + 0.3 * rng.normal(size=100)
    data = Trajectories.from_episodes([dict(observations=x, rewards=rewards, terminated=False)], gamma=0.5)
    v = GPTD("ard", bootstrap=True, n_restarts=0).fit(data)
    assert np.argmax(v.relevances_) == relevant
    new = rng.normal(size=(200, 10))
    truth = 2.0 * new[:, relevant] / (1.0 - 0.5 * 0.6)  # E[x'] = 0.6 x
    assert rmse(v.predict(new), truth) < 0.4 * truth.std()
