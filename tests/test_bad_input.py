"""Bad input gets an error that says what was expected, what came and what to do; odd data get an answer."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gptd_rl.estimators.gptd
from gptd_rl import ARD, GPTD, GPTDQ, DynamicsModel, FactorAnalysis, Isotropic, Trajectories
from gptd_rl.exceptions import NotFittedError
from gptd_rl.kernels import ActionDelta, Constant, Matern52, paper_kernel
from gptd_rl.memory import available_bytes
from tests.helpers import MIXES, sample
from tests.mdps import Gridworld, Spiral

GOOD = sample(MIXES["mixed"], seed=1, n_dims=2)
OBJECTIVES = ("auto", "marginal_likelihood", "thinned", "loo", "leave_one_episode_out")


def episodes(states, rewards, terminated=True, gamma=0.9) -> Trajectories:
    return Trajectories.from_episodes([dict(observations=states, rewards=rewards, terminated=terminated)], gamma=gamma)


@pytest.fixture(scope="module")
def fitted() -> GPTD:
    return GPTD("isotropic", objective="marginal_likelihood", n_restarts=0).fit(GOOD)


# -------------------------------------------------------------------------------------- arguments of the constructor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(kernel="rbf"), r"kernel must be one of 'isotropic', 'ard', 'factor', 'auto' or a kernel object.*'rbf'"),
        (dict(kernel=3), r"kernel must be one of .*got 3"),
        (dict(kernel=ARD([1.0, 1.0])), r"kernel must be one of"),
        (dict(noise="gaussian"), r"noise must be one of 'stochastic', 'deterministic'; got 'gaussian'"),
        (dict(objective="evidence"), r"objective must be one of 'auto', 'marginal_likelihood', .*; got 'evidence'"),
        (dict(method="magic"), r"method must be one of 'auto', 'exact'.*; got 'magic'"),
        (dict(noise_variance=0.0), r"noise_variance must be positive; got 0"),
        (dict(noise_variance=-1.0), r"noise_variance must be positive; got -1"),
        (dict(noise_variance=float("nan")), r"noise_variance must be positive; got nan"),
        (dict(noise_floor=0.0), r"noise_floor must be positive; got 0"),
        (dict(noise_floor=float("inf")), r"noise_floor must be positive; got inf"),
        (dict(n_restarts=-1), r"n_restarts must be 0 or more; got -1"),
        (dict(thinning=3), r"thinning=3 needs objective='thinned'"),
        (dict(objective="thinned", thinning=0), r"thinning=0 needs .* 1 or more"),
        (dict(objective="thinned", thinning=2.5), r"thinning=2.5 needs .*whole number"),
        (dict(n_jobs=0), r"^n_jobs must be None, a positive whole number, or −1 for all cores; got 0\.$"),
        (dict(n_jobs=1.5), r"^n_jobs must be .*; got 1\.5\.$"),
        (dict(n_jobs=True), r"^n_jobs must be .*; got True\.$"),
        (dict(kernel=Matern52(ARD([1.0, 1.0, 1.0, 1.0])) + Constant()), r"^the kernel has 4 dimensions; got states of"),
        (
            dict(kernel=paper_kernel(ARD(np.ones(2))) * ActionDelta(2)),
            r"^the kernel reads discrete actions, .*GPTDQ\.$",
        ),
        (dict(kernel="factor", max_rank=0), r"max_rank must be .*got 0"),
        (dict(kernel="factor", max_rank=-1), r"max_rank must be .*got -1"),
    ],
)
def test_arguments_are_checked_by_fit(options, message):
    with pytest.raises(ValueError, match=message):
        GPTD(**options).fit(GOOD)


@pytest.mark.parametrize("metric", [Isotropic(1.0, 3), ARD(np.ones(3)), FactorAnalysis(np.ones(3), np.ones(3))])
def test_a_kernel_of_another_width(metric):
    with pytest.raises(ValueError, match=r"kernel has 3 dimensions; got states of width 2"):
        GPTD(paper_kernel(metric)).fit(GOOD)


def test_an_unknown_argument_is_not_swallowed():
    with pytest.raises(TypeError, match="lengthscale"):
        GPTD(lengthscale=1.0)  # type: ignore[call-arg]


def test_a_failed_fit_leaves_the_last_one_in_place(fitted):
    v = GPTD("isotropic", objective="marginal_likelihood", n_restarts=0).fit(GOOD)
    before = v.predict([[0.0, 0.0]])
    v.set_params(noise="gaussian")
    with pytest.raises(ValueError, match="noise"):
        v.fit(GOOD)
    np.testing.assert_array_equal(v.predict([[0.0, 0.0]]), before)


# -------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("data", [np.ones((5, 2)), None, [dict(observations=[[0.0], [1.0]], rewards=[1.0])]])
def test_fit_wants_trajectories(data):
    with pytest.raises(TypeError, match=r"fit expects Trajectories, .* got \w+: make Trajectories by .*from_episodes"):
        GPTD().fit(data)


def test_gamma_of_one_needs_an_end():
    states, rewards = np.arange(5.0), -np.ones(4)
    with pytest.raises(ValueError, match=r"gamma is 1 and no episode terminates.*gamma < 1"):
        GPTD().fit(episodes(states, rewards, terminated=False, gamma=1.0))
    v = GPTD().fit(episodes(states, rewards, terminated=True, gamma=1.0))
    assert np.isfinite(v.predict([[2.0]])).all()
    both = episodes(states, rewards, True, 1.0) + episodes(states, rewards, False, 1.0)
    assert np.isfinite(GPTD().fit(both).predict([[2.0]])).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_too_many_states_for_memory(objective, monkeypatch):
    data = sample([(20, False)] * 5, n_dims=2)
    monkeypatch.setattr(gptd_rl.estimators.engines, "available_bytes", lambda: 8 * 100**2)
    with pytest.raises(ValueError, match=r"exact GPTD over 100 distinct states needs .*GiB.*sparse"):
        GPTD("isotropic", objective=objective, bootstrap=False, n_restarts=0, method="exact").fit(data)


def test_memory_is_counted_by_distinct_states(monkeypatch):
    data = Gridworld().sample(300, np.random.default_rng(0))
    monkeypatch.setattr(gptd_rl.estimators.engines, "available_bytes", lambda: 8 * 150**2)
    v = GPTD("isotropic", objective="marginal_likelihood", n_restarts=0, method="exact").fit(data)
    assert np.isfinite(v.predict([[3.0, 3.0]])).all()
    with pytest.raises(ValueError, match="exact GPTD over"):  # each visit is left out by itself
        GPTD("isotropic", objective="loo", n_restarts=0, method="exact").fit(data)


def test_memory_of_tied_states_is_not_underestimated(monkeypatch):
    """Truncated segments with a few repeated states are held visit by visit, so visits are what counts."""
    data = sample([(100, False)], n_dims=2)
    states = np.array(data.states)
    states[60:] = states[:40]
    data = Trajectories(states, data.rewards, data.discounts, data.lengths, data.terminated)
    monkeypatch.setattr(gptd_rl.estimators.engines, "available_bytes", lambda: 8 * 70**2)
    with pytest.raises(ValueError, match="exact GPTD over"):
        GPTD("isotropic", objective="marginal_likelihood", n_restarts=0, method="exact").fit(data)


def test_short_memory_makes_auto_sparse(monkeypatch):
    data = sample([(20, False)] * 5, n_dims=2)
    for module in (gptd_rl.estimators.engines, gptd_rl.estimators.sparse_engine):
        monkeypatch.setattr(module, "available_bytes", lambda: 8 * 100**2)
    v = GPTD("isotropic", objective="marginal_likelihood", n_restarts=0).fit(data)
    assert v.method_ == "sparse" and v.inducing_points_ is not None and np.isfinite(v.predict(data.states)).all()


def test_an_unknown_amount_of_memory_is_enough(monkeypatch):
    monkeypatch.setattr(gptd_rl.estimators.engines, "available_bytes", lambda: None)
    v = GPTD("isotropic", objective="marginal_likelihood", n_restarts=0).fit(GOOD)
    assert v.method_ == "exact"


def test_available_bytes_of_this_machine():
    free = available_bytes()
    if Path("/proc/meminfo").exists():
        assert free is not None and 2**20 < free < 2**50
    else:
        assert free is None


def test_available_bytes_is_unknown_without_meminfo(monkeypatch):
    def nothing(*arguments):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", nothing)
    assert available_bytes() is None


@pytest.mark.parametrize("size", [1e150, 1e300])
@pytest.mark.parametrize("what", ["rewards", "observations"])
def test_numbers_too_large_to_square_are_refused_in_one_line(what, size):
    episode = dict(observations=np.arange(4.0)[:, None], rewards=np.arange(3.0), terminated=True)
    with pytest.raises(ValueError, match=rf"^episode 0: {what} must lie within ±1e\+70; .* Use larger units\.$"):
        Trajectories.from_episodes([episode | {what: size * episode[what]}], gamma=0.9)


def test_predict_refuses_states_too_large_to_square(fitted):
    with pytest.raises(ValueError, match=r"^states must lie within ±1e\+70; states\[0, 0\] is 1e\+300\."):
        fitted.predict([[1e300, 0.0]])


@pytest.mark.parametrize("size", [1e-160, 1e-300])
@pytest.mark.parametrize("what", ["rewards", "observations"])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_numbers_too_small_to_square_count_as_equal(what, size, bootstrap):
    rng = np.random.default_rng(0)
    episode = dict(observations=rng.normal(size=(30, 1)), rewards=rng.normal(size=29), terminated=True)
    data = Trajectories.from_episodes([episode | {what: size * episode[what]}], gamma=0.9)
    v = GPTD(bootstrap=bootstrap, n_restarts=0).fit(data)
    assert np.isfinite(v.predict(data.states)).all()


@pytest.mark.parametrize("policy", [None, "greedy"])
@pytest.mark.parametrize("largest", [10**6, 2**53])
def test_action_numbers_far_beyond_the_actions_that_occur(largest, policy):
    actions = np.where(np.arange(len(GOOD)) % 2, largest, 0)
    actions[GOOD.last] = 0
    data = Trajectories(GOOD.states, GOOD.rewards, GOOD.discounts, GOOD.lengths, GOOD.terminated, actions)
    with pytest.raises(ValueError, match=r"^there can be 4096 discrete actions at most; got \d+, .*Number those that"):
        GPTDQ().fit(data, policy=policy)


@pytest.mark.parametrize("action", [1e300, np.inf, 2**62, 2.0**63, np.uint64(2**63)])
def test_action_numbers_too_large_for_integers(action):
    actions = np.full(len(GOOD), action)
    actions[GOOD.last] = 0
    data = Trajectories(GOOD.states, GOOD.rewards, GOOD.discounts, GOOD.lengths, GOOD.terminated, actions)
    with pytest.raises(ValueError, match=r"^discrete actions must be numbered 0, 1, 2, …; actions\[0\] is"):
        GPTDQ(n_actions=2).fit(data)


@pytest.mark.parametrize("gamma", [1j, np.ma.masked, 10**400, np.datetime64("2020-01-01"), "a"])
def test_from_episodes_refuses_discounts_that_are_no_numbers(gamma):
    episode = dict(observations=np.zeros((3, 1)), rewards=np.zeros(2))
    with pytest.raises(TypeError, match=r"^episode 0: gamma must be numbers"):
        Trajectories.from_episodes([episode], gamma=gamma)


@pytest.mark.parametrize("thinning", [2**31, np.uint8(3)])
def test_thinning_beyond_all_segments_leaves_their_first_states(thinning):
    v = GPTD("isotropic", objective="thinned", thinning=thinning, n_restarts=0).fit(GOOD)
    assert v.thinning_ == thinning and np.isfinite(v.predict(GOOD.states)).all()


def test_thin_refuses_numbers_that_no_array_holds():
    with pytest.raises(ValueError, match=r"^every must be 1 or more"):
        GOOD.thin(2**64)


@pytest.mark.parametrize("amount", [0, -1, 2.5, True, np.uint64(2**64 - 1), None])
def test_cut_refuses_other_amounts(amount):
    with pytest.raises(ValueError, match=r"^max_transitions must be "):
        GOOD.cut(amount)


@pytest.mark.parametrize("seed", [-1, 0.5, "a\nb", object()])
def test_sample_refuses_seeds_that_are_none(seed, fitted):
    with pytest.raises((TypeError, ValueError), match=r"^a seed must be a whole number of at least 0; got .+\.$"):
        fitted.sample(GOOD.states, 1, seed=seed)


def test_score_refuses_no_states(fitted):
    with pytest.raises(ValueError, match=r"^R² needs one or more states; got none\.$"):
        fitted.score(np.zeros((0, GOOD.states.shape[1])), [])


def test_actions_that_are_one_text_get_one_line():
    text: Any = np.array("a\nb")
    episode = dict(observations=np.zeros((3, 1)), rewards=np.zeros(2), actions=text)
    with pytest.raises(ValueError, match=r"^episode 0: expected 2 actions, one per reward; got a b\.$"):
        Trajectories.from_episodes([episode], gamma=0.9)
    with pytest.raises(ValueError, match=r"^actions must have one entry per state \(\d+\); got a b\.$"):
        Trajectories(GOOD.states, GOOD.rewards, GOOD.discounts, GOOD.lengths, GOOD.terminated, text)


def test_mean_refuses_integers_that_no_float_holds():
    with pytest.raises(ValueError, match=r"^mean must return numbers: int too large"):
        GPTD(mean=lambda x: [10**400] * len(x)).fit(GOOD)


def test_messages_about_arrays_stay_on_one_line():
    matrix: Any = np.zeros((2, 2))
    for refused in (lambda: GPTD(noise_variance=matrix).fit(GOOD), lambda: GPTD(subset_size=matrix).fit(GOOD)):
        with pytest.raises(ValueError, match="must be") as info:
            refused()
        assert "\n" not in str(info.value)


@pytest.mark.parametrize("threshold", [np.nan, -1.0, "0.1", None])
def test_prune_refuses_thresholds_that_are_no_share(threshold, fitted):
    with pytest.raises(ValueError, match=r"^threshold: expected a finite number >= 0, got"):
        fitted.prune(threshold)


@pytest.mark.parametrize("name", ["noise_variance", "noise_floor"])
def test_fit_refuses_integers_that_no_float_holds(name):
    with pytest.raises(ValueError, match=f"^{name} must be positive"):
        GPTD(**{name: 10**400}).fit(GOOD)  # type: ignore[arg-type]


@pytest.mark.parametrize("lengths", [[2.5, 1.5], [np.nan], [1e300]])
def test_lengths_are_whole_numbers(lengths):
    flags = [True] * len(lengths)
    with pytest.raises(ValueError, match=r"^lengths must be whole numbers; lengths\[0\] is"):
        Trajectories(np.zeros((4, 1)), np.zeros(4), np.zeros(4), lengths, flags)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [np.ma.masked_all(5), np.full(5, 1j), np.full(5, "2020-01-01", dtype="datetime64[D]")])
def test_actions_that_numbers_would_change_are_refused(bad):
    episode = dict(observations=np.zeros((6, 1)), rewards=np.zeros(5), actions=bad)
    with pytest.raises(TypeError, match=r"^episode 0: actions must be numbers; got (a masked|complex|datetime)"):
        Trajectories.from_episodes([episode], gamma=0.9)
    with pytest.raises(TypeError, match=r"^actions must be numbers; got"):
        Trajectories.from_values(np.zeros((5, 1)), np.zeros(5), bad)
    with pytest.raises(TypeError, match=r"^actions must be numbers; got"):
        Trajectories(np.zeros((5, 1)), np.zeros(5), np.zeros(5), [5], [True], bad)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------- kernel objects


def test_a_name_of_several_parameters_is_refused():
    kernel = Matern52(ARD([1.0, 1.0])) + Matern52(ARD([0.1, 0.1])) + Constant()
    with pytest.raises(ValueError, match=r"^'v0' is a parameter of several kernels: name one of k1\.v0, k2\.v0\.$"):
        kernel.fix("v0")
    held = kernel.fix("k2.v0", "k1.a2")
    assert [n for n, free in zip(held.parameter_names, held.is_free, strict=True) if not free] == ["k2.v0", "k1.a2"]


def test_a_fixed_parameter_of_a_composed_kernel_stays(fitted):
    kernel = Matern52(ARD(np.ones(fitted.n_dims_))) + Matern52(Isotropic(0.1, fitted.n_dims_), 0.7) + Constant()
    v = GPTD(kernel.fix("k2.v0"), objective="marginal_likelihood", n_restarts=0).fit(GOOD)
    place = v.parameter_names_.index("k2.v0")
    assert v.theta_[place] == pytest.approx(np.log(0.7))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("matern", r"^kernel must be one of 'isotropic', .*; got 'matern'\.$"),
        (Matern52(ARD(np.ones(7))), r"^the kernel has 7 dimensions; got states of width \d\.$"),
        (paper_kernel(ARD(np.ones(2))) * ActionDelta(2), r"^the kernel knows 2 actions; got 3\.$"),
    ],
    ids=["name", "width", "actions"],
)
def test_kernels_of_q_are_checked_by_fit(kernel, message):
    actions = np.arange(len(GOOD)) % 3
    actions[GOOD.last] = 0
    data = Trajectories(GOOD.states, GOOD.rewards, GOOD.discounts, GOOD.lengths, GOOD.terminated, actions)
    with pytest.raises(ValueError, match=message):
        GPTDQ(kernel).fit(data)


# -------------------------------------------------------------------------------------- asking


@pytest.mark.parametrize(
    "ask",
    [
        lambda v: v.predict([[0.0, 0.0]]),
        lambda v: v.confidence_interval([[0.0, 0.0]]),
        lambda v: v.log_marginal_likelihood(),
        lambda v: v.prune(),
        lambda v: v.save("nowhere"),
    ],
    ids=["predict", "confidence_interval", "log_marginal_likelihood", "prune", "save"],
)
def test_asking_before_fit(ask):
    with pytest.raises(NotFittedError, match=r"not been fitted yet: call fit\(data\) first"):
        ask(GPTD())
    assert issubclass(NotFittedError, ValueError)


@pytest.mark.parametrize("ask", ["predict", "confidence_interval"])
@pytest.mark.parametrize(
    ("states", "error", "message"),
    [
        ([[1.0, 2.0, 3.0]], ValueError, r"states must have 2 columns, as in fit; got shape \(1, 3\)"),
        ([1.0, 2.0], ValueError, r"2 columns.*A single state is \[\[x1, x2, …\]\]"),
        (np.zeros((2, 2, 2)), ValueError, r"shape \(n, n_dims\); got \(2, 2, 2\)"),
        ([[1.0, np.nan]], ValueError, r"states must be finite; states\[0, 1\] is nan"),
        ([[1.0, 0.0], [np.inf, 0.0]], ValueError, r"states must be finite; states\[1, 0\] is inf"),
        ([["a", "b"]], TypeError, r"states must be numbers"),
        ([[1.0, 2.0], [3.0]], TypeError, r"states must be numbers"),
        (5.0, ValueError, r"shape \(n, n_dims\)"),
    ],
    ids=["wide", "flat", "cube", "nan", "inf", "text", "ragged", "scalar"],
)
def test_states_are_checked(ask, states, error, message, fitted):
    with pytest.raises(error, match=message):
        getattr(fitted, ask)(states)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95, float("nan")])
def test_levels_lie_between_0_and_1(level, fitted):
    with pytest.raises(ValueError, match="level must lie between 0 and 1"):
        fitted.confidence_interval([[0.0, 0.0]], level=level)


def test_theta_has_a_length(fitted):
    with pytest.raises(ValueError, match=r"theta must have shape \(4,\).*'v0'.*; got \(2,\)"):
        fitted.log_marginal_likelihood([0.0, 0.0])


@pytest.mark.parametrize("log_variance", [-np.inf, -1e4, np.nan, np.inf, 1e4])
def test_theta_has_a_noise_variance(log_variance, fitted):
    theta = np.array(fitted.theta_)
    theta[fitted.parameter_names_.index("noise")] = log_variance
    with pytest.raises(ValueError, match=r"^theta must hold the logarithm of a positive noise variance; got \["):
        fitted.log_marginal_likelihood(theta)


def test_no_states_get_no_interval():
    """In a process of its own: a LAPACK routine that is handed an empty matrix can bring the interpreter down."""
    code = """
