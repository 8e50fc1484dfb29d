"""About 2 000 cases of the attack, the same in every run; `make attack` runs as many as one likes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.adversarial.catalogue import CATEGORIES
from tests.adversarial.harness import Category, attacked, judge, table

N_CASES = 2000
SECONDS = 120.0  # only a hang takes so long

# An interrupt that comes while an object is finalised is lost: Python ignores it there.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("category", CATEGORIES, ids=lambda category: category.name)
def test_library_withstands_the_attack(category: Category):
    tally = attacked(category, range(round(N_CASES * category.share)), SECONDS)
    print(table([tally]))
    assert tally.cases == round(N_CASES * category.share)
    assert not tally.failures


def test_shares_of_the_categories_add_up():
    assert sum(category.share for category in CATEGORIES) == pytest.approx(1.0, abs=0.05)


def raising(error: BaseException):
    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("a"), ValueError("a\nb"), ValueError(""), SystemExit(1)])
def test_judge_finds_failures(error: BaseException):
    assert judge(raising(error))


@pytest.mark.parametrize("error", [ValueError("a"), TypeError("a"), FileNotFoundError("a")])
def test_judge_lets_clear_errors_pass(error: Exception):
    assert judge(raising(error)) is None


def test_judge_takes_refusals_for_failures_where_all_is_right():
    assert judge(raising(ValueError("a")), may_refuse=False)


def test_judge_finds_invalid_numbers_and_violated_properties():
    assert judge(lambda: str(np.ones(1) / np.zeros(1)))
    assert judge(lambda: "something is wrong") == "something is wrong"
