"""When and how a page was made: time, command and versions."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from time import time as seconds_since_1970

from gptd_rl.version import __version__

ALWAYS = {"NumPy": "numpy", "SciPy": "scipy", "Gymnasium": "gymnasium"}
IF_USED = {"Stable-Baselines3": "stable_baselines3", "sb3-contrib": "sb3_contrib", "PyTorch": "torch"}


@dataclass(frozen=True)
class Provenance:
    """When and how a page was made.

    Attributes
    ----------
    time : str
        In UTC, such as "2026-02-01 13:05 UTC"; empty if unknown.
    command : str
        The command line, or the call of a function; empty if unknown.
    versions : dict of str to str
        By name of the package.
    """

    time: str
    command: str
    versions: dict[str, str]

    @classmethod
    def now(cls, command: str, clock: Callable[[], float] = seconds_since_1970) -> Provenance:
        """Provenance of a page that is written now; the environment variable SOURCE_DATE_EPOCH replaces the clock.

        Parameters
        ----------
        command : str
        clock : callable
            Seconds since 1970.
        """
        fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
        seconds = int(fixed) if fixed.isdecimal() else clock()
        return cls(f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC", command, _versions())


def _versions() -> dict[str, str]:
    """Versions of Python and of the packages in use."""
    used = ALWAYS | {name: module for name, module in IF_USED.items() if module in sys.modules}
    found = {"gptd-rl": __version__, "Python": platform.python_version()}
    for name, module in used.items():
        try:
            found[name] = version(module)
        except PackageNotFoundError:  # such as a package that was never installed, only found on the path
            found[name] = str(getattr(sys.modules.get(module), "__version__", "unknown"))
    return found
