"""Only registered kernel classes can be saved and built from files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gptd_rl import GPTD, Trajectories
from gptd_rl.kernels import ARD, ActionDelta, Constant, Matern52, SquaredExponential, registry

Matern52Kernel = Matern52


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


def test_register_refuses_another_class_of_the_same_name():
    class Matern52(SquaredExponential):
        pass

    with pytest.raises(ValueError, match=r"Matern52'> is registered under this name already") as error:
        registry.register(Matern52)
    assert "\n" not in str(error.value)
    assert isinstance(registry.build(registry.describe(Matern52Kernel(ARD([1.0])))), Matern52Kernel)


def test_register_takes_a_class_again():
    """A cell of a notebook that is run twice."""

    def define():
        @registry.register
        class Cell(SquaredExponential):
            pass

        return Cell

    define()
    again = define()
    assert type(registry.build(registry.describe(again(ARD([1.0]))))) is again


def test_describe_refuses_fields_that_to_dict_leaves_out():
    @registry.register
    @dataclass(frozen=True, eq=False, repr=False)
    class Powered(Matern52Kernel):
        power: float = 2.0

        def __init__(self, metric, signal_variance=1.0, fixed=(), power=2.0):
            super().__init__(metric, signal_variance, fixed)
            object.__setattr__(self, "power", power)

    registry.describe(Powered(ARD([1.0])))  # of the default nothing is lost
    for kernel in (Powered(ARD([1.0]), power=3.0), Powered(ARD([1.0]), power=3.0) + Constant()):
        with pytest.raises(TypeError, match=r"class Powered cannot be saved, .* lose its power: override them\.$"):
            registry.describe(kernel)


def test_describe_refuses_what_from_dict_does_not_take():
    @registry.register
    class Strict(Matern52Kernel):
        def __init__(self, metric, power):
            super().__init__(metric)
            object.__setattr__(self, "power", power)

    with pytest.raises(TypeError, match="class Strict cannot be saved, because from_dict does not take") as error:
        registry.describe(Strict(ARD([1.0]), 2.0))
    assert "\n" not in str(error.value)


def test_describe_refuses_subclasses_of_metrics(tmp_path):
    class Own(ARD):
        pass

    metric: Any = Own([1.0])
    with pytest.raises(TypeError, match=r"^metric class Own is not one of .* so it cannot be saved\.$"):
        registry.describe(SquaredExponential(metric))
    episode = dict(observations=np.arange(6.0)[:, None], rewards=-np.ones(5), terminated=True)
    v = GPTD(SquaredExponential(metric) + Constant()).fit(Trajectories.from_episodes([episode], gamma=1.0))
    with pytest.raises(TypeError, match=r"^metric class Own"):
        v.save(tmp_path / "v.gptd")
    assert not list(tmp_path.iterdir())
