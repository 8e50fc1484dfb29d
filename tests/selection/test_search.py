"""The search for θ: no single start decides, units do not matter, and it ends where a long plain search does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize

import gptd_rl.selection.search
from gptd_rl import GPTD, Isotropic, Trajectories
from gptd_rl.data.resampling import coarsen
from gptd_rl.estimators.engines import ExactEngine
from gptd_rl.inference.model import Model
from gptd_rl.kernels import Kernel, paper_kernel
from gptd_rl.kernels.metrics import ARD, FactorAnalysis
from gptd_rl.selection.coordinates import Coordinates
from gptd_rl.selection.scales import measure_scale
from gptd_rl.selection.search import SelectionProblem, search
from gptd_rl.selection.variants import SearchOptions
from tests.helpers import MIXES, Reference, sample
from tests.mdps import MDP, Drifting, Garnet, Gridworld, Spiral, Walk, rmse

GRID = Gridworld()
KERNELS: dict[str, Kernel] = {
    "isotropic": paper_kernel(Isotropic(1.0, 2)),
    "ard": paper_kernel(ARD(np.ones(2))),
    "factor": paper_kernel(FactorAnalysis(np.ones(2), np.ones((2, 1)))),
}


def search_options(n_restarts: int, seed: int = 0) -> SearchOptions:
    return SearchOptions(noise_floor=1e-6, n_restarts=n_restarts, noise_variance=None, seed=seed, max_rank=None)


def bounds(model: Model, data: Trajectories, noise_floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on θ, equal where a parameter is held."""
    space = Coordinates.of(model, measure_scale(data), noise_floor)
    lower, upper = space.template.theta, space.template.theta
    lower[space.free], upper[space.free] = (space.unpack(x).theta[space.free] for x in (space.lower, space.upper))
    return lower, upper


def rescaled(data: Trajectories, by=1.0, shift=0.0, rewards=1.0) -> Trajectories:
    """The same run in other units."""
    return Trajectories(
        data.states * by + shift, data.rewards * rewards, data.discounts, data.lengths, data.terminated, data.actions
    )


