"""The recipe "Adding a kernel" of CONTRIBUTING.md, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gptd_rl import GPTD, GPTDQ, OnlineGPTD, Trajectories
from gptd_rl.kernels import ARD, Constant, Kernel, Matern32
from tests.helpers import METRICS
from tests.kernels.checks import PROFILES, KernelChecks

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("## Adding a kernel\n")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)
NAMESPACE: dict[str, Any] = {"__name__": __name__}
exec(compile(BLOCKS[0], "CONTRIBUTING.md", "exec"), NAMESPACE)
RationalQuadratic = NAMESPACE["RationalQuadratic"]
PROFILES[RationalQuadratic] = lambda u: 1.0 / (1.0 + u / 2.0) ** 2.0


class TestRecipe(KernelChecks):
    @pytest.fixture(params=[*METRICS, "composed"])
    def kernel(self, request) -> Kernel:
        if request.param == "composed":
            return RationalQuadratic(METRICS["ard"](), 1.7) * Matern32(METRICS["isotropic"]()) + Constant(0.4)
        return RationalQuadratic(METRICS[request.param](), 1.7)


def test_recipe_is_short():
    assert len(BLOCKS) == 1
    assert BLOCKS[0].count("\n") <= 30


# A walk on the line: V depends on the first input alone; each step costs 1, and the walk ends beyond 4.


def walks(n: int = 25, seed: int = 0) -> Trajectories:
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        x = np.arange(rng.uniform(0.0, 3.0), 5.0, 1.0)
        x = x[: int(np.argmax(x > 4.0)) + 1]
        states = np.column_stack([x, rng.normal(size=len(x))])
        actions = rng.integers(2, size=len(x) - 1)
        episodes.append(dict(observations=states, rewards=-np.ones(len(x) - 1), actions=actions, terminated=True))
    return Trajectories.from_episodes(episodes, gamma=1.0)


STATES = np.array([[0.5, 0.0], [1.5, 1.0], [2.5, -1.0]])
VALUES = [-4.0, -3.0, -2.0]  # so many steps are left


def new_kernel() -> Kernel:
    return RationalQuadratic(ARD([1.0, 1.0])) + Constant()


@pytest.fixture(scope="module", params=["exact", "sparse"])
def v(request) -> GPTD:
    return GPTD(new_kernel(), noise="deterministic", method=request.param, subset_size=50).fit(walks())


def test_recipe_fits(v):
    mean, std = v.predict(STATES, return_std=True)
    assert_allclose(mean, VALUES, atol=0.3)
    assert (std > 0).all()
    assert v.parameter_names_ == ("v0", "b", "noise", "a1", "a2")
    assert v.relevances_[0] > 10 * v.relevances_[1]
    if v.method_ == "exact":
        assert v.inducing_points_ is None and v.exact_
    else:
        assert v.inducing_points_.shape[1] == 2 and not v.exact_


def test_recipe_is_saved_and_loaded(v, tmp_path):
    path = v.save(tmp_path / "v.npz")
    again = GPTD.load(path)
    assert type(again.kernel_.parts[0]) is RationalQuadratic
    assert_array_equal(again.theta_, v.theta_)
    assert_allclose(again.predict(STATES), v.predict(STATES), rtol=1e-9)


def test_recipe_is_pruned(v):
    pruned = v.prune(0.05)
    assert_array_equal(pruned.inputs_, [0])
    assert_allclose(pruned.predict(STATES), VALUES, atol=0.3)


def test_recipe_learns_online(v):
    data = walks(seed=1)
    online = OnlineGPTD.from_batch(v)
    online.update(data)
    assert_allclose(online.predict(STATES), VALUES, atol=0.3)


@pytest.mark.parametrize("method", ["exact", "sparse"])
def test_recipe_learns_q(method, tmp_path):
    q = GPTDQ(new_kernel(), noise="deterministic", method=method, subset_size=60).fit(walks(40))
    values = q.q_values(STATES)
    assert values.shape == (3, 2)
    assert_allclose(values, np.column_stack([VALUES, VALUES]), atol=0.7)
    again = GPTDQ.load(q.save(tmp_path / "q.npz"))
    assert_allclose(again.q_values(STATES), values, rtol=1e-9)
