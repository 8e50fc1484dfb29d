"""How much memory is free."""

from __future__ import annotations


def available_bytes() -> int | None:
    """Free memory in bytes; None where the system does not tell."""
    try:
        with open("/proc/meminfo") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
