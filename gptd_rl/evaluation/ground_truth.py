"""V^π by trying: copies of an environment, in the state in which it is, carried on from there with fresh luck.

Gymnasium's environments cannot be set to a state, but most can be copied. A held-out episode is stopped here and there,
and from each such place the policy goes on several times, past any time limit, until what is left hardly counts. The
average return is V^π there, up to its standard error, for whatever a model says to be held against.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from gptd_rl.data.spaces import flattener, require_flat, stack
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.policies import as_batch_policy
from gptd_rl.types import Array

NEGLIGIBLE = 0.01  # discount at which a rollout may stop
N_ROLLOUTS = 10  # from each state, where something is random
LONGEST = 2000  # steps of an episode that nobody ends
NEVER = np.iinfo(np.int64).max
MAX_STEPS = 300_000  # of all rollouts together, about


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Complete episodes, and places in them from which to go on.

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
        What the policy sees in each.
    """

    returns: Array
    lengths: NDArray[np.int64]
    states: Array
    episodes: NDArray[np.int64]
    copies: list[gym.Env[Any, Any]]
    observations: list[Any]


class Policy:
    """A policy that acts in many environments, of which some have stopped."""

    def __init__(self, env: gym.Env[Any, Any], policy: Any, n: int, seed: int, deterministic: bool) -> None:
        self.space = env.observation_space
        self.act = as_batch_policy(
            policy,
            observation_space=env.observation_space,
            action_space=env.action_space,
            n_envs=n,
            seed=seed,
            deterministic=deterministic,
        )
        self.starting = np.ones(n, dtype=bool)

    def __call__(self, observations: list[Any], active: NDArray[np.bool_]) -> Any:
        """One action for each observation."""
        try:
            actions = self.act(stack(self.space, observations), self.starting, active)
        except Exception as error:
            raise CollectionError(f"the policy failed: {type(error).__name__}: {error}") from error
        self.starting = np.zeros_like(self.starting)
        return actions


def step(env: gym.Env[Any, Any], action: Any) -> tuple[Any, float, bool, bool]:
    """Observation, reward, and whether the episode terminated or was truncated."""
    try:
        observation, reward, terminated, truncated, _ = env.step(action)
    except Exception as error:
        raise CollectionError(f"the environment failed: {type(error).__name__}: {error}") from error
    return observation, float(reward), bool(terminated), bool(truncated)


def copyable(env: gym.Env[Any, Any]) -> bool:
    """Whether a copy of an environment goes on where the environment is; some copies are new ones, in no state."""
    try:
        one, space = copy.deepcopy(env), copy.deepcopy(env.action_space)
        space.seed(0)
        for seed in range(20):  # until an episode is under way
            one.reset(seed=seed)
            action = space.sample()
            if not any(one.step(action)[2:4]):
                break
        else:
            one.reset(seed=0)
        twin = copy.deepcopy(one)
        ahead, behind = one.step(action), twin.step(action)
    except Exception:  # noqa: BLE001  (whatever its parts do when copied)
        return False
    flatten = flattener(env.observation_space)
    here, there = (flatten(stack(env.observation_space, [step[0]])) for step in (ahead, behind))
    return np.array_equal(here, there) and ahead[1:4] == behind[1:4]


def held_out(
    env: gym.Env[Any, Any], policy: Any, *, n_episodes: int, n_states: int, seed: int, deterministic: bool
) -> HeldOut:
    """Run complete episodes, all together, and keep a copy of the environment in some states, each as likely as any."""
    require_flat(env.observation_space)
    rng = np.random.default_rng(seed)
    envs = [copy.deepcopy(env) for _ in range(n_episodes)]
    observations = [e.reset(seed=seed + i)[0] for i, e in enumerate(envs)]
    act = Policy(env, policy, n_episodes, seed, deterministic)
    returns, lengths = np.zeros(n_episodes), np.zeros(n_episodes, dtype=np.int64)
    kept: list[tuple[int, gym.Env[Any, Any], Any]] = []
    running, n_seen = np.ones(n_episodes, dtype=bool), 0
    longest = NEVER if env.spec is not None and env.spec.max_episode_steps else LONGEST
    while running.any() and lengths.max() < longest:
        for i in np.flatnonzero(running):
            n_seen += 1
            # Reservoir sampling: of all states seen so far, each is kept with the same chance.
            place = len(kept) if len(kept) < n_states else int(rng.integers(n_seen))
            if place < n_states:
                kept[place : place + 1] = [(int(i), copy.deepcopy(envs[i]), copy.deepcopy(observations[i]))]
        actions = act(observations, running)
        for i in np.flatnonzero(running):
            observations[i], reward, terminated, truncated = step(envs[i], actions[i])
            returns[i] += reward
            lengths[i] += 1
            running[i] = not (terminated or truncated)
    kept.sort(key=lambda k: k[0])
    places, copies, seen = (list(part) for part in zip(*kept, strict=True))
    states = flattener(env.observation_space)(stack(env.observation_space, seen))
    return HeldOut(
        returns[~running], lengths[~running], np.asarray(states, dtype=np.float64), np.array(places), copies, seen
    )


