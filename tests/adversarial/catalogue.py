"""All categories, the cheap ones first: what they leave of their time goes to the others."""

from __future__ import annotations

from tests.adversarial import (
    arguments,
    concurrency,
    disks,
    environments,
    interrupts,
    invariance,
    kills,
    own_files,
    pages,
    sb3_files,
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
    concurrency.CATEGORY,
    kills.CATEGORY,
    interrupts.CATEGORY,
)
