"""Data with actions as pairs [x, a], shard by shard."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gptd_rl.data.actions import ContinuousActions, DiscreteActions
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.sharding.sources import Sources
from gptd_rl.types import DataLike


def in_pairs(
    data: DataLike,
    actions: DiscreteActions | ContinuousActions,
    policy: Any,
    to_pairs: Callable[..., Trajectories | None],
    gamma: float | None = None,
) -> Trajectories | Sources:
    """Pairs by `to_pairs`; made once, because a stochastic policy would answer differently next time."""
    policy = getattr(policy, "greedy_actions", policy)  # of another GPTDQ
    change = partial(to_pairs, actions=actions, policy=policy)
    pairs: Trajectories | Sources | None
    pairs = change(data) if isinstance(data, Trajectories) else Sources.of(data, gamma).map(change)
    if pairs is None:
        raise ValueError(
            "no transition is left: a truncated segment needs two of them, since the action in its last state was not "
            "logged. fit(data, policy=…) says what it would be."
        )
    return pairs