def rolled_out(
    place: HeldOut,
    policy: Any,
    *,
    gamma: float,
    seed: int,
    deterministic: bool,
    tail: Callable[[Array], Array],
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Array, Array, int]:
    """V^π at the states of `place`.

    Parameters
    ----------
    place : HeldOut
    policy : as for `gptd_rl.collect`
    gamma : float
    seed : int
    deterministic : bool
    tail : callable
        Values of the states in which rollouts stop, which count with a discount of `NEGLIGIBLE` or less, as a rule.
    tick : callable
        Told how many steps of how many are done.

    Returns
    -------
    mean, error : ndarray of shape (m,)
        Average return and its standard error: 0 where nothing is random.
    n_rollouts : int
        From each state.
    """
    horizon = MAX_STEPS if gamma >= 1.0 else max(1, int(np.ceil(np.log(NEGLIGIBLE) / np.log(max(gamma, 1e-9)))))
    horizon = min(horizon, max(1000, MAX_STEPS // max(len(place.copies), 1)))
    run = _Branches(place, policy, gamma, deterministic, tail)
    first, second = (run(seed + k, horizon, partial(_tick_part, tick, k, N_ROLLOUTS, horizon)) for k in range(2))
    if np.allclose(first, second, rtol=1e-9, atol=1e-9):
        return first, np.zeros(len(first)), 1
    n = min(N_ROLLOUTS, max(2, MAX_STEPS // max(run.n_steps // 2, 1)))
    more = [run(seed + k, horizon, partial(_tick_part, tick, k, N_ROLLOUTS, horizon)) for k in range(2, n)]
    returns = np.array([first, second, *more])
    return returns.mean(axis=0), returns.std(axis=0, ddof=1) / np.sqrt(len(returns)), len(returns)


def _tick_part(tick: Callable[[int, int], None], k: int, n: int, horizon: int, t: int) -> None:
    """Step t of part k of n."""
    tick(k * horizon + t, n * horizon)


class _Branches:
    """One rollout from each place, all together."""

    def __init__(self, place: HeldOut, policy: Any, gamma: float, deterministic: bool, tail: Any) -> None:
        self.place, self.policy, self.gamma = place, policy, gamma
        self.deterministic, self.tail = deterministic, tail
        self.n_steps = 0

    def __call__(self, seed: int, horizon: int, tick: Callable[[int], None]) -> Array:
        """Returns of shape (m,)."""
        envs = [fresh(env, [seed, i]) for i, env in enumerate(self.place.copies)]
        observations, n = list(self.place.observations), len(envs)
        act = Policy(envs[0], self.policy, n, seed, self.deterministic)
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
        space = envs[0].observation_space
        states = np.asarray(flattener(space)(stack(space, observations)), dtype=np.float64)
        if not np.isfinite(returns).all() or not np.isfinite(states).all():
            raise CollectionError("the environment returned an observation or a reward that is not finite.")
        return returns + np.where(cut > 0, cut * self.tail(states), 0.0)


def fresh(env: gym.Env[Any, Any], seed: list[int]) -> gym.Env[Any, Any]:
    """A copy of an environment in its present state, with other random numbers to come and without a time limit."""
    twin = copy.deepcopy(env)
    luck = np.random.default_rng(seed)
    twin.unwrapped.np_random = luck
    layer: Any = twin
    while True:
        for name, value in vars(layer).items():
            if isinstance(value, np.random.Generator):  # one of its own
                setattr(layer, name, luck)
        if isinstance(layer, TimeLimit):
            layer._max_episode_steps = NEVER
        if not isinstance(layer, gym.Wrapper):
            return twin
        layer = layer.env
