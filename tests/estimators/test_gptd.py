"""The estimator that users hold: what it promises in DESIGN.md, checked against the dense formulas and known values."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import ARD, GPTD, FactorAnalysis, Isotropic, SquaredExponential, Trajectories
from gptd_rl.kernels import Sum, paper_kernel
from gptd_rl.selection.coordinates import Coordinates
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.variants import SearchOptions
from tests.helpers import METRICS, MIXES, NOISES, Reference, central_differences, make_model, sample
from tests.mdps import Garnet, Gridworld, Spiral, Walk, rmse

GRID = Gridworld()
OBJECTIVES = ("auto", "marginal_likelihood", "thinned", "loo", "leave_one_episode_out")


@pytest.fixture(scope="module")
def grid() -> Trajectories:
    """151 steps of the gridworld, the last episode cut off."""
    data = GRID.sample(151, np.random.default_rng(0))
    assert not data.terminated[-1] and data.terminated[:-1].all()
    return data


@pytest.fixture(scope="module")
def fitted(grid) -> GPTD:
    return GPTD("ard").fit(grid)


@pytest.fixture(scope="module")
def noisy() -> Trajectories:
    """Random data in three dimensions, terminated and truncated, that no model fits well."""
    return sample(MIXES["mixed"], seed=1)


@pytest.fixture(scope="module")
def factor(noisy) -> GPTD:
    return GPTD("factor", objective="marginal_likelihood", noise_floor=1e-2, n_restarts=0).fit(noisy)


def held(metric: str, **options) -> GPTD:
    """An estimator with nothing left to select: quick, and the same formulas."""
    model = make_model(metric)
    kernel = model.kernel.fix(*model.kernel.parameter_names)
    return GPTD(kernel, noise_variance=model.noise_variance, **options)


def reference(v: GPTD, noise_variance: float) -> Reference:
    """The paper's formulas, densely, at what `v` selected."""
    return Reference.of(v.model_.with_noise(noise_variance), v.data_, v.noise)


# -------------------------------------------------------------------------------------- fit


def test_fit_returns_itself_and_sets_what_the_design_names(grid):
    v = GPTD("ard")
    assert v.fit(grid) is v
    for name in ("log_marginal_likelihood_", "complexity_", "data_fit_", "noise_variance_"):
        assert isinstance(getattr(v, name), float), name
    assert isinstance(v.kernel_, Sum) and isinstance(v.kernel_.parts[0], SquaredExponential)
    assert v.relevances_.shape == (2,)
    assert v.thinning_ == 1
    assert v.thinning_trials_ is not None
    assert v.theta_.shape == (len(v.parameter_names_),)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("metric", METRICS)
def test_evidence_and_its_parts_are_those_of_the_dense_formula(metric, noise, noisy):
    v = held(metric, noise=noise).fit(noisy)
    dense = reference(v, v.noise_variance_)
    assert_allclose(v.complexity_, dense.complexity, rtol=1e-8)
    assert_allclose(v.data_fit_, dense.data_fit, rtol=1e-8)
    assert_allclose(
        v.log_marginal_likelihood_, -(v.complexity_ + v.data_fit_ + 0.5 * noisy.n_rows * np.log(2.0 * np.pi))
    )


def test_evidence_of_a_thinned_model_is_still_that_of_all_rewards(noisy):
    v = GPTD(objective="thinned", thinning=3).fit(noisy)
    assert v.thinning_ == 3
    assert_allclose(v.log_marginal_likelihood_, reference(v, v.noise_variance_).log_likelihood, rtol=1e-8)


def test_a_second_fit_forgets_the_first(grid):
    other = Walk(n_cells=5).sample(40, np.random.default_rng(0))
    twice, once = GPTD(objective="marginal_likelihood"), GPTD(objective="marginal_likelihood")
    twice.fit(grid).fit(other)
    once.fit(other)
    assert_array_equal(twice.theta_, once.theta_)
    assert twice.relevances_.shape == (1,)
    assert_array_equal(twice.predict([[2.0]]), once.predict([[2.0]]))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns_an_easy_task(objective, grid):
    v = GPTD(objective=objective).fit(grid)
    truth = GRID.value(GRID.cells)
    assert rmse(v.predict(GRID.cells), truth) < 0.02 * truth.std()
    assert v.relevances_[1] < 1e-2 * v.relevances_[0]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_beats_a_constant_on_a_stochastic_chain(objective):
    chain = Garnet(n_points=30, seed=1)
    v = GPTD(objective=objective, n_restarts=0).fit(chain.sample(400, np.random.default_rng(0)))
    truth = chain.value(chain.points)
    assert rmse(v.predict(chain.points), truth) < 0.7 * truth.std()


