"""How to learn from given data: what the rule says of systems with and without noise, Markov and not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl import GPTD, GPTDQ, Trajectories
from gptd_rl.estimators import planning
from gptd_rl.estimators.planning import MIN_TRANSITIONS, NOT_MARKOV
from gptd_rl.selection.thinning import MUCH_NOISE, NEGLIGIBLE_NOISE
from tests.estimators.test_gptdq import UNIFORM, Table
from tests.estimators.test_markov import hidden_speed
from tests.mdps import MDP, Drifting, Gridworld, Saddle, Spiral, Walk, rmse

LINE = Drifting(gamma=0.9, time_limit=25, drift=0.0)


def sampled(mdp: MDP, n: int, seed: int = 0) -> Trajectories:
    return mdp.sample(n, np.random.default_rng(seed))


def quick(**options: Any) -> GPTD:
    return GPTD(n_restarts=0, **options)


@dataclass(frozen=True)
class Blurred:
    """An AR(1) process, paid as it is, seen through noise of variance ¼: V(seen) = E[x | seen]/(1 − γφ) = 4.2·seen."""

    phi: float = 0.9
    gamma: float = 0.9
    length: int = 50

    def sample(self, n: int, rng: np.random.Generator) -> Trajectories:
        x = rng.normal(size=(n // self.length, self.length + 1))
        for t in range(self.length):
            x[:, t + 1] = self.phi * x[:, t] + np.sqrt(1.0 - self.phi**2) * x[:, t + 1]
        seen = x + 0.5 * rng.normal(size=x.shape)
        episodes = [dict(observations=s[:, None], rewards=r[:-1]) for s, r in zip(seen, x, strict=True)]
        return Trajectories.from_episodes(episodes, gamma=self.gamma)

    def value(self, states: np.ndarray) -> np.ndarray:
        return np.asarray(states)[:, 0] / 1.25 / (1.0 - self.gamma * self.phi)


def shaken(noise: float, n: int = 400, seed: int = 0) -> Trajectories:
    """The spiral, with a little noise in each step."""
    rng, spiral = np.random.default_rng(seed), Spiral()
    episodes = []
    for _ in range(n // 25):
        x = [rng.uniform(-1.0, 1.0, size=2)]
        for _ in range(25):
            x.append(spiral.A @ x[-1] + noise * rng.normal(size=2))
        rewards = [-float(y @ spiral.C @ y) for y in x[:-1]]
        episodes.append(dict(observations=np.array(x), rewards=rewards))
    return Trajectories.from_episodes(episodes, gamma=spiral.gamma)


# ------------------------------------------------------------------------------------------ the rule


@pytest.mark.parametrize(
    "mdp", [Gridworld(), Spiral(), Walk(n_cells=20, p_right=1.0, prize=5.0)], ids=["gridworld", "spiral", "corridor"]
)
def test_plan_of_a_deterministic_system_is_the_papers(mdp):
    v = quick().fit(sampled(mdp, 300))
    assert v.trace_decay_ is None and not v.bootstrap_ and v.thinning_ == 1
    assert v.markov_test_ is None, "nothing is at stake"
    assert [trial.noise_share < NEGLIGIBLE_NOISE for trial in v.thinning_trials_] == [True]


@pytest.mark.parametrize("mdp", [Walk(n_cells=9, gamma=0.9), LINE, Saddle()], ids=lambda mdp: type(mdp).__name__)
@pytest.mark.parametrize("seed", range(2))
def test_plan_of_much_noise_and_markov_states_is_to_bootstrap(mdp, seed):
    v = quick().fit(sampled(mdp, 400, seed))
    assert v.bootstrap_ and v.trace_decay_ == 0.0
    assert v.markov_test_ is not None and v.markov_test_.pvalue >= NOT_MARKOV
    assert v.markov_test_.n_steps > 100
    assert v.thinning_trials_[0].noise_share >= MUCH_NOISE


NOT_SEEN = {"speed": lambda seed: hidden_speed(seed=seed), "blurred": lambda seed: sampled(Blurred(), 1000, seed)}


@pytest.mark.parametrize("what", NOT_SEEN)
@pytest.mark.parametrize(
    "options", [dict(method="exact"), dict(method="sparse", subset_size=40)], ids=["exact", "sparse"]
)
def test_plan_of_states_that_are_not_markov_is_whole_returns(what, options):
    for seed in range(2):
        v = quick(**options).fit(NOT_SEEN[what](seed))
        assert not v.bootstrap_ and v.trace_decay_ == 1.0
        assert v.markov_test_ is not None and v.markov_test_.pvalue < 1e-3
        assert v.method_ == options["method"]


def test_plan_of_stacked_frames_is_to_bootstrap_again():
    """The same system, told by two frames."""
    assert [quick().fit(hidden_speed(seed=seed, n_frames=n)).trace_decay_ for seed in (0, 1) for n in (1, 2)] == [
        1,
        0,
    ] * 2


def test_plan_of_little_noise_is_thinned_returns():
    v = quick().fit(shaken(0.01))
    assert v.trace_decay_ is None and not v.bootstrap_
    assert v.markov_test_ is None
    assert len(v.thinning_trials_) > 1
    assert NEGLIGIBLE_NOISE <= v.thinning_trials_[-1].noise_share < MUCH_NOISE
    much = quick().fit(shaken(0.1))
    assert much.bootstrap_ and much.thinning_trials_[-1].noise_share >= MUCH_NOISE


def test_plan_of_few_transitions_is_returns():
    few, enough = (quick().fit(sampled(LINE, n)) for n in (MIN_TRANSITIONS - 1, MIN_TRANSITIONS))
    assert few.trace_decay_ is None and not few.bootstrap_ and few.markov_test_ is None
    assert enough.trace_decay_ == 0.0


@pytest.mark.parametrize(("pvalue", "trace_decay"), [(NOT_MARKOV, 0.0), (0.99 * NOT_MARKOV, 1.0), (1.0, 0.0)])
def test_plan_follows_the_p_value(pvalue, trace_decay, monkeypatch):
    class Says:
        def __init__(self, data: Trajectories) -> None:
            self.pvalue = pvalue

    monkeypatch.setattr(planning, "markov_test", Says)
    v = quick().fit(sampled(LINE, 200))
    assert v.trace_decay_ == trace_decay
    assert isinstance(v.markov_test_, Says)


@pytest.mark.parametrize(
    ("options", "trace_decay"),
    [
        (dict(bootstrap=False), None),
        (dict(bootstrap=True), 0.0),
        (dict(noise="deterministic"), None),
        (dict(objective="thinned"), None),
        (dict(objective="marginal_likelihood", bootstrap=True), 0.0),
    ],
    ids=str,
)
def test_plan_that_is_given_asks_no_test(options, trace_decay, monkeypatch):
    monkeypatch.setattr(planning, "markov_test", lambda data: pytest.fail("nobody wants to know"))
    v = quick(**options).fit(hidden_speed(6))
    assert v.trace_decay_ == trace_decay
    assert v.markov_test_ is None


# ------------------------------------------------------------------------------------------ why


def test_plan_of_whole_returns_is_right_where_bootstrapping_is_not():
    """Cov(seen, seen − γ·seen') = 1.25 − γφ: bootstrapping says 2.3·seen, returns 4.2·seen, as it is."""
    mdp, x = Blurred(), np.linspace(-1.5, 1.5, 9)[:, None]
    truth, auto, told = mdp.value(x), [], []
    shares: list[float] = []
    wrong: list[float] = []
    for seed in range(6):
        data = sampled(mdp, 1000, seed)
        v, w = quick().fit(data), quick(bootstrap=True).fit(data)
        assert v.trace_decay_ == 1.0
        auto.append(rmse(v.predict(x), truth))
        told.append(rmse(w.predict(x), truth))
        for found, model in ((shares, v), (wrong, w)):
            lower, upper = model.confidence_interval(x)
            found.append(float(np.mean((lower < truth) & (truth < upper))))
    assert np.mean(auto) < 0.6 * np.mean(told)
    assert np.mean(shares) >= 0.85
    assert np.mean(wrong) < 0.5  # the control


# ------------------------------------------------------------------------------------------ Q


def test_plan_of_q_takes_pairs_of_discrete_actions_for_markov(monkeypatch):
    monkeypatch.setattr(planning, "markov_test", lambda data: pytest.fail("pairs are taken for Markov"))
    data = Table(slip=0.3).sample(300, 0, UNIFORM)
    q = GPTDQ(n_restarts=0).fit(data)
    assert q.bootstrap_ and q.markov_test_ is None
    told = GPTDQ(n_restarts=0, bootstrap=True).fit(data)
    x, a = Table().everywhere
    assert_array_equal(q.predict(x, a), told.predict(x, a))


def test_plan_of_q_with_continuous_actions_may_be_whole_returns():
    """Actions that mean nothing beside a hidden speed: pairs are not Markov either, and their runs stay whole."""
    data = hidden_speed(seed=0)
    actions = np.random.default_rng(0).normal(size=len(data))
    acted = Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)
    q = GPTDQ(n_restarts=0).fit(acted)
    assert q.trace_decay_ == 1.0 and not q.bootstrap_
    assert q.markov_test_ is not None and q.markov_test_.pvalue < 1e-3
    x = data.states[::100]
    before = q.predict(x, actions[::100])
    assert np.isfinite(before).all()
    assert q.partial_fit(acted[:3]).trace_decay_ == 1.0
