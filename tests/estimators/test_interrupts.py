"""Ctrl-C at any moment: the best model so far is kept, or the old one as it was; never a mixture of both."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl import GPTD, GPTDQ, OnlineGPTD, Trajectories
from gptd_rl.estimators.conformal import Calibrated
from gptd_rl.estimators.dynamics.model import DynamicsModel
from gptd_rl.exceptions import InterruptedFitWarning
from gptd_rl.inference.exact import ExactPosterior
from gptd_rl.kernels import Isotropic, paper_kernel
from gptd_rl.selection.thinning import Trials

# An interrupt that comes while an object is finalised is lost: Python ignores it there.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

N_MOMENTS = 6  # of interrupts in a test


def walks(n: int, noise: float, seed: int = 0) -> Trajectories:
    """Random walks on a line with two inputs, of which one matters, and two actions."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        x = np.cumsum(rng.normal(size=(9, 2)), axis=0)
        rewards = -np.abs(x[:-1, 0]) + noise * rng.normal(size=8)
        episodes.append(dict(observations=x, rewards=rewards, terminated=True, actions=rng.integers(0, 2, 8)))
    return Trajectories.from_episodes(episodes, gamma=0.9)


DATA, MORE = walks(8, noise=0.0), walks(3, noise=0.0, seed=1)
NOISY = walks(16, noise=3.0)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th call of a function of this library; counts them if n is 0."""

    def __init__(self, n: int = 0) -> None:
        self.n, self.n_calls = n, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and "gptd_rl" in frame.f_code.co_filename:
            self.n_calls += 1
            if self.n_calls == self.n:
                sys.setprofile(None)  # Ctrl-C is pressed once
                raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


def moments(call: Callable[[], object]) -> list[int]:
    """Calls at which to interrupt: some evenly spaced ones, and the last ones, where attributes are set."""
    with Interrupt() as counted:
        call()
    n = counted.n_calls
    return [*np.linspace(1, n, N_MOMENTS).astype(int).tolist(), *range(max(1, n - N_MOMENTS), n)]


def interrupted(call: Callable[[], object], n: int) -> bool:
    """Whether a call that is interrupted at the n-th call within it raises, instead of keeping what it has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterruptedFitWarning)
        try:
            with Interrupt(n):
                call()
        except KeyboardInterrupt:
            return True
    return False


def is_as_before(v: Any, before: dict[str, Any]) -> bool:
    """Whether all attributes are the same objects; otherwise an interrupt came just after the new ones were set."""
    return vars(v).keys() == before.keys() and all(value is before[key] for key, value in vars(v).items())


def assert_consistent(v: Any, data: Any) -> None:
    """All attributes are of one model that is conditioned on `data`."""
    assert v.kernel_ is v.model_.kernel and v.theta_.tolist() == v.model_.theta.tolist()
    assert v.noise_variance_ == v.model_.noise_variance and v.engine_.data is v.data_
    assert v.log_marginal_likelihood_ == v.evidence_.log_likelihood
    asked = (data.states[:5], data.actions[:5]) if isinstance(v, GPTDQ) else (data.states[:5],)
    assert_allclose(v.predict(*asked), v.condition(data).predict(*asked), rtol=1e-6, atol=1e-6)


ESTIMATORS: dict[str, tuple[Callable[[], Any], Trajectories]] = {
    "default": (lambda: GPTD(n_restarts=0), NOISY),
    "deterministic": (lambda: GPTD(n_restarts=0), DATA),
    "all kernels": (lambda: GPTD("auto", objective="marginal_likelihood", n_restarts=0), DATA),
    "bootstrap": (lambda: GPTD(bootstrap=True, n_restarts=0), NOISY),
    "sparse": (lambda: GPTD(method="sparse", subset_size=10, n_restarts=0), NOISY),
    "Q": (lambda: GPTDQ(n_restarts=0), NOISY),
}