@pytest.mark.parametrize("noise", NOISES)
def test_both_noise_models_learn_a_deterministic_system(noise):
    spiral = Spiral()
    rng = np.random.default_rng(0)
    v = GPTD("isotropic", noise=noise, n_restarts=0).fit(spiral.sample(75, rng))
    x = rng.uniform(-0.7, 0.7, size=(50, 2))
    truth = spiral.value(x)
    assert v.thinning_ == 1
    assert rmse(v.predict(x), truth) < 0.05 * truth.std()


def test_deterministic_noise_is_biased_where_the_system_is_not_deterministic():
    """MATHS.md: it minimises the Bellman residual, and its likelihood does not tell."""
    walk = Walk(n_cells=9, gamma=0.95)
    data = walk.sample(3000, np.random.default_rng(0))
    truth = walk.value(walk.cells)
    errors = {}
    for noise in NOISES:
        v = GPTD("isotropic", objective="marginal_likelihood").set_params(noise=noise).fit(data)
        errors[noise] = rmse(v.predict(walk.cells), truth)
    assert errors["deterministic"] > 1.5 * errors["stochastic"]


@pytest.mark.parametrize("kernel", ["isotropic", "ard", "factor", "auto"])
def test_one_dimension_works_with_every_kernel(kernel):
    walk = Walk(n_cells=5, p_right=1.0, prize=0.0, gamma=1.0)  # always right: V = −steps to go
    data = walk.sample(30, np.random.default_rng(0))
    v = GPTD(kernel).fit(data)
    assert_allclose(v.predict([[1.0], [3.0], [5.0]]), [-5.0, -3.0, -1.0], atol=0.05)
    assert v.relevances_.shape == (1,)
    assert len(v.comparison_) >= 1


def test_actions_do_not_disturb_the_value_function(grid):
    with_actions = Trajectories(
        grid.states,
        grid.rewards,
        grid.discounts,
        grid.lengths,
        grid.terminated,
        actions=np.arange(len(grid)) % 2,
    )
    assert_array_equal(GPTD().fit(with_actions).theta_, GPTD().fit(grid).theta_)


# -------------------------------------------------------------------------------------- θ


def test_theta_has_the_order_of_the_design(fitted):
    assert fitted.parameter_names_ == ("v0", "b", "noise", "a1", "a2")
    kernel = fitted.kernel_
    expected = np.log([kernel.signal_variance, kernel.bias, fitted.noise_variance_, *fitted.relevances_])
    assert_allclose(fitted.theta_, expected)


def test_theta_of_the_factor_kernel_has_raw_loadings_behind_the_relevances(factor):
    v, metric = factor, factor.kernel_.metric
    assert isinstance(metric, FactorAnalysis)
    own = [f"a{d}" for d in (1, 2, 3)]
    loadings = [f"m{k}_{d}" for k in range(1, metric.rank + 1) for d in (1, 2, 3)]
    assert v.parameter_names_ == ("v0", "b", "noise", *own, *loadings)
    assert_allclose(v.theta_[3:6], np.log(metric.a))
    assert_allclose(v.theta_[6:], metric.loadings.T.ravel())
    assert_allclose(v.relevances_, metric.a + (metric.loadings**2).sum(axis=1))
    assert_allclose(v.relevances_, np.diag(metric.matrix))


def test_isotropic_theta(grid):
    v = GPTD("isotropic").fit(grid)
    assert v.parameter_names_ == ("v0", "b", "noise", "h")
    assert_allclose(v.relevances_, np.exp(v.theta_[3]) * np.ones(2))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("metric", METRICS)
