"""Saving and loading a dynamics model."""

from __future__ import annotations

import pytest
from numpy.testing import assert_allclose

import gptd_rl
from gptd_rl import DynamicsModel
from gptd_rl.exceptions import NotFittedError
from tests.estimators.dynamics.cases import BENT, BOUNDS, answers, hits_wall
from tests.systems import transitions


@pytest.mark.parametrize("name", ["smooth", "noisy", "goal", "wall"])
def test_a_saved_model_is_the_same(name, request, tmp_path):
    if name == "wall":
        x, a, reached, _ = hits_wall(300, 0)
        model = DynamicsModel(bounds=BOUNDS, n_actions=2).fit(transitions(x, a, reached, 0.0))
        assert model.walls_
    else:
        model = request.getfixturevalue(name)
    loaded = gptd_rl.load(model.save(tmp_path / "model.npz"))
    assert isinstance(loaded, DynamicsModel)
    for mine, theirs in zip(answers(loaded), answers(model), strict=True):
        assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)
    assert_allclose(loaded.complete().next_states, model.complete().next_states, atol=1e-10)
    assert loaded.get_params().keys() == model.get_params().keys()


def test_an_unfitted_model_says_so(tmp_path):
    for ask in (
        lambda m: m.save(tmp_path / "model.npz"),
        lambda m: m.predict([[0.0]], [0]),
        lambda m: m.complete(),
        lambda m: m.simulate(None, [[0.0]], 2),
        lambda m: m.errors(BENT.sample(20, 0)),
    ):
        with pytest.raises(NotFittedError, match=r"call fit\(data\) first"):
            ask(DynamicsModel())
