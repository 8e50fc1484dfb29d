"""Numbers as text."""

from __future__ import annotations

import pytest

from gptd_rl.report.numbers import number


@pytest.mark.parametrize(
    ("value", "uncertainty", "shown"),
    [
        (-0.0004, 1.0, "0.0"),
        (-1234.5, 100.0, "−1\u202f234"),
        (12.3456, 0.5, "12.35"),
        (12.3456, float("nan"), "12.3"),
        (0.0, None, "0"),
        (1e-9, 2.0, "0.0"),
        (-2.5e8, None, "−2.50 × 10⁸"),
        (-2378.2, None, "−2\u202f378"),
        (46.36, None, "46.4"),
        (0.05, None, "0.0500"),
        (1.25e-5, None, "1.25 × 10⁻⁵"),
        (1.25e-9, 3e-9, "1.25 × 10⁻⁹"),
        (140, None, "140"),
        (float("nan"), 1.0, "—"),
        (float("inf"), None, "—"),
    ],
)
def test_number(value: float, uncertainty: float | None, shown: str):
    assert number(value, uncertainty) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123, "0.12"), (3.0, "3.0"), (1e-9, "1.0 × 10⁻⁹"), (1234.5, "1\u202f234")]
)
def test_number_with_two_digits(value: float, shown: str):
    assert number(value, digits=2) == shown