def test_log_marginal_likelihood_at_any_theta_with_its_gradient(metric, noise, noisy):
    v = held(metric, noise=noise).fit(noisy)
    assert v.log_marginal_likelihood() == v.log_marginal_likelihood_
    assert v.log_marginal_likelihood(v.theta_) == pytest.approx(v.log_marginal_likelihood_, rel=1e-12)
    theta = np.random.default_rng(0).normal(scale=0.5, size=len(v.theta_))
    value, gradient = v.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == v.log_marginal_likelihood(theta)
    dense = Reference.of(v.model_.with_theta(theta), noisy, noise)
    assert_allclose(value, dense.log_likelihood, rtol=1e-10)
    numeric = central_differences(v.log_marginal_likelihood, theta)
    assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-7)
    assert v.log_marginal_likelihood() == v.log_marginal_likelihood_, "asking changes nothing"


def test_the_gradient_vanishes_where_the_search_ended(noisy):
    """In every direction that no bound stops."""
    v = GPTD("ard", objective="marginal_likelihood", noise_floor=1e-2).fit(noisy)
    _, gradient = v.log_marginal_likelihood(eval_gradient=True)
    for name, t, slope in zip(v.parameter_names_, v.theta_, gradient, strict=True):
        moved = v.theta_ + 0.3 * np.sign(slope) * (np.array(v.parameter_names_) == name)
        if abs(slope) > 0.05:  # then it must be a bound that stops it: a longer search would find no more than that
            assert v.log_marginal_likelihood(moved) - v.log_marginal_likelihood_ < 0.3 * abs(slope) + 1e-9
            space = Coordinates.of(v.model_, measure_scale(noisy), v.noise_floor)
            bounds = [space.unpack(x).theta[v.parameter_names_.index(name)] for x in (space.lower, space.upper)]
            assert np.isclose(t, bounds).any(), name


# -------------------------------------------------------------------------------------- predict


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("thinned", [False, True])
def test_predictions_are_those_of_the_dense_formula_with_noise_tau_sigma(noise, thinned, noisy):
    options = dict(objective="thinned", thinning=2) if thinned else dict(objective="marginal_likelihood")
    v = held("ard", noise=noise, **options).fit(noisy)
    assert v.thinning_ == (2 if thinned else 1)
    dense = reference(v, v.thinning_ * v.noise_variance_)
    x = np.random.default_rng(0).normal(size=(6, 3))
    mean, std = v.predict(x, return_std=True)
    assert_allclose(mean, dense.mean(x), rtol=1e-6, atol=1e-9)
    assert_allclose(std, np.sqrt(dense.variance(x)), rtol=1e-6)
    assert_allclose(v.predict(x), mean)


def test_intervals_are_those_of_the_dense_formula(noisy):
    v = held("ard", objective="marginal_likelihood").fit(noisy)
    dense = reference(v, v.noise_variance_)
    x = np.random.default_rng(0).normal(size=(6, 3))
    lower, upper = v.confidence_interval(x, level=0.9)
    variance = np.maximum(dense.martingale_variance(x), dense.variance(x))
    assert_allclose(0.5 * (lower + upper), dense.mean(x), rtol=1e-6, atol=1e-9)
    assert_allclose(0.5 * (upper - lower), 1.6448536269514722 * np.sqrt(variance), rtol=1e-6)


def test_intervals_grow_with_the_level_and_are_never_narrower_than_the_posterior(fitted):
    x = np.random.default_rng(0).uniform(0.0, 12.0, size=(20, 2))
    mean, std = fitted.predict(x, return_std=True)
    widths = []
    for level in (0.5, 0.8, 0.95):
        lower, upper = fitted.confidence_interval(x, level)
        assert_allclose(0.5 * (lower + upper), mean, atol=1e-9)
        widths.append(upper - lower)
    assert (np.diff(widths, axis=0) > 0).all()
    assert (widths[-1] >= 2 * 1.9599 * std).all()


