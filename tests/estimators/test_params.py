"""Estimators have scikit-learn's habits: parameters, clones, pickles, representations."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.utils import estimator_html_repr

from gptd_rl import ARD, GPTD, GPTDQ, Isotropic, OnlineGPTD, Trajectories
from gptd_rl.estimators.params import Parameters
from gptd_rl.kernels import Constant, Matern52, paper_kernel
from tests.mdps import Drifting

KERNEL = Matern52(ARD([0.5, 0.2]), 3.0) + Constant(2.0)
QUICK: dict[str, Any] = dict(objective="marginal_likelihood", n_restarts=0)


def plain() -> Trajectories:
    return Drifting(time_limit=25).sample(120, np.random.default_rng(0))


def logged() -> Trajectories:
    data = plain()
    actions = np.random.default_rng(0).integers(2, size=len(data))
    actions[data.last] = 0
    return Trajectories(data.states, data.rewards, data.discounts, data.lengths, data.terminated, actions)


def unfitted() -> dict[str, Any]:
    return {
        "GPTD": GPTD(KERNEL, **QUICK),
        "sparse GPTD": GPTD(KERNEL, method="sparse", subset_size=15, **QUICK),
        "GPTDQ": GPTDQ(KERNEL, **QUICK),
        "sparse GPTDQ": GPTDQ(KERNEL, method="sparse", subset_size=15, **QUICK),
        "OnlineGPTD": OnlineGPTD(KERNEL, 0.3),
    }


def fit(v: Any) -> Any:
    if isinstance(v, OnlineGPTD):
        return v.update(plain())
    return v.fit(logged() if isinstance(v, GPTDQ) else plain())


def answers(v: Any) -> np.ndarray:
    x = np.random.default_rng(1).normal(size=(8, 2))
    arguments = (x, np.arange(8) % 2) if isinstance(v, GPTDQ) else (x,)
    return np.concatenate([*v.predict(*arguments, return_std=True), *v.confidence_interval(*arguments)])


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    return {name: fit(v) for name, v in unfitted().items()}


every_estimator = pytest.mark.parametrize("name", unfitted())


# -------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("estimator", [GPTD, GPTDQ])
def test_constructor_stores_every_parameter_unchanged(estimator):
    values: dict[str, Any] = {name: object() for name in inspect.signature(estimator).parameters}
    v = estimator(**values)
    for name, value in values.items():
        assert getattr(v, name) is value, name
    assert v.get_params(deep=False) == values
    assert not [name for name in vars(v) if name.endswith("_")], "nothing is learnt before fit"


def test_constructor_of_online_learning_stores_every_parameter_unchanged():
    values: dict[str, Any] = dict(
        kernel=KERNEL,
        noise_variance=0.3,
        noise="deterministic",
        bootstrap=False,
        tolerance=0.01,
        max_size=20,
        keep_history=False,
        forgetting=0.99,
    )
    assert set(values) == set(inspect.signature(OnlineGPTD).parameters)
    v = OnlineGPTD(**values)
    for name, value in values.items():
        assert getattr(v, name) is value, name


@every_estimator
def test_clone_has_the_parameters_and_nothing_learnt(name, fitted):
    v = fitted[name]
    copy = clone(v)
    assert type(copy) is type(v) and copy is not v
    ours, theirs = v.get_params(), copy.get_params()
    assert ours.keys() == theirs.keys()
    for key in ours.keys() - {"kernel"}:
        assert ours[key] == theirs[key], key
    assert_array_equal(copy.kernel.theta, v.kernel.theta)
    with pytest.raises(ValueError, match=r"call (fit|update)"):
        answers(copy)
    assert_allclose(answers(fit(copy)), answers(v), rtol=1e-9)


@every_estimator
def test_set_params_changes_what_get_params_returns(name):
    v = unfitted()[name]
    other = paper_kernel(Isotropic(0.3, 2))
    assert v.set_params(kernel=other, noise="deterministic") is v
    assert v.get_params()["kernel"] is other and v.get_params()["noise"] == "deterministic"
    with pytest.raises(ValueError, match=rf"^{type(v).__name__} has no parameter 'colour'; it has \["):
        v.set_params(colour=3)
    with pytest.raises(ValueError, match=r"^kernel of .* is no estimator: it has no parameter 'v0'\.$"):
        v.set_params(kernel__v0=3.0)


class Wrapped(Parameters):
    """An estimator around another one."""

    def __init__(self, inner: Any = None, size: int = 3) -> None:
        self.inner, self.size = inner, size


def test_nested_parameters_are_reached_by_two_underscores():
    v = Wrapped(Wrapped(GPTD("ard")))
    params = v.get_params()
    assert params["inner__size"] == 3 and params["inner__inner__kernel"] == "ard"
    assert "inner__inner__kernel" not in v.get_params(deep=False)
    v.set_params(size=1, inner__size=2, inner__inner__kernel="isotropic", inner__inner__n_restarts=0)
    assert (v.size, v.inner.size, v.inner.inner.kernel, v.inner.inner.n_restarts) == (1, 2, "isotropic", 0)
    copy = clone(v)
    assert copy.inner.inner is not v.inner.inner
    assert copy.inner.inner.get_params() == v.inner.inner.get_params()


def test_set_params_of_online_learning_begins_anew(fitted):
    v = clone(fitted["OnlineGPTD"]).update(plain())
    v.set_params(noise_variance=3.0)
    assert v.n_transitions_ == 0
    assert_allclose(answers(v.update(plain())), answers(OnlineGPTD(KERNEL, 3.0).update(plain())))
    with pytest.raises(ValueError, match="noise_variance must be positive"):
        v.set_params(noise_variance=-1.0)
    assert v.noise_variance == 3.0 and v.n_transitions_ == plain().n_transitions, "nothing was changed"


# -------------------------------------------------------------------------------------- pickles


@every_estimator
def test_unfitted_estimators_can_be_pickled(name, fitted):
    again = pickle.loads(pickle.dumps(unfitted()[name]))
    assert_allclose(answers(fit(again)), answers(fitted[name]), rtol=1e-9)


@every_estimator
def test_fitted_estimators_can_be_pickled(name, fitted):
    v = fitted[name]
    again = pickle.loads(pickle.dumps(v))
    assert_array_equal(answers(again), answers(v))
    assert repr(again) == repr(v)


# -------------------------------------------------------------------------------------- representations


@every_estimator
def test_repr_of_a_fitted_model_says_what_was_fitted(name, fitted):
    before, after = repr(unfitted()[name]), repr(fitted[name])
    assert before.startswith(f"{type(fitted[name]).__name__}(") and "Matern52(" in before
    assert "\n" not in after and len(after) < 400
    call, _, comment = after.partition("  # ")
    if name == "OnlineGPTD":
        assert "120 transitions" in comment and "states in the dictionary" in comment
    else:
        assert call == before
        method = "sparse" if name.startswith("sparse") else "exact"
        assert comment.startswith(f"fitted: {method}, ") and "2 inputs, log evidence" in comment


@every_estimator
def test_html_representation(name, fitted):
    for v in (unfitted()[name], fitted[name]):
        text = v._repr_html_()
        assert text.startswith("<details>") and "noise_variance" in text and "Matern52" in text
        assert estimator_html_repr(v)


def test_html_representation_is_escaped():
    text = GPTD("<script>alert('x')</script>")._repr_html_()
    assert "<script>" not in text and "&lt;script&gt;" in text and "not fitted" in text
