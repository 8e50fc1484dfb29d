"""``import gptd_rl`` is quick: what is slow to import waits until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gptd_rl

SLOW = (
    "joblib",
    "scipy.stats",
    "scipy.optimize",
    "scipy.spatial",
    "matplotlib",
    "rich",
    "minari",
    "torch",
    "stable_baselines3",
)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_leaves_slow_modules_alone():
    loaded = run("import sys, gptd_rl; print(*sys.modules)").split()
    assert "gptd_rl.estimators.gptd" in loaded
    assert not set(SLOW) & set(loaded)


@pytest.mark.parametrize("name", gptd_rl.__all__)
def test_every_public_name_is_there(name: str):
    assert name in dir(gptd_rl)
    assert callable(getattr(gptd_rl, name)) or name == "__version__"
    assert getattr(gptd_rl, name) is getattr(gptd_rl, name)


def test_star_import_brings_every_public_name():
    assert run("from gptd_rl import *; import gptd_rl; print(set(gptd_rl.__all__) <= set(globals()))").split() == [
        "True"
    ]


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gptd_rl' has no attribute 'gtpd'"):
        _ = gptd_rl.gtpd  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "program",
    [
        "import gymnasium as gym, gptd_rl; gym.make('gptd_rl/PendulumSwingUp-v0')",
        "import gptd_rl, gymnasium as gym; gym.make('gptd_rl/LatentGridworld-v0')",
        "import gymnasium as gym; gym.make('gptd_rl:gptd_rl/PendulumSwingUp-v0')",
    ],
)
def test_import_registers_the_environments(program: str):
    run(program)
