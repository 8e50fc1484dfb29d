"""Q of another policy than the one that acted: against MDPs with known Q, by the exact and the sparse method."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gptd_rl
from gptd_rl import GPTDQ, Isotropic, Trajectories
from gptd_rl.estimators import action_coverage, engines, sparse_engine
from gptd_rl.estimators.planning import OFF_POLICY_AMPLIFICATION
from gptd_rl.exceptions import ActionCoverageWarning
from gptd_rl.kernels import paper_kernel
from tests.estimators.test_gptdq import CHOICE, TABULAR, UNIFORM, Table, chosen
from tests.mdps import rmse

MDP = Table(slip=0.3)
X, A = MDP.everywhere
TARGET = np.eye(3)[CHOICE]
MIXED = np.random.default_rng(5).dirichlet(np.ones(3), size=8)  # a stochastic target


@dataclass(frozen=True)
class Probabilities:
    """A policy of the table that tells what it does."""

    table: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, table: np.ndarray) -> Probabilities:
        return cls(tuple(map(tuple, table)))

    def action_probabilities(self, states: np.ndarray) -> np.ndarray:
        return np.array(self.table)[np.minimum(states[:, 0].astype(int), 7)]


class Sampled:
    """The same policy, which only acts."""

    batched = True

    def __init__(self, table: np.ndarray, seed: int = 0) -> None:
        self.told, self.rng = Probabilities.of(table), np.random.default_rng(seed)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        cumulated = self.told.action_probabilities(states).cumsum(axis=1)
        return np.asarray((self.rng.random((len(states), 1)) > cumulated[:, :-1]).sum(axis=1))


def truth_of(table: np.ndarray) -> np.ndarray:
    return MDP.value(table).reshape(-1)


def table_q(**options: Any) -> GPTDQ:
    return GPTDQ(TABULAR, **(dict(n_restarts=0) | options))


@pytest.fixture
def sparsely(monkeypatch):
    """No memory for all pairs of states: the sparse method."""
    for module in (engines, sparse_engine):
        monkeypatch.setattr(module, "available_bytes", lambda: 1000)


def answers(q: GPTDQ, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Everything that is predicted there."""
    return np.array([*q.predict(x, a, return_std=True), *q.confidence_interval(x, a, 0.8)])


# ------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("policy", ["deterministic", "stochastic"])
def test_gptdq_off_policy_error_falls_with_the_data(policy):
    """The uniform policy acts; that Q is another one, and what `bootstrap=False` learns stays far from both."""
    table = TARGET if policy == "deterministic" else MIXED
    asked: Any = chosen if policy == "deterministic" else Probabilities.of(table)
    truth = truth_of(table)
    errors = []
    for n in (200, 3200):
        data = [MDP.sample(n, seed, UNIFORM) for seed in range(3)]
        errors.append(np.mean([rmse(table_q().fit(d, policy=asked).predict(X, A), truth) for d in data]))
    assert errors[1] < 0.4 * errors[0]  # a quarter, were it the root of the data
    assert errors[1] < 0.15 * truth.std()
    assert errors[1] < 0.2 * rmse(truth_of(UNIFORM), truth)
    if policy == "deterministic":
        returns = table_q(bootstrap=False).fit(data[0], policy=chosen)
        assert errors[1] < 0.2 * rmse(returns.predict(X, A), truth)


def test_gptdq_off_policy_intervals_cover():
    """95 % intervals of 15 small data sets; those of `bootstrap=False` hardly ever cover (the failing control)."""
    truth, shares, widths, control = truth_of(TARGET), [], [], []
    for seed in range(15):
        data = MDP.sample(250, seed, UNIFORM)
        lower, upper = table_q().fit(data, policy=chosen).confidence_interval(X, A)
        shares.append(np.mean((lower < truth) & (truth < upper)))
        widths.append(np.mean(upper - lower))
        lower, upper = table_q(bootstrap=False).fit(data, policy=chosen).confidence_interval(X, A)
        control.append(np.mean((lower < truth) & (truth < upper)))
    assert np.mean(shares) >= 0.85
    assert np.mean(widths) < 5.0 * truth.std(), "wide enough is not the same as endless"
    assert np.mean(control) < 0.3


def test_gptdq_off_policy_deterministic_is_one_hot():
    data = MDP.sample(400, 0, UNIFORM)
    told, acts = table_q().fit(data, policy=Probabilities.of(TARGET)), table_q().fit(data, policy=chosen)  # type: ignore[arg-type]
    assert_array_equal(answers(told, X, A), answers(acts, X, A))
    assert_array_equal(told.theta_, acts.theta_)


