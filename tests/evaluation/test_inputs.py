"""What is said of inputs whose role is known: linear, quadratic, irrelevant, copies, in interaction, discrete."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gptd_rl import GPTD, Trajectories
from gptd_rl.estimators.exclusions import Cost, Exclusions
from gptd_rl.evaluation import inputs
from gptd_rl.evaluation.candidates import select
from gptd_rl.report.inputs import headline, remarks, sentences
from gptd_rl.report.records import Relevance
from gptd_rl.types import Array

NAMES = ("x", "y", "z")
N_EPISODES, LENGTH = 25, 20


def episodes(states: Array, reward: Callable[[Array], Array], noise: float = 0.1, gamma: float = 0.5) -> Trajectories:
    """Episodes of independent states: V is the reward, and a constant."""
    rng = np.random.default_rng(3)
    pieces = states.reshape(N_EPISODES, LENGTH, -1)
    return Trajectories.from_episodes(
        [dict(observations=x, rewards=(reward(x) + noise * rng.normal(size=LENGTH))[:-1]) for x in pieces], gamma=gamma
    )


def normal(seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(N_EPISODES * LENGTH, 3))


def copied() -> Array:
    x = normal()
    x[:, 1] = x[:, 0]
    return x


def analysed(data: Trajectories, kernel: str = "ard") -> Relevance:
    v = select(data, kernel == "isotropic", False)
    return inputs.analyse(v, data, v.predict)


def said(found: Relevance) -> str:
    names = NAMES[: len(found.scaled_relevances)]
    return " ".join([headline(found, names), "|", *remarks(found, names), "|", *sentences(found, names)])


def test_linear_quadratic_and_irrelevant_inputs():
    found = analysed(episodes(normal(), lambda x: 2.0 * x[:, 0] + x[:, 1] ** 2 / np.sqrt(2.0)))
    # variances 4 and 1
    assert_allclose(found.importances.total_effects, [0.8, 0.2, 0.0], atol=0.07)
    assert found.scaled_relevances[0] < found.scaled_relevances[1]  # bends less, and matters more
    assert found.irrelevant == (2,) and found.alike == ()
    assert found.costs[0].evidence > 30 and found.costs[1].evidence > 10 and abs(found.costs[2].evidence) < 1
    assert found.costs[0].error > 0.3 and found.costs[2].is_nothing
    text = said(found)
    assert text.startswith("x 8") and "1 of 3 inputs irrelevant." in text
    assert "Irrelevant: z. Less than 1 % of the value’s variance depends on it. Without it the evidence" in text
    assert "carry the same" not in text and "act together" not in text


def test_a_nearly_linear_input_is_wanted_although_its_relevance_is_small():
    found = analysed(episodes(normal(), lambda x: 10.0 * x[:, 0], noise=3.0))
    assert found.scaled_relevances[0] < Relevance.STRAIGHT or found.importances.total_effects[0] > 0.9
    assert found.irrelevant == (1, 2)
    text = said(found)
    assert "2 of 3 inputs irrelevant." in text and "depends on each of them. Without them the evidence" in text
    if found.scaled_relevances[0] < Relevance.STRAIGHT:
        assert "The value is nearly linear in x, so the relevance is small, but it is wanted: without it the" in text


def test_inputs_in_interaction_only():
    found = analysed(episodes(normal(), lambda x: x[:, 0] * x[:, 1]))
    assert_allclose(found.importances.total_effects, [1.0, 1.0, 0.0], atol=0.15)
    assert found.irrelevant == (2,) and min(cost.evidence for cost in found.costs[:2]) > 30
    text = said(found)
    assert "Inputs act together: the shares add up to" in text and "Irrelevant: z." in text


@pytest.mark.parametrize("reward", [lambda x: np.sin(2.0 * x[:, 0]), lambda x: 3.0 * x[:, 1]], ids=["sine", "linear"])
def test_copies_can_be_left_out_but_not_both(reward):
    found = analysed(episodes(copied(), reward))
    assert found.importances.upper[:2].max() < 0.05
    assert found.costs[0].is_nothing and found.costs[1].is_nothing
    assert found.alike == ((0, 1),) and found.irrelevant == (2,)
    text = said(found)
    assert text.startswith("x or y | x and y carry the same information: either can be left out, not both.")
    assert "Irrelevant: z." in text and "Irrelevant: x" not in text


def test_three_copies_and_nothing_else():
    x = normal()[:, [0, 0, 0]]
    found = analysed(episodes(x, lambda x: np.sin(2.0 * x[:, 0])))
    assert found.alike == ((0, 1, 2),) and found.irrelevant == ()
    assert "x, y and z carry the same information: each can be left out, not all of them." in said(found)


def test_discrete_inputs():
    x = np.random.default_rng(0).integers(0, 4, size=(N_EPISODES * LENGTH, 3)).astype(float)
    found = analysed(episodes(x, lambda x: 2.0 * (x[:, 0] == 2) + x[:, 1]))
    # variances 4·3/16 and 5/4
    assert_allclose(found.importances.total_effects, [0.375, 0.625, 0.0], atol=0.12)  # of 500 states
    assert found.irrelevant == (2,) and "Irrelevant: z." in said(found)


def test_one_hot_categories_share_a_relevance_and_none_is_left_out():
    x = np.eye(3)[np.random.default_rng(0).integers(0, 3, size=N_EPISODES * LENGTH)]
    found = analysed(episodes(x, lambda x: x[:, 0]), kernel="isotropic")
    assert found.kernel == "isotropic" and found.costs == () and found.irrelevant == ()
    assert sentences(found, NAMES)[0].startswith("The kernel has one relevance for all inputs.")


def test_two_irrelevant_inputs_are_not_alike():
    found = analysed(episodes(normal()[:, :2], lambda x: np.zeros(len(x)), noise=1.0))
    assert found.alike == () and "carry the same" not in said(found)


def test_the_sentence_quotes_the_evidence_without_the_inputs_it_names():
    data = episodes(normal(), lambda x: x[:, 0] ** 2)
    v = GPTD(n_restarts=0).fit(data)
    found = inputs.analyse(v, data, v.predict)
    exclusions = Exclusions.of(v)
    assert found.irrelevant == (1, 2) and found.irrelevant_cost == exclusions.cost([1, 2])
    assert found.evidence == exclusions.evidence
    after = f"{exclusions.evidence - exclusions.cost([1, 2]).evidence:.2f}".replace("-", "−")
    assert f"to {after}, and left-out episodes" in said(found)


def test_nothing_is_left_out_unless_asked():
    data = episodes(normal(), lambda x: x[:, 0])
    v = GPTD(n_restarts=0).fit(data)
    found = inputs.analyse(v, data, v.predict, leave_out=False)
    assert found.costs == () and found.irrelevant == () and np.isnan(found.evidence)
    assert "irrelevant" not in said(found)


def test_cost_is_nothing_only_if_both_say_so():
    assert Cost(1.0, 0.02, 0.02).is_nothing and Cost(1.0, np.nan, np.nan).is_nothing
    assert Cost(-50.0, 1e-5, 1e-9).is_nothing
    assert not Cost(4.0, 0.0, 0.1).is_nothing and not Cost(0.0, 0.05, 0.02).is_nothing
    assert "evidence +50.0 nats, squared error" in str(Cost(-50.0, 0.0, 0.1))
    assert str(Cost(2.0, np.nan, np.nan)) == "evidence -2.0 nats"


def test_bootstrapped_models_are_compared_with_the_same_instruments():
    x = normal()
    data = episodes(x, lambda x: 2.0 * x[:, 0], noise=2.0, gamma=0.9)
    v = GPTD(bootstrap=True, n_restarts=0).fit(data)
    assert v.bootstrap_
    found = inputs.analyse(v, data, v.predict)
    assert found.costs[0].evidence > 10 and found.irrelevant == (1, 2)
    pruned = v.prune(1e6)
    assert pruned.inputs_.tolist() == [0] and pruned.pruning_.cost is not None and pruned.pruning_.cost.is_nothing
