"""How far to thin: not at all where nothing is random, and far enough where the plain evidence is fooled."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl import GPTD, Trajectories
from gptd_rl.exceptions import RelevanceWarning
from gptd_rl.selection import thinning
from tests.mdps import Drifting, Garnet, Gridworld, Spiral, Walk, rmse

FOOLED = Drifting(phi=0.8, gamma=0.9, time_limit=25, drift=0.02)
SEEDS = (0, 1)


# -------------------------------------------------------------------------------------- deterministic systems


@pytest.mark.parametrize(
    ("mdp", "n"),
    [
        (Gridworld(), 300),
        (Gridworld(gamma=0.9), 60),
        (Spiral(), 200),
        (Walk(n_cells=20, p_right=1.0, prize=5.0), 200),
    ],
    ids=["gridworld", "few", "spiral", "corridor"],
)
def test_deterministic_systems_are_not_thinned(mdp, n):
    data = mdp.sample(n, np.random.default_rng(0))
    auto, plain = (GPTD(objective=o, n_restarts=0).fit(data) for o in ("auto", "marginal_likelihood"))
    assert auto.thinning_ == 1
    x = np.unique(data.states, axis=0)
    assert_allclose(auto.predict(x), plain.predict(x), atol=1e-2 * plain.predict(x).std())
    assert_allclose(auto.log_marginal_likelihood_, plain.log_marginal_likelihood_, atol=0.1)


def test_the_deterministic_noise_model_is_never_thinned():
    data = FOOLED.sample(100, np.random.default_rng(0))
    v = GPTD(noise="deterministic").fit(data)
    assert v.thinning_ == 1
    assert v.thinning_trials_ == []


# -------------------------------------------------------------------------------------- the trap and the cure


@pytest.fixture(scope="module")
def runs():
    """The plain evidence and the automatic choice beside each other, in a system with an input that drifts."""
    out = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        data = FOOLED.sample(500, rng)
        plain = GPTD(objective="marginal_likelihood", n_restarts=0).fit(data)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            auto = GPTD(bootstrap=False, n_restarts=0).fit(data)
        x = rng.normal(size=(200, 2))
        out.append((data, plain, auto, x, [w for w in caught if w.category is RelevanceWarning]))
    return out


def test_the_plain_evidence_takes_the_drifting_input_for_relevant(runs):
    for data, plain, *_ in runs:
        strength = plain.relevances_ * data.states.var(axis=0)
        assert strength[1] > 10.0 * strength[0]


def test_thinning_finds_the_input_that_matters(runs):
    for data, _, auto, *_ in runs:
        strength = auto.relevances_ * data.states.var(axis=0)
        assert auto.thinning_ > 1
        assert strength[0] > 10.0 * strength[1]


def test_thinning_has_clearly_lower_error(runs):
    """The plain evidence is worse than a constant; the thinned one is not."""
    errors = []
    for _, plain, auto, x, _ in runs:
        truth = FOOLED.value(x)
        errors.append([rmse(v.predict(x), truth) / truth.std() for v in (plain, auto)])
    plain_error, auto_error = np.mean(errors, axis=0)
    assert plain_error > 1.1
    assert auto_error < 0.9
    assert auto_error < 0.7 * plain_error


def test_disagreement_is_said_aloud(runs):
    for *_, caught in runs:
        assert len(caught) == 1
        message = str(caught[0].message)
        assert "calls input 1 the most relevant" in message and "say input 0" in message
        assert caught[0].filename == __file__, "the warning points at the call of fit"


def test_agreement_is_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RelevanceWarning)
        v = GPTD(bootstrap=False, n_restarts=0).fit(Garnet().sample(200, np.random.default_rng(1)))
    assert len(v.thinning_trials_) > 1


def test_the_trials_are_a_table(runs):
    data, _, auto, *_ = runs[0]
    trials = auto.thinning_trials_
    assert [t.thinning for t in trials] == thinning.candidates(data)
    assert trials[0].thinning == 1
    assert auto.thinning_ in [t.thinning for t in trials]
    for t in trials:
        assert t.relevances.shape == (2,)
        assert t.error > 0
        assert 0 < t.noise_share < 10
        assert t.squared_errors.shape == (data.n_segments,)
        assert_allclose(t.error, np.sqrt(t.squared_errors.sum() / data.n_rows))
    chosen = next(t for t in trials if t.thinning == auto.thinning_)
    assert chosen.error < trials[0].error, "left-out episodes are predicted better"


def test_the_largest_thinning_that_is_as_good_as_the_best_is_kept(runs):
    for data, _, auto, *_ in runs:
        trials = auto.thinning_trials_
        best = min(trials, key=lambda t: t.error)
        assert auto.thinning_ >= best.thinning
        for t in trials:
            if t.thinning > auto.thinning_:
                loss = t.squared_errors - best.squared_errors
                assert loss.sum() > np.sqrt(data.n_segments) * loss.std(), "clearly worse"


def test_a_thinned_posterior_is_wider(runs):
    """It takes τ neighbouring returns for one, so it claims less."""
    _, _, auto, x, _ = runs[0]
    same = GPTD(objective="marginal_likelihood")
    same.mean_ = None
    same._adopt(auto._engine(""), auto.model_, 1, False)
    _, thinned_std = auto.predict(x, return_std=True)
    _, plain_std = same.predict(x, return_std=True)
    assert (thinned_std > plain_std).all()


def test_smaller_thinnings_go_on_from_larger_ones(monkeypatch):
    """A trial that begins where the last one ended needs a handful of evaluations, not an exploration."""
    n_evaluations = []
    original = thinning.Trials.run

    def run(self, every, larger=None):
        result = original(self, every, larger)
        n_evaluations.append((every, result.found.n_evaluations))
        return result

    monkeypatch.setattr(thinning.Trials, "run", run)
    GPTD("isotropic", bootstrap=False).fit(FOOLED.sample(300, np.random.default_rng(0)))
    assert [every for every, _ in n_evaluations] == [10, 3, 1]
    assert all(n < 40 for _, n in n_evaluations)


# -------------------------------------------------------------------------------------- candidates and the judged part


def episodes(n: int, length: int, gamma: float) -> Trajectories:
    rng = np.random.default_rng(0)
    return Trajectories.from_episodes(
        [dict(observations=rng.normal(size=(length + 1, 1)), rewards=rng.normal(size=length)) for _ in range(n)],
        gamma=gamma,
    )


def test_horizon_is_the_discounts_or_the_segments():
    assert_allclose(thinning.horizon(episodes(3, 200, 0.9)), 10.0)
    assert_allclose(thinning.horizon(episodes(3, 19, 0.99)), 20.0)
    assert_allclose(thinning.horizon(episodes(3, 19, 1.0)), 20.0)


@pytest.mark.parametrize(("length", "gamma"), [(1, 0.9), (4, 0.99), (30, 0.9), (500, 0.97), (500, 0.999)])
def test_candidates_grow_from_one_and_leave_something_to_see(length, gamma):
    data = episodes(3, length, gamma)
    tried = thinning.candidates(data)
    assert tried[0] == 1
    assert tried == sorted(set(tried))
    assert max(tried) <= max(1.0, 2.0 / (1.0 - gamma))
    for every in tried:
        assert data.thin(every).n_rows >= data.n_segments


def test_the_thinned_objective_takes_the_horizon_by_default():
    data = episodes(6, 60, 0.9)
    assert GPTD("isotropic", objective="thinned", n_restarts=0).fit(data).thinning_ == 10
    assert GPTD("isotropic", objective="thinned", thinning=4, n_restarts=0).fit(data).thinning_ == 4


def test_few_long_runs_are_cut_so_that_there_is_something_to_leave_out():
    for n in (1, 2, 4):
        data = episodes(n, 120, 0.9)
        part = thinning.validation_subset(data)
        assert part.n_segments >= thinning.MIN_SEGMENTS
        assert part.n_transitions == data.n_transitions


@pytest.mark.parametrize(("n", "length"), [(3000, 4), (60, 100), (5, 4000), (1, 20_000)])
def test_thinnings_are_judged_on_a_bounded_part(n, length):
    """Leaving episodes out takes a dense matrix of the part: it must not grow with the data."""
    part = thinning.validation_subset(episodes(n, length, 0.9))
    assert part.n_segments >= thinning.MIN_SEGMENTS
    assert len(part) <= 2 * thinning.VALIDATION_SIZE
