"""Monte Carlo estimates of V^π: keep states of fresh episodes and roll out the policy from them with new seeds.

From a random state of a fresh episode (see `snapshots`) the policy acts several times, past any time limit, until the
remaining discount is negligible. The average return is V^π there, up to its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from gptd_rl.checks import as_generator
from gptd_rl.data.spaces import flattener, stack
from gptd_rl.evaluation import start_states
from gptd_rl.evaluation.environments import Environment
from gptd_rl.evaluation.episodes import collect_episodes
from gptd_rl.evaluation.fitting import Tick
from gptd_rl.evaluation.start_states import StartStates, longest_episode, sample_start_states, step
from gptd_rl.exceptions import CollectionError
from gptd_rl.report.records import ValueFunction
from gptd_rl.rollouts.masks import action_masks_of
from gptd_rl.rollouts.policies import EpisodePolicy
from gptd_rl.seeds import ROLLOUT, STATES, derived_seed
from gptd_rl.temporal.means import values_at
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array, BoolArray, IntArray, Policy

__all__ = ["GroundTruth", "StartStates", "collect_ground_truth", "rollout_values", "sample_start_states"]

NEGLIGIBLE = 0.01  # discount at which a rollout stops
N_ROLLOUTS = 10  # from each state, if returns are random
PILOT = 5  # one of so many states has a second rollout first, to see whether returns are random
MAX_TOGETHER = 512  # rollouts side by side
NO_LIMIT = np.iinfo(np.int64).max
MAX_STEPS = 300_000  # of all rollouts together, about, with those that restore states


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """Returns of fresh episodes of the policy, and values of some of their states.

    Attributes
    ----------
    returns : ndarray of shape (n_episodes,)
        Undiscounted returns of complete episodes.
    states : ndarray of shape (m, n_dims)
    values, errors : ndarray of shape (m,)
        Discounted returns from these states and their standard errors.
    episodes : ndarray of shape (m,)
    n_rollouts : int
        From each state; 0 if there is only the return of the episode itself.
    warnings : tuple of str
        Where episodes or rollouts were cut off.
    """

    returns: Array
    states: Array
    values: Array
    errors: Array
    episodes: IntArray
    n_rollouts: int
    warnings: tuple[str, ...] = ()

    @property
    def in_second_half(self) -> BoolArray:
        """Whether a state is of the second of two halves: every second episode, of shape (m,)."""
        return np.asarray(np.unique(self.episodes, return_inverse=True)[1] % 2 == 1)

    def halves(self) -> tuple[GroundTruth, GroundTruth]:
        """The states of every second episode, and those of the others."""
        return self._only(~self.in_second_half), self._only(self.in_second_half)

    def _only(self, rows: BoolArray) -> GroundTruth:
        return replace(
            self,
            states=self.states[rows],
            values=self.values[rows],
            errors=self.errors[rows],
            episodes=self.episodes[rows],
        )


def collect_ground_truth(
    env: Environment,
    policy: Policy,
    value: ValueFunction,
    *,
    n_episodes: int,
    n_states: int,
    gamma: float,
    seed: int,
    deterministic: bool,
    tick: Tick,
) -> GroundTruth:
    """Run fresh episodes, and estimate V^π at some of their states.

    An environment that cannot be copied has no rollouts: values are then the returns of the episodes themselves.

    Parameters
    ----------
    env : Environment
    policy : as for `gptd_rl.collect`
    value : ValueFunction
        Its values stand for the rewards after the end of a rollout.
    n_episodes, n_states : int
    gamma : float
    seed : int
    deterministic : bool
    tick : callable
        Called as ``tick(done, total)``.
    """
    if env.template_env is None:
        return _episode_returns(env, policy, value, n_episodes, n_states, gamma, seed, deterministic)
    starts = sample_start_states(
        env.template_env, policy, n_episodes=n_episodes, n_states=n_states, seed=seed, deterministic=deterministic
    )
    warnings = _unfinished(len(starts.returns), n_episodes, f"{longest_episode(env.template_env)} steps each")
    values, errors, n_rollouts = rollout_values(
        starts,
        policy,
        gamma=gamma,
        seed=seed,
        deterministic=deterministic,
        tail=value.predict,
        tick=tick,
        warn=warnings.append,
    )
    return GroundTruth(starts.returns, starts.states, values, errors, starts.episodes, n_rollouts, tuple(warnings))


def _episode_returns(
    env: Environment,
    policy: Policy,
    value: ValueFunction,
    n_episodes: int,
    n_states: int,
    gamma: float,
    seed: int,
    deterministic: bool,
) -> GroundTruth:
    """Returns of fresh episodes from their own states, where the environment cannot be copied."""
    max_steps = max(MAX_STEPS, n_episodes * start_states.MAX_EPISODE_STEPS)
    data, is_complete = collect_episodes(
        env.vector_env, policy, n_episodes, max_steps, gamma=gamma, seed=seed, deterministic=deterministic
    )
    returns = Returns.of(data)
    rng = as_generator(derived_seed(seed, STATES))
    rows = np.sort(rng.choice(returns.usable, min(n_states, len(returns.usable)), replace=False))
    values = returns.y + returns.z * values_at(value.predict, data)[returns.end]
    undiscounted = np.bincount(data.segment_of, weights=data.rewards).astype(np.float64)[is_complete]
    warnings = _unfinished(len(undiscounted), n_episodes, f"{max_steps} steps together")
    return GroundTruth(
        undiscounted, data.states[rows], values[rows], np.zeros(len(rows)), data.segment_of[rows], 0, tuple(warnings)
    )


def _unfinished(n_complete: int, n_episodes: int, limit: str) -> list[str]:
    """A warning if not all episodes ended."""
    if n_complete == n_episodes:
        return []
    text = (
        f"Only {n_complete} of {n_episodes} fresh episodes ended within {limit}, where the check stopped: returns are "
        "of these alone. Give the environment a time limit, as gymnasium.wrappers.TimeLimit does."
    )
    return [text]


def rollout_values(
    starts: StartStates,
    policy: Policy,
    *,
    gamma: float,
    seed: int,
    deterministic: bool,
    tail: Callable[[Array], Array],
    tick: Tick = lambda done, total: None,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[Array, Array, int]:
    """Monte Carlo estimates of V^π at start states.

    Parameters
    ----------
    starts : StartStates
    policy : as for `gptd_rl.collect`
    gamma : float
    seed : int
    deterministic : bool
    tail : callable
        Values of the states in which rollouts stop, usually with a discount of `NEGLIGIBLE` or less.
    tick : callable
        Called as ``tick(done, total)``.
    warn : callable
        Called with a sentence if rollouts are cut at a larger discount than that.

    Returns
    -------
    mean, error : ndarray of shape (m,)
        Average return and its standard error; 0 in a deterministic environment.
    n_rollouts : int
        From each state.
    """
    wanted = NO_LIMIT if gamma >= 1.0 else max(1, int(np.ceil(np.log(NEGLIGIBLE) / np.log(max(gamma, 1e-9)))))
    m = len(starts.snapshots)
    horizon = min(wanted, max(1000, MAX_STEPS // max(m, 1)))
    run = _Rollouts(starts, policy, gamma, seed, deterministic, tail)

    def told(k: int, n: int) -> Callable[[int], None]:
        """Progress of `n` rollouts from each state after `k` others."""
        return lambda t: tick(k * horizon + n * t, N_ROLLOUTS * horizon)

    everywhere = np.arange(m)
    pilot = everywhere[::PILOT]
    first, again = np.split(run([(everywhere, 0), (pilot, 1)], horizon, told(0, 1)), [m])
    n_cut, cost = run.n_cut, run.n_steps * m // (m + len(pilot))
    if not run.drew_numbers and np.allclose(first[pilot], again, rtol=1e-9, atol=1e-9):
        values, errors, n = first, np.zeros(m), 1
    else:
        n = min(N_ROLLOUTS, max(2, MAX_STEPS // max(cost, 1)))
        together = max(1, MAX_TOGETHER // m)
        groups = [range(begin, min(begin + together, n)) for begin in range(1, n, together)]
        more = [run([(everywhere, k) for k in group], horizon, told(group[0], len(group))) for group in groups]
        returns = np.concatenate([first, *more]).reshape(n, m)
        if np.allclose(returns[0], returns[1:], rtol=1e-9, atol=1e-9):
            values, errors, n = first, np.zeros(m), 1
        else:
            variance = returns.var(axis=0, ddof=1)
            # Returns that happened to be equal are not without noise: as if there were one more, of the usual variance.
            variance = ((n - 1) * variance + variance.mean()) / n
            values, errors = returns.mean(axis=0), np.sqrt(variance / n)
    if horizon < wanted and n_cut:
        warn(_cut_rollouts(gamma, horizon, n_cut / (m + len(pilot))))
    return values, errors, n


def _cut_rollouts(gamma: float, horizon: int, share: float) -> str:
    # Of a constant reward for ever, steps from t on give the share γᵗ of the return.
    return (
        f"With the discount {gamma:g}, {_percent(share)} of the check's rollouts were cut after {horizon} steps: the "
        f"rewards after that, {_percent(gamma**horizon)} of the return if they stay the same, were replaced by the "
        "predicted value. Use a smaller discount, or a smaller n_states."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


class _Rollouts:
    """Rollouts from start states, many together.

    Attributes
    ----------
    n_steps, n_cut : int
        Of the last call: steps, with those that restored states, and rollouts cut off.
    drew_numbers : bool
        Whether the environments of the last call drew random numbers.
    """

    def __init__(
        self,
        starts: StartStates,
        policy: Policy,
        gamma: float,
        seed: int,
        deterministic: bool,
        tail: Callable[[Array], Array],
    ) -> None:
        self.starts, self.policy, self.gamma, self.seed = starts, policy, gamma, seed
        self.deterministic, self.tail = deterministic, tail
        self.n_steps = self.n_cut = 0
        self.drew_numbers = False

    def __call__(self, parts: Sequence[tuple[IntArray, int]], horizon: int, tick: Callable[[int], None]) -> Array:
        """Returns of the k-th rollout from some rows of the start states, for each of `parts` = (rows, k)."""
        rows = [int(row) for part, _ in parts for row in part]
        seeds = [[derived_seed(self.seed, ROLLOUT, k), int(row)] for part, k in parts for row in part]
        kept = [self.starts.snapshots[row] for row in rows]
        envs = [one.restore(seed) for one, seed in zip(kept, seeds, strict=True)]
        observations, n = [self.starts.observations[row] for row in rows], len(rows)
        act = EpisodePolicy(
            self.policy,
            envs[0].observation_space,
            envs[0].action_space,
            n,
            seed=seeds[0][0],
            deterministic=self.deterministic,
            masks=action_masks_of(envs),
            memories=[self.starts.memories[row] for row in rows],
        )
        returns, rewards, cut, running = np.zeros(n), np.zeros(n), np.zeros(n), np.ones(n, dtype=bool)
        self.n_steps, live = sum(one.n_replayed for one in kept), list(range(n))
        for t in range(horizon):
            actions = act(observations, running)
            any_ended = False
            for i in live:
                observations[i], rewards[i], terminated, truncated = step(envs[i], actions[i])
                if terminated or truncated:
                    running[i], any_ended = False, True
                    cut[i] = 0.0 if terminated else self.gamma ** (t + 1)
            self.n_steps += len(live)
            returns += self.gamma**t * rewards
            if any_ended:
                live = np.flatnonzero(running).tolist()
                rewards[~running] = 0.0
            if t % 32 == 0:
                tick(t)
            if not live:
                break
        cut[running] = self.gamma**horizon
        self.n_cut = len(live)
        self.drew_numbers = any(map(_drew_numbers, envs, seeds))
        space = envs[0].observation_space
        states = np.asarray(flattener(space)(stack(space, observations)), dtype=np.float64)
        if not np.isfinite(returns).all() or not np.isfinite(states).all():
            raise CollectionError("the environment returned an observation or a reward that is not finite.")
        return returns + np.where(cut > 0, cut * self.tail(states), 0.0)


def _drew_numbers(env: gym.Env[Any, Any], seed: list[int]) -> bool:
    """Whether an environment that was restored with a seed has drawn random numbers since."""
    return bool(env.unwrapped.np_random.bit_generator.state != as_generator(seed).bit_generator.state)
