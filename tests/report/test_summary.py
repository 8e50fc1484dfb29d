"""The summary of an evaluation in the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from gptd_rl.evaluation import Evaluation
from gptd_rl.report.records import OffPolicy
from gptd_rl.report.summary import most_relevant, summary
from tests.report.evaluations import in_gridworld


def shown(evaluation: Evaluation, width: int = 150) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(summary(evaluation))
    return console.export_text()


def test_summary():
    text = shown(in_gridworld())
    for words in (
        "A2C on Grid[red]-v0: 20 transitions in 5 episodes, 4 of them terminated; ",
        "; γ = 0.95, most likely actions, seed 0",
        "−4.50, 95 % interval −5.00 to −4.00",
        "−20.0 ± 3.0 (95 %) over 4 episodes; Stable-Baselines3 reports −20.0 ± 7.5, the standard deviation of episodes",
        "b 17\u202f%, a 7\u202f%, c 1\u202f%, d 1\u202f%, e 1\u202f%, f 1\u202f%, 2 less important",
        "irrelevant                 h",
        "RMSE ┃ 95 % coverage ┃  half-width ┃  NLPD",
        "Scores against the mean of 200 fresh rollouts at 3 held-out states:",
        "warning: Few episodes.",
    ):
        assert words in text, text
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        ["GPTD", "0.123", "94.7 %", "0.250", "−0.50"],
        ["A2C's critic", "12\u202f346", "30.0 %", "1.00 × 10⁻⁵", "—"],
        ["Monte Carlo", "2.00", "90.0 %", "2.50", "3.00"],
    ]


def test_summary_of_missing_results():
    made = in_gridworld()
    text = shown(
        replace(
            made,
            start=replace(made.start, returns=None, n_episodes=1),
            relevance=replace(made.relevance, kernel="isotropic", irrelevant=()),
            check=replace(made.check, kind="returns", n_rollouts=0),
            off_policy=OffPolicy("PPO", 9, 0.5, 0.5, "They differ."),
            warnings=("They differ.",),
        )
    )
    assert "unknown: 1 complete episode" in text
    assert "irrelevant" not in text and "returns of fresh episodes" in text
    assert "PPO, on data of A2C" in text and text.count("They differ.") == 1
    assert shown(made, 60)  # narrow terminals


def test_most_relevant():
    assert most_relevant(["a"], [0.123]) == "a 0.12"
    assert most_relevant(list("abcdef"), [1, 2, 3, 4, 5, 6]).startswith("f 6.0, e 5.0")
    assert "less relevant" not in most_relevant(list("abcdef"), [1, 2, 3, 4, 5, 6])


def test_evaluation_summary_is_plain_text():
    made = in_gridworld()
    text = made.summary(width=90)
    assert text == "\n".join(line.rstrip() for line in shown(made, 90).splitlines())
    assert max(map(len, text.splitlines())) <= 90 and "\x1b" not in text
    assert str(made) == made.summary()
    assert repr(made) == "Evaluation(A2C on Grid[red]-v0, 20 transitions)"
