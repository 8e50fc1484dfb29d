"""Fitted models, not to be changed."""

from __future__ import annotations

import pytest

from gptd_rl import DynamicsModel
from tests.estimators.dynamics.cases import BENT, GOAL, NOISY


@pytest.fixture(scope="package")
def smooth() -> DynamicsModel:
    return DynamicsModel().fit(BENT.sample(300, 0))


@pytest.fixture(scope="package")
def noisy() -> DynamicsModel:
    return DynamicsModel().fit(NOISY.sample(600, 0))


@pytest.fixture(scope="package")
def goal() -> DynamicsModel:
    return DynamicsModel().fit(GOAL.sample(400, 0))