def test_shapes_of_predictions(fitted):
    one = fitted.predict([[3.0, 4.0]])
    assert one.shape == (1,)
    mean, std = fitted.predict([[3.0, 4.0]], return_std=True)
    assert mean.shape == std.shape == (1,)
    lower, upper = fitted.confidence_interval([[3.0, 4.0], [5.0, 5.0]])
    assert lower.shape == upper.shape == (2,)
    none, no_std = fitted.predict(np.zeros((0, 2)), return_std=True)
    assert none.shape == no_std.shape == (0,)


def test_many_states_are_predicted_as_one_by_one(fitted):
    x = np.random.default_rng(0).uniform(1.0, 11.0, size=(1100, 2))  # more than two chunks
    mean, std = fitted.predict(x, return_std=True)
    lower, _ = fitted.confidence_interval(x)
    for i in (0, 511, 512, 1024, 1099):
        one, one_std = fitted.predict(x[[i]], return_std=True)
        assert_allclose([mean[i], std[i]], [one[0], one_std[0]], rtol=1e-6, atol=1e-9)
        assert_allclose(lower[i], fitted.confidence_interval(x[[i]])[0][0], rtol=1e-6, atol=1e-9)


def test_far_from_the_data_the_prior_remains(fitted):
    _, near = fitted.predict([[3.0, 5.0]], return_std=True)
    _, far = fitted.predict([[1e4, 5.0]], return_std=True)
    kernel = fitted.kernel_
    assert near < 0.1 * far
    assert np.sqrt(kernel.signal_variance) < far < np.sqrt(kernel.signal_variance + kernel.bias)


def test_predicting_leaves_the_states_alone(fitted):
    x = np.ones((3, 2))
    x.flags.writeable = False
    fitted.predict(x, return_std=True)
    fitted.confidence_interval(x)


# -------------------------------------------------------------------------------------- the constructor's arguments


def test_params_go_in_and_come_out():
    given: dict[str, Any] = dict(
        kernel="factor", noise="deterministic", n_restarts=4, random_state=7, noise_variance=0.5
    )
    v = GPTD(**given)
    params = v.get_params()
    assert params.items() >= given.items()
    again = GPTD(**params)
    assert again.get_params() == params
    assert v.set_params(n_restarts=2, kernel="ard") is v
    assert v.get_params()["n_restarts"] == 2 and v.kernel == "ard"
    with pytest.raises(ValueError, match="no parameter 'sigma'"):
        v.set_params(sigma=1.0)


def test_repr_shows_what_was_changed_and_builds_the_same():
    assert repr(GPTD()) == "GPTD()"
    v = GPTD("isotropic", n_restarts=3)
    assert repr(v) == "GPTD(kernel='isotropic', n_restarts=3)"
    assert eval(repr(v)).get_params() == v.get_params()


def test_repr_leaves_out_what_equals_the_default():
    assert repr(GPTD(noise_floor=float("1e-6"))) == "GPTD()"


GUESSES = SearchOptions.guesses


def bad_guess(self, kernel, scale):
    """One start from which the search ends on the plateau where every state is on its own, and that of a warm start."""
    good, *others = GUESSES(self, kernel, scale)
    theta = good.theta
    theta[3:] = np.log(1e3)
    return [good.with_theta(theta), *others[2 + self.n_restarts :]]


def test_warm_start_starts_from_the_last_fit(grid, monkeypatch):
    options: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
    warm, cold = GPTD("isotropic", warm_start=True, **options), GPTD("isotropic", **options)
    good = warm.fit(grid).log_marginal_likelihood_
    assert cold.fit(grid).log_marginal_likelihood_ == pytest.approx(good)
    monkeypatch.setattr(SearchOptions, "guesses", bad_guess)
    assert cold.fit(grid).log_marginal_likelihood_ < good - 10.0, "the bad start is bad"
    assert warm.fit(grid).log_marginal_likelihood_ > good - 0.05
    fresh = GPTD("isotropic", warm_start=True, **options).fit(grid)
    assert fresh.log_marginal_likelihood_ < good - 10.0, "nothing to start from yet"


def test_warm_start_survives_data_of_another_width(grid):
    v = GPTD(warm_start=True, objective="marginal_likelihood").fit(grid)
    v.fit(grid.take_inputs([0]))
    assert v.relevances_.shape == (1,)
    assert_allclose(v.predict([[4.0]]), GRID.value(np.array([[4.0, 1.0]])), atol=0.05)