def test_gptdq_off_policy_sampled_answers_average_to_probabilities():
    """Eight answers in each of 3000 states: nearly the probabilities; far from any single action."""
    data = MDP.sample(3000, 0, UNIFORM)
    told = table_q().fit(data, policy=Probabilities.of(MIXED)).predict(X, A)  # type: ignore[arg-type]
    sampled = table_q().fit(data, policy=Sampled(MIXED)).predict(X, A)
    single = table_q().fit(data, policy=lambda x: int(MIXED[min(int(x[0]), 7)].argmax())).predict(X, A)
    assert rmse(sampled, told) < 0.1 * told.std()
    assert rmse(single, told) > 0.2 * told.std()


def test_gptdq_off_policy_of_the_logging_policy_is_on_policy():
    """Asked for what the data did anyway, only the last transition of truncated segments is new, and the prior."""
    data = MDP.sample(3000, 0, TARGET + 0.0)
    seen = np.unique(
        np.column_stack([data.states[data.has_transition, 0], np.asarray(data.actions)[data.has_transition]]), axis=0
    )
    off, on = table_q().fit(data, policy=chosen), table_q(bootstrap=True).fit(data)
    x, a = seen[:, :1], seen[:, 1].astype(int)
    assert_allclose(off.predict(x, a), on.predict(x, a), atol=0.1)


def test_gptdq_amplifies_the_selected_prior_off_policy_only():
    data = MDP.sample(400, 0, UNIFORM)
    on, off = (GPTDQ("ard", n_restarts=0, bootstrap=True).fit(data, policy=p) for p in (None, chosen))
    for q, factor in ((on, 1.0), (off, OFF_POLICY_AMPLIFICATION)):
        selected = q.comparison_.best.model.theta
        assert_allclose(np.exp(q.theta_ - selected)[:2], factor, rtol=1e-9)
        assert_allclose(q.theta_[2:], selected[2:])
    assert_array_equal(
        table_q().fit(data, policy=chosen).kernel_.theta[:2], np.log([100.0, 1.0])
    )  # what is fixed stays


@pytest.mark.parametrize("flag", [True, np.True_])
def test_gptdq_off_policy_bootstraps_if_told_as_by_itself(flag):
    data = MDP.sample(300, 0, UNIFORM)
    told, auto = (GPTDQ("ard", n_restarts=0, bootstrap=b).fit(data, policy=chosen) for b in (flag, "auto"))
    assert auto.bootstrap_
    assert_array_equal(answers(told, X, A), answers(auto, X, A))


@pytest.mark.parametrize("options", [dict(noise="deterministic"), dict(objective="marginal_likelihood")])
def test_gptdq_off_policy_with_other_noise_and_objectives_does_not_bootstrap(options):
    assert not table_q(**options).fit(MDP.sample(200, 0, UNIFORM), policy=chosen).bootstrap_


# ------------------------------------------------------------------------------------------ continuous actions


