"""All categories; the last two take most of the time, and get what the others leave of theirs."""

from __future__ import annotations

from tests.adversarial import (
    arguments,
    commands,
    concurrency,
    datasets,
    disks,
    environments,
    interrupts,
    invariance,
    kills,
    own_files,
    pages,
    sb3_files,
    workers,
)
from tests.adversarial.harness import Category

CATEGORIES: tuple[Category, ...] = (
    environments.CATEGORY,
    arguments.CATEGORY,
    invariance.CATEGORY,
    disks.CATEGORY,
    pages.CATEGORY,
    commands.CATEGORY,
    datasets.CATEGORY,
    concurrency.CATEGORY,
    kills.CATEGORY,
    interrupts.CATEGORY,
    workers.CATEGORY,
    own_files.CATEGORY,
    sb3_files.CATEGORY,
)