import numpy as np
from gptd_rl import GPTD, Trajectories
episode = dict(observations=np.arange(200.0), rewards=-np.ones(199), terminated=True)
v = GPTD("isotropic", objective="marginal_likelihood", n_restarts=0)
v.fit(Trajectories.from_episodes([episode], gamma=0.9))
for _ in range(300):
    lower, upper = v.confidence_interval(np.zeros((0, 1)))
    assert lower.shape == upper.shape == (0,)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -------------------------------------------------------------------------------------- data that say little


def walk(n: int = 6) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, 2))


DEGENERATE = {
    "constant rewards": lambda end: episodes(walk(), np.full(5, -1.0), end),
    "zero rewards": lambda end: episodes(walk(), np.zeros(5), end),
    "constant column": lambda end: episodes(walk() * [1.0, 0.0] + [0.0, 3.0], np.arange(5.0), end),
    "constant zero column": lambda end: episodes(walk() * [1.0, 0.0], np.arange(5.0), end),
    "all columns constant": lambda end: episodes(np.ones((6, 2)), np.arange(5.0), end),
    "duplicated columns": lambda end: episodes(walk()[:, [0, 0]], np.arange(5.0), end),
    "one transition": lambda end: episodes(walk(2), [1.0], end),
    "one transition, no reward": lambda end: episodes(walk(2), [0.0], end),
    "two identical states": lambda end: episodes(np.ones((2, 2)), [1.0], end),
    "gamma of 0": lambda end: episodes(walk(), np.arange(5.0), end, gamma=0.0),
    "huge inputs": lambda end: episodes(1e12 * walk(), np.arange(5.0), end),
    "tiny inputs": lambda end: episodes(1e-12 * walk(), np.arange(5.0), end),
    "huge rewards": lambda end: episodes(walk(), 1e12 * np.arange(5.0), end),
    "tiny rewards": lambda end: episodes(walk(), 1e-12 * np.arange(5.0), end),
    "one outlier": lambda end: episodes(walk(), [0.0, 0.0, 1e9, 0.0, 0.0], end),
    "far from the origin": lambda end: episodes(walk() + 1e9, np.arange(5.0), end),
}