@dataclass(frozen=True)
class Regulator:
    """x' = 0.8x + 0.4a + noise, rewarded by −x² − 0.1a²; any action is tried, a = −0.5x is asked about."""

    gamma: float = 0.9
    noise: float = 0.2

    def sample(self, n: int, seed: int, tried: tuple[float, float] = (-1.0, 1.0)) -> Trajectories:
        rng, episodes = np.random.default_rng(seed), []
        for _ in range(n // 10):
            x, a = [rng.normal()], rng.uniform(*tried, size=10)
            for t in range(10):
                x.append(0.8 * x[-1] + 0.4 * a[t] + self.noise * rng.normal())
            rewards = -(np.array(x[:-1]) ** 2) - 0.1 * a**2
            episodes.append(dict(observations=np.array(x)[:, None], actions=a, rewards=rewards))
        return Trajectories.from_episodes(episodes, gamma=self.gamma)

    def q(self, x: np.ndarray, a: np.ndarray) -> np.ndarray:
        """V = −px² − c with p = 1 + 0.1·0.5² + γp·0.6², c = γ(p·noise² + c), one step before that."""
        p = 1.025 / (1.0 - self.gamma * 0.36)
        c = self.gamma * p * self.noise**2 / (1.0 - self.gamma)
        return -(x[:, 0] ** 2) - 0.1 * a**2 - self.gamma * (p * ((0.8 * x[:, 0] + 0.4 * a) ** 2 + self.noise**2) + c)


def steer(x: np.ndarray) -> float:
    return float(-0.5 * x[0])


PLANT = Regulator()
GRID: np.ndarray = np.array([[x, a] for x in np.linspace(-1.5, 1.5, 7) for a in np.linspace(-0.8, 0.8, 5)])
PLACES, ACTS = GRID[:, :1], GRID[:, 1]
METHODS: dict[str, dict[str, Any]] = {"exact": dict(method="exact"), "sparse": dict(method="sparse", subset_size=60)}
both_methods = pytest.mark.parametrize("options", METHODS.values(), ids=METHODS.keys())


def plant_q(**options: Any) -> GPTDQ:
    return GPTDQ("ard", **(dict(n_restarts=0) | options))


@both_methods
def test_gptdq_off_policy_with_continuous_actions(options):
    """Near the truth, and covered by intervals over eight data sets; Q is one function, so errors go together."""
    truth, errors, shares = PLANT.q(PLACES, ACTS), [], []
    for seed in range(8):
        q = plant_q(**options).fit(PLANT.sample(300, seed), policy=steer)
        assert q.method_ == options["method"] and q.bootstrap_
        errors.append(rmse(q.predict(PLACES, ACTS), truth))
        lower, upper = q.confidence_interval(PLACES, ACTS)
        shares.append(np.mean((lower < truth) & (truth < upper)))
    assert np.mean(errors) < 0.25 * truth.std()
    assert np.mean(shares) >= 0.85


def test_gptdq_off_policy_methods_agree():
    data = PLANT.sample(500, 1)
    exact, sparse = (plant_q(**options).fit(data, policy=steer) for options in METHODS.values())
    assert_allclose(sparse.theta_, exact.theta_, rtol=1e-6, atol=1e-6)
    assert_allclose(answers(sparse, PLACES, ACTS), answers(exact, PLACES, ACTS), rtol=2e-2, atol=2e-2)


# ------------------------------------------------------------------------------------------ shards, files, more data


def in_shards(data: Trajectories, n: int = 4) -> list[Trajectories]:
    return [data[part] for part in np.array_split(np.arange(data.n_segments), n)]


def test_gptdq_off_policy_of_shards_and_processes(tmp_path):
    data, more = PLANT.sample(500, 0), PLANT.sample(100, 1)
    options = METHODS["sparse"]
    whole = plant_q(**options).fit(data, policy=steer)
    paths = [part.save(tmp_path / f"{i}.npz") for i, part in enumerate(in_shards(data))]
    for source in (in_shards(data), iter(in_shards(data)), paths):
        sharded = plant_q(**options).fit(source, policy=steer)
        assert_allclose(answers(sharded, PLACES, ACTS), answers(whole, PLACES, ACTS), rtol=1e-6)
    with ProcessPoolExecutor(1) as executor:
        remote = plant_q(**options).fit(in_shards(data), policy=lambda x: steer(x), executor=executor)
        assert_allclose(answers(remote, PLACES, ACTS), answers(whole, PLACES, ACTS), rtol=1e-6)
        remote.partial_fit(in_shards(more, 2), policy=steer, executor=executor)
    assert_allclose(
        answers(remote, PLACES, ACTS), answers(whole.partial_fit(more, policy=steer), PLACES, ACTS), rtol=1e-6
    )


@pytest.mark.usefixtures("sparsely")
def test_gptdq_off_policy_table_in_the_sparse_method():
    """Few distinct pairs, no memory: inducing points are all pairs, and the answers those of the exact method."""
    data = MDP.sample(600, 0, UNIFORM)
    q = table_q(method="sparse").fit(data, policy=Probabilities.of(MIXED))  # type: ignore[arg-type]
    assert q.method_ == "sparse" and q.bootstrap_
    exact = table_q(method="exact").fit(data, policy=Probabilities.of(MIXED))  # type: ignore[arg-type]
    assert_allclose(answers(q, X, A), answers(exact, X, A), rtol=1e-5, atol=1e-6)


@both_methods
def test_gptdq_off_policy_there_and_back(options, tmp_path):
    q = plant_q(mean=-2.0, **options).fit(PLANT.sample(300, 0), policy=steer)
    again = gptd_rl.load(q.save(tmp_path / "q.gptd"))
    assert isinstance(again, GPTDQ)
    assert (again.bootstrap_, again.method_, again.mean_) == (True, q.method_, -2.0)
    for other in (again, pickle.loads(pickle.dumps(q))):
        assert_allclose(answers(other, PLACES, ACTS), answers(q, PLACES, ACTS), rtol=1e-8)
    if q.method_ == "exact":  # the data are all there, and with them what the policy did
        more = PLANT.sample(100, 1)
        mine, theirs = (each.partial_fit(more, policy=steer) for each in (q, again))
        assert_allclose(answers(theirs, PLACES, ACTS), answers(mine, PLACES, ACTS), rtol=1e-7)


@both_methods
def test_gptdq_off_policy_partial_fit_and_condition(options):
    first, second = PLANT.sample(300, 0), PLANT.sample(900, 1)
    truth = PLANT.q(PLACES, ACTS)
    q = plant_q(**options).fit(first, policy=steer)
    theta, before = q.theta_, q.predict(PLACES, ACTS)
    same = q.condition(first, policy=steer)
    assert_allclose(answers(same, PLACES, ACTS), answers(q, PLACES, ACTS), rtol=1e-7)
    both = q.condition(first + second, policy=steer)
    q.partial_fit(second, policy=steer)
    assert q.bootstrap_ and both.bootstrap_
    assert_array_equal(q.theta_, theta)
    assert_allclose(q.predict(PLACES, ACTS), both.predict(PLACES, ACTS), rtol=1e-4, atol=1e-4)
    assert rmse(q.predict(PLACES, ACTS), truth) < rmse(before, truth)


def test_gptdq_off_policy_partial_fit_for_a_policy_with_more_choices():
    """One action, then probabilities, then the logged ones: the statistics of all transitions, in any order."""
    parts = [MDP.sample(200, seed, UNIFORM) for seed in range(3)]
    told: Any = Probabilities.of(TARGET)
    q = table_q().fit(parts[0], policy=chosen)
    q.partial_fit(parts[1], policy=told).partial_fit(parts[2], policy=chosen)
    expected = q.condition(parts[0] + parts[1] + parts[2], policy=told)
    assert_allclose(answers(q, X, A), answers(expected, X, A), rtol=1e-8)


def test_gptdq_off_policy_in_shards_of_which_one_shows_that_the_policy_is_stochastic():
    parts = [MDP.sample(200, seed, UNIFORM) for seed in range(2)]
    table = TARGET.copy()
    table[3] = [0.5, 0.5, 0.0]
    calm = parts[0][[i for i, part in enumerate(parts[0]) if 3.0 not in part.states]]
    for source in ([calm, parts[1]], [parts[1], calm]):
        q = table_q().fit(source, policy=Sampled(table))
        assert rmse(q.predict(X, A), truth_of(table)) < truth_of(table).std()


@both_methods
def test_gptdq_off_policy_beside_a_prior_mean(options):
    """The true Q as prior mean leaves noise alone; a constant is taken for what it is."""
    data, truth = PLANT.sample(300, 0), PLANT.q(PLACES, ACTS)
    beside = plant_q(mean=PLANT.q, **options).fit(data, policy=steer)
    alone = plant_q(**options).fit(data, policy=steer)
    assert rmse(beside.predict(PLACES, ACTS), truth) < 0.5 * rmse(alone.predict(PLACES, ACTS), truth)
    far = np.array([[40.0]])
    assert_allclose(beside.predict(far, [0.0]), PLANT.q(far, np.zeros(1)), rtol=0.1)  # the prior again


@both_methods
def test_gptdq_off_policy_prune_keeps_the_wider_prior(options):
    data = PLANT.sample(400, 0)
    noise = np.random.default_rng(1).normal(size=(len(data), 1))
    wide = Trajectories(
        np.column_stack([noise, data.states]), data.rewards, data.discounts, data.lengths, data.terminated, data.actions
    )
    q = plant_q(**options).fit(wide, policy=lambda x: -0.5 * x[1])
    pruned = q.prune(0.1)
    assert_array_equal(pruned.inputs_, [1])
    narrow = plant_q(**options).fit(data, policy=steer)
    x = np.column_stack([np.zeros(len(PLACES)), PLACES])
    assert_allclose(answers(pruned, x, ACTS), answers(narrow, PLACES, ACTS), rtol=0.02, atol=0.02)


# ------------------------------------------------------------------------------------------ coverage of actions

SHY = np.tile([0.5, 0.5, 0.0], (8, 1))  # action 2 is tried in the first states only
SHY[:4] = 1.0 / 3.0


def bold(x: np.ndarray) -> int:
    return 2


def naive_share(data: Trajectories) -> float:
    """Of transitions that go on, those into a state where action 2 was never tried."""
    acted = np.asarray(data.actions)
    tried = {float(data.states[i, 0]) for i in np.flatnonzero(data.has_transition) if acted[i] == 2}
    uncovered = []
    for i in np.flatnonzero(data.has_transition):
        into_terminal = i + 1 in data.last[data.terminated]
        if not into_terminal:
            uncovered.append(float(data.states[i + 1, 0]) not in tried)
    return float(np.mean(uncovered))


def test_gptdq_warns_of_actions_that_were_never_tried_nearby(monkeypatch):
    data = MDP.sample(400, 0, SHY)
    share = naive_share(data)
    assert 0.5 < share < 0.9
    monkeypatch.setattr(action_coverage, "N_ASKED", 10_000)  # all of them
    with pytest.warns(ActionCoverageWarning, match=f"after {100 * share:.0f} % of the transitions") as caught:
        table_q().fit(data, policy=bold)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_gptdq_weighs_actions_never_tried_by_their_probability(monkeypatch):
    data = MDP.sample(400, 0, SHY)
    monkeypatch.setattr(action_coverage, "N_ASKED", 10_000)
    quarter: Any = Probabilities.of(np.tile([0.5, 0.25, 0.25], (8, 1)))
    with pytest.warns(ActionCoverageWarning, match=f"after {25 * naive_share(data):.0f} % of the transitions"):
        table_q().fit(data, policy=quarter)


@pytest.mark.parametrize("policy", [chosen, None, lambda x: 0], ids=["covered", "none", "another"])
def test_gptdq_does_not_warn_where_actions_were_tried(policy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table_q().fit(MDP.sample(400, 0, UNIFORM), policy=policy)


def test_gptdq_intervals_are_wide_where_actions_are_not_covered():
    """… and where these lead: with the same number of data, five times those of data that tell."""
    shy, full = (MDP.sample(800, 0, behaviour) for behaviour in (SHY, UNIFORM))
    with pytest.warns(ActionCoverageWarning):
        unknown = table_q().fit(shy, policy=bold).predict(X, A, return_std=True)[1]
    known = table_q().fit(full, policy=bold).predict(X, A, return_std=True)[1]
    untried = (X[:, 0] >= 4) & (A == 2)
    assert_allclose(unknown[untried], np.sqrt(101.0), rtol=0.05)  # the prior
    assert (unknown[~untried] > known[~untried]).all()
    onwards = MDP.P[:, :, 4:8].sum(axis=2).reshape(-1)  # probability of a state where 2 was never tried
    leads = (onwards > 0.5) & ~untried
    assert leads.any() and unknown[leads].min() > 5.0 * known[leads].max()


@both_methods
def test_gptdq_intervals_are_wide_where_continuous_actions_are_not_covered(options):
    """The data push down, the policy pushes up: what follows has the prior's deviation, times γ, by either method."""
    std = uncovered_std(level=0.0, **options)
    assert_allclose(np.median(std), 0.9 * 3.0, rtol=0.1)


@pytest.mark.xfail(
    strict=True,
    reason="a level that all actions share is not held by the data where only successors show it, M is nearly singular,"
    " and stds are 20 times the prior's",
)
@both_methods
def test_gptdq_intervals_are_no_wider_than_the_prior(options):
    assert np.median(uncovered_std(level=1.0, **options)) < 2.0 * np.sqrt(10.0)


def uncovered_std(level: float, **options: Any) -> np.ndarray:
    """Standard deviations at logged pairs, where no action of the policy is known and Q has the variance 9 + level."""
    kernel = paper_kernel(Isotropic(2.0, 2), 9.0, level, fixed=("v0", "b", "h") if level else ("v0", "h"))
    data = PLANT.sample(400, 0, tried=(-2.0, -1.0))
    with pytest.warns(ActionCoverageWarning, match="after 100 % of the transitions"):
        q = GPTDQ(kernel, n_restarts=0, **options).fit(data, policy=lambda x: 3.0)
    assert q.method_ == options["method"]
    middle = data.states[data.has_transition][::40]
    return q.predict(middle, np.full(len(middle), -1.5), return_std=True)[1]
