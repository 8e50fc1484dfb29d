"""Rollouts of a policy in any environment, as `Trajectories`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from gptd_rl.data.trajectories import Trajectories
from gptd_rl.exceptions import CollectionError
from gptd_rl.rollouts.environments import Source, is_model, open_source
from gptd_rl.rollouts.policies import as_act
from gptd_rl.rollouts.rollout import Rollout, Unit

__all__ = ["CollectionError", "collect"]


def collect(
    env: Any,
    policy: Any = None,
    *,
    n_transitions: int | None = None,
    n_episodes: int | None = None,
    gamma: float,
    seed: int | None = None,
    deterministic: bool = True,
    progress_bar: bool = False,
) -> Trajectories:
    """Sample transitions of a policy.

    Where an episode terminates, the true terminal observation is the last state of its segment,
    pinned by a row of reward and discount 0. Where it is truncated, the true final observation is
    the last state and has no row. Observations after a reset never follow anything. If an
    environment reports both ends at once, the episode terminated.

    Parameters
    ----------
    env : str, gymnasium.Env, gymnasium.vector.VectorEnv, or Stable-Baselines3 VecEnv or model
        A vector environment must say in ``metadata["autoreset_mode"]`` how it resets. A model
        stands for the environment it carries, and for the policy if none is given. With
        `VecNormalize`, states are the normalised ones that the policy sees, rewards the original
        ones, and its statistics stay as they are. The environment is reset first, and stays open.
    policy : object with ``predict``, callable, or None
        ``predict(obs, deterministic=...)`` is called as in Stable-Baselines3, on whole batches, and
        with ``state`` and ``episode_start`` if it takes them. A callable maps one observation to an
        action; with an attribute ``batched = True`` it maps a batch to a batch. None acts at
        random.
    n_transitions : int, optional
        Number of environment transitions. Runs cut off by it are truncated segments.
    n_episodes : int, optional
        Number of complete episodes. Give this or `n_transitions`.
    gamma : float
        Discount of every step, from 0 to 1.
    seed : int, optional
        Seeds the environment (sub-environment i by ``seed + i``) and random actions. A policy that
        draws its own random numbers is not touched.
    deterministic : bool
        Passed to ``predict``.
    progress_bar : bool
        Show progress.

    Returns
    -------
    trajectories : Trajectories
        Segments ordered by sub-environment, then by time. Observations are flattened as by
        `gymnasium.spaces.flatten`; actions are as the environment got them.

    Raises
    ------
    CollectionError
        If the environment or the policy fails or returns nonsense; what was collected until then is
        in its attribute ``trajectories``.

    Notes
    -----
    Several sub-environments get equal shares of the transitions or episodes, whatever their pace:
    taking the first to finish would favour short episodes. Sub-environments that are done with
    their share are stepped along, but not recorded.

    Collecting from a model's own environment resets it, so the model should go on learning with
    ``reset_num_timesteps=True``, the default.

    Examples
    --------
    >>> data = collect("CartPole-v1", lambda obs: int(obs[2] > 0), n_episodes=3, gamma=0.99, seed=0)
    >>> data
    Trajectories(107 transitions in 3 segments, 3 terminated, 0 truncated; 4 dimensions)
    """
    amount, unit = _checked_amount(n_transitions, n_episodes)
    with open_source(env) as source:
        room = 1000 if n_transitions is None else 5 * amount // (4 * source.n_envs) + 1000
        rollout = start(source, policy_of(env, policy), gamma, seed, deterministic, room)
        run = rollout.run(amount, unit)
        for _ in with_progress(run, amount, unit) if progress_bar else run:
            pass
        data = rollout.take()
    assert data is not None, "a positive amount leaves a segment"
    return data


def start(source: Source, policy: Any, gamma: float, seed: int | None, deterministic: bool, room: int) -> Rollout:
    """Reset a source and make ready to roll `policy` through it, for about `room` steps."""
    seed = None if seed is None else operator.index(seed)  # environments take no NumPy integers
    act = as_act(
        policy,
        observation_space=source.observation_space,
        action_space=source.action_space,
        n_envs=source.n_envs,
        seed=seed,
        deterministic=deterministic,
    )
    return Rollout(source, act, checked_discount(gamma), seed, room)


def policy_of(env: Any, policy: Any) -> Any:
    """Return the policy to roll: a model given as the environment is its own if there is none."""
    return env if policy is None and is_model(env) else policy


def with_progress(run: Iterator[int], amount: int, unit: Unit, before: int = 0) -> Iterator[int]:
    """Show how far a run is, which began with `before` of the amount."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeColumn

    columns = TextColumn(f"collecting {unit}"), BarColumn(), MofNCompleteColumn(), TimeColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("", total=amount, completed=before)
        for made in run:
            progress.update(task, completed=before + made)
            yield made


def _checked_amount(n_transitions: int | None, n_episodes: int | None) -> tuple[int, Unit]:
    if (n_transitions is None) == (n_episodes is None):
        raise ValueError("say how much to collect: either n_transitions or n_episodes.")
    unit: Unit = "transitions" if n_episodes is None else "episodes"
    return checked_count(n_transitions if n_episodes is None else n_episodes, f"n_{unit}"), unit


def checked_discount(gamma: float) -> float:
    """Refuse what is no discount."""
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"the discount gamma must lie in [0, 1]; got {gamma}.")
    return float(gamma)


def checked_count(value: Any, name: str) -> int:
    """Refuse what is not a whole number of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")
    return int(value)