def test_the_same_seed_gives_the_same_model(noisy):
    first, second = (
        GPTD("factor", objective="marginal_likelihood", random_state=3, max_rank=1).fit(noisy) for _ in range(2)
    )
    assert_array_equal(first.theta_, second.theta_)


def test_fitting_leaves_global_randomness_alone(noisy):
    before = np.random.get_state(legacy=False)  # noqa: NPY002
    GPTD("factor", objective="marginal_likelihood", random_state=None, max_rank=1).fit(noisy)
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    assert_array_equal(after["state"]["key"], before["state"]["key"])
    assert after["state"]["pos"] == before["state"]["pos"]


def test_progress_bar_prints_and_changes_nothing(noisy, capsys, monkeypatch):
    quiet = GPTD("isotropic").fit(noisy)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # take the captured output for a terminal
    monkeypatch.setenv("TERM", "xterm")
    shown = GPTD("isotropic").fit(noisy, progress_bar=True)
    assert "model selection" in capsys.readouterr().out
    assert_array_equal(shown.theta_, quiet.theta_)


# -------------------------------------------------------------------------------------- kernels of the user's own


def test_what_a_kernel_object_holds_fixed_stays(grid):
    kernel = paper_kernel(ARD([0.5, 0.25]), signal_variance=3.0, bias=2.0, fixed=("b", "a2"))
    v = GPTD(kernel).fit(grid)
    assert_allclose(v.kernel_.bias, 2.0)
    assert_allclose(v.relevances_[1], 0.25)
    assert v.comparison_.best.n_parameters == 3
    assert v.kernel_.signal_variance != pytest.approx(3.0), "what is free moves"
    free = GPTD(paper_kernel(ARD([0.5, 0.25]), 3.0, 2.0)).fit(grid)
    assert free.log_marginal_likelihood_ > v.log_marginal_likelihood_
    assert free.relevances_[1] < 1e-3


@pytest.mark.parametrize("metric", [Isotropic(1.0, 2), ARD([1.0, 1.0]), FactorAnalysis([1.0, 1.0], [0.5, 0.1])])
def test_a_bias_of_zero_stays_zero(metric, grid):
    v = GPTD(paper_kernel(metric, bias=0.0)).fit(grid)
    assert v.kernel_.bias == 0.0
    assert v.theta_[1] == -np.inf
    assert rmse(v.predict(grid.states), GRID.value(grid.states)) < 0.02
    _, std = v.predict([[1e4, 0.0]], return_std=True)
    assert_allclose(std, np.sqrt(v.kernel_.signal_variance), rtol=1e-6)


def test_a_relevance_of_zero_stays_zero(grid):
    v = GPTD(paper_kernel(ARD([1.0, 0.0]))).fit(grid)
    assert v.relevances_[1] == 0.0
    assert_array_equal(v.predict([[3.0, 1.0]]), v.predict([[3.0, 9.0]]))


def test_a_model_with_nothing_free_is_conditioned_as_it_is(grid):
    kernel = paper_kernel(ARD([0.5, 0.25]), 3.0, 2.0, fixed=("v0", "b", "a1", "a2"))
    v = GPTD(kernel, noise_variance=0.1, objective="marginal_likelihood").fit(grid)
    assert_allclose(v.theta_, np.log([3.0, 2.0, 0.1, 0.5, 0.25]))
    assert v.comparison_.best.n_parameters == 0
    assert_allclose(v.log_marginal_likelihood_, reference(v, 0.1).log_likelihood, rtol=1e-9)


def test_a_kernel_object_starts_the_search(grid, monkeypatch):
    monkeypatch.setattr(SearchOptions, "guesses", bad_guess)
    options: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
    lost = GPTD("isotropic", **options).fit(grid)
    found = GPTD(paper_kernel(Isotropic(0.5, 2), 2.0, 10.0), **options).fit(grid)
    assert found.log_marginal_likelihood_ > lost.log_marginal_likelihood_ + 10.0