def long_search(v: GPTD, rng: np.random.Generator, n_starts: int, spread: float = 2.0) -> float:
    """Best evidence that plain L-BFGS-B finds from the optimum of `v`, from sensible starts and from random ones."""
    data = v.data_.take_inputs(v.inputs_)
    lower, upper = bounds(v.model_, data, v.noise_floor)
    guesses = search_options(n_starts).guesses(v.kernel_, measure_scale(data))
    starts = [v.theta_, *(g.theta + rng.normal(scale=spread, size=len(lower)) for g in guesses)]

    def f(theta):
        value, gradient = v.log_marginal_likelihood(theta, eval_gradient=True)
        return -value, -gradient

    def run(start):
        options = dict(maxiter=500, ftol=1e-14, gtol=1e-5)
        bounds = optimize.Bounds(lower, upper)
        start = np.clip(start, lower, upper)
        return -optimize.minimize(f, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun

    return max(map(run, starts))


# -------------------------------------------------------------------------------------- the starts


@pytest.mark.parametrize("seed", range(6))
def test_no_single_bad_start_decides(seed):
    """Inputs in [0, 1]: an isotropic fit can end at h ≈ 3000 with ten times the error, and must not."""
    data = GRID.sample(500, np.random.default_rng(seed))
    v = GPTD("isotropic", objective="marginal_likelihood").fit(rescaled(data, 0.1, -0.1))
    visited = np.unique(data.states, axis=0)
    h = float(np.exp(v.theta_[3]))
    assert 20.0 < h < 200.0, f"h = {h:.4g}"
    truth = GRID.value(GRID.cells)
    assert rmse(v.predict(0.1 * GRID.cells - 0.1), truth) < 0.1 * truth.std()
    assert len(visited) < len(truth), "some cells are to be predicted, not remembered"


def test_the_bad_start_exists():
    """What the test above guards against is real: from h = 3000 alone the search stays there."""
    data = rescaled(GRID.sample(500, np.random.default_rng(1)), 0.1, -0.1)
    scale = measure_scale(data)
    problem = SelectionProblem.of(data, "stochastic", "thinned", 1, scale)

    def found(h: float) -> float:
        kernel = paper_kernel(Isotropic(h, 2), scale.return_variance, scale.return_variance + scale.mean_return**2)
        return -search(problem, [Model(kernel, 1e-2 * scale.return_variance)], 1e-6).value

    assert found(3000.0) < found(100.0) - 50.0


@pytest.mark.parametrize("kind", ["isotropic", "ard", "factor"])
def test_starts_are_three_by_hand_and_the_rest_at_random(kind):
    data = Garnet().sample(50, np.random.default_rng(0))
    scale = measure_scale(data)

    def starts(seed: int, n: int) -> np.ndarray:
        return np.array([m.theta for m in search_options(n, seed).guesses(KERNELS[kind], scale)])

    assert len(starts(0, 0)) == 3
    assert len(starts(0, 4)) == 7
    assert_array_equal(starts(0, 4), starts(0, 4))
    a, b = starts(0, 4), starts(1, 4)
    assert_array_equal(a[:3, :5] if kind != "isotropic" else a[:3], b[:3, :5] if kind != "isotropic" else b[:3])
    assert not np.allclose(a[3:], b[3:])
    lower, upper = bounds(search_options(0).guesses(KERNELS[kind], scale)[0], data, 1e-6)
    for theta in (*a, *b):
        assert (lower <= theta).all() and (theta <= upper).all()


def test_restarts_are_used(monkeypatch):
    """With hand-made starts that all fail, random ones save the day; without them nothing does."""
    data = GRID.sample(150, np.random.default_rng(0))
    asked = []
    original = SearchOptions.guesses

    def spoilt(self, kernel, scale):
        asked.append(self.n_restarts)
        by_hand, *at_random = original(self, kernel, scale)[:1] + original(self, kernel, scale)[3:]
        theta = by_hand.theta
        theta[3:] = np.log(1e3)
        return [by_hand.with_theta(theta), *at_random]

    monkeypatch.setattr(SearchOptions, "guesses", spoilt)
    without, with_them = (GPTD("isotropic", objective="marginal_likelihood", n_restarts=n).fit(data) for n in (0, 8))
    assert asked == [0, 8]
    assert with_them.log_marginal_likelihood_ > without.log_marginal_likelihood_ + 10.0


# -------------------------------------------------------------------------------------- the paper's gridworld


@pytest.mark.parametrize("objective", ["auto", "marginal_likelihood"])
def test_gridworld_relevance_of_y_is_negligible(objective):
    data = GRID.sample(500, np.random.default_rng(0))
    v = GPTD("ard", objective=objective).fit(data)
    assert v.thinning_ == 1
    assert v.relevances_[1] < 1e-5 * v.relevances_[0]
    assert rmse(v.predict(GRID.cells), GRID.value(GRID.cells)) < 0.02


def test_gridworld_table_of_the_paper():
    """ARD against isotropic: lower complexity, better or equal fit, smaller error."""
    data = GRID.sample(500, np.random.default_rng(1))
    iso, ard = (GPTD(k, objective="marginal_likelihood").fit(data) for k in ("isotropic", "ard"))
    assert ard.complexity_ < iso.complexity_ - 10.0
    assert ard.log_marginal_likelihood_ > iso.log_marginal_likelihood_ + 10.0
    truth = GRID.value(GRID.cells)
    assert rmse(ard.predict(GRID.cells), truth) < 0.5 * rmse(iso.predict(GRID.cells), truth)


@pytest.mark.parametrize("kernel", ["isotropic", "ard"])
def test_a_hundred_thousand_transitions(kernel):
    """They cost what their 121 distinct states cost, and the search does not get lost in so much data."""
    data = GRID.sample(100_000, np.random.default_rng(0))
    v = GPTD(kernel).fit(data)
    assert data.n_transitions == 100_000
    assert rmse(v.predict(GRID.cells), GRID.value(GRID.cells)) < 1e-3
    if kernel == "ard":
        assert v.relevances_[1] < 1e-5 * v.relevances_[0]
    # No better model is found by walking along the relevance of x.
    for a in (0.3, 0.54, 0.7, 1.0, 3.0):
        for v0, b in ((1.0, 10.0), (1.7, 12.0)):
            theta = np.log([v0, b, v.noise_variance_, a, *v.relevances_[1:]])[: len(v.theta_)]
            assert v.log_marginal_likelihood(theta) < v.log_marginal_likelihood_ + 0.5, (a, v0)


@pytest.mark.parametrize("noise", ["stochastic", "deterministic"])
@pytest.mark.parametrize("whole", [True, False])
def test_merged_states_give_the_evidence_of_the_dense_formula(noise, whole):
    """On the first 800 transitions, all episodes terminated or the last cut off."""
    data = GRID.sample(100_000, np.random.default_rng(0))
    prefix = data[: int(np.searchsorted(np.cumsum(data.lengths - 1), 800))]
    if not whole:
        prefix = prefix + data[0].cut(1)[:1]
        assert not prefix.terminated.all()
    kernel = paper_kernel(ARD([0.7, 1e-3]), 2.0, 5.0, fixed=("v0", "b", "a1", "a2"))
    v = GPTD(kernel, noise=noise, noise_variance=1e-2, objective="marginal_likelihood").fit(prefix)
    assert isinstance(v.engine_, ExactEngine) and v.engine_.targets.operator.n_targets <= 121 < len(prefix)
    dense = Reference.of(v.model_, prefix, noise)
    assert_allclose(v.complexity_, dense.complexity, rtol=1e-9)
    assert_allclose(v.data_fit_, dense.data_fit, rtol=1e-6)
    x = np.array([[2.0, 3.0], [9.5, 4.0]])
    mean, std = v.predict(x, return_std=True)
    assert_allclose(mean, dense.mean(x), rtol=1e-6)
    assert_allclose(std, np.sqrt(dense.variance(x)), rtol=1e-5)


# -------------------------------------------------------------------------------------- the optimum


@pytest.mark.parametrize(
    ("mdp", "n", "kernel"),
    [
        (Spiral(), 150, "ard"),
        (Drifting(drift=0.0, time_limit=30), 300, "isotropic"),
        (Garnet(), 300, "ard"),
        (GRID, 500, "ard"),
        (GRID, 2000, "ard"),
    ],
    ids=["spiral", "AR(1)", "garnet", "gridworld", "long gridworld"],
)
def test_the_ladder_ends_where_a_long_plain_search_does(mdp, n, kernel, monkeypatch):
    monkeypatch.setattr(gptd_rl.selection.search, "COARSE_SIZE", 60)  # more rungs, on less data
    rng = np.random.default_rng(1)
    data = mdp.sample(n, rng)
    v = GPTD(kernel, objective="marginal_likelihood").fit(data)
    assert v.log_marginal_likelihood_ > long_search(v, rng, n_starts=3) - 0.05


def test_rungs_of_the_ladder_double(monkeypatch):
    monkeypatch.setattr(gptd_rl.selection.search, "COARSE_SIZE", 40)
    data = Spiral().sample(400, np.random.default_rng(0))
    problem = SelectionProblem.of(data, "stochastic", "thinned", 1, measure_scale(data))
    sizes = [len(seen.states) for seen in problem.coarse_levels]
    assert_allclose(sizes, [40, 80, 160][: len(sizes)], rtol=0.3)
    assert len(sizes) >= 2
    assert problem.objective.n_rows == data.n_rows


# -------------------------------------------------------------------------------------- units


@pytest.mark.parametrize(
    ("mdp", "n", "tolerance"),
    [(GRID, 150, 1e-3), (Spiral(), 60, 1e-3), (Garnet(n_points=30), 200, 2e-2)],
    ids=["gridworld", "spiral", "garnet"],
)
@pytest.mark.parametrize(
    ("by", "shift", "rewards"),
    [
        (np.array([1e3, 1e-3]), 0.0, 1.0),
        (1.0, 1e3, 1.0),
        (1e-8, 0.0, 1e8),
        (1.0, 0.0, 1e-8),
        (1.0, 0.0, -3.0),
    ],
    ids=["inputs", "origin", "tiny inputs, huge rewards", "tiny rewards", "sign"],
)
def test_units_do_not_matter(mdp, n, tolerance, by, shift, rewards):
    data = mdp.sample(n, np.random.default_rng(0))
    x = np.unique(data.states, axis=0)[::7]
    options: dict[str, Any] = dict(kernel="ard", objective="marginal_likelihood", n_restarts=0)
    plain = GPTD(**options).fit(data)
    other = GPTD(**options).fit(rescaled(data, by, shift, rewards))
    (mean, std), (other_mean, other_std) = (
        plain.predict(x, return_std=True),
        other.predict(x * by + shift, return_std=True),
    )
    scale = mean.std()
    assert_allclose(other_mean / rewards, mean, atol=tolerance * scale)
    assert_allclose(other_std / abs(rewards), std, atol=tolerance * scale)
    strength, other_strength = plain.relevances_ * data.states.var(axis=0), other.relevances_ * by**2
    assert_allclose(other_strength * data.states.var(axis=0), strength, rtol=0.2, atol=1e-2)
    # A density changes by its Jacobian, an evidence of n rewards n times.
    shifted = other.log_marginal_likelihood_ + data.n_rows * np.log(abs(rewards))
    assert_allclose(shifted, plain.log_marginal_likelihood_, atol=0.1)


def small_problem(seed: int) -> Trajectories:
    """A handful of short episodes, with or without noise, terminated or truncated."""
    rng = np.random.default_rng(seed)
    n_dims, gamma, noise = int(rng.integers(1, 3)), float(rng.choice([0.9, 0.99])), float(rng.choice([0.0, 0.1, 1.0]))
    direction, episodes = rng.normal(size=n_dims), []
    for _ in range(int(rng.integers(3, 6))):
        length = int(rng.integers(4, 10))
        x = np.cumsum(0.5 * rng.normal(size=(length + 1, n_dims)), axis=0)
        rewards = np.sin(x[:-1] @ direction) + noise * rng.normal(size=length)
        episodes.append(dict(observations=x, rewards=rewards, terminated=bool(rng.random() < 0.7)))
    return Trajectories.from_episodes(episodes, gamma=gamma)


@pytest.mark.parametrize(
    ("by", "shift", "rewards"), [(1.0, 0.0, 1e6), (1e3, 7.0, 1.0)], ids=["huge rewards", "inputs and origin"]
)
def test_search_is_equivariant(by, shift, rewards):
    """Not only the same hill: V in other units is V, to a thousandth of the spread of the returns."""
    for seed in range(100 if rewards == 1.0 else 200):
        data = small_problem(seed)
        other = rescaled(data, by, shift, rewards)
        plain, scaled = (GPTD(objective="marginal_likelihood", n_restarts=0).fit(d) for d in (data, other))
        spread = np.sqrt(measure_scale(data).return_variance)
        assert_allclose(
            scaled.predict(other.states) / rewards, plain.predict(data.states), atol=1e-3 * spread, err_msg=str(seed)
        )


@pytest.mark.parametrize("seed", range(3))
def test_irrelevant_inputs_do_not_hide_the_better_hill(seed):
    """Beside ten inputs that move at random, x is as relevant as it is without them; each costs a nat or two."""
    rng = np.random.default_rng(seed)
    plain = GRID.sample(300, rng).take_inputs([0])
    noise = rng.integers(1, 11, (len(plain), 10)).astype(float)
    wide = replace(plain, states=np.hstack([plain.states, noise]))
    alone, among = (GPTD(objective="marginal_likelihood").fit(data) for data in (plain, wide))
    assert among.log_marginal_likelihood_ > alone.log_marginal_likelihood_ - 20.0
    assert_allclose(among.relevances_[0], alone.relevances_[0], rtol=0.5)


def test_pruned_guesses_share_the_relevance_of_all_inputs():
    data = sample(MIXES["mixed"], seed=3)
    scale = measure_scale(data)
    guess, *_ = search_options(0).guesses(paper_kernel(ARD(np.ones(3))), scale)
    space = Coordinates.of(guess, scale, 1e-6)
    mode = space.pack(guess)
    mode[4:] = space.lower[4:]  # only the first input matters
    pruned = space.unpack(space.prune(space.pack(guess), mode))
    assert space.n_irrelevant(mode) == 2
    assert_allclose(pruned.kernel.relevances[0], 3.0 * guess.kernel.relevances[0])
    assert (pruned.kernel.relevances[1:] < 1.1e-8 / scale.input_std[1:] ** 2).all()


def test_amplitudes_of_nothing_are_lifted_to_the_guess():
    data = sample(MIXES["mixed"], seed=3)
    guess = Model(paper_kernel(ARD(np.ones(3)), 2.0, 3.0), 0.5)
    space = Coordinates.of(guess, measure_scale(data), 1e-6)
    lifted = space.lift(Model(paper_kernel(ARD(np.full(3, 0.1)), 1.5, 1e-3), 1e-4), guess)
    assert_allclose(np.exp(lifted.theta), [1.5, 3.0, 1e-4, 0.1, 0.1, 0.1])


def test_the_order_of_inputs_does_not_matter():
    data = GRID.sample(150, np.random.default_rng(0))
    plain, swapped = (
        GPTD(objective="marginal_likelihood", n_restarts=0).fit(data.take_inputs(c)) for c in ([0, 1], [1, 0])
    )
    assert_allclose(swapped.predict(GRID.cells[:, ::-1]), plain.predict(GRID.cells), atol=1e-3)
    assert swapped.relevances_[0] < 1e-5 * swapped.relevances_[1]


# -------------------------------------------------------------------------------------- scales and bounds


def test_scales_of_terminated_data_are_those_of_returns_and_states():
    data = sample(MIXES["terminated"], seed=3)
    returns = np.zeros(len(data))
    for i in reversed(range(len(data))):
        returns[i] = data.rewards[i] + (data.discounts[i] * returns[i + 1] if data.discounts[i] else 0.0)
    scale = measure_scale(data)
    assert_allclose(scale.return_variance, returns.var())
    assert_allclose(scale.mean_return, returns.mean())
    assert_allclose(scale.input_std, data.states.std(axis=0))
    assert not scale.is_constant.any()


def test_scales_guess_what_follows_a_truncation():
    """Reward 1 for ever is worth 1/(1−γ) everywhere, however early the run is cut off."""
    states = np.arange(11.0)[:, None]
    episode = dict(observations=states, rewards=np.ones(10), terminated=False)
    scale = measure_scale(Trajectories.from_episodes([episode], gamma=0.95))
    assert_allclose(scale.mean_return, 20.0)


@pytest.mark.parametrize("gamma", [0.9, 0.99])
def test_one_truncated_segment_does_not_upset_the_scales_of_many_terminated(gamma):
    """Most episodes end soon; the last is cut off after a step. That it went on for ever is not what they suggest."""
    world = Gridworld(gamma=gamma)
    data = world.sample(300, np.random.default_rng(0))
    whole = data[data.terminated]
    cut = whole + whole[int(np.argmax(whole.lengths))].cut(1)[:1]
    assert_allclose(measure_scale(cut).return_variance, measure_scale(whole).return_variance, rtol=0.5)


def test_scales_of_degenerate_data_are_positive():
    flat = Trajectories.from_episodes(
        [dict(observations=np.ones((4, 2)), rewards=np.zeros(3), terminated=True)], gamma=0.9
    )
    scale = measure_scale(flat)
    assert scale.return_variance > 0
    assert_array_equal(scale.input_std, [1.0, 1.0])
    assert scale.is_constant.all()


def test_scales_follow_small_rewards():
    data = Walk(n_cells=5).sample(100, np.random.default_rng(0))
    for unit in (1e-4, 1e-6, 1e-9, 1e6):
        scaled = measure_scale(rescaled(data, rewards=unit)).return_variance
        assert_allclose(scaled, unit**2 * measure_scale(data).return_variance)


@pytest.mark.parametrize("metric", [Isotropic(1.0, 3), ARD(np.ones(3)), FactorAnalysis(np.ones(3), np.ones((3, 2)))])
def test_bounds_are_in_order_and_hold_what_is_fixed(metric):
    data = sample(MIXES["mixed"], seed=3)
    scale = measure_scale(data)
    model = Model(paper_kernel(metric, 2.0, 3.0), 0.5)
    lower, upper = bounds(model, data, 1e-3)
    assert (lower < upper).all()
    assert_allclose(lower[2], np.log(1e-3 * scale.return_variance))
    held = Model(paper_kernel(metric, 2.0, 3.0, fixed=("v0", "b")), 0.5, noise_is_fixed=True)
    lower, upper = bounds(held, data, 1e-3)
    assert_allclose(lower[:3], np.log([2.0, 3.0, 0.5]))
    assert_allclose(upper[:3], lower[:3])
    assert (lower[3:] < upper[3:]).all()


def test_a_constant_input_is_held_at_no_relevance():
    data = sample(MIXES["mixed"], seed=3)
    states = np.array(data.states)
    states[:, 1] = 7.0
    data = Trajectories(states, data.rewards, data.discounts, data.lengths, data.terminated)
    scale = measure_scale(data)
    assert_array_equal(scale.is_constant, [False, True, False])
    lower, upper = bounds(Model(paper_kernel(ARD(np.ones(3))), 1.0), data, 1e-6)
    assert lower[4] == upper[4]
    assert GPTD("ard").fit(data).relevances_[1] < 1e-7


@pytest.mark.parametrize("metric", [Isotropic(0.3, 3), ARD([0.1, 2.0, 1e-3]), FactorAnalysis(np.ones(3), np.ones(3))])
def test_coordinates_of_the_optimiser_go_there_and_back(metric):
    data = sample(MIXES["mixed"], seed=3)
    model = Model(paper_kernel(metric, 2.0, 3.0, fixed=("b",)), 0.5)
    space = Coordinates.of(model, measure_scale(data), 1e-6)
    x = space.pack(model)
    assert len(x) == len(model.theta) - 1
    assert (space.lower <= x).all() and (x <= space.upper).all()
    assert_allclose(space.unpack(x).theta, model.theta, rtol=1e-9, atol=1e-9)
    # the chain rule of the change of coordinates
    weights = np.random.default_rng(0).normal(size=len(model.theta))
    f = space.function(lambda m: (float(weights @ np.sin(m.theta)), weights * np.cos(m.theta)), None)
    _, gradient = f(x)
    step = 1e-6 * np.eye(len(x))
    numeric = [(f(x + s)[0] - f(x - s)[0]) / 2e-6 for s in step]
    assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-7)


# -------------------------------------------------------------------------------------- samples of the data


def values_are_kept(part: Trajectories, mdp: MDP, data: Trajectories) -> bool:
    """Every state of the part is one of the data's."""
    return {tuple(x) for x in part.states} <= {tuple(x) for x in data.states}


def test_coarsen_leaves_small_data_alone():
    data = Spiral().sample(100, np.random.default_rng(0))
    assert coarsen(data, len(data)) is data
    assert coarsen(data, 10 * len(data)) is data


def test_coarsen_thins_long_segments():
    mdp = Drifting(time_limit=200)
    data = mdp.sample(800, np.random.default_rng(0))
    part = coarsen(data, 100)
    assert 70 <= len(part) <= 130
    assert part.n_segments == data.n_segments
    assert values_are_kept(part, mdp, data)
    assert part.discounts.max() < data.discounts.max(), "a step of the part spans several of the data"


def test_coarsen_picks_whole_segments_where_they_are_short():
    data = GRID.sample(600, np.random.default_rng(0))
    part = coarsen(data, 100)
    assert 60 <= len(part) <= 150
    assert part.n_segments < data.n_segments
    assert values_are_kept(part, GRID, data)
    assert part.discounts.max() == data.discounts.max()
