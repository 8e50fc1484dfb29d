"""Numbers and counts as text, the same on pages, in tables and in the terminal."""

from __future__ import annotations

import math

from gptd_rl.report.records import Interval

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MISSING = "—"


def number(value: float, uncertainty: float | None = None, *, digits: int = 3) -> str:
    """A number with two digits of its uncertainty, a true minus sign, and thin spaces between thousands.

    Parameters
    ----------
    value : float
    uncertainty : float, optional
        Its standard deviation or the half-width of its interval. Without it, `digits` significant digits are shown.
    digits : int

    Examples
    --------
    >>> number(-1234.5678, 0.31), number(0.000123456), number(2.5, digits=2), number(float("nan"))
    ('−1\u202f234.57', '1.23 × 10⁻⁴', '2.5', '—')
    """
    if not math.isfinite(value):
        return MISSING
    width = uncertainty if uncertainty is not None and math.isfinite(uncertainty) and uncertainty > 0 else None
    is_resolved = width is None or width < max(abs(value), 1e-3)
    if value and not 1e-3 <= abs(value) < 1e7 and is_resolved:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace("-", "−")
    last = abs(value) / 10 ** (digits - 1) if width is None else width / 10  # size of the last digit
    places = min(max(-math.floor(math.log10(last)), 0), 6) if last > 0 else 0
    text = f"{value:,.{places}f}".replace(",", "\u202f")
    return text.lstrip("-") if not float(f"{value:.{places}f}") else text.replace("-", "−")


def percent(share: float) -> str:
    """A share as percentage: whole, with one decimal only between 99 and 100 or 0 and 1.

    Examples
    --------
    >>> percent(0.947), percent(0.996), percent(1.0)
    ('95\u202f%', '99.6\u202f%', '100\u202f%')
    """
    if not math.isfinite(share):
        return MISSING
    places = 1 if 0 < share < 0.01 or 0.99 < share < 1 else 0
    return f"{100 * share:.{places}f}\u202f%"


def count(n: int, noun: str) -> str:
    """A number of things.

    Examples
    --------
    >>> count(1, "episode"), count(12_000, "state")
    ('1 episode', '12\u202f000 states')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}".replace(",", "\u202f")


def bounds(interval: Interval) -> str:
    """Lower and upper end of an interval.

    Examples
    --------
    >>> bounds(Interval(4.0, 3.5, 4.5))
    '3.50 to 4.50'
    """
    width = interval.half_width
    return f"{number(interval.lower, width)} to {number(interval.upper, width)}"
