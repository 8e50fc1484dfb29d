"""Global random number generators, as evaluations must leave them: unchanged."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np


@contextmanager
def preserved_random_state(device: Any = None) -> Iterator[None]:
    """Restore the global generators at the end: Python's, NumPy's, and PyTorch's on the CPU and on `device`.

    Parameters
    ----------
    device : torch.device, optional
    """
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002  (DQN explores by it)
    try:
        if "torch" not in sys.modules:
            yield
            return
        import torch

        with torch.random.fork_rng(devices=[device] if getattr(device, "type", None) == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def seeded(seed: int, policy: Any) -> Iterator[None]:
    """Seed the generators from which agents sample actions; the global ones are restored at the end.

    Stable-Baselines3's agents sample from PyTorch's generator, and DQN from NumPy's and from its action space.
    """
    with preserved_random_state():
        space = getattr(policy, "action_space", None)
        if isinstance(space, gym.Space):
            space.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        if "torch" in sys.modules:
            import torch

            torch.random.default_generator.manual_seed(seed)
        yield
