"""`collect`: transitions of a policy in any environment, as `Trajectories`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from gymnasium.spaces import flatdim

from gptd_rl.checks import as_count, as_discount
from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.memory import available_bytes
from gptd_rl.rollouts.environments import EnvAdapter, is_model, open_adapter
from gptd_rl.rollouts.policies import as_batch_policy
from gptd_rl.rollouts.rollout import Rollout, Unit
from gptd_rl.types import EnvLike, Policy

__all__ = ["CollectionError", "collect"]


def collect(
    env: EnvLike,
    policy: Policy = None,
    *,
    n_transitions: int | None = None,
    n_episodes: int | None = None,
    gamma: float,
    seed: int | None = None,
    deterministic: bool = True,
    progress_bar: bool = False,
) -> Trajectories:
    """Sample transitions of a policy.

    The last state of a terminated episode is the true terminal observation, with a row of reward and discount 0. The
    last state of a truncated episode is the true final observation, without a row. The first observation after a reset
    starts a new segment. If an environment reports both ends at once, the episode terminated.

    Parameters
    ----------
    env : str, function, gymnasium.Env, gymnasium.vector.VectorEnv, or Stable-Baselines3 VecEnv or model
        A vector environment must declare its reset mode in `metadata["autoreset_mode"]`. Given a model, the
        environment it carries is used, and the model is the policy if none is given. With `VecNormalize`, states are
        normalised as the policy sees them, rewards are the original ones, and its statistics do not change. The
        environment is reset first, and stays open.
    policy : object with `predict`, callable, or None
        `predict(obs, deterministic=...)` is called as in Stable-Baselines3, on whole batches, and with `state` and
        `episode_start` if it takes them. A callable maps one observation to an action; with an attribute
        `batched = True` it maps a batch to a batch. None: uniform random actions.
    n_transitions : int, optional
        Number of environment transitions. Episodes that it cuts off are truncated segments.
    n_episodes : int, optional
        Number of complete episodes. Give this or `n_transitions`. An episode that has not ended within 100,000 steps,
        or the registered time limit if that is longer, is an error.
    gamma : float
        Discount of every step, from 0 to 1.
    seed : int, optional
        Seed of the first sub-environment; the others get seeds that follow from it, so that different seeds share no
        episodes. Random actions are seeded, too; policies with random numbers of their own are not.
    deterministic : bool
        Passed to `predict`.
    progress_bar : bool
        Show a progress bar.

    Returns
    -------
    trajectories : Trajectories
        Segments ordered by sub-environment, then by time. Observations are flattened as by
        `gymnasium.spaces.flatten`; actions are those passed to the environment.

    Raises
    ------
    CollectionError
        If the environment or the policy fails or returns invalid values. Its attribute `trajectories` holds the
        transitions until then.

    Notes
    -----
    Sub-environments get equal shares of the transitions or episodes: taking the first to finish would favour short
    episodes. Those that have completed their share are stepped on, but not recorded.

    Collecting resets the environment that a model carries, so the model should continue to learn with
    `reset_num_timesteps=True`, the default.

    Examples
    --------
    >>> data = collect("CartPole-v1", lambda obs: int(obs[2] > 0), n_episodes=3, gamma=0.99, seed=0)
    >>> data
    Trajectories(107 transitions in 3 segments, 3 terminated, 0 truncated; 4 dimensions)
    """
    amount, unit = _check_amount(n_transitions, n_episodes)
    with open_adapter(env) as adapter:
        capacity = 1000 if n_transitions is None else 5 * amount // (4 * adapter.n_envs) + 1000
        if n_transitions is not None:
            _check_memory(adapter, amount)
        rollout = start_rollout(adapter, policy_of(env, policy), gamma, seed, deterministic, capacity)
        run = rollout.run(amount, unit)
        for _ in with_progress(run, amount, unit) if progress_bar else run:
            pass
        data = rollout.pop()
    assert data is not None, "a positive amount leaves a segment"
    return data


def start_rollout(
    env: EnvAdapter, policy: Policy, gamma: float, seed: int | None, deterministic: bool, capacity: int
) -> Rollout:
    """Reset the environment and start a rollout of `policy`, with memory for about `capacity` batched steps."""
    seed = None if seed is None else operator.index(seed)  # environments take no NumPy integers
    batched = as_batch_policy(
        policy,
        observation_space=env.observation_space,
        action_space=env.action_space,
        n_envs=env.n_envs,
        seed=seed,
        deterministic=deterministic,
        masks=env.masks(),
    )
    return Rollout(env, batched, as_discount(gamma), seed, capacity)


def policy_of(env: EnvLike, policy: Policy) -> Policy:
    """The policy to use: a model that is given as the environment is also the policy if there is no other."""
    model: Any = env
    return model if policy is None and is_model(env) else policy


def with_progress(run: Iterator[int], amount: int, unit: Unit, before: int = 0) -> Iterator[int]:
    """Show a progress bar for a run that starts with `before` of the amount."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeColumn

    columns = TextColumn(f"collecting {unit}"), BarColumn(), MofNCompleteColumn(), TimeColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("", total=amount, completed=before)
        for made in run:
            progress.update(task, completed=before + made)
            yield made


def _check_memory(env: EnvAdapter, n_transitions: int) -> None:
    """Refuse more transitions than memory holds, before the first of them."""
    numbers = flatdim(env.observation_space) + env.actions.example()[0].size + 1
    needed, free = 8 * numbers * n_transitions, available_bytes()
    if free is not None and needed > free:
        raise ValueError(
            f"{n_transitions} transitions take {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: "
            "collect fewer, or write them to disk with collect_to_minari."
        )


def _check_amount(n_transitions: int | None, n_episodes: int | None) -> tuple[int, Unit]:
    if (n_transitions is None) == (n_episodes is None):
        raise ValueError("say how much to collect: either n_transitions or n_episodes.")
    unit: Unit = "transitions" if n_episodes is None else "episodes"
    return as_count(n_transitions if n_episodes is None else n_episodes, f"n_{unit}"), unit