@pytest.mark.parametrize("terminated", [True, False], ids=["terminated", "truncated"])
@pytest.mark.parametrize("name", DEGENERATE)
def test_data_that_say_little_still_get_an_answer(name, terminated):
    data = DEGENERATE[name](terminated)
    for kernel, noise in (("auto", "stochastic"), ("isotropic", "deterministic")):
        v = GPTD(kernel, noise=noise, n_restarts=0).fit(data)  # type: ignore[arg-type]
        for states in (data.states, data.states[:1] + 1e3 * (1.0 + np.abs(data.states[0]))):
            mean, std = v.predict(states, return_std=True)
            lower, upper = v.confidence_interval(states)
            assert np.isfinite(mean).all()
            assert np.isfinite(std).all() and (std > 0).all()
            assert np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()
        assert np.isfinite(v.log_marginal_likelihood_)
        assert np.isfinite(v.relevances_).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["zero rewards", "all columns constant", "one transition", "two identical states"])
def test_every_objective_copes_with_data_that_say_little(objective, name):
    for terminated in (True, False):
        v = GPTD("ard", objective=objective, n_restarts=0).fit(DEGENERATE[name](terminated))
        mean, std = v.predict([[0.0, 0.0]], return_std=True)
        assert np.isfinite(mean).all() and np.isfinite(std).all()


