"""Start states of rollouts: fresh episodes of a policy, and snapshots of some of their states."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from gptd_rl.checks import as_generator
from gptd_rl.data.spaces import flattener, require_flat, stack
from gptd_rl.evaluation.snapshots import RestorableEpisode, Snapshot, episode_maker
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.masks import action_masks_of
from gptd_rl.rollouts.policies import EpisodePolicy
from gptd_rl.seeds import STATES, derived_seed, env_seeds
from gptd_rl.types import Array, IntArray, Policy

MAX_EPISODE_STEPS = 2000  # in an environment without a time limit


@dataclass(frozen=True, eq=False)
class StartStates:
    """Complete episodes, and snapshots of some of their states.

    Attributes
    ----------
    returns : ndarray of shape (n_episodes,)
        Undiscounted, of episodes as the environment ends them; those that it does not end are left out.
    lengths : ndarray of shape (n_episodes,)
    states : ndarray of shape (m, n_dims)
    episodes : ndarray of shape (m,)
        The episode of each state.
    snapshots : list of Snapshot
        The environment in each of these states.
    observations : list
        The observation in each of these states.
    memories : list
        What a recurrent policy remembers there; None of others, and at the start of an episode.
    """

    returns: Array
    lengths: IntArray
    states: Array
    episodes: IntArray
    snapshots: list[Snapshot]
    observations: list[Any]
    memories: list[Any]


def step(env: gym.Env[Any, Any] | RestorableEpisode, action: Any) -> tuple[Any, float, bool, bool]:
    """Observation, reward, and whether the episode terminated or was truncated."""
    try:
        observation, reward, terminated, truncated, _ = env.step(action)
    except Exception as error:
        raise CollectionError(f"the environment failed: {type(error).__name__}: {error}") from error
    return observation, float(reward), bool(terminated), bool(truncated)


def sample_start_states(
    env: gym.Env[Any, Any], policy: Policy, *, n_episodes: int, n_states: int, seed: int, deterministic: bool
) -> StartStates:
    """Run complete episodes, all together, and keep uniformly sampled states of theirs."""
    require_flat(env.observation_space)
    start = episode_maker(env)
    if start is None:
        raise CollectionError("the states of the environment cannot be kept: copies of it do not continue from them.")
    rng = as_generator(derived_seed(seed, STATES))
    runs = [start(env) for _ in range(n_episodes)]
    observations = [run.reset(s) for run, s in zip(runs, env_seeds(seed, n_episodes), strict=True)]
    spaces = env.observation_space, env.action_space
    masks = action_masks_of([run.env for run in runs])
    act = EpisodePolicy(policy, *spaces, n_episodes, seed=seed, deterministic=deterministic, masks=masks)
    returns, lengths = np.zeros(n_episodes), np.zeros(n_episodes, dtype=np.int64)
    kept: list[tuple[int, Snapshot, Any, Any]] = []
    running, n_seen = np.ones(n_episodes, dtype=bool), 0
    longest = longest_episode(env)
    while running.any() and lengths.max() < longest:
        for i in np.flatnonzero(running).tolist():
            n_seen += 1
            # Reservoir sampling: of all states seen so far, each is kept with the same probability.
            slot = len(kept) if len(kept) < n_states else int(rng.integers(n_seen))
            if slot < n_states:
                state = i, runs[i].snapshot(), copy.deepcopy(observations[i]), act.memory(i)
                kept[slot : slot + 1] = [state]
        actions = act(observations, running)
        for i in np.flatnonzero(running).tolist():
            observations[i], reward, terminated, truncated = step(runs[i], actions[i])
            returns[i] += reward
            lengths[i] += 1
            running[i] = not (terminated or truncated)
    kept.sort(key=lambda k: k[0])
    episodes, snapshots, seen, memories = (list(part) for part in zip(*kept, strict=True))
    states = np.asarray(flattener(env.observation_space)(stack(env.observation_space, seen)), dtype=np.float64)
    return StartStates(returns[~running], lengths[~running], states, np.array(episodes), snapshots, seen, memories)


def longest_episode(env: gym.Env[Any, Any]) -> int:
    """Steps after which an episode is left unfinished: no fewer than its time limit, if it has one."""
    return max(MAX_EPISODE_STEPS, (env.spec is not None and env.spec.max_episode_steps) or 0)