@pytest.mark.parametrize(("make", "data"), ESTIMATORS.values(), ids=ESTIMATORS)
def test_fit_keeps_the_best_model_so_far_or_nothing(make, data):
    at = moments(lambda: make().fit(data))
    raised = []
    for n in at:
        v = make()
        before = dict(vars(v))
        raised.append(interrupted(partial(v.fit, data), n))
        if not (raised[-1] and is_as_before(v, before)):
            assert_consistent(v, data)
    assert not any(raised[N_MOMENTS // 2 : N_MOMENTS - 1]), "in the second half a model was found"


@pytest.mark.parametrize("name", ["default", "bootstrap"])
def test_fit_keeps_the_last_model_as_it_was_if_nothing_new_was_found(name):
    make, data = ESTIMATORS[name]
    v = make().fit(data)
    before = dict(vars(v))
    assert interrupted(lambda: v.fit(data[:8]), 20)
    assert is_as_before(v, before)


def test_fit_warns_that_it_was_interrupted():
    v = GPTD(n_restarts=0)
    n = moments(lambda: GPTD(n_restarts=0).fit(NOISY))[N_MOMENTS // 2]
    with pytest.warns(InterruptedFitWarning, match="best model found so far"), Interrupt(n):
        v.fit(NOISY)
    assert v.comparison_.interrupted and "variant" in str(v.comparison_)


def test_fit_interrupted_while_the_thinning_is_chosen_keeps_the_first_model(monkeypatch):
    v, original = GPTD(bootstrap=False, n_restarts=0), Trials._search
    runs: list[tuple[int, Any]] = []

    def search(self: Trials, every: int, larger: Any) -> Any:
        if runs:
            raise KeyboardInterrupt
        runs.append((every, original(self, every, larger)))
        return runs[-1][1]

    monkeypatch.setattr(Trials, "_search", search)
    data = walks(8, noise=0.7)  # for which several thinnings are tried
    with pytest.warns(InterruptedFitWarning):
        v.fit(data)
    assert v.thinning_ == runs[0][0] > 1
    assert v.model_ is runs[0][1].model
    assert_consistent(v, data)


def test_fit_conditions_the_model_that_was_found_after_an_interrupt(monkeypatch):
    condition = ExactPosterior.condition
    pressed: list[bool] = []

    def stop(*arguments: Any) -> Any:
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return condition(*arguments)

    monkeypatch.setattr(ExactPosterior, "condition", stop)
    expected = GPTD(objective="marginal_likelihood", n_restarts=0)
    with pytest.warns(InterruptedFitWarning):
        v = GPTD(objective="marginal_likelihood", n_restarts=0).fit(DATA)
    assert_allclose(v.theta_, expected.fit(DATA).theta_)


@pytest.mark.parametrize(
    "options",
    [dict(), dict(method="sparse", subset_size=10), dict(bootstrap=True)],
    ids=["exact", "sparse", "bootstrap"],
)
def test_partial_fit_takes_all_or_nothing(options):
    def fitted() -> GPTD:
        return GPTD(n_restarts=0, **options).fit(DATA)

    counted, v = fitted(), fitted()
    for n in moments(lambda: counted.partial_fit(MORE)):
        before = dict(vars(v))
        raised = interrupted(partial(v.partial_fit, MORE), n)
        if not (raised and is_as_before(v, before)):
            assert_consistent(v, DATA + MORE)
            v = fitted()


@pytest.mark.parametrize("name", ["fit", "partial_fit"])
def test_fitted_attributes_are_set_in_one_step(name, monkeypatch):
    v = GPTD(n_restarts=0).fit(DATA)
    before = dict(vars(v))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GPTD, "_relevances", stop)  # needed when half of the attributes are known
        with pytest.raises(KeyboardInterrupt):
            getattr(v, name)(MORE)
    assert is_as_before(v, before)


CALLS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "greedy": (lambda: GPTDQ(subset_size=20), lambda q: q.fit(DATA, policy="greedy")),
    "calibrated": (lambda: Calibrated(GPTD("isotropic", n_restarts=0), n_folds=2), lambda v: v.fit(DATA)),
    "dynamics": (lambda: DynamicsModel(subset_size=20), lambda m: m.fit(DATA)),
    "online": (
        lambda: OnlineGPTD(paper_kernel(Isotropic(0.1, 2), 10.0), 0.1).update(MORE),
        lambda v: v.update(DATA),
    ),
    "online bootstrap": (
        lambda: OnlineGPTD(paper_kernel(Isotropic(0.1, 2), 10.0), 0.1, bootstrap=True).update(MORE),
        lambda v: v.update(DATA),
    ),
}


@pytest.mark.parametrize(("make", "call"), CALLS.values(), ids=CALLS)
def test_other_estimators_take_all_or_nothing(make, call):
    whole = set(vars(call(make())))
    made = make()
    for n in moments(lambda: call(made)):
        v = make()
        before = dict(vars(v))
        state = v.predict(DATA.states) if isinstance(v, OnlineGPTD) else None
        if interrupted(partial(call, v), n) and is_as_before(v, before):
            assert state is None or (v.predict(DATA.states) == state).all()
        else:
            assert set(vars(v)) == whole
            assert all(value is not before.get(key) for key, value in vars(v).items() if key == "posterior_")
