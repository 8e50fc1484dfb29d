"""All categories, the cheap ones first: what they leave of their time goes to the others."""

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
    arguments.CATEGORY,
    own_files.CATEGORY,
    sb3_files.CATEGORY,
    environments.CATEGORY,
    invariance.CATEGORY,
    disks.CATEGORY,
    pages.CATEGORY,
    commands.CATEGORY,
    datasets.CATEGORY,
    concurrency.CATEGORY,
    kills.CATEGORY,
    interrupts.CATEGORY,
    workers.CATEGORY,
)
