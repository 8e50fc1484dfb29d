"""Environments from recipes: an id, a specification, or a function that returns one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

from gptd_rl.checks import one_line
from gptd_rl.exceptions import CollectionError

MAX_ENVS = 8  # environments stepped together
DEFAULT_TIME_LIMIT = 1000  # steps, for environments without a registered one

Recipe = str | EnvSpec | Callable[..., gym.Env[Any, Any]]


def is_recipe(env: Any) -> bool:
    """Whether `env` is no environment yet: an id, a specification, or a function."""
    return isinstance(env, str | EnvSpec) or callable(env)


def make_env(env: Recipe, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make an environment of a recipe.

    Parameters
    ----------
    env : str, EnvSpec, or function that returns a gymnasium.Env
    **kwargs
        Arguments of the environment, or of the function.
    """
    try:
        made: Any = gym.make(env, **kwargs) if isinstance(env, str | EnvSpec) else env(**kwargs)
    except Exception as error:
        raise CollectionError(f"cannot make environment {recipe_name(env)}: {one_line(error)}") from error
    if not isinstance(made, gym.Env):
        raise CollectionError(f"{recipe_name(env)} returned a {type(made).__name__}: expected a gymnasium.Env.")
    return made


def recipe_name(env: Recipe) -> str:
    """The name of an id, with quotation marks, or of a function."""
    return repr(env) if isinstance(env, str | EnvSpec) else str(getattr(env, "__name__", type(env).__name__))


def choose_n_envs(
    n_transitions: int | None = None, n_episodes: int | None = None, time_limit: int | None = None
) -> int:
    """Number of environments to step together.

    Several are faster, but each truncates its last episode. So each gets enough steps for two of the longest episodes,
    or at least one episode if episodes are counted.

    Parameters
    ----------
    n_transitions, n_episodes : int, optional
        Amount to collect; one of the two.
    time_limit : int, optional
        Longest episode; `DEFAULT_TIME_LIMIT` if unknown.
    """
    if n_episodes is not None:
        return min(MAX_ENVS, n_episodes)
    assert n_transitions is not None, "one of the two amounts is given"
    return min(MAX_ENVS, max(1, n_transitions // (2 * (time_limit or DEFAULT_TIME_LIMIT))))


def make_envs(env: Recipe, n_envs: int, **kwargs: Any) -> gym.Env[Any, Any] | SyncVectorEnv:
    """Make one environment, or a vector environment of `n_envs` of them that are stepped in this process.

    Parameters
    ----------
    env : str, EnvSpec, or function that returns a gymnasium.Env
    n_envs : int
    **kwargs
        Arguments of the environment, or of the function.
    """
    if n_envs == 1:
        return make_env(env, **kwargs)
    return SyncVectorEnv([lambda: make_env(env, **kwargs) for _ in range(n_envs)])
