"""Rollouts of several policies from the same states, with the same random numbers of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit

from gptd_rl.data.spaces import flattener, stack
from gptd_rl.evaluation.environments import Environment
from gptd_rl.evaluation.episodes import collect_episodes
from gptd_rl.evaluation.ground_truth import MAX_STEPS, NEGLIGIBLE, NO_LIMIT
from gptd_rl.evaluation.random_state import seeded
from gptd_rl.evaluation.snapshots import Snapshot, episode_maker
from gptd_rl.evaluation.start_states import MAX_EPISODE_STEPS, longest_episode, step
from gptd_rl.exceptions import CollectionError
from gptd_rl.report.records import ValueFunction
from gptd_rl.rollouts.masks import action_masks_of
from gptd_rl.rollouts.policies import EpisodePolicy
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array, Policy


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Returns of one rollout from each of m states.

    Attributes
    ----------
    discounted : ndarray of shape (m,)
        Discounted rewards until the rollout stopped.
    cut : ndarray of shape (m,)
        Discount of the state in which it stopped; 0 if that is terminal.
    last : ndarray of shape (m, n_dims)
        These states.
    undiscounted : ndarray of shape (m,)
        Return until the environment ended the episode, be it by its time limit; NaN if it did not.
    n_steps : int
        Of all rollouts together.
    """

    discounted: Array
    cut: Array
    last: Array
    undiscounted: Array
    n_steps: int

    def values(self, value: ValueFunction) -> tuple[Array, Array]:
        """Returns with V in place of the rewards after the cut, and the largest error by that, each of shape (m,)."""
        if not self.cut.any():
            return self.discounted, np.zeros(len(self.cut))
        lower, upper = value.confidence_interval(self.last)
        return self.discounted + self.cut * value.predict(self.last), self.cut * 0.5 * (upper - lower)


def start_rollouts(
    env: Environment, policy: Policy, seeds: Sequence[int], *, gamma: float, deterministic: bool
) -> Rollouts:
    """Rollouts from the start states that seeds lead to: the same for every policy."""
    if env.template_env is None:
        return _start_episodes(env.vector_env, policy, seeds, gamma, deterministic)
    start = episode_maker(env.template_env)
    assert start is not None, "a template can be restored"
    runs = [start(env.template_env) for _ in seeds]
    observations = [run.reset(seed) for run, seed in zip(runs, seeds, strict=True)]
    starts = [run.snapshot() for run in runs]
    limit = time_limit(env.template_env)
    steps = max(horizon(gamma, len(seeds)), longest_episode(env.template_env) if limit is None else limit)
    return rollout(
        starts, observations, policy, gamma=gamma, seed=seeds[0], deterministic=deterministic, steps=steps, limit=limit
    )


def rollout(
    snapshots: Sequence[Snapshot],
    observations: Sequence[Any],
    policy: Policy,
    *,
    gamma: float,
    seed: int,
    deterministic: bool,
    steps: int,
    limit: int | None = None,
) -> Rollouts:
    """One rollout from each snapshot, all together, past any time limit.

    Every policy meets the same random numbers of the environment; those of a sampling policy begin alike, too.

    Parameters
    ----------
    snapshots : sequence of Snapshot
        Of the environment.
    observations : sequence
        In these states.
    policy : as for `gptd_rl.collect`
    gamma : float
    seed : int
    deterministic : bool
    steps : int
        Longest rollout.
    limit : int, optional
        The time limit at which the undiscounted return stops.
    """
    envs = [one.restore([seed, i]) for i, one in enumerate(snapshots)]
    seen, n = list(observations), len(envs)
    space = envs[0].observation_space
    discounted, undiscounted, cut = np.zeros(n), np.zeros(n), np.zeros(n)
    running, made = np.ones(n, dtype=bool), 0
    with seeded(seed, policy):
        masks = action_masks_of(envs)
        act = EpisodePolicy(policy, space, envs[0].action_space, n, seed=seed, deterministic=deterministic, masks=masks)
        for t in range(steps):
            actions = act(seen, running)
            made += int(running.sum())
            for i in np.flatnonzero(running):
                seen[i], reward, terminated, truncated = step(envs[i], actions[i])
                discounted[i] += gamma**t * reward
                undiscounted[i] += reward if limit is None or t < limit else 0.0
                running[i] = not (terminated or truncated)
                cut[i] = gamma ** (t + 1) if truncated and not terminated else 0.0
            if not running.any():
                break
    cut[running] = gamma**steps
    if limit is None or steps < limit:
        undiscounted[running] = np.nan
    last = np.asarray(flattener(space)(stack(space, seen)), dtype=np.float64)
    if not np.isfinite(discounted).all() or not np.isfinite(last).all():
        raise CollectionError("the environment returned an observation or a reward that is not finite.")
    return Rollouts(discounted, cut, last, undiscounted, made)


def horizon(gamma: float, n: int) -> int:
    """Steps after which the discount is negligible, or that `n` rollouts may have."""
    wanted = NO_LIMIT if gamma >= 1.0 else max(1, int(np.ceil(np.log(NEGLIGIBLE) / np.log(max(gamma, 1e-9)))))
    return min(wanted, max(1000, MAX_STEPS // max(n, 1)))


def time_limit(env: gym.Env[Any, Any]) -> int | None:
    """Steps after which a wrapper or the specification of an environment truncates its episodes."""
    limits = [env.spec.max_episode_steps] if env.spec is not None else []
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            limits.append(layer._max_episode_steps)
        layer = layer.env
    return min((limit for limit in limits if limit is not None), default=None)


def _start_episodes(env: Any, policy: Policy, seeds: Sequence[int], gamma: float, deterministic: bool) -> Rollouts:
    """One episode of each sub-environment for each seed, in an environment that cannot be copied."""
    n_envs = getattr(env, "num_envs", 1)
    longest = n_envs * MAX_EPISODE_STEPS
    parts = []
    for seed in seeds[: -(-len(seeds) // n_envs)]:
        with seeded(seed, policy):
            data, is_complete = collect_episodes(
                env, policy, n_envs, longest, gamma=gamma, seed=seed, deterministic=deterministic
            )
        if not is_complete.all():
            raise CollectionError(
                f"an episode did not end within {MAX_EPISODE_STEPS} steps, and the environment cannot be copied: give "
                "it a time limit, as gymnasium.wrappers.TimeLimit does."
            )
        returns = Returns.of(data)
        undiscounted = np.bincount(data.segment_of, weights=data.rewards).astype(np.float64)
        cut = np.where(data.terminated, 0.0, returns.z[data.starts])
        last = np.asarray(data.states[data.last], dtype=np.float64)
        parts.append(Rollouts(returns.y[data.starts], cut, last, undiscounted, data.n_transitions))
    discounted, cut, last, undiscounted = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("discounted", "cut", "last", "undiscounted")
    )
    return Rollouts(discounted, cut, last, undiscounted, sum(part.n_steps for part in parts))
