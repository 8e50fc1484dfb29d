"""Only registered kernel classes can be saved and built from files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl import GPTD, Trajectories
from gptd_rl.kernels import ARD, ActionDelta, Constant, Matern52, SquaredExponential, registry


def test_descriptions_are_plain_json():
    kernel = (Matern52(ARD([0.0, 1 / 3]), 1 / 7) + Constant(0.0, fixed=["b"])) * ActionDelta(3, 0.5)
    again = registry.build(json.loads(json.dumps(registry.describe(kernel))))
    states = np.random.default_rng(0).normal(size=(5, 3))
    states[:, -1] = [0, 1, 2, 1, 0]
    assert_array_equal(again(states), kernel(states))
    assert again.fixed == {"b"}


def test_a_subclass_is_not_saved_as_its_base():
    class Smoother(SquaredExponential):
        pass

    message = (
        r"^kernel class Smoother is not registered, so a model with it cannot be saved: "
        r"decorate the class with gptd_rl\.kernels\.register\.$"
    )
    with pytest.raises(TypeError, match=message):
        registry.describe(Smoother(ARD([1.0])))
    with pytest.raises(TypeError, match=message):
        registry.describe(Smoother(ARD([1.0])) + Constant())


def test_a_class_of_the_same_name_is_not_saved_as_the_registered_one():
    class Matern52(SquaredExponential):
        pass

    with pytest.raises(TypeError, match=r"^kernel class Matern52 is not registered"):
        registry.describe(Matern52(ARD([1.0])))


def test_an_unregistered_kernel_fits_but_is_not_saved(tmp_path):
    class Unregistered(SquaredExponential):
        pass

    episode = dict(observations=np.arange(6.0)[:, None], rewards=-np.ones(5), terminated=True)
    v = GPTD(Unregistered(ARD([1.0])) + Constant()).fit(Trajectories.from_episodes([episode], gamma=1.0))
    assert np.isfinite(v.predict([[2.0]])).all()
    with pytest.raises(TypeError, match=r"^kernel class Unregistered is not registered"):
        v.save(tmp_path / "v.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["Periodic", None])
def test_build_refuses_unknown_classes_in_one_line(name):
    message = rf"^kernel class {name!r} is not registered: import the module that defines it first\.$"
    with pytest.raises(ValueError, match=message):
        registry.build(dict(type=name))
