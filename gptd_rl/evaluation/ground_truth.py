"""Monte Carlo estimates of V^π: copy the environment at selected states and roll out the policy with new seeds.

Gymnasium's environments cannot be set to a state, but most can be copied. The environment of a fresh episode is copied
at random states; from each copy the policy acts several times, past any time limit, until the remaining discount is
negligible. The average return is V^π there, up to its standard error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit

from gptd_rl.checks import as_generator
from gptd_rl.data.spaces import flattener, require_flat, stack
from gptd_rl.evaluation.environments import Environment
from gptd_rl.evaluation.episodes import collect_episodes
from gptd_rl.evaluation.fitting import Tick
from gptd_rl.exceptions import CollectionError
from gptd_rl.report.records import ValueFunction
from gptd_rl.rollouts.policies import EpisodePolicy
from gptd_rl.temporal.means import values_at
from gptd_rl.temporal.returns import Returns
from gptd_rl.types import Array, BoolArray, IntArray, Policy

NEGLIGIBLE = 0.01  # discount at which a rollout stops
N_ROLLOUTS = 10  # from each state, if returns are random
MAX_EPISODE_STEPS = 2000  # in an environment without a time limit
NO_LIMIT = np.iinfo(np.int64).max
MAX_STEPS = 300_000  # of all rollouts together, about


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
    max_steps = max(MAX_STEPS, n_episodes * MAX_EPISODE_STEPS)
    data, is_complete = collect_episodes(
        env.vector_env, policy, n_episodes, max_steps, gamma=gamma, seed=seed, deterministic=deterministic
    )
    returns = Returns.of(data)
    rng = as_generator(seed)
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


@dataclass(frozen=True, eq=False)
class StartStates:
    """Complete episodes, and copies of the environment at some of their states.

    Attributes
    ----------
    returns : ndarray of shape (n_episodes,)
        Undiscounted, of episodes as the environment ends them; those that it does not end are left out.
    lengths : ndarray of shape (n_episodes,)
    states : ndarray of shape (m, n_dims)
    episodes : ndarray of shape (m,)
        The episode of each state.
    copies : list of gymnasium.Env
        The environment in each of these states.
    observations : list
        The observation in each of these states.
    """

    returns: Array
    lengths: IntArray
    states: Array
    episodes: IntArray
    copies: list[gym.Env[Any, Any]]
    observations: list[Any]


def step(env: gym.Env[Any, Any], action: Any) -> tuple[Any, float, bool, bool]:
    """Observation, reward, and whether the episode terminated or was truncated."""
    try:
        observation, reward, terminated, truncated, _ = env.step(action)
    except Exception as error:
        raise CollectionError(f"the environment failed: {type(error).__name__}: {error}") from error
    return observation, float(reward), bool(terminated), bool(truncated)


def sample_start_states(
    env: gym.Env[Any, Any], policy: Policy, *, n_episodes: int, n_states: int, seed: int, deterministic: bool
) -> StartStates:
    """Run complete episodes, all together, and copy the environment at uniformly sampled states of theirs."""
    require_flat(env.observation_space)
    rng = as_generator(seed)
    envs = [copy.deepcopy(env) for _ in range(n_episodes)]
    observations = [e.reset(seed=seed + i)[0] for i, e in enumerate(envs)]
    spaces = env.observation_space, env.action_space
    act = EpisodePolicy(policy, *spaces, n_episodes, seed=seed, deterministic=deterministic)
    returns, lengths = np.zeros(n_episodes), np.zeros(n_episodes, dtype=np.int64)
    kept: list[tuple[int, gym.Env[Any, Any], Any]] = []
    running, n_seen = np.ones(n_episodes, dtype=bool), 0
    longest = longest_episode(env)
    while running.any() and lengths.max() < longest:
        for i in np.flatnonzero(running):
            n_seen += 1
            # Reservoir sampling: of all states seen so far, each is kept with the same probability.
            slot = len(kept) if len(kept) < n_states else int(rng.integers(n_seen))
            if slot < n_states:
                kept[slot : slot + 1] = [(int(i), copy.deepcopy(envs[i]), copy.deepcopy(observations[i]))]
        actions = act(observations, running)
        for i in np.flatnonzero(running):
            observations[i], reward, terminated, truncated = step(envs[i], actions[i])
            returns[i] += reward
            lengths[i] += 1
            running[i] = not (terminated or truncated)
    kept.sort(key=lambda k: k[0])
    episodes, copies, seen = (list(part) for part in zip(*kept, strict=True))
    states = flattener(env.observation_space)(stack(env.observation_space, seen))
    return StartStates(
        returns[~running], lengths[~running], np.asarray(states, dtype=np.float64), np.array(episodes), copies, seen
    )


def longest_episode(env: gym.Env[Any, Any]) -> int:
    """Steps after which an episode is left unfinished: no fewer than its time limit, if it has one."""
    return max(MAX_EPISODE_STEPS, (env.spec is not None and env.spec.max_episode_steps) or 0)


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
    horizon = min(wanted, max(1000, MAX_STEPS // max(len(starts.copies), 1)))
    run = _Rollouts(starts, policy, gamma, deterministic, tail)
    first, second = (run(seed + k, horizon, partial(_tick_part, tick, k, N_ROLLOUTS, horizon)) for k in range(2))
    if horizon < wanted and run.n_cut:
        warn(_cut_rollouts(gamma, horizon, run.n_cut / (2 * len(first))))
    if np.allclose(first, second, rtol=1e-9, atol=1e-9):
        return first, np.zeros(len(first)), 1
    n = min(N_ROLLOUTS, max(2, MAX_STEPS // max(run.n_steps // 2, 1)))
    more = [run(seed + k, horizon, partial(_tick_part, tick, k, N_ROLLOUTS, horizon)) for k in range(2, n)]
    returns = np.array([first, second, *more])
    variance = returns.var(axis=0, ddof=1)
    # Returns that happened to be equal are not without noise: as if there were one more, of the usual variance.
    variance = ((len(returns) - 1) * variance + variance.mean()) / len(returns)
    return returns.mean(axis=0), np.sqrt(variance / len(returns)), len(returns)


def _cut_rollouts(gamma: float, horizon: int, share: float) -> str:
    # Of a constant reward for ever, steps from t on give the share γᵗ of the return.
    return (
        f"With the discount {gamma:g}, {_percent(share)} of the check's rollouts were cut after {horizon} steps: the "
        f"rewards after that, {_percent(gamma**horizon)} of the return if they stay the same, were replaced by the "
        "predicted value. Use a smaller discount, or a smaller n_states."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _tick_part(tick: Tick, k: int, n: int, horizon: int, t: int) -> None:
    """Step t of part k of n."""
    tick(k * horizon + t, n * horizon)


class _Rollouts:
    """One rollout from each start state, all together."""

    def __init__(
        self, starts: StartStates, policy: Policy, gamma: float, deterministic: bool, tail: Callable[[Array], Array]
    ) -> None:
        self.starts, self.policy, self.gamma = starts, policy, gamma
        self.deterministic, self.tail = deterministic, tail
        self.n_steps = self.n_cut = 0

    def __call__(self, seed: int, horizon: int, tick: Callable[[int], None]) -> Array:
        """Returns of shape (m,)."""
        envs = [reseeded_copy(env, [seed, i]) for i, env in enumerate(self.starts.copies)]
        observations, n = list(self.starts.observations), len(envs)
        spaces = envs[0].observation_space, envs[0].action_space
        act = EpisodePolicy(self.policy, *spaces, n, seed=seed, deterministic=self.deterministic)
        returns, running, cut = np.zeros(n), np.ones(n, dtype=bool), np.zeros(n)
        for t in range(horizon):
            actions = act(observations, running)
            for i in np.flatnonzero(running):
                observations[i], reward, terminated, truncated = step(envs[i], actions[i])
                returns[i] += self.gamma**t * reward
                running[i] = not (terminated or truncated)
                cut[i] = self.gamma ** (t + 1) if truncated and not terminated else 0.0
            self.n_steps += int(running.sum())
            if t % 32 == 0:
                tick(t)
            if not running.any():
                break
        cut[running] = self.gamma**horizon
        self.n_cut += int(running.sum())
        space = envs[0].observation_space
        states = np.asarray(flattener(space)(stack(space, observations)), dtype=np.float64)
        if not np.isfinite(returns).all() or not np.isfinite(states).all():
            raise CollectionError("the environment returned an observation or a reward that is not finite.")
        return returns + np.where(cut > 0, cut * self.tail(states), 0.0)


def reseeded_copy(env: gym.Env[Any, Any], seed: list[int]) -> gym.Env[Any, Any]:
    """A copy of an environment in its present state, with new random numbers and without a time limit."""
    twin = copy.deepcopy(env)
    generator = as_generator(seed)
    twin.unwrapped.np_random = generator
    layer: Any = twin
    while True:
        for name, value in vars(layer).items():
            if isinstance(value, np.random.Generator):  # one beside np_random
                setattr(layer, name, generator)
        if isinstance(layer, TimeLimit):
            layer._max_episode_steps = NO_LIMIT
        if not isinstance(layer, gym.Wrapper):
            return twin
        layer = layer.env
