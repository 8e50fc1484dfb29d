"""GPTD that bootstraps by instruments: when it does, and that everything an estimator offers works with it."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

import gptd_rl
from gptd_rl import ARD, GPTD, Isotropic, Trajectories, markov_test
from gptd_rl.estimators import planning
from gptd_rl.estimators.planning import MIN_TRANSITIONS
from gptd_rl.exceptions import InterruptedFitWarning, NotFittedError
from gptd_rl.inference.instrumental import InstrumentalPosterior, MomentSolution, moment_noise, moment_statistics
from gptd_rl.kernels import Constant, Matern52, paper_kernel
from gptd_rl.selection import moments
from gptd_rl.temporal.shards import Shard
from tests.helpers import central_differences
from tests.mdps import MDP, Drifting, Garnet, Gridworld, Ring, Saddle, Spiral, Walk, rmse

WALK = Walk(n_cells=9, gamma=0.9)
LINE = Drifting(gamma=0.9, time_limit=25, drift=0.0)
METHODS: dict[str, dict[str, Any]] = {
    "exact": dict(method="exact"),
    "sparse": dict(method="sparse", subset_size=15),
}

both_methods = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS.keys())


def sampled(mdp: MDP, n: int, seed: int = 0) -> Trajectories:
    return mdp.sample(n, np.random.default_rng(seed))


def quick(kernel: Any = "ard", **options: Any) -> GPTD:
    return GPTD(kernel, **(dict(bootstrap=True, n_restarts=0) | options))


def in_shards(data: Trajectories, n: int = 3) -> list[Trajectories]:
    return [data[part] for part in np.array_split(np.arange(data.n_segments), n)]


def states(n: int = 30) -> np.ndarray:
    return np.linspace(-2.0, 2.0, n)[:, None]


def assert_same_answers(v: GPTD, w: GPTD, x: np.ndarray, rtol: float = 0.0) -> None:
    """Equal to `rtol`; bit by bit if that is 0."""
    for mine, theirs in zip(v.predict(x, return_std=True), w.predict(x, return_std=True), strict=True):
        assert_allclose(theirs, mine, rtol=rtol, atol=rtol)
    for mine, theirs in zip(v.confidence_interval(x, 0.8), w.confidence_interval(x, 0.8), strict=True):
        assert_allclose(theirs, mine, rtol=rtol, atol=rtol)
    assert_allclose(w.theta_, v.theta_, rtol=rtol, atol=rtol)
    assert_allclose(w.log_marginal_likelihood_, v.log_marginal_likelihood_, rtol=rtol)
    assert w.bootstrap_ == v.bootstrap_


def by_hand(v: GPTD, *parts: Trajectories) -> InstrumentalPosterior:
    """Values by instruments at the θ and features of `v`; TD errors of each part are those when it came."""
    features = v.posterior_.features
    noise, known = np.zeros((len(features), len(features))), None
    for part in parts:
        shard = Shard.of(part.take_inputs(v.inputs_), "stochastic")
        more = moment_statistics(shard, features)
        known = more if known is None else known + more
        solution = MomentSolution.of(known)
        noise = noise + moment_noise(shard, features, solution)
    return InstrumentalPosterior(features, solution, noise, v.posterior_.is_exact)


def assert_posterior(v: GPTD, expected: InstrumentalPosterior, x: np.ndarray, rtol: float = 1e-8) -> None:
    mean, std = v.predict(x, return_std=True)
    assert_allclose(mean, expected.mean(x[:, v.inputs_]), rtol=rtol, atol=rtol)
    assert_allclose(std**2, expected.variance(x[:, v.inputs_]), rtol=10 * rtol)


# -------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    "mdp", [WALK, Garnet(n_points=30, seed=1), LINE, Ring(), Saddle()], ids=lambda mdp: type(mdp).__name__
)
def test_gptd_bootstraps_in_stochastic_systems(mdp):
    data = sampled(mdp, 300)
    v, told = GPTD(n_restarts=0).fit(data), quick().fit(data)
    assert v.bootstrap_ and v.thinning_ == 1
    assert len(v.thinning_trials_) == 1
    assert_same_answers(told, v, data.states[::10])


@pytest.mark.parametrize(
    ("mdp", "n"),
    [(Gridworld(), 300), (Spiral(), 200), (Walk(n_cells=20, p_right=1.0, prize=5.0), 200)],
    ids=["gridworld", "spiral", "corridor"],
)
def test_gptd_leaves_deterministic_systems_to_the_paper(mdp, n):
    data = sampled(mdp, n)
    v, returns = GPTD(n_restarts=0).fit(data), GPTD(bootstrap=False, n_restarts=0).fit(data)
    assert not v.bootstrap_
    assert_same_answers(returns, v, data.states[::10])


def test_gptd_does_not_bootstrap_from_few_transitions():
    few, enough = sampled(LINE, MIN_TRANSITIONS - 1), sampled(LINE, MIN_TRANSITIONS)
    v, returns = GPTD(n_restarts=0).fit(few), GPTD(bootstrap=False, n_restarts=0).fit(few)
    assert not v.bootstrap_
    assert_same_answers(returns, v, states())
    assert GPTD(n_restarts=0).fit(enough).bootstrap_
    assert quick().fit(few).bootstrap_, "unless it is told to"


@pytest.mark.parametrize("time_limit", [2, 25], ids=["one thinning", "several"])
def test_gptd_does_not_bootstrap_where_states_are_not_markov(time_limit, monkeypatch):
    """Whatever says so, and however many thinnings there are to try."""
    monkeypatch.setattr(planning, "markov_test", lambda data: replace(markov_test(data), pvalue=0.0))
    data = sampled(Drifting(gamma=0.9, time_limit=time_limit, drift=0.0), 400)
    v, returns = GPTD(n_restarts=0).fit(data), GPTD(bootstrap=False, n_restarts=0).fit(data)
    assert not v.bootstrap_ and v.trace_decay_ == 1.0
    assert v.thinning_ == returns.thinning_
    if len(v.thinning_trials_) > 1:  # of one thinning only, the trial is where the final search starts
        assert_allclose(v.theta_, returns.theta_, rtol=1e-8)


OTHERS = [dict(noise="deterministic"), *(dict(objective=o) for o in ("marginal_likelihood", "thinned", "loo"))]


@pytest.mark.parametrize("options", OTHERS, ids=lambda options: "-".join(options.values()))
def test_gptd_bootstraps_with_other_noise_and_objectives_only_if_told(options):
    data = sampled(LINE, 120)
    auto, returns = (GPTD(bootstrap=b, n_restarts=0, **options).fit(data) for b in ("auto", False))
    assert not auto.bootstrap_
    assert_same_answers(returns, auto, states())
    told = quick(**options).fit(data)
    assert told.bootstrap_ and isinstance(told.posterior_, InstrumentalPosterior)
    if "objective" in options:  # θ is what that objective says
        assert_allclose(told.theta_, returns.theta_, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("flag", [True, False])
def test_gptd_takes_flags_of_numpy(flag):
    data = sampled(LINE, 100)
    flags: list[Any] = [flag, np.bool_(flag)]
    plain, numpy = (GPTD(bootstrap=b, n_restarts=0).fit(data) for b in flags)
    assert plain.bootstrap_ is flag and numpy.bootstrap_ is flag
    assert_same_answers(plain, numpy, states())


@pytest.mark.parametrize("bad", ["x", None, 2, 1, 0.0, "True"])
def test_gptd_refuses_other_values_of_bootstrap(bad):
    with pytest.raises(ValueError, match=r"^bootstrap must be 'auto', True or False; got .*\.$"):
        GPTD(bootstrap=bad).fit(sampled(LINE, 60))


# -------------------------------------------------------------------------------------- values


@both_methods
def test_bootstrapped_values_are_the_formulas(options):
    data = sampled(LINE, 300)
    v = quick(**options).fit(data)
    assert v.method_ == options["method"] and v.bootstrap_
    assert (v.inducing_points_ is None) == (options["method"] == "exact")
    assert_posterior(v, by_hand(v, data), states())


def test_bootstrapped_values_are_better_than_those_of_returns():
    """Runs cut after five steps: returns know next to nothing of what follows, bootstrapping does."""
    short = Drifting(gamma=0.9, time_limit=5, drift=0.0)
    truth, errors = short.value(states()), []
    for seed in range(3):
        data = sampled(short, 250, seed)
        returns = GPTD(bootstrap=False, objective="marginal_likelihood", n_restarts=0)
        errors.append([rmse(v.fit(data).predict(states()), truth) for v in (quick(), returns)])
    bootstrapped, averaged = np.mean(errors, axis=0)
    assert bootstrapped < 0.6 * averaged


def test_bootstrapped_values_by_many_inducing_points_are_the_exact_ones():
    data = sampled(LINE, 400)
    exact = quick(method="exact").fit(data)
    sparse = quick(method="sparse", subset_size=200).fit(data)
    assert_allclose(sparse.theta_, exact.theta_, rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(exact.predict(states(), True), sparse.predict(states(), True), strict=True):
        assert_allclose(theirs, mine, rtol=1e-3)


def test_bootstrapped_values_of_more_states_than_exact_gptd_holds():
    data = sampled(LINE, 5000)
    v = GPTD(n_restarts=0).fit(data)
    assert v.bootstrap_ and v.method_ == "sparse"
    truth = LINE.value(states())
    mean, std = v.predict(states(), return_std=True)
    assert rmse(mean, truth) < 0.3 * truth.std()
    assert np.sqrt(np.mean(((truth - mean) / std) ** 2)) < 2.5


@both_methods
@pytest.mark.parametrize("terminated", [True, False])
def test_bootstrapped_values_of_one_transition(options, terminated):
    episode = dict(observations=[[0.0], [1.0]], rewards=[2.0], terminated=terminated)
    v = quick(**options).fit(Trajectories.from_episodes([episode], gamma=0.9))
    mean, std = v.predict([[0.0], [1.0], [50.0]], return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()
    assert 0.0 <= mean[0] <= 20.0


@both_methods
def test_bootstrapped_values_of_regression_targets(options):
    """V(x) = y, nothing follows: plain regression."""
    x = np.random.default_rng(0).uniform(-2.0, 2.0, size=(300, 1))
    y = np.sin(x[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=300)
    v = quick(**options).fit(Trajectories.from_values(x, y))
    assert rmse(v.predict(states()), np.sin(states()[:, 0])) < 0.1


@both_methods
def test_bootstrapped_values_of_rewards_that_are_all_zero(options):
    data = sampled(WALK, 200)
    silent = Trajectories(data.states, 0.0 * data.rewards, data.discounts, data.lengths, data.terminated)
    assert_allclose(quick(**options).fit(silent).predict(WALK.cells), 0.0, atol=1e-6)


def test_bootstrapped_values_without_discount():
    ruin = Walk(n_cells=5, gamma=1.0, prize=0.0)
    v = quick().fit(sampled(ruin, 20_000))
    truth = ruin.value(ruin.cells)
    assert_allclose(v.predict(ruin.cells), truth, atol=0.15 * np.abs(truth).max())


def test_bootstrapped_values_beside_a_prior_mean_are_those_of_what_is_left():
    """r − (m(x) − γm(x')), m = 0 at terminal states, by a loop."""
    data = sampled(WALK, 300)

    def mean(x: np.ndarray) -> np.ndarray:
        return 2.0 * np.sin(x[:, 0])

    left = data.rewards.copy()
    m = mean(data.states)
    m[data.last[data.terminated]] = 0.0
    for i in range(len(data)):
        if data.has_transition[i]:
            left[i] -= m[i] - data.discounts[i] * m[i + 1]
    rest = Trajectories(data.states, left, data.discounts, data.lengths, data.terminated)
    x = WALK.cells
    v, w = quick(mean=mean).fit(data), quick().fit(rest)
    assert_allclose(v.predict(x), mean(x) + w.predict(x), rtol=1e-8)
    assert_allclose(v.confidence_interval(x), mean(x) + np.array(w.confidence_interval(x)), rtol=1e-8)


def test_bootstrapped_values_are_better_beside_the_truth_as_prior_mean():
    errors = []
    for seed in range(4):
        data = sampled(WALK, 300, seed)
        errors.append(
            [rmse(quick(mean=m).fit(data).predict(WALK.cells), WALK.value(WALK.cells)) for m in (WALK.value, None)]
        )
    beside, alone = np.mean(errors, axis=0)
    assert beside < 0.7 * alone


def test_bootstrapped_values_with_a_kernel_object():
    kernel = Matern52(ARD([1.0]), fixed=("a1",)) + Constant(1.0)
    v = quick(kernel).fit(sampled(LINE, 300))
    assert v.bootstrap_ and v.relevances_ == pytest.approx([1.0])
    held = paper_kernel(Isotropic(0.8, 1), 20.0, 60.0, fixed=("v0", "b", "h"))
    assert_allclose(quick(held, noise_variance=2.0).fit(sampled(LINE, 300)).theta_, np.log([20.0, 60.0, 2.0, 0.8]))


@pytest.mark.parametrize("kernel", ["isotropic", "factor", "auto"])
def test_bootstrapped_values_with_every_variant(kernel):
    v = quick(kernel, max_rank=1).fit(sampled(Saddle(), 400))
    assert v.bootstrap_ and len(v.comparison_) == (3 if kernel == "auto" else 1)
    assert v.comparison_.best.objective == min(c.objective for c in v.comparison_)


# -------------------------------------------------------------------------------------- evidence


@both_methods
def test_bootstrapped_log_marginal_likelihood_and_its_gradient(options):
    v = quick(**options).fit(sampled(WALK, 300))
    value, gradient = v.log_marginal_likelihood(eval_gradient=True)
    assert value == pytest.approx(v.log_marginal_likelihood_, rel=1e-10)
    assert v.log_marginal_likelihood() == pytest.approx(value, rel=1e-12)
    assert value == pytest.approx(-(v.complexity_ + v.data_fit_ + 0.5 * v.evidence_.n_rows * np.log(2 * np.pi)))
    theta = v.theta_ + 0.1
    _, slope = v.log_marginal_likelihood(theta, eval_gradient=True)
    assert_allclose(slope, central_differences(v.log_marginal_likelihood, theta, h=1e-4), rtol=1e-4, atol=1e-5)
    assert np.abs(slope).max() > 10 * np.abs(gradient[[0, 1, 3]]).max() or np.abs(gradient).max() < 1.0
    with pytest.raises(ValueError, match="theta must have shape"):
        v.log_marginal_likelihood(theta[:-1])


# -------------------------------------------------------------------------------------- further data


@both_methods
def test_bootstrapped_partial_fit_adds_up(options):
    first, second, third = (sampled(LINE, n, seed) for seed, n in enumerate((300, 100, 60)))
    v = quick(**options).fit(first)
    theta = v.theta_
    assert v.partial_fit(second) is v
    v.partial_fit(iter(in_shards(third, 2)))
    assert v.bootstrap_
    assert_array_equal(v.theta_, theta)
    if options["method"] == "sparse":
        assert_posterior(v, by_hand(v, first, second, third), states())
    else:
        assert_posterior(v, by_hand(v, first + second + third), states())
        assert len(v.data_) == len(first) + len(second) + len(third)


def test_bootstrapped_partial_fit_of_nothing_fits():
    data = sampled(LINE, 200)
    assert_same_answers(quick().fit(data), quick().partial_fit(data), states())


@both_methods
def test_bootstrapped_condition_keeps_the_model(options):
    data, other = sampled(LINE, 300), sampled(LINE, 40, seed=1)
    v = quick(**options).fit(data)
    same, new = v.condition(data), v.condition(other)
    assert_same_answers(v, same, states(), rtol=1e-9)
    assert new.bootstrap_ and new.method_ == v.method_, "few data, but of a model that bootstraps"
    assert_array_equal(new.theta_, v.theta_)
    assert_posterior(new, by_hand(new, other), states())


@pytest.mark.xfail(
    reason="s² is estimated anew from the few TD errors alone, whose variance the model knows: errors of up to 11 stds"
)
def test_bootstrapped_condition_on_few_data_is_not_overconfident():
    """The model knows the noise from 300 transitions; conditioned on 40 others it must not claim to know V better."""
    v = quick().fit(sampled(LINE, 300))
    truth, errors = LINE.value(states()), []
    for seed in range(1, 9):
        mean, std = v.condition(sampled(LINE, 40, seed)).predict(states(), return_std=True)
        errors.append(np.sqrt(np.mean(((truth - mean) / std) ** 2)))
    assert max(errors) < 3.0


def test_bootstrapped_condition_with_inducing_points():
    v = quick(method="exact").fit(sampled(LINE, 300))
    new = v.condition(sampled(LINE, 200, seed=1), inducing_points=7)
    assert new.bootstrap_ and new.method_ == "sparse"
    assert new.inducing_points_ is not None and len(new.inducing_points_) <= 7


@pytest.fixture(scope="module")
def beside_noise() -> Trajectories:
    """The walk, and an input that is drawn anew each step."""
    data = sampled(WALK, 500)
    inputs = np.column_stack([np.random.default_rng(1).normal(size=len(data)), data.states])
    return Trajectories(inputs, data.rewards, data.discounts, data.lengths, data.terminated)


@both_methods
def test_bootstrapped_prune(options, beside_noise):
    v = quick(**options).fit(beside_noise)
    pruned = v.prune(0.1)
    assert_array_equal(pruned.inputs_, [1])
    assert_array_equal(pruned.pruning_.removed, [0])
    assert pruned.bootstrap_ and pruned.method_ == v.method_
    assert_array_equal(pruned.predict([[0.5, 3.0]]), pruned.predict([[-8.0, 3.0]]))
    assert_posterior(pruned, by_hand(pruned, beside_noise), np.column_stack([WALK.cells, WALK.cells]))
    narrow = quick(**options).fit(beside_noise.take_inputs([1]))
    x = np.column_stack([np.zeros(9), WALK.cells])
    assert_allclose(pruned.predict(x), narrow.predict(WALK.cells), rtol=1e-5)
    more = sampled(WALK, 60, seed=5)
    wide = Trajectories(
        np.column_stack([more.states, more.states]), more.rewards, more.discounts, more.lengths, more.terminated
    )
    assert pruned.partial_fit(wide).bootstrap_


# -------------------------------------------------------------------------------------- files, copies, other processes


@pytest.mark.parametrize("name", ["exact", "sparse", "pruned", "level"])
def test_bootstrapped_model_there_and_back(name, beside_noise, tmp_path):
    options: dict[str, Any] = METHODS["exact" if name == "exact" else "sparse"]
    v = quick(mean=-3.0 if name == "level" else None, **options).fit(beside_noise)
    v = v.prune(0.1) if name == "pruned" else v
    w = gptd_rl.load(v.save(tmp_path / "v.gptd"))
    x = beside_noise.states[::9]
    assert_same_answers(v, w, x, rtol=1e-12)
    assert (w.bootstrap_, w.method_, w.exact_, w.thinning_) == (True, v.method_, v.exact_, v.thinning_)
    assert w.get_params() == v.get_params()
    assert_array_equal(w.sample(x, 3, seed=0), w.sample(x, 3, seed=0))
    again = gptd_rl.load(w.save(tmp_path / "w.gptd"))
    assert_same_answers(v, again, x, rtol=1e-12)
    if name == "exact":
        assert_allclose(w.log_marginal_likelihood(), v.log_marginal_likelihood_, rtol=1e-10)
        assert_same_answers(w.partial_fit(beside_noise), v.partial_fit(beside_noise), x, rtol=1e-9)
    else:
        with pytest.raises(ValueError, match="loaded from a file has no data"):
            w.partial_fit(beside_noise)


@both_methods
def test_bootstrapped_model_pickles_and_clones(options):
    data = sampled(LINE, 200)
    v = quick(**options).fit(data)
    assert_same_answers(v, pickle.loads(pickle.dumps(v)), states())
    copy = clone(v)
    assert copy.bootstrap is True
    with pytest.raises(NotFittedError):
        copy.predict(states())
    assert_same_answers(v, copy.fit(data), states())


def test_bootstrapped_warm_start():
    data, more = sampled(WALK, 300), sampled(WALK, 600, seed=1)
    cold, warm = quick().fit(more), quick(warm_start=True).fit(data).fit(more)
    assert warm.comparison_.best.objective < cold.comparison_.best.objective + 0.01
    assert_allclose(warm.predict(WALK.cells), cold.predict(WALK.cells), atol=0.05 * cold.predict(WALK.cells).std())


def test_bootstrapped_fit_is_reproducible_and_the_same_in_threads():
    data = sampled(Garnet(n_points=30, seed=1), 300)
    first = quick(n_restarts=2).fit(data)
    for other in (quick(n_restarts=2), quick(n_restarts=2, n_jobs=2)):
        assert_same_answers(first, other.fit(data), data.states[::7])


def test_bootstrapped_fit_of_shards_and_processes():
    data = sampled(LINE, 600)
    whole = quick(method="sparse", subset_size=15).fit(data)
    shards = quick(method="sparse", subset_size=15).fit(in_shards(data, 4))
    assert_same_answers(whole, shards, states(), rtol=1e-8)
    with ProcessPoolExecutor(1) as executor:
        remote = quick(method="sparse", subset_size=15).fit(in_shards(data, 4), executor=executor)
        assert_same_answers(whole, remote, states(), rtol=1e-8)
        more = sampled(LINE, 100, seed=1)
        remote.partial_fit(in_shards(more, 2), executor=executor)
    assert_same_answers(whole.partial_fit(more), remote, states(), rtol=1e-8)


def test_bootstrapped_fit_of_files(tmp_path):
    data = sampled(LINE, 300)
    paths = [part.save(tmp_path / f"{i}.npz") for i, part in enumerate(in_shards(data))]
    assert_same_answers(quick().fit(data), quick().fit(paths), states(), rtol=1e-8)


# -------------------------------------------------------------------------------------- predictions


@both_methods
def test_bootstrapped_predictions_are_batch_invariant(options):
    v = quick(**options).fit(sampled(LINE, 200))
    x = np.linspace(-3.0, 3.0, 700)[:, None]
    mean, std = v.predict(x, return_std=True)
    for i in (0, 300, 699):
        one = v.predict(x[[i]], return_std=True)
        assert_allclose(np.ravel(one), [mean[i], std[i]], rtol=1e-9)
    cov = v.predict(x[:50], return_cov=True)[1]
    assert_allclose(np.sqrt(np.diag(cov)), std[:50], rtol=1e-7)
    lower, upper = v.confidence_interval(x, 0.95)
    assert_allclose(upper - lower, 2 * 1.959964 * std, rtol=1e-6)


@both_methods
def test_bootstrapped_samples_have_the_moments_of_predictions(options):
    v = quick(**options).fit(sampled(LINE, 200))
    x, n = states(4), 4000
    mean, cov = v.predict(x, return_cov=True)
    drawn = v.sample(x, n, seed=0)
    assert (np.abs(drawn.mean(axis=0) - mean) < 5.0 * np.sqrt(np.diag(cov) / n)).all()
    assert_allclose(drawn.var(axis=0), np.diag(cov), rtol=0.15)


# -------------------------------------------------------------------------------------- Ctrl-C


def test_bootstrapped_fit_interrupted_keeps_what_it_found(monkeypatch):
    """In the second search, which knows the noise: the model of the first is kept, and the user is told."""
    run = moments._Descent.run
    results: list[Any] = []

    def interrupted(self: Any, *args: Any) -> Any:
        if results:
            raise KeyboardInterrupt
        results.append(run(self, *args))
        return results[0]

    monkeypatch.setattr(moments._Descent, "run", interrupted)
    data = sampled(LINE, 200)
    v = quick()
    with pytest.warns(InterruptedFitWarning):
        v.fit(data)
    assert_array_equal(v.theta_, results[0].model.theta)
    assert_posterior(v, by_hand(v, data), states())
