"""Seeds that follow from one seed, so that what different seeds lead to shares nothing.

Gymnasium seeds environment i of a vector with ``seed + i``: the data sets of seeds 0 and 1 then share most of their
episodes. Here every seed but the first comes from `numpy.random.SeedSequence`, with a key that says what it is for.
"""

from __future__ import annotations

import numpy as np

# Keys: what a seed is for. Never renumbered, since stored results depend on them.
ENVIRONMENT, CHECK, STATES, ROLLOUT = range(4)


def derived_seed(seed: int, *key: int) -> int:
    """A seed that follows from another one and from a key, below 2³¹.

    Parameters
    ----------
    seed : int
    *key : int
        What it is for, and its number.
    """
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0] >> 1)


def env_seeds(seed: int, n: int) -> list[int]:
    """Seeds of `n` environments that are stepped together, or of `n` episodes: `seed` itself, then derived ones."""
    return [seed, *(derived_seed(seed, ENVIRONMENT, i) for i in range(1, n))]