@pytest.mark.parametrize("kernel", ["isotropic", "ard"])
@pytest.mark.parametrize("objective", ["auto", "marginal_likelihood", "loo"])
def test_noise_variance_can_be_held(kernel, objective, grid):
    v = GPTD(kernel, objective=objective, noise_variance=0.05).fit(grid)
    assert_allclose(v.noise_variance_, 0.05)
    assert v.comparison_.best.n_parameters == len(v.theta_) - 1


def test_noise_floor_is_kept(grid):
    low, high = (GPTD("isotropic", objective="marginal_likelihood", noise_floor=f).fit(grid) for f in (1e-6, 1e-2))
    assert low.noise_variance_ < 1e-3 * high.noise_variance_, "the gridworld has no noise: the floor decides"


# -------------------------------------------------------------------------------------- comparing variants


def test_factor_tries_every_rank_and_keeps_the_best(factor, noisy):
    v = factor
    assert [c.variant for c in v.comparison_] == ["factor", "factor"]
    assert [c.rank for c in v.comparison_] == [1, 2]
    best = max(v.comparison_, key=lambda c: c.evidence)
    assert best is v.comparison_.best
    assert_allclose(v.log_marginal_likelihood_, best.evidence)
    metric = v.kernel_.metric
    assert isinstance(metric, FactorAnalysis) and metric.rank == best.rank
    only = GPTD("factor", objective="marginal_likelihood", noise_floor=1e-2, n_restarts=0, max_rank=1).fit(noisy)
    assert [c.rank for c in only.comparison_] == [1]


def test_factor_finds_a_direction_across_the_axes():
    """V depends on x + y only, so a rank-1 metric along (1, 1) is better than any axis-aligned one."""
    rng = np.random.default_rng(0)
    line = Walk(n_cells=11, p_right=1.0, prize=0.0, gamma=0.9).sample(100, rng)
    along = line.states[:, 0]
    across = rng.uniform(-6.0, 6.0, size=len(line))
    states = np.column_stack([along + across, along - across]) / 2.0
    data = Trajectories(states, line.rewards, line.discounts, line.lengths, line.terminated)
    v = GPTD("auto", objective="marginal_likelihood", n_restarts=0).fit(data)
    assert [c.variant for c in v.comparison_] == ["isotropic", "ard", "factor"]
    assert v.comparison_.best.variant == "factor"
    assert v.comparison_[2].evidence > v.comparison_[1].evidence + 10.0
    assert_allclose(np.abs(v.kernel_.metric.directions[0]), np.sqrt([0.5, 0.5]), atol=0.02)
    assert v.kernel_.metric.eigenvalues[1] < 1e-2 * v.kernel_.metric.eigenvalues[0]


def test_auto_keeps_a_table(grid):
    v = GPTD("auto").fit(grid)
    variants = [(c.variant, c.rank) for c in v.comparison_]
    assert variants == [("isotropic", 0), ("ard", 0), ("factor", 1)]
    assert [c.n_parameters for c in v.comparison_] == [4, 5, 7]
    for c in v.comparison_:
        assert_allclose(c.evidence, -(c.complexity + c.data_fit + 0.5 * grid.n_rows * np.log(2.0 * np.pi)))
        assert c.seconds > 0
    iso, ard, _ = v.comparison_
    assert ard.evidence > iso.evidence + 10.0, "an irrelevant input costs the isotropic kernel dearly"
    table = str(v.comparison_).splitlines()
    assert table[0].split() == ["variant", "rank", "evidence", "complexity", "data", "fit", "parameters", "seconds"]
    assert len(table) == 4
    starred = [line for line in table if line.rstrip().endswith("*")]
    assert len(starred) == 1 and starred[0].startswith(v.comparison_.best.variant)
    for c, line in zip(v.comparison_, table[1:], strict=True):
        assert line.startswith(c.variant)
        assert float(re.split(r"\s+", line)[2]) == pytest.approx(c.evidence, abs=0.01)
    assert v.comparison_.best.model is v.model_


# -------------------------------------------------------------------------------------- pruning


