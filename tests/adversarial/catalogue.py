"""All categories, the cheap ones first: what they leave of their time goes to the others."""

from __future__ import annotations

from tests.adversarial import arguments, own_files
from tests.adversarial.harness import Category

CATEGORIES: tuple[Category, ...] = (arguments.CATEGORY, own_files.CATEGORY)