def test_zero_rewards_mean_zero_values():
    v = GPTD().fit(DEGENERATE["zero rewards"](True))
    np.testing.assert_allclose(v.predict(walk()), 0.0, atol=1e-6)


def test_constant_rewards_for_ever_are_worth_their_sum():
    data = episodes(walk(40), np.full(39, 2.0), terminated=False, gamma=0.9)
    np.testing.assert_allclose(GPTD("isotropic").fit(data).predict(data.states), 20.0, rtol=0.01)


def test_a_duplicated_column_changes_no_prediction():
    data = Spiral().sample(60, np.random.default_rng(0)).take_inputs([0, 1])
    twice = data.take_inputs([0, 1, 0])
    options: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
    once, doubled = GPTD("ard", **options).fit(data), GPTD("ard", **options).fit(twice)
    mean = once.predict(data.states)
    np.testing.assert_allclose(doubled.predict(twice.states), mean, atol=0.01 * mean.std())
    np.testing.assert_allclose(doubled.relevances_[0] + doubled.relevances_[2], once.relevances_[0], rtol=0.1)


def test_a_constant_column_changes_nothing():
    data = Spiral().sample(60, np.random.default_rng(0))
    wide = Trajectories(
        np.column_stack([data.states, np.full(len(data), 7.0)]),
        data.rewards,
        data.discounts,
        data.lengths,
        data.terminated,
    )
    options: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)
    narrow, padded = GPTD("ard", **options).fit(data), GPTD("ard", **options).fit(wide)
    mean = narrow.predict(data.states)
    np.testing.assert_allclose(padded.predict(wide.states), mean, atol=0.01 * mean.std())


@pytest.mark.parametrize("bounds", [(np.zeros(3, dtype=complex), np.ones(3)), np.zeros((4, 3), dtype="M8[s]"), 3])
def test_dynamics_model_refuses_bounds_that_are_no_numbers(bounds):
    data = Trajectories(
        GOOD.states, GOOD.rewards, GOOD.discounts, GOOD.lengths, GOOD.terminated, np.zeros(len(GOOD), int)
    )
    with pytest.raises(ValueError, match=r"^bounds must be two arrays of \d numbers each, \(low, high\); got .*$"):
        DynamicsModel(bounds=bounds).fit(data)