def test_pruning_the_gridworld_is_the_paper_without_y(fitted, grid):
    """The paper's table: without y the complexity falls, and the fit is what it was."""
    pruned = fitted.prune()
    assert_array_equal(pruned.inputs_, [0])
    assert_array_equal(pruned.pruning_.kept, [0])
    assert_array_equal(pruned.pruning_.removed, [1])
    assert pruned.relevances_.shape == (2,) and pruned.relevances_[1] == 0.0
    assert_allclose(pruned.relevances_[0], fitted.relevances_[0], rtol=0.1)
    # y had gone as far as its bound lets it, so both parts are what they were, but for give and take between them
    assert_allclose(pruned.complexity_, fitted.complexity_, atol=2.0)
    assert_allclose(pruned.data_fit_, fitted.data_fit_, atol=2.0)
    assert pruned.log_marginal_likelihood_ > fitted.log_marginal_likelihood_ - 0.05
    # it takes the same states, and y does not matter
    assert_allclose(pruned.predict(GRID.cells), GRID.value(GRID.cells), atol=0.05)
    assert_array_equal(pruned.predict([[3.0, 1.0]]), pruned.predict([[3.0, 11.0]]))
    # both evidences are shown, and each is that of its model
    assert pruned.pruning_.before.log_likelihood == fitted.log_marginal_likelihood_
    assert pruned.pruning_.after.log_likelihood == pruned.log_marginal_likelihood_
    text = str(pruned.pruning_)
    assert "removed: 1" in text
    for value in (fitted.log_marginal_likelihood_, pruned.log_marginal_likelihood_):
        assert f"{value:.2f}" in text


def test_pruning_an_input_that_still_counted_lowers_the_complexity(grid):
    """An isotropic metric counts y as much as x; without y it need not."""
    data = grid.take_inputs([0, 1])
    both = GPTD("isotropic", objective="marginal_likelihood").fit(data)
    stretched = Trajectories(
        data.states * [1.0, 1e-2], data.rewards, data.discounts, data.lengths, data.terminated
    )  # now y hardly moves, so the isotropic metric sees little of it
    little = GPTD("isotropic", objective="marginal_likelihood").fit(stretched)
    pruned = little.prune(threshold=1e-2)
    assert_array_equal(pruned.inputs_, [0])
    assert little.complexity_ < both.complexity_ - 10.0
    assert pruned.complexity_ < little.complexity_ + 0.5
    assert pruned.log_marginal_likelihood_ > both.log_marginal_likelihood_ + 10.0


def test_pruning_leaves_the_original_alone(fitted):
    before = fitted.theta_.copy()
    fitted.prune()
    assert_array_equal(fitted.theta_, before)
    assert_array_equal(fitted.inputs_, [0, 1])


def test_pruning_keeps_what_matters_and_never_everything_out(fitted):
    pruned = GPTD(objective="marginal_likelihood").fit(Spiral().sample(50, np.random.default_rng(0))).prune()
    assert_array_equal(pruned.inputs_, [0, 1])
    assert str(pruned.pruning_).startswith("inputs removed: none")
    assert_array_equal(fitted.prune(threshold=1e12).inputs_, [0])


def test_pruning_twice(fitted):
    twice = fitted.prune().prune()
    assert_array_equal(twice.inputs_, [0])
    assert_array_equal(twice.pruning_.removed, [])
    assert_allclose(twice.predict(GRID.cells), GRID.value(GRID.cells), atol=0.05)


def test_prune_restricts_a_kernel_object(grid):
    options: dict[str, Any] = dict(objective="marginal_likelihood")
    pruned = GPTD(paper_kernel(ARD([1.0, 1.0])), **options).fit(grid).prune()
    assert_array_equal(pruned.inputs_, [0])
    by_name = GPTD("ard", **options).fit(grid).prune()
    assert_allclose(pruned.log_marginal_likelihood_, by_name.log_marginal_likelihood_, atol=0.01)
    assert_allclose(pruned.predict(grid.states), by_name.predict(grid.states), atol=1e-2)


def test_the_top_level_names():
    assert gptd_rl.GPTD is GPTD
    assert set(gptd_rl.__all__) >= {"GPTD", "Trajectories", "load", "SquaredExponential"}
